"""What an engine is."""

from collections.abc import Callable
from dataclasses import dataclass, field

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
