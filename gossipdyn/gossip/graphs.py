"""Graphs and their mixing matrices: who averages with whom, and with which weights.

A[receiver, sender] is the weight of the sender's parameters in the receiver's next ones. Every
graph of one worker is [[1]]. Chapter :doc:`topology`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import numpy as np

from ..checks import number, pair, whole

TRIES = 1000  # random graphs drawn before we say that they do not connect


def from_edges(P: int, edges: Iterable[Sequence[int]]) -> Annotated[np.ndarray, "P P"]:
    """Make the mixing matrix of an undirected graph, with Metropolis weights.

    The weights are A_ij = 1 / (1 + max(d_i, d_j)) on edges, with the degrees d, and the rest of
    each row stands on the diagonal. So A is symmetric and doubly stochastic, and a round keeps the
    mean of the workers.

    Parameters
    ----------
    P : int
        Number of workers.
    edges : iterable of pairs of int
        Pairs of different workers in 0 .. P-1, each pair once.

    Returns
    -------
    (P, P) array
        The mixing matrix A[receiver, sender].

    Raises
    ------
    ValueError
        If an edge is a self-loop, is given twice or names a worker that does not exist, or if the
        graph falls into several parts, which the message lists.

    References
    ----------
    Chapter :doc:`topology`; Xiao and Boyd (2004).

    Examples
    --------
    >>> print((3 * gd.from_edges(3, [(0, 1), (1, 2)])).round(6))
    [[2. 1. 0.]
     [1. 1. 1.]
     [0. 1. 2.]]
    """
    P = whole(P, "P", 1)
    graph = np.zeros((P, P), dtype=bool)
    for i, j in pairs_of_workers(P, edges):
        graph[i, j] = graph[j, i] = True
    parts = _parts(graph)
    if len(parts) > 1:
        listed = " and ".join("{" + ", ".join(map(str, part)) + "}" for part in parts)
        raise ValueError(f"the graph falls into {len(parts)} parts: {listed}; connect them")
    degree = graph.sum(1)
    return with_own_weight(graph / (1 + np.maximum(degree[:, None], degree)))


def from_networkx(graph: Any) -> Annotated[np.ndarray, "P P"]:
    """Make the mixing matrix of a networkx graph, with Metropolis weights.

    Worker p is the p-th node. Nodes count in the order in which the graph holds them,
    ``list(graph.nodes)``: that in which they were added, by themselves or by an edge, whatever
    their names are.

    Parameters
    ----------
    graph : networkx.Graph
        An undirected graph without weights.

    Returns
    -------
    (P, P) array
        The mixing matrix A[receiver, sender].

    Raises
    ------
    ValueError
        If the graph is directed, if an edge has a weight, or if from_edges() refuses the graph.

    See Also
    --------
    from_edges : The same from a list of pairs.

    Notes
    -----
    A graph whose nodes are numbers can be sorted first::

        sorted_graph = nx.Graph()
        sorted_graph.add_nodes_from(sorted(graph))
        sorted_graph.add_edges_from(graph.edges)
    """
    if not hasattr(graph, "nodes") or not hasattr(graph, "is_directed"):
        raise ValueError(f"expected a networkx graph, got {type(graph).__name__}")
    if graph.is_directed():
        raise ValueError(
            "the graph is directed: Metropolis weights belong to undirected graphs, use "
            "graph.to_undirected() or write the matrix A[receiver, sender] yourself"
        )
    for i, j, weight in graph.edges(data="weight"):
        if weight not in (None, 1):
            raise ValueError(
                f"edge ({i!r}, {j!r}) has weight {weight}: Metropolis weights come from the "
                "degrees alone; remove the weights, or write the matrix A[receiver, sender]"
            )
    worker = {node: p for p, node in enumerate(graph.nodes)}
    return from_edges(len(worker), [(worker[i], worker[j]) for i, j in graph.edges()])


def complete(P: int) -> Annotated[np.ndarray, "P P"]:
    """Make the mixing matrix of the complete graph: everyone averages with everyone.

    All weights are 1 / P, so one round brings exact consensus.

    Parameters
    ----------
    P : int
        Number of workers.

    Returns
    -------
    (P, P) array
        The mixing matrix A[receiver, sender].
    """
    P = whole(P, "P", 1)
    return np.full((P, P), 1 / P)


def ring(P: int) -> Annotated[np.ndarray, "P P"]:
    """Make the mixing matrix of neighbours on a circle.

    For P >= 3 the weights are 1/3, and the eigenvalues (1 + 2 cos(2 pi k / P)) / 3.

    Parameters
    ----------
    P : int
        Number of workers.

    Returns
    -------
    (P, P) array
        The mixing matrix A[receiver, sender].

    Examples
    --------
    >>> print((3 * gd.ring(4)).round(6))
    [[1. 1. 0. 1.]
     [1. 1. 1. 0.]
     [0. 1. 1. 1.]
     [1. 0. 1. 1.]]
    """
    P = whole(P, "P", 1)
    return from_edges(P, {tuple(sorted((i, (i + 1) % P))) for i in range(P) if P > 1})


def path(P: int) -> Annotated[np.ndarray, "P P"]:
    """Make the mixing matrix of neighbours on a line.

    For P >= 3 the eigenvalues are 1/3 + (2/3) cos(pi k / P), with k = 0 .. P-1.

    Parameters
    ----------
    P : int
        Number of workers.

    Returns
    -------
    (P, P) array
        The mixing matrix A[receiver, sender].
    """
    P = whole(P, "P", 1)
    return from_edges(P, [(i, i + 1) for i in range(P - 1)])


def star(P: int) -> Annotated[np.ndarray, "P P"]:
    """Make the mixing matrix of a star with worker 0 in the middle; its spectral gap is 1 / P.

    Parameters
    ----------
    P : int
        Number of workers.

    Returns
    -------
    (P, P) array
        The mixing matrix A[receiver, sender].
    """
    P = whole(P, "P", 1)
    return from_edges(P, [(0, i) for i in range(1, P)])


def torus(n: int, m: int) -> Annotated[np.ndarray, "P P"]:
    """Make the mixing matrix of an n x m grid with opposite sides joined.

    Worker i m + j stands at row i and column j. For n, m >= 3 the eigenvalues are
    (1 + 2 cos(2 pi k / n) + 2 cos(2 pi l / m)) / 5.

    Parameters
    ----------
    n, m : int
        Rows and columns of the grid.

    Returns
    -------
    (P, P) array
        The mixing matrix A[receiver, sender], with P = n m.
    """
    n, m = whole(n, "n", 1), whole(m, "m", 1)
    here = [(i, j) for i in range(n) for j in range(m)]
    steps = [(i * m + j, (i + 1) % n * m + j) for i, j in here]
    steps += [(i * m + j, i * m + (j + 1) % m) for i, j in here]
    return from_edges(n * m, {tuple(sorted(step)) for step in steps if step[0] != step[1]})


def hypercube(d: int) -> Annotated[np.ndarray, "P P"]:
    """Make the mixing matrix of 2^d workers that are neighbours if one binary digit differs.

    The eigenvalues are 1 - 2 k / (d + 1) with k = 0 .. d, so the second largest modulus is
    (d - 1) / (d + 1).

    Parameters
    ----------
    d : int
        Number of binary digits.

    Returns
    -------
    (P, P) array
        The mixing matrix A[receiver, sender], with P = 2^d.
    """
    P = 2 ** whole(d, "d", 0)
    digits = [2**i for i in range(d)]
    return from_edges(P, [(p, p ^ digit) for p in range(P) for digit in digits if p < p ^ digit])


def exponential(P: int) -> Annotated[np.ndarray, "P P"]:
    """Make the static exponential graph: worker p hears p + 1, p + 2, p + 4, ... (modulo P).

    A worker hears tau = ceil(log2 P) senders and itself, all with the weight 1 / (tau + 1). The
    matrix is not symmetric, yet doubly stochastic and normal. For even P the second largest modulus
    of an eigenvalue is (tau - 1) / (tau + 1).

    Parameters
    ----------
    P : int
        Number of workers.

    Returns
    -------
    (P, P) array
        The mixing matrix A[receiver, sender].

    References
    ----------
    Chapter :doc:`topology`; Ying et al. (2021).
    """
    P = whole(P, "P", 1)
    shifts = exponential_shifts(P)
    return sum(shifts, np.eye(P)) / (len(shifts) + 1)


def erdos_renyi(P: int, probability: float, seed: int = 0) -> Annotated[np.ndarray, "P P"]:
    """Draw a random graph until it is connected, and make its matrix of Metropolis weights.

    Parameters
    ----------
    P : int
        Number of workers.
    probability : float
        Probability with which each pair of workers is an edge.
    seed : int, optional
        Seed of the draws.

    Returns
    -------
    (P, P) array
        The mixing matrix A[receiver, sender].

    Raises
    ------
    ValueError
        If 1000 draws in a row fall into parts. A graph connects from a probability of about
        ln(P) / P on.
    """
    P = whole(P, "P", 1)
    probability = number(probability, "probability", 0, 1)
    rng = np.random.default_rng(whole(seed, "seed"))
    i, j = np.triu_indices(P, 1)
    for _ in range(TRIES):
        drawn = rng.random(i.size) < probability
        graph = np.zeros((P, P), dtype=bool)
        graph[i[drawn], j[drawn]] = graph[j[drawn], i[drawn]] = True
        if len(_parts(graph)) == 1:
            return from_edges(P, zip(i[drawn], j[drawn], strict=True))
    raise ValueError(
        f"none of {TRIES} random graphs of {P} workers with edge probability {probability:.4g} is "
        f"connected; that takes a probability of about ln(P) / P = {np.log(P) / P:.2g}"
    )


def with_own_weight(A):
    """A with what is missing from each row on its diagonal, which is 0 so far."""
    return A + np.diag(1 - A.sum(1))


def exponential_shifts(P):
    """The permutations p -> p + 1, p + 2, p + 4, ... (modulo P), one for each power below P."""
    return [np.roll(np.eye(P), 2**i, axis=1) for i in range((P - 1).bit_length())]


def pairs_of_workers(P, edges):
    """The edges as pairs of ints, checked."""
    seen = set()
    if not np.iterable(edges):
        raise ValueError(f"edges is a list of pairs of workers, got {edges!r}")
    for edge in edges:
        ends = pair(edge, "an edge", "of workers")
        i, j = (whole(end, f"a worker of the edge {edge}", 0, P - 1) for end in ends)
        if i == j:
            raise ValueError(f"edge ({i}, {j}) is a self-loop, as all workers have: leave it out")
        if {(i, j), (j, i)} & seen:
            raise ValueError(f"edge ({i}, {j}) is given twice (edges have no direction)")
        seen.add((i, j))
    return sorted(seen)


def _parts(graph):
    """Connected parts of a graph, each a sorted list of workers."""
    parts, left = [], set(range(graph.shape[0]))
    while left:
        part, front = set(), {min(left)}
        while front:
            part |= front
            front = {int(j) for i in front for j in np.flatnonzero(graph[i])} - part
        parts.append(sorted(part))
        left -= part
    return parts
