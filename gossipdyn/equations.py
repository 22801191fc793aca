"""The flow: the closed equations of motion of the overlaps in the limit N -> infinity.

With U and V from drift() and the noise matrix from noise(), the mean change of all weight rows is
dW^p/dalpha = U^p W^p + V^p W*, hence

    dR^p/dalpha    = U^p R^p + V^p T
    dQ^pq/dalpha   = U^p Q^pq + V^p R^q.T + (the same with p and q exchanged).T + [p = q] noise^p
    dv^p_k/dalpha  = -eta_v <g(lambda_k) e^p> - eta_v weight_decay v^p_k

Workers draw their own samples, so overlaps between different workers have no noise term. Chapter
`from_sgd_to_ode`, equation :eq:`eq-flow`; Saad & Solla (1995) for one worker, Goldt et al. (2019)
for the second layer; the equations of several workers are derived in the book.
"""

from typing import NamedTuple

import numpy as np

from .checks import check_mixing, number, reals, whole
from .gossip.mix import apply_mixing, warn_of_drift
from .states import Overlaps, check_fit, check_overlaps, field_covariance


def risk(problem, x):
    """Generalisation error of each worker, half the mean squared distance to the clean teacher.

    eps_g = < (phi - teacher)^2 > / 2 on fresh inputs, without label noise. x: Overlaps. Returns
    (..., P). Raises ValueError for overlaps that no weights have. Chapter `teacher_student`,
    equation :eq:`eq-risk`; Saad & Solla (1995).
    """
    check_overlaps(problem, x)
    return unchecked_risk(problem, x)


def unchecked_risk(problem, x):
    """risk() without its checks, for loops over states that the engines made."""
    C = field_covariance(problem.T, x)
    variance = np.diagonal(C, axis1=-2, axis2=-1)
    g = problem.activation.i2(variance[..., :, None], C, variance[..., None, :])
    c = coefficients(problem, x)
    return np.einsum("...a,...ab,...b->...", c, g, c) / 2


def mean_risk(problem, x):
    """Generalisation error of the network whose weights are the workers' mean: (...).

    x: Overlaps. Raises ValueError for overlaps that no weights have.
    """
    check_overlaps(problem, x)
    return unchecked_risk(problem, mean_worker(x))[..., 0]


