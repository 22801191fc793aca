"""What is made of a mixing matrix, and what it does: weights, lost edges, the spectral gap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike

from ..checks import EXACT, check_mixing
from .graphs import pairs_of_workers, with_own_weight


def lazy(A: ArrayLike) -> Annotated[np.ndarray, "P P"]:
    """Let everyone keep half: return (A + I) / 2, with the identity matrix I.

    For a symmetric A no eigenvalue of the result lies below 0. A mean that A keeps stays kept.

    Parameters
    ----------
    A : (P, P) array
        Mixing matrix A[receiver, sender].

    Returns
    -------
    (P, P) array
        The lazy mixing matrix.

    Examples
    --------
    >>> print(gd.lazy([[0, 1], [1, 0]]))
    [[0.5 0.5]
     [0.5 0.5]]
    """
    A = _square(A)
    return (A + np.eye(A.shape[0], dtype=A.dtype)) / 2


def max_degree(A: ArrayLike) -> Annotated[np.ndarray, "P P"]:
    """Give every edge of the graph of A the weight 1 / (1 + largest degree).

    The result is doubly stochastic, as with Metropolis weights, and equal to these on graphs in
    which all workers have one degree.

    Parameters
    ----------
    A : (P, P) array
        Mixing matrix A[receiver, sender].

    Returns
    -------
    (P, P) array
        The mixing matrix with the new weights.

    Raises
    ------
    ValueError
        If an edge of the graph has one direction only.
    """
    graph = _square(A) > 0
    np.fill_diagonal(graph, False)
    if np.any(graph != graph.T):
        i, j = np.argwhere(graph & ~graph.T)[0]
        raise ValueError(
            f"worker {i} hears worker {j}, and {j} does not hear {i}: max-degree weights belong "
            "to undirected graphs"
        )
    return with_own_weight(graph / (1 + graph.sum(1).max()))


def drop_edges(A: ArrayLike, lost: Iterable[Sequence[int]]) -> Annotated[np.ndarray, "P P"]:
    """Take lost edges out of A: either end keeps for itself the weight that it gave to the other.

    Rows still sum to 1. Columns do so where A_ij = A_ji on the lost edges, and then the mean of the
    workers is kept.

    Parameters
    ----------
    A : (P, P) array
        Mixing matrix A[receiver, sender].
    lost : iterable of pairs of int
        Pairs of workers that do not hear each other in this round.

    Returns
    -------
    (P, P) array
        The mixing matrix of the round.

    Raises
    ------
    ValueError
        If a pair does not average in A.
    """
    A = _square(A)
    for i, j in pairs_of_workers(A.shape[0], lost):
        if not (A[i, j] or A[j, i]):
            raise ValueError(f"edge ({i}, {j}) cannot be lost: its weights in A are 0 already")
        A[i, i] += A[i, j]
        A[j, j] += A[j, i]
        A[i, j] = A[j, i] = 0
    return A


def spectral_gap(A: ArrayLike) -> float:
    """Compute the part of the workers' disagreement that one round removes at least.

    For a symmetric or normal A the gap is one minus the second largest modulus of an eigenvalue.
    For any other A it is one minus the spectral norm of A less 1 / P in every entry, which can be
    negative.

    Parameters
    ----------
    A : (P, P) array
        Mixing matrix A[receiver, sender], whose rows sum to 1.

    Returns
    -------
    float
        The spectral gap.

    Notes
    -----
    A noise floor depends on all eigenvalues of A, and not on the gap alone.

    References
    ----------
    Chapter :doc:`topology`, equation :eq:`eq-period`; Xiao and Boyd (2004).

    Examples
    --------
    >>> print(f"{gd.spectral_gap(gd.ring(4)):.6f}")
    0.666667
    """
    A = check_mixing(A, square="a spectral gap")
    P = len(A)
    if np.allclose(A @ A.T, A.T @ A, rtol=0, atol=1e-12):
        moduli = np.sort(np.abs(np.linalg.eigvals(A)))
        return float(1 - moduli[-2]) if P > 1 else 1.0
    return float(1 - np.linalg.norm(A - 1 / P, 2))


def _square(A: Any) -> np.ndarray:
    """A checked, in float32 where its rows sum to 1 in float32 only: so will those made of it."""
    A = check_mixing(A, square="a graph of workers")
    return A if np.all(np.abs(A.sum(1) - 1) <= EXACT) else A.astype(np.float32)
