"""Rounds on rows: any real matrix, also on rows that only the round knows.

An outer optimiser keeps an anchor and a momentum between its rounds, a delayed average an old copy
of every worker. These are rows like the workers' own, with overlaps with them, so a round that uses
them is one matrix B on all rows, W <- B W, Q <- B Q B^T, R <- B R, v <- B v. Chapter
:doc:`gossip_square`, equation :eq:`eq-square`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from ..checks import reals, through_constructor
from ..labels import check_kind, of_workers, workers
from .mix import apply_mixing, apply_to_rows


def rows(B: ArrayLike, hidden: dict[str, ArrayLike] | None = None) -> Rows:
    """Make a round that replaces all rows by B times them, for schedules [(period, rows(B)), ...].

    Parameters
    ----------
    B : (P + H, P + H) array
        Any real matrix: entries may be negative, and rows need not sum to 1. It acts on first and
        second layers alike.
    hidden : dict, optional
        The start (h, P) of H = sum of h further rows, by name. Each is like one worker's K rows and
        second layer, and only rounds change it. The rows begin as start times the workers, at the
        start of the run: np.full((1, P), 1 / P) for an anchor at the mean, np.zeros((1, P)) for a
        momentum, np.eye(P) for a copy of every worker. B counts the workers first, then these in
        their order. Rounds of one schedule share the rows of one name.

    Returns
    -------
    Rows
        The round, a callable on states.

    Raises
    ------
    ValueError
        If the shapes do not fit.

    Notes
    -----
    run() carries the hidden rows, and its checkpoints hold them. A Trajectory, its risks and the
    check for divergence leave them out. The finite engines need N >= (P + H) K + M.

    References
    ----------
    Chapter :doc:`gossip_square`, equation :eq:`eq-square`.
    """
    return Rows(B=reals(B, "B"), hidden={} if hidden is None else hidden)


@dataclass(frozen=True, eq=False)
class Rows:
    """A round on rows, as returned by rows().

    It is a callable on states. Two of them are equal if their fields are.

    Attributes
    ----------
    B : (P + H, P + H) array
        The matrix on all rows.
    hidden : dict
        The start (h, P) of the hidden rows of each name.
    """

    B: np.ndarray
    hidden: dict = field(default_factory=dict)

    def __post_init__(self):
        B = reals(self.B, "B")
        if B.ndim != 2 or B.shape[0] != B.shape[1] or not B.size:
            raise ValueError(f"B acts on all rows, so it is a square matrix, got shape {B.shape}")
        if not isinstance(self.hidden, dict):
            raise ValueError(f"hidden is a dict {{name: start}}, got {self.hidden!r}")
        hidden = {name: reals(a, f"the start of {name!r}") for name, a in self.hidden.items()}
        P = len(B) - sum(len(a) for a in hidden.values() if a.ndim)
        for name, start in hidden.items():
            if start.ndim != 2 or P < 1 or start.shape[1] != P or not isinstance(name, str):
                raise ValueError(
                    f"B of shape {B.shape} counts the workers and the hidden rows: each start is "
                    f"(h, P), how its rows begin from the P workers, got {name!r} of shape "
                    f"{start.shape}"
                )
        for array in (B, *hidden.values()):
            array.setflags(write=False)
        object.__setattr__(self, "B", B)
        object.__setattr__(self, "hidden", hidden)

    @property
    def workers(self):
        """P, the number of workers that the round is for."""
        return len(self.B) - sum(map(len, self.hidden.values()))

    def __call__(self, state):
        """The state after the round; without hidden rows, which only a run carries."""
        check_kind(state, "a round on rows acts on")
        if self.hidden:
            raise ValueError(
                f"the round needs the rows {', '.join(self.hidden)} beside the workers, which only "
                "a run carries: use it in a schedule of gossipdyn.run"
            )
        if len(self.B) != workers(state):
            raise ValueError(
                f"B of shape {self.B.shape} acts on {len(self.B)} workers, the state has "
                f"{workers(state)}"
            )
        return apply_mixing(self.B, state)

    def __eq__(self, other):
        return isinstance(other, Rows) and repr(self) == repr(other)

    __reduce__ = through_constructor

    def __repr__(self):
        hidden = {name: start.tolist() for name, start in self.hidden.items()}
        return f"Rows(B={self.B.tolist()}, hidden={hidden})"


def hidden_rows(rounds, P):
    """{name: start (h, P)} of all hidden rows that the rounds of a checked schedule ask for."""
    hidden = {}
    for i, (_, A) in enumerate(rounds):
        if getattr(A, "workers", P) != P:
            raise ValueError(f"round {i} is one of {A.workers} workers, x0 has {P}: {A!r}")
        for name, start in getattr(A, "hidden", {}).items():
            if not np.array_equal(hidden.setdefault(name, start), start):
                raise ValueError(
                    f"round {i} begins the hidden rows {name!r} as\n{start}\ntimes the workers, an "
                    f"earlier round as\n{hidden[name]}\ngive both alike, or other names"
                )
    for i, (_, A) in enumerate(rounds):
        if hidden and callable(A) and not hasattr(A, "matrix") and not hasattr(A, "hidden"):
            raise ValueError(
                f"round {i}, {A!r}, acts on workers alone, while other rounds keep the rows "
                f"{', '.join(hidden)}, whose overlaps with the workers it does not tell: give it a "
                "method matrix(state) that returns G (..., P K, P K) with W <- G W"
            )
    return hidden


def carried(A, hidden, P):
    """The round A, checked, on the P workers and all hidden rows: a matrix, or a callable."""
    if not hidden or A is None:
        return A
    first, places = P, {}
    for name, start in hidden.items():
        places[name] = range(first, first + len(start))
        first += len(start)
    if callable(A) and not hasattr(A, "hidden"):
        return _Beside(A, P, first - P)
    own, names = (A.B, A.hidden) if hasattr(A, "hidden") else (A, ())
    place = [*range(P), *(i for name in names for i in places[name])]
    B = np.eye(first)
    B[np.ix_(place, place)] = own
    return B


@dataclass(frozen=True)
class _Beside:
    """A callable on the rows of P workers, such as Matched, where other rows stand beside them."""

    A: object
    workers: int
    still: int

    def __call__(self, state):
        from_workers = self.A.matrix(of_workers(state, slice(self.workers)))
        rows = from_workers.shape[-1]
        size = rows + self.still * rows // self.workers
        G = np.zeros((*from_workers.shape[:-2], size, size)) + np.eye(size)
        G[..., :rows, :rows] = from_workers
        return apply_to_rows(G, state)
