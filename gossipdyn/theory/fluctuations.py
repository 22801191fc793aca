"""Fluctuations at finite N: the linear-noise theory between the flow and the chain.

At large N the overlaps y of SGD are y_flow + xi / sqrt(N), with a Gaussian xi whose covariance S
obeys, along the flow,

    dS/dalpha = J S + S J^T + D,

J the Jacobian of the flow and D the covariance of one step's change of the overlaps; a round of
gossip maps S linearly. It holds until xi / sqrt(N) is no longer small: up to the exit from the
plateau, whose time is random at any N. Chapter :doc:`finite_size`, equation :eq:`eq-linear-noise`;
derived in the book (the expansion is van Kampen's, 1961).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy.special import erfc

from ..checks import flag, number, one_of, reals
from ..coordinates import Coordinates
from ..engines.flow import flow
from ..equations import mean_worker, unchecked_risk
from ..gossip.mix import mixed
from ..problem import Problem
from ..runs.clock import Schedule
from ..runs.run import run
from ..runs.trajectory import KEPT
from ..states import Overlaps
from .diffusion import check_one_state, check_random_rows, diffusion_of


@dataclass(frozen=True, eq=False)
class Fluctuations:
    """The covariance of the overlaps at order 1/N, as returned by fluctuations().

    Attributes
    ----------
    problem : Problem
        The teacher and the learning rule.
    alpha, after_mixing : (times,) array
        Recorded times, and whether the state is the one after a round, as in a Trajectory.
    x : Overlaps
        The flow (times, P, ...).
    covariance : (times, n, n) array
        N times the covariance of the independent entries: the upper triangle of Q over all rows
        (p, k), then R, then v if it is trained.
    """

    problem: Problem
    alpha: np.ndarray
    after_mixing: np.ndarray
    x: Overlaps
    covariance: np.ndarray

    def std(
        self, f: str | Callable[[Overlaps], np.ndarray], N: float
    ) -> Annotated[np.ndarray, "times ..."]:
        """Compute the standard deviation of f at dimension N, entry by entry, to first order.

        Parameters
        ----------
        f : str or callable
            One of "Q", "R", "v", "risk", "mean_risk", or a function of Overlaps with leading axes
            that returns an array (times, ...), such as ``lambda x: x.R[:, 0, 0, 0] - x.R[:, 0, 0,
            1]``. Its slope carries the covariance over.
        N : float
            Input dimension, above 0.

        Returns
        -------
        (times, ...) array
            The standard deviation at each recorded time.
        """
        return np.sqrt(self._variance(f) / number(N, "N, the input dimension,", above=0))

    def passed(
        self, f: str | Callable[[Overlaps], np.ndarray], threshold: float, N: float
    ) -> Annotated[np.ndarray, "times ..."]:
        """Compute the probability that ``|f|`` has passed a threshold, at each recorded time.

        This is the law of exit times, for an f that the flow keeps at 0 and that grows, such as u =
        R_11 + R_22 - R_12 - R_21 on a symmetric trajectory. Then f is N(0, std^2), and once it is
        out it stays out.

        Parameters
        ----------
        f : str or callable
            As in std().
        threshold : float
            The size to be passed, small against the f of perfect learning.
        N : float
            Input dimension, above 0.

        Returns
        -------
        (times, ...) array
            The probability.

        Raises
        ------
        ValueError
            If the flow moves f away from 0.

        References
        ----------
        Chapter :doc:`finite_size`, equation :eq:`eq-exit-law`.
        """
        threshold = number(threshold, "threshold", 0)
        values = np.abs(_function(self.problem, f)(self.x))
        if not values.max() < 1e-6:
            raise ValueError(
                f"the flow takes f to {values.max():.3g}: the law of exits is for an f that stays "
                "0 on the flow, from a symmetric start"
            )
        std = self.std(f, N)
        ratio = np.divide(threshold, std, out=np.full_like(std, np.inf), where=std > 0)
        return erfc(ratio / np.sqrt(2))

    def _variance(self, f):
        f = _function(self.problem, f)
        coordinates = Coordinates(self.problem, self.x[0])
        y = coordinates.pack(self.x)
        step = 1e-4 * np.eye(coordinates.size)
        variances = []
        for i, covariance in enumerate(self.covariance):
            moved = coordinates.unpack(y[i] + np.concatenate([step, -step]), v0=self.x.v[i])
            forward, back = np.split(f(Overlaps(*moved)), 2)
            slope = (forward - back) / 2e-4
            variances.append(np.einsum("i...,ij,j...->...", slope, covariance, slope))
        return np.maximum(variances, 0)  # an entry that cannot move has 0 up to rounding


def _function(problem, f):
    """f as a function that makes an array (times, ...) of numbers of Overlaps (times, ...)."""
    if callable(f):
        return lambda x: _per_time(f(x), len(x.v))
    named = {
        "Q": lambda x: x.Q,
        "R": lambda x: x.R,
        "v": lambda x: x.v,
        "risk": lambda x: unchecked_risk(problem, x),
        "mean_risk": lambda x: unchecked_risk(problem, mean_worker(x))[..., 0],
    }
    return named[one_of(f, KEPT, "f, unless it is a function of Overlaps,")]


def _per_time(values, times):
    values = reals(values, "what f makes")
    if values.shape[:1] != (times,):
        raise ValueError(f"f makes an array of {times} states, one row each, got {values.shape}")
    return values


def fluctuations(
    problem: Problem,
    x0: Overlaps,
    rounds: Schedule,
    record: ArrayLike | None = None,
    random_rows: bool = False,
    rtol: float = 1e-8,
) -> Fluctuations:
    """Compute the covariance of the overlaps at order 1/N along the flow from x0.

    Parameters
    ----------
    problem, x0, rounds, record
        As for run(); x0 has no leading axis of runs.
    random_rows : bool, optional
        False if every run starts exactly at x0. True if runs start from weights whose components
        are independent Gaussians with mean overlaps x0 (so x0.R is 0), as random_start() makes
        them: their overlaps scatter from the start.
    rtol : float, optional
        Relative tolerance of the flow. The covariance is integrated to about 1e-4, with a diffusion
        matrix as good as its quadrature.

    Returns
    -------
    Fluctuations
        The covariance at the recorded times. The mean of the overlaps differs from the flow by
        O(1/N), which is beyond this theory.

    Raises
    ------
    ValueError
        If x0 has a leading axis of runs, if random_rows is asked for and x0.R is not 0, or if run()
        refuses an argument.

    References
    ----------
    Chapter :doc:`finite_size`, equation :eq:`eq-linear-noise`; derived in the book.
    """
    check_one_state(problem, x0)
    random_rows = flag(random_rows, "random_rows")
    path = run(flow(rtol=rtol), problem, x0, rounds, record=record)
    mixings = [A for _, A in path.asked["rounds"] if A is not None]
    states = [path.state(i)[0] for i in range(len(path.alpha))]
    coordinates = Coordinates(problem, x0)
    n = coordinates.size
    covariances = [_scatter_of_rows(problem, x0) if random_rows else np.zeros((n, n))]
    done = 0
    while len(covariances) < len(states):
        first = len(covariances)
        x, covariance = states[first - 1], covariances[-1]
        if path.after_mixing[first]:
            coordinates = Coordinates(problem, x)
            A = mixings[done]
            slope = coordinates.jump(lambda s, A=A: mixed(A, s), coordinates.pack(x))[1]
            covariances.append(slope @ covariance @ slope.T)
            done += 1
            continue
        last = first
        while last < len(states) and not path.after_mixing[last]:
            last += 1
        times = path.alpha[first - 1 : last]
        covariances += _spread(problem, x, covariance, times, rtol)
    return Fluctuations(
        problem=problem,
        alpha=path.alpha,
        after_mixing=path.after_mixing,
        x=Overlaps(*(path._kept(name)[0] for name in ("Q", "R", "v"))),
        covariance=np.array(covariances),
    )


def _spread(problem, x, covariance, times, rtol):
    """The covariances at times[1:], from the one at times[0]."""
    coordinates = Coordinates(problem, x)
    n = coordinates.size
    span = times[0], times[-1]
    path = scipy.integrate.solve_ivp(
        lambda alpha, y: coordinates.rate(y, alpha), span, coordinates.pack(x), "DOP853",
        dense_output=True, rtol=rtol, atol=rtol / 1000,
    )  # fmt: skip
    # D changes as the flow does: four points in each of its steps, and a spline through them
    parts = path.t[:-1, None] + np.diff(path.t)[:, None] * [0, 0.25, 0.5, 0.75]
    grid = np.append(parts.ravel(), path.t[-1])
    states = map(coordinates.unpack, path.sol(grid).T)
    D = [diffusion_of(problem, x, t) for t, x in zip(grid, states, strict=True)]
    D = scipy.interpolate.CubicSpline(grid, D)

    def rate(alpha, S):
        S = S.reshape(n, n)
        drift = coordinates.jacobian(path.sol(alpha), alpha=alpha) @ S
        return (drift + drift.T + D(alpha)).ravel()

    end = scipy.integrate.solve_ivp(
        rate, span, covariance.ravel(), "DOP853", times[1:], rtol=1e-6, atol=1e-9
    )
    return list(end.y.T.reshape(-1, n, n))


def _scatter_of_rows(problem, x0):
    """N times the covariance of overlaps of Gaussian rows whose mean overlaps are x0."""
    check_random_rows(x0)
    coordinates = Coordinates(problem, x0)
    rows = x0.v.size
    i, j = coordinates.upper
    Q = x0.Q.reshape(rows, rows)
    S = np.zeros((coordinates.size, coordinates.size))
    a, b = coordinates.cuts
    S[:a, :a] = Q[i[:, None], i] * Q[j[:, None], j] + Q[i[:, None], j] * Q[j[:, None], i]
    S[a:b, a:b] = np.kron(Q, problem.T)
    return S
