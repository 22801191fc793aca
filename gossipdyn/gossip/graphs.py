"""Graphs, their mixing matrices and schedules: who averages with whom, with which weights.

A[receiver, sender] is the weight of the sender's parameters in the receiver's next ones. Every
graph of one worker is [[1]]. Chapter `topology`.
"""

from operator import index

import numpy as np

from ..checks import EXACT, check_mixing, number, whole

TRIES = 1000  # random graphs drawn before we say that they do not connect


# one graph, one matrix


def from_edges(P, edges):
    """Mixing matrix (P, P) of an undirected graph, with Metropolis weights.

    A_ij = 1 / (1 + max(d_i, d_j)) on edges, the rest on the diagonal: symmetric and doubly
    stochastic, so the mean of the workers is kept (Xiao & Boyd 2004).

    edges: pairs of different workers in 0..P-1, each pair once. Raises ValueError for self-loops,
    duplicates, workers that do not exist, and graphs in several parts (which are listed).
    """
    P = whole(P, "P", 1)
    graph = np.zeros((P, P), dtype=bool)
    for i, j in _pairs(P, edges):
        graph[i, j] = graph[j, i] = True
    parts = _parts(graph)
    if len(parts) > 1:
        listed = " and ".join("{" + ", ".join(map(str, part)) + "}" for part in parts)
        raise ValueError(f"the graph falls into {len(parts)} parts: {listed}; connect them")
    degree = graph.sum(1)
    return _with_own_weight(graph / (1 + np.maximum(degree[:, None], degree)))


def from_networkx(graph):
    """Mixing matrix with Metropolis weights of a networkx graph; worker p is its p-th node.

    Nodes count in the order in which the graph holds them, list(graph.nodes): that in which they
    were added, by themselves or by an edge, whatever their names are. A graph whose nodes are
    numbers can be sorted first: sorted_graph = nx.Graph(); sorted_graph.add_nodes_from(sorted(
    graph)); sorted_graph.add_edges_from(graph.edges).

    Raises ValueError for directed graphs, weighted edges, and all that from_edges() refuses.
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


def complete(P):
    """Everyone averages with everyone: A = 1 1^T / P, exact consensus in one round."""
    P = whole(P, "P", 1)
    return np.full((P, P), 1 / P)


def ring(P):
    """Neighbours on a circle: weights 1/3, eigenvalues (1 + 2 cos(2 pi k / P)) / 3 for P >= 3."""
    P = whole(P, "P", 1)
    return from_edges(P, {tuple(sorted((i, (i + 1) % P))) for i in range(P) if P > 1})


def path(P):
    """Neighbours on a line: eigenvalues 1/3 + (2/3) cos(pi k / P), k = 0..P-1, for P >= 3."""
    P = whole(P, "P", 1)
    return from_edges(P, [(i, i + 1) for i in range(P - 1)])


def star(P):
    """Worker 0 in the middle: spectral gap 1 / P."""
    P = whole(P, "P", 1)
    return from_edges(P, [(0, i) for i in range(1, P)])


def torus(n, m):
    """An n x m grid with opposite sides joined, worker i m + j at row i and column j.

    Eigenvalues (1 + 2 cos(2 pi k / n) + 2 cos(2 pi l / m)) / 5 for n, m >= 3.
    """
    n, m = whole(n, "n", 1), whole(m, "m", 1)
    here = [(i, j) for i in range(n) for j in range(m)]
    steps = [(i * m + j, (i + 1) % n * m + j) for i, j in here]
    steps += [(i * m + j, i * m + (j + 1) % m) for i, j in here]
    return from_edges(n * m, {tuple(sorted(step)) for step in steps if step[0] != step[1]})


def hypercube(d):
    """2^d workers, neighbours where their binary names differ in one digit.

    Eigenvalues 1 - 2 k / (d + 1), k = 0..d, so the second largest modulus is (d - 1) / (d + 1).
    """
    P = 2 ** whole(d, "d", 0)
    digits = [2**i for i in range(d)]
    return from_edges(P, [(p, p ^ digit) for p in range(P) for digit in digits if p < p ^ digit])


def exponential(P):
    """The static exponential graph: worker p hears p + 1, p + 2, p + 4, ... (modulo P).

    tau = ceil(log2 P) senders and itself, with weights 1 / (tau + 1): not symmetric, yet doubly
    stochastic and normal. Even P: the second largest modulus of an eigenvalue is
    (tau - 1) / (tau + 1) (Ying et al. 2021).
    """
    P = whole(P, "P", 1)
    shifts = _shifts(P)
    return sum(shifts, np.eye(P)) / (len(shifts) + 1)


def erdos_renyi(P, probability, seed=0):
    """Every pair of workers is an edge with this probability; drawn again until connected.

    Metropolis weights. Raises ValueError when 1000 draws in a row fall into parts: connection
    takes a probability of about ln(P) / P.
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


