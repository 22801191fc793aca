"""Gossip: the one operator that averages workers.

A round of gossip replaces every worker's weights by a weighted mean of its neighbours',
W^p <- sum_q A_pq W^q. On overlaps this is R <- A R and Q <- A Q A^T on the worker axes: exact,
at any N, because a mean of rows has the mean of their overlaps. Chapter :doc:`gossip_square`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike

from ..checks import check_mixing, rounding
from ..labels import check_kind, workers
from ..problem import Problem
from ..states import Overlaps, check_overlaps, overlaps


def mix(A: ArrayLike | Callable, state: Any) -> Any:
    """Make one round of gossip: the same weighted means on every worker axis of a state.

    Parameters
    ----------
    A : (P_new, P) array or callable
        Weights A[receiver, sender] from 0 up, whose rows sum to 1. So np.ones((4, 1)) spawns four
        copies of one worker, and np.ones((1, P)) / P takes the mean. Or a callable on states, such
        as matched(A).
    state : Overlaps, Weights or another state
        Leading axes pass through.

    Returns
    -------
    Overlaps, Weights or another state
        The state after the round, of the same kind.

    Raises
    ------
    ValueError
        If A has another size, a negative entry or a row that does not sum to 1, or if a callable
        returns a state of another kind or shape.

    Warns
    -----
    UserWarning
        If a square A keeps no mean, because its columns do not sum to 1.

    See Also
    --------
    matched : A round that first puts units in the same order.

    Notes
    -----
    Mixing commutes with the overlaps, exactly: overlaps(mix(A, w)) == mix(A, overlaps(w)). Means
    are taken in float64; those of float32 tensors are rounded to float32 at the end. An A of
    float32 numbers is used as it is. Its rows may miss 1 by their rounding (up to 1e-6), by which
    weights then grow or shrink at every round.

    References
    ----------
    Chapter :doc:`gossip_square`, equation :eq:`eq-square`.

    Examples
    --------
    >>> Q = np.eye(2).reshape(2, 1, 2, 1)
    >>> x = gd.Overlaps(Q=Q, R=[[[1.0]], [[0.0]]], v=np.ones((2, 1)))
    >>> after = gd.mix(gd.complete(2), x)
    >>> print(after.R.ravel(), after.Q.ravel())
    [0.5 0.5] [0.5 0.5 0.5 0.5]
    """
    check_kind(state, "mix(A, state) takes")
    if not callable(A):
        A = check_mixing(A, workers(state))
        warn_of_drift(A)
    return mixed(A, state)


def mixed(A, state):
    """The state after the round A: a matrix that has been checked, or a callable on states."""
    if not callable(A):
        return apply_mixing(A, state)
    new = A(state)
    shapes = [
        {name: tuple(getattr(s, name).shape) for name in getattr(s, "worker_axes", ())}
        for s in (state, new)
    ]
    if type(new) is not type(state) or shapes[0] != shapes[1]:
        raise ValueError(
            f"{A!r} made {type(new).__name__} of shapes {shapes[1]} of {type(state).__name__} of "
            f"shapes {shapes[0]}: return the same kind and shapes"
        )
    return new


def consensus_distance(x: Any) -> Annotated[np.ndarray, "..."]:
    """Measure how far the workers are from their mean.

    It is the mean over the workers p of ``|W^p - W_mean|^2 / N``, the sum of the squared distances
    of all K rows, with second layers left out: (1/P) sum_p tr Q^pp - tr Q_mean. It never grows in a
    round with a doubly stochastic A, and is 0 for equal workers.

    Parameters
    ----------
    x : Overlaps, Weights or another state
        Leading axes pass through.

    Returns
    -------
    (...) array
        The consensus distance.

    References
    ----------
    Chapter :doc:`gossip_square`, equation :eq:`eq-consensus`.
    """
    x = overlaps(x)
    P = x.v.shape[-2]
    own, products = np.einsum("...pkpk->...p", x.Q), np.einsum("...pkqk->...pq", x.Q)
    apart = own[..., :, None] + own[..., None, :] - 2 * products
    return apart.sum((-2, -1)) / (2 * P**2)


def independent(problem: Problem, x: Overlaps) -> Overlaps:
    """Give a state the overlaps of workers from independent starts: ``Q^pq = R^p T^-1 R^q^T``.

    What two workers have in common is then what both know of the teacher. In the limit
    N -> infinity it stays so until their first round, at finite N up to 1 / sqrt(N).

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    x : Overlaps
        State, of which the workers' own Q^pp, R and v are kept; leading axes pass through.

    Returns
    -------
    Overlaps
        The state with independent workers.

    Raises
    ------
    ValueError
        If T is singular, or if no weights have the overlaps x.

    References
    ----------
    Chapter :doc:`gossip_ode`, equation :eq:`eq-independent`; derived in the book.
    """
    check_overlaps(problem, x)
    if np.linalg.matrix_rank(problem.T, hermitian=True) < len(problem.T):
        raise ValueError("T is singular, so Q = R T^-1 R^T does not exist: a unit repeats others")
    own = np.eye(x.v.shape[-2], dtype=bool)[:, None, :, None]
    known = np.linalg.solve(problem.T, np.swapaxes(x.R, -1, -2))
    Q = np.einsum("...pkm,...qml->...pkql", x.R, known)
    return Overlaps(Q=np.where(own, x.Q, Q), R=x.R, v=x.v)


def apply_mixing(A, state):
    """mix() without its checks, for loops that made them once; A may be any real matrix."""
    mixed = {}
    for name, axes in state.worker_axes.items():
        array = _wide(getattr(state, name))
        matrix = array.new_tensor(A) if hasattr(array, "new_tensor") else A
        for axis in axes:
            array = _along(matrix, array, axis)
        mixed[name] = _like(array, getattr(state, name))
    return replace(state, **mixed)


def with_rows(state, starts):
    """The state with further rows after its workers: `starts` (H, P) times the workers."""
    if not len(starts):
        return state
    return apply_mixing(np.concatenate([np.eye(workers(state)), starts]), state)


def apply_to_rows(G, state):
    """The state whose rows (p, k) are G times the old ones: Q <- G Q G^T, R <- G R, W <- G W.

    G : (..., P K, P K), with the leading axes of the state.
    """
    new = {}
    for name, places in state.worker_axes.items():
        array = _wide(getattr(state, name))
        for place in places:  # every worker axis stands before its student axis
            array = _on_rows(G, array, place)
        new[name] = _like(array, getattr(state, name))
    return replace(state, **new)


def _on_rows(G, array, place):
    """G times the rows of an array whose worker and student axes are place and place + 1."""
    lead = G.ndim - 2
    torch = hasattr(array, "new_tensor")
    move = type(array).movedim if torch else np.moveaxis
    rows = move(array, (place, place + 1), (lead, lead + 1))
    shape = rows.shape
    rows = (array.new_tensor(G) if torch else G) @ rows.reshape(*shape[:lead], G.shape[-1], -1)
    return move(rows.reshape(shape), (lead, lead + 1), (place, place + 1))


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
