"""The table of the chapter warm_start, in book/data. Ten minutes on one idle core.

    python benchmarks/warm_start.py

One student learns until alpha = `spawned`. Two workers go on from its weights, each with samples of
its own, and never average, until all units of both have turned to teacher units of their own.
`different`: in how many of `pairs` do the two end with their units in different orders;
`undecided`: pairs that are not counted in `pairs`, because a worker had not turned by LAST. Erf
units, second layers that start at 1, rows N(0, 1) at the start; chain. Every line of the table has
starts and samples of its own, so that lines are independent.
"""

from dataclasses import replace

import numpy as np
import tables

import gossipdyn as gd

SEED = 2
PIECE = 20.0  # after each piece, workers that have turned leave the run
LAST = 1500.0
TWO = gd.Problem(activation=gd.erf, v_star=(1, 1), T=np.eye(2), eta=1.5)
THREE = gd.Problem(activation=gd.erf, v_star=(1, 1, 1), T=np.eye(3), eta=1.0)
FOUR = gd.Problem(activation=gd.erf, v_star=(1, 1, 1, 1), T=np.eye(4), eta=0.8)
# name: problem, N, pairs, spawned at
SETTINGS = {
    "two units": (TWO, 200, 1024, (0, 5, 10, 20, 40)),
    "larger N": (TWO, 800, 512, (0, 20)),
    "label noise": (replace(TWO, sigma=0.2), 200, 512, (0, 10, 40)),
    "both layers": (replace(TWO, eta_v=1.5), 200, 512, (0, 10, 40)),
    "slower": (replace(TWO, eta=0.5), 100, 512, (0, 40)),
    "correlated": (replace(TWO, T=[[1, 0.3], [0.3, 1]]), 100, 512, (0, 20)),
    "three units, N = 25": (THREE, 25, 4096, (0, 10, 20, 40)),
    "three units, N = 100": (THREE, 100, 2048, (0, 10, 20, 40, 80)),
    "three units, N = 400": (THREE, 400, 768, (0, 10, 20, 40)),
    "three units, slower": (replace(THREE, eta=0.5), 100, 256, (0, 40)),
    "four units": (FOUR, 100, 256, (0, 40)),
}


def ends(problem, N, x, seed):
    """(runs, K) the teacher unit of each student of each run in the end, -1 for none."""
    left = np.arange(len(x.v))
    found = np.full((len(left), problem.M), -1)
    for piece in range(round(LAST / PIECE)):
        engine = gd.chain(N, len(left), seed + piece)
        x = gd.run(engine, problem, x, PIECE, record=None, keep=("Q", "R", "v")).state(-1)
        order = gd.assignment(problem, x)[:, 0]
        settled = (np.sort(order, -1) == np.arange(problem.M)).all(-1)
        found[left[settled]] = order[settled]
        if settled.all():
            break
        left, x = left[~settled], rows(x, ~settled)
    return found


def rows(x, which):
    """Some of the runs of a state."""
    return gd.Overlaps(Q=x.Q[which], R=x.R[which], v=x.v[which])


def spawned(problem, N, pairs, alpha, seed):
    """How many pairs are decided, how many of them end apart, how many are undecided."""
    x = gd.random_start(problem, 1, problem.M, N=N, runs=pairs, seed=seed)
    if alpha:
        engine = gd.chain(N, pairs, seed)
        x = gd.run(engine, problem, x, alpha, record=None, keep=("Q", "R", "v")).state(-1)
    # two workers that never average are two runs
    both = rows(x, np.repeat(np.arange(pairs), 2))
    order = ends(problem, N, both, seed + 1).reshape(pairs, 2, -1)
    decided = (order >= 0).all((1, 2))
    apart = (order[:, 0] != order[:, 1]).any(-1)
    return int(decided.sum()), int(apart[decided].sum()), int((~decided).sum())


def cell(point):
    setting, alpha, seed = point
    problem, N, pairs, _ = SETTINGS[setting]
    return [(setting, alpha, *spawned(problem, N, pairs, alpha, seed))]


LINES = [(setting, alpha) for setting, (*_, times) in SETTINGS.items() for alpha in times]
POINTS = [(*line, 1000 * (100 * SEED + i)) for i, line in enumerate(LINES)]
COLUMNS = {"setting": "", "spawned": "", "pairs": "", "different": "", "undecided": ""}
TABLES = {"warm_start": tables.Table(COLUMNS, cell, POINTS)}

if __name__ == "__main__":
    tables.make(__file__)
