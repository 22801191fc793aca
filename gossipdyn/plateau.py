"""The plateau: how long students stay alike, and when a run leaves, specialises and refines.

Chapter `plateau`. What names no paper here is derived in the book.
"""

from dataclasses import dataclass

import numpy as np
from scipy.integrate import solve_ivp

from .ode import Coordinates
from .order_parameters import Overlaps, check_fit, check_overlaps, check_state
from .problem import check_learns
from .refusals import EXACT, number, orders, reals
from .trajectory import check_trajectory


def symmetric(x):
    """The mean of x over all permutations of the students, and of the teacher's units.

    A linear projection: every student becomes like every other one, and none prefers a teacher
    unit. The family is kept by the flow when the teacher's units are alike. x : Overlaps, leading
    axes pass through; all workers' students are permuted alike. Chapter `plateau`.
    """
    check_state(x)
    K = x.v.shape[-1]
    same = np.einsum("...pkqk->...pq", x.Q) / K
    other = (x.Q.sum((-3, -1)) - K * same) / max(K * (K - 1), 1)
    on = np.eye(K)[:, None, :]
    Q = same[..., :, None, :, None] * on + other[..., :, None, :, None] * (1 - on)
    R = np.broadcast_to(x.R.mean((-2, -1), keepdims=True), x.R.shape)
    v = np.broadcast_to(x.v.mean(-1, keepdims=True), x.v.shape)
    return Overlaps(Q=Q, R=R, v=v)


def asymmetry(x):
    """How far the students have turned to different teacher units: (..., P).

    The norm of R_km less its means over students and over teacher units; for K = M = 2 it is
    |u| / 2 with u = R_11 + R_22 - R_12 - R_21. x : Overlaps. Chapter `plateau`, equation
    :eq:`eq-asymmetry`.
    """
    check_state(x)
    R = x.R - x.R.mean(-1, keepdims=True)
    return np.linalg.norm(R - R.mean(-2, keepdims=True), axis=(-2, -1))


def specialisation(x, order=None):
    """How far the students have turned to the teacher units of one order, with its sign: (..., P).

    u = sum_k R_k,order(k) - 1 / (K-1) sum of the other R_km. It is 0 for students that are alike,
    K for perfect students (T = I) in this order, negative for others; for K = M = 2 it is
    R_11 + R_22 - R_12 - R_21, and asymmetry() is |u| / 2. For any K
    |u| <= K / sqrt(K-1) asymmetry().

    x : Overlaps. order : the teacher unit of each student, (K,), or (..., P, K) for each worker as
    from assignment(); None for student k on teacher unit k. Raises ValueError for K other than M
    or below 2, and for an order that is no permutation. Chapter `setback`, equation :eq:`eq-u`.
    """
    check_state(x)
    *lead, K, M = x.R.shape
    if K != M or K < 2:
        raise ValueError(
            f"an order of the units needs as many students as teacher units, two or more, got K={K}"
            f" and M={M}: asymmetry() is for any number"
        )
    order = np.arange(K) if order is None else orders(order, K)
    try:
        order = np.broadcast_to(order, (*lead, K))
    except ValueError as error:
        raise ValueError(
            f"an order for each worker has shape {(*lead, K)}, got {order.shape}"
        ) from error
    own = np.take_along_axis(x.R, order[..., None], -1).sum((-2, -1))
    return own - (x.R.sum((-2, -1)) - own) / (K - 1)


def assignment(problem, x):
    """The teacher unit of every student: (..., P, K) ints, -1 for none.

    A student is assigned to the teacher unit with which its |cosine| is largest, if that is at
    least 0.9, stands out from the others by a third of what it would for a perfect student, and
    |R_km| >= T_mm / 10 (spare students point anywhere). Two students may have one unit.

    x : Overlaps. The assignment of phases(). Chapter `plateau`.
    """
    check_overlaps(problem, x)
    return _assigned(problem.T, np.einsum("...pkpk->...pk", x.Q), x.R)


@dataclass(frozen=True, eq=False)
class Escape:
    """How asymmetry grows along a symmetric trajectory.

    Attributes
    ----------
    alpha : (times,).
    rate : (times,) the local rate lambda, d ln(asymmetry) / dalpha.
    growth : (times,) its integral from alpha = 0, Lambda.
    x : Overlaps (times, 1, ...), the symmetric trajectory.
    """

    alpha: np.ndarray
    rate: np.ndarray
    growth: np.ndarray
    x: Overlaps


