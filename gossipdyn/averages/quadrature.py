"""Averages of any smooth activation, by quadrature in as few dimensions as there can be.

Averages over two fields are series in their correlation r (Mehler's formula),

    <f(a) g(b)> = sum_k r^k f_k g_k,    g_k = <g(b) he_k(z)>, b = sqrt(C_bb) z,

with Hermite polynomials he_k normalised to <he_k^2> = 1: one dimension. Averages over four fields
are taken over two of them, on a grid, and the series for the other two given these: three
dimensions, whatever the number of fields in the error.

All grids are equidistant in z, and the he_k on them are not polynomials but eigenvectors, see
_grid: these resolve what the grid resolves, for any r. A grid is good as long as its step in a
field, that in z times the standard deviation, is small beside the length on which g bends; rule()
finds the largest such step. Beyond it levels of finer grids take over, each with sqrt 2 times the
nodes of the one before. Where two of them meet, one fades into the other: an implicit solver needs
averages without jumps.

`nodes` counts those of the coarsest grid in each direction; two-field averages use four times as
many. Derived in the book, chapter :doc:`gaussian_averages`, with a table of what is reached.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

CHUNK = 2**21  # values of g held at a time
ZERO_VARIANCE = 1e-14  # a conditional variance below this part of the variance counts as zero
NEGLIGIBLE = 1e-18  # a point of the grid with less than this part of the largest weight is left out
FADE = 0.1  # the last part of a level, in which the next one takes over
FINEST = 8  # the last level, with 16 times the nodes of level 0
STEPS = 2.0 ** -np.arange(0, 8, 0.125)  # steps in a field that are tried on an activation
TRIED = np.arange(-6.0, 6.1, 1.5)  # where they are tried, with a Gaussian weight of width WIDTH
WIDTH = 2.0


class Part(NamedTuple):
    """What a rule knows of averages over two or four fields.

    functions : the functions whose averages are compared between grids.
    nodes : nodes of the grid at level 0.
    reach : the largest standard deviation of fields for which level 0 is fine enough.
    largest : the largest standard deviation of fields for which any level is fine enough.
    tolerance : the error that is promised, as a part of the averages of squares.
    """

    functions: tuple
    nodes: int
    reach: float
    largest: float
    tolerance: float


class Rule(NamedTuple):
    """g, its slope, and what the quadrature knows of them; made by rule()."""

    g: Callable
    dg: Callable
    name: str
    two: Part
    four: Part


class Square(NamedTuple):
    """f(x)^2."""

    f: Callable

    def __call__(self, x):
        return self.f(x) ** 2


class Product(NamedTuple):
    """f(x) g(x)."""

    f: Callable
    g: Callable

    def __call__(self, x):
        return self.f(x) * self.g(x)


def rule(g, dg, name, nodes):
    """The Rule of an activation, with the steps that resolve it."""
    squares = Square(g), Square(dg)
    fourth = *squares, Product(*squares)
    kinks = g, dg  # the square of a kink may have none
    with np.errstate(all="ignore"):  # far out, g may overflow on its way to a limit
        two = _part(kinks, squares, 4 * nodes, 1e-9)
        four = _part(kinks, fourth, nodes, 1e-5)
    return Rule(g, dg, name, two, four)


def i2(rule, caa, cab, cbb):
    """<g(a) g(b)>. Equation :eq:`eq-mehler`."""
    return _two_fields(rule, (rule.g, rule.g, False), caa, cab, cbb)


def j2(rule, caa, cab, cbb):
    """<g'(a) g'(b)>."""
    return _two_fields(rule, (rule.dg, rule.dg, False), caa, cab, cbb)


def h2(rule, caa, cab, cbb):
    """<g''(a) g(b)>, by <g''(s z) he_k(z)> = <g'(s z) sqrt(k + 1) he_{k+1}(z)> / s.

    For a field a that vanishes it is 0, not g''(0) <g(b)>: it is always multiplied by C_a. = 0.
    """
    value = _two_fields(rule, (rule.dg, rule.g, True), caa, cab, cbb)
    scale = np.sqrt(np.maximum(caa, 0)) + 0 * value
    return np.divide(value, scale, out=np.zeros_like(scale), where=scale > 0)


def i4(rule, C):
    """<g'(0) g'(1) g(2) g(3)> for covariances C (..., 4, 4). Equation :eq:`eq-smooth-I4`."""
    *lead, n, _ = C.shape
    C = C.reshape(-1, n, n)
    c = np.broadcast_to([0.0, 0, 1, 1], C.shape[:-1])
    return _pair(rule, False, C, c, 0, 1, np.array([[0, 0.5], [0.5, 0]])).reshape(lead)


def square(rule, odd, C, K, c):
    """<g'_i g'_j (sum_a c_a g_a)^2> for i, j < K: (..., K, K), C (..., n, n), c (..., n)."""
    *lead, n, _ = C.shape
    C, c = C.reshape(-1, n, n), np.broadcast_to(c, C.shape[:-1]).reshape(-1, n)
    out = np.empty((len(C), K, K))
    for i in range(K):
        for j in range(i, K):
            out[:, i, j] = out[:, j, i] = _pair(rule, odd, C, c, i, j)
    return out.reshape(*lead, K, K)


# Averages over two fields


def _two_fields(rule, what, caa, cab, cbb):
    deviation = np.sqrt(np.maximum(np.maximum(caa, cbb), 0))
    level = _level(rule, rule.two, deviation)
    if level.max(initial=0) <= 1 - FADE:
        return _series(_grid(rule.two.nodes, 0), *what, caa, cab, cbb)
    *C, level = np.broadcast_arrays(caa, cab, cbb, level)
    out = np.zeros(level.size)
    for (at,), pick, share in _levels(level.reshape(1, -1)):
        value = _series(_grid(rule.two.nodes, at), *what, *(part.ravel()[pick] for part in C))
        out[pick] += share * value
    return out.reshape(level.shape)


def _series(grid, f, g, raised, caa, cab, cbb):
    """<f(a) g(b)>, and with `raised` that of the derivative of f(sqrt(caa) z) by z."""
    first = _coefficients(grid, f, caa, grid.raised if raised else grid.modes)
    second = _coefficients(grid, g, cbb, grid.modes)
    return (_powers(grid, _correlation(caa, cab, cbb)) * first * second).sum(-1)


def _coefficients(grid, f, variance, modes):
    """<f(b) he_k(z)>, b = sqrt(variance) z: (..., nodes)."""
    return (f(np.sqrt(np.maximum(variance, 0))[..., None] * grid.z) * grid.root) @ modes.T


# Averages over four fields


def _pair(rule, odd, C, c, i, j, shares=1.0):
    """<g'_i g'_j (sum_a c_a g_a)^2> for one pair i, j: (runs,).

    The error's square is a sum over pairs of fields; for those beside i and j, `shares` (fields,
    fields) says how much of each is wanted. If the average is even under a change of sign of all
    fields (odd g), half of the grid does.
    """
    variance = C.diagonal(axis1=1, axis2=2)
    coarse = _level(rule, rule.four, np.sqrt(np.maximum(variance, 0))).max() <= 1 - FADE
    others = [a for a in range(C.shape[-1]) if a not in (i, j)]
    rows, rest = [], C
    for k in (i, j) if i != j else (i,):
        remains = rest[:, k, k] > ZERO_VARIANCE * variance[:, k]
        rows.append(rest[:, k] / np.sqrt(np.where(remains, rest[:, k, k], np.inf))[:, None])
        rest = rest - rows[-1][:, :, None] * rows[-1][:, None]
    rest = rest[:, others][:, :, others]
    given = rest.diagonal(axis1=1, axis2=2)
    given = np.sqrt(np.where(given > ZERO_VARIANCE * variance[:, others], given, 0))
    level = np.zeros((len(rows) + 1, len(C)))
    if not coarse:
        sizes = np.array([*(np.abs(row).max(-1) for row in rows), given.max(-1)])
        level = _level(rule, rule.four, sizes)
    out = np.zeros(len(C))
    for levels, pick, share in _levels(level):
        grids = [_grid(rule.four.nodes, level) for level in levels]
        points = len(others) * np.prod([grid.z.size for grid in grids])
        step = max(1, CHUNK // points)
        for begin in range(0, len(pick), step):
            runs = pick[begin : begin + step]
            value = _on_grids(
                rule, grids, odd, [row[runs] for row in rows], rest[runs], given[runs], c[runs],
                (i, j, others), shares,
            )  # fmt: skip
            out[runs] += share[begin : begin + step] * value
    return out


def _on_grids(rule, grids, odd, rows, rest, given, c, fields, shares):
    """_pair on chosen grids. rows: what all fields get from the z of i, and of j if it is another;
    rest, given: covariances and standard deviations of the other fields given these."""
    i, j, others = fields
    *outer, grid = grids
    half = slice(outer[0].z.size // 2 if odd else 0, None)
    mean = rows[0][:, :, None] * outer[0].z[half]
    weight = outer[0].root[half] ** 2 * (2 if odd else 1)
    if i != j:
        mean = (mean[..., None] + rows[1][:, :, None, None] * outer[1].z).reshape(*c.shape, -1)
        weight = np.outer(weight, outer[1].root ** 2).ravel()
    slopes = rule.dg(mean[:, i]) * rule.dg(mean[:, j]) * weight
    size = np.abs(slopes)
    kept = np.flatnonzero((size > NEGLIGIBLE * size.max(-1, keepdims=True)).any(0))
    powers = _powers(grid, _correlation(given[:, :, None] ** 2, rest, given[:, None] ** 2))
    powers = (powers * np.broadcast_to(shares, rest.shape[1:])[..., None]).transpose(0, 3, 1, 2)
    out = np.zeros(len(c))
    step = max(1, CHUNK // (len(c) * len(others) * grid.z.size))
    for begin in range(0, kept.size, step):
        points = kept[begin : begin + step]
        at = mean[:, :, points]
        own = sum(c[:, a, None] * rule.g(at[:, a]) for a in {i, j})
        H = rule.g(at[:, others, :, None] + given[:, :, None, None] * grid.z)
        H = (H * grid.root) @ grid.modes.T
        H *= c[:, others, None, None]
        by_order = np.ascontiguousarray(H.transpose(0, 3, 2, 1))  # (runs, k, points, fields)
        error2 = own * (own + 2 * H[..., 0].sum(1))
        error2 += ((by_order @ powers) * by_order).sum((1, 3))
        out += (slopes[:, points] * error2).sum(-1)
    return out


def _correlation(caa, cab, cbb):
    """Correlation of two fields, 0 where one vanishes; rounding may take it beyond 1."""
    scale = np.sqrt(np.maximum(caa * cbb, 0))
    cab, scale = np.broadcast_arrays(cab, scale)
    r = np.divide(cab, scale, out=np.zeros(scale.shape), where=scale > 0)
    return np.clip(r, -1, 1)


# Grids and their levels


class Grid(NamedTuple):
    """Points z, roots of their weights, and the he_k on them, see _grid()."""

    z: np.ndarray
    root: np.ndarray
    modes: np.ndarray
    orders: np.ndarray
    raised: np.ndarray


@lru_cache
def _grid(nodes, level):
    """The grid of nodes 2^(level/2) points on [-sqrt(nodes), sqrt(nodes)], for standard normals.

    he_k(z) exp(-z^2/4) are the eigenfunctions of H = -d^2/dz^2 + z^2/4 - 1/2, with the eigenvalues
    k. Here H acts on the functions that the points resolve (sinc functions); so `modes` (k, points)
    is orthogonal, those of `orders` k that reach neither the ends nor the resolution are he_k to
    rounding, and what the others do is as small as the weight there. he_0 = 1 and he_1 = z are put
    in as they are. First the even half, then the odd. `raised` are the sqrt(k + 1) he_{k+1}:
    d/dz + z/2 applied to the other factor.
    """
    z = _points(nodes, level)
    n, step = z.size, z[1] - z[0]
    apart = np.subtract.outer(np.arange(n), np.arange(n))
    sign = 1 - 2.0 * (apart % 2)
    inverse = np.divide(1, apart, out=np.zeros((n, n)), where=apart != 0)
    curvature = sign * np.where(apart == 0, np.pi**2 / 3, 2 * inverse**2) / step**2
    H = curvature + np.diag(z * z / 4 - 0.5)
    right, left = H[n // 2 :, n // 2 :], H[n // 2 :, : n // 2][:, ::-1]
    root = np.exp(-z * z / 4)
    root /= np.sqrt(root @ root)
    orders, modes = [], []
    for parity, lowest in ((1, root), (-1, z * root)):
        first = lowest[n // 2 :] / np.linalg.norm(lowest[n // 2 :])
        across = np.eye(n // 2) - np.outer(first, first)
        half = across @ (right + parity * left) @ across + (parity < 0) * np.outer(first, first)
        values, vectors = np.linalg.eigh(half)
        vectors[:, 0], values[0] = first, parity < 0
        orders.append(values)
        modes.append(np.concatenate([parity * vectors[::-1], vectors]).T / np.sqrt(2))
    orders, modes = np.concatenate(orders), np.concatenate(modes)
    return Grid(z, root, modes, orders, modes @ (sign * inverse / step + np.diag(z / 2)))


def _points(nodes, level):
    n = 2 * round(nodes * 2 ** (level / 2) / 2)
    return (np.arange(n) - (n - 1) / 2) * (2 * np.sqrt(nodes) / n)


def _powers(grid, r):
    """r^k for all modes: (..., nodes)."""
    size = np.log(np.maximum(np.abs(r), 1e-300))
    powers = np.exp(size[..., None] * grid.orders)
    powers[..., grid.z.size // 2 :] *= np.sign(r)[..., None]
    return powers


def _level(rule, part, deviation):
    """How fine a grid fields of these standard deviations need, in whole levels and fractions."""
    largest = np.max(deviation, initial=0)
    if largest > part.largest:
        raise ValueError(
            f"the averages of {rule.name} over fields of variance {largest**2:.6g} are beyond its "
            f"quadrature, which holds to {part.tolerance:g} up to a variance of "
            f"{part.largest**2:.4g}: take smaller weights, smooth(..., nodes=) with more nodes, or "
            "an activation in closed form"
        )
    return _fineness(part, deviation)


def _fineness(part, deviation):
    return np.maximum(1 + 2 * np.log2(np.maximum(deviation, 1e-9) / part.reach), 0)


def _levels(level):
    """Which grids to use: (levels, which runs, their shares) of all sets of levels that occur.

    level: (directions, runs). In the last part of a level, of size FADE, the next one takes over.
    """
    below = np.floor(level).astype(int)
    t = np.clip((level - below - 1 + FADE) / FADE, 0, 1)
    t = t**3 * (10 - 15 * t + 6 * t * t)
    if not below.any() and not t.any():
        every = np.arange(level.shape[1])
        return [((0,) * len(level), every, np.ones(every.size))]
    out = []
    for up in product((0, 1), repeat=len(level)):
        chosen = below + np.array(up)[:, None]
        share = np.prod([t_ if u else 1 - t_ for t_, u in zip(t, up, strict=True)], axis=0)
        for levels in np.unique(chosen[:, share > 0], axis=1).T:
            pick = np.flatnonzero((chosen == levels[:, None]).all(0) & (share > 0))
            out.append((tuple(levels.tolist()), pick, share[pick]))
    return out


# What a rule finds out about an activation


def _part(kinks, functions, nodes, tolerance):
    """The Part of averages over these functions; its `largest` is 0 if no grid resolves them."""
    resolved = (step for step in STEPS if _step_error((*kinks, *functions), step) < tolerance)
    reach = float(next(resolved, 0) * np.sqrt(nodes) / 2)
    largest = 0.0
    part = Part(functions, nodes, reach, largest, tolerance)
    if not reach:
        return part
    for deviation in reach * 2.0 ** np.append(
        np.arange(-16, 2 * FINEST - 1) / 4, FINEST / 2 - FADE / 2
    ):
        if not _change(part, deviation) < tolerance:
            break
        largest = float(deviation)
    return part._replace(largest=largest)


def _step_error(functions, step):
    """Largest change of sums over a grid of this step that is moved by half of it, as a part of
    the largest sum, with weights around the points TRIED."""
    x = np.arange(TRIED[0] - 8 * WIDTH, TRIED[-1] + 8 * WIDTH, step / 2)
    weight = np.exp(-(((x - TRIED[:, None]) / WIDTH) ** 2) / 2)
    worst = 0
    for f in functions:
        terms = weight * f(x)
        here, between = terms[:, ::2].sum(1), terms[:, 1::2].sum(1)
        size = np.abs(here + between).max()
        worst = max(worst, np.abs(here - between).max() / size if size > 0 else 0)
    return worst


def _change(part, deviation):
    """Largest change of averages over one field, as a part of them, when twice the nodes of the
    coarsest grid make the grid finer and longer."""
    level = min(int(_fineness(part, deviation)), FINEST)
    averages = []
    for nodes in (part.nodes, 2 * part.nodes):
        z = _points(nodes, level)
        weight = np.exp(-z * z / 2)
        averages.append([f(deviation * z) @ weight / weight.sum() for f in part.functions])
    few, many = np.array(averages)
    return (np.abs(few - many) / np.maximum(np.abs(many), 1e-300)).max()
