"""The plateau: how long students stay alike.

Chapter :doc:`plateau`. What names no paper here is derived in the book.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike

from ..checks import EXACT, number, reals
from ..coordinates import Coordinates, slope
from ..problem import Problem, check_learns
from ..states import Overlaps, check_fit, check_overlaps
from .symmetry import asymmetry, symmetric


@dataclass(frozen=True, eq=False)
class Escape:
    """How asymmetry grows along a symmetric trajectory, as returned by escape().

    Attributes
    ----------
    alpha : (times,) array
        Recorded times.
    rate : (times,) array
        The local rate lambda = d ln(asymmetry) / dalpha.
    growth : (times,) array
        The integral Lambda of the rate from alpha = 0 on.
    x : Overlaps
        The symmetric trajectory (times, 1, ...).
    """

    alpha: np.ndarray
    rate: np.ndarray
    growth: np.ndarray
    x: Overlaps


def escape(problem: Problem, x0: Overlaps, record: ArrayLike) -> Escape:
    """Compute the local escape rate along the symmetric trajectory from symmetric(x0).

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    x0 : Overlaps
        State of one worker.
    record : (times,) array
        Times in alpha, ascending, from 0 up.

    Returns
    -------
    Escape
        The rate and its integral at the recorded times.

    Raises
    ------
    ValueError
        If x0 has several workers, if K or M is below 2, or if the units of the teacher differ.

    See Also
    --------
    plateau_length : The time that the escape takes.

    Notes
    -----
    Changes of R whose rows and columns sum to zero stand alone in their symmetry class. So all of
    them grow at one rate lambda(alpha), whatever else has relaxed. From unit norms lambda climbs
    for long before it reaches the rate of the fixed point.

    References
    ----------
    Chapter :doc:`plateau`, equation :eq:`eq-local-rate`; derived in the book.

    Examples
    --------
    Students that look at no teacher unit are at first pulled to all units alike:

    >>> problem = gd.Problem(gd.erf, v_star=np.ones(2), T=np.eye(2), eta=0.5)
    >>> x0 = gd.Overlaps.single(Q=0.25 * np.eye(2), R=np.zeros((2, 2)), v=np.ones(2))
    >>> growing = gd.escape(problem, x0, record=[0.0, 50.0])
    >>> print(growing.growth.round(1))
    [0.  1.1]
    """
    record = reals(record, "record")
    if record.ndim != 1 or not record.size or record[0] < 0 or not np.all(np.diff(record) > 0):
        raise ValueError(f"record is a list of times in alpha that ascend from 0 up, got {record}")
    path, both = _symmetric_flow(problem, x0, max(record[-1], 1.0), t_eval=record)
    states = path.y[:-1].T
    rates = np.array([both(y)[1] for y in states])
    x = Overlaps(*Coordinates(problem, symmetric(x0)).unpack(states))
    return Escape(alpha=record, rate=rates, growth=path.y[-1], x=x)


def plateau_length(problem: Problem, x0: Overlaps, threshold: float = 0.1) -> float:
    """Compute the alpha at which the asymmetry of x0 reaches a threshold.

    The asymmetry grows as along escape().

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    x0 : Overlaps
        State of one worker, with an asymmetry.
    threshold : float, optional
        The asymmetry to be reached. It is small against that of perfect learning, which is
        sqrt(K - 1) for T = I, because the growth is that of small asymmetries.

    Returns
    -------
    float
        The time alpha. From a start on the plateau it is ln(threshold / asymmetry) divided by the
        rate of the fixed point.

    Raises
    ------
    ValueError
        If x0 has no asymmetry (the flow then never leaves), if it does not escape, or if escape()
        refuses it.

    References
    ----------
    Chapter :doc:`plateau`, equation :eq:`eq-plateau-length`; derived in the book.
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

    def both(y):
        own = coordinates.rate(y)
        # without keep rounding would grow like any asymmetry, and end the plateau
        return own @ keep, turn @ slope(coordinates.rate, y, 5e-4 * turn[None])[0]

    def rate(_, z):
        own, local = both(z[:-1])
        return np.append(own, local)

    def arrived(_, z):
        return z[-1] - reach

    arrived.terminal = True
    start = np.append(coordinates.pack(x0), 0.0)
    path = scipy.integrate.solve_ivp(
        rate, (0, until), start, "LSODA", events=arrived, rtol=1e-9, atol=1e-12, **options
    )
    return path, both
