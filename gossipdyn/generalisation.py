"""Generalisation error from overlaps."""

import numpy as np

from .gossip import apply_mixing
from .order_parameters import check_overlaps, field_covariance


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


def mean_worker(x):
    """Overlaps of the mean of all workers, a state of one worker."""
    P = x.v.shape[-2]
    return apply_mixing(np.full((1, P), 1 / P), x)


def coefficients(problem, x):
    """The error as a sum over fields, phi - teacher = sum_a c_a g_a: c = (v, -v*), (..., P, n)."""
    teacher = np.broadcast_to(-problem.v_star, (*x.v.shape[:-1], problem.M))
    return np.concatenate([x.v, teacher], axis=-1)
