"""Activation functions and their averages over jointly Gaussian fields.

Every drift and every noise term of the theory is an average of products of an activation g and
its slope g' over two, three or four zero-mean Gaussian fields with covariance C:

    I2 = <g(a) g(b)>    I3 = <g'(a) b g(c)>    I4 = <g'(a) g'(b) g(c) g(d)>    J2 = <g'(a) g'(b)>

By Stein's lemma I3 = C_ab H2(a, c) + C_bc J2(a, c) with H2 = <g''(a) g(c)>, so every drift needs
averages of two fields only. Chapter `gaussian_averages` derives the formulas.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import erf as _erf_function

from . import orthants
from .refusals import EXACT, apart, reals, rounding, within_range

ROUNDING = 1e-9  # an eigenvalue above minus this part of the largest one counts as zero


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
    off = np.abs(C - C.swapaxes(-1, -2))
    scale = np.abs(C).max((-2, -1), keepdims=True)
    if np.any(off > EXACT * scale):
        if np.any(off > rounding(C) * scale):
            worst = np.unravel_index(np.argmax(off), C.shape)
            here, there = apart(C[worst], C.swapaxes(-1, -2)[worst])
            raise ValueError(
                f"a covariance is symmetric, got {here} at {tuple(map(int, worst))} against {there}"
            )
        C = (C + C.swapaxes(-1, -2)) / 2
    within_range(C, "the covariance")
    eigenvalues = np.linalg.eigvalsh(C)
    if np.any(eigenvalues[..., 0] < -ROUNDING * np.abs(eigenvalues[..., -1])):
        raise ValueError(
            f"no fields have this covariance: its smallest eigenvalue is "
            f"{eigenvalues[..., 0].min():.3g}, a covariance has none below 0"
        )
    return C


# erf: g(x) = erf(x / sqrt 2), g'(x) = sqrt(2/pi) exp(-x^2 / 2)


def _erf_g(x):
    return _erf_function(x / np.sqrt(2))


def _erf_dg(x):
    return np.sqrt(2 / np.pi) * np.exp(-x * x / 2)


def _erf_torch_g(x):
    return (x * 0.5**0.5).erf()


def _erf_torch_dg(x):
    return (x * x * -0.5).exp() * (2 / np.pi) ** 0.5


def _erf_det(caa, cab, cbb):
    """(1 + caa) (1 + cbb) - cab^2, where what matters for large fields is the area they span.

    In this form equal and nearly equal fields keep its digits, and no product is larger than that
    of the variances, so that fields of different size keep them too. A derivative by differences
    steps a little beyond what covariances can be, so the bound against rounding is half way to a
    zero.
    """
    size, least = np.abs(cab), 1 + caa + cbb
    small, large = np.minimum(caa, cbb), np.maximum(caa, cbb)
    return least + np.maximum(small * (large - size) + size * (small - size), -least / 2)


def _erf_i2(caa, cab, cbb):
    return 2 / np.pi * np.arctan2(cab, np.sqrt(_erf_det(caa, cab, cbb)))


def _erf_j2(caa, cab, cbb):
    return 2 / np.pi / np.sqrt(_erf_det(caa, cab, cbb))


def _erf_h2(caa, cab, cbb):
    return -cab / (1 + caa) * _erf_j2(caa, cab, cbb)


def _erf_tilt(C, i, j):
    """Covariance of all fields under the weight g'_i g'_j, for index arrays i, j (pairs,).

    Returns (..., pairs, n, n) and the normalisation <g'_i g'_j> (..., pairs).
    """
    units = np.arange(i.max() + 1)
    once, first = _erf_weighted(C[..., None, :, :], C[..., units, :], units)
    once, pairs = once[..., i, :, :], np.arange(len(i))
    twice, second = _erf_weighted(once, once[..., pairs, j, :], j)
    return twice, 2 / np.pi / np.sqrt(first[..., i] * second)


def _erf_weighted(C, row, i):
    """Covariance of all fields under a weight g'_i: (..., sets, n, n), and 1 + C_ii (..., sets).

    A slope is a Gaussian in its field; multiplying a Gaussian by it gives a Gaussian again,
    C - C_.i (1 + C_ii)^-1 C_i.. As written here, a field that is i itself meets no difference of
    large numbers: its variance becomes C_ii / (1 + C_ii). row (..., sets, n) is C_i., i (sets,).
    """
    own = row[..., np.arange(len(i)), i][..., None, None]
    minors = C * own - row[..., :, None] * row[..., None, :]
    return (C + minors) / (1 + own), 1 + own[..., 0, 0]


def _erf_i4(C):
    tilted, norm = _erf_tilt(C, np.array([0]), np.array([1]))
    c, cd, d = (tilted[..., 0, k, l] for k, l in ((2, 2), (2, 3), (3, 3)))
    return norm[..., 0] * _erf_i2(np.maximum(c, -0.5), cd, np.maximum(d, -0.5))


def _erf_square(C, K, c):
    i, j = np.triu_indices(K)
    tilted, norm = _erf_tilt(C, i, j)
    variance = np.maximum(np.diagonal(tilted, axis1=-2, axis2=-1), -0.5)
    averages = _erf_i2(variance[..., :, None], tilted, variance[..., None, :])
    pairs = norm * np.einsum("...a,...pab,...b->...p", c, averages, c, optimize=False)
    return _symmetric(pairs, i, j, K)


def _symmetric(pairs, i, j, K):
    """(..., pairs) -> (..., K, K), from the upper triangle."""
    full = np.empty((*pairs.shape[:-1], K, K))
    full[..., i, j] = pairs
    full[..., j, i] = pairs
    return full


erf = Activation(
    name="erf",
    g=_erf_g,
    dg=_erf_dg,
    torch_g=_erf_torch_g,
    torch_dg=_erf_torch_dg,
    odd=True,
    i2=_erf_i2,
    j2=_erf_j2,
    h2=_erf_h2,
    i4=_erf_i4,
    square=_erf_square,
)


# linear: g(x) = x


def _linear_g(x):
    return x


def _linear_dg(x):
    return x * 0 + 1


def _linear_i2(caa, cab, cbb):
    return cab + 0 * (caa + cbb)


def _linear_j2(caa, cab, cbb):
    return 1 + 0 * (caa + cab + cbb)


def _linear_h2(caa, cab, cbb):
    return 0 * (caa + cab + cbb)


def _linear_i4(C):
    return C[..., 2, 3]


def _linear_square(C, K, c):
    error = np.einsum("...a,...ab,...b->...", c, C, c)
    return error[..., None, None] * np.ones((K, K))


linear = Activation(
    name="linear",
    g=_linear_g,
    dg=_linear_dg,
    torch_g=_linear_g,
    torch_dg=_linear_dg,
    odd=True,
    i2=_linear_i2,
    j2=_linear_j2,
    h2=_linear_h2,
    i4=_linear_i4,
    square=_linear_square,
)


# quadratic: g(x) = x^2; every average is a polynomial, by Isserlis' theorem


def _quadratic_g(x):
    return x * x


def _quadratic_dg(x):
    return 2 * x


def _quadratic_i2(caa, cab, cbb):
    return caa * cbb + 2 * cab * cab


def _quadratic_j2(caa, cab, cbb):
    return 4 * cab + 0 * (caa + cbb)


def _quadratic_h2(caa, cab, cbb):
    return 2 * cbb + 0 * (caa + cab)


def _quadratic_i4(C):
    def c(p, q):
        return C[..., p, q]

    return 4 * (
        c(0, 1) * (c(2, 2) * c(3, 3) + 2 * c(2, 3) ** 2)
        + 2 * c(0, 2) * c(1, 2) * c(3, 3)
        + 2 * c(0, 3) * c(1, 3) * c(2, 2)
        + 4 * c(2, 3) * (c(0, 2) * c(1, 3) + c(0, 3) * c(1, 2))
    )


def _quadratic_square(C, K, c):
    """With D = diag(c) and e = x.D x: 4 <x_i x_j e^2>, from traces and powers of C D."""
    once = C @ (c[..., :, None] * C)
    twice = once @ (c[..., :, None] * C)
    mean = np.einsum("...a,...aa->...", c, C)[..., None, None]
    square = mean**2 + 2 * np.einsum("...a,...aa->...", c, once)[..., None, None]
    return 4 * (C * square + 4 * mean * once + 8 * twice)[..., :K, :K]


quadratic = Activation(
    name="quadratic",
    g=_quadratic_g,
    dg=_quadratic_dg,
    torch_g=_quadratic_g,
    torch_dg=_quadratic_dg,
    odd=False,
    i2=_quadratic_i2,
    j2=_quadratic_j2,
    h2=_quadratic_h2,
    i4=_quadratic_i4,
    square=_quadratic_square,
)


# relu: g(x) = max(x, 0), with the slope 1/2 at 0 that symmetric limits give


def _relu_g(x):
    return np.maximum(x, 0)


def _relu_dg(x):
    return np.heaviside(x, 0.5)


def _relu_torch_g(x):
    return x.clamp(min=0)


def _relu_torch_dg(x):
    return x.sign() * 0.5 + 0.5


relu = Activation(
    name="relu",
    g=_relu_g,
    dg=_relu_dg,
    torch_g=_relu_torch_g,
    torch_dg=_relu_torch_dg,
    odd=False,
    i2=orthants.relu_i2,
    j2=orthants.relu_j2,
    h2=orthants.relu_h2,
    i4=orthants.relu_i4,
    square=orthants.relu_square,
)
