"""The flow: the closed equations of motion of the overlaps in the limit N -> infinity.

With U and V from drift() and the noise matrix from noise(), the mean change of all weight rows is
dW^p/dalpha = U^p W^p + V^p W*, hence

    dR^p/dalpha    = U^p R^p + V^p T
    dQ^pq/dalpha   = U^p Q^pq + V^p R^q.T + (the same with p and q exchanged).T + [p = q] noise^p
    dv^p_k/dalpha  = -eta_v <g(lambda_k) e^p> - eta_v weight_decay v^p_k

Workers draw their own samples, so overlaps between different workers have no noise term. Chapter
:doc:`from_sgd_to_ode`, equation :eq:`eq-flow`; Saad & Solla (1995) for one worker, Goldt et al.
(2019) for the second layer; the equations of several workers are derived in the book.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .checks import check_mixing, number, reals, whole
from .gossip.mix import apply_mixing, warn_of_drift
from .problem import Problem
from .states import Overlaps, check_fit, check_overlaps, field_covariance


def risk(problem: Problem, x: Overlaps) -> Annotated[np.ndarray, "... P"]:
    """Compute the generalisation error of each worker, from the overlaps.

    It is half the mean squared distance to the teacher without label noise, on fresh inputs:
    eps_g = < (phi - teacher)^2 > / 2.

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    x : Overlaps
        State; leading axes pass through.

    Returns
    -------
    (..., P) array
        The generalisation error of each worker.

    Raises
    ------
    ValueError
        If no weights have the overlaps x.

    See Also
    --------
    mean_risk : The error of the network of the mean weights.

    References
    ----------
    Chapter :doc:`teacher_student`, equation :eq:`eq-risk`; Saad and Solla (1995).

    Examples
    --------
    One erf unit with no overlap with its teacher has the error 1/3, a perfect one has none:

    >>> problem = gd.Problem(gd.erf, v_star=np.ones(1), T=np.eye(1))
    >>> blind = gd.Overlaps.single(Q=np.eye(1), R=np.zeros((1, 1)), v=np.ones(1))
    >>> print(gd.risk(problem, blind).round(6))
    [0.333333]
    >>> print(gd.risk(problem, gd.perfect(problem)).round(6))
    [0.]
    """
    check_overlaps(problem, x)
    return unchecked_risk(problem, x)


def unchecked_risk(problem, x):
    """risk() without its checks, for loops over states that the engines made."""
    return local(problem, x, "risk").risk


def local(problem, x, *want, alpha=0.0):
    """The Local averages of every worker of the Overlaps x at the time alpha; want: their names."""
    return problem.local(field_covariance(problem.T, x), x.v, problem.rates(alpha), want)


def mean_risk(problem: Problem, x: Overlaps) -> Annotated[np.ndarray, "..."]:
    """Compute the generalisation error of the network whose weights are the workers' mean.

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    x : Overlaps
        State; leading axes pass through.

    Returns
    -------
    (...) array
        The generalisation error.

    Raises
    ------
    ValueError
        If no weights have the overlaps x.

    See Also
    --------
    risk : The error of each worker.

    References
    ----------
    Chapter :doc:`gossip_square`, equation :eq:`eq-risk`.

    Examples
    --------
    The mean of two perfect workers is perfect only if their units stand in one order:

    >>> problem = gd.Problem(gd.erf, v_star=np.ones(2), T=np.eye(2))
    >>> for orders in [(0, 1), (0, 1)], [(0, 1), (1, 0)]:
    ...     print(f"{gd.mean_risk(problem, gd.perfect(problem, orders=orders)):.2f}")
    0.00
    0.02
    """
    check_overlaps(problem, x)
    return unchecked_risk(problem, mean_worker(x))[..., 0]


def interpolation(
    problem: Problem, x: Overlaps, p: int, q: int, t: ArrayLike
) -> Annotated[np.ndarray, "... times"]:
    """Compute the generalisation error along the straight line between the weights of two workers.

    The network at the part t of the line has the first layers (1 - t) W^p + t W^q and the second
    layers (1 - t) v^p + t v^q. Its error is exact from the overlaps.

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    x : Overlaps
        State; leading axes pass through.
    p, q : int
        Numbers of the two workers.
    t : float or (times,) array
        Parts of the line: 0 is worker p, 1 is worker q, and others lie beyond.

    Returns
    -------
    (...) or (..., times) array
        The error, with a last axis if t has one. What it rises to above the straight line between
        its ends is the loss barrier of linear mode connectivity.

    Raises
    ------
    ValueError
        If x does not have the workers, or if risk() refuses an argument.

    References
    ----------
    Chapter :doc:`one_round`, equation :eq:`eq-interpolation`; Frankle et al. (2020) for the
    barrier.
    """
    check_overlaps(problem, x)
    t = reals(t, "t")
    P = x.v.shape[-2]
    if t.ndim > 1 or not t.size or max(whole(p, "p"), whole(q, "q")) >= P:
        raise ValueError(
            f"the line goes from worker p to worker q, of {P} workers counted from 0, at the parts "
            f"t, a number or a list: got p={p}, q={q} and t of shape {t.shape}"
        )
    ends = np.stack([1 - t, t], axis=-1).reshape(-1, 2)
    pair = [int(p), int(q)]
    Q = np.einsum("ta,...akbl,tb->...tkl", ends, x.Q[..., pair, :, :, :][..., pair, :], ends)
    line = Overlaps(
        Q=Q[..., None, :, None, :],
        R=np.einsum("ta,...akm->...tkm", ends, x.R[..., pair, :, :])[..., None, :, :],
        v=np.einsum("ta,...ak->...tk", ends, x.v[..., pair, :])[..., None, :],
    )
    along = unchecked_risk(problem, line)[..., 0]
    return along if t.ndim else along[..., 0]


def mean_worker(x):
    """Overlaps of the mean of all workers, a state of one worker."""
    P = x.v.shape[-2]
    return apply_mixing(np.full((1, P), 1 / P), x)


def drift(
    problem: Problem, x: Overlaps, alpha: float = 0.0
) -> tuple[Annotated[np.ndarray, "... P K K"], Annotated[np.ndarray, "... P K M"]]:
    """Compute the mean change of the weight rows, ``U W + V W*``.

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    x : Overlaps
        State; leading axes pass through.
    alpha : float, optional
        The time, for a problem whose learning rates change.

    Returns
    -------
    U : (..., P, K, K) array
        How much of the student rows enters, with weight decay.
    V : (..., P, K, M) array
        How much of the teacher rows enters.

    Notes
    -----
    By Stein's lemma ``-eta v_k <g'(lambda_k) e x>`` is a sum of weight rows: row a with weight
    ``c_a <g'_k g'_a>``, and row k with weight ``sum_a c_a <g''_k g_a>``.

    References
    ----------
    Chapter :doc:`from_sgd_to_ode`, equation :eq:`eq-drift`.
    """
    check_fit(problem, x)
    found = local(problem, x, "U", "V", alpha=alpha)
    return _decayed(problem, found.U, problem.rates(alpha).eta), found.V


def noise(problem: Problem, x: Overlaps, alpha: float = 0.0) -> Annotated[np.ndarray, "... P K K"]:
    """Compute the growth of a worker's own Q by the scatter of single samples.

    It is ``(eta^2 / batch) v_k v_l (<g'_k g'_l e^2> + sigma^2 <g'_k g'_l>)``.

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    x : Overlaps
        State; leading axes pass through.
    alpha : float, optional
        The time, for a problem whose learning rates change.

    Returns
    -------
    (..., P, K, K) array
        The rate of growth.

    References
    ----------
    Chapter :doc:`from_sgd_to_ode`, equation :eq:`eq-noise`.
    """
    check_fit(problem, x)
    return local(problem, x, "noise", alpha=alpha).noise


def rate(
    problem: Problem,
    x: Overlaps,
    coupling: tuple[float, ArrayLike] | None = None,
    alpha: float = 0.0,
) -> Overlaps:
    """Compute the right-hand side of the flow, d(Q, R, v)/dalpha.

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    x : Overlaps
        State; leading axes pass through.
    coupling : (kappa, A), optional
        A pull of the workers towards their neighbours, as in flow().
    alpha : float, optional
        The time, for a problem whose learning rates change.

    Returns
    -------
    Overlaps
        The rates, in the shapes of x.

    References
    ----------
    Chapter :doc:`from_sgd_to_ode`, equation :eq:`eq-flow`.
    """
    check_fit(problem, x)
    if coupling is not None:
        coupling = check_coupling(coupling)
        check_mixing(coupling[1], x.v.shape[-2])
    return Overlaps(*unchecked_rate(problem, x, coupling, alpha))


def unchecked_rate(problem, x, coupling=None, alpha=0.0, still=0):
    """rate() without its checks, as a State. still : how many workers, the last ones, stay."""
    *runs, P, K, M = x.R.shape
    moving = slice(P - still)
    C = field_covariance(problem.T, x)[..., moving, :, :]
    v = x.v[..., moving, :]
    rates = problem.rates(alpha)
    want = ("U", "V", "noise", "dv") if problem.trains_v else ("U", "V", "noise")
    found = problem.local(C, v, rates, want)
    U = _decayed(problem, found.U, rates.eta)
    dR, dv = np.zeros_like(x.R), np.zeros_like(x.v)
    dR[..., moving, :, :] = U @ x.R[..., moving, :, :] + found.V @ problem.T
    everyone = x.R.reshape(*runs, 1, P * K, M)
    half = np.zeros((*runs, P, K, P * K))
    own = x.Q.reshape(*runs, P, K, P * K)[..., moving, :, :]
    half[..., moving, :, :] = U @ own + found.V @ everyone.swapaxes(-1, -2)
    if problem.trains_v:
        dv[..., moving, :] = found.dv - rates.eta_v * problem.weight_decay * v
    if coupling is not None:
        kappa, A = coupling
        towards = kappa * (A - np.eye(P))
        half = half + np.einsum("pr,...rkql->...pkql", towards, x.Q).reshape(half.shape)
        dR = dR + np.einsum("pr,...rkm->...pkm", towards, x.R)
        dv = dv + np.einsum("pr,...rk->...pk", towards, x.v)
    half = half.reshape(*runs, P * K, P * K)
    dQ = (half + half.swapaxes(-1, -2)).reshape(*runs, P, K, P, K)
    worker = np.arange(P - still)
    dQ[..., worker, :, worker, :] += np.moveaxis(found.noise, -3, 0)
    return State(dQ, dR, dv)


def _decayed(problem, U, eta):
    """U with weight decay on its diagonal."""
    if problem.weight_decay:
        units = np.arange(U.shape[-1])
        U = U.copy()
        U[..., units, units] -= eta * problem.weight_decay
    return U


class State(NamedTuple):
    """Q, R, v without the checks of Overlaps, for inner loops and for changes of a state."""

    Q: np.ndarray
    R: np.ndarray
    v: np.ndarray


def check_coupling(coupling: Any) -> tuple[float, np.ndarray]:
    try:
        kappa, A = coupling
    except (TypeError, ValueError) as error:
        raise ValueError(f"coupling is a pair (kappa, A), got {coupling!r}") from error
    kappa = number(kappa, "the coupling rate kappa", 0)
    A = check_mixing(A)
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"coupling needs a square A, got shape {A.shape}")
    warn_of_drift(A, stacklevel=4)
    return kappa, A
