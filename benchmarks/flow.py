"""Cost of the flow in CPU time on one thread, and against a general-purpose explicit solver.

Prints: the cost of one right-hand side, of trajectories at K=4, M=2 (erf, rtol 1e-8), how the
cost grows with P, K and M between two rounds, and the ratio to SciPy's RK45 at the same rtol.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}

import time

import numpy as np
from scipy.integrate import solve_ivp

import gossipdyn as gd
from gossipdyn.engines.flow import _Apart


def seconds(call, *args, repeats=3):
    """Shortest CPU time of a few calls."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        call(*args)
        times.append(time.process_time() - begin)
    return min(times)


def setting(P, K, M, eta=0.2):
    problem = gd.Problem(activation=gd.erf, v_star=np.ones(M), T=np.eye(M), eta=eta)
    return problem, gd.random_start(problem, workers=P, students=K, N=1000, seed=3)


def main():
    problem, x0 = setting(1, 4, 2)
    one = _Apart(problem, x0.Q, x0.R, x0.v)
    many = range(2000)
    rhs = seconds(lambda: [one.rate(None, one.start) for _ in many]) / len(many)
    print(f"right-hand side, P=1 K=4 M=2: {1e6 * rhs:.0f} microseconds")
    for end in (100.0, 1e4):
        flow = seconds(gd.run, gd.flow(), problem, x0, end)
        print(f"flow to alpha={end:g}: {flow:.3f} s")
        if end == 100.0:
            explicit = seconds(
                lambda: solve_ivp(one.rate, (0, 100.0), one.start, rtol=1e-8, atol=1e-11)
            )
            print(f"RK45 on the same right-hand side costs {explicit / flow:.1f} times as much")

    print("\n  P  K  M   s to alpha=100   s per worker")
    for P, K, M in [(1, 2, 2), (1, 4, 2), (1, 8, 2), (1, 8, 8), (8, 8, 2), (16, 8, 2), (64, 8, 2)]:
        problem, x0 = setting(P, K, M, eta=0.1)
        cost = seconds(gd.run, gd.flow(), problem, x0, 100.0)
        print(f"{P:3d} {K:2d} {M:2d} {cost:12.3f} {cost / P:16.4f}")


if __name__ == "__main__":
    main()
