"""The clock that all engines share: every time of a run, laid out before it begins."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from itertools import pairwise
from numbers import Real
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..checks import apart, as_float32, check_mixing, number, reals
from ..engines.engine import GRID
from ..gossip.mix import warn_of_drift
from .saved import KEPT

# As given to run(): [(period, A), ...], or a period alone.
Schedule = float | Iterable[tuple[float, ArrayLike | Callable | None]]

SAME_TIME = 1e-9  # times in alpha that are closer are one time


def schedule(rounds, P):
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


class _Leg(NamedTuple):
    """One round: the states asked of the engine, which of them are shown, and the mixing."""

    now: float
    times: list
    alphas: list
    shown: list
    A: object
    end: float
    shown_after: bool


def plan(rounds, record, ends, start, N):
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


def parts(leg):
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


def names_of(keep, more=()):
    """The names that `keep` asks for, in order. more : those of other kinds of state."""
    single = isinstance(keep, str) or not np.iterable(keep)
    keep = KEPT if keep is None else (keep,) if single else tuple(keep)
    known = (*KEPT, *(name for name in more if name not in KEPT))
    unknown = [name for name in keep if not isinstance(name, str) or name not in known]
    if unknown:
        raise ValueError(f"keep names some of {', '.join(known)}, not {unknown[0]!r}")
    return tuple(name for name in known if name in keep)
