"""run(): the one loop and the one clock that all engines share."""

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from itertools import pairwise
from numbers import Real
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from .divergence import observe
from .generalisation import mean_worker, unchecked_risk
from .gossip import apply_mixing, check_mixing, warn_of_drift
from .order_parameters import (
    Overlaps,
    Weights,
    as_numpy,
    check_overlaps,
    check_teacher,
    overlaps,
)
from .problem import check_problem
from .refusals import apart, as_float32, flag, number, reals
from .storage import Checkpoint
from .trajectory import KEPT, Trajectory

SAME_TIME = 1e-9  # times in alpha that are closer are one time
CHECKPOINT_SECONDS = 60  # between two writes of a checkpoint
GRID = 64  # blocks of steps of the finite engines lie on multiples of a divisor of this


@dataclass(frozen=True)
class Engine:
    """A way to move a state forward in time; flow(), chain() and sgd() make them.

    Attributes
    ----------
    name, options : what to call, and with what, to get this engine again.
    N : steps per unit of alpha; None for continuous time.
    begin : (problem, start) -> (state, source). The start is Overlaps or Weights, with or without
        a leading axis of runs; the state is Overlaps or Weights with one; source is what the
        engine keeps beside it, such as random streams.
    advance : (problem, state, source, now, times) -> an iterator of the states at `times`, which
        ascend from `now`: in alpha for continuous time, else in steps since the start.
    """

    name: str
    options: dict
    N: int | None
    begin: Callable = field(repr=False, compare=False)
    advance: Callable = field(repr=False, compare=False)


