"""Generalisation error from overlaps."""

import numpy as np

from .gossip import apply_mixing
from .order_parameters import Overlaps, check_overlaps, field_covariance
from .refusals import reals, whole


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
