"""What predicts a recovery: table setback_weights, chapter setback. Six minutes of one idle core.

    python benchmarks/setback_weights.py

Workers start independently (rows N(0, 1)), train until alpha = `first`, make one round with
(1 - share) 1 + share A, and train on alone. Of every pair (run, first) whose round is harmful
(gd.diagnose with the problem), worker 0 tells its recovery, the time until its risk is back at an
`aim`: "level", which is 0.005 (0.015 with label noise), or "before", the risk before the round
where that is higher. N inf is the flow, other N are the chain.

Five candidates, each read from worker 0:

- `u`: by how much the best order of its units leads the next one, half of the difference of
  gd.specialisation; for two units it is |u| after the round;
- `apart`: the least distance of two of its units after the round;
- `change`: the length of the change of its Q and R;
- `trace`: the fall of the trace of its Q;
- `jump`: the rise of its risk.

Columns: the rank correlation of each with the recovery, and the ends of its bootstrap interval
(95 %, over runs; the rounds of one run stay together). `lead`: |rank correlation| of u minus the
largest of the others. The share "all" takes the rounds of all shares together. Seed 2 is a second
sample, to confirm what was seen at seed 1.
"""

from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import tables
from scipy.stats import rankdata

import gossipdyn as gd

SEED = 1
TWO = gd.Problem(activation=gd.erf, v_star=(1, 1), T=np.eye(2), eta=1.5)
THREE = gd.Problem(activation=gd.erf, v_star=(1, 1, 1), T=np.eye(3), eta=1.0)
# name: problem, A, the times `first`, alpha that follows, the level
SETTINGS = {
    "pair": (TWO, gd.complete(2), (60, 80, 120, 160, 200, 240), 160, 0.005),
    "pair, label noise": (replace(TWO, sigma=0.1), gd.complete(2), (80, 120, 160, 240), 160, 0.015),
    "three units": (THREE, gd.complete(2), (160, 200, 240, 300), 240, 0.005),
    "ring of eight": (TWO, gd.ring(8), (80, 120, 160, 240), 160, 0.005),
}
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)
AIMS = ("level", "before")
CANDIDATES = ("u", "apart", "change", "trace", "jump")


def candidates(problem, before, after):
    """(runs, 5) what worker 0 shows of the round."""
    K = problem.M
    orders = [gd.specialisation(after, order)[..., 0] for order in permutations(range(K))]
    second, first = np.sort(orders, axis=0)[-2:]
    Q = after.Q[:, 0, :, 0]
    square = [Q[:, i, i] + Q[:, j, j] - 2 * Q[:, i, j] for i, j in combinations(range(K), 2)]
    dQ, dR = Q - before.Q[:, 0, :, 0], after.R[:, 0] - before.R[:, 0]
    jump = gd.risk(problem, after)[:, 0] - gd.risk(problem, before)[:, 0]
    return np.stack(
        [
            (first - second) / 2,
            np.sqrt(np.maximum(np.min(square, axis=0), 0)),
            np.sqrt((dQ**2).sum((-2, -1)) + (dR**2).sum((-2, -1))),
            -np.einsum("bkk->b", dQ),
            jump,
        ],
        axis=-1,
    )


def engine(N, runs, seed):
    return gd.flow(rtol=1e-7) if np.isinf(N) else gd.chain(N=N, runs=runs, seed=seed)


def single_rounds(setting, N, seed, runs):
    """(runs, firsts, shares, 8): harmful, recovery to either of AIMS, the candidates.

    0 where the round is harmless.
    """
    problem, A, firsts, after, level = SETTINGS[setting]
    P = len(A)
    size = 1000 if np.isinf(N) else N
    x = gd.random_start(problem, P, problem.M, N=size, runs=runs, seed=seed)
    t = gd.run(engine(N, runs, seed), problem, x, float(firsts[-1]), record=np.array(firsts) * 1.0)
    mixing = [(1 - share) * np.eye(P) + share * A for share in SHARES]
    pairs = [(t.at(first), A) for first in firsts for A in mixing]
    before = joined([x for x, _ in pairs])
    mixed = joined([gd.mix(A, x) for x, A in pairs])
    harmful = gd.diagnose(before, after=mixed, problem=problem).harmful

    alone = gd.mix(np.eye(1, P), mixed)
    chosen = gd.Overlaps(alone.Q[harmful], alone.R[harmful], alone.v[harmful])
    path = gd.run(
        engine(N, len(chosen.v), seed + 100),
        problem,
        chosen,
        float(after),
        record=np.arange(after + 1.0),
        keep=("risk",),
    )
    found = np.zeros((len(harmful), 8))
    found[harmful, 0] = 1
    for i, least in enumerate((0, gd.risk(problem, before)[harmful, 0])):
        back = path.risk[:, :, 0] <= np.maximum(least, level)[..., None]
        found[harmful, 1 + i] = np.where(back.any(1), path.alpha[back.argmax(1)], np.inf)
    found[harmful, 3:] = candidates(problem, before, mixed)[harmful]
    return found.reshape(len(firsts), len(SHARES), runs, 8).transpose(2, 0, 1, 3)


def joined(states):
    """One state of all runs of several."""
    parts = ([getattr(x, name) for x in states] for name in ("Q", "R", "v"))
    return gd.Overlaps(*(np.concatenate(arrays) for arrays in parts))


def ranks(found):
    """(6,) rank correlations of the candidates with the recovery, and the lead of u.

    found : (..., 7) harmful, recovery, candidates.
    """
    harmful, *columns = np.moveaxis(found, -1, 0)
    y, *x = (rankdata(column[harmful > 0]) for column in columns)
    rho = np.array([np.corrcoef(column, y)[0, 1] for column in x])
    return np.append(rho, abs(rho[0]) - np.abs(rho[1:]).max())


def cell(point):
    """The rows of setback_weights for a point (setting, N, seed, runs)."""
    setting, N, seed, runs = point
    found = single_rounds(setting, N, seed, runs)
    groups = {"all": found} | {s: found[:, :, j : j + 1] for j, s in enumerate(SHARES)}
    rows = []
    for i, aim in enumerate(AIMS):
        for share, group in groups.items():
            rounds = int(group[..., 0].sum())
            here = np.delete(group, 2 - i, axis=-1)
            if rounds >= 50 and len(np.unique(here[..., 1][here[..., 0] > 0])) > 3:
                parts = np.stack(gd.bootstrap(here, ranks, draws=300), axis=1)
                rows.append((setting, N, seed, aim, share, runs, rounds, *parts.ravel()))
    return rows


TABLES = {
    "setback_weights": tables.Table(
        {"setting": "", "N": "", "seed": "", "aim": "", "share": "", "runs": "", "rounds": ""}
        | {
            f"{name}{end}": "z.3f"
            for name in (*CANDIDATES, "lead")
            for end in ("", "_low", "_high")
        },
        cell,
        [
            *(("pair", np.inf, seed, 32) for seed in (1, 2)),
            *(("pair", 100, seed, 128) for seed in (1, 2)),
            ("pair, label noise", 100, 1, 96),
            ("three units", 100, 1, 96),
            ("ring of eight", 100, 1, 96),
        ],
    )
}

if __name__ == "__main__":
    tables.make(__file__)
