"""The activation relu: g(x) = max(x, 0), with the slope 1/2 at 0 that symmetric limits give."""

from functools import lru_cache
from itertools import combinations, combinations_with_replacement
from typing import NamedTuple

import numpy as np

from .activation import Activation
from .orthants import CHUNK, _four_fields, _three_fields, directions


def _relu_g(x):
    return np.maximum(x, 0)


def _relu_dg(x):
    return np.heaviside(x, 0.5)


def _relu_torch_g(x):
    return x.clamp(min=0)


def _relu_torch_dg(x):
    return x.sign() * 0.5 + 0.5


def relu_i2(caa, cab, cbb):
    """<a+ b+>. Equation :eq:`eq-relu-I2`; Cho & Saul (2009)."""
    area = _area(caa, cab, cbb)
    return (area + cab * (np.pi - np.arctan2(area, cab))) / (2 * np.pi)


def relu_j2(caa, cab, cbb):
    """<theta_a theta_b>, theta(0) = 1/2. Equation :eq:`eq-relu-J2`."""
    angle = np.where(caa * cbb > 0, np.arctan2(_area(caa, cab, cbb), cab), np.pi / 2)
    return (np.pi - angle) / (2 * np.pi)


def relu_h2(caa, cab, cbb):
    """<delta(a) b+>, and 0 for a field a that vanishes: h2 is always multiplied by C_a. = 0 then.

    Equation :eq:`eq-relu-H2`.
    """
    area = _area(caa, cab, cbb)
    caa = np.broadcast_to(caa, area.shape)
    return np.divide(area, 2 * np.pi * caa, out=np.zeros_like(area), where=caa > 0)


def relu_i4(C):
    """<theta_0 theta_1 x_2+ x_3+> for covariances (..., 4, 4). Equation :eq:`eq-relu-I4`."""
    norms, u = directions(C)
    *lead, n, _ = C.shape
    E = _four_fields(u.reshape(-1, n, n), np.arange(4)[None], *np.array([[0], [2], [3]]))
    return norms[..., 2] * norms[..., 3] * E.reshape(lead)


def relu_square(C, K, c):
    """<theta_i theta_j (sum_a c_a x_a+)^2> for i, j < K: (..., K, K), C (..., n, n), c (..., n).

    Equation :eq:`eq-relu-noise`.
    """
    norms, u = directions(C)
    *lead, n, _ = C.shape
    three, four = _terms(n, K)
    u, weights = u.reshape(-1, n, n), (c * norms).reshape(-1, n)
    out = np.empty((len(u), K * (K + 1) // 2))
    step = max(1, CHUNK // max(1, len(four.sets)))
    for begin in range(0, len(u), step):
        part = slice(begin, begin + step)
        w = weights[part]
        E = _three_fields(u[part], *three.fields.T)
        out[part] = (E * w[:, three.fields[:, 3]] * w[:, three.fields[:, 4]]) @ three.sums
        if len(four.sets):
            E = _four_fields(u[part], four.sets, *four.fields.T)
            a, b = (four.sets[four.fields[:, 0], four.fields[:, k]] for k in (1, 2))
            out[part] += (E * w[:, a] * w[:, b]) @ four.sums
    i, j = np.triu_indices(K)
    full = np.empty((len(u), K, K))
    full[:, i, j] = full[:, j, i] = out
    full = full.reshape(*lead, K, K)
    # theta^2 is theta, but for a field that vanishes it is 1/4: g'(0) = 1/2
    units = np.arange(K)
    full[..., units, units] *= np.where(norms[..., :K] > 0, 1, 0.5)
    return full


class _Terms(NamedTuple):
    """Which averages E_S[a, b] to take, and how often each enters the pair (i, j) of square."""

    sets: np.ndarray
    fields: np.ndarray
    sums: np.ndarray


@lru_cache
def _terms(n, K):
    """The averages that relu_square needs: those over sets of up to three fields, and of four."""
    pairs = {pair: p for p, pair in enumerate(combinations_with_replacement(range(K), 2))}
    three, four = [], []  # (fields, pair, weight)
    sets = list(combinations(range(n), 4))
    for (i, j), p in pairs.items():
        for a, b in combinations_with_replacement(range(n), 2):
            weight = 1 if a == b else 2
            S = {i, j, a, b}
            if len(S) < 4:
                x, y, z = (sorted(S) * 3)[:3]
                three.append(((x, y, z, a, b), p, weight))
            else:
                S = tuple(sorted(S))
                four.append(((sets.index(S), S.index(a), S.index(b)), p, weight))
    used = sorted({fields[0] for fields, _, _ in four})
    four = [((used.index(s), a, b), p, weight) for (s, a, b), p, weight in four]

    def gather(terms, width):
        fields = np.array([f for f, _, _ in terms], dtype=int).reshape(-1, width)
        sums = np.zeros((len(terms), len(pairs)))
        for row, (_, p, weight) in zip(sums, terms, strict=True):
            row[p] = weight
        return fields, sums

    chosen = np.array([sets[s] for s in used], dtype=int).reshape(-1, 4)
    return _Terms(None, *gather(three, 5)), _Terms(chosen, *gather(four, 3))


def _area(caa, cab, cbb):
    """Area spanned by two fields; rounding may make its square negative."""
    return np.sqrt(np.maximum(caa * cbb - cab * cab, 0))


relu = Activation(
    name="relu",
    g=_relu_g,
    dg=_relu_dg,
    torch_g=_relu_torch_g,
    torch_dg=_relu_torch_dg,
    odd=False,
    i2=relu_i2,
    j2=relu_j2,
    h2=relu_h2,
    i4=relu_i4,
    square=relu_square,
)