def interpolation(problem, x, p, q, t):
    """Generalisation error along the straight line between the weights of two workers.

    Of the network with first layers (1 - t) W^p + t W^q and second layers (1 - t) v^p + t v^q,
    exact from the overlaps. What it rises to above the line between its ends is the loss barrier
    of linear mode connectivity.

    x : Overlaps (..., P, K, ...). p, q : numbers of the workers. t : a number, or (times,) of them;
    0 is worker p, 1 is worker q, others lie beyond. Returns (...) for a number, (..., times) else.
    Raises ValueError for workers that x does not have, and what risk() refuses. Chapter
    `one_round`, equation :eq:`eq-interpolation`; Frankle et al. (2020) for the barrier.
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


def coefficients(problem, x):
    """The error as a sum over fields, phi - teacher = sum_a c_a g_a: c = (v, -v*), (..., P, n)."""
    teacher = np.broadcast_to(-problem.v_star, (*x.v.shape[:-1], problem.M))
    return np.concatenate([x.v, teacher], axis=-1)


def drift(problem, x):
    """U (..., P, K, K) and V (..., P, K, M): the mean change of weight rows, U W + V W*.

    By Stein's lemma -eta v_k <g'(lambda_k) e x> is a sum of weight rows: row a with weight
    c_a <g'_k g'_a>, and row k with weight sum_a c_a <g''_k g_a>. x: Overlaps. Equation
    :eq:`eq-drift`.
    """
    check_fit(problem, x)
    G = _drift(problem, field_covariance(problem.T, x), coefficients(problem, x))
    K = x.v.shape[-1]
    return G[..., :K], G[..., K:]


def noise(problem, x):
    """(..., P, K, K): the growth of a worker's own Q by the scatter of single samples.

    (eta^2 / batch) v_k v_l (<g'_k g'_l e^2> + sigma^2 <g'_k g'_l>). x: Overlaps. Equation
    :eq:`eq-noise`.
    """
    check_fit(problem, x)
    return _noise(problem, field_covariance(problem.T, x), coefficients(problem, x))


def rate(problem, x, coupling=None):
    """d(Q, R, v)/dalpha, as a record of the shapes of x: the right-hand side of the flow.

    x: Overlaps with any leading axes. coupling: (kappa, A), see flow(). Equation :eq:`eq-flow`.
    """
    check_fit(problem, x)
    if coupling is not None:
        coupling = _check_coupling(coupling)
        check_mixing(coupling[1], x.v.shape[-2])
    return Overlaps(*_rate(problem, x, coupling))


# C (..., P, n, n) is the covariance of a worker's K + M = n fields, c (..., P, n) the coefficients
# of the error in them; G = [U, V] (..., P, K, n).


def _drift(problem, C, c):
    K = c.shape[-1] - problem.M
    v = c[..., :K]
    variance = C.diagonal(axis1=-2, axis2=-1)
    pair = variance[..., :K, None], C[..., :K, :], variance[..., None, :]
    G = problem.activation.j2(*pair) * c[..., None, :]
    own = (problem.activation.h2(*pair) @ c[..., None])[..., 0]
    units = np.arange(K)
    G[..., units, units] += own
    G *= -problem.eta * v[..., None]
    if problem.weight_decay:
        G[..., units, units] -= problem.eta * problem.weight_decay
    return G


def _noise(problem, C, c):
    K = c.shape[-1] - problem.M
    v = c[..., :K]
    scatter = problem.activation.square(C, K, c)
    if problem.sigma:
        variance = C.diagonal(axis1=-2, axis2=-1)[..., :K]
        scatter = scatter + problem.sigma**2 * problem.activation.j2(
            variance[..., :, None], C[..., :K, :K], variance[..., None, :]
        )
    return problem.eta**2 / problem.batch * v[..., :, None] * v[..., None, :] * scatter


def _second_layer(problem, C, c):
    K = c.shape[-1] - problem.M
    variance = C.diagonal(axis1=-2, axis2=-1)
    g = problem.activation.i2(variance[..., :K, None], C[..., :K, :], variance[..., None, :])
    return -problem.eta_v * ((g @ c[..., None])[..., 0] + problem.weight_decay * c[..., :K])


def _rate(problem, x, coupling=None):
    C, c = field_covariance(problem.T, x), coefficients(problem, x)
    *runs, P, K, M = x.R.shape
    G = _drift(problem, C, c)
    U, V = G[..., :K], G[..., K:]
    dR = U @ x.R + V @ problem.T
    everyone = x.R.reshape(*runs, 1, P * K, M)
    half = U @ x.Q.reshape(*runs, P, K, P * K) + V @ everyone.swapaxes(-1, -2)
    dv = _second_layer(problem, C, c) if problem.eta_v else np.zeros_like(x.v)
    if coupling is not None:
        kappa, A = coupling
        towards = kappa * (A - np.eye(P))
        half = half + np.einsum("pr,...rkql->...pkql", towards, x.Q).reshape(half.shape)
        dR = dR + np.einsum("pr,...rkm->...pkm", towards, x.R)
        dv = dv + np.einsum("pr,...rk->...pk", towards, x.v)
    half = half.reshape(*runs, P * K, P * K)
    dQ = (half + half.swapaxes(-1, -2)).reshape(*runs, P, K, P, K)
    worker = np.arange(P)
    dQ[..., worker, :, worker, :] += np.moveaxis(_noise(problem, C, c), -3, 0)
    return State(dQ, dR, dv)


class State(NamedTuple):
    """Q, R, v without the checks of Overlaps, for inner loops and for changes of a state."""

    Q: np.ndarray
    R: np.ndarray
    v: np.ndarray


def _check_coupling(coupling):
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
