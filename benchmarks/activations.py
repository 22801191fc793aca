"""Cost of the flow under each activation, on one thread, as ratios to erf.

Prints, for K=4, M=2 and K=2, M=2: the cost of one right-hand side and its ratio to erf's, of a
Jacobian (one batched right-hand side), and of a trajectory to alpha=100 at rtol 1e-8; and for ReLU
the cost near perfect learning, where the integral over an angle takes the most nodes.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}

import time

import numpy as np

import gossipdyn as gd
from gossipdyn.engines.paths import Apart
from gossipdyn.equations import State


def seconds(call, repeats):
    """Shortest CPU time of a few calls, the first one left out."""
    call()
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return min(times)


def main():
    activations = [gd.erf, gd.linear, gd.quadratic, gd.relu, gd.gelu(3.0), gd.tanh, gd.softplus]
    for K, M in [(2, 2), (4, 2)]:
        print(f"K={K} M={M}      right-hand side   ratio   Jacobian   to alpha=100")
        for f in activations:
            # quadratic units are stable at small rates only
            eta = 0.02 if f == gd.quadratic else 0.2
            problem = gd.Problem(f, v_star=np.ones(M), T=np.eye(M), eta=eta)
            x0 = gd.random_start(problem, workers=1, students=K, N=1000, scale=0.7, seed=3)
            one = Apart(problem, State(x0.Q[None], x0.R[None], x0.v[None]), 0, np.eye(M))  # T^-1
            rhs = seconds(lambda one=one: one.rate(None, one.start), 50)
            if f == gd.erf:
                unit = rhs
            jacobian = seconds(lambda one=one: one.jacobian(None, one.start), 3)
            flow = seconds(lambda p=problem, x0=x0: gd.run(gd.flow(), p, x0, 100.0), 1)
            print(
                f"{f.name:16s} {1e3 * rhs:9.3f} ms {rhs / unit:9.1f} {1e3 * jacobian:8.1f} ms"
                f" {flow:10.2f} s"
            )
    problem = gd.Problem(gd.relu, v_star=np.ones(2), T=np.eye(2))
    away = np.random.default_rng(0).standard_normal((4, 6))
    for distance in (1, 1e-2, 1e-4, 1e-8):
        W = np.vstack([np.tile(np.eye(2, 6), (2, 1)) + distance * away, np.eye(2, 6)])
        C = W @ W.T
        x = gd.Overlaps.single(C[:4, :4], C[:4, 4:], [0.5] * 4)
        near = seconds(lambda x=x: gd.noise(problem, x), 20)
        print(f"ReLU noise, four students at {distance:g} from two teachers: {1e3 * near:.3f} ms")


if __name__ == "__main__":
    main()
