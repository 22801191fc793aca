"""The activation erf: g(x) = erf(x / sqrt 2), with the slope g'(x) = sqrt(2/pi) exp(-x^2 / 2)."""

from functools import lru_cache
from typing import NamedTuple

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
    small = np.minimum(caa, cbb)
    area = np.maximum(caa, cbb) - size
    area *= small
    small = small - size
    small *= size
    area += small
    return least + np.maximum(area, -0.5 * least)


def _erf_i2(caa, cab, cbb):
    return 2 / np.pi * np.arctan2(cab, np.sqrt(_erf_det(caa, cab, cbb)))


def _erf_j2(caa, cab, cbb):
    return 2 / np.pi / np.sqrt(_erf_det(caa, cab, cbb))


def _erf_h2(caa, cab, cbb):
    return _erf_slopes(caa, cab, cbb)[1]


def _erf_slopes(caa, cab, cbb):
    j2 = _erf_j2(caa, cab, cbb)
    return j2, -cab / (1 + caa) * j2


def _erf_weighted(cab, cia, cib, cii):
    """C_ab under a weight g'_i.

    A slope is a Gaussian in its field; multiplying a Gaussian by it gives a Gaussian again,
    C - C_.i (1 + C_ii)^-1 C_i.. As written here, a field that is i itself meets no difference of
    large numbers: its variance becomes C_ii / (1 + C_ii).
    """
    new = cab * cii
    new -= cia * cib
    new += cab
    new /= 1 + cii
    return new


def _erf_i4(C):
    weight = 1.0
    for i in (0, 1):
        own, row = C[..., i, i, None, None], C[..., i, :]
        weight = weight * (1 + own[..., 0, 0])
        C = _erf_weighted(C, row[..., :, None], row[..., None, :], own)
    c, cd, d = C[..., 2, 2], C[..., 2, 3], C[..., 3, 3]
    average = _erf_i2(np.maximum(c, -0.5), cd, np.maximum(d, -0.5))
    return 2 / np.pi / np.sqrt(weight) * average


def _erf_square(C, K, c):
    n = C.shape[-1]
    places = _places(K, n)
    own, rows = C.diagonal(axis1=-2, axis2=-1)[..., :K], C[..., :K, :]
    once = _erf_weighted(
        C[..., None, :, :], rows[..., :, None], rows[..., None, :], own[..., None, None]
    ).reshape(*C.shape[:-2], K * n * n)
    second = once.take(places.jj, axis=-1)
    among = once.take(places.among, axis=-1)
    twice = _erf_weighted(
        among[..., 0, :, :], among[..., 1, :, :], among[..., 2, :, :], second[..., None]
    )
    both = np.maximum(twice.take(places.own, axis=-1), -0.5).take(places.fields, axis=-1)
    averages = np.arctan2(twice, np.sqrt(_erf_det(both[..., 0, :], twice, both[..., 1, :])))
    weights = c.take(places.fields, axis=-1)
    averages *= (weights[..., 0, :] * weights[..., 1, :] * places.times)[..., None, :]
    pairs = averages.sum(-1) / np.sqrt((1 + own).take(places.i, axis=-1) * (1 + second))
    return pairs.take(places.full, axis=-1)


class _Places(NamedTuple):
    """Where square() reads. Pairs are the slopes i <= j < K, entries the fields a <= b < n.

    i : of each pair. jj : of (i, j, j) among the covariances under each weight g'_i. among : of
    (i, a, b), (i, j, a) and (i, j, b) there, (3, pairs, entries). fields : a and b, (2, entries).
    times : (2 / pi)^2 times how often an entry counts in a square. own : entry of each (a, a).
    full : pair of each (i, j), (K, K).
    """

    i: np.ndarray
    jj: np.ndarray
    among: np.ndarray
    fields: np.ndarray
    times: np.ndarray
    own: np.ndarray
    full: np.ndarray


@lru_cache
def _places(K, n):
    (i, j), (a, b) = np.triu_indices(K), np.triu_indices(n)
    place, p, q = np.arange(K * n * n).reshape(K, n, n), i[:, None], j[:, None]
    full = np.empty((K, K), dtype=int)
    full[i, j] = full[j, i] = np.arange(len(i))
    return _Places(
        i=i,
        jj=place[i, j, j],
        among=np.stack([place[p, a, b], place[p, q, a], place[p, q, b]]),
        fields=np.stack([a, b]),
        times=(2 / np.pi) ** 2 * np.where(a == b, 1.0, 2.0),
        own=np.flatnonzero(a == b),
        full=full,
    )


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
    slopes=_erf_slopes,
    square=_erf_square,
)
