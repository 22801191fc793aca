"""Matched gossip: the remedy for units in different orders.

Chapter :doc:`diagnosis`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from ..checks import check_mixing, flag, number, through_constructor
from ..labels import check_kind
from ..problem import Problem, check_problem
from ..states import overlaps
from .mix import apply_to_rows, warn_of_drift

TIE = 0.1  # a gain of chance is this large about twice in a thousand at N = 1000


def matched(A: ArrayLike, problem: Problem | None = None, tie: float = TIE) -> Matched:
    """Make a round of gossip that first sorts every sender's units like the receiver's.

    Students that learnt the same features in different orders have a poor mean. So each receiver
    permutes the units of each sender, rows of W and entries of v together, before it takes its
    weighted mean. This changes no output.

    Parameters
    ----------
    A : (P, P) array
        Mixing matrix A[receiver, sender], whose rows sum to 1.
    problem : Problem, optional
        If its activation is odd and its v is trained, (w, v) and (-w, -v) are one unit, and signs
        are flipped too.
    tie : float, optional
        What an exchange of units must gain, from 0 up. Near ties stay as they are.

    Returns
    -------
    Matched
        A callable on states, to be used as matched(A)(state), or in a schedule
        [(period, matched(A)), ...].

    Raises
    ------
    ValueError
        If mix() refuses A, if A is not square, or if tie is below 0.

    Warns
    -----
    UserWarning
        If A keeps no mean, as mix() does.

    See Also
    --------
    mix : A round that averages the units in the order in which they stand.
    diagnose : Tells whether units stand in different order.

    Notes
    -----
    The order is a linear assignment on Q^pq for each edge from p to q, and so the same from weights
    and from overlaps. Units with second-layer weights of opposite sign are never taken for alike.
    If signs are flipped the assignment is made on ``|Q^pq|``. The mean of the workers is kept up to
    the order of their units, and not entry by entry.

    A cycle of the assignment is carried out if it lowers the squared distance of its units by more
    than ``2 tie |w^p| |w^q|``, with norms over the cycle. Chance makes independent rows in R^N gain
    about 3 / sqrt(N) at most: the default suits N = 1000. Units that look at the M teacher units
    with R_on and R_off gain (R_on - R_off)^2 / Q_ii, so matching sets in as they specialise. From
    tie = 2 up nothing is ever matched. Orders made by chance can close around a ring with a twist
    that stays. At small N ask for a tie of several times 1 / sqrt(N), or begin when units have
    specialised.

    References
    ----------
    Chapter :doc:`diagnosis`, equations :eq:`eq-matched` and :eq:`eq-tie`, derives what it does
    here. Singh and Jaggi (2020) and Ainsworth et al. (2023) match networks before a mean.

    Examples
    --------
    Two perfect workers in opposite orders have a poor mean, and a perfect one once they are
    matched:

    >>> problem = gd.Problem(gd.erf, v_star=np.ones(2), T=np.eye(2))
    >>> x = gd.perfect(problem, orders=[(0, 1), (1, 0)])
    >>> plain, sorted_first = gd.mix(gd.complete(2), x), gd.matched(gd.complete(2))(x)
    >>> print(gd.risk(problem, plain).round(3), gd.risk(problem, sorted_first).round(3))
    [0.02 0.02] [0. 0.]
    """
    if problem is not None:
        check_problem(problem)
    made = Matched(A=check_mixing(A), signs=signs_are_free(problem), tie=tie)
    warn_of_drift(made.A)
    return made


@dataclass(frozen=True, eq=False)
class Matched:
    """A round of matched gossip, as returned by matched().

    It is a callable on states. Two of them are equal if their fields are.

    Attributes
    ----------
    A : (P, P) array
        Mixing matrix A[receiver, sender].
    signs : bool
        Whether the signs of units are flipped too.
    tie : float
        What an exchange of units must gain.
    """

    A: np.ndarray
    signs: bool
    tie: float

    def __post_init__(self):
        A = check_mixing(self.A)
        if A.shape[0] != A.shape[1]:
            raise ValueError(
                f"matched gossip sorts senders like the receiver, so A is square, got shape "
                f"{A.shape}"
            )
        A.setflags(write=False)
        object.__setattr__(self, "A", A)
        object.__setattr__(self, "signs", flag(self.signs, "signs"))
        object.__setattr__(self, "tie", number(self.tie, "tie", 0))

    def __call__(self, state):
        """The state after the round, of the kind of the one before."""
        check_kind(state, "matched gossip acts on")
        return apply_to_rows(self.matrix(state), state)

    def matrix(self, state: Any) -> Annotated[np.ndarray, "... PK PK"]:
        """Compute the matrix G of the round on all rows of a state.

        Parameters
        ----------
        state : Overlaps, Weights or another state
            State before the round; leading axes pass through.

        Returns
        -------
        (..., P K, P K) array
            The matrix G of ``W <- G W``, so that ``Q <- G Q G^T`` and ``R <- G R``.
        """
        x = overlaps(state)
        P, K = x.v.shape[-2:]
        check_mixing(self.A, P)
        order = relative_order(x, self.signs, self.tie, (self.A + self.A.T) > 0)
        return (self.A[:, None, :, None] * order).reshape(*x.runs, P * K, P * K)

    def __eq__(self, other):
        return isinstance(other, Matched) and repr(self) == repr(other)

    __reduce__ = through_constructor

    def __repr__(self):
        return f"Matched(A={self.A.tolist()}, signs={self.signs}, tie={self.tie})"


def signs_are_free(problem):
    """Whether (w, v) and (-w, -v) are the same unit, and training may reach either."""
    return problem is not None and bool(problem.activation.odd and problem.eta_v > 0)


def relative_order(x, signs, tie, edges):
    """Signed permutations (..., P, K, P, K): in block p, q the units of q in the order of p's.

    x: Overlaps. edges: (P, P) bool, symmetric; other blocks hold the identity. Block q, p is the
    inverse of block p, q.
    """
    *_, P, K = x.v.shape
    Q = np.swapaxes(x.Q, -3, -2)  # (..., P, P, K, K)
    if signs:
        likeness, stay = np.abs(Q), np.diagonal(Q, axis1=-2, axis2=-1)
    else:
        opposite = x.v[..., :, None, :, None] * x.v[..., None, :, None, :] < 0
        likeness = np.where(opposite, -np.abs(Q), Q)
        stay = np.diagonal(likeness, axis1=-2, axis2=-1)
    size = np.einsum("...pkpk->...pk", x.Q)
    blocks = np.zeros_like(Q) + np.eye(K)
    # where no unit of p likes another of q's better than its own there is nothing to assign
    better = np.any(likeness.max(-1) > stay, axis=-1) & np.triu(edges, 1)
    for *run, p, q in map(tuple, np.argwhere(better)):
        run = tuple(run)
        here = (*run, p, q)
        order = scipy.optimize.linear_sum_assignment(likeness[here], maximize=True)[1]
        for cycle in _cycles(order):
            to = order[cycle]
            gain = likeness[here][cycle, to].sum() - stay[here][cycle].sum()
            scale = np.sqrt(size[(*run, p)][cycle].sum() * size[(*run, q)][cycle].sum())
            if gain > tie * scale:
                blocks[here][cycle, cycle] = 0
                flipped = signs & (Q[here][cycle, to] < 0)
                blocks[here][cycle, to] = np.where(flipped, -1, 1)
        blocks[(*run, q, p)] = blocks[here].T
    return np.swapaxes(blocks, -3, -2)


def _cycles(order):
    """The cycles of a permutation, each a list of its places."""
    left = set(range(len(order)))
    while left:
        cycle = [min(left)]
        while (following := int(order[cycle[-1]])) != cycle[0]:
            cycle.append(following)
        left -= set(cycle)
        yield cycle
