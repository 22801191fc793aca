"""The floors in chapter topology, in book/data/topology.csv. About four minutes on one idle core.

    python benchmarks/topology.py

Eight workers start perfect (two erf units, orthonormal teacher, eta = 0.2, label noise 0.1) and
average every PERIOD = 4 with each of six graphs. For N = 100 and 200 inputs the chain tells the
risk of a worker before a round, after it, and of the mean of all workers: means over the rounds in
(40, 100], the workers and RUNS = 128 runs, with their standard errors.
"""

import numpy as np
import tables

import gossipdyn as gd

GRAPHS = {
    "path": gd.path(8),
    "ring": gd.ring(8),
    "star": gd.star(8),
    "hypercube": gd.hypercube(3),
    "exponential": gd.exponential(8),
    "complete": gd.complete(8),
}
PROBLEM = gd.Problem(activation=gd.erf, v_star=(1, 1), T=np.eye(2), eta=0.2, sigma=0.1)
PERIOD, FIRST, LAST = 4.0, 40.0, 100.0
SIZES, RUNS, SEED = (100, 200), 128, 1


def floors(engine, A):
    """Means over the late rounds and the workers: (runs, 3), before, after and of the mean."""
    start = gd.mix(np.ones((len(A), 1)), gd.perfect(PROBLEM))
    rounds = [(PERIOD, A)] * round(LAST / PERIOD)
    t = gd.run(engine, PROBLEM, start, rounds, keep=("risk", "mean_risk"))
    late = t.alpha > FIRST + PERIOD / 2
    before, after = late & ~t.after_mixing, late & t.after_mixing
    parts = t.risk[:, before].mean(2), t.risk[:, after].mean(2), t.mean_risk[:, after]
    return np.stack([part.mean(1) for part in parts], axis=1)


def cell(point):
    graph, N = point
    runs = floors(gd.chain(N, RUNS, SEED), GRAPHS[graph])
    pairs = zip(runs.mean(0), runs.std(0, ddof=1) / np.sqrt(RUNS), strict=True)
    return [(graph, N, *(x for pair in pairs for x in pair))]


COLUMNS = {"graph": "", "N": ""}
for kind in ("before", "after", "mean"):
    COLUMNS |= {kind: ".5e", f"{kind}_error": ".2e"}
POINTS = [(graph, N) for graph in GRAPHS for N in SIZES]
TABLES = {"topology": tables.Table(COLUMNS, cell, POINTS)}

if __name__ == "__main__":
    tables.make(__file__)
