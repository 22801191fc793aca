"""The chain: SGD at finite N as a Markov chain of overlaps, at a cost that does not grow with N.

A sample x enters a step only through its fields and, by the update, as a new direction of the
weight rows. In coordinates whose first d = P K + M axes hold all rows, x has d standard normal
coordinates and, outside, a length chi with N - d degrees of freedom in a fresh direction. So a
step of SGD in d + 1 coordinates has the law of a step in N dimensions, exactly. Fresh directions
pile up for a few steps (the next sample is standard normal along them too, and its chi has that
many degrees of freedom less); then reflections bring the rows back to d coordinates. The samples
of P workers and a batch take their turns in the same way, which is the Bartlett factor of their
Wishart matrix. Chapter `theory_meets_simulation`, equation :eq:`eq-chain`; derived in the book.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from ..checks import whole
from ..starts import MARGIN, check_dimension, factor
from ..states import Overlaps, Weights
from .engine import GRID, Engine

LANE = 128  # runs that share their random streams, always drawn together
CACHE = 2**19  # numbers in the rows of the lanes that are computed together, about


def step(problem, N, W, v, teacher, z, zeta):
    """One step of SGD on given samples, in c coordinates: (W, v) after it.

    W : (P, K, c, runs) rows, on the scale where Q = W W^T / d with d = P K + M.
    v : (P, K, runs). teacher : (M, M, runs), rows of the teacher, which fill M coordinates.
    z : (P, batch, c_new, runs) coordinates of the samples, c_new >= c; W comes back with c_new.
    zeta : (P, batch, runs) label noise, standard normal.

    Embedded in R^N, rows sqrt(N/d) W and samples z, this is the step of `Problem`. Chapter
    `teacher_student`, equation :eq:`eq-sgd`.
    """
    P, K, c, _ = W.shape
    M, B = len(teacher), z.shape[1]
    g, slope = problem.activation.g, problem.activation.dg
    scale = np.sqrt(P * K + M)
    lam = np.einsum("pkcr,pbcr->pbkr", W, z[:, :, :c]) / scale
    rho = np.einsum("mcr,pbcr->pbmr", teacher, z[:, :, :M]) / scale
    g_lam = g(lam)
    e = np.einsum("pkr,pbkr->pbr", v, g_lam) - np.einsum("m,pbmr->pbr", problem.v_star, g(rho))
    if problem.sigma:
        e -= problem.sigma * zeta
    e *= -1 / (N * B)
    pull = slope(lam) * e[:, :, None]
    pull *= problem.eta * scale * v[:, None]
    W_new = np.einsum("pbkr,pbcr->pkcr", pull, z)
    decay = problem.weight_decay / N
    W_new[:, :, :c] += (1 - problem.eta * decay) * W if decay else W
    if problem.eta_v:
        v = (1 - problem.eta_v * decay) * v + problem.eta_v * np.einsum("pbkr,pbr->pkr", g_lam, e)
    return W_new, v


def reduced(rows):
    """Rows (n, c, runs) in n <= c coordinates, with the same inner products: (n, n, runs).

    A Householder sweep over rows, which need not be independent. No choice in it hangs on
    rounding: a sign is decided with a margin, and runs in which a row adds little to those before
    it, so that its direction is not known well, are swept again by pivoted(). Every reflection
    acts on every row by the same arithmetic, so that equal rows stay equal to the last bit.
    """
    given, rows, n = rows, rows.copy(), len(rows)
    least = INDEPENDENT * np.einsum("jcr,jcr->jr", rows, rows).max(0)
    clear = np.ones(least.shape, dtype=bool)
    for i in range(n):
        u = rows[i, i:].copy()
        square = np.einsum("cr,cr->r", u, u)
        clear &= square >= least
        _reflect(rows[:, i:], u, square)
    rows = rows[:, :n]
    if not clear.all():
        rows[..., ~clear] = pivoted(given[..., ~clear])
    return rows


def pivoted(rows, first=0):
    """What reduced() does, at any rank: (n, n, runs); the `first` rows fill as many coordinates.

    Next comes the first row whose squared remainder is at least MARGIN of the largest one.
    """
    rows, n = rows.copy(), len(rows)
    done = np.zeros((n, rows.shape[-1]), dtype=bool)
    for i in range(n):
        part = rows[: first if i < first else n, i:]
        rest = np.where(done[: len(part)], -1, np.einsum("jcr,jcr->jr", part, part))
        pivot = (rest >= MARGIN * rest.max(0)).argmax(0)[None]
        u = np.take_along_axis(part, pivot[None], 0)[0]
        _reflect(rows[:, i:], u, np.take_along_axis(rest, pivot, 0)[0])
        np.put_along_axis(done, pivot, True, 0)
    return rows[:, :n]


def _reflect(rows, u, square):
    """Turn u (c, runs), whose square is given, into the first of the coordinates of all rows."""
    length = np.sqrt(square)
    u[0] += np.where(u[0] > -MARGIN * length, length, -length)
    half = length * np.abs(u[0])  # half the square of the new u
    inverse = np.divide(1, half, out=np.zeros_like(half), where=half > TINY)
    along = np.einsum("cr,jcr->jr", u, rows)
    along *= inverse
    rows -= along[:, None] * u


INDEPENDENT = 2.9e-7  # squared remainder of a row, in units of the longest, that makes it clear
TINY = 4 * np.finfo(float).tiny  # a row whose square lies below is zero, its inverse no number


def chain(N=100, runs=4096, seed=0):
    """The engine that has the law of SGD at input dimension N, at a cost independent of N.

    N : input dimension, at least P K + M. runs : independent runs, all from x0 (or from the
    states along the leading axis of x0, which then has this length). seed : a whole number; run r
    sees the same samples whatever runs, the recorded times and the schedule are.

    The same seed gives the same runs on any machine, to 1e-9 up to alpha=2; later rounding grows
    with the escape. A start is taken to rounding of its largest overlap, as by lift(): of students
    shorter than 3e-8 of the teacher only the overlaps with it are kept. Between steps the state is
    Weights of few coordinates, so that mixing and any callable on states act on it as on weights.
    Raises ValueError for arguments that are no such numbers; run() raises it for an N that leaves
    too little room and for a start that does not fit.
    """
    options = {"N": N, "runs": runs, "seed": seed}
    for (name, value), least in zip(options.items(), (1, 1, 0), strict=True):
        options[name] = whole(value, name, least)
    begin, advance = partial(_begin, **options), partial(_advance, N=options["N"])
    return Engine("chain", options, options["N"], begin, advance)


def _begin(problem, x0, *, N, runs, seed):
    if not isinstance(x0, Overlaps):
        raise ValueError("chain starts from Overlaps; gossipdyn.overlaps(w) makes them of Weights")
    P, K, M = x0.R.shape[-3:]
    check_dimension(N, P * K + M, "chain")
    if x0.v.ndim == 2:
        x0 = Overlaps(Q=x0.Q[None], R=x0.R[None], v=x0.v[None])
    elif len(x0.v) != runs:
        raise ValueError(
            f"x0 has a leading axis of {len(x0.v)} runs, the engine runs={runs}: make them equal"
        )
    few = factor(problem, x0)
    W = few.W.reshape(len(few.W), P * K, -1)
    rows = np.concatenate([few.W_star, W], axis=1)  # the teacher first: it stays where it is
    rows = np.moveaxis(pivoted(_runs_last(rows), first=M), -1, 0)
    W_star = np.where(np.arange(P * K + M) < M, rows[:, :M], 0)
    W = rows[:, M:].reshape(len(rows), P, K, -1)
    state = (np.broadcast_to(a, (runs, *a.shape[1:])) for a in (W, x0.v, W_star))
    lanes = np.random.SeedSequence(seed).spawn(-(-runs // LANE))
    width = P * K * _coordinates(P, K, M, problem.batch, N)[-1]
    size = max(1, min(8, CACHE // (width * LANE)))  # beyond 8 lanes nothing is gained
    tiles = [
        _Tile([_streams(lane) for lane in lanes[i : i + size]]) for i in range(0, len(lanes), size)
    ]
    return Weights(*state), tiles


def _advance(problem, state, tiles, now, times, *, N):
    P, K = state.v.shape[1:]
    M, B = problem.M, problem.batch
    widths = _coordinates(P, K, M, B, N)
    period, d = len(widths) - 1, widths[0]
    c = widths[now % period]
    parts, first = [], 0
    for tile in tiles:
        part = slice(first, first + LANE * len(tile.lanes))
        first = part.stop
        W = state.W[part, ..., :c] / _stretch(d, c)
        teacher = state.W_star[part, :, :M] / _stretch(d, c)
        parts.append([_runs_last(a) for a in (W, state.v[part], teacher)])
    for time in map(int, times):
        for tile, part in zip(tiles, parts, strict=True):
            W, v, teacher = part
            with np.errstate(over="ignore", invalid="ignore"):  # run() notices divergence
                for s in range(now, time):
                    if s % period == 0:
                        tile.samples = _draw(problem, tile.lanes, W.shape[-1], P, N, widths)
                    W, v = step(problem, N, W, v, teacher, *tile.samples[s % period])
                    if (s + 1) % period == 0:
                        own = W[:, :, M:].reshape(P * K, -1, W.shape[-1])
                        own = reduced(own).reshape(P, K, P * K, -1)
                        W, tile.samples = np.concatenate([W[:, :, :M], own], axis=2), None
            part[:2] = W, v
        now = time
        yield _weights(parts, d)


@dataclass
class _Tile:
    """The streams of a few lanes, and the samples of the block of steps that has begun."""

    lanes: list
    samples: list | None = None


def _streams(seed):
    """Three streams, so that a draw in one of them never shifts the others."""
    return [np.random.Generator(np.random.SFC64(child)) for child in seed.spawn(3)]


def _coordinates(P, K, M, B, N):
    """Coordinates of the rows before each step of a block, and after its last.

    The number of steps is a divisor of GRID: many, to share the cost of a reduction, but no more
    than memory holds the samples of.
    """
    steps = max(8, min(2 * P * K, 2**14 // (P * K + M))) // (P * B)
    steps = min(GRID, 1 << max(0, steps.bit_length() - 1))
    return [min(P * K + M + s * P * B, N) for s in range(steps + 1)]


def _draw(problem, lanes, runs, P, N, widths):
    """The samples of a block of steps: [(z (P, B, c_new, runs), zeta (P, B, runs)), ...].

    Sample j of the block is standard normal along the d + j directions that stand before it, chi
    with N - d - j degrees of freedom along its own, and zero along those of the later ones.
    """
    d, steps, B = widths[0], len(widths) - 1, problem.batch
    fresh = P * B
    degrees = np.arange(N - d, max(N - d - steps * fresh, 0), -1)
    normals = np.empty((fresh * sum(widths[1:]), runs))
    lengths = np.empty((len(degrees), runs))
    zeta = np.zeros((steps, P, B, runs))
    for i, (along, across, labels) in enumerate(lanes):
        part = slice(i * LANE, min((i + 1) * LANE, runs))
        size = part.stop - part.start
        normals[:, part] = along.standard_normal((len(normals), LANE))[:, :size]
        lengths[:, part] = _chi(across, degrees[:, None], (len(degrees), LANE))[:, :size]
        if problem.sigma:
            zeta[..., part] = labels.standard_normal((steps, P, B, LANE))[..., :size]
    samples, first = [], 0
    for s, width in enumerate(widths[1:]):
        z = normals[first : first + fresh * width].reshape(fresh, width, runs)
        first += fresh * width
        for j in range(s * fresh, min((s + 1) * fresh, len(degrees))):
            z[j % fresh, d + j] = lengths[j]
            z[j % fresh, d + j + 1 :] = 0
        samples.append((z.reshape(P, B, width, runs), zeta[s]))
    return samples


def _chi(rng, degrees, shape):
    """Lengths of standard normal vectors with that many components."""
    return np.sqrt(rng.chisquare(degrees, shape))


def _stretch(d, c):
    """A power of two whose square, times d, makes room for c coordinates.

    States are stretched by it and padded to stretch^2 d coordinates, so that being looked at
    within a block changes no bit of a run.
    """
    stretch = 1
    while stretch**2 * d < c:
        stretch *= 2
    return stretch


def _runs_last(a):
    return np.ascontiguousarray(np.moveaxis(a, 0, -1))


def _weights(parts, d):
    """The tiles side by side, as Weights (runs, ...)."""
    stretch = _stretch(d, parts[0][0].shape[2])
    W, v, teacher = (
        np.moveaxis(np.concatenate(arrays, axis=-1), -1, 0) for arrays in zip(*parts, strict=True)
    )

    def widen(a):
        # a run that has left every bound stays a number, for run() to refuse
        a = np.nan_to_num(a * stretch, nan=1e300, posinf=1e300, neginf=-1e300)
        pad = stretch**2 * d - a.shape[-1]
        return np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, pad)])

    return Weights(W=widen(W), v=np.nan_to_num(v, nan=1e300), W_star=widen(teacher))
