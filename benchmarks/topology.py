"""The floors in chapter topology, in book/data/topology.csv. About four minutes on one idle core.

    python benchmarks/topology.py

Eight workers start perfect (two erf units, orthonormal teacher, eta = 0.2, label noise 0.1) and
average every PERIOD = 4 with each of six graphs. For N = 100 and 200 inputs the chain tells the
risk of a worker before a round, after it, and of the mean of all workers: means over the rounds in
(40, 100], the workers and RUNS = 128 runs, with their standard errors.
"""

from pathlib import Path

import numpy as np

import gossipdyn as gd

FILE = Path(__file__).parents[1] / "book" / "data" / "topology.csv"
GRAPHS = {
    "path": gd.path(8),
    "ring": gd.ring(8),
    "star": gd.star(8),
    "hypercube": gd.hypercube(3),
    "exponential": gd.exponential(8),
    "complete": gd.complete(8),
}
PROBLEM = gd.Problem(activation=gd.erf, v_star=(1, 1), T=np.eye(2), eta=0.2, sigma=0.1)
PERIOD, FIRST, LAST = 4.0, 40.0, 100.0
SIZES, RUNS, SEED = (100, 200), 128, 1


def floors(engine, A):
    """Means over the late rounds and the workers: (runs, 3), before, after and of the mean."""
    start = gd.mix(np.ones((len(A), 1)), gd.perfect(PROBLEM))
    rounds = [(PERIOD, A)] * round(LAST / PERIOD)
    t = gd.run(engine, PROBLEM, start, rounds, keep=("risk", "mean_risk"))
    late = t.alpha > FIRST + PERIOD / 2
    before, after = late & ~t.after_mixing, late & t.after_mixing
    parts = t.risk[:, before].mean(2), t.risk[:, after].mean(2), t.mean_risk[:, after]
    return np.stack([part.mean(1) for part in parts], axis=1)


if __name__ == "__main__":
    with open(FILE, "w") as file:
        file.write(f"# python benchmarks/topology.py, seed {SEED}\n")
        file.write("graph,N,before,before_error,after,after_error,mean,mean_error\n")
        for name, A in GRAPHS.items():
            for N in SIZES:
                runs = floors(gd.chain(N, RUNS, SEED), A)
                mean, error = runs.mean(0), runs.std(0, ddof=1) / np.sqrt(RUNS)
                pairs = zip(mean, error, strict=True)
                file.write(f"{name},{N}," + ",".join(f"{m:.5e},{s:.2e}" for m, s in pairs) + "\n")
                print(name, N, mean)
