"""What every round of a Trajectory cost.

Chapter :doc:`setback`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ..checks import number
from ..runs.trajectory import Trajectory, check_trajectory
from ..states import Overlaps
from .diagnosis import _alignment_lost, _changed, _floor


@dataclass(frozen=True, eq=False)
class Setbacks:
    """What every round of a Trajectory cost, as returned by setbacks().

    Attributes
    ----------
    alpha : (rounds,) array
        The times of the rounds.
    risk_before, risk_after : (runs, rounds, P) array
        Generalisation errors just before and just after the round.
    recovery : (runs, rounds, P) array
        Time from the round until the risk of the worker is first back where it was before: 0 if the
        round did not raise it, inf if the trajectory ends earlier.
    harmful : (runs, rounds) array of bool, or None
        Whether the round did harm, as diagnose() says with a problem: the workers that it changed
        lost alignment. None if Q, R and v were not kept.
    """

    alpha: np.ndarray
    risk_before: np.ndarray
    risk_after: np.ndarray
    recovery: np.ndarray
    harmful: np.ndarray | None

    @property
    def jump(self) -> Annotated[np.ndarray, "runs rounds P"]:
        """What the round added to the risk, (runs, rounds, P), negative where the round helped."""
        return self.risk_after - self.risk_before


def setbacks(t: Trajectory, slack: float = 0.0, N: int | None = None) -> Setbacks:
    """Measure the risk jump, the recovery time and the harm of every round of a Trajectory.

    Parameters
    ----------
    t : Trajectory
        Holds its risk and the ends of its rounds.
    slack : float, optional
        A worker has recovered when its risk is at most (1 + slack) times the risk before the round;
        0 asks for all of it. If label noise keeps the risk fluctuating, a slack of the size of
        these fluctuations keeps a harmless round from counting as a long setback.
    N : int, optional
        Input dimension, as in diagnose(), for ``harmful``: a loss of alignment below 2 / sqrt(N)
        then does not count. (The mean of two units that are exchanged loses 0.29, so at N = 50 this
        hides all harm.)

    Returns
    -------
    Setbacks
        The cost of each round, for each run and worker.

    Raises
    ------
    ValueError
        If the trajectory holds no rounds or no risks.

    See Also
    --------
    diagnose : All that one round does.

    Notes
    -----
    Times are recorded times, so record densely: a recovery is late by up to one spacing. It may
    fall behind later rounds. Some runs need not have recovered when the trajectory ends, so compare
    medians over runs, and no means.

    References
    ----------
    Chapter :doc:`setback`.

    Examples
    --------
    Two perfect workers in opposite orders are averaged. Their units are then equal, and stay so:

    >>> problem = gd.Problem(gd.erf, v_star=np.ones(2), T=np.eye(2), eta=0.5)
    >>> x0 = gd.perfect(problem, orders=[(0, 1), (1, 0)])
    >>> t = gd.run(gd.flow(), problem, x0, [(1.0, gd.complete(2)), (5.0, None)])
    >>> cost = gd.setbacks(t)
    >>> print(cost.alpha, cost.harmful[0], cost.recovery[0, 0])
    [1.] [ True] [inf inf]
    """
    slack = number(slack, "slack, a part of the risk before the round,", 0)
    check_trajectory(t)
    if t.risk is None:
        raise ValueError('setbacks needs the risk: keep "risk" in run(..., keep=...)')
    rounds = np.flatnonzero(t.after_mixing)
    if rounds.size == 0:
        raise ValueError(
            "the trajectory holds no round: mix with a matrix or a callable, and record the ends "
            "of rounds (ends=True)"
        )
    before, after = t.risk[:, rounds - 1], t.risk[:, rounds]
    recovery = np.full(before.shape, np.inf)
    for i, start in enumerate(rounds):
        back = t.risk[:, start:] <= (1 + slack) * before[:, i, None]
        first = np.where(back.any(1), back.argmax(1), -1)
        times = np.append(t.alpha[start:] - t.alpha[start], np.inf)
        recovery[:, i] = times[first]
    harmful = None
    if t.Q is not None and t.R is not None and t.v is not None:
        x, mixed = (Overlaps(t.Q[:, i], t.R[:, i], t.v[:, i]) for i in (rounds - 1, rounds))
        harmful = _alignment_lost(t.problem, x, mixed, _changed(x, mixed), _floor(N))[-1]
    return Setbacks(t.alpha[rounds], before, after, recovery, harmful)
