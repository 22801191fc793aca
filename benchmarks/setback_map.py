"""The map and the runs of the chapter setback, in book/data. Four minutes of one idle core.

    python benchmarks/setback_map.py

Two workers start independently (K = M = 2 erf units, eta = 1.5, rows N(0, 1), N = 200), average
completely at alpha = `first`, and again after every `period` (inf: never again). Chain, seed 1.

- `setback_map.csv`, over 128 runs: the part of them in which the first average is `harmful` (it
  loses alignment, gd.diagnose); the `jump` of the mean risk; `recovery`, the time until worker 0 is
  back at its risk before the average, or at 0.005; `delay` of the time from which on its risk stays
  below 0.005, against the same run without averages. Means and standard errors.
- `setback_runs.npz`: the single runs that average once, without label noise and with sigma = 0.1,
  where the level is 0.015, twice the noise floor: what the average lost, the state it left, and
  the recovery.
"""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np

import gossipdyn as gd

DATA = Path(__file__).parents[1] / "book" / "data"
PROBLEM = gd.Problem(activation=gd.erf, v_star=(1, 1), T=np.eye(2), eta=1.5)
N, RUNS, SEED = 200, 128, 1
LEVEL = {0.0: 0.005, 0.1: 0.015}  # by sigma
FIRST = (20, 40, 60, 80, 120, 160, 200)
PERIODS = (10, 40, 80, np.inf)
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


def losses(t, level):
    """What the first average of every run cost: a dict of arrays (runs,)."""
    i = int(np.flatnonzero(t.after_mixing)[0])
    before, after, problem = t.state(i - 1), t.state(i), t.problem
    found = gd.diagnose(before, after=after, problem=problem)
    back = t.risk[:, i:, 0] <= np.maximum(t.risk[:, i - 1, 0], level)[:, None]
    time = np.where(back.any(1), (t.alpha[i:] - t.alpha[i])[back.argmax(1)], np.inf)
    return {
        "jump": t.risk[:, i, 0] - t.risk[:, i - 1].mean(-1),
        "harmful": found.harmful,
        "trace_loss": found.trace_loss,
        "alignment_loss": (found.alignment_before - found.alignment_after).mean(-1),
        "Q": after.Q[:, 0, :, 0],
        "R": after.R[:, 0],
        "recovery": time,
    }


def settled(t, level):
    """(runs,) the time from which on the risk of worker 0 stays below the level, up to the end."""
    above = t.risk[:, :, 0] > level
    last = above.shape[1] - 1 - above[:, ::-1].argmax(1)
    return np.where(above.any(1), t.alpha[np.minimum(last + 1, len(t.alpha) - 1)], 0.0)


def cell(first, period, never, runs=RUNS, seed=SEED):
    """The numbers of one cell by name, and its single runs. never : settled() without averages."""
    t = trained(rounds(first, period), runs=runs, seed=seed)
    found = losses(t, LEVEL[0.0])
    numbers = {"harmful": found["harmful"].mean()}
    columns = {
        "jump": found["jump"],
        "recovery": np.minimum(found["recovery"], AFTER),
        "delay": settled(t, LEVEL[0.0]) - never[:runs],
    }
    for name, column in columns.items():
        numbers |= {name: column.mean(), f"{name}_error": column.std() / np.sqrt(runs)}
    return numbers, found


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    single = []
    never = settled(trained([(FIRST[-1] + AFTER, None)]), LEVEL[0.0])
    with open(DATA / "setback_map.csv", "w", newline="") as file:
        file.write(f"# python benchmarks/setback_map.py, seed {SEED}\n")
        table = None
        for first in FIRST:
            for period in PERIODS:
                numbers, found = cell(first, period, never)
                row = {"first": first, "period": period, "runs": RUNS}
                row |= {name: f"{x:.4g}" for name, x in numbers.items()}
                if table is None:
                    table = csv.DictWriter(file, row, lineterminator="\n")
                    table.writeheader()
                table.writerow(row)
                file.flush()
            single.append(found | {"first": np.full(RUNS, first), "sigma": np.zeros(RUNS)})
    for first in FIRST[3:]:
        sigma = 0.1
        found = losses(trained(rounds(first, np.inf), sigma, seed=SEED + 1), LEVEL[sigma])
        single.append(found | {"first": np.full(RUNS, first), "sigma": np.full(RUNS, sigma)})
    arrays = {k: np.concatenate([s[k] for s in single]) for k in single[0]}
    np.savez_compressed(DATA / "setback_runs.npz", **arrays)
