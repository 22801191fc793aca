"""How alike the students are: the symmetric family, and how far a state has left it.

Chapters `plateau` and `setback`.
"""

import numpy as np

from ..checks import orders
from ..states import Overlaps, check_state


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
