"""The simulation: SGD itself, at finite N, in torch, for many runs and workers at once.

blocks.py makes the steps; here are the random streams, the threads and the clock.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from ..checks import apart, whole
from ..equal_units import first_by_weights
from ..gossip.mix import with_rows
from ..labels import has_axis, with_runs, workers
from ..starts import check_dimension, lift
from ..states import Weights
from .blocks import block_of_steps, rules_of
from .engine import GRID, Engine
from .samples import samples_of

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

    begin = partial(_begin, **options)
    return Engine("sgd", options, options["N"], begin, _advance, keeps_weights=True)


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


def _begin(problem, x0, start, rows, *, N, runs, seed, device, dtype):
    """The start as Weights of tensors with a leading axis of runs, and what goes with it."""
    _check_twins(problem.activation)
    P, lead = workers(x0), x0.runs
    if lead not in ((), (runs,)):
        raise ValueError(
            f"x0 has leading axes {lead}, sgd was told runs={runs}: give both the same number, or "
            "x0 without a leading axis"
        )
    if P > MOST_WORKERS:
        raise ValueError(f"sgd takes at most {MOST_WORKERS} workers, x0 has {P}")
    if not has_axis(x0, "input"):
        K, M = x0.R.shape[-2:]
        check_dimension(N, (P + len(rows)) * K + M, "sgd")
        x0 = lift(problem, x0, N, seed)
    if x0.W.shape[-1] != N or x0.N != N:
        raise ValueError(
            f"the weights have {x0.W.shape[-1]} inputs, sgd was told N={N}: give both alike"
        )
    x0 = with_rows(x0, rows)
    W, v, W_star = (
        torch.from_numpy(a.copy()).to(device, kind)
        # a rounded teacher would not have the overlaps T that risks are computed with
        for a, kind in zip(
            (x0.W, x0.v, x0.W_star),
            (DTYPES[dtype], DTYPES[dtype], torch.float64),
            strict=True,
        )
    )
    w = with_runs(Weights(W, v, W_star), runs)
    return w, _source(problem, w, start, len(rows), seed)


class _Source(NamedTuple):
    """What the engine keeps beside the weights: the first alpha, how many workers stay, streams.

    The learners, worker p of run r being number r P + p, advance in chunks of at most `largest`,
    in blocks of at most `block` steps. Each random stream serves `width` neighbours and draws for
    `draw` steps in one call, samples before label noise. Its state is that at the last multiple of
    `draw`.
    """

    start: float
    still: int
    block: int
    draw: int
    largest: int
    width: int
    states: list


def _source(problem, w, start, still, seed):
    runs, everyone, K, N = w.W.shape
    P = everyone - still
    learners, sample = runs * P, samples_of(problem, w).size * problem.batch
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
    return _Source(start, still, block, draw, largest, width, states)


def _advance(problem, w, source, now, times):
    """The states at `times`. What is recorded within a block leaves the block as it is."""
    runs, everyone, *_ = w.v.shape
    learners, threads, chunk = runs * (everyone - source.still), 1, source.largest
    if source.width == 1:  # on the CPU every thread gets as many chunks as any other
        threads = torch.get_num_threads()
        chunk = -(-learners // (threads * -(-learners // (threads * chunk))))
    with _pool(threads) as pool:
        now, move = int(now), partial(_move, problem, pool, chunk, samples_of(problem, w), {})
        for t in map(int, times):
            whole = max(now, t - t % source.block)
            w, source = move(source, w, now, whole, back=whole)
            now = whole
            back = t if t == times[-1] else now
            yield move(source, w, now, t, back)


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


def _move(problem, pool, chunk, sample, made, source, w, start, stop, back):
    """The weights at step `stop`, from those at `start`, and the source at step `back`.

    sample : the Samples of the problem. made : rules of blocks, kept from one move to the next.
    """
    if stop == start:
        return w, source
    runs, everyone, K, N = w.W.shape
    P = everyone - source.still
    W, v = w.W[:, :P].reshape(-1, K, N), w.v[:, :P].reshape(-1, K)
    moved_W, moved_v = torch.empty_like(W), torch.empty_like(v)
    states = list(source.states)
    pieces = _pieces(source.block, start, stop)
    rules = rules_of(problem, N, source.start, pieces, W, made)
    given_up = threading.Event()

    @torch.inference_mode()
    def move(first):
        part = slice(first, min(first + chunk, runs * P))
        run = torch.arange(part.start, part.stop, device=W.device) // P
        rows, u = torch.cat([W[part], sample.rows[run].to(W.dtype)], 1), v[part]
        alike = first_by_weights(W[part], u)
        drawn = _draws(problem, source, states, part, sample.size, W, start, stop, back)
        for rule, (draws, zeta) in zip(rules, drawn, strict=True):
            if given_up.is_set():
                return
            X, labels = sample.inputs(draws), partial(sample.labels, draws)
            u = block_of_steps(rule, rows, u, X, zeta, labels)
        if alike is not None:
            rows, u = rows.gather(1, alike[..., None].expand(-1, -1, N)), u.gather(1, alike)
        # the numbers of a run that has diverged stay finite, so that run() can refuse it
        moved_W[part] = rows[:, :K].nan_to_num_(1e30, 1e30, -1e30)
        moved_v[part] = u.nan_to_num(1e30, 1e30, -1e30)

    try:
        list(pool.map(move, range(0, runs * P, chunk)))
    finally:
        given_up.set()
    moved_W, moved_v = moved_W.reshape(runs, P, K, N), moved_v.reshape(runs, P, K)
    if source.still:
        moved_W = torch.cat([moved_W, w.W[:, P:]], 1)
        moved_v = torch.cat([moved_v, w.v[:, P:]], 1)
    return Weights(moved_W, moved_v, w.W_star), source._replace(states=states)


def _pieces(block, start, stop):
    """The steps from start to stop cut at multiples of `block`: [(first, end), ...]."""
    marks = range(start - start % block + block, stop, block)
    return list(pairwise([start, *marks, stop]))


def _draws(problem, source, states, part, size, like, start, stop, back):
    """Normal numbers (L, n, size) for the samples and (L, n) for the label noise of `part`.

    Piece after piece, for the learners `part`. They are views of a buffer, good until the next
    piece is asked for. At the end the streams'
    states at step `back` have taken the place of those in `states`.
    """
    block, draw, width = source.block, source.draw, source.width
    B, L = problem.batch, part.stop - part.start
    own = slice(part.start // width, -(-part.stop // width))
    streams = [torch.Generator(like.device).set_state(s) for s in source.states[own]]
    cell = max(draw, block)  # steps that the buffer holds
    buffer = like.new_empty(cell // draw, len(streams), width, draw * B * (size + 1))
    slots = [list(zip(places, streams, strict=True)) for places in buffer]
    xs, noises = buffer.flatten(1, 2)[:, :L].movedim(1, 0).tensor_split([draw * B * size], -1)
    kept = None
    for origin in range(start - start % cell, stop, cell):
        first, last = max(start - origin, 0), min(stop - origin, cell)
        for i in range(first // draw, -(-last // draw)):
            if origin + i * draw == back - back % draw:
                kept = [stream.get_state() for stream in streams]
            for place, stream in slots[i]:
                place.normal_(generator=stream)
        X, zeta = xs.reshape(L, cell * B, size), noises.reshape(L, cell * B)
        for begin, end in _pieces(block, first, last):
            yield X[:, begin * B : end * B], zeta[:, begin * B : end * B]
    states[own] = kept or [stream.get_state() for stream in streams]
