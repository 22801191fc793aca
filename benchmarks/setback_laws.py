"""Two tables of the chapter setback, in book/data. Eight minutes of one idle core.

    python benchmarks/setback_laws.py

K = M = 2 erf units, second layers fixed at 1, chain, seed 1.

- `setback_early.csv` (eta = 0.5, rows N(0, 1), no label noise): 8 workers start
  independently and average once, completely, at `first`. `cost`: how much later the risk of the
  mean falls below 0.005 than that of a worker which never averages; mean over 768 runs with paired
  samples, and its standard error.
- `setback_noise.csv` (eta = 1.5, sigma = 0.1): two workers that have learnt, in opposite orders,
  train for 60 and average. Quartiles over 256 runs of the time after which the risk is below 0.015,
  twice the noise floor; `error` is the standard error of the median.
"""

import csv
from itertools import product
from pathlib import Path

import numpy as np

import gossipdyn as gd

DATA = Path(__file__).parents[1] / "book" / "data"
SEED = 1
SLOW = gd.Problem(activation=gd.erf, v_star=(1, 1), T=np.eye(2), eta=0.5)
NOISY = gd.Problem(activation=gd.erf, v_star=(1, 1), T=np.eye(2), eta=1.5, sigma=0.1)
# two workers that have learnt the same features in opposite orders
ROWS = np.array([[[1, 0], [0, 1]], [[0, 1], [1, 0]]])
OPPOSITE = gd.Overlaps(Q=np.einsum("pkm,qlm->pkql", ROWS, ROWS), R=ROWS, v=np.ones((2, 2)))


def learnt(problem, x, N, seed, level, last):
    """(runs,) the time after which the risk of one worker (runs, 1, ...) is below the level."""
    t = gd.run(
        gd.chain(N=N, runs=len(x.v), seed=seed),
        problem,
        x,
        last,
        record=np.arange(last + 1),
        keep=("risk",),
    )
    below = t.risk[:, :, 0] < level
    if not below.any(1).all():
        raise ValueError(f"{np.sum(~below.any(1))} runs are above {level} up to {last}: run longer")
    return t.alpha[below.argmax(1)]


def cost(first, N, P=8, runs=768, seed=SEED):
    """(runs,) how much later the mean of P workers has learnt than one of them."""
    start = gd.random_start(SLOW, workers=P, students=2, N=N, runs=runs, seed=seed)
    alone = learnt(SLOW, gd.mix(np.eye(1, P), start), N, seed + 1, 0.005, 600)
    if first:
        start = gd.run(gd.chain(N=N, runs=runs, seed=seed + 2), SLOW, start, first).state(-1)
    mean = gd.mix(np.full((1, P), 1 / P), start)
    return first + learnt(SLOW, mean, N, seed + 1, 0.005, 600) - alone


def capped(N, runs=256, seed=SEED):
    """(runs,) recovery times of two workers that average after they have learnt, with noise."""
    t = gd.run(gd.chain(N=N, runs=runs, seed=seed), NOISY, OPPOSITE, [(60, gd.complete(2))])
    mean = gd.mix(np.full((1, 2), 0.5), t.state(-1))
    return learnt(NOISY, mean, N, seed + 1, 0.015, 250)


def write(name, columns, rows):
    DATA.mkdir(exist_ok=True)
    with open(DATA / f"setback_{name}.csv", "w", newline="") as file:
        file.write(f"# python benchmarks/setback_laws.py, seed {SEED}\n")
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        table.writerows(rows)


if __name__ == "__main__":
    rows = []
    for N in (200, 1000):
        times = capped(N)
        draws = np.random.default_rng(0).choice(times, (1000, len(times)))
        error = np.median(draws, 1).std()
        rows.append((N, len(times), *np.quantile(times, [0.25, 0.5, 0.75]), f"{error:.2f}"))
        print(*rows[-1])
    write("noise", ("N", "runs", "lower", "median", "upper", "error"), rows)
    rows = []
    for N, first in product((100, 400), (0, 20, 40)):
        costs = cost(first, N)
        error = costs.std() / np.sqrt(len(costs))
        rows.append((N, first, len(costs), f"{costs.mean():.2f}", f"{error:.2f}"))
        print(*rows[-1])
    write("early", ("N", "first", "runs", "cost", "error"), rows)
