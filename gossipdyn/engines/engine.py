"""What an engine is."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from inspect import signature

GRID = 64  # blocks of steps of the finite engines lie on multiples of a divisor of this


@dataclass(frozen=True)
class Engine:
    """A way to move a state forward in time; flow(), chain() and sgd() make them.

    Attributes
    ----------
    name, options : str, dict
        What to call, and with what, to get this engine again.
    N : int or None
        Steps per unit of alpha; None for continuous time.
    begin : callable
        Function (problem, x0, start, rows) -> (state, source). x0 is a state at alpha = start, with
        or without a leading axis of runs; the returned state has one. rows (H, P) times the workers
        are what rounds keep beside them, as further workers after the P of x0: they stay as they
        are and get no samples. source is what the engine keeps beside the state, such as random
        streams.
    advance : callable
        Function (problem, state, source, now, times) -> iterator of (state, source) at ``times``,
        which ascend from ``now``: in alpha for continuous time, else in steps since the start. It
        is pure: it leaves what it is given as it is, and the last pair is what to go on from. The
        learning rates are those that problem.rates() gives for the time of each step.
    keeps_weights : bool
        Whether the states are weights in all N inputs, which a Trajectory then has.
    """

    name: str
    options: dict
    N: int | None
    begin: Callable = field(repr=False, compare=False)
    advance: Callable = field(repr=False, compare=False)
    keeps_weights: bool = field(default=False, repr=False)

    def __post_init__(self):
        if len(signature(self.begin).parameters) == 2:
            warnings.warn(
                f"the engine {self.name!r} is made for version 0.1: its begin takes (problem, x0, "
                "start, rows) now, and its advance yields (state, source)",
                DeprecationWarning,
                stacklevel=3,
            )
            object.__setattr__(self, "begin", partial(_begin_of_old, self.begin))
            object.__setattr__(self, "advance", partial(_advance_of_old, self.advance))


def _begin_of_old(begin, problem, x0, start, rows):
    if len(rows):
        raise ValueError(
            "an engine whose begin takes (problem, x0) alone knows no rows that stay, a round of "
            f"the schedule asks for {len(rows)}: let it take (problem, x0, start, rows)"
        )
    return begin(problem, x0)


def _advance_of_old(advance, problem, state, source, now, times):
    return ((state, source) for state in advance(problem, state, source, now, times))
