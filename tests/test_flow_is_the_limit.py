"""The lower square of the drawing: the flow is what the chain, and SGD, tend to as N grows.

At a fixed alpha, from a start that does not depend on N and lies off the symmetric plateau, the
mean of single runs is off the flow by c/N and their spread is s/sqrt N, each up to a relative
correction of order 1/N. Both exponents are fitted over a factor of 16 in N.
"""

from functools import cache

import numpy as np
import pytest

import gossipdyn as gd

# Large rates: the bias of the mean is then as large as the spread (c about s), and few runs show it
PROBLEM = gd.Problem(gd.erf, v_star=[1, 1], T=np.eye(2), eta=3.0, eta_v=1.0, sigma=0.5)
START = gd.random_start(PROBLEM, workers=2, students=2, N=50, seed=2)
ROUNDS = [(0.5, [[0.75, 0.25], [0.25, 0.75]]), (0.5, None)]
SIZES = np.array([20, 40, 80, 160, 320])
RUNS = 150 * SIZES  # in proportion to N, so that every bias has the same relative error


def norm(t):
    """The mean of all Q_kk at the end, run by run."""
    return np.einsum("rpkpk->r", t.Q[:, -1]) / t.v[0, 0].size


def end(engine):
    return gd.run(engine, PROBLEM, START, ROUNDS, ends=False, keep=("Q", "R", "v", "risk"))


@cache
def ends():
    return [end(gd.chain(int(N), int(runs))) for N, runs in zip(SIZES, RUNS)]


def slope(values, errors):
    """Exponent of N in c N^slope (1 + k/N), and its standard error."""
    X = np.stack([np.ones(SIZES.size), np.log(SIZES), 1 / SIZES], axis=1)
    weights = (values / errors)[:, None]
    covariance = np.linalg.inv((X * weights).T @ (X * weights))
    fit = covariance @ (X * weights**2).T @ np.log(values)
    return fit[1], np.sqrt(covariance[1, 1])


@pytest.mark.slow
def test_the_bias_of_the_mean_falls_like_1_over_N():
    limit = norm(end(gd.flow()))[0]
    finite = [norm(t) for t in ends()]
    bias = np.array([x.mean() - limit for x in finite])
    sem = np.array([x.std() for x in finite]) / np.sqrt(RUNS)
    exponent, error = slope(bias, sem)
    assert error < 0.1
    assert abs(exponent + 1) < 3 * error


@pytest.mark.parametrize("name", ["Q", "R", "v", "risk"])
def test_the_spread_of_single_runs_falls_like_1_over_sqrt_N(name):
    finite = [getattr(t, name)[:, -1].reshape(len(t.Q), -1)[:, 0] for t in ends()]
    spread = np.array([x.std() for x in finite])
    # var(s^2) = (m4 - s^4) / runs
    fourth = np.array([((x - x.mean()) ** 4).mean() for x in finite])
    exponent, error = slope(spread, np.sqrt((fourth - spread**4) / RUNS) / (2 * spread))
    assert error < 0.1
    assert abs(exponent + 0.5) < 3 * error


@pytest.mark.slow
def test_sgd_has_the_bias_of_the_chain():
    N, runs = int(SIZES[1]), int(RUNS[1])
    chain, sgd, limit = (norm(t) for t in (ends()[1], end(gd.sgd(N=N, runs=runs)), end(gd.flow())))
    sem = chain.std() / np.sqrt(runs)
    assert abs(sgd.mean() - chain.mean()) < 5 * np.sqrt(2) * sem
    assert abs(sgd.mean() - limit[0]) > 5 * sem
