"""The table of exits in chapter finite_size, in book/data. About five minutes on one idle core.

    python benchmarks/exit_times.py

Two erf students learn from two orthonormal teacher units (eta = 0.5, second layers fixed at 1, no
label noise), every run from its own random rows N(0, 1). For N = 50 to 1000 inputs the chain tells,
of each run, `u_start` = u = R_11 + R_22 - R_12 - R_21 at the start, `exit` = the first recorded
alpha (whole numbers) at which |u| is above 0.3, and `u_exit` = u there.
"""

import numpy as np
import tables

import gossipdyn as gd

SIZES = (50, 100, 200, 500, 1000)
RUNS = 1000
PROBLEM = gd.Problem(activation=gd.erf, v_star=(1, 1), T=np.eye(2), eta=0.5)
THRESHOLD = 0.3
LAST = 600.0
SEED = 1


def exits(N, runs, seed):
    """(runs, 3): u at the start, the alpha of exit, u there."""
    starts = gd.random_start(PROBLEM, workers=1, students=2, N=N, runs=runs, seed=seed)
    record = np.arange(LAST + 1)
    t = gd.run(gd.chain(N, runs, seed), PROBLEM, starts, LAST, record=record, keep=("R",))
    u = np.einsum("rtkm,km->rt", t.R[:, :, 0], [[1, -1], [-1, 1]])
    out = np.abs(u) > THRESHOLD
    if not out.any(1).all():
        raise ValueError(f"{np.sum(~out.any(1))} of {runs} runs never left: run longer")
    first = out.argmax(1)
    return np.column_stack([u[:, 0], t.alpha[first], u[np.arange(runs), first]])


def cell(N):
    return [(N, *row) for row in exits(N, RUNS, SEED)]


COLUMNS = {"N": "", "u_start": "z.4f", "exit": ".0f", "u_exit": "z.3f"}
TABLES = {"exit_times": tables.Table(COLUMNS, cell, SIZES)}

if __name__ == "__main__":
    tables.make(__file__)
