"""Which random starts reach zero error: the tables of the chapter global_minimum, in book/data.

    python benchmarks/global_minimum.py         eight minutes on one idle core

Starts have rows N(0, 1) in N inputs and v = v_star = 1, T = 1; the horizon is eta * alpha = 2000.
eta = 0 stands for the limit of small rates, gradient descent on the risk itself, where the horizon
is one in eta * alpha.

- `global_minimum.csv`, v fixed at one. A setting a line: activation, K, M, eta, N, how many of the
  200 risks no longer move (`settled`), and the 200 risks at the horizon.
- `global_minimum_free.csv`: descent by all weights, v included, of erf units.
"""

import numpy as np
import tables
from scipy.integrate import solve_ivp

import gossipdyn as gd

STARTS, HORIZON, SEED = 200, 2000.0, 2019
SETTINGS = [
    *[("erf", 2, 2, eta, 1000) for eta in (0, 0.5, 1.0, 2.0)],
    *[("erf", 3, 3, eta, 1000) for eta in (0, 0.5, 1.0, 1.5)],
    ("erf", 6, 6, 0, 1000),
    *[("erf", 3, 2, eta, 1000) for eta in (0, 0.1, 0.5, 1.0, 1.3)],
    *[("erf", 4, 2, eta, 1000) for eta in (0, 0.5, 0.9)],
    *[("erf", 2, 3, eta, 1000) for eta in (0, 1.0)],
    *[("erf", K, M, 0, 10) for K, M in ((2, 2), (3, 3), (4, 4), (3, 2), (4, 3), (5, 4), (4, 2))],
    *[("relu", 2, 2, eta, 1000) for eta in (0, 0.5)],
    ("relu", 3, 3, 0, 1000),
    *[("relu", 3, 2, eta, 1000) for eta in (0, 0.5)],
    ("relu", 2, 3, 0, 1000),
    *[("relu", K, M, 0, 1000) for K, M in ((6, 6), (7, 6), (8, 8), (9, 8))],
]
FREE = [("erf", K, M, 0, 10) for K, M in ((2, 2), (3, 3), (3, 2), (4, 3))]


def descent(problem, x0, tau):
    """Gradient descent on the risk for a time tau = eta * alpha as eta -> 0: its end, Overlaps.

    dW/dtau = U W + V W*, and with eta_v = eta in the problem also dv/dtau, for all runs of x0 at
    once, in as many inputs as there are rows, whatever N the starts have.
    """
    w = gd.lift(problem, x0, sum(x0.R.shape[-2:]))
    size = w.W.size

    def weights(y):
        return gd.Weights(y[:size].reshape(w.W.shape), y[size:].reshape(w.v.shape), w.W_star)

    def rate(_, y):
        now = weights(y)
        x = gd.overlaps(now)
        U, V = gd.drift(problem, x)
        dv = gd.rate(problem, x).v if problem.eta_v else np.zeros(w.v.shape)
        dW = U @ now.W + V @ now.W_star[..., None, :, :]
        return np.concatenate([dW.ravel(), dv.ravel()]) / problem.eta

    y = np.concatenate([w.W.ravel(), w.v.ravel()])
    path = solve_ivp(rate, (0, tau), y, "DOP853", rtol=1e-6, atol=1e-9)
    return gd.overlaps(weights(path.y[:, -1]))


def starts(setting, runs=STARTS, free=False):
    """The problem of a setting, and random starts: the first `runs` of STARTS."""
    name, K, M, eta, N = setting
    eta = eta or 1.0
    units = getattr(gd, name)
    problem = gd.Problem(units, np.ones(M), np.eye(M), eta=eta, eta_v=eta if free else 0.0)
    x = gd.random_start(problem, workers=1, students=K, N=N, runs=STARTS, seed=SEED)
    return problem, gd.Overlaps(Q=x.Q[:runs], R=x.R[:runs], v=x.v[:runs])


def risks(setting, runs=STARTS, free=False):
    """(runs, 2) risks at half the horizon and at the horizon."""
    problem, x = starts(setting, runs, free)
    if setting[3]:
        times = np.array([HORIZON / 2, HORIZON]) / problem.eta
        t = gd.run(gd.flow(rtol=1e-6), problem, x, times[1], record=times, keep=("risk",))
        return t.risk[:, 1:, 0]
    half = descent(problem, x, HORIZON / 2)
    whole = descent(problem, half, HORIZON / 2)
    return np.concatenate([gd.risk(problem, half), gd.risk(problem, whole)], axis=1)


def cell(setting, free=False):
    half, end = risks(setting, free=free).T
    still = np.sum(np.abs(half - end) <= 0.01 * end + 1e-9)
    # below 1e-9 the risk is the rounding of the averages
    return [(*setting, still, *np.where(end > 1e-9, end, 0))]


def free(setting):
    return cell(setting, free=True)


COLUMNS = dict.fromkeys(("activation", "K", "M", "eta", "N", "settled"), "")
COLUMNS |= {f"risk_{i}": ".2g" for i in range(STARTS)}
TABLES = {
    "global_minimum": tables.Table(COLUMNS, cell, SETTINGS),
    "global_minimum_free": tables.Table(COLUMNS, free, FREE),
}

if __name__ == "__main__":
    tables.make(__file__)