def run(engine, problem, x0, rounds, record=None, ends=True, keep=None, start=0.0, checkpoint=None):
    """Train, mix, train, mix, and record.

    Parameters
    ----------
    engine : flow(...), chain(...) or sgd(...).
    problem : Problem.
    x0 : Overlaps, one state (P, ...) or with a leading axis of runs; sgd also takes Weights.
    rounds : [(period, A), ...]: train for `period` in alpha (0: mix at once), then mix with the
        matrix A (P, P), or with a callable on states; None mixes nothing. A bare number trains.
    record : times in alpha to keep, ascending; None keeps the start and the ends of rounds alone.
    ends : False leaves the ends of rounds out, but the last.
    keep : which of "Q", "R", "v", "risk", "mean_risk" to store; None stores all.
    start : alpha at x0, so that a second run continues the first one's clock.
    checkpoint : a file that is written now and then. The same call made again, after a kill as
        well, goes on from there, with the result of a run that was never stopped, bit for bit
        (with a checkpoint the flow restarts its solver at fixed marks). A callable of the schedule
        may hold a state: it is kept in the file, and the run goes on with the callable from there,
        which t.asked["rounds"] holds. A state outside the callable (a global, an attribute of a
        class, NumPy's global random numbers) is refused. So are files of another gossipdyn, NumPy,
        SciPy or torch. It is a pickle: use your own files alone.

    Returns a Trajectory. Ctrl-C returns what was computed, with complete=False, and so does
    Diverged; the last whole state is then recorded too, whatever `record` says. Exactly equal
    students of one worker stay equal in every engine. Raises ValueError for arguments that do not
    fit, and its subclass Diverged when a risk leaves every bound: the message says which bound is
    broken where one is known. Any error that stops a run that has begun, also one of a callable of
    the schedule, carries what was computed as .trajectory. Chapter `gossip_square`.
    """
    if not isinstance(engine, Engine):
        raise ValueError(f"expected an engine such as gossipdyn.flow(), got {engine!r}")
    check_problem(problem)
    if not isinstance(x0, Overlaps | Weights):
        raise ValueError(f"x0 is gossipdyn.Overlaps (sgd: or Weights), got {type(x0).__name__}")
    if isinstance(x0, Weights):
        x0 = Weights(*(as_numpy(getattr(x0, f.name)) for f in fields(x0)))
    if x0.v.ndim > 3:
        raise ValueError(
            f"x0 has {x0.v.ndim - 2} leading axes, v of shape {x0.v.shape}: a run takes one "
            "axis of runs at most, reshape it"
        )
    if isinstance(x0, Weights):
        check_teacher(problem, x0)
    check_overlaps(problem, x0 if isinstance(x0, Overlaps) else overlaps(x0))
    rounds, start = _schedule(rounds, x0.v.shape[-2]), number(start, "start, the alpha of x0,")
    ends = flag(ends, "ends")
    legs = _plan(rounds, record, ends, start, engine.N)
    asked = {
        "x0": x0,
        "rounds": rounds,
        "record": None if record is None else reals(record, "record"),
        "ends": ends,
        "keep": _names(keep),
        "start": start,
    }
    size = 1 + sum(sum(leg.shown) + leg.shown_after for leg in legs)
    ledger = _Ledger(engine, problem, asked, size)
    length = legs[-1].end - start if legs else 0
    done, saved = None, time.monotonic()
    if checkpoint is not None:
        of_run = {"engine": engine, "problem": problem, "asked": asked}
        checkpoint = Checkpoint(checkpoint, of_run, rounds)
        done = checkpoint.resumed()
    if done is None:
        first, (state, source) = 0, engine.begin(problem, x0)
        ledger.write(state, start)
    else:
        first, source, ledger = done
        state, legs = ledger.last[0], _plan(ledger.asked["rounds"], record, ends, start, engine.N)
    if checkpoint is not None:
        legs = [part for leg in legs for part in _parts(leg)]
        if done is None:  # at once: a file that cannot be written is no late surprise
            checkpoint.write((first, source, ledger))
    called = next((i for i, leg in enumerate(legs) if callable(leg.A)), None)
    bar = tqdm(total=length, unit="alpha", delay=2, leave=False, bar_format=_BAR, disable=None)
    try:
        with bar:
            for i, leg in enumerate(legs[first:], first):
                states = engine.advance(problem, state, source, leg.now, leg.times)
                for alpha, shown, state in zip(leg.alphas, leg.shown, states, strict=True):
                    ledger.write(state, alpha, shown=shown)
                    bar.update(alpha - start - bar.n)
                if leg.A is not None:
                    state = _mixed(leg.A, state)
                    if leg.shown_after or callable(leg.A):
                        ledger.write(state, leg.end, after_mixing=True, shown=leg.shown_after)
                    else:  # a mean of states that are in bounds
                        ledger.last = state, leg.end, True
                last = i == len(legs) - 1
                due = i == called or time.monotonic() - saved >= CHECKPOINT_SECONDS
                if checkpoint is not None and (last or due):
                    checkpoint.write((i + 1, source, ledger), last)
                    saved = time.monotonic()
    except KeyboardInterrupt:
        return ledger.trajectory(complete=False)
    except Exception as stopped:  # divergence, fields out of range, the user's callable
        stopped.trajectory = ledger.trajectory(complete=False)
        raise
    return ledger.trajectory(complete=True)


_BAR = "{l_bar}{bar}| {n:.4g}/{total:.4g} in alpha [{elapsed}<{remaining}]"


def _schedule(rounds, P):
    """Rounds as a checked list of (period, A)."""
    if isinstance(rounds, Real) and not isinstance(rounds, bool):
        rounds = [(rounds, None)]
    if not np.iterable(rounds):
        raise ValueError(f"rounds is a list of (period, A), or a number, got {rounds!r}")
    checked, known = [], {}
    for i, entry in enumerate(rounds):
        try:
            period, A = entry
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"a round is (period, A), such as (5.0, gossipdyn.ring(4)); round {i} is {entry!r}"
            ) from error
        period = number(period, f"the period of round {i}", 0)
        if A is not None and not callable(A):
            if id(A) not in known:  # which keeps A alive, so that its id stays its own
                matrix = _square(check_mixing(A, P))
                if not any(np.array_equal(matrix, other) for other, _ in known.values()):
                    warn_of_drift(matrix, stacklevel=4)
                known[id(A)] = (matrix, A)
            A = known[id(A)][0]
        checked.append((period, A))
    return checked


