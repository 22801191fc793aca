"""How alike the students are: the symmetric family, and how far a state has left it.

Chapters :doc:`plateau` and :doc:`setback`.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from ..checks import orders
from ..states import Overlaps, check_state


def symmetric(x: Overlaps) -> Overlaps:
    """Take the mean of a state over all permutations of the students, and of the teacher's units.

    This is a linear projection. In the result every student is like every other one, and none
    prefers a teacher unit. If the units of the teacher are alike, the flow keeps this family.

    Parameters
    ----------
    x : Overlaps
        State; leading axes pass through. The students of all workers are permuted alike.

    Returns
    -------
    Overlaps
        The symmetric state.

    References
    ----------
    Chapter :doc:`plateau`.
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


def asymmetry(x: Overlaps) -> Annotated[np.ndarray, "... P"]:
    """Measure how far the students have turned to different teacher units.

    It is the norm of R_km less its means over students and over teacher units. For K = M = 2 this
    is ``|u| / 2`` with u = R_11 + R_22 - R_12 - R_21.

    Parameters
    ----------
    x : Overlaps
        State; leading axes pass through.

    Returns
    -------
    (..., P) array
        The asymmetry of each worker.

    See Also
    --------
    specialisation : The same with a sign, for one order of the units.

    References
    ----------
    Chapter :doc:`plateau`, equation :eq:`eq-asymmetry`.
    """
    check_state(x)
    R = x.R - x.R.mean(-1, keepdims=True)
    return np.linalg.norm(R - R.mean(-2, keepdims=True), axis=(-2, -1))


def specialisation(x: Overlaps, order: ArrayLike | None = None) -> Annotated[np.ndarray, "... P"]:
    """Measure how far the students have turned to the teacher units of one order, with its sign.

    It is u = sum_k R_k,order(k) less 1 / (K-1) times the sum of the other R_km.

    Parameters
    ----------
    x : Overlaps
        State with K = M, 2 or more; leading axes pass through.
    order : (K,) or (..., P, K) array of int, optional
        The teacher unit of each student, for all workers or for each worker as from assignment().
        By default student k belongs to teacher unit k.

    Returns
    -------
    (..., P) array
        The specialisation u of each worker. It is 0 for students that are alike, K for perfect
        students (T = I) in this order, and negative for others.

    Raises
    ------
    ValueError
        If K is not M or is below 2, or if an order is no permutation.

    Notes
    -----
    For K = M = 2 u is R_11 + R_22 - R_12 - R_21, and asymmetry() is ``|u| / 2``. For any K,
    ``|u| <= K / sqrt(K-1) asymmetry()``.

    References
    ----------
    Chapter :doc:`setback`, equation :eq:`eq-u`.
    """
    check_state(x)
    *lead, K, M = x.R.shape
    check_order_exists(K, M)
    order = np.arange(K) if order is None else orders(order, K)
    try:
        order = np.broadcast_to(order, (*lead, K))
    except ValueError as error:
        raise ValueError(
            f"an order for each worker has shape {(*lead, K)}, got {order.shape}"
        ) from error
    own = np.take_along_axis(x.R, order[..., None], -1).sum((-2, -1))
    return own - (x.R.sum((-2, -1)) - own) / (K - 1)


def check_order_exists(K, M):
    """Refuse numbers of students and teacher units between which there is no order."""
    if K != M or K < 2:
        raise ValueError(
            f"an order of the units needs as many students as teacher units, two or more, got K={K}"
            f" and M={M}: asymmetry() is for any number"
        )
