"""A random problem and random overlaps that fit it: what holds for these holds for anything."""

import numpy as np

import gossipdyn as gd


def weights(P, K, M, N=None, seed=0, runs=()):
    """Random Weights of P workers with correlated units and random second layers."""
    rng = np.random.default_rng(seed)
    N = P * K + M + 2 if N is None else N
    return gd.Weights(
        W=0.8 * rng.standard_normal((*runs, P, K, N)),
        v=rng.standard_normal((*runs, P, K)),
        W_star=np.broadcast_to(rng.standard_normal((M, N)), (*runs, M, N)),
    )


def problem_of(w, activation=gd.erf, **options):
    """A Problem whose teacher is that of the Weights w."""
    W_star = w.W_star.reshape(-1, *w.W_star.shape[-2:])[0]
    M, N = W_star.shape
    v_star = np.random.default_rng(M).standard_normal(M)
    return gd.Problem(activation=activation, v_star=v_star, T=W_star @ W_star.T / N, **options)


def problem_and_overlaps(P, K, M, seed=0, runs=(), activation=gd.erf, **options):
    w = weights(P, K, M, seed=seed, runs=runs)
    return problem_of(w, activation, **options), gd.overlaps(w)
