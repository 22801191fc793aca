"""The simulation: SGD itself, at finite N, in torch, for many runs and workers at once.

The steps of a block are solved together. Weights move along samples only, so the fields of a step
follow from those at the start of the block and from the Gram matrix of its samples: for batch 1

    lambda_k(t) = (W x_t)_k / sqrt N - (eta / N) sum_{s < t} v_k g'(lambda_k(s)) e(s) (x_s.x_t)

One matrix product gives all fields, one the Gram matrix, and one more writes the block into W. The
small recursion between them is solved by sweeps over the whole block: being strictly triangular,
it has step j right after j sweeps, and the sweeps stop when one changes not a single bit. So the
result is that of the plain loop, up to rounding. Derived in the book, chapter
`theory_meets_simulation`, equation :eq:`eq-block`.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from ..checks import apart, whole
from ..problem import Problem
from ..starts import check_dimension, lift
from ..states import Overlaps, Weights
from .engine import GRID, Engine

DTYPES = {"float32": torch.float32, "float64": torch.float64}
LENGTHS = [n for n in range(1, GRID + 1) if GRID % n == 0]  # of draws and blocks, in steps
DRAW = 2**14  # about as many numbers are drawn by one call
MOST_RUNS, MOST_WORKERS = 2**20, 2**12  # so that 32 bits tell all streams apart


def sgd(
    N: int = 100, runs: int = 64, seed: int = 0, device: str = "cpu", dtype: str = "float32"
) -> Engine:
    """Make the engine of finite N: stochastic gradient descent on fresh samples.

    It starts from Overlaps, which it lifts, or from Weights. Its trajectories carry ``.weights``.

    Parameters
    ----------
    N : int, optional
        Input dimension, at least P K + M.
    runs : int, optional
        Number of independent runs. A start without a leading axis of runs serves all of them.
    seed : int, optional
        Seed of the samples, the label noise, and the directions in which Overlaps are lifted.
        Worker p of run r sees the same samples whatever is recorded, however many runs there are
        and whenever they mix. Every run() begins again from the seed: to continue from
        ``t.weights`` with fresh samples, take another one.
    device : str, optional
        "cpu", "cuda", and so on. Devices draw different samples and agree in law only.
    dtype : str, optional
        "float32" or "float64", of weights and samples.

    Returns
    -------
    Engine
        An engine for run().

    Raises
    ------
    ValueError
        If N leaves too little room, if a start has another number of runs or inputs or another
        teacher, or if torch does not offer the device or the dtype.

    See Also
    --------
    chain : The same law from overlaps alone, at a cost independent of N.
    flow : The limit N -> infinity.

    Notes
    -----
    On the CPU, torch.get_num_threads() chunks of workers advance side by side, each on one thread.
    The memory holds the weights before and after, a float64 copy of them while overlaps are taken,
    5 kB of generator a worker, and in each thread the samples of a block, at most 2^20 numbers (on
    other devices 2^24) or the N * batch of a single step.

    The threads of torch do not survive a fork: a process that multiprocessing forks after torch has
    computed hangs. Use sweep(), or the method "spawn" of multiprocessing.

    References
    ----------
    Chapter :doc:`teacher_student`, equation :eq:`eq-sgd`; Saad and Solla (1995), Goldt et al.
    (2019).
    """
    options: dict[str, Any] = {
        "N": whole(N, "N, the input dimension,", 1),
        "runs": whole(runs, "runs", 1),
        "seed": whole(seed, "seed", 0),
        "device": str(device),
        "dtype": dtype,
    }
    if runs > MOST_RUNS:
        raise ValueError(
            f"sgd makes at most {MOST_RUNS} runs at once, got runs={runs}: split them over seeds"
        )
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"dtype is one of {', '.join(DTYPES)}, got {dtype!r}")
    try:
        torch.Generator(torch.empty(0, device=options["device"], dtype=DTYPES[dtype]).device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f'device {options["device"]!r} is not there for {dtype}: {reason}; use "cpu"'
        ) from error

    return Engine("sgd", options, options["N"], partial(_begin, **options), _advance)


def steps(problem, w, X, zeta):
    """The weights after the steps that given samples and label noise make.

    w : Weights of tensors, W (..., P, K, N). X : (..., P, steps, batch, N) samples, zeta :
    (..., P, steps, batch) label noise in units of sigma. Returns Weights. A pure function; it is
    what the engine does with the samples that it draws. Equation :eq:`eq-sgd`.
    """
    *lead, P, K, N = w.W.shape
    length, B = zeta.shape[-2:]
    W_star = w.W_star.unsqueeze(-3).expand(*lead, P, -1, N)
    rows = torch.cat([w.W, W_star], -2).reshape(-1, K + W_star.shape[-2], N)
    v = _block(
        _rule(problem, N, length, w.W),
        rows,
        w.v.reshape(-1, K),
        X.reshape(-1, length * B, N),
        zeta.reshape(-1, length * B),
    )
    return replace(w, W=rows[:, :K].reshape(w.W.shape), v=v.reshape(w.v.shape))


class _Rule(NamedTuple):
    """The numbers of a block: decay of the start, effect on later fields, effect at the end."""

    problem: Problem
    N: int
    block: int
    v_star: torch.Tensor
    decay: torch.Tensor
    reach: torch.Tensor
    push: torch.Tensor
    decay_v: torch.Tensor
    reach_v: torch.Tensor
    push_v: torch.Tensor


def _rule(problem, N, block, like):
    """The _Rule of blocks of at most `block` steps, its tensors on the device of `like`."""
    step = np.repeat(np.arange(block), problem.batch)  # of each sample
    lag = step - step[:, None] - 1  # from one sample's step to another's

    def layer(eta, length):
        kept = 1 - eta * problem.weight_decay / N
        rate = -eta / (problem.batch * N)
        decay = kept**step / length
        reach = np.where(lag >= 0, rate * kept ** np.maximum(lag, 0), 0)
        push = rate * length * kept ** (block - 1 - step)
        return (like.new_tensor(a) for a in (decay, reach, push))

    v_star = like.new_tensor(problem.v_star)[:, None]
    return _Rule(problem, N, block, v_star, *layer(problem.eta, N**0.5), *layer(problem.eta_v, 1))


def _block(rule, rows, v, X, zeta):
    """Make the steps of n samples X (L, n, N), with label noise zeta (L, n), for L learners.

    rows : (L, K + M, N) student rows, which are updated in place, above their teacher's.
    v : (L, K). Returns the new v.
    """
    problem, n, K = rule.problem, X.shape[1], v.shape[1]
    length = n // problem.batch
    g, dg = problem.activation.torch_g, problem.activation.torch_dg
    # for one sample torch would take another product, which rounds as it likes
    fields = torch.bmm(rows, X.mT) if n > 1 else (rows * X).sum(-1, keepdim=True)
    label = (rule.v_star * g(fields[:, K:] * rule.N**-0.5)).sum(1, keepdim=True)
    label = label + problem.sigma * zeta[:, None]
    lam = lam_0 = fields[:, :K] * rule.decay[:n]
    V = V_0 = v[:, :, None] * rule.decay_v[:n] if problem.eta_v else v[:, :, None]
    if length > 1:
        kick = torch.bmm(X, X.mT).mul_(rule.reach[:n, :n])
    for _ in range(length):
        g_lam = g(lam)
        e = (V * g_lam).sum(1, keepdim=True) - label
        a = dg(lam) * V * e
        if length == 1:
            break
        before = lam, V
        lam = torch.baddbmm(lam_0, a, kick)
        if problem.eta_v:
            V = V_0 + (g_lam * e) @ rule.reach_v[:n, :n]
        if torch.equal(lam, before[0]) and (not problem.eta_v or torch.equal(V, before[1])):
            break
    else:
        # Every step is right now, unless guesses at late ones overflowed: 0 * inf spoils them all.
        if not torch.isfinite(lam).all():
            for x, z in zip(X.split(problem.batch, 1), zeta.split(problem.batch, 1), strict=True):
                v = _block(rule, rows, v, x, z)
            return v
    kept, kept_v = (1 - eta * problem.weight_decay / rule.N for eta in (problem.eta, problem.eta_v))
    rows[:, :K].baddbmm_(a * rule.push[-n:], X, beta=kept**length)
    return v * kept_v**length + (g_lam * e) @ rule.push_v[-n:] if problem.eta_v else v


def _check_twins(f):
    """Refuse an activation that is one function in NumPy and another in torch."""
    x = np.linspace(-4, 4, 33)
    for name in ("g", "dg"):
        here, there = getattr(f, name)(x), getattr(f, f"torch_{name}")(torch.from_numpy(x)).numpy()
        off = np.abs(here - there)
        if not off.max() <= 1e-9 * (1 + np.abs(here).max()):
            at = np.argmax(off)
            one, other = apart(here[at], there[at], 6)
            raise ValueError(
                f"{name} and torch_{name} of {f.name} disagree at x={x[at]:.6g}: {one} against "
                f"{other}; write the same function twice"
            )


def _begin(problem, start, *, N, runs, seed, device, dtype):
    """The start as Weights of tensors with a leading axis of runs, and what goes with it."""
    _check_twins(problem.activation)
    lead = tuple(start.v.shape[:-2])
    if lead not in ((), (runs,)):
        raise ValueError(
            f"x0 has leading axes {lead}, sgd was told runs={runs}: give both the same number, or "
            "x0 without a leading axis"
        )
    if start.v.shape[-2] > MOST_WORKERS:
        raise ValueError(f"sgd takes at most {MOST_WORKERS} workers, x0 has {start.v.shape[-2]}")
    if isinstance(start, Overlaps):
        *_, P, K, M = start.R.shape
        check_dimension(N, P * K + M, "sgd")
        start = lift(problem, start, N, seed)
    if start.W.shape[-1] != N:
        raise ValueError(
            f"the weights have {start.W.shape[-1]} inputs, sgd was told N={N}: give both alike"
        )
    W, v, W_star = (
        torch.from_numpy(a.copy()).to(device, kind)
        # a rounded teacher would not have the overlaps T that risks are computed with
        for a, kind in zip(
            (start.W, start.v, start.W_star),
            (DTYPES[dtype], DTYPES[dtype], torch.float64),
            strict=True,
        )
    )
    w = Weights(*(a if lead else a.expand(runs, *a.shape) for a in (W, v, W_star)))
    return w, _source(problem, w, seed)


class _Source(NamedTuple):
    """What the engine keeps beside the weights.

    The learners, worker p of run r being number r P + p, advance in chunks of at most `largest`.
    Each random stream serves `width` neighbours and draws for `draw` steps in one call, samples
    before label noise. Between moves its state is that at the last multiple of `draw`.
    """

    rule: _Rule
    draw: int
    largest: int
    width: int
    states: list


def _source(problem, w, seed):
    runs, P, K, N = w.W.shape
    learners, sample = runs * P, N * problem.batch
    on_cpu = w.W.device.type == "cpu"
    room = 2**20 if on_cpu else 2**24

    def longest(numbers):
        return max([n for n in LENGTHS if n * sample <= numbers], default=1)

    draw = longest(DRAW)
    # Long blocks spare calls, short ones products: many learners share each call.
    many = learners > 4 and on_cpu
    block = longest(min(room, (16 if many else 64) * N))
    largest = max(1, room // (max(draw, block) * sample))
    width = 1 if on_cpu else largest
    # torch seeds the CPU's generator with 32 bits: these differ, where hashes of them would not
    base = int(np.random.SeedSequence(seed).generate_state(1)[0])
    if on_cpu:
        names = [(p << 20) + r for r in range(runs) for p in range(P)]
    else:
        names = range(-(-learners // width))
    stream = torch.Generator(w.W.device)
    states = [stream.manual_seed((base + n) % 2**32).get_state() for n in names]
    return _Source(_rule(problem, N, block, w.W), draw, largest, width, states)


def _advance(problem, w, source, now, times):
    """The states at `times`. What is recorded within a block leaves the block as it is."""
    learners, threads, chunk = w.v[..., 0].numel(), 1, source.largest
    if source.width == 1:  # on the CPU every thread gets as many chunks as any other
        threads = torch.get_num_threads()
        chunk = -(-learners // (threads * -(-learners // (threads * chunk))))
    with _pool(threads) as pool:
        now = int(now)
        for t in map(int, times):
            whole = max(now, t - t % source.rule.block)
            w = _move(pool, chunk, source, w, now, whole, back=whole)
            now = whole
            back = t if t == times[-1] else now
            yield w if t == now else _move(pool, chunk, source, w, now, t, back)


@contextmanager
def _pool(threads):
    """Threads in which torch uses one thread each; in all others it keeps the user's number."""
    started = threading.Barrier(threads)

    def alone():
        torch.set_num_threads(1)
        torch.get_num_threads()  # or the thread would take up the user's number after all
        started.wait()

    usual = torch.get_num_threads()
    with ThreadPoolExecutor(threads, initializer=alone) as pool:
        list(pool.map(abs, range(threads)))
        torch.set_num_threads(usual)
        yield pool


