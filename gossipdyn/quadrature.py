"""Averages of any smooth activation, by quadrature in as few dimensions as there can be.

Averages over two fields are series in their correlation r (Mehler's formula),

    <f(a) g(b)> = sum_k r^k f_k g_k,    g_k = <g(b) he_k(z)>, b = sqrt(C_bb) z,

with Hermite polynomials he_k normalised to <he_k^2> = 1: one dimension. Averages over four fields
are taken over two of them, on a grid, and the series for the other two given these: three
dimensions, whatever the number of fields in the error. Derived in the book, chapter
`gaussian_averages`.

`nodes` counts those of the grid in each direction; two-field averages use four times as many. For
fields of variance 1, four-field averages of tanh are good to 1e-5 with 20 nodes and to 1e-6 with
32; the sharper g or the larger the variance, the more it takes (a test states what is reached).
"""

from functools import lru_cache

import numpy as np

CHUNK = 2**21  # values of g held at a time
ROUNDING = 1e-14  # a conditional variance below this part of the variance is zero


def i2(g, dg, nodes, caa, cab, cbb):
    """<g(a) g(b)>. Equation :eq:`eq-mehler`."""
    return _series(_correlation(caa, cab, cbb), *(_hermite(g, c, 4 * nodes) for c in (caa, cbb)))


def j2(g, dg, nodes, caa, cab, cbb):
    """<g'(a) g'(b)>."""
    return i2(dg, dg, nodes, caa, cab, cbb)


def h2(g, dg, nodes, caa, cab, cbb):
    """<g''(a) g(b)>, by <g''(s z) he_k(z)> = sqrt(k + 1) <g'(s z) he_{k+1}(z)> / s.

    For a field a that vanishes it is 0, not g''(0) <g(b)>: it is always multiplied by C_a. = 0.
    """
    n = 4 * nodes
    scale = np.sqrt(np.maximum(caa, 0))[..., None]
    slope = _hermite(dg, caa, n)[..., 1:] * np.sqrt(np.arange(1, n))
    slope = np.divide(slope, scale, out=np.zeros_like(slope), where=scale > 0)
    return _series(_correlation(caa, cab, cbb), slope, _hermite(g, cbb, n)[..., :-1])


def i4(g, dg, nodes, C):
    """<g'(0) g'(1) g(2) g(3)> for covariances C (..., 4, 4). Equation :eq:`eq-smooth-I4`."""
    *lead, n, _ = C.shape
    out = [_four_fields(g, dg, nodes, part) for part in _chunks(C.reshape(-1, n, n), nodes)]
    return np.concatenate(out).reshape(lead)


def square(g, dg, nodes, odd, C, K, c):
    """<g'_i g'_j (sum_a c_a g_a)^2> for i, j < K: (..., K, K), C (..., n, n), c (..., n)."""
    *lead, n, _ = C.shape
    C, c = C.reshape(-1, n, n), np.broadcast_to(c, C.shape[:-1]).reshape(-1, n)
    out = np.empty((len(C), K, K))
    done = 0
    for part in _chunks(C, nodes):
        runs = slice(done, done := done + len(part))
        for i in range(K):
            for j in range(i, K):
                out[runs, i, j] = _pair(g, dg, nodes, odd, part, c[runs], i, j)
                out[runs, j, i] = out[runs, i, j]
    return out.reshape(*lead, K, K)


def sample_averages(g, dg, nodes):
    """Averages over one field of variance 1 and mean 0 or 0.7 by the rules that four-field averages
    use, those of g and g^2 by Gauss's and of g' and g'^2 by the grid: (2, 4)."""
    x, root, _ = _gauss(nodes)
    z, weight = _grid(nodes)
    rules = (g, x, root**2), (dg, z, weight)
    powers = [(k, mean) for k in (1, 2) for mean in (0, 0.7)]
    return np.array([[f(x + mean) ** k @ w for k, mean in powers] for f, x, w in rules])


def _pair(g, dg, nodes, odd, C, c, i, j):
    """<g'_i g'_j (sum_a c_a g_a)^2> for one pair i, j: (runs,)."""
    others = [a for a in range(C.shape[-1]) if a not in (i, j)]
    mean, rest, weight = _given(C, i, j, nodes, odd)
    own = sum(c[:, a, None] * g(mean[:, a]) for a in {i, j})
    H, r = _conditional(g, nodes, C, mean, rest, others)
    H *= c[:, others, None, None]
    by_order = np.ascontiguousarray(H.transpose(0, 3, 2, 1))  # (runs, k, points, fields)
    powers = r[:, None] ** np.arange(nodes)[:, None, None]
    error2 = own * (own + 2 * H[..., 0].sum(1))
    error2 += ((by_order @ powers) * by_order).sum((1, 3))
    return (dg(mean[:, i]) * dg(mean[:, j]) * error2) @ weight


