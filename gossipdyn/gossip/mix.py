"""Gossip: the one operator that averages workers, and its remedy for units in different order.

A round of gossip replaces every worker's weights by a weighted mean of its neighbours',
W^p <- sum_q A_pq W^q. On overlaps this is R <- A R and Q <- A Q A^T on the worker axes: exact,
at any N, because a mean of rows has the mean of their overlaps. Chapter `gossip_square`.
"""

import warnings
from dataclasses import replace
from typing import Annotated

import numpy as np

from ..checks import check_mixing, rounding
from ..states import Overlaps, Weights, check_overlaps, check_state, overlaps


def mix(A, state):
    """One round of gossip on Overlaps or Weights: the same weighted means on every worker axis.

    A: (P_new, P), A[receiver, sender] >= 0, rows sum to 1. ones((4, 1)) spawns four copies of one
    worker, ones((1, P)) / P is the mean. Returns a state of the same kind; leading axes pass
    through. overlaps(mix(A, w)) == mix(A, overlaps(w)), exactly: chapter `gossip_square`, equation
    :eq:`eq-square`.

    Means are taken in float64; of float32 tensors they are rounded to float32 at the end. An A of
    float32 numbers is used as it is: its rows may miss 1 by their rounding (up to 1e-6), by which
    weights then grow or shrink at every round.

    Raises ValueError for an A of the wrong size, negative or not row-stochastic; warns when a
    square A keeps no mean (columns that do not sum to 1).
    """
    if not isinstance(state, Overlaps | Weights):
        raise ValueError(f"mix(A, state) takes Overlaps or Weights, got {type(state).__name__}")
    A = check_mixing(A, state.v.shape[-2])
    warn_of_drift(A)
    return apply_mixing(A, state)


def consensus_distance(x: Overlaps | Weights) -> Annotated[np.ndarray, "..."]:
    """Measure how far the workers are from their mean.

    It is the mean over the workers p of ``|W^p - W_mean|^2 / N``, the sum of the squared distances
    of all K rows, with second layers left out: (1/P) sum_p tr Q^pp - tr Q_mean. It never grows in a
    round with a doubly stochastic A, and is 0 for equal workers.

    Parameters
    ----------
    x : Overlaps or Weights
        State; leading axes pass through.

    Returns
    -------
    (...) array
        The consensus distance.

    References
    ----------
    Chapter :doc:`gossip_square`, equation :eq:`eq-consensus`.
    """
    if isinstance(x, Weights):
        x = overlaps(x)
    check_state(x)
    P = x.v.shape[-2]
    own, products = np.einsum("...pkpk->...p", x.Q), np.einsum("...pkqk->...pq", x.Q)
    apart = own[..., :, None] + own[..., None, :] - 2 * products
    return apart.sum((-2, -1)) / (2 * P**2)


def independent(problem, x):
    """x with the overlaps that workers from independent starts have: Q^pq = R^p T^-1 R^q^T.

    What two workers have in common is then what both know of the teacher. In the limit N ->
    infinity it stays so until their first round; at finite N up to 1 / sqrt(N).

    x : Overlaps, of which the workers' own Q^pp, R and v are kept; leading axes pass through.
    Returns Overlaps. Raises ValueError for a singular T and overlaps that no weights have. Chapter
    `gossip_ode`, equation :eq:`eq-independent`; derived in the book.
    """
    check_overlaps(problem, x)
    if np.linalg.matrix_rank(problem.T, hermitian=True) < len(problem.T):
        raise ValueError("T is singular, so Q = R T^-1 R^T does not exist: a unit repeats others")
    own = np.eye(x.v.shape[-2], dtype=bool)[:, None, :, None]
    known = np.linalg.solve(problem.T, np.swapaxes(x.R, -1, -2))
    Q = np.einsum("...pkm,...qml->...pkql", x.R, known)
    return Overlaps(Q=np.where(own, x.Q, Q), R=x.R, v=x.v)


def apply_mixing(A, state):
    """mix() without its checks, for loops that made them once."""
    mixed = {}
    for name, axes in state.worker_axes.items():
        array = _wide(getattr(state, name))
        matrix = array.new_tensor(A) if hasattr(array, "new_tensor") else A
        for axis in axes:
            array = _along(matrix, array, axis)
        mixed[name] = _like(array, getattr(state, name))
    return replace(state, **mixed)


def _wide(array):
    """A tensor in float64, in which A holds its digits; NumPy promotes by itself."""
    return array.double() if hasattr(array, "new_tensor") else array


def _like(array, old):
    """The tensor `array` in the dtype of the old one."""
    return array.to(old.dtype) if hasattr(array, "new_tensor") else array


def _along(A, array, axis):
    """Weighted sums over one axis, for NumPy arrays and torch tensors alike.

    Term by term: a matrix product rounds according to the place, so that equal units would part.
    """
    moved = array.swapaxes(axis, 0)
    weights = A.reshape(*A.shape, *(1,) * (moved.ndim - 1)).swapaxes(0, 1)
    return sum(a * term for a, term in zip(weights, moved, strict=True)).swapaxes(0, axis)


def warn_of_drift(A, stacklevel=3):
    """Warn, in words, of a square A whose columns do not sum to 1.

    stacklevel : as of warnings.warn, so that it points to the user's line.
    """
    P = A.shape[0]
    if A.shape[1] != P or np.allclose(A.sum(0), 1, rtol=0, atol=rounding(A)):
        return
    limit = (A + np.eye(P)) / 2  # lazy, so that the powers converge; same stationary weights
    for _ in range(60):
        limit = limit @ limit
        limit /= limit.sum(1, keepdims=True)
    if np.allclose(limit, limit[0], rtol=0, atol=1e-9):
        weights = ", ".join(f"{w:.7g}" for w in limit[0])
        fate = f"in the long run the workers count with weights {weights}"
    else:
        fate = "in the long run different workers end with different means"
    warnings.warn(
        f"columns do not sum to 1: the mean is not kept; {fate}",
        UserWarning,
        stacklevel=stacklevel,
    )
