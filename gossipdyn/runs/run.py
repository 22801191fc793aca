"""run(): the one loop and the one clock that all engines share."""

import time
from dataclasses import fields

import numpy as np
from tqdm import tqdm

from ..checks import flag, number, reals
from ..engines.divergence import observe
from ..engines.engine import Engine
from ..equations import mean_worker, unchecked_risk
from ..gossip.mix import apply_mixing
from ..problem import check_problem
from ..states import Overlaps, Weights, as_numpy, check_overlaps, check_teacher, overlaps
from .checkpoint import Checkpoint
from .clock import _names, _parts, _plan, _schedule
from .trajectory import KEPT, Trajectory

CHECKPOINT_SECONDS = 60  # between two writes of a checkpoint


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