def _move(pool, chunk, source, w, start, stop, back):
    """The weights at step `stop`, from those at `start`; the streams return to step `back`."""
    if stop == start:
        return w
    runs, P, K, N = w.W.shape
    W, v = w.W.reshape(-1, K, N), w.v.reshape(-1, K)
    moved_W, moved_v = torch.empty_like(W), torch.empty_like(v)
    given_up = threading.Event()

    @torch.inference_mode()
    def move(first):
        part = slice(first, min(first + chunk, runs * P))
        run = torch.arange(part.start, part.stop, device=W.device) // P
        rows, u = torch.cat([W[part], w.W_star[run].to(W.dtype)], 1), v[part]
        twin = _twins(W[part], u)
        for X, zeta in _samples(source, part, N, start, stop, back):
            if given_up.is_set():
                return
            u = _block(source.rule, rows, u, X, zeta)
        if twin is not None:
            rows, u = rows.gather(1, twin[..., None].expand(-1, -1, N)), u.gather(1, twin)
        # a run that has left every bound stays a number, for run() to refuse
        moved_W[part] = rows[:, :K].nan_to_num_(1e30, 1e30, -1e30)
        moved_v[part] = u.nan_to_num(1e30, 1e30, -1e30)

    try:
        list(pool.map(move, range(0, runs * P, chunk)))
    finally:
        given_up.set()
    return Weights(moved_W.reshape(w.W.shape), moved_v.reshape(w.v.shape), w.W_star)


