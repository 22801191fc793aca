"""The phases of a run: when it lingers, specialises and refines.

Chapter :doc:`plateau`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ..problem import Problem
from ..runs.trajectory import Trajectory, check_trajectory
from ..states import Overlaps, check_overlaps


def assignment(problem: Problem, x: Overlaps) -> Annotated[np.ndarray, "... P K"]:
    """Find the teacher unit to which every student belongs.

    A student belongs to the teacher unit with which its ``|cosine|`` is largest, on three
    conditions: that cosine is at least 0.9, it stands out from the others by a third of what it
    would for a perfect student, and ``|R_km| >= T_mm / 10`` (because spare students point
    anywhere). Two students may have one unit.

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    x : Overlaps
        State; leading axes pass through.

    Returns
    -------
    (..., P, K) array of int
        The teacher unit of every student, -1 for none.

    See Also
    --------
    phases : Uses this assignment.

    References
    ----------
    Chapter :doc:`plateau`.
    """
    check_overlaps(problem, x)
    return _assigned(problem.T, np.einsum("...pkpk->...pk", x.Q), x.R)


# the phases of a run


LINGERS = 1.5  # on a plateau the risk stays within this factor
TURNED = 0.9  # cosine from which on a student belongs to a teacher unit


@dataclass(frozen=True, eq=False)
class Phases:
    """When a run lingers, specialises and refines, as returned by phases().

    Attributes
    ----------
    plateau_begins, plateau_ends, refinement_begins : (runs, P) array
        Times alpha; nan for what never comes.
    assignment : (runs, P, K) array of int
        The teacher unit of each student at the end, -1 for none.
    """

    plateau_begins: np.ndarray
    plateau_ends: np.ndarray
    refinement_begins: np.ndarray
    assignment: np.ndarray


def phases(trajectory: Trajectory) -> Phases:
    """Find when the plateau begins and ends, and when refinement starts.

    Parameters
    ----------
    trajectory : Trajectory
        Of any engine, with Q, R and risk kept. The resulting times are as fine as its record.

    Returns
    -------
    Phases
        The times of each worker, and its last assignment.

    Raises
    ------
    ValueError
        If the trajectory does not hold Q, R and risk, or if it holds no time between its start and
        its end.

    See Also
    --------
    assignment : Which student belongs to which teacher unit.

    Notes
    -----
    A worker is specialised while min(K, M) different units have a student, by assignment().
    ``refinement_begins`` is the first recorded time from which on it stays so with the assignment
    of the end. The plateau is the longest stretch before that in which the risk stays within a
    factor 1.5, provided that it lasts twice as long as the fall by the next such factor, and as the
    fall by the last one before. ``plateau_ends`` is nan if the record ends on the plateau. Between
    ``plateau_ends`` and ``refinement_begins`` the students specialise.

    References
    ----------
    Chapter :doc:`plateau`.

    Examples
    --------
    >>> problem = gd.Problem(gd.erf, v_star=np.ones(2), T=np.eye(2), eta=0.5)
    >>> R = np.array([[0.01, 0.0], [0.0, 0.01]])
    >>> x0 = gd.Overlaps.single(Q=0.25 * np.eye(2), R=R, v=np.ones(2))
    >>> t = gd.run(gd.flow(), problem, x0, 400.0, record=np.arange(0, 400, 2.0))
    >>> found = gd.phases(t)
    >>> print(found.assignment[0, 0])
    [0 1]
    >>> bool(found.plateau_ends[0, 0] < found.refinement_begins[0, 0])
    True
    """
    check_trajectory(trajectory)
    Q, R, risk = (trajectory._kept(name) for name in ("Q", "R", "risk"))
    if len(np.unique(trajectory.alpha)) < 3:
        raise ValueError(
            f"phases are read off recorded times, of which this run has none between its start and "
            f"its end, alpha={trajectory.alpha[-1]:.6g}: record some, run(..., record=...)"
        )
    T = trajectory.problem.T
    alpha = trajectory.alpha
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
        log_risk = np.log(np.maximum(risk[run, :, worker], np.finfo(float).tiny))
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
