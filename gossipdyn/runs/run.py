"""run(): the one loop and the one clock that all engines share."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from tqdm import tqdm

from ..checks import flag, number, reals
from ..engines.engine import Engine
from ..gossip.mix import mixed
from ..gossip.rows import carried, hidden_rows
from ..labels import as_numpy, check_kind, has_axis, workers
from ..problem import Problem, check_problem
from ..states import check_overlaps, overlaps
from .checkpoint import Checkpoint
from .clock import Schedule, names_of, parts, plan, schedule
from .ledger import Ledger
from .trajectory import Trajectory

CHECKPOINT_SECONDS = 60  # between two writes of a checkpoint


def run(
    engine: Engine,
    problem: Problem,
    x0: Any,
    rounds: Schedule,
    record: ArrayLike | None = None,
    ends: bool = True,
    keep: str | Iterable[str] | None = None,
    start: float = 0.0,
    checkpoint: str | os.PathLike | None = None,
) -> Trajectory:
    """Train, mix, train, mix, and record.

    Parameters
    ----------
    engine : Engine
        flow(...), chain(...) or sgd(...).
    problem : Problem
        The teacher and the learning rule.
    x0 : Overlaps or Weights
        Start, one state (P, ...) or several along a leading axis of runs; Weights are for sgd.
    rounds : list of (period, A), or float
        Train for ``period`` in alpha (0: mix at once), then mix with the matrix A (P, P), or with a
        callable on states such as matched(A) or rows(B); None mixes nothing. A number alone trains.
    record : (times,) array, optional
        Times in alpha to keep, ascending; by default the start and the ends of rounds alone.
    ends : bool, optional
        False leaves the ends of rounds out, except the last.
    keep : str or list of str, optional
        Which of "Q", "R", "v", "risk", "mean_risk" to store; by default all.
    start : float, optional
        alpha at x0, so that a second run continues the clock of the first one.
    checkpoint : path, optional
        A file that is written now and then. The same call made again, after a kill as well, goes on
        from there. It is a pickle, so use only your own files.

    Returns
    -------
    Trajectory
        Overlaps and risks at the recorded times. Ctrl-C returns what was computed, with
        complete=False; the last whole state is then recorded too, whatever ``record`` says.

    Raises
    ------
    ValueError
        If an argument does not fit.
    Diverged
        If a risk leaves every bound. The message says which bound is broken if one is known.

    See Also
    --------
    flow, chain, sgd : The three engines.
    sweep : Many runs over a table of points.

    Notes
    -----
    Any error that stops a run that has begun, also one of a callable of the schedule, carries what
    was computed as ``.trajectory``. Exactly equal students of one worker stay equal in every
    engine.

    A run that goes on from a checkpoint has the result of a run that was never stopped, bit for
    bit. (With a checkpoint the flow restarts its solver at fixed marks.) A callable of the schedule
    may hold a state: it is kept in the file, and the run goes on with the callable from there,
    which t.asked["rounds"] holds. A state outside the callable (a global, an attribute of a class,
    NumPy's global random numbers) is refused. So are files of another gossipdyn, NumPy, SciPy or
    torch.

    References
    ----------
    Chapter :doc:`gossip_square`.

    Examples
    --------
    Four workers on a ring train for 5 units of alpha and average, three times:

    >>> problem = gd.Problem(gd.erf, v_star=np.ones(2), T=np.eye(2), eta=0.5)
    >>> x0 = gd.random_start(problem, workers=4, students=2, N=1000)
    >>> t = gd.run(gd.flow(), problem, x0, 3 * [(5.0, gd.ring(4))])
    >>> print(t.alpha)
    [ 0.  5.  5. 10. 10. 15. 15.]
    >>> print(t.risk.shape)
    (1, 7, 4)
    """
    if not isinstance(engine, Engine):
        raise ValueError(f"expected an engine such as gossipdyn.flow(), got {engine!r}")
    check_problem(problem)
    check_kind(x0, "x0 is")
    x0 = replace(x0, **{name: as_numpy(getattr(x0, name)) for name in x0.axes})
    if len(x0.runs) > 1:
        raise ValueError(
            f"x0 has {len(x0.runs)} leading axes, v of shape {x0.v.shape}: a run takes one "
            "axis of runs at most, reshape it"
        )
    check_overlaps(problem, overlaps(x0, problem))
    P = workers(x0)
    rounds, start = schedule(rounds, P), number(start, "start, the alpha of x0,")
    ends = flag(ends, "ends")
    hidden = hidden_rows(rounds, P)
    starts = np.concatenate([np.empty((0, P)), *hidden.values()])
    legs = plan(rounds, record, ends, start, engine.N)
    asked = {
        "x0": x0,
        "rounds": rounds,
        "record": None if record is None else reals(record, "record"),
        "ends": ends,
        "keep": names_of(keep, () if has_axis(x0, "input") else x0.axes),
        "start": start,
    }
    size = 1 + sum(sum(leg.shown) + leg.shown_after for leg in legs)
    ledger = Ledger(engine, problem, asked, size)
    length = legs[-1].end - start if legs else 0
    done, file, saved = None, None, time.monotonic()
    if checkpoint is not None:
        of_run = {"engine": engine, "problem": problem, "asked": asked}
        file = Checkpoint(checkpoint, of_run, rounds)
        done = file.resumed()
    if done is None:
        first, (state, source) = 0, engine.begin(problem, x0, start, starts)
        ledger.write(state, start)
        ledger.check()
    else:
        first, source, ledger = done
        state = ledger.last[0]
        legs = plan(ledger.asked["rounds"], record, ends, start, engine.N)
    if file is not None:
        legs = [part for leg in legs for part in parts(leg)]
        if done is None:  # now, so that a file that cannot be written is refused at once
            file.write((first, source, ledger))
    rounds_on_rows = {id(leg.A): carried(leg.A, hidden, P) for leg in legs}
    called = next((i for i, leg in enumerate(legs) if callable(leg.A)), None)
    bar = tqdm(total=length, unit="alpha", delay=2, leave=False, bar_format=_BAR, disable=None)
    try:
        with bar:
            for i, leg in enumerate(legs[first:], first):
                moved = engine.advance(problem, state, source, leg.now, leg.times)
                for alpha, shown, pair in zip(leg.alphas, leg.shown, moved, strict=True):
                    state, source = pair
                    ledger.write(state, alpha, shown=shown)
                    bar.update(alpha - start - bar.n)
                if leg.A is not None:
                    if callable(leg.A):  # which must not meet a state that has diverged
                        ledger.check()
                    state = mixed(rounds_on_rows[id(leg.A)], state)
                    in_bounds = not callable(leg.A)  # a mean of states that are
                    ledger.write(state, leg.end, True, leg.shown_after, in_bounds)
                last = i == len(legs) - 1
                due = i == called or time.monotonic() - saved >= CHECKPOINT_SECONDS
                if file is not None and (last or due):
                    ledger.check()
                    file.write((i + 1, source, ledger), last)
                    saved = time.monotonic()
            ledger.check()
    except KeyboardInterrupt:
        return ledger.trajectory(complete=False)
    except Exception as stopped:  # divergence, fields out of range, the user's callable
        stopped.trajectory = ledger.trajectory(complete=False)  # type: ignore[attr-defined]
        raise
    return ledger.trajectory(complete=True)


_BAR = "{l_bar}{bar}| {n:.4g}/{total:.4g} in alpha [{elapsed}<{remaining}]"
