"""The map and the single runs of the chapter setback, in book/data. Seven minutes of one idle core.

    python benchmarks/setback_map.py

Two workers start independently (K = M = 2 erf units, eta = 1.5, rows N(0, 1), N = 200), average
completely at alpha = `first`, and again after every `period` (inf: never again). Chain, seed 1.

- `setback_map`, over 512 pairs: in how many the first average is `harmful` (gd.diagnose with the
  problem), and in how many a later one is, `again`; the `jump` of the mean risk; `recovery`, the
  time until worker 0 is back at its risk before the average, or at 0.005; `delay` of the time from
  which on its risk stays below 0.005, against the same run without averages. Means and standard
  errors. A time that does not come within 160 of the first average counts as 160 after it;
  `unsettled` counts these pairs.
- `setback_runs`, of 128 pairs, the same for all `first`: the single runs whose one average is
  harmful, from `first` = 60 up without label noise, from 80 up with sigma = 0.1, where the level is
  0.015, twice the noise floor: what the average lost, the state of worker 0 that it left, and the
  recovery.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import tables

import gossipdyn as gd

PROBLEM = gd.Problem(activation=gd.erf, v_star=(1, 1), T=np.eye(2), eta=1.5)
N, RUNS, SINGLE, SEED = 200, 512, 128, 1
LEVEL = {0.0: 0.005, 0.1: 0.015}  # by sigma
FIRST = (20, 40, 60, 80, 120, 160, 200)
PERIODS = (10, 40, np.inf)
AFTER = 160  # alpha that follows the first average


def trained(rounds, sigma=0.0, runs=RUNS, seed=SEED):
    """The Trajectory of `runs` pairs of workers; a seed gives the same samples to all schedules."""
    x0 = gd.random_start(PROBLEM, workers=2, students=2, N=N, runs=runs, seed=seed)
    end = sum(period for period, _ in rounds)
    engine = gd.chain(N=N, runs=runs, seed=seed)
    return gd.run(engine, replace(PROBLEM, sigma=sigma), x0, rounds, record=np.arange(end + 1))


def rounds(first, period):
    """A schedule: average at `first`, then after every period."""
    A = gd.complete(2)
    again = [(AFTER, None)] if np.isinf(period) else AFTER // period * [(period, A)]
    return [(first, A), *again]


@cache
def never(runs=RUNS, seed=SEED):
    """(runs,) when worker 0 has learnt for good without averages."""
    t = trained([(FIRST[-1] + AFTER, None)], runs=runs, seed=seed)
    return t.first_below(LEVEL[0.0], for_good=True)[:, 0]


def recovery(t, level):
    """(runs,) after which time worker 0 is back at its risk before the first average, or at level.

    It is inf where that does not come.
    """
    i = int(np.flatnonzero(t.after_mixing)[0])
    back = t.risk[:, i:, 0] <= np.maximum(t.risk[:, i - 1, 0], level)[:, None]
    return np.where(back.any(1), (t.alpha[i:] - t.alpha[i])[back.argmax(1)], np.inf)


def jump(t):
    """(runs,) the rise of the mean risk at the first average."""
    i = int(np.flatnonzero(t.after_mixing)[0])
    return t.risk[:, i, 0] - t.risk[:, i - 1].mean(-1)


def map_cell(point, runs=RUNS, seed=SEED):
    """The row of setback_map for a point (first, period)."""
    first, period = point
    t = trained(rounds(first, period), runs=runs, seed=seed)
    harmful = gd.setbacks(t).harmful
    end = first + AFTER
    learnt = t.first_below(LEVEL[0.0], for_good=True)[:, 0]
    columns = (
        jump(t),
        np.minimum(recovery(t, LEVEL[0.0]), AFTER),
        np.minimum(learnt, end) - np.minimum(never(runs, seed), end),
    )
    numbers = [f(x) for x in columns for f in (np.mean, lambda x: np.std(x, ddof=1) / runs**0.5)]
    counts = harmful[:, 0].sum(), harmful[:, 1:].any(1).sum(), np.isinf(learnt).sum()
    return [(first, period, runs, *counts, *numbers)]


def runs_cell(point, runs=SINGLE, seed=SEED):
    """The rows of setback_runs for a point (sigma, first)."""
    sigma, first = point
    t = trained(rounds(first, np.inf), sigma, runs, seed + (sigma > 0))
    i = int(np.flatnonzero(t.after_mixing)[0])
    after = t.state(i)
    found = gd.diagnose(t.state(i - 1), after=after, problem=t.problem)
    loss = (found.alignment_before - found.alignment_after).mean(-1)
    Q, R = after.Q[:, 0][:, [0, 0, 1], 0, [0, 1, 1]], after.R[:, 0].reshape(runs, 4)
    columns = jump(t), found.trace_loss, loss, recovery(t, LEVEL[sigma]), *Q.T, *R.T
    pairs = np.flatnonzero(found.harmful)
    return [
        (sigma, first, i, *row) for i, row in zip(pairs, np.transpose(columns)[pairs], strict=True)
    ]


MEANS = {"jump": "z.4g", "recovery": "z.4g", "delay": "z.4g"}
TABLES = {
    "setback_map": tables.Table(
        {"first": "", "period": "", "runs": "", "harmful": "", "again": "", "unsettled": ""}
        | {f"{name}{end}": form for name, form in MEANS.items() for end in ("", "_error")},
        map_cell,
        [(first, period) for first in FIRST for period in PERIODS],
    ),
    "setback_runs": tables.Table(
        {"sigma": "", "first": "", "pair": ""}
        | dict.fromkeys(("jump", "trace_loss", "alignment_loss", "recovery"), "z.5g")
        | dict.fromkeys(("Q11", "Q12", "Q22", "R11", "R12", "R21", "R22"), ".9g"),
        runs_cell,
        [(0.0, first) for first in FIRST[2:]] + [(0.1, first) for first in FIRST[3:]],
    ),
}

if __name__ == "__main__":
    tables.make(__file__)
