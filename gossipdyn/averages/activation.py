"""Activation functions and their averages over jointly Gaussian fields.

Every drift and every noise term of the theory is an average of products of an activation g and
its slope g' over two, three or four zero-mean Gaussian fields with covariance C:

    I2 = <g(a) g(b)>    I3 = <g'(a) b g(c)>    I4 = <g'(a) g'(b) g(c) g(d)>    J2 = <g'(a) g'(b)>

By Stein's lemma I3 = C_ab H2(a, c) + C_bc J2(a, c) with H2 = <g''(a) g(c)>, so every drift needs
averages of two fields only. Chapter :doc:`gaussian_averages` derives the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike

from ..checks import reals, semidefinite, symmetric, within_range


@dataclass(frozen=True)
class Activation:
    """An activation function g, its slope, and its Gaussian averages.

    Attributes
    ----------
    name : str
        Name of the activation, under which trajectories are stored.
    g, dg : callable
        The function and its slope, on NumPy arrays.
    torch_g, torch_dg : callable
        The same two functions on torch tensors; ``dg`` is always the slope of ``g``.
    odd : bool
        Whether g(-x) = -g(x).
    i2, j2, h2 : callable
        The averages ``<g(a) g(b)>``, ``<g'(a) g'(b)>`` and ``<g''(a) g(b)>`` as functions of the
        entries (c_aa, c_ab, c_bb) of a covariance, which broadcast. They do not check their input.
    square : callable
        A function of a covariance C (..., n, n), a number K and coefficients c (..., n). It returns
        ``<g'_i g'_j (sum_a c_a g_a)^2>``, (..., K, K), for i and j among the first K of the n
        fields: all averages over four fields that the noise term needs, at once.
    i4 : callable, optional
        The average ``<g'(a) g'(b) g(c) g(d)>`` of covariances (..., 4, 4), which it does not check.
        It follows from ``square``, so nothing but I4 asks for it; given, I4 keeps more digits.
    slopes : callable, optional
        j2 and h2 at once, as a pair, where that costs less than one after the other.

    References
    ----------
    Chapter :doc:`gaussian_averages`. Saad and Solla (1995) give the averages of erf.

    Examples
    --------
    Two standard normal fields of correlation 1/2 have <erf erf> = (2 / pi) arcsin(1/4):

    >>> covariance = [[1.0, 0.5], [0.5, 1.0]]
    >>> print(f"{gd.erf.I2(covariance):.6f}")
    0.160861
    """

    name: str
    g: Callable
    dg: Callable
    torch_g: Callable
    torch_dg: Callable
    odd: bool
    i2: Callable
    j2: Callable
    h2: Callable
    square: Callable
    i4: Callable | None = None
    slopes: Callable | None = None

    def I2(self, C: ArrayLike) -> Annotated[np.ndarray, "..."]:
        """Compute ``<g(a) g(b)>``.

        Parameters
        ----------
        C : (..., 2, 2) array
            Covariances of the two fields.

        Returns
        -------
        (...) array
            The average for each covariance.

        Raises
        ------
        ValueError
            If C is not a finite covariance of 2 fields.

        References
        ----------
        Equation :eq:`eq-I2`; Saad and Solla (1995).
        """
        C = _covariance(C, 2)
        return self.i2(C[..., 0, 0], C[..., 0, 1], C[..., 1, 1])

    def I3(self, C: ArrayLike) -> Annotated[np.ndarray, "..."]:
        """Compute ``<g'(a) b g(c)>``.

        Parameters
        ----------
        C : (..., 3, 3) array
            Covariances of the three fields.

        Returns
        -------
        (...) array
            The average for each covariance.

        Raises
        ------
        ValueError
            If C is not a finite covariance of 3 fields.

        References
        ----------
        Equation :eq:`eq-I3`; Saad and Solla (1995).
        """
        C = _covariance(C, 3)
        pair = C[..., 0, 0], C[..., 0, 2], C[..., 2, 2]
        return C[..., 0, 1] * self.h2(*pair) + C[..., 1, 2] * self.j2(*pair)

    def I4(self, C: ArrayLike) -> Annotated[np.ndarray, "..."]:
        """Compute ``<g'(a) g'(b) g(c) g(d)>``.

        Parameters
        ----------
        C : (..., 4, 4) array
            Covariances of the four fields.

        Returns
        -------
        (...) array
            The average for each covariance.

        Raises
        ------
        ValueError
            If C is not a finite covariance of 4 fields.

        References
        ----------
        Equation :eq:`eq-I4`; Saad and Solla (1995).
        """
        C = _covariance(C, 4)
        return self._polarised(C) if self.i4 is None else self.i4(C)

    def _polarised(self, C):
        """I4 from two squares: 4 g_c g_d = (g_c + g_d)^2 - (g_c - g_d)^2."""
        plus, minus = (
            self.square(C, 2, np.broadcast_to([0.0, 0.0, 1.0, sign], C.shape[:-1]))[..., 0, 1]
            for sign in (1.0, -1.0)
        )
        return (plus - minus) / 4

    def J2(self, C: ArrayLike) -> Annotated[np.ndarray, "..."]:
        """Compute ``<g'(a) g'(b)>``.

        Parameters
        ----------
        C : (..., 2, 2) array
            Covariances of the two fields.

        Returns
        -------
        (...) array
            The average for each covariance.

        Raises
        ------
        ValueError
            If C is not a finite covariance of 2 fields.

        References
        ----------
        Equation :eq:`eq-J2`.
        """
        C = _covariance(C, 2)
        return self.j2(C[..., 0, 0], C[..., 0, 1], C[..., 1, 1])

    def __repr__(self):
        return f"gossipdyn.{self.name}"


def _covariance(C: Any, k: int) -> np.ndarray:
    C = reals(C, "the covariance")
    if C.shape[-2:] != (k, k):
        raise ValueError(
            f"a covariance of {k} fields has shape (..., {k}, {k}), got {C.shape}: "
            "pick the rows and columns of the fields you average over"
        )
    C = symmetric(C, "the covariance")
    within_range(C, "the covariance")
    semidefinite(C, "no fields have this covariance")
    return C


@dataclass(frozen=True)
class Given:
    """A function with its first arguments given: functools.partial that compares its parts."""

    function: Callable
    first: tuple

    def __call__(self, *rest):
        return self.function(*self.first, *rest)
