"""Matching from the beginning, in book/data/matched_early.csv. Eight minutes on an idle core.

    python benchmarks/matched_early.py

Four workers with K = M = 3 (eta = 1, no label noise) start from independent random rows in the
chain and average every 5 until alpha = 250, on several graphs, plainly or matched with several
ties. For each way the table tells, of RUNS = 128 runs (the same starts and samples at one N), the
median over runs of the first time after which every worker has a risk below 0.005, its 95 %
interval `low` to `high` (bootstrap), and how many runs never get there. The last two rows,
with N = 500 inputs, take as long as all others.
"""

import numpy as np
import tables

import gossipdyn as gd

PROBLEM = gd.Problem(activation=gd.erf, v_star=np.ones(3), T=np.eye(3), eta=1.0)
P, RUNS, SEED = 4, 128, 1
PERIOD, ROUNDS, LEARNT = 5.0, 50, 5e-3
GRAPHS = {"ring": gd.ring(P), "complete": gd.complete(P), "path": gd.path(P)}
# tie = 2 matches nothing: plain averaging
WAYS = [("ring", tie, 100) for tie in (2, 0.5, 0.25, 0.1, 0)]
WAYS += [("complete", 0.1, 100), ("path", 2, 100), ("path", 0.1, 100)]
WAYS += [("ring", tie, 500) for tie in (2, 0.1)]


def learning_times(A, tie, N, runs=RUNS, seed=SEED):
    """(runs,) the alpha from which on every worker is good, inf where it never comes."""
    x0 = gd.random_start(PROBLEM, P, 3, N, seed=seed, runs=runs)
    gossip = gd.matched(A, tie=tie) if tie < 2 else A
    t = gd.run(gd.chain(N, runs, seed), PROBLEM, x0, [(PERIOD, gossip)] * ROUNDS, keep=("risk",))
    bad = (t.risk > LEARNT).any(-1)
    last = bad.shape[1] - 1 - bad[:, ::-1].argmax(1)
    return np.append(t.alpha, np.inf)[last + 1]


def cell(way):
    graph, tie, N = way
    times = learning_times(GRAPHS[graph], tie, N)
    median, low, high = gd.bootstrap(times)
    return [(graph, tie, N, median, np.isinf(times).sum(), RUNS, low, high)]


COLUMNS = dict.fromkeys(("graph", "tie", "N", "median", "never", "runs", "low", "high"), "")
COLUMNS |= dict.fromkeys(("median", "low", "high"), ".0f")
TABLES = {"matched_early": tables.Table(COLUMNS, cell, WAYS)}

if __name__ == "__main__":
    tables.make(__file__)
