"""The table of the chapter activations, book/data/gelu_bridge.csv. Two minutes on one idle core.

    python benchmarks/gelu_bridge.py

Two GELU students, g(x) = x Phi(beta x), learn from two orthonormal GELU teachers, and ReLU students
from ReLU teachers, from one start (random, seed 3). For learning rates eta and sharpness beta:
`off`, the largest distance of the risk from ReLU's up to eta alpha = 30, of 61 recorded times.
The flow is deterministic; at rtol 1e-10 it leaves errors of some 1e-9.
"""

from dataclasses import replace

import numpy as np
import tables

import gossipdyn as gd

SEED = 3
RATES = (1e-3, 2e-2, 0.4)
SHARPNESS = (3, 6, 10, 20, 30, 50, 70, 100, 200, 300, 500, 700, 1000, 2000, 3000, 5000, 7000, 1e4)


def curve(f, eta):
    """Risk (61,) at eta alpha = 0 ... 30."""
    problem = gd.Problem(f, v_star=np.ones(2), T=np.eye(2), eta=eta)
    start = gd.random_start(
        replace(problem, activation=gd.relu), workers=1, students=2, N=100, scale=0.7, seed=SEED
    )
    at = np.linspace(0, 30 / eta, 61)
    return gd.run(gd.flow(rtol=1e-10), problem, start, at[-1], record=at).risk[0, :, 0]


def off(eta, beta, relu):
    """The largest distance of a GELU student's curve from that of ReLU."""
    return np.abs(curve(gd.gelu(beta), eta) - relu).max()


def cell(eta):
    relu = curve(gd.relu, eta)
    return [(eta, beta, off(eta, beta, relu)) for beta in SHARPNESS]


COLUMNS = dict.fromkeys(("eta", "beta", "off"), ".6g")
TABLES = {"gelu_bridge": tables.Table(COLUMNS, cell, RATES)}

if __name__ == "__main__":
    tables.make(__file__)
