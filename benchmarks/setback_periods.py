"""Tables of the chapter setback and of the first page. Six minutes of one idle core.

    python benchmarks/setback_periods.py

- `setback_when`: pairs of workers (K = M = 2 erf units, eta = 1, rows N(0, 1)) that average never,
  once early (at 20) or once late (at 200), from the same starts and on the same samples: the time
  `learnt` from which on the risk of worker 0 stays below 0.005, and whether the average was
  `harmful`. 80 pairs by the flow (N inf) from starts at N = 1000, 400 pairs by the chain at
  N = 200.
- `setback_periods`: workers that average at `first` and then after every `period`, up to 160 after
  the first (chain). In how many runs is the first round harmful, `first_harmful`; how many of the
  later rounds are, of how many, all runs together, `later` of `rounds`; in how many runs any of
  them, `again`; in how many runs do two workers hold different orders just before the last round,
  `split`; the risk of the mean network there, and its standard error.

Harmful is gd.diagnose with the problem.
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
AVERAGES = {"never": None, "early": 20, "late": 200}


def when_cell(point, runs=None, seed=SEED):
    """The rows of setback_when for one of AVERAGES and N."""
    average, N = point
    problem, first, end = replace(TWO, eta=1.0), AVERAGES[average], 500
    schedule = float(end) if first is None else [(first, gd.complete(2)), (end - first, None)]
    if np.isinf(N):
        runs, size, engine = runs or 80, 1000, gd.flow(rtol=1e-7)
    else:
        runs = runs or 400
        size, engine = N, gd.chain(N, runs, seed)
    x = gd.random_start(problem, workers=2, students=2, N=size, runs=runs, seed=seed)
    t = gd.run(engine, problem, x, schedule, record=np.arange(end + 1.0))
    learnt = t.first_below(0.005, for_good=True)[:, 0]
    if not np.isfinite(learnt).all():
        raise ValueError(f"{np.isinf(learnt).sum()} runs have not learnt at {end}: run longer")
    harmful = np.zeros(runs) if first is None else gd.setbacks(t).harmful[:, 0]
    return [(average, N, pair, *row) for pair, row in enumerate(zip(learnt, harmful, strict=True))]


def periods_cell(point, runs=None, seed=SEED):
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
    "setback_when": tables.Table(
        {"average": "", "N": "", "pair": "", "learnt": ".1f", "harmful": ".0f"},
        when_cell,
        [(average, N) for N in (np.inf, 200) for average in AVERAGES],
    ),
    "setback_periods": tables.Table(
        {"setting": "", "period": "", "runs": "", "first_harmful": "", "rounds": "", "later": ""}
        | {"again": "", "split": "", "mean_risk": "z.3g", "mean_risk_error": ".2g"},
        periods_cell,
        [(setting, period) for setting in SETTINGS for period in PERIODS],
    ),
}

if __name__ == "__main__":
    tables.make(__file__)
