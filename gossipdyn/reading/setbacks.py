"""What every round of a Trajectory cost.

Chapter `setback`.
"""

from dataclasses import dataclass

import numpy as np

from ..checks import number
from ..runs.trajectory import check_trajectory
from ..states import Overlaps
from .diagnosis import _alignment_lost, _changed, _floor


@dataclass(frozen=True, eq=False)
class Setbacks:
    """What every round of a Trajectory cost.

    Attributes
    ----------
    alpha : (rounds,) when.
    risk_before, risk_after : (runs, rounds, P) generalisation errors around the round.
    recovery : (runs, rounds, P) time from the round until the worker's risk is first back where it
        was before: 0 where the round did not raise it, inf where the trajectory ends earlier.
    harmful : (runs, rounds) bool, whether the round did harm, as diagnose() says with the problem
        given: the workers that it changed lost alignment. None where Q, R, v were not kept.
    """

    alpha: np.ndarray
    risk_before: np.ndarray
    risk_after: np.ndarray
    recovery: np.ndarray
    harmful: np.ndarray | None

    @property
    def jump(self):
        """(runs, rounds, P) what the round added to the risk; negative where it helped."""
        return self.risk_after - self.risk_before


def setbacks(t, slack=0.0, N=None):
    """Risk jump, recovery time and harm of every round that a Trajectory holds.

    t : Trajectory with the ends of its rounds and its risk. slack : a worker has recovered when
    its risk is at most (1 + slack) times the risk before the round; 0 asks for all of it. Where
    label noise keeps the risk fluctuating, a slack of the size of these fluctuations keeps a
    harmless round from counting as a long setback. N : as in diagnose(), for `harmful`: a loss of
    alignment below 2 / sqrt(N) then does not count. (The mean of two units that are exchanged loses
    0.29: at N = 50 that hides all harm.)

    Times are recorded times, so record densely: a recovery is late by up to one spacing. It may
    fall behind later rounds. Some runs need not have recovered when the trajectory ends: compare
    medians over runs, not means. Returns Setbacks. Raises ValueError for a trajectory without
    rounds or without risks. Chapter `setback`.
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
    if all(array is not None for array in (t.Q, t.R, t.v)):
        x, mixed = (Overlaps(t.Q[:, i], t.R[:, i], t.v[:, i]) for i in (rounds - 1, rounds))
        harmful = _alignment_lost(t.problem, x, mixed, _changed(x, mixed), _floor(N))[-1]
    return Setbacks(t.alpha[rounds], before, after, recovery, harmful)
