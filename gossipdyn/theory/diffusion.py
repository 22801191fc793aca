"""The diffusion matrix: the covariance of one step's change of the overlaps.

Chapter :doc:`finite_size`, equation :eq:`eq-diffusion`; derived in the book.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Annotated

import numpy as np
import scipy
from scipy.special import ndtri

from ..coordinates import Coordinates
from ..equations import State
from ..problem import Problem
from ..states import Overlaps, check_overlaps, field_covariance, gram

# the diffusion matrix


def diffusion(problem: Problem, x: Overlaps) -> Annotated[np.ndarray, "n n"]:
    """Compute the covariance of one step's change of the overlaps, times N^2, for N -> infinity.

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    x : Overlaps
        State (P, ...) without a leading axis of runs.

    Returns
    -------
    (n, n) array
        The diffusion matrix; n counts the independent entries as in Fluctuations.covariance.

    Raises
    ------
    ValueError
        If x has a leading axis of runs, or is not the overlaps of any weights.

    See Also
    --------
    fluctuations : The scatter of the overlaps that follows from it.

    Notes
    -----
    With e = phi - y, a sample of worker p moves ``N W^p f^T`` by ``-eta v_k g'_k e f``, where f are
    the fields of all rows. It moves the worker's own Q besides by ``eta^2 / batch v_k v_l g'_k g'_l
    e^2``, and v^p_k by -eta_v g_k e. The average over a worker's own fields is a deterministic
    quadrature. Other workers' fields, given its own, and the label noise enter by their exact
    moments.

    References
    ----------
    Chapter :doc:`finite_size`, equation :eq:`eq-diffusion`; derived in the book.
    """
    check_one_state(problem, x)
    return diffusion_of(problem, x)


def check_one_state(problem, x):
    """Refuse what are no overlaps of one state (P, ...)."""
    check_overlaps(problem, x)
    if x.v.ndim != 2:
        raise ValueError(f"one start or state (P, ...), no leading axis: got v {x.v.shape}")


def check_random_rows(x0):
    """Refuse a start of random rows with mean overlaps x0 that has a direction."""
    if np.any(x0.R):
        size = np.abs(x0.R).max()
        raise ValueError(f"random rows start from R = 0 on average, x0.R goes up to {size:.3g}")


def diffusion_of(problem, x, alpha=0.0):
    """diffusion() without its checks, at the learning rates of the time alpha."""
    rates = problem.rates(alpha)
    coordinates = Coordinates(problem, x)
    P, K, M = x.R.shape
    n = K + M
    fields = field_covariance(problem.T, x)
    everyone = gram(problem.T, x)
    teacher = np.arange(P * K, P * K + M)
    D = np.zeros((coordinates.size, coordinates.size))
    z, weight = nodes(n, problem.activation)
    for p in range(P):
        own = np.concatenate([np.arange(p * K, p * K + K), teacher])
        moments, scatter = _moments(problem, fields[p], x.v[p], z, weight)
        # all fields given the worker's own: the mean is linear, with this slope
        slope = everyone[:, own] @ np.linalg.pinv(fields[p], rcond=1e-12, hermitian=True)
        slope[own] = np.eye(n)
        rest = everyone - slope @ everyone[own]
        rest[own] = rest[:, own] = 0
        lift = _lift(problem, rates, coordinates, p, slope)
        D += lift @ moments @ lift.T
        if P > 1:
            pull, other = rates.eta * _root(scatter), _root(rest)
            for a, b in product(pull.T, other.T):
                move = _change(coordinates, p, a[None, :, None] * b)[0]
                D += np.outer(move, move)
    return D / problem.batch


def _lift(problem, rates, coordinates, p, slope):
    """Columns: what each entry of _moments() does to the coordinates, (size, entries)."""
    P, K, M = coordinates.shape
    n = K + M
    unit = np.eye(K)
    pairs = [-rates.eta * unit[k][None, :, None] * slope[:, a] for k in range(K) for a in range(n)]
    columns = [_change(coordinates, p, pair)[0] for pair in pairs]
    zero = np.zeros((P, K, P, K)), np.zeros((P, K, M)), np.zeros((P, K))
    for k, l in zip(*np.triu_indices(K), strict=True):
        Q = zero[0].copy()
        Q[p, k, p, l] = Q[p, l, p, k] = rates.eta**2 / problem.batch
        columns.append(coordinates.pack(State(Q, zero[1], zero[2])))
    for k in range(K):
        v = zero[2].copy()
        v[p, k] = -rates.eta_v
        columns.append(coordinates.pack(State(zero[0], zero[1], v)))
    return np.array(columns).T


def _change(coordinates, p, moves):
    """Coordinates of the change of overlaps when row (p, k) moves by moves (..., k, row)."""
    P, K, M = coordinates.shape
    half = np.zeros((len(moves), P, K, P * K + M))
    half[:, p] = moves
    Q = half[..., : P * K].reshape(-1, P * K, P * K)
    Q = (Q + Q.swapaxes(1, 2)).reshape(-1, P, K, P, K)
    return coordinates.pack(State(Q, half[..., P * K :], np.zeros((len(moves), P, K))))


def _moments(problem, C, v, z, weight):
    """Covariance of the products s_k f_a e, s_k s_l e^2 and g_k e; and <s_k s_l e^2> (K, K).

    Here s_k = v_k g'_k, f are the worker's own fields, and e includes the label noise.
    """
    K, sigma = len(v), problem.sigma
    values, vectors = np.linalg.eigh(C)
    f = z @ (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    g, s = problem.activation.g(f), v * problem.activation.dg(f[:, :K])
    e = g @ np.concatenate([v, -problem.v_star])
    i, j = np.triu_indices(K)
    once = np.concatenate([(s[:, :, None] * f[:, None]).reshape(len(f), -1), g[:, :K]], axis=1)
    twice = s[:, i] * s[:, j]
    # averages of the powers of e - sigma zeta over zeta
    e2 = e * e
    powers = [
        e,
        e2 + sigma**2,
        e * (e2 + 3 * sigma**2),
        e2 * e2 + 6 * sigma**2 * e2 + 3 * sigma**4,
    ]
    w1, w2, w3, w4 = (weight * power for power in powers)
    cut = K * len(C)
    place = np.concatenate([np.arange(cut), cut + len(i) + np.arange(K)])
    pairs = cut + np.arange(len(i))
    size = cut + len(i) + K
    second, mean = np.empty((size, size)), np.empty(size)
    second[np.ix_(place, place)] = (once.T * w2) @ once
    second[np.ix_(place, pairs)] = (once.T * w3) @ twice
    second[np.ix_(pairs, place)] = second[np.ix_(place, pairs)].T
    second[np.ix_(pairs, pairs)] = (twice.T * w4) @ twice
    mean[place], mean[pairs] = w1 @ once, w2 @ twice
    scatter = np.empty((K, K))
    scatter[i, j] = scatter[j, i] = mean[pairs]
    return second - np.outer(mean, mean), scatter


def _root(S):
    values, vectors = np.linalg.eigh(S)
    keep = values > 1e-14 * max(values[-1], 1e-300)
    return vectors[:, keep] * np.sqrt(values[keep])


@lru_cache
def nodes(d, activation):
    """Nodes (count, d) and weights of a quadrature for d independent standard normals.

    Smooth activations, up to 6 fields: the points of a body-centred cubic lattice in a ball,
    weighted by the normal density. As for the trapezoidal rule on the line the error falls like
    exp(-2 pi^2 s^2 / h^2) for functions of width s, and the cubes' centres save a factor 2^(d/2-1)
    of points. Relative to sqrt(D_ii D_jj) it leaves 1e-4 up to 4 fields, 1e-3 for 5, 3e-3
    for 6.
    With a kink (ReLU), or beyond 6 fields: a Sobol sequence of 2^16 points, good to 2e-2.
    """
    kink = not np.allclose(*activation.dg(np.array([1e-9, -1e-9])), rtol=1e-6, atol=1e-9)
    if kink or d > 6:
        z = ndtri(scipy.stats.qmc.Sobol(d, scramble=False).random_base2(16) + 2.0**-17)
        return z, np.full(len(z), 1 / len(z))
    h = np.sqrt(2) * {5: 0.7, 6: 0.8}.get(d, 0.6)
    axis = np.arange(-np.ceil(5.5 / h), np.ceil(5.5 / h) + 1)
    corners = np.stack(np.meshgrid(*[axis] * d, indexing="ij"), -1).reshape(-1, d)
    z = h * np.concatenate([corners, corners + 0.5])
    radius = 5.0 if d == 6 else 5.5
    z = z[np.einsum("ij,ij->i", z, z) <= radius**2]
    weight = np.exp(-np.einsum("ij,ij->i", z, z) / 2)
    if activation.odd:  # then all averages are even in z: one of z, -z will do
        front = np.sign(z) @ 3.0 ** -np.arange(d)
        z, weight = z[front >= 0], (weight * np.where(front > 0, 2, 1))[front >= 0]
    return z, weight / weight.sum()