# a matrix from a matrix


def lazy(A):
    """(A + 1) / 2: everyone keeps half. No eigenvalue lies below 0, and the mean stays kept."""
    A = _square(A)
    return (A + np.eye(A.shape[0], dtype=A.dtype)) / 2


def max_degree(A):
    """The graph of A with the weight 1 / (1 + largest degree) on every edge.

    Doubly stochastic like Metropolis weights, and the same on graphs of one degree. Raises
    ValueError for a graph with an edge of one direction only.
    """
    graph = _square(A) > 0
    np.fill_diagonal(graph, False)
    if np.any(graph != graph.T):
        i, j = np.argwhere(graph & ~graph.T)[0]
        raise ValueError(
            f"worker {i} hears worker {j}, and {j} does not hear {i}: max-degree weights belong "
            "to undirected graphs"
        )
    return _with_own_weight(graph / (1 + graph.sum(1).max()))


def drop_edges(A, lost):
    """A without the lost edges: either end keeps for itself the weight it gave to the other.

    Rows still sum to 1, and columns too where A_ij = A_ji on the lost edges, so the mean is kept.
    A: (P, P). lost: pairs of workers, for one round. Raises ValueError for pairs that do not
    average in A.
    """
    A = _square(A)
    for i, j in _pairs(A.shape[0], lost):
        if not (A[i, j] or A[j, i]):
            raise ValueError(
                f"edge ({i}, {j}) cannot be lost: A[{i}, {j}] and A[{j}, {i}] are 0 already"
            )
        A[i, i] += A[i, j]
        A[j, j] += A[j, i]
        A[i, j] = A[j, i] = 0
    return A


# schedules: a graph per round


def one_peer_exponential(P, period, rounds):
    """A schedule [(period, A), ...]: in round i worker p averages with p + 2^(i mod tau) alone.

    tau = ceil(log2 P) rounds in a row are exact consensus if and only if P is a power of two
    (Ying et al. 2021). Chapter `topology`, equation :eq:`eq-one-peer`.
    """
    P, rounds, period = whole(P, "P", 1), whole(rounds, "rounds"), number(period, "period", 0)
    turns = [(np.eye(P) + shift) / 2 for shift in _shifts(P)] or [np.eye(P)]
    return [(period, turns[i % len(turns)]) for i in range(rounds)]


def random_pairs(P, period, rounds, seed=0):
    """A schedule [(period, A), ...]: in each round one uniformly random pair takes its mean.

    On average the second eigenvalue of a round is 1 - 1 / (P - 1) (Boyd et al. 2006). The pairs
    are drawn here, from this seed alone: they do not depend on the seed of the data.
    """
    P, rounds, period = whole(P, "P", 2), whole(rounds, "rounds"), number(period, "period", 0)
    i, j = np.triu_indices(P, 1)
    matrices = []
    for pair in np.random.default_rng(whole(seed, "seed")).integers(i.size, size=rounds):
        A = np.eye(P)
        A[np.ix_(*2 * [[i[pair], j[pair]]])] = 0.5
        matrices.append(A)
    return [(period, A) for A in matrices]


# what a mixing matrix is


def spectral_gap(A):
    """1 - |lambda_2|: how much of the disagreement one round removes, at least.

    For a symmetric (or normal) A: one minus the second largest modulus of an eigenvalue; for any
    other A: one minus the spectral norm of A - 1 1^T / P, which can be negative. A: (P, P), rows
    sum to 1. Returns a float. Xiao & Boyd (2004). The noise floor asks for all eigenvalues, not for
    this one: chapter `topology`, equation :eq:`eq-period`.
    """
    A = check_mixing(A, square="a spectral gap")
    P = len(A)
    if np.allclose(A @ A.T, A.T @ A, rtol=0, atol=1e-12):
        moduli = np.sort(np.abs(np.linalg.eigvals(A)))
        return float(1 - moduli[-2]) if P > 1 else 1.0
    return float(1 - np.linalg.norm(A - 1 / P, 2))


def _square(A):
    """A checked, in float32 where its rows sum to 1 in float32 only: so will those made of it."""
    A = check_mixing(A, square="a graph of workers")
    return A if np.all(np.abs(A.sum(1) - 1) <= EXACT) else A.astype(np.float32)


def _with_own_weight(A):
    """A with what is missing from each row on its diagonal, which is 0 so far."""
    return A + np.diag(1 - A.sum(1))


def _shifts(P):
    """The permutations p -> p + 1, p + 2, p + 4, ... (modulo P), one for each power below P."""
    return [np.roll(np.eye(P), 2**i, axis=1) for i in range((P - 1).bit_length())]


def _pairs(P, edges):
    """The edges as pairs of ints, checked."""
    seen = set()
    if not np.iterable(edges):
        raise ValueError(f"edges is a list of pairs of workers, got {edges!r}")
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
