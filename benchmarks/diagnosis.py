"""The rounds in chapter diagnosis, in book/data/diagnosis.csv. Four minutes on an idle core.

    python benchmarks/diagnosis.py

Two workers learn alone (chain, N = 256 inputs, RUNS = 128 runs a setting) and then average, at one
of several times alpha. A row is such a round of one `run`: what there was to see before it (`rise`
of the mean cosine between a worker's units, `fall` of the alignment with the teacher and `risk`,
means over the two workers; `ratio` of matched to unmatched distance; `blind`, whether diagnose()
without a teacher calls it harmful; `harmful`, whether it does with the teacher) and what came of
it: `setback` is 1 where neither worker has regained 1.5 times its risk from before the round within
PATIENCE = 10. The thresholds that the chapter uses were chosen on a table with another seed.
"""

import numpy as np
import tables

import gossipdyn as gd

N, RUNS, SEED, PATIENCE = 256, 128, 2, 10.0
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
    "K = 4; M = 2": (committee(2, 3.0), 4, 0.5, (25, 50, 100, 150, 200)),
    "signs of v": (committee(2, 1.0, eta_v=0.5), 2, "signs", (40, 80, 120, 160, 200)),
    "one order; noise": (committee(2, 1.0, 0.8, sigma=0.3), 2, "perfect", (10, 20, 30, 40, 50)),
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
    """For each time of the round a table (runs, 7): COLUMNS from `rise` on."""
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
        risk = d.risk_before.mean(-1)
        seen = d.cosine_rise.mean(-1), fall, d.matched_ratio, risk, blind, d.harmful, setback
        yield alpha, np.stack(seen, 1)


def cell(name):
    found = rounds(name)
    return [(name, alpha, run, *row) for alpha, rows in found for run, row in enumerate(rows)]


COLUMNS = {"setting": "", "alpha": "", "run": "", "rise": "z.4f", "fall": "z.4f", "ratio": "z.4f"}
COLUMNS |= {"risk": ".4g", "blind": ".0f", "harmful": ".0f", "setback": ".0f"}
TABLES = {"diagnosis": tables.Table(COLUMNS, cell, list(SETTINGS))}

if __name__ == "__main__":
    tables.make(__file__)
