"""Cost of the flow in CPU time on one thread, and of its rivals at equal error.

Prints: the cost of one right-hand side; of trajectories at K=4, M=2 (erf, rtol 1e-8), of 64 runs
one by one and together, of 200 short rounds; what SciPy's solvers and Runge-Kutta of order 4 with
fixed steps cost on the same right-hand side until they are as exact as the flow is; and how the
cost grows with P, K and M between two rounds.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}

import time

import numpy as np
from scipy.integrate import solve_ivp

import gossipdyn as gd
from gossipdyn.engines.paths import Apart
from gossipdyn.equations import State


def seconds(call, *args, repeats=3):
    """Shortest CPU time of a few calls."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        call(*args)
        times.append(time.process_time() - begin)
    return min(times)


def setting(P, K, M, eta=0.2, seed=3):
    problem = gd.Problem(activation=gd.erf, v_star=np.ones(M), T=np.eye(M), eta=eta)
    return problem, gd.random_start(problem, workers=P, students=K, N=1000, seed=seed)


def fixed_steps(rate, y, end, step):
    """Runge-Kutta of order 4 with steps of one length, as loops over overlaps are often written."""
    for _ in range(round(end / step)):
        one = rate(0, y)
        two = rate(0, y + step / 2 * one)
        three = rate(0, y + step / 2 * two)
        y = y + step / 6 * (one + 2 * two + 2 * three + rate(0, y + step * three))
    return y


def as_exact(solve, options, exact, error):
    """The first of the options, from cheap to dear, with which solve() errs by `error` at most."""
    for option in options:
        with np.errstate(all="ignore"):  # steps that are far too long
            if np.abs(solve(option) - exact).max() <= error:
                return option
    return options[-1]


def rivals(one, problem, x0, end):
    """Seconds of each way to `end` that is as exact as gd.run(gd.flow()): {name: seconds}."""

    def scipys(method):
        return lambda rtol: solve_ivp(
            one.rate, (0, end), one.start, method=method, rtol=rtol, atol=rtol / 1000
        ).y[:, -1]

    def state(t):
        return Apart(problem, State(t.Q[:, -1], t.R[:, -1], t.v[:, -1]), 0, np.eye(2)).start

    exact = scipys("DOP853")(1e-13)
    error = np.abs(state(gd.run(gd.flow(), problem, x0, end)) - exact).max()
    print(f"the flow to alpha={end:g} errs by {error:.0e}; what is as exact costs, in its units:")
    cost = {"flow": seconds(gd.run, gd.flow(), problem, x0, end)}
    tolerances = [10.0**-n for n in range(4, 12)]
    for method in ("RK45", "DOP853", "LSODA", "Radau"):
        rtol = as_exact(scipys(method), tolerances, exact, error)
        cost[f"{method}, rtol {rtol:.0e}"] = seconds(scipys(method), rtol, repeats=1)
    steps = [2.0**-n for n in range(8)]
    step = as_exact(lambda h: fixed_steps(one.rate, one.start, end, h), steps, exact, error)
    fixed = seconds(fixed_steps, one.rate, one.start, end, step, repeats=1)
    cost[f"Runge-Kutta 4, steps of {step:g}"] = fixed
    return cost


def main():
    problem, x0 = setting(1, 4, 2)
    one = Apart(problem, State(x0.Q[None], x0.R[None], x0.v[None]), 0, np.eye(2))  # T^-1
    many = range(2000)
    rhs = seconds(lambda: [one.rate(0.0, one.start) for _ in many]) / len(many)
    print(f"right-hand side, P=1 K=4 M=2: {1e6 * rhs:.0f} microseconds")
    for end in (100.0, 1e4):
        print(f"flow to alpha={end:g}: {seconds(gd.run, gd.flow(), problem, x0, end):.3f} s")
    starts = [setting(1, 4, 2, seed=s)[1] for s in range(64)]
    x = gd.Overlaps(*(np.stack([getattr(start, name) for start in starts]) for name in "QRv"))
    for together in (False, True):
        engine = gd.flow(together=together)
        cost = seconds(gd.run, engine, problem, x, 100.0, repeats=1)
        print(f"64 runs to alpha=100, together={together}: {cost:.2f} s")
    several, start = setting(4, 4, 2)
    cost = seconds(gd.run, gd.flow(), several, start, [(0.2, gd.ring(4))] * 200)
    print(f"200 rounds of 0.2, P=4: {cost:.2f} s")
    for end in (100.0, 1000.0):
        cost = rivals(one, problem, x0, end)
        for name, own in cost.items():
            print(f"  {name:32s} {own / cost['flow']:6.1f}")

    print("\n  P  K  M   s to alpha=100   s per worker")
    for P, K, M in [(1, 2, 2), (1, 4, 2), (1, 8, 2), (1, 8, 8), (8, 8, 2), (16, 8, 2), (64, 8, 2)]:
        problem, x0 = setting(P, K, M, eta=0.1)
        cost = seconds(gd.run, gd.flow(), problem, x0, 100.0)
        print(f"{P:3d} {K:2d} {M:2d} {cost:12.3f} {cost / P:16.4f}")


if __name__ == "__main__":
    main()
