"""Activation functions and their averages over jointly Gaussian fields.

Every drift and every noise term of the theory is an average of products of an activation g and
its slope g' over two, three or four zero-mean Gaussian fields with covariance C:

    I2 = <g(a) g(b)>    I3 = <g'(a) b g(c)>    I4 = <g'(a) g'(b) g(c) g(d)>    J2 = <g'(a) g'(b)>

By Stein's lemma I3 = C_ab H2(a, c) + C_bc J2(a, c) with H2 = <g''(a) g(c)>, so every drift needs
averages of two fields only. Chapter `gaussian_averages` derives the formulas.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ..checks import reals, semidefinite, symmetric, within_range


@dataclass(frozen=True)
class Activation:
    """An activation function g, its slope, and its Gaussian averages.

    Attributes
    ----------
    name : str
    g, dg : the function and its slope on NumPy arrays.
    torch_g, torch_dg : the same on torch tensors (`dg` is always the slope of `g`).
    odd : whether g(-x) = -g(x).
    i2, j2, h2 : <g(a) g(b)>, <g'(a) g'(b)>, <g''(a) g(b)> as functions of the entries
        (c_aa, c_ab, c_bb), which broadcast; they do not check their input.
    i4 : <g'(a) g'(b) g(c) g(d)> of covariances (..., 4, 4).
    square : (C, K, c) -> (..., K, K): <g'_i g'_j (sum_a c_a g_a)^2> for i, j among the first K
        of n fields, C (..., n, n), c (..., n): all four-field averages of the noise in one go.
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
    i4: Callable
    square: Callable

    def I2(self, C):
        """<g(a) g(b)> for covariances C (..., 2, 2). Equation :eq:`eq-I2`; Saad & Solla (1995).

        Raises ValueError for a C that is not a finite covariance of 2 fields.
        """
        C = _covariance(C, 2)
        return self.i2(C[..., 0, 0], C[..., 0, 1], C[..., 1, 1])

    def I3(self, C):
        """<g'(a) b g(c)> for covariances C (..., 3, 3). Equation :eq:`eq-I3`; Saad & Solla (1995).

        Raises ValueError for a C that is not a finite covariance of 3 fields.
        """
        C = _covariance(C, 3)
        pair = C[..., 0, 0], C[..., 0, 2], C[..., 2, 2]
        return C[..., 0, 1] * self.h2(*pair) + C[..., 1, 2] * self.j2(*pair)

    def I4(self, C):
        """<g'(a) g'(b) g(c) g(d)>, C (..., 4, 4). Equation :eq:`eq-I4`; Saad & Solla (1995).

        Raises ValueError for a C that is not a finite covariance of 4 fields.
        """
        return self.i4(_covariance(C, 4))

    def J2(self, C):
        """<g'(a) g'(b)> for covariances C (..., 2, 2). Equation :eq:`eq-J2`.

        Raises ValueError for a C that is not a finite covariance of 2 fields.
        """
        C = _covariance(C, 2)
        return self.j2(C[..., 0, 0], C[..., 0, 1], C[..., 1, 1])

    def __repr__(self):
        return f"gossipdyn.{self.name}"


def _covariance(C, k):
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
