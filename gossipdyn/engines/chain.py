"""The chain: SGD at finite N as a Markov chain of overlaps, at a cost that does not grow with N.

A sample x enters a step only through its fields and, by the update, as a new direction of the
weight rows. In coordinates whose first d = P K + M axes hold all rows, x has d standard normal
coordinates and, outside, a length chi with N - d degrees of freedom in a fresh direction. So a step
of SGD in d + 1 coordinates has the law of a step in N dimensions, exactly. Fresh directions pile up
for a few steps (the next sample is standard normal along them too, and its chi has that many
degrees of freedom less); then reflections bring the rows back to d coordinates. The samples of P
workers and a batch take their turns in the same way, which is the Bartlett factor of their Wishart
matrix. Chapter :doc:`theory_meets_simulation`, equation :eq:`eq-chain`; derived in the book.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..checks import whole
from ..gossip.mix import with_rows
from ..labels import has_axis, made, with_runs
from ..starts import check_dimension, factor
from ..states import Weights
from .engine import GRID, Engine
from .reflections import pivoted, reduced

LANE = 128  # runs that share their random streams, always drawn together
CACHE = 2**19  # numbers in the rows of the lanes that are computed together, about


def step(problem, N, W, v, teacher, z, zeta, rates=None):
    """One step of SGD on given samples, in c coordinates: (W, v) after it.

    W : (P, K, c, runs) rows, on the scale where Q = W W^T / N.
    v : (P, K, runs). teacher : (M, M, runs), rows of the teacher, which fill M coordinates.
    z : (P, batch, c_new, runs) coordinates of the samples, c_new >= c; W comes back with c_new.
    zeta : (P, batch, runs) label noise, standard normal. rates : the learning rates of this step,
    those of alpha = 0 unless given.

    Embedded in R^N, rows W and samples z, this is the step of `Problem`. Chapter
    :doc:`teacher_student`, equation :eq:`eq-sgd`.
    """
    P, K, c, _ = W.shape
    M, B = len(teacher), z.shape[1]
    eta, eta_v = problem.rates(0.0) if rates is None else rates
    g, slope = problem.activation.g, problem.activation.dg
    lam = np.einsum("pkcr,pbcr->pbkr", W, z[:, :, :c]) / np.sqrt(N)
    rho = np.einsum("mcr,pbcr->pbmr", teacher, z[:, :, :M]) / np.sqrt(N)
    g_lam = g(lam)
    e = np.einsum("pkr,pbkr->pbr", v, g_lam) - np.einsum("m,pbmr->pbr", problem.v_star, g(rho))
    if problem.sigma:
        e -= problem.sigma * zeta
    e *= -1 / (N * B)
    pull = slope(lam) * e[:, :, None]
    pull *= eta * np.sqrt(N) * v[:, None]
    W_new = np.einsum("pbkr,pbcr->pkcr", pull, z)
    decay = problem.weight_decay / N
    W_new[:, :, :c] += (1 - eta * decay) * W if decay else W
    if problem.trains_v:
        v = (1 - eta_v * decay) * v + eta_v * np.einsum("pbkr,pbr->pkr", g_lam, e)
    return W_new, v


def chain(N: int = 100, runs: int = 4096, seed: int = 0) -> Engine:
    """Make the engine that has the law of SGD at input dimension N, at a cost independent of N.

    Parameters
    ----------
    N : int, optional
        Input dimension, at least P K + M.
    runs : int, optional
        Number of independent runs, all from x0, or from the states along the leading axis of x0,
        which then has this length.
    seed : int, optional
        Seed of the samples. Run r sees the same samples whatever ``runs``, the recorded times and
        the schedule are.

    Returns
    -------
    Engine
        An engine for run(), which starts from Overlaps.

    Raises
    ------
    ValueError
        If an argument is no such number. run() raises it for an N that leaves too little room, and
        for a start that does not fit.

    See Also
    --------
    sgd : SGD itself, on weights.
    flow : The limit N -> infinity.

    Notes
    -----
    The same seed gives the same runs on any machine, to 1e-9 up to alpha = 2; later, rounding grows
    with the escape. A start is taken to rounding of its largest overlap, as by lift(): of students
    shorter than 3e-8 of the teacher only the overlaps with it are kept. Between steps the state is
    Weights of few coordinates, so that mixing and any callable on states act on it as on weights.

    References
    ----------
    Chapter :doc:`theory_meets_simulation`, equation :eq:`eq-chain`; derived in the book.

    Examples
    --------
    Runs scatter around the flow, the less the larger N is:

    >>> problem = gd.Problem(gd.erf, v_star=np.ones(1), T=np.eye(1), eta=0.5)
    >>> x0 = gd.Overlaps.single(Q=np.eye(1), R=[[0.1]], v=np.ones(1))
    >>> small, large = (gd.run(gd.chain(N=N, runs=100), problem, x0, 1.0) for N in (10, 1000))
    >>> print(small.Q.shape, bool(large.std("R")[-1, 0, 0, 0] < small.std("R")[-1, 0, 0, 0]))
    (100, 2, 1, 1, 1, 1) True
    """
    options = {"N": N, "runs": runs, "seed": seed}
    for (name, value), least in zip(options.items(), (1, 1, 0), strict=True):
        options[name] = whole(value, name, least)
    begin, advance = partial(_begin, **options), partial(_advance, N=options["N"])
    return Engine("chain", options, options["N"], begin, advance)


@dataclass(frozen=True)
class _Source:
    """What the engine keeps beside the state: its first alpha, how many workers stay, streams."""

    start: float
    still: int
    tiles: list


@dataclass(frozen=True)
class _Tile:
    """The streams of a few lanes, and the samples of the block of steps that has begun."""

    lanes: list
    samples: list | None = None


def _begin(problem, x0, start, rows, *, N, runs, seed):
    if has_axis(x0, "input"):
        raise ValueError("chain starts from Overlaps; gossipdyn.overlaps(w) makes them of Weights")
    x0, still = with_runs(with_rows(x0, rows)), len(rows)
    P, K, M = x0.R.shape[-3:]
    check_dimension(N, P * K + M, "chain")
    if len(x0) not in (1, runs):
        raise ValueError(
            f"x0 has a leading axis of {len(x0)} runs, the engine runs={runs}: make them equal"
        )
    few = factor(problem, x0, N)
    W = few.W.reshape(len(few), P * K, -1)
    every = np.concatenate([few.W_star, W], axis=1)  # the teacher first: it stays where it is
    P = P - still
    every = pivoted(_runs_last(every), [M, M + P * K, M + (P + still) * K])
    every = np.moveaxis(every, -1, 0)
    W_star = np.where(np.arange(every.shape[-1]) < M, every[:, :M], 0)
    W = every[:, M:].reshape(len(every), P + still, K, -1)
    W, v, W_star = (np.broadcast_to(a, (runs, *a.shape[1:])) for a in (W, x0.v, W_star))
    lanes = np.random.SeedSequence(seed).spawn(-(-runs // LANE))
    width = P * K * _coordinates(P, K, M, problem.batch, N)[-1]
    size = max(1, min(8, CACHE // (width * LANE)))  # beyond 8 lanes nothing is gained
    tiles = [
        _Tile([_streams(lane) for lane in lanes[i : i + size]]) for i in range(0, len(lanes), size)
    ]
    return made(Weights, W=W, v=v, W_star=W_star, N=N), _Source(start, still, tiles)


def _advance(problem, state, source, now, times, *, N):
    still = source.still
    P, K, M, B = state.v.shape[1] - still, state.v.shape[2], problem.M, problem.batch
    widths = _coordinates(P, K, M, B, N)
    period, c = len(widths) - 1, widths[now % (len(widths) - 1)]
    moving, first = [], 0
    for tile in source.tiles:
        part = slice(first, first + LANE * len(tile.lanes))
        first = part.stop
        W, v, teacher = (
            _runs_last(a) for a in (state.W[part], state.v[part], state.W_star[part, :, :M])
        )
        W, kept = _apart(W, still, c, M)
        moving.append(_Moving(tile, W, v[:P], v[P:], teacher, kept))
    for time in map(int, times):
        for run in moving:
            with np.errstate(over="ignore", invalid="ignore"):  # run() notices divergence
                for s in range(now, time):
                    if s % period == 0:
                        run.draw(problem, P, N, widths)
                    rates = problem.rates(source.start + s / N)
                    samples = run.samples[s % period]
                    run.W, run.v = step(problem, N, run.W, run.v, run.teacher, *samples, rates)
                    if still:
                        run.kept = run.told(widths[s % period], run.W.shape[2], N)
                    if (s + 1) % period == 0:
                        run.reduce()
        now = time
        yield _weights(moving, N), replace(source, tiles=[run.tile() for run in moving])


class _Moving:
    """A tile while it moves: rows of its workers and what goes with them, runs last.

    kept : of rows that stay, their coordinates in the c that the workers have, and the rest of
    them, in as many coordinates as there are such rows, about which no sample has told yet.
    """

    def __init__(self, tile, W, v, v_kept, teacher, kept):
        self.lanes, self.samples, self.own = tile.lanes, tile.samples, False
        self.W, self.v, self.v_kept, self.teacher, self.kept = W, v, v_kept, teacher, kept

    def tile(self):
        """What is to go on with. Streams that go on from here belong to it alone."""
        self.own = False
        return _Tile(self.lanes, self.samples)

    def streams(self):
        """The streams, copied before they are drawn from: who holds the tile holds their state."""
        if not self.own:
            self.lanes, self.own = [[_copy(s) for s in lane] for lane in self.lanes], True
        return self.lanes

    def draw(self, problem, P, N, widths):
        self.samples = _draw(problem, self.streams(), self.W.shape[-1], P, N, widths)

    def reduce(self):
        """Bring the rows back to as few coordinates as there are rows, at the end of a block."""
        P, K, c, runs = self.W.shape
        M, n = len(self.teacher), P * K
        rows = self.W[:, :, M:].reshape(n, c - M, runs)
        if self.kept is not None:
            seen, rest = self.kept
            rows = np.concatenate([rows, seen[:, M:]])
        rows = reduced(rows, n)
        W = rows[:n, :n].reshape(P, K, n, runs)
        self.W, self.samples = np.concatenate([self.W[:, :, :M], W], axis=2), None
        if self.kept is not None:
            seen = np.concatenate([seen[:, :M], rows[n:, :n]], axis=1)
            self.kept = seen, _few(np.concatenate([rows[n:, n:], rest], axis=1))

    def told(self, before, after, N):
        """What the fresh directions of a step tell about the rows that stay.

        A fresh direction is uniform among those at right angles to the `before` coordinates. Along
        the rest of the rows that stay, which is there too, it has the components of a normal
        vector divided by the length of one in all those directions.
        """
        seen, rest = self.kept
        for c in range(before, after):
            size = min(len(rest), N - c)
            u, last = self._direction(size, N - c - size)
            along = np.einsum("jcr,cr->jr", rest[:, :size], u)
            seen = np.concatenate([seen, along[:, None]], axis=1)
            rest = rest[:, :size] - along[:, None] * u
            rest = _few(np.concatenate([rest, -along[:, None] * last], axis=1))
        return seen, rest

    def _direction(self, size, others):
        """A unit vector in size + others dimensions: `size` components, length of the others."""
        runs = self.W.shape[-1]
        u, rest = np.empty((size, runs)), np.zeros(runs)
        for i, (*_, hidden) in enumerate(self.streams()):
            part = slice(i * LANE, min((i + 1) * LANE, runs))
            width = part.stop - part.start
            u[:, part] = hidden.standard_normal((size, LANE))[:, :width]
            if others:
                rest[part] = hidden.chisquare(others, LANE)[:width]
        length = np.sqrt(np.einsum("cr,cr->r", u, u) + rest)
        return u / length, np.sqrt(rest) / length


def _few(rows):
    """Rows (n, c, runs) with the same inner products in n coordinates, at any rank."""
    missing = max(0, len(rows) - rows.shape[1])
    rows = np.pad(rows, [(0, 0), (0, missing), (0, 0)])
    return pivoted(rows, [len(rows)])[:, : len(rows)]


def _apart(W, still, c, M):
    """Rows (P + still, K, columns, runs) as those of the workers and, of the others, `kept`.

    A round may have taken rows that stay into the workers. The coordinates are then turned so that
    the workers fill the first ones again.
    """
    if not still:
        return W, None
    P, (K, _, runs) = len(W) - still, W.shape[1:]
    n = P * K
    if np.any(W[:P, :, c:]):
        rows = W[:, :, M:].reshape(-1, W.shape[2] - M, runs)
        rows = pivoted(rows, [n, len(rows)])
        turned = np.zeros_like(W)
        turned[:, :, :M] = W[:, :, :M]
        turned = turned.reshape(len(rows), -1, runs)
        turned[:, M : M + n] = rows[:, :n]
        turned[n:, c:] = _few(rows[n:, n:])
        W = turned.reshape(W.shape)
    rows = W[P:].reshape(still * K, -1, runs)
    return np.ascontiguousarray(W[:P, :, :c]), (rows[:, :c], rows[:, c:])


def _streams(seed):
    """Four streams, so that a draw in one of them never shifts the others."""
    return [np.random.Generator(np.random.SFC64(child)) for child in seed.spawn(4)]


def _copy(stream):
    """A stream in the same state."""
    copied = np.random.SFC64(0)
    copied.state = stream.bit_generator.state
    return np.random.Generator(copied)


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
    for i, (along, across, labels, _) in enumerate(lanes):
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


def _runs_last(a):
    return np.ascontiguousarray(np.moveaxis(a, 0, -1))


def _weights(moving, N):
    """The tiles side by side, as Weights (runs, ...)."""

    def runs_first(arrays):
        # the numbers of a run that has diverged stay finite, so that run() can refuse it
        a = np.moveaxis(np.concatenate(arrays, axis=-1), -1, 0)
        return np.nan_to_num(a, nan=1e300, posinf=1e300, neginf=-1e300)

    W, teacher = runs_first([run.W for run in moving]), [run.teacher for run in moving]
    v = runs_first([np.concatenate([run.v, run.v_kept]) for run in moving])
    if moving[0].kept is not None:
        *_, K, c = W.shape
        kept = runs_first([np.concatenate(run.kept, axis=1) for run in moving])
        W = np.pad(W, [(0, 0), (0, 0), (0, 0), (0, kept.shape[-1] - c)])
        W = np.concatenate([W, kept.reshape(len(W), -1, K, kept.shape[-1])], axis=1)
    W_star = runs_first(teacher)
    W_star = np.pad(W_star, [(0, 0), (0, 0), (0, W.shape[-1] - W_star.shape[-1])])
    return Weights(W=W, v=v, W_star=W_star, N=N)
