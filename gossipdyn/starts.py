"""Starts: weights that have given overlaps, and overlaps of random weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .checks import flag, number, reals, whole
from .equal_units import equal_rows
from .problem import Problem, check_problem
from .states import Overlaps, Weights, _check_gram, check_fit, gram

DEPENDENT = 1e-13  # a remainder below this part of |row| |longest row| is rounding, no direction
MARGIN = 0.2873  # odd, so that no choice between rows hangs on the rounding of equal lengths


def root(G):
    """Rows L (..., n, n) with L L^T = G, the same from every machine: a pivoted Cholesky factor.

    Eigenvectors will not do, since those of equal eigenvalues are arbitrary. Here each column is
    the direction that one row adds to those before: the first row, in order, whose squared
    remainder is at least MARGIN of the largest one. G: positive semidefinite to rounding. L L^T is
    G to about 1e-15 of its largest entry, better than which no sum knows it.
    """
    norms = np.maximum(np.diagonal(G, axis1=-2, axis2=-1), 0)
    largest = norms.max(-1, keepdims=True)
    rounding = DEPENDENT * np.sqrt(np.maximum(norms, 1e-4 * largest)) * np.sqrt(largest)
    rest, L = norms.copy(), np.zeros(G.shape)
    open_ = np.ones(norms.shape, dtype=bool)  # rows that have not been a direction
    for k in range(G.shape[-1]):
        fresh = np.where(open_ & (rest > rounding), rest, 0)
        largest = fresh.max(-1, keepdims=True)
        if not largest.any():
            break
        pivot = (fresh >= MARGIN * largest).argmax(-1)[..., None]
        own = np.take_along_axis(L, pivot[..., None], -2)[..., 0, :k]
        column = np.take_along_axis(G, pivot[..., None], -1)[..., 0]
        column = column - np.einsum("...ik,...k->...i", L[..., :k], own)
        length = np.sqrt(np.take_along_axis(fresh, pivot, -1))
        column = np.divide(column, length, out=np.zeros(norms.shape), where=open_ & (largest > 0))
        np.put_along_axis(column, pivot, length, -1)
        np.put_along_axis(open_, pivot, False, -1)
        L[..., k] = column
        rest -= column**2
    return L


def factor(problem, x, N=None):
    """Rows in R^d, d = P K + M, that have the overlaps x exactly, as Weights with d columns.

    N : the number of inputs that the overlaps are divided by, d unless given.

    The same rows, to rounding, on every machine. Singular overlaps (equal workers) are fine. Rows
    i, j with Q_ii = Q_ij = Q_jj are equal to the last bit. Raises ValueError for overlaps that no
    weights have.
    """
    check_fit(problem, x)
    G = gram(problem.T, x)
    _check_gram(G)
    N = G.shape[-1] if N is None else N
    rows = root(G) * np.sqrt(N)
    rows = np.take_along_axis(rows, equal_rows(G).argmax(-1)[..., None], -2)
    *_, P, K, _ = x.R.shape
    W = rows[..., : P * K, :].reshape(*x.R.shape[:-1], -1)
    return Weights(W=W, v=x.v, W_star=rows[..., P * K :, :], N=N)


def lift(problem: Problem, x: Overlaps, N: int, seed: int = 0) -> Weights:
    """Make weights in N dimensions that have the overlaps x, in random directions.

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    x : Overlaps
        State; leading axes pass through, and all runs share the directions.
    N : int
        Input dimension, at least P K + M.
    seed : int, optional
        Seed of the directions.

    Returns
    -------
    Weights
        Their overlaps are x up to rounding of the largest overlap. Of rows shorter than 3e-8 of the
        longest one only what lies along longer rows is left.

    Raises
    ------
    ValueError
        If no weights have the overlaps x, or if N leaves too little room.

    See Also
    --------
    overlaps : The way back.

    References
    ----------
    Chapter :doc:`teacher_student`.

    Examples
    --------
    >>> problem = gd.Problem(gd.erf, v_star=np.ones(2), T=np.eye(2))
    >>> w = gd.lift(problem, gd.perfect(problem), N=50)
    >>> print(w.W.shape, np.allclose(gd.overlaps(w).R, np.eye(2)))
    (1, 2, 50) True
    """
    few = factor(problem, x)
    d = few.W.shape[-1]
    check_dimension(N, d, "lift")
    basis, triangle = np.linalg.qr(
        np.random.default_rng(whole(seed, "seed")).standard_normal((N, d))
    )
    basis = (basis * np.sign(np.diagonal(triangle)) * np.sqrt(N / d)).T
    W = few.W[..., None, :] @ basis  # row by row: a product of all rounds equal ones differently
    return Weights(W=W[..., 0, :], v=x.v, W_star=few.W_star @ basis)


def check_dimension(N, d, who, rows="P*K + M"):
    """Refuse an N that is no whole number, or that leaves no room for d rows (named by `rows`)."""
    if whole(N, "N, the input dimension,") < d:
        raise ValueError(f"{who} needs N >= {rows} = {d} (the rows must fit into R^N), got N={N}")


def random_factor(rng, shape, rows, columns):
    """Lower-trapezoidal factors L (*shape, rows, min(rows, columns)) of Wishart matrices.

    L L^T is distributed as Z Z^T for Z (rows, columns) of standard normals (Bartlett 1933), at a
    cost independent of the number of columns. rng: two numpy Generators, for the normals and the
    chis, so that the draws of leading entries do not depend on how many follow.
    """
    normals, chis = rng
    width = min(rows, columns)
    L = np.tril(normals.standard_normal((*shape, rows, width)), -1)
    diagonal = np.arange(width)
    L[..., diagonal, diagonal] = np.sqrt(chis.chisquare(columns - diagonal, (*shape, width)))
    return L


def random_start(
    problem: Problem,
    workers: int,
    students: int,
    N: int,
    scale: float = 1.0,
    v: ArrayLike | None = None,
    shared: bool = False,
    seed: int = 0,
    runs: int | None = None,
) -> Overlaps:
    """Draw the overlaps of students whose weights are independent N(0, scale^2), at dimension N.

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    workers, students : int
        The numbers P and K.
    N : int
        Input dimension, at least M.
    scale : float, optional
        Standard deviation of the weights.
    v : (K,) array, optional
        Second layer of every worker; by default ones.
    shared : bool, optional
        Whether all workers start from the same weights.
    seed : int, optional
        Seed of the draws.
    runs : int, optional
        Length of a leading axis of independent starts; by default there is no such axis.

    Returns
    -------
    Overlaps
        Drawn in their exact law, at a cost independent of N.

    Raises
    ------
    ValueError
        If N is below M, or if an argument is out of its range.

    Examples
    --------
    >>> problem = gd.Problem(gd.erf, v_star=np.ones(2), T=np.eye(2))
    >>> x0 = gd.random_start(problem, workers=4, students=2, N=1000, runs=10)
    >>> print(x0.R.shape)
    (10, 4, 2, 2)
    """
    check_problem(problem)
    workers, students = whole(workers, "workers", 1), whole(students, "students", 1)
    lead = () if runs is None else (whole(runs, "runs", 1),)
    seeds = np.random.SeedSequence(whole(seed, "seed")).spawn(3)
    shared = flag(shared, "shared")
    M = problem.M
    check_dimension(N, M, "random_start", rows="M")
    scale = number(scale, "scale, a standard deviation,", 0)
    v = np.ones(students) if v is None else reals(v, "v")
    if v.shape != (students,):
        raise ValueError(f"{students} students need v of shape ({students},), got {v.shape}")
    independent = 1 if shared else workers
    along, *across = (np.random.default_rng(s) for s in seeds)
    rows = independent * students
    Z = along.standard_normal((*lead, rows, M))
    L = random_factor(across, lead, rows, N - M) if N > M else np.zeros((*lead, rows, 0))
    Q = scale**2 * (Z @ np.swapaxes(Z, -1, -2) + L @ np.swapaxes(L, -1, -2)) / N
    R = scale * Z @ root(problem.T).T / np.sqrt(N)
    Q = Q.reshape(*lead, independent, students, independent, students)
    R = R.reshape(*lead, independent, students, M)
    if shared:
        Q = np.tile(Q, (workers, 1, workers, 1))
        R = np.tile(R, (workers, 1, 1))
    return Overlaps(Q=Q, R=R, v=np.broadcast_to(v, R.shape[:-1]))
