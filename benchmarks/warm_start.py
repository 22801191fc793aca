"""The table of the chapter warm_start, in book/data. Eight minutes of one idle core.

    python benchmarks/warm_start.py

One student learns until alpha = `spawned`; two workers go on from its weights, each with samples
of its own, and never average. `different`: in how many of the runs do they end with their units in
different orders; `undecided`: in how many a worker has not specialised at the end (not counted in
`runs`). Chain, rows N(0, 1) at the start, seed 1.
"""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np

import gossipdyn as gd

DATA = Path(__file__).parents[1] / "book" / "data"
SEED = 1
TWO = gd.Problem(activation=gd.erf, v_star=(1, 1), T=np.eye(2), eta=1.5)
THREE = gd.Problem(activation=gd.erf, v_star=(1, 1, 1), T=np.eye(3), eta=1.0)
# name: problem, N, runs, alpha at the end, spawned at
SETTINGS = {
    "two units": (TWO, 200, 1024, 160, (0, 5, 10, 20, 40)),
    "larger N": (TWO, 800, 512, 200, (0, 20)),
    "label noise": (replace(TWO, sigma=0.2), 200, 512, 160, (0, 5, 10, 20, 40)),
    "both layers": (replace(TWO, eta_v=1.5), 200, 512, 160, (0, 5, 10, 20, 40)),
    "three units": (THREE, 100, 1024, 300, (0, 10, 20, 40, 80)),
    "larger N, three units": (THREE, 400, 512, 340, (40, 80)),
}


def orders(x):
    """(runs, P, K) the teacher unit of every student, -1 where a worker has not specialised."""
    best = x.R.argmax(-1)
    K = best.shape[-1]
    settled = (np.sort(best, -1) == np.arange(K)).all(-1) & (gd.asymmetry(x) > np.sqrt(K - 1) / 2)
    return np.where(settled[..., None], best, -1)


def spawned(problem, N, runs, end, alpha, seed=SEED):
    """How many pairs of workers, spawned at alpha, end apart; how many are undecided."""
    K = problem.M
    x = gd.random_start(problem, workers=1, students=K, N=N, runs=runs, seed=seed)
    if alpha:
        engine = gd.chain(N=N, runs=runs, seed=seed + 1)
        x = gd.run(engine, problem, x, alpha, keep=("Q", "R", "v")).state(-1)
    pair = gd.mix(np.ones((2, 1)), x)
    engine = gd.chain(N=N, runs=runs, seed=seed + 2)
    t = gd.run(engine, problem, pair, end - alpha, keep=("Q", "R", "v"))
    found = orders(t.state(-1))
    undecided = (found < 0).any((-2, -1))
    apart = (found[:, 0] != found[:, 1]).any(-1)
    return int(apart[~undecided].sum()), int(undecided.sum())


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    with open(DATA / "warm_start.csv", "w", newline="") as file:
        file.write(f"# python benchmarks/warm_start.py, seed {SEED}\n")
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("setting", "spawned", "runs", "different", "undecided"))
        for setting, (problem, N, runs, end, times) in SETTINGS.items():
            for alpha in times:
                different, undecided = spawned(problem, N, runs, end, alpha)
                table.writerow((setting, alpha, runs - undecided, different, undecided))
                file.flush()
