"""The rounds in chapter diagnosis, in book/data/diagnosis.csv. About three minutes on an idle core.

    python benchmarks/diagnosis.py

Two workers learn alone (chain, N = 256 inputs, RUNS = 128 runs a setting) and then average, at one
of several times alpha. A row is such a round: what there was to see before it (`rise` of the mean
cosine between a worker's units and `fall` of the alignment with the teacher, means over the two
workers; `ratio` of matched to unmatched distance; `blind`, whether diagnose() without a teacher
calls it harmful) and what came of it: `setback` is 1 where neither worker has regained 1.5 times
its risk from before the round within PATIENCE = 10.
"""

from pathlib import Path

import numpy as np

import gossipdyn as gd

FILE = Path(__file__).parents[1] / "book" / "data" / "diagnosis.csv"
N, RUNS, SEED, PATIENCE = 256, 128, 1, 10.0
PAIR = gd.complete(2)


def committee(M, eta, correlation=0.0, **options):
    T = (1 - correlation) * np.eye(M) + correlation
    return gd.Problem(activation=gd.erf, v_star=np.ones(M), T=T, eta=eta, **options)


# problem, K, second layer at the start, times of the round
SETTINGS = {
    "K = M = 2": (committee(2, 1.5), 2, 1.0, (20, 40, 60, 80, 120)),
    "K = M = 3": (committee(3, 1.0), 3, 1.0, (50, 100, 150, 200, 300)),
    "K = M = 4": (committee(4, 0.8), 4, 1.0, (50, 100, 200, 300, 400)),
    "T_12 = 0.5": (committee(2, 1.5, 0.5), 2, 1.0, (40, 80, 120, 160, 200)),
    "K = 4, M = 2": (committee(2, 3.0), 4, 0.5, (25, 50, 100, 150, 200)),
    "signs of v": (committee(2, 1.0, eta_v=0.5), 2, "signs", (40, 80, 120, 160, 200)),
    "one order, noise": (committee(2, 1.0, 0.8, sigma=0.3), 2, "perfect", (10, 20, 30, 40, 50)),
}


def start(problem, K, v, runs, seed):
    if isinstance(v, float):
        return gd.random_start(problem, 2, K, N, v=np.full(K, v), seed=seed, runs=runs)
    if v == "perfect":
        return gd.mix(np.ones((2, 1)), gd.perfect(problem))
    x = gd.random_start(problem, 2, K, N, seed=seed, runs=runs)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], x.v.shape)
    return gd.Overlaps(x.Q, x.R, signs)


def rounds(name, runs=RUNS, seed=SEED, times=None):
    """For each time of the round a table (runs, 5): rise, fall, ratio, blind, setback."""
    problem, K, v, planned = SETTINGS[name]
    times = planned if times is None else times
    chain = gd.chain(N, runs, seed)
    x0 = start(problem, K, v, runs, seed)
    t = gd.run(chain, problem, x0, float(times[-1]), record=times)
    for alpha in times:
        x = t.at(alpha)
        d = gd.diagnose(x, PAIR, problem=problem, N=N)
        blind = gd.diagnose(x, PAIR, N=N).harmful
        after = gd.chain(N, runs, seed + 1000 + int(alpha))
        record = np.arange(0, PATIENCE + 0.5)
        s = gd.setbacks(
            gd.run(after, problem, x, [(0, PAIR), (PATIENCE, None)], record=record), slack=0.5
        )
        setback = np.isinf(s.recovery[:, 0]).all(-1)
        fall = (d.alignment_before - d.alignment_after).mean(-1)
        yield alpha, np.stack([d.cosine_rise.mean(-1), fall, d.matched_ratio, blind, setback], 1)


if __name__ == "__main__":
    with open(FILE, "w") as file:
        file.write(f"# python benchmarks/diagnosis.py, seed {SEED}\n")
        file.write("setting,alpha,rise,fall,ratio,blind,setback\n")
        for name in SETTINGS:
            for alpha, rows in rounds(name):
                label = name.replace(",", ";")
                for rise, fall, ratio, blind, setback in rows:
                    numbers = f"{rise:.4f},{fall:.4f},{ratio:.4f},{blind:.0f},{setback:.0f}"
                    file.write(f"{label},{alpha},{numbers}\n")
                print(name, alpha, rows.mean(0).round(3), flush=True)
