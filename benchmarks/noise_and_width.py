"""The table of noise floors in chapter noise_and_width, in book/data. Two minutes on one idle core.

    python benchmarks/noise_and_width.py

Students that have learned all there is to learn go on with noisy labels, sigma = 0.1, before a
teacher of M = 2 orthonormal units. `chain` is the mean of risk / sigma^2 over the runs and over
alpha = 100 to 400 at N = 200, `error` its standard error over runs. Every run starts where the flow
is after alpha = 1000. A problem is named by its activation, the number K of students, eta, eta_v,
and `copies`: 1 if each teacher unit has K/M students of weight M/K, 0 if spare ones begin near 0.
"""

import numpy as np
import tables

import gossipdyn as gd

N, RUNS, SEED = 200, 256, 1
WINDOW = np.arange(100.0, 401.0, 10.0)
POINTS = [
    ("erf", 2, 0, 0.2, 0.0),
    ("erf", 3, 0, 0.2, 0.0),
    ("erf", 4, 0, 0.2, 0.0),
    ("erf", 2, 1, 0.2, 0.2),
    ("erf", 4, 1, 0.2, 0.2),
    ("erf", 8, 1, 0.2, 0.2),
    ("relu", 2, 1, 0.2, 0.0),
    ("relu", 4, 1, 0.2, 0.0),
    ("linear", 2, 1, 0.2, 0.0),
    ("linear", 4, 1, 0.2, 0.0),
]


def setting(unit, K, copies, eta, eta_v):
    """The Problem, and a perfect solution of it; spare students have length 0.01."""
    activation = getattr(gd, unit)
    problem = gd.Problem(activation, v_star=(1, 1), T=np.eye(2), eta=eta, eta_v=eta_v, sigma=0.1)
    if copies:
        R = np.repeat(np.eye(2), K // 2, axis=0)
        return problem, gd.Overlaps.single(Q=R @ R.T, R=R, v=np.full(K, 2 / K))
    x = gd.perfect(problem, K)
    spare = np.diag([0] * 2 + [1e-4] * (K - 2))
    return problem, gd.Overlaps(Q=x.Q + spare[None, :, None], R=x.R, v=x.v)


def settled(problem, x):
    """Where the flow is after alpha = 1000."""
    x = gd.run(gd.flow(), problem, x, 1000.0).state(-1)
    return gd.Overlaps(Q=x.Q[0], R=x.R[0], v=x.v[0])


def floor(engine, problem, x, window=WINDOW):
    """risk / sigma^2 of each run, averaged over the window: (runs,)."""
    t = gd.run(engine, problem, x, window[-1], record=window, keep=("risk",))
    return t.risk[:, 1:, 0].mean(1) / problem.sigma**2


def cell(point):
    problem, x = setting(*point)
    seen = floor(gd.chain(N, RUNS, SEED), problem, settled(problem, x))
    return [(*point, seen.mean(), seen.std(ddof=1) / np.sqrt(RUNS))]


COLUMNS = dict.fromkeys(("activation", "K", "copies", "eta", "eta_v"), "")
COLUMNS |= {"chain": ".6g", "error": ".2g"}
TABLES = {"noise_and_width": tables.Table(COLUMNS, cell, POINTS)}

if __name__ == "__main__":
    tables.make(__file__)
