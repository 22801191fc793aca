"""Gossip: graphs, their mixing matrices, and the one operator that averages workers.

A round of gossip replaces every worker's weights by a weighted mean of its neighbours',
W^p <- sum_q A_pq W^q. On overlaps this is R <- A R and Q <- A Q A^T on the worker axes: exact,
at any N, because a mean of rows has the mean of their overlaps. Chapter `gossip_square`.
"""

import warnings
from dataclasses import replace
from operator import index

import numpy as np

# graphs


def from_edges(P, edges):
    """Mixing matrix (P, P) of an undirected graph, with Metropolis weights.

    A_ij = 1 / (1 + max(d_i, d_j)) on edges, the rest on the diagonal: symmetric and doubly
    stochastic, so the mean of the workers is kept (Xiao & Boyd 2004).

    edges: pairs of different workers in 0..P-1, each pair once. Raises ValueError for self-loops,
    duplicates, workers that do not exist, and graphs in several parts (which are listed).
    """
    P = _count(P, "P", 1)
    A = np.zeros((P, P))
    for edge in edges:
        try:
            i, j = (index(worker) for worker in edge)
        except (TypeError, ValueError) as error:
            raise ValueError(f"an edge is a pair of workers, got {edge!r}") from error
        if not (0 <= i < P and 0 <= j < P):
            raise ValueError(f"edge ({i}, {j}) names a worker outside 0..{P - 1} (P={P})")
        if i == j:
            raise ValueError(
                f"edge ({i}, {j}) is a self-loop: a worker always keeps part of its own "
                "weights, leave it out"
            )
        if A[i, j]:
            raise ValueError(f"edge ({i}, {j}) is given twice (edges have no direction)")
        A[i, j] = A[j, i] = 1
    parts = _components(A)
    if len(parts) > 1:
        listed = " and ".join("{" + ", ".join(map(str, part)) + "}" for part in parts)
        raise ValueError(f"the graph falls into {len(parts)} parts: {listed}; connect them")
    degree = A.sum(1)
    A /= 1 + np.maximum(degree[:, None], degree)
    A[np.diag_indices(P)] = 1 - A.sum(1)
    return A


def complete(P):
    """Everyone averages with everyone: A = 1 1^T / P, exact consensus in one round."""
    P = _count(P, "P", 1)
    return np.full((P, P), 1 / P)


def ring(P):
    """Neighbours on a circle: weights 1/3, eigenvalues (1 + 2 cos(2 pi k / P)) / 3 for P >= 3."""
    P = _count(P, "P", 1)
    return from_edges(P, {tuple(sorted((i, (i + 1) % P))) for i in range(P) if P > 1})


def path(P):
    """Neighbours on a line: eigenvalues 1/3 + (2/3) cos(pi k / P)."""
    P = _count(P, "P", 1)
    return from_edges(P, [(i, i + 1) for i in range(P - 1)])


def star(P):
    """Worker 0 in the middle: spectral gap 1 / P."""
    P = _count(P, "P", 1)
    return from_edges(P, [(0, i) for i in range(1, P)])


def spectral_gap(A):
    """1 - |lambda_2|: how much of the disagreement one round removes, at least.

    For a symmetric (or normal) A: one minus the second largest modulus of an eigenvalue; for any
    other A: one minus the spectral norm of A - 1 1^T / P, which can be negative. A: (P, P), rows
    sum to 1. Returns a float. Xiao & Boyd (2004).
    """
    A = check_mixing(A)
    P = A.shape[0]
    if A.shape[1] != P:
        raise ValueError(f"a spectral gap belongs to a square A, got shape {A.shape}")
    if np.allclose(A @ A.T, A.T @ A, rtol=0, atol=1e-12):
        moduli = np.sort(np.abs(np.linalg.eigvals(A)))
        return float(1 - moduli[-2]) if P > 1 else 1.0
    return float(1 - np.linalg.norm(A - 1 / P, 2))


# the operator


def mix(A, state):
    """One round of gossip on Overlaps or Weights: the same weighted means on every worker axis.

    A: (P_new, P), A[receiver, sender] >= 0, rows sum to 1. ones((4, 1)) spawns four copies of one
    worker, ones((1, P)) / P is the mean. Returns a state of the same kind; leading axes pass
    through. overlaps(mix(A, w)) == mix(A, overlaps(w)), exactly: chapter `gossip_square`, equation
    :eq:`eq-square`.

    Raises ValueError for an A of the wrong size, negative or not row-stochastic; warns when a
    square A keeps no mean (columns that do not sum to 1).
    """
    A = check_mixing(A, state.v.shape[-2])
    warn_of_drift(A)
    return apply_mixing(A, state)


def apply_mixing(A, state):
    """mix() without its checks, for loops that made them once."""
    mixed = {}
    for name, axes in state.worker_axes.items():
        array = getattr(state, name)
        matrix = array.new_tensor(A) if hasattr(array, "new_tensor") else A
        for axis in axes:
            array = _along(matrix, array, axis)
        mixed[name] = array
    return replace(state, **mixed)


def _along(A, array, axis):
    """Matrix product over one axis, for NumPy arrays and torch tensors alike."""
    moved = array.swapaxes(axis, 0)
    product = A @ moved.reshape(moved.shape[0], -1)
    return product.reshape(-1, *moved.shape[1:]).swapaxes(0, axis)


def check_mixing(A, workers=None):
    """A as a float64 array, or a ValueError that says what is wrong with it."""
    try:
        A = np.array(A, dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"A must be a matrix of real numbers, got {A!r}") from error
    if A.ndim != 2 or 0 in A.shape:
        raise ValueError(f"A is a matrix A[receiver, sender], got shape {A.shape}")
    if workers is not None and A.shape[1] != workers:
        raise ValueError(
            f"A of shape {A.shape} takes {A.shape[1]} workers, the state has {workers}"
        )
    if not np.all(np.isfinite(A)):
        raise ValueError(f"A holds NaN or infinity:\n{A}")
    if np.any(A < 0):
        i, j = np.argwhere(A < 0)[0]
        raise ValueError(
            f"A[{i}, {j}] = {A[i, j]:.4g}: gossip needs weighted averages, no entry below 0"
        )
    sums = A.sum(1)
    if np.any(np.abs(sums - 1) > 1e-9):
        row = int(np.argmax(np.abs(sums - 1) > 1e-9))
        raise ValueError(
            f"row {row} of A sums to {sums[row]:.5g}: gossip needs weighted averages, rows that "
            "sum to 1"
        )
    return A


def warn_of_drift(A):
    """Warn, in words, of a square A whose columns do not sum to 1."""
    P = A.shape[0]
    if A.shape[1] != P or np.allclose(A.sum(0), 1, rtol=0, atol=1e-9):
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
        f"columns do not sum to 1: the mean is not kept; {fate}", UserWarning, stacklevel=3
    )


def _components(A):
    """Connected parts of a graph, each a sorted list of workers."""
    parts, left = [], set(range(A.shape[0]))
    while left:
        part, front = set(), {min(left)}
        while front:
            part |= front
            front = {int(j) for i in front for j in np.flatnonzero(A[i])} - part
        parts.append(sorted(part))
        left -= part
    return parts


def _count(n, name, least):
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < least:
        raise ValueError(f"{name} is a whole number from {least} up, got {n!r}")
    return int(n)
