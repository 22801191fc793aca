"""Does the period matter? Table setback_periods of chapter setback. Four minutes of one idle core.

    python benchmarks/setback_periods.py

Workers start independently (rows N(0, 1)), average at `first` and then after every `period`, up to
160 after the first (chain, seed 1). In how many runs is the first round harmful, `first_harmful`;
how many of the later rounds are, of how many, all runs together, `later` of `rounds`; in how many
runs any of them, `again`; in how many runs do two workers hold different orders just before the
last round, `split`; the risk of the mean network there, and its standard error. Harmful is
gd.diagnose with the problem.
"""

from dataclasses import replace

import numpy as np
import tables

import gossipdyn as gd

SEED = 1
TWO = gd.Problem(activation=gd.erf, v_star=(1, 1), T=np.eye(2), eta=1.5)
NOISY = replace(TWO, sigma=0.1)
THREE = gd.Problem(activation=gd.erf, v_star=(1, 1, 1), T=np.eye(3), eta=1.0)
UNEVEN = np.array([[0.7, 0.3], [0.3, 0.7]])
AFTER = 160
# name: problem, A, N, first, runs
SETTINGS = {
    "pair": (TWO, gd.complete(2), 200, 120, 192),
    "pair, label noise": (NOISY, gd.complete(2), 200, 120, 192),
    "pair, three units": (THREE, gd.complete(2), 100, 240, 96),
    "eight, complete": (TWO, gd.complete(8), 50, 100, 64),
    "eight, complete, label noise": (NOISY, gd.complete(8), 50, 100, 64),
    "pair, weights .7 and .3": (TWO, UNEVEN, 200, 120, 96),
    "ring of eight": (TWO, gd.ring(8), 50, 100, 64),
}
PERIODS = (10, 80)


def cell(point, runs=None, seed=SEED):
    """The row of setback_periods for a point (setting, period)."""
    setting, period = point
    problem, A, N, first, usual = SETTINGS[setting]
    runs = runs or usual
    x = gd.random_start(problem, len(A), problem.M, N=N, runs=runs, seed=seed)
    schedule = [(first, A), *AFTER // period * [(period, A)]]
    t = gd.run(gd.chain(N, runs, seed), problem, x, schedule)
    harmful = gd.setbacks(t).harmful
    order = gd.assignment(problem, t.state(-2))
    sure = np.all(order >= 0, axis=-1)
    differ = (order[:, :, None] != order[:, None]).any(-1)
    split = (differ & sure[:, :, None] & sure[:, None]).any((1, 2))
    mean = t.mean_risk[:, -2]
    counts = harmful[:, 0].sum(), harmful[:, 1:].size, harmful[:, 1:].sum()
    return [
        (setting, period, runs, *counts, harmful[:, 1:].any(1).sum(), split.sum())
        + (mean.mean(), mean.std(ddof=1) / np.sqrt(runs))
    ]


TABLES = {
    "setback_periods": tables.Table(
        {"setting": "", "period": "", "runs": "", "first_harmful": "", "rounds": "", "later": ""}
        | {"again": "", "split": "", "mean_risk": "z.3g", "mean_risk_error": ".2g"},
        cell,
        [(setting, period) for setting in SETTINGS for period in PERIODS],
    ),
}

if __name__ == "__main__":
    tables.make(__file__)
