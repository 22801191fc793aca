"""The activation erf: g(x) = erf(x / sqrt 2), with the slope g'(x) = sqrt(2/pi) exp(-x^2 / 2)."""

import numpy as np
from scipy.special import erf as _erf_function

from .activation import Activation


def _erf_g(x):
    return _erf_function(x / np.sqrt(2))


def _erf_dg(x):
    return np.sqrt(2 / np.pi) * np.exp(-x * x / 2)


def _erf_torch_g(x):
    return (x * 0.5**0.5).erf()


def _erf_torch_dg(x):
    return (x * x * -0.5).exp() * (2 / np.pi) ** 0.5


def _erf_det(caa, cab, cbb):
    """Compute (1 + caa) (1 + cbb) - cab^2 without losing digits.

    For large fields this is the squared area that they span, which the usual form loses when
    fields are nearly equal. In the form below equal and nearly equal fields keep its digits. No
    product is larger than that of the variances, so that fields of different size keep them too. A
    derivative by differences steps a little beyond what covariances can be. So the lower bound is
    half of the value for parallel fields, and not that value.
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

    A slope is a Gaussian in its field; multiplying a Gaussian by it gives a Gaussian again, C -
    C_.i (1 + C_ii)^-1 C_i.. In the form below the variance of field i itself, C_ii / (1 + C_ii), is
    not a difference of large numbers. row (..., sets, n) is C_i., i (sets,).
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