def _square(A):
    if A.shape[0] != A.shape[1]:
        raise ValueError(
            f"A of shape {A.shape} would turn {A.shape[1]} workers into {A.shape[0]} within a run: "
            "use gossipdyn.mix between two runs"
        )
    return A


def _mixed(A, state):
    """A state after the mixing A, a checked matrix or a callable."""
    if not callable(A):
        return apply_mixing(A, state)
    new = A(state)
    if type(new) is not type(state) or new.v.shape != state.v.shape:
        of = f" of shape {tuple(new.v.shape)}" if hasattr(new, "v") else ""
        raise ValueError(
            f"{A!r} of the schedule made {type(new).__name__}{of} of {type(state).__name__} with v "
            f"of shape {tuple(state.v.shape)}: return the same kind and shape"
        )
    return new


class _Leg(NamedTuple):
    """One round: the states asked of the engine, which of them are shown, and the mixing."""

    now: float
    times: list
    alphas: list
    shown: list
    A: object
    end: float
    shown_after: bool


def _plan(rounds, record, ends, start, N):
    """Every time of a run, laid out before it begins: a list of _Leg.

    Beside the times asked for there are hidden ones, at which the progress bar moves, divergence
    is noticed and Ctrl-C finds a whole state.
    """
    if N is None:
        marks = [start, *(start + np.cumsum([period for period, _ in rounds])).tolist()]
        record = _record(record, start, marks[-1])
        near, spacing = SAME_TIME, (marks[-1] - start) / 20
    else:
        marks = [0, *np.cumsum([_steps(period, N) for period, _ in rounds]).tolist()]
        record = _record(record, start, start + marks[-1] / N)
        record = sorted({round((alpha - start) * N) for alpha in record})
        near, spacing = 0, GRID * -(-N // GRID)
    places = [bisect_left(record, end - near) for end in marks[1:]]
    exact = [
        record[i] if i < len(record) and record[i] <= end + near else None
        for i, end in zip(places, marks[1:], strict=True)
    ]
    shown = [ends or t is not None for t in exact]
    shown[-1:] = [True] * len(shown[-1:])
    for i in reversed(range(len(shown) - 1)):  # what stands before a round of period 0
        shown[i] |= shown[i + 1] and marks[i + 2] - marks[i + 1] <= near

    legs = []
    for (_, A), now, end, asked, is_shown in zip(
        rounds, marks[:-1], marks[1:], exact, shown, strict=True
    ):
        times = {}
        if end - now > near:
            marked = range(math.floor(now / spacing) + 1, math.ceil(end / spacing))
            asked_for = record[bisect_right(record, now + near) : bisect_left(record, end - near)]
            times = dict.fromkeys([mark * spacing for mark in marked], False)
            times |= dict.fromkeys(asked_for, True)
            times = {t: times[t] for t in sorted(times) if now + near < t < end - near}
            times[end] = is_shown
        alphas = [t if N is None else start + t / N for t in times]
        end = end if N is None else start + end / N
        if asked is not None and N is None:
            end = asked
        if times:
            alphas[-1] = end
        after = is_shown and A is not None
        legs.append(_Leg(now, list(times), alphas, list(times.values()), A, end, after))
    return legs


def _parts(leg):
    """A leg cut at its hidden times, where checkpoints can be written."""
    cuts = [i + 1 for i, shown in enumerate(leg.shown[:-1]) if not shown]
    now = leg.now
    for begin, end in pairwise([0, *cuts, len(leg.times)]):
        within = slice(begin, end)
        whole = {"A": None, "shown_after": False} if end < len(leg.times) else {}
        yield leg._replace(
            now=now,
            times=leg.times[within],
            alphas=leg.alphas[within],
            shown=leg.shown[within],
            **whole,
        )
        now = leg.times[end - 1] if end else now


def _steps(period, N):
    """A period as a whole number of steps; float32 holds it where that many steps round to it."""
    steps = round(period * N)
    if abs(period * N - steps) > SAME_TIME * N and as_float32(steps / N) != period:
        exact, whole = apart(period * N, steps, 6)
        raise ValueError(
            f"{period:.9g} in alpha is {exact} steps at N={N}, not {whole}; use a multiple of "
            f"1/N = {1 / N:.6g}"
        )
    return steps


def _record(record, start, end):
    """The recorded times as a list of ascending floats, each time once."""
    if record is None:
        return []
    times = reals(record, "record, the list of times in alpha,")
    if times.ndim != 1:
        raise ValueError(f"record is a list of times in alpha, got {record!r}")
    if np.any(np.diff(times) < 0):
        i = int(np.argmax(np.diff(times) < 0))
        early, late = apart(times[i + 1], times[i], 6)
        raise ValueError(f"recorded times ascend, got {late} before {early}")
    for edge in (start, end):  # which float32 holds no better
        times[times == as_float32(edge)] = edge
    for edge, outside in ((start, times < start - SAME_TIME), (end, times > end + SAME_TIME)):
        if np.any(outside):
            time, edge = apart(times[outside][0], edge, 6)
            raise ValueError(
                f"recorded time {time} lies outside the run, from {start:.6g} to {end:.6g}: "
                f"beyond {edge}"
            )
    fresh = np.diff(times, prepend=-np.inf) > SAME_TIME
    return times[fresh].tolist()


def _names(keep):
    single = isinstance(keep, str) or not np.iterable(keep)
    keep = KEPT if keep is None else (keep,) if single else tuple(keep)
    unknown = [name for name in keep if not isinstance(name, str) or name not in KEPT]
    if unknown:
        raise ValueError(f"keep names some of {', '.join(KEPT)}, not {unknown[0]!r}")
    return tuple(name for name in KEPT if name in keep)


class _Ledger:
    """What is written down while a run goes on, and its last state that had not diverged."""

    def __init__(self, engine, problem, asked, size):
        self.engine, self.problem, self.asked, self.size = engine, problem, asked, size
        self.alpha, self.after_mixing, self.arrays = [], [], {}
        self.last = self.written = None

    def write(self, state, alpha, after_mixing=False, shown=True):
        """Look at a state, and record it if it is shown. Raises Diverged."""
        x = observe(self.problem, state, alpha, self.engine.N)
        self.last = state, alpha, after_mixing
        if shown:
            self._record(x)

    def _record(self, x):
        state, alpha, after_mixing = self.last
        values = {"Q": x.Q, "R": x.R, "v": x.v, "risk": unchecked_risk(self.problem, x)}
        values["mean_risk"] = unchecked_risk(self.problem, mean_worker(x))[..., 0]
        n = len(self.after_mixing)
        for name in self.asked["keep"]:
            runs, *shape = values[name].shape
            if name not in self.arrays:
                self.arrays[name] = np.empty((runs, self.size, *shape))
            self.arrays[name][:, n] = values[name]
        self.alpha[n:] = [alpha]
        self.after_mixing.append(after_mixing)
        self.written = state

    def trajectory(self, complete):
        state = self.last[0]
        if state is not self.written:  # a run that was stopped: where it was belongs to its record
            self._record(observe(self.problem, *self.last[:2], self.engine.N))
        n = len(self.after_mixing)
        weights = None
        if self.engine.name == "sgd":
            weights = Weights(*(np.asarray(a.cpu()) for a in (state.W, state.v, state.W_star)))
        return Trajectory(
            problem=self.problem,
            alpha=np.array(self.alpha[:n], dtype=float),
            after_mixing=np.array(self.after_mixing, dtype=bool),
            **{name: self.arrays[name][:, :n] if name in self.arrays else None for name in KEPT},
            weights=weights,
            complete=complete,
            engine={"name": self.engine.name, "options": self.engine.options},
            asked=self.asked,
        )