def _four_fields(g, dg, nodes, C):
    mean, rest, weight = _given(C, 0, 1, nodes, odd=False)
    H, r = _conditional(g, nodes, C, mean, rest, [2, 3])
    average = _series(r[:, 0, 1, None], H[:, 0], H[:, 1])
    return (dg(mean[:, 0]) * dg(mean[:, 1]) * average) @ weight


def _given(C, i, j, nodes, odd):
    """All fields given i and j on a grid: means (runs, n, points), covariance, weights (points,).

    If the average is even under a change of sign of all fields (odd g), half of the grid does.
    """
    variance = C.diagonal(axis1=1, axis2=2)
    z, weight = _grid(nodes)
    first = C[:, i] / np.sqrt(np.where(variance[:, i] > 0, variance[:, i], np.inf))[:, None]
    mean, rest = first[:, :, None] * z, C - first[:, :, None] * first[:, None]
    if odd:
        mean, weight = mean[..., nodes // 2 :], 2 * weight[nodes // 2 :]
    if i != j:
        remains = rest[:, j, j] > ROUNDING * variance[:, j]
        second = rest[:, j] / np.sqrt(np.where(remains, rest[:, j, j], np.inf))[:, None]
        rest = rest - second[:, :, None] * second[:, None]
        mean = mean[..., None] + second[:, :, None, None] * z
        mean = mean.reshape(*C.shape[:2], -1)
        weight = np.outer(weight, _grid(nodes)[1]).ravel()
    return mean, rest, weight


def _conditional(g, nodes, C, mean, rest, others):
    """Hermite coefficients (runs, fields, points, nodes) of the other fields given two, and the
    correlations (runs, fields, fields) that these leave."""
    x, root, polynomials = _gauss(nodes)
    rest = rest[:, others][:, :, others]
    variance = rest.diagonal(axis1=1, axis2=2)
    variance = np.where(variance > ROUNDING * C.diagonal(axis1=1, axis2=2)[:, others], variance, 0)
    deviation = np.sqrt(variance)
    H = (g(mean[:, others, :, None] + deviation[:, :, None, None] * x) * root) @ polynomials.T
    return H, _correlation(variance[:, :, None], rest, variance[:, None])


def _hermite(g, variance, n):
    """<g(b) he_k(z)>, b = sqrt(variance) z, for k < n: (..., n)."""
    x, root, polynomials = _gauss(n)
    return (g(np.sqrt(np.maximum(variance, 0))[..., None] * x) * root) @ polynomials.T


def _series(r, f, g):
    """sum_k r^k f_k g_k over the last axis of f and g; r (...) broadcasts."""
    terms = f * g
    powers = np.cumprod(np.broadcast_to(r[..., None], (*r.shape, terms.shape[-1] - 1)), axis=-1)
    return terms[..., 0] + (powers * terms[..., 1:]).sum(-1)


def _correlation(caa, cab, cbb):
    """Correlation of two fields, 0 where one vanishes; rounding may take it beyond 1."""
    scale = np.sqrt(np.maximum(caa * cbb, 0))
    cab, scale = np.broadcast_arrays(cab, scale)
    r = np.divide(cab, scale, out=np.zeros(scale.shape), where=scale > 0)
    return np.clip(r, -1, 1)


def _chunks(C, nodes):
    step = max(1, CHUNK // (C.shape[-1] * nodes**3))
    return [C[begin : begin + step] for begin in range(0, len(C), step)]


@lru_cache
def _gauss(n):
    """Gauss-Hermite nodes x, roots w^1/2 of the weights, and w^1/2 he_k(x) as a matrix (k, x).

    The matrix is orthogonal, so series of correlation 1 sum up to Gauss's rule itself.
    """
    above = np.diag(np.sqrt(np.arange(1, n)), 1)
    x, matrix = np.linalg.eigh(above + above.T)  # x he_k = sqrt(k + 1) he_{k+1} + sqrt(k) he_{k-1}
    matrix = matrix * np.sign(matrix[0])
    return x, matrix[0], matrix


@lru_cache
def _grid(nodes):
    """Trapezoidal rule for standard normal weight; its step balances the two ends of its error."""
    z = (np.arange(nodes) - (nodes - 1) / 2) * 1.95 / np.sqrt(nodes)
    weight = np.exp(-z * z / 2)
    return z, weight / weight.sum()
