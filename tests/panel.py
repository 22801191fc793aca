"""Runs whose states tests/test_portable.py compares between machines.

`python tests/panel.py FILE` writes states of the chain, of sgd and of lift(), a mode, and the names
of the kernels; `python tests/panel.py FILE chain` one run of each chain, tests/data/panel.npz.
"""

import sys
from dataclasses import replace

import numpy as np
import torch
from threadpoolctl import threadpool_info

import gossipdyn as gd

EVEN = np.full((3, 3), 0.5) + 0.5 * np.eye(3)  # equal overlaps between teacher units
PROBLEM = gd.Problem(gd.erf, v_star=[1.0, -0.5, 0.8], T=EVEN, eta=0.3, eta_v=0.2, sigma=0.2)
ACTIVATIONS = [gd.erf, gd.relu, gd.linear, gd.quadratic, gd.gelu(), gd.tanh, gd.softplus]
ROUNDS = {
    "none": 2.0,
    "complete": [(0.5, gd.complete(3))] * 4,
    "matched": [(1.0, gd.matched(gd.ring(3)))] * 2,
}
N, RUNS = 50, 16


def starts():
    """Independent rows, and three kinds of dependent ones."""
    v = [1.0, -0.5]
    apart = gd.random_start(PROBLEM, workers=3, students=2, N=N, v=v, seed=1, runs=RUNS)
    one = gd.random_start(PROBLEM, workers=1, students=2, N=N, v=v, seed=2)
    both = np.concatenate([apart.R.reshape(RUNS, 6, 3), np.broadcast_to(EVEN, (RUNS, 3, 3))], 1)
    flat = both[..., :6, :] @ np.linalg.inv(EVEN) @ np.swapaxes(both[..., :6, :], -1, -2)
    return {
        "independent": apart,
        "spawned": gd.mix(np.ones((3, 1)), one),
        "equal": gd.mix(gd.complete(3), apart),  # equal to rounding, not to the last bit
        "plane": replace(apart, Q=(flat + flat.swapaxes(1, 2)).reshape(apart.Q.shape) / 2),
        "perfect": gd.mix(np.ones((3, 1)), gd.perfect(replace(PROBLEM, sigma=0.0))),
        "spare": gd.mix(np.ones((3, 1)), gd.perfect(replace(PROBLEM, sigma=0.0), students=4)),
        "close": gd.mix(np.eye(3) + 1e-7 * (np.eye(3)[::-1] - np.eye(3)), apart),
    }


def last(t):
    return np.concatenate([a[:, -1].reshape(len(a), -1) for a in (t.Q, t.R, t.v)], axis=1)


def chain():
    """{name: (runs, numbers)}: the state at alpha=2 from every start, of all activations."""
    panel = {}
    for name, x0 in starts().items():
        for kind, rounds in ROUNDS.items():
            for activation in ACTIVATIONS if kind == "complete" else [gd.erf, gd.relu]:
                if name == "spare" and activation.g(np.zeros(1))[0]:
                    continue
                eta = 0.03 if activation is gd.quadratic else 0.3  # below divergence
                problem = replace(PROBLEM, activation=activation, eta=eta)
                t = gd.run(gd.chain(N, RUNS, seed=3), problem, x0, rounds, ends=False)
                panel[f"{name}, {kind}, {activation.name}"] = last(t)
    return panel


def others():
    """The same from the starts themselves, from lifted weights and from sgd in double precision."""
    panel = {}
    for name, x0 in starts().items():
        panel[f"{name}, start"] = np.concatenate([x0.Q.ravel(), x0.R.ravel()])
        x = x0 if x0.v.ndim == 2 else gd.Overlaps(Q=x0.Q[0], R=x0.R[0], v=x0.v[0])
        w = gd.lift(PROBLEM, x, N)
        panel[f"{name}, lift"] = np.concatenate([w.W.ravel(), w.W_star.ravel()])
        for kind, rounds in ROUNDS.items():
            engine = gd.sgd(N, RUNS, seed=3, dtype="float64")
            panel[f"{name}, {kind}, sgd"] = last(gd.run(engine, PROBLEM, x0, rounds, ends=False))
    two = gd.Problem(gd.erf, v_star=[1.0, 1.0], T=np.eye(2), eta=0.3)
    near = gd.Overlaps.single(Q=np.full((2, 2), 0.5), R=np.full((2, 2), 0.5), v=np.ones(2))
    plateau = gd.fixed_point(two, near, within=gd.symmetric)
    rates, directions = gd.modes(two, plateau)  # the first is odd: equal entries of both signs
    panel["plateau, mode"] = np.concatenate([rates, *directions[0].R[0], directions[0].Q.ravel()])
    return panel


def kernels():
    """What computes here: the kernels of NumPy's and SciPy's OpenBLAS, and torch's."""
    names = {lib["architecture"] for lib in threadpool_info() if lib["internal_api"] == "openblas"}
    return {"blas": " ".join(sorted(names)), "torch": torch.backends.cpu.get_cpu_capability()}


if __name__ == "__main__":
    path, *parts = sys.argv[1:]
    if parts == ["chain"]:
        np.savez_compressed(path, **{name: states[0] for name, states in chain().items()})
    else:
        np.savez_compressed(path, **chain(), **others(), **kernels())
