"""The phases of a run: when it lingers, specialises and refines.

Chapter `plateau`.
"""

from dataclasses import dataclass

import numpy as np

from ..runs.trajectory import check_trajectory
from ..states import check_overlaps


def assignment(problem, x):
    """The teacher unit of every student: (..., P, K) ints, -1 for none.

    A student is assigned to the teacher unit with which its |cosine| is largest, if that is at
    least 0.9, stands out from the others by a third of what it would for a perfect student, and
    |R_km| >= T_mm / 10 (spare students point anywhere). Two students may have one unit.

    x : Overlaps. The assignment of phases(). Chapter `plateau`.
    """
    check_overlaps(problem, x)
    return _assigned(problem.T, np.einsum("...pkpk->...pk", x.Q), x.R)


# the phases of a run


LINGERS = 1.5  # on a plateau the risk stays within this factor
TURNED = 0.9  # cosine from which on a student belongs to a teacher unit


@dataclass(frozen=True, eq=False)
class Phases:
    """When a run lingers, specialises and refines; by the definitions of phases().

    Attributes
    ----------
    plateau_begins, plateau_ends, refinement_begins : (runs, P) alpha, nan for what never comes.
    assignment : (runs, P, K) ints, the teacher unit of each student at the end, -1 for none.
    """

    plateau_begins: np.ndarray
    plateau_ends: np.ndarray
    refinement_begins: np.ndarray
    assignment: np.ndarray


def phases(trajectory):
    """When the plateau begins and ends, who turns to which teacher unit, when refinement starts.

    Students are assigned to teacher units as by assignment(). A worker is specialised while
    min(K, M) different units have a student. `refinement_begins` is the first recorded time from
    which on it stays so with the assignment of the end. The plateau is the longest stretch before
    that in which the risk stays within a factor 1.5, provided that it lasts twice as long as the
    fall by the next such factor, and as the fall by the last one before; `plateau_ends` is nan if
    the record ends on it. Between plateau_ends and refinement_begins the students specialise.

    trajectory : Trajectory of any engine, with Q, R and risk kept; times are as fine as its record.
    Returns Phases. Raises ValueError for a trajectory without them, and for one that was looked at
    no other time than its start and its end. Chapter `plateau`.
    """
    check_trajectory(trajectory)
    for name in ("Q", "R", "risk"):
        trajectory.mean(name)  # refuses, in words, what was not kept
    if len(np.unique(trajectory.alpha)) < 3:
        raise ValueError(
            f"phases are read off recorded times, of which this run has none between its start and "
            f"its end, alpha={trajectory.alpha[-1]:.6g}: record some, run(..., record=...)"
        )
    T = trajectory.problem.T
    alpha, Q, R = trajectory.alpha, trajectory.Q, trajectory.R
    assignment = _assigned(T, np.einsum("rtpkpk->rtpk", Q), R)
    final = assignment[:, -1]
    K, M = R.shape[-2:]
    taken = (final[..., None] == np.arange(M)).any(-2).sum(-1)  # (runs, P)
    settled = (assignment == final[:, None]).all(-1)  # (runs, times, P)
    settled = np.logical_and.accumulate(settled[:, ::-1], axis=1)[:, ::-1]
    settled &= (taken == min(K, M))[:, None]
    times = len(alpha)
    first = np.where(settled.any(1), settled.argmax(1), times)  # (runs, P)
    begins, ends = np.full(first.shape, np.nan), np.full(first.shape, np.nan)
    for place in np.ndindex(first.shape):
        run, worker = place
        log_risk = np.log(np.maximum(trajectory.risk[run, :, worker], np.finfo(float).tiny))
        stretch = _lingering(alpha, log_risk, first[place])
        if stretch is not None:
            i, j = stretch
            begins[place] = alpha[i]
            ends[place] = alpha[j] if j < times - 1 else np.nan
    refines = np.where(first < times, np.append(alpha, np.nan)[first], np.nan)
    return Phases(begins, ends, refines, final)


def _assigned(T, variance, R):
    """The teacher unit of every student, (..., K), -1 for none."""
    norms = np.sqrt(np.diagonal(T))
    size = np.sqrt(variance)[..., None] * norms
    cosine = np.abs(np.divide(R, size, out=np.zeros_like(R), where=size > 0))
    best = cosine.argmax(-1)
    most = np.take_along_axis(cosine, best[..., None], -1)
    size = np.outer(norms, norms)
    distance = 1 - np.abs(np.divide(T, size, out=np.zeros_like(T), where=size > 0))
    np.fill_diagonal(distance, 0)  # which rounding may put above 0
    stands_out = (most - cosine >= distance[best] / 3).all(-1)
    heavy = np.abs(R) >= 0.1 * np.diagonal(T)
    heavy = np.take_along_axis(heavy, best[..., None], -1)[..., 0]
    return np.where((most[..., 0] >= TURNED) & stands_out & heavy, best, -1)


def _lingering(alpha, log_risk, end):
    """The plateau among the first `end` times as (i, j), or None."""
    width = np.log(LINGERS)
    best, length = None, 0.0
    j = 0
    for i in range(end):
        while j < end and np.ptp(log_risk[i : j + 1]) <= width:
            j += 1
        if alpha[j - 1] - alpha[i] > length:
            best, length = (i, j - 1), alpha[j - 1] - alpha[i]
    if best is None:
        return None
    i, j = best
    higher = np.flatnonzero(log_risk[:i] >= log_risk[i] + width)
    lower = np.flatnonzero(log_risk[j:] <= log_risk[j] - width)
    before = alpha[i] - alpha[higher[-1]] if higher.size else 0.0
    after = alpha[j + lower[0]] - alpha[j] if lower.size else 0.0
    return best if length >= 2 * max(before, after) else None
