"""Perfect learning: the solution, its stability and its noise floor.

Chapters :doc:`global_minimum` and :doc:`noise_and_width`. What names no paper here is derived in
the book.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from ..checks import orders as check_orders
from ..checks import whole
from ..equations import drift, noise, risk
from ..problem import Problem, check_learns, check_problem
from ..states import Overlaps, check_overlaps

# perfect learning


def perfect(
    problem: Problem, students: int | None = None, orders: ArrayLike | None = None
) -> Overlaps:
    """Make the perfect solution: student m is teacher unit m, and spare students are zero.

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    students : int, optional
        Number K of students, at least M; by default M. The second layer is v_star, repeated in turn
        for spare students.
    orders : (P, M) array of int, optional
        Instead of students, the orders of P perfect workers: student k of worker p is teacher unit
        orders[p][k], with the v of that unit. So [(0, 1), (1, 0)] are two workers in opposite
        orders.

    Returns
    -------
    Overlaps
        The state (P, ...), with P = 1 unless orders are given.

    Raises
    ------
    ValueError
        If K is below M, if K is above M and the activation is not 0 at 0, or if the orders are no
        permutations or of no worker.

    References
    ----------
    Chapter :doc:`one_round`, equation :eq:`eq-two-values`.

    Examples
    --------
    >>> problem = gd.Problem(gd.erf, v_star=np.ones(2), T=np.eye(2))
    >>> print(gd.perfect(problem, students=3).R[0])
    [[1. 0.]
     [0. 1.]
     [0. 0.]]
    """
    check_problem(problem)
    K, M = problem.M if students is None else students, problem.M
    whole(K, f"students >= M = {M}, of perfect learning,", M)
    if K > M and problem.activation.g(np.zeros(1))[0] != 0:
        raise ValueError(
            f"spare students at zero are silent only when g(0) = 0; {problem.activation.name} has "
            f"g(0) = {problem.activation.g(np.zeros(1))[0]:.4g}: use students={M}"
        )
    if orders is not None:
        units = check_orders(orders, M)
        if units.ndim != 2 or not len(units) or K > M:
            raise ValueError(
                f"orders are those of P workers with M = {M} students each, (P, {M}), got shape "
                f"{units.shape} and students={students}"
            )
        return Overlaps(
            Q=problem.T[units[:, :, None, None], units], R=problem.T[units], v=problem.v_star[units]
        )
    R = np.concatenate([problem.T, np.zeros((K - M, M))])
    Q = np.concatenate([R, np.zeros((K, K - M))], axis=1)
    return Overlaps.single(Q, R, np.resize(problem.v_star, K))


def largest_stable_eta(problem: Problem, students: int | None = None) -> float:
    """Compute the learning rate above which perfect learning is unstable, for N -> infinity.

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule. The answer depends on its batch, and does not depend on
        its eta, eta_v and sigma.
    students : int, optional
        Number K of students, at least M; by default M.

    Returns
    -------
    float
        The largest stable learning rate.

    Raises
    ------
    ValueError
        If there is weight decay (no solution is then perfect), if K is below M, or if errors do not
        obey linear equations (spare ReLU students).

    Notes
    -----
    About perfect(problem, students) the covariance D of the errors of the students obeys dD/dalpha
    = -eta (H D + D H) + eta^2 S[D], where S is the scatter of single samples. The answer is the
    rate from which on S wins. Above it the flow does not diverge: it settles at an error. A finite
    N is less stable. A linear unit, for instance, is stable up to 2 N / (N + 2) and not to 2.

    References
    ----------
    Chapter :doc:`global_minimum`, equation :eq:`eq-stable-eta`; derived in the book.

    Examples
    --------
    One linear unit is stable up to 2:

    >>> problem = gd.Problem(gd.linear, v_star=np.ones(1), T=np.eye(1))
    >>> print(f"{gd.largest_stable_eta(problem):.4f}")
    2.0000
    """
    x = perfect(problem, students)
    decay, scatter = _errors(replace(problem, eta=1.0), x)[:2]
    gain = np.linalg.eigvals(np.linalg.pinv(decay, rcond=1e-9, hermitian=False) @ scatter)
    return float(1 / gain.real.max())


def noise_floor(problem: Problem, x: Overlaps) -> float:
    """Compute the stationary generalisation error of one worker per unit of label-noise variance.

    It is the limit of eps_g / sigma^2 for small label noise at a perfect solution, to all orders in
    eta. (The field ``noise_floor`` of a Diagnosis is another thing: the size of a chance cosine.)

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    x : Overlaps
        A perfect solution of one worker, such as perfect() makes it.

    Returns
    -------
    float
        The noise floor.

    Raises
    ------
    ValueError
        If x is not perfect or not stable.

    See Also
    --------
    gossip_floor : The same for gossiping workers, to first order in eta.

    Notes
    -----
    It is half of tr(H D), where D balances decay, scatter and label noise. Directions in which x is
    neutral (two spare units that move oppositely, copies of one unit that move apart) are left out:
    with label noise they drift slowly, so that there the floor is that of a long plateau.

    References
    ----------
    Chapter :doc:`noise_and_width`, equation :eq:`eq-noise-floor`; Goldt et al. (2019) at first
    order in eta, beyond it derived in the book.

    Examples
    --------
    For one linear unit it is eta / (2 (2 - eta)):

    >>> problem = gd.Problem(gd.linear, v_star=np.ones(1), T=np.eye(1), eta=0.5)
    >>> print(f"{gd.noise_floor(problem, gd.perfect(problem)):.4f}")
    0.1667
    """
    check_learns(problem, "a noise floor")
    decay, scatter, label, H = _errors(problem, x)
    balance = decay - scatter
    if np.linalg.eigvals(balance).real.min() < -1e-7 * np.abs(decay).max():
        raise ValueError(
            f"x is unstable, it has no noise floor: eta={problem.eta:.6g} is too large"
        )
    D = np.linalg.pinv(balance, rcond=1e-9) @ label
    return float(H @ D / 2)


def check_no_decay(problem):
    """Refuse weight decay, which moves the fixed point away from perfect learning."""
    if problem.weight_decay:
        raise ValueError(
            f"with weight_decay={problem.weight_decay:.6g} perfect learning is no fixed point: run "
            "the flow to its end, or use fixed_point and modes"
        )


def _errors(problem, x):
    """Decay, scatter (n, n) and label noise, risk (n,) of the errors' covariance D near x.

    With W = W_perfect + Z and Z across all else, D = Z Z^T / N has the drift U D + D U^T, with U
    that of drift(); noise() is linear in D, its slope is a limit that expands in powers of sqrt(D)
    where g has kinks: a table of extrapolation in those powers. Vectors: upper triangle of D.
    """
    check_overlaps(problem, x)
    check_no_decay(problem)
    if x.v.shape[:-1] != (1,) or risk(problem, x).max() > 1e-12:
        raise ValueError("x is no perfect solution of one worker: its risk is not 0")
    clean, K = replace(problem, sigma=0.0), x.v.size
    i, j = np.triu_indices(K)
    unit = np.eye(K)
    # rows moving together or alone: errors that exist, and span all symmetric D
    basis = (unit[i] + (i != j)[:, None] * unit[j])[:, :, None]
    basis = basis * basis.swapaxes(1, 2)
    probes = np.concatenate([basis, basis.sum(0)[None]])
    size = 0.1 * 0.5 ** np.arange(7)  # of Z
    Q = x.Q[0, :, 0] + size[:, None, None, None] ** 2 * probes
    moved = Overlaps(
        Q=Q[:, :, None, :, None, :],
        R=np.broadcast_to(x.R, (*Q.shape[:2], *x.R.shape)),
        v=np.broadcast_to(x.v, (*Q.shape[:2], *x.v.shape)),
    )
    table = noise(clean, moved)[:, :, 0] / size[:, None, None, None] ** 2
    for order in range(1, len(size)):
        table = table[1:] + (table[1:] - table[:-1]) / (2**order - 1)
    slope = table[0]
    if not np.allclose(slope[:-1].sum(0), slope[-1], rtol=0, atol=1e-3 * np.abs(slope[-1]).max()):
        raise ValueError(
            f"near this perfect solution errors do not obey linear equations: a spare student at "
            f"zero sits on the kink of {problem.activation.name}; use students={problem.M}"
        )
    U = drift(clean, x)[0][0]
    fall = -(U @ basis + basis @ U.T)
    to_units = np.linalg.inv(basis[:, i, j].T)
    decay, scatter = fall[:, i, j].T @ to_units, slope[:-1][:, i, j].T @ to_units
    label = noise(replace(problem, sigma=1.0), x)[0][i, j]
    H = -U[i, j] * np.where(i == j, 1, 2) / problem.eta
    return decay, scatter, label, H