def escape(problem, x0, record):
    """The local escape rate along the symmetric trajectory that starts at symmetric(x0).

    Changes of R whose rows and columns sum to zero stand alone in their symmetry class, so all of
    them grow at one rate lambda(alpha), whatever else has relaxed. From unit norms lambda climbs
    for long before it reaches the rate of the fixed point.

    x0 : Overlaps of one worker. record : times in alpha, ascending from 0 up. Returns Escape.
    Raises ValueError for several workers, K or M below 2, and a teacher whose units differ.
    Chapter `plateau`, equation :eq:`eq-local-rate`; derived in the book.
    """
    record = reals(record, "record")
    if record.ndim != 1 or not record.size or record[0] < 0 or not np.all(np.diff(record) > 0):
        raise ValueError(f"record is a list of times in alpha that ascend from 0 up, got {record}")
    path, both = _symmetric_flow(problem, x0, max(record[-1], 1.0), t_eval=record)
    states = path.y[:-1].T
    rates = np.array([both(y)[1] for y in states])
    x = Overlaps(*Coordinates(problem, symmetric(x0)).unpack(states))
    return Escape(alpha=record, rate=rates, growth=path.y[-1], x=x)


def plateau_length(problem, x0, threshold=0.1):
    """The alpha at which the asymmetry of x0, growing as along escape(), reaches `threshold`.

    Linear in the asymmetry, so a threshold that is small against the asymmetry of perfect
    learning, sqrt(K - 1) for T = I. From a start on the plateau this is ln(threshold / asymmetry)
    divided by the fixed point's rate.

    Raises ValueError for an x0 without asymmetry (the flow never leaves), one that does not escape,
    and what escape() refuses. Chapter `plateau`, equation :eq:`eq-plateau-length`.
    """
    check_overlaps(problem, x0)
    threshold = number(threshold, "threshold", 0)
    start = float(asymmetry(x0).max())
    if start == 0:
        raise ValueError("x0 has no asymmetry: from there the flow stays symmetric for ever")
    if start >= threshold:
        return 0.0
    path, _ = grown(problem, x0, np.log(threshold / start))
    return float(path.t[-1])


def grown(problem, x0, growth):
    """The symmetric trajectory until asymmetry has grown by exp(growth), as _symmetric_flow()."""
    check_fit(problem, x0)
    check_learns(problem, "a plateau that ends")
    horizon = 1e5 / problem.eta
    path, both = _symmetric_flow(problem, x0, horizon, reach=growth, dense_output=True)
    if path.status != 1:
        raise ValueError(
            f"asymmetry does not grow by exp({growth:.3g}) before alpha={horizon:.3g}: it grew by "
            f"exp({path.y[-1, -1]:.3g})"
        )
    return path, both


def _symmetric_flow(problem, x0, until, reach=np.inf, **options):
    """The symmetric trajectory with the integral of lambda as its last coordinate."""
    check_overlaps(problem, x0)
    M, (P, K) = problem.M, x0.v.shape[-2:]
    if x0.v.ndim != 2 or P != 1 or K < 2 or M < 2:
        raise ValueError(
            f"the escape from symmetry needs one worker with two or more students and two or more "
            f"teacher units, got v of shape {x0.v.shape} and M={M}"
        )
    off = problem.T[~np.eye(M, dtype=bool)]
    alike = problem.v_star, np.diagonal(problem.T), off
    if any(np.ptp(a) > EXACT * np.abs(a).max() for a in alike):
        raise ValueError(
            "the teacher's units differ (in v_star or T), so students are not symmetric before "
            "them: follow modes() along the flow instead"
        )
    x0 = symmetric(x0)
    coordinates = Coordinates(problem, x0)
    unit = np.eye(coordinates.size)
    keep = coordinates.pack(symmetric(Overlaps(*coordinates.unpack(unit, v0=0.0))))
    turn = np.zeros((1, K, M))
    turn[0, :2, :2] = [[0.5, -0.5], [-0.5, 0.5]]  # of norm 1
    turn = coordinates.pack(Overlaps(Q=np.zeros_like(x0.Q), R=turn, v=np.zeros_like(x0.v)))
    step = 5e-4

    def both(y):
        states = y + step * np.array([0, 2, 1, -1, -2])[:, None] * turn
        own, far, near, back, far_back = coordinates.rate(states)
        # without keep rounding would grow like any asymmetry, and end the plateau
        return own @ keep, turn @ (8 * (near - back) - (far - far_back)) / (12 * step)

    def rate(_, z):
        own, local = both(z[:-1])
        return np.append(own, local)

    def arrived(_, z):
        return z[-1] - reach

    arrived.terminal = True
    start = np.append(coordinates.pack(x0), 0.0)
    path = solve_ivp(
        rate, (0, until), start, "LSODA", events=arrived, rtol=1e-9, atol=1e-12, **options
    )
    return path, both


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
