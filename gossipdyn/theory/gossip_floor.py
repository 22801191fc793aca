"""What label noise leaves when workers gossip: floors of workers in one basin.

Chapter :doc:`topology`. gossipdyn.noise_floor is the floor of one worker, to all orders in eta;
here it is the first order, for any graph. Derived in the book.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike

from ..checks import check_mixing, number, one_given
from ..equations import drift
from ..problem import Problem, check_learns
from .perfect import check_no_decay, perfect

STRONGEST = 1e8  # coupling, in units of eta h: the digits lost are its digits


@dataclass(frozen=True, eq=False)
class GossipFloor:
    """What label noise leaves when workers gossip, as returned by gossip_floor().

    All fields are per unit of the variance sigma^2 of the label noise. With coupling nothing
    changes in time, and ``before``, ``after`` and ``over_time`` are equal.

    Attributes
    ----------
    before, after : (P,) array
        Generalisation error of each worker just before and just after a round.
    over_time : (P,) array
        Its mean over the time between two rounds.
    mean : float
        Error of the network of the mean weights, just after a round. If A keeps the mean, it is the
        same at all times.
    consensus : float
        The consensus distance just before a round, equation :eq:`eq-topology-spread`.
    """

    before: np.ndarray
    after: np.ndarray
    over_time: np.ndarray
    mean: float
    consensus: float


def gossip_floor(
    problem: Problem, A: ArrayLike, period: float | None = None, coupling: float | None = None
) -> GossipFloor:
    """Compute the stationary errors of gossiping workers around one perfect solution.

    The result holds to first order in eta. Exactly one of period and coupling is given.

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    A : (P, P) array
        Any mixing matrix. For a normal A the means over workers are closed sums over its
        eigenvalues.
    period : float, optional
        Training time alpha between two rounds, above 0.
    coupling : float, optional
        Strength kappa, per unit of alpha and from 0 up, of a pull at all times, as in
        ``flow(coupling=(kappa, A))``.

    Returns
    -------
    GossipFloor
        Errors per unit of sigma^2, like noise_floor().

    Raises
    ------
    ValueError
        Unless exactly one of period and coupling is given; if A is no mixing matrix, if the
        coupling is above 1e8 eta h, or if there is weight decay (perfect learning is then no fixed
        point).

    See Also
    --------
    noise_floor : The floor of one worker, to all orders in eta.

    Notes
    -----
    About the perfect solution the errors of the workers' rows fill all N directions. Let h be the
    eigenvalues of ``H_kl = v_k v_l <g'_k g'_l>``, and 1 the matrix of ones on the diagonal. In
    units of eta sigma^2 / 2B the covariance D_h (P, P) between workers relaxes as D_h -> E D_h + (1
    - E) 1, with E = exp(-2 eta h period), and a round maps it to ``A D_h A^T``. With coupling of
    strength kappa it balances ``eta h D + kappa (L D + D L^T) / 2 = eta h``, where L = 1 - A. The
    risk of worker p is (eta sigma^2 / 4B) sum_h h D_h,pp.

    Two things are left out: the noise that errors make themselves, of relative order eta, and noise
    beyond the first order in sigma^2. For two erf units and P = 8 the true floor of the mean, in
    units of eta sigma^2 / 4B, is .117 without gossip and .094 under a strong pull at eta = 0.5, and
    .262 and .101 at eta = 1.5; this function says .092. So use it for eta below some 0.1.

    References
    ----------
    Chapter :doc:`topology`, equations :eq:`eq-floor-rounds`, :eq:`eq-floor-coupling` and
    :eq:`eq-floor-recursion`; derived in the book.
    """
    check_learns(problem, "a noise floor")
    A = check_mixing(A, square="a floor of gossip")
    one_given(period, coupling, "a floor needs either period, between rounds, or coupling, a pull")
    check_no_decay(problem)
    h = np.linalg.eigvalsh(-drift(problem, perfect(problem))[0][0]) / problem.eta
    h = h[h > 1e-12 * abs(h[-1])]  # a direction that the risk does not see gets no noise
    if not h.size:
        raise ValueError(f"a teacher that is silent, v_star={problem.v_star}, leaves no floor")
    if period is not None:
        period = number(period, "period, the alpha between two rounds,", above=0)
        x = 2 * problem.eta * h * period
        x = x[:, None, None]
        after = _after_round(x, A)
        unit = np.eye(len(A))
        before = unit + np.exp(-x) * (after - unit)
        between = unit + (after - unit) * -np.expm1(-x) / x
    else:
        kappa = number(coupling, "coupling, the strength kappa,", 0)
        if kappa > STRONGEST * problem.eta * h[-1]:
            raise ValueError(
                f"a coupling of {kappa:.6g} is more than {STRONGEST:g} times the rate of learning, "
                f"eta h = {problem.eta * h[-1]:.3g}, so that rounding spoils the sum: the workers "
                "are one there, take a weaker pull"
            )
        unit = np.eye(len(A))
        pull = kappa * (unit - A) / 2
        pairs = ((problem.eta * rate * unit, pull) for rate in h)
        before = np.array(
            [scipy.linalg.solve_continuous_lyapunov(r / 2 + pull, r) for r, pull in pairs]
        )
        after = between = before
    scale = problem.eta / (2 * problem.batch)
    own = (np.einsum("hpp->hp", D) for D in (before, after, between))
    at_end, at_start, on_average = (scale / 2 * h @ parts for parts in own)
    spread = np.einsum("hpp->", before) / len(A) - before.mean((1, 2)).sum()
    mean = float(scale / 2 * h @ after.mean((1, 2)))
    return GossipFloor(at_end, at_start, on_average, mean, float(scale * spread))


def _after_round(x, A):
    """D (h, P, P) = A (E D + (1 - E) 1) A^T, E = exp(-x): the sum over all earlier periods.

    Summed by doubling the number of periods, with E and A apart: next to 1 a float64 does not
    tell E from 1, and a sum of products of both would never end.
    """
    D = -np.expm1(-x) * (A @ A.T)
    fall = x / 2
    while fall.min() < 50:  # exp(-50) is beyond rounding
        M = np.exp(-fall) * A
        D = D + M @ D @ M.swapaxes(1, 2)
        A = A @ A
        A, fall = A / A.sum(1, keepdims=True), 2 * fall
    return D
