"""Cost of the chain in CPU time on one thread, in steps of single runs per second.

Prints: the rate at P K + M = 6 with 4096 runs, at N=10^2 and N=10^6 and their ratio; the share of
the time in which NumPy does nothing but draw the normals and chis that these steps need; the rate
of a single run; how many inputs N a step of plain SGD may have before drawing its samples alone
costs more; and how the rate falls with P, K, M and the batch.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}

import time

import numpy as np

import gossipdyn as gd
from gossipdyn.engines.chain import LANE, _coordinates, _streams

STEPS, RUNS = 512, 4096


def seconds(call, *args, repeats=3, **options):
    """Shortest CPU time of a few calls."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        call(*args, **options)
        times.append(time.process_time() - begin)
    return min(times)


def rate(P, K, M, N=1000, runs=RUNS, steps=STEPS, batch=1):
    problem = gd.Problem(gd.erf, v_star=np.ones(M), T=np.eye(M), eta=0.5, batch=batch)
    x0 = gd.random_start(problem, workers=P, students=K, N=1000, seed=3)
    return steps * runs / seconds(gd.run, gd.chain(N, runs), problem, x0, steps / N, keep="risk")


def drawing(P, K, M, N=1000):
    """Seconds per step of a run for the randomness that its law needs, and nothing else."""
    along, across, _ = _streams(np.random.SeedSequence(0))
    widths = _coordinates(P, K, M, 1, N)
    normals = np.arange(widths[0], widths[-1])  # of each sample of a block; then comes its chi
    shape = (len(normals), LANE)

    def block():
        for _ in range(50):
            along.standard_normal((normals.sum(), LANE))
            np.sqrt(across.chisquare(N - normals[:, None], shape))

    return seconds(block) / (50 * (len(widths) - 1) * LANE)


def main():
    print("P K + M = 6, erf, 4096 runs: million steps of a run per second of CPU")
    for P, K, M in [(1, 4, 2), (2, 2, 2)]:
        small, large = (rate(P, K, M, N) for N in (10**2, 10**6))
        share = drawing(P, K, M) * large
        print(
            f"  P={P} K={K} M={M}: {small / 1e6:.2f} at N=10^2, {large / 1e6:.2f} at N=10^6, "
            f"ratio {small / large:.2f}; {100 * share:.0f} % of the time is drawing"
        )
        sample = np.empty((64, 1000))
        normal = seconds(np.random.default_rng(0).standard_normal, out=sample) / sample.size
        even = 1 / (large * normal * P)
        print(f"    drawing the samples of plain SGD alone costs more from N={even:.0f} on")
    single = 1e6 / rate(1, 4, 2, runs=1, steps=2048)
    print(f"one run, P=1 K=4 M=2: {single:.0f} microseconds a step")

    print("\n  P  K  M  batch   million steps a second, N=1000, 1024 runs")
    for P, K, M, batch in [
        (1, 1, 1, 1),
        (1, 2, 2, 1),
        (1, 4, 2, 4),
        (1, 8, 4, 1),
        (4, 2, 2, 1),
        (8, 2, 2, 1),
        (4, 4, 2, 1),
    ]:
        speed = rate(P, K, M, runs=1024, steps=64, batch=batch) / 1e6
        print(f"{P:3d} {K:2d} {M:2d} {batch:6d} {speed:12.3f}")


if __name__ == "__main__":
    main()
