"""Two tables of the chapter setback, in book/data. Five minutes of one idle core.

    python benchmarks/setback_laws.py

K = M = 2 erf units, second layers fixed at 1, chain, seed 1.

- `setback_early` (eta = 0.5, rows N(0, 1), no label noise): 8 workers start
  independently and average once, completely, at `first`. `cost`: how much later the risk of the
  mean falls below 0.005 than that of a worker which never averages; mean over 512 runs with paired
  samples, and its standard error.
- `setback_noise` (eta = 1.5, sigma = 0.1): two workers that have learnt, in opposite orders,
  train for 60 and average. Quartiles over 256 runs of the time after which the risk is below 0.015,
  twice the noise floor; `error` is the standard error of the median, by bootstrap.
"""

from functools import cache

import numpy as np
import tables

import gossipdyn as gd

SEED = 1
SLOW = gd.Problem(activation=gd.erf, v_star=(1, 1), T=np.eye(2), eta=0.5)
NOISY = gd.Problem(activation=gd.erf, v_star=(1, 1), T=np.eye(2), eta=1.5, sigma=0.1)
P = 8
# two workers that have learnt the same features in opposite orders
ROWS = np.array([[[1, 0], [0, 1]], [[0, 1], [1, 0]]])
OPPOSITE = gd.Overlaps(Q=np.einsum("pkm,qlm->pkql", ROWS, ROWS), R=ROWS, v=np.ones((2, 2)))


def learnt(problem, x, N, seed, level, last):
    """(runs,) the time after which the risk of one worker (runs, 1, ...) is below the level."""
    engine = gd.chain(N=N, runs=len(x.v), seed=seed)
    t = gd.run(engine, problem, x, last, record=np.arange(last + 1), keep=("risk",))
    times = t.first_below(level)[:, 0]
    if not np.isfinite(times).all():
        raise ValueError(f"{np.isinf(times).sum()} runs are above {level} up to {last}: run longer")
    return times


@cache
def alone(N, runs, seed):
    """(runs,) the time of worker 0 that never averages."""
    start = gd.random_start(SLOW, workers=P, students=2, N=N, runs=runs, seed=seed)
    return learnt(SLOW, gd.mix(np.eye(1, P), start), N, seed + 1, 0.005, 600.0)


def cost(first, N, runs=512, seed=SEED):
    """(runs,) how much later the mean of P workers has learnt than one of them."""
    start = gd.random_start(SLOW, workers=P, students=2, N=N, runs=runs, seed=seed)
    if first:
        engine = gd.chain(N=N, runs=runs, seed=seed + 2)
        start = gd.run(engine, SLOW, start, float(first)).state(-1)
    mean = gd.mix(np.full((1, P), 1 / P), start)
    return first + learnt(SLOW, mean, N, seed + 1, 0.005, 600.0) - alone(N, runs, seed)


def capped(N, runs=256, seed=SEED):
    """(runs,) recovery times of two workers that average after they have learnt, with noise."""
    t = gd.run(gd.chain(N=N, runs=runs, seed=seed), NOISY, OPPOSITE, [(60, gd.complete(2))])
    mean = gd.mix(np.full((1, 2), 0.5), t.state(-1))
    return learnt(NOISY, mean, N, seed + 1, 0.015, 200.0)


def early_cell(point):
    N, first = point
    costs = cost(first, N)
    error = costs.std(ddof=1) / np.sqrt(len(costs))
    return [(N, first, len(costs), costs.mean(), error)]


def noise_cell(N):
    times = capped(N)
    _, low, high = gd.bootstrap(times)
    error = (high - low) / (2 * 1.96)
    return [(N, len(times), *np.quantile(times, [0.25, 0.5, 0.75]), error)]


TABLES = {
    "setback_noise": tables.Table(
        {"N": "", "runs": "", "lower": ".1f", "median": ".1f", "upper": ".1f", "error": ".2f"},
        noise_cell,
        [200, 1000],
    ),
    "setback_early": tables.Table(
        {"N": "", "first": "", "runs": "", "cost": "z.2f", "error": ".2f"},
        early_cell,
        [(N, first) for N in (100, 400) for first in (0, 20, 40)],
    ),
}

if __name__ == "__main__":
    tables.make(__file__)
