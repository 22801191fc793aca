"""Which random starts reach zero error: the table of the chapter `global_minimum`.

    python benchmarks/global_minimum.py        (some 20 minutes of CPU time, seed 2019)

Writes book/data/global_minimum.csv, one setting a line: activation, K, M, eta, the N of the random
starts (rows N(0, 1), v = v_star = 1, T = 1), how many of the 200 risks no longer move, and the 200
risks at the horizon eta * alpha = 2000. eta = 0 stands for the limit of small rates, gradient
descent on the risk itself, where the horizon is one in eta * alpha.
"""

import csv
import os
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1"}

import numpy as np
from scipy.integrate import solve_ivp

import gossipdyn as gd

RESULT = Path(__file__).parents[1] / "book" / "data" / "global_minimum.csv"
STARTS, HORIZON, SEED = 200, 2000.0, 2019
PART = 25  # starts a point of the sweep
UNITS = {"erf": gd.erf, "relu": gd.relu}
SETTINGS = [
    *[("erf", 2, 2, eta, 1000) for eta in (0, 0.1, 0.5, 1.0, 2.0)],
    *[("erf", 3, 3, eta, 1000) for eta in (0, 0.1, 0.5, 1.0, 1.5)],
    ("erf", 6, 6, 0, 1000),
    *[("erf", 3, 2, eta, 1000) for eta in (0, 0.1, 0.5, 1.0, 1.3)],
    *[("erf", 4, 2, eta, 1000) for eta in (0, 0.1, 0.5, 0.9)],
    *[("erf", 2, 3, eta, 1000) for eta in (0, 0.1, 0.5, 1.0)],
    *[("erf", K, M, 0, 10) for K, M in ((2, 2), (3, 3), (3, 2), (4, 2))],
    *[("relu", 2, 2, eta, 1000) for eta in (0, 0.5, 1.0)],
    *[("relu", 3, 3, eta, 1000) for eta in (0, 0.5)],
    *[("relu", 3, 2, eta, 1000) for eta in (0, 0.5)],
    *[("relu", 2, 3, eta, 1000) for eta in (0, 0.5)],
    *[("relu", K, M, 0, 1000) for K, M in ((6, 6), (7, 6), (8, 8), (9, 8))],
]


def descent(problem, x0, tau):
    """Gradient descent on the risk for a time tau = eta * alpha as eta -> 0: its end, Overlaps.

    dW/dtau = U W + V W*, in as many inputs as there are rows, whatever N the start x0 has.
    """
    K, M = x0.R.shape[-2:]
    w = gd.lift(problem, x0, K + M)

    def overlaps(y):
        return gd.overlaps(gd.Weights(W=y.reshape(1, K, -1), v=w.v, W_star=w.W_star))

    def rate(_, y):
        U, V = gd.drift(problem, overlaps(y))
        return ((U[0] @ y.reshape(K, -1) + V[0] @ w.W_star) / problem.eta).ravel()

    path = solve_ivp(rate, (0, tau), w.W.ravel(), "LSODA", rtol=1e-6, atol=1e-9)
    return overlaps(path.y[:, -1])


def risks(setting, first=0, last=STARTS):
    """Risks (starts, 2) at half the horizon and at the horizon, of the starts first to last."""
    name, K, M, eta, N = setting
    problem = gd.Problem(UNITS[name], np.ones(M), np.eye(M), eta=eta or 1.0)
    x0 = gd.random_start(problem, workers=1, students=K, N=N, runs=STARTS, seed=SEED)
    x0 = gd.Overlaps(Q=x0.Q[first:last], R=x0.R[first:last], v=x0.v[first:last])
    if eta:
        times = np.array([HORIZON / 2, HORIZON]) / eta
        t = gd.run(gd.flow(rtol=1e-6), problem, x0, times[1], record=times, keep="risk")
        return t.risk[:, 1:, 0]
    ends = []
    for start in zip(x0.Q, x0.R, x0.v, strict=True):
        half = descent(problem, gd.Overlaps(*start), HORIZON / 2)
        whole = descent(problem, half, HORIZON / 2)
        ends.append([gd.risk(problem, x)[0] for x in (half, whole)])
    return np.array(ends)


def part(point):
    setting, first = point
    return risks(setting, first, first + PART)


def main():
    parts = range(0, STARTS, PART)
    found = gd.sweep(part, [(setting, first) for setting in SETTINGS for first in parts])
    found = np.reshape(found, (len(SETTINGS), STARTS, 2))
    settled = np.abs(found[..., 0] - found[..., 1]) <= 0.01 * found[..., 1] + 1e-9
    with open(RESULT, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        names = [f"risk_{i}" for i in range(STARTS)]
        table.writerow(["activation", "K", "M", "eta", "N", "settled", *names])
        for setting, still, end in zip(SETTINGS, settled.sum(1), found[..., 1], strict=True):
            # below 1e-9 the risk is the rounding of the averages
            table.writerow([*setting, still, *(f"{max(r, 0):.2g}" if r > 1e-9 else 0 for r in end)])


if __name__ == "__main__":
    main()
