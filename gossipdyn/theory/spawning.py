"""Noise to come: how much chance the plateau still adds, and which order of units that decides.

Chapters :doc:`setback` and :doc:`warm_start`; derived in the book.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from ..checks import EXACT, reals, whole
from ..coordinates import Coordinates
from ..problem import Problem
from ..states import Overlaps, field_covariance
from .diffusion import check_random_rows, nodes
from .plateau import grown
from .symmetry import check_order_exists, symmetric

GROWN = 8.0  # by exp(-2 GROWN), 1e-7, is later noise outgrown


def noise_to_come(problem: Problem, x0: Overlaps, alpha: ArrayLike) -> Any:
    """Compute what the noise of single samples still adds to the asymmetry u after alpha, times N.

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    x0 : Overlaps
        State of one worker.
    alpha : float or (times,) array
        Times from 0 up.

    Returns
    -------
    float or (times,) array
        The variance V, of the shape of alpha. It holds to some 3e-4 for K = 2 and 3e-3 for K = 3,
        as the quadrature of diffusion() does.

    Raises
    ------
    ValueError
        If K is not M, if asymmetry does not grow e^8-fold from this start before
        alpha = 1e5 / eta, or if escape() refuses x0.

    Notes
    -----
    Near the symmetric trajectory from symmetric(x0), u = specialisation(x, order) of any order
    obeys du = lambda u dalpha + sqrt(D / N) dB, and a = sqrt(N) exp(-Lambda) u only collects noise.
    From alpha on it gains the variance::

        V(alpha) = int_alpha^infinity D exp(-2 Lambda) dalpha',
        D = eta^2 / B < (sum_km c_km v_k g'_k rho_m)^2 (e^2 + sigma^2) >

    with the lambda and Lambda of escape(), c_km = 1 where m = order(k), and c_km = -1 / (K-1)
    elsewhere. It does not depend on the order.

    References
    ----------
    Chapter :doc:`warm_start`, equation :eq:`eq-noise-to-come`; derived in the book.
    """
    alpha = reals(alpha, "alpha", least=0)
    path, both = grown(problem, x0, GROWN)
    check_order_exists(x0.v.shape[-1], problem.M)
    end = path.t[-1]
    grid = end * np.linspace(0, 1, 97) ** 2  # dense at first, where the noise is largest
    states = path.sol(grid)
    noise = _kicks(problem, x0, states[:-1].T) * np.exp(-2 * states[-1])
    gained = scipy.interpolate.CubicSpline(grid, noise).antiderivative()
    # at the end D and lambda hardly change any more: the rest is a geometric tail
    twice = 2 * both(states[:-1, -1])[1]
    later = np.exp(-twice * np.maximum(alpha - end, 0))
    V = gained(end) - gained(np.minimum(alpha, end)) + noise[-1] / twice * later
    return float(V) if V.ndim == 0 else V


def spawning(
    problem: Problem, x0: Overlaps, alpha: ArrayLike, draws: int = 20_000, seed: int = 0
) -> Any:
    """Compute the probability that two copies of one worker end with their units in other orders.

    The worker starts from Gaussian rows with the mean overlaps x0 and learns until alpha. There it
    is copied, and both copies learn on.

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    x0 : Overlaps
        State of one worker with R = 0, for rows N(0, scale^2) scale^2 times the identity.
    alpha : float or (times,) array
        Times of the copy, from 0 up.
    draws : int, optional
        For K > 2 the number of pairs of matrices that are drawn; the standard error of the
        probability P is sqrt(P (1 - P) / draws).
    seed : int, optional
        For K > 2 the seed of the draws.

    Returns
    -------
    float or (times,) array
        The probability, of the shape of alpha.

    Raises
    ------
    ValueError
        If R of x0 is not 0, if students are equal, or if noise_to_come() refuses an argument.

    See Also
    --------
    noise_to_come : The variance V(alpha) behind it.

    Notes
    -----
    The two copies share what a (of noise_to_come) has become by alpha, and each adds noise of its
    own. So their last a have the correlation rho = 1 - V(alpha) / (s0^2 + V(0)), where s0^2 is that
    of the start, and for K = M = 2::

        P(different orders) = arccos(rho) / pi

    For K > 2 the asymmetry is a matrix with zero sums, Gaussian and isotropic. The order is taken
    to be the one with the largest sum of R_k,order(k) while R is small, and pairs of such matrices
    with correlation rho are drawn. The law does not contain the number N of inputs: it is that of a
    long plateau, N -> infinity. For K = 2 the chain agrees with it from N = 100 on. For K = 3 it
    lies below the law, by 5 to 10 % for N = 25 to 400 and alpha up to 40, and by more later.

    References
    ----------
    Chapter :doc:`warm_start`, equation :eq:`eq-arccos`; derived in the book.
    """
    alpha, draws, seed = reals(alpha, "alpha"), whole(draws, "draws", 1), whole(seed, "seed")
    V = noise_to_come(problem, x0, np.append(alpha, 0.0))
    check_random_rows(x0)
    K = problem.M
    own = x0.Q[0, :, 0]
    apart = np.trace(own) / K - (own.sum() - np.trace(own)) / (K * (K - 1))
    if not apart > EXACT * np.trace(own):
        raise ValueError(
            f"the students of x0 are equal or zero (they differ by {apart:.3g} in squared norm): "
            "equal students stay equal, and no order of units comes of them"
        )
    start = K**2 / (K - 1) * apart * (problem.T[0, 0] - problem.T[0, 1])
    rho = np.clip(1 - V[:-1] / (start + V[-1]), -1, 1)  # the edge of the domain, but for rounding
    if K == 2:
        P = np.arccos(rho) / np.pi
    else:
        X, Y = np.random.default_rng(seed).standard_normal((2, draws, K, K))
        order = _order(X)
        parts = (_order(r * X + np.sqrt(1 - r**2) * Y) for r in rho)
        P = np.array([np.mean((order != other).any(-1)) for other in parts])
    return P.reshape(alpha.shape) if alpha.ndim else float(P[0])


def _order(X):
    """The order (..., K) with the largest sum in each matrix of X (..., K, K)."""
    return np.array([scipy.optimize.linear_sum_assignment(x, maximize=True)[1] for x in X])


def _kicks(problem, x0, states):
    """D (times,) along symmetric states in coordinates, in the units of u."""
    K = problem.M
    x = Overlaps(*Coordinates(problem, symmetric(x0)).unpack(states))
    turn = np.where(np.eye(K), 1.0, -1.0 / (K - 1))
    z, weight = nodes(2 * K, problem.activation)
    D = []
    for C, v in zip(field_covariance(problem.T, x)[:, 0], x.v[:, 0], strict=True):
        values, vectors = np.linalg.eigh(C)
        f = z @ (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
        e = problem.activation.g(f) @ np.concatenate([v, -problem.v_star])
        kick = np.einsum("sk,km,sm->s", v * problem.activation.dg(f[:, :K]), turn, f[:, K:])
        D.append(problem.eta**2 / problem.batch * weight @ (kick**2 * (e**2 + problem.sigma**2)))
    return np.array(D)
