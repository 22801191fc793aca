"""Schedules: one graph after the other, for the rounds of a run."""

import numpy as np

from ..checks import number, whole
from .graphs import exponential_shifts


def one_peer_exponential(P: int, period: float, rounds: int) -> list[tuple[float, np.ndarray]]:
    """Make a schedule in which each worker averages with one other in each round.

    In round i worker p averages with p + 2^(i mod tau), modulo P, where tau = ceil(log2 P). Then
    tau rounds in a row bring exact consensus if and only if P is a power of two.

    Parameters
    ----------
    P : int
        Number of workers.
    period : float
        Training time alpha before each round.
    rounds : int
        Number of rounds.

    Returns
    -------
    list of (period, A)
        A schedule for run(), with one mixing matrix A (P, P) for each round.

    References
    ----------
    Chapter :doc:`topology`, equation :eq:`eq-one-peer`; Ying et al. (2021).
    """
    P, rounds, period = whole(P, "P", 1), whole(rounds, "rounds"), number(period, "period", 0)
    turns = [(np.eye(P) + shift) / 2 for shift in exponential_shifts(P)] or [np.eye(P)]
    return [(period, turns[i % len(turns)]) for i in range(rounds)]


def random_pairs(
    P: int, period: float, rounds: int, seed: int = 0
) -> list[tuple[float, np.ndarray]]:
    """Make a schedule in which one uniformly random pair of workers takes its mean in each round.

    On average the second eigenvalue of a round is 1 - 1 / (P - 1).

    Parameters
    ----------
    P : int
        Number of workers, 2 or more.
    period : float
        Training time alpha before each round.
    rounds : int
        Number of rounds.
    seed : int, optional
        Seed of the pairs. They are drawn here, from this seed alone, so they do not depend on the
        seed of the data.

    Returns
    -------
    list of (period, A)
        A schedule for run(), with one mixing matrix A (P, P) for each round.

    References
    ----------
    Chapter :doc:`topology`; Boyd et al. (2006).
    """
    P, rounds, period = whole(P, "P", 2), whole(rounds, "rounds"), number(period, "period", 0)
    i, j = np.triu_indices(P, 1)
    matrices = []
    for pair in np.random.default_rng(whole(seed, "seed")).integers(i.size, size=rounds):
        A = np.eye(P)
        A[np.ix_(*2 * [[i[pair], j[pair]]])] = 0.5
        matrices.append(A)
    return [(period, A) for A in matrices]