def _twins(W, v):
    """For every unit (L, K) the first one equal to it, or None where all differ.

    Equal units stay equal in exact arithmetic, but products round them differently, and some of
    their differences grow: so the first one's weights become those of all.
    """
    alike = (v[:, :, None] == v[:, None]) & (W[:, :, None, 0] == W[:, None, :, 0])
    if alike.sum() == v.numel():
        return None
    return (alike & (W[:, :, None] == W[:, None]).all(-1)).byte().argmax(-1)


def _samples(source, part, N, start, stop, back):
    """Samples (L, n, N) and label noise (L, n) of the learners `part`, block after block.

    They are views of a buffer, good until the next block is asked for.
    """
    rule, draw, width = source.rule, source.draw, source.width
    B, L = rule.problem.batch, part.stop - part.start
    own = slice(part.start // width, -(-part.stop // width))
    streams = [torch.Generator(rule.decay.device).set_state(s) for s in source.states[own]]
    cell = max(draw, rule.block)  # steps that the buffer holds
    buffer = rule.decay.new_empty(cell // draw, len(streams), width, draw * B * (N + 1))
    slots = [list(zip(places, streams, strict=True)) for places in buffer]
    xs, noises = buffer.flatten(1, 2)[:, :L].movedim(1, 0).tensor_split([draw * B * N], -1)
    kept = None
    for origin in range(start - start % cell, stop, cell):
        first, last = max(start - origin, 0), min(stop - origin, cell)
        for i in range(first // draw, -(-last // draw)):
            if origin + i * draw == back - back % draw:
                kept = [stream.get_state() for stream in streams]
            for place, stream in slots[i]:
                place.normal_(generator=stream)
        X, zeta = xs.reshape(L, cell * B, N), noises.reshape(L, cell * B)
        while first < last:
            end = min(last, first - first % rule.block + rule.block)
            yield X[:, first * B : end * B], zeta[:, first * B : end * B]
            first = end
    source.states[own] = kept or [stream.get_state() for stream in streams]
