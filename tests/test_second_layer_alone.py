"""eta = 0: the first layer stays as it is, and the second one learns by a linear equation."""

import numpy as np
import pytest
from scipy.linalg import expm

import gossipdyn as gd

PROBLEM = gd.Problem(activation=gd.erf, v_star=[1, -0.5], T=np.eye(2), eta=0, eta_v=0.5, sigma=0.1)
X = gd.Overlaps.single(Q=[[1, 0.3], [0.3, 0.8]], R=[[0.5, 0.1], [-0.2, 0.6]], v=[0.2, 0.4])
END = 3.0


def covariances():
    """<g g> between the students (2, 2), and between students and teacher (2, 2)."""
    C = np.block([[X.Q[0, :, 0], X.R[0]], [X.R[0].T, PROBLEM.T]])
    pairs = [[gd.erf.I2(C[np.ix_([i, j], [i, j])]) for j in range(4)] for i in range(2)]
    return np.split(np.array(pairs), 2, axis=1)


def learnt():
    """v at END of dv/dalpha = -eta_v (G v - H v*), and where it tends to."""
    G, H = covariances()
    limit = np.linalg.solve(G, H @ PROBLEM.v_star)
    return limit + expm(-PROBLEM.eta_v * END * G) @ (X.v[0] - limit), limit


def test_the_flow_learns_v_in_closed_form():
    t = gd.run(gd.flow(), PROBLEM, X, END)
    np.testing.assert_allclose(t.v[0, -1, 0], learnt()[0], rtol=0, atol=1e-7)
    assert np.all(t.Q == X.Q) and np.all(t.R == X.R)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["chain", "sgd"])
def test_finite_engines_learn_it_on_average(engine):
    """The mean step is linear in v: at every N the mean obeys v += -(eta_v / N) (G v - H v*)."""
    if engine == "sgd":
        pytest.importorskip("torch")
    N, runs = 50, 2000
    t = gd.run(getattr(gd, engine)(N=N, runs=runs, seed=1), PROBLEM, X, END, record=[])
    G, H = covariances()
    v = X.v[0]
    for _ in range(round(END * N)):
        v = v - PROBLEM.eta_v / N * (G @ v - H @ PROBLEM.v_star)
    assert np.all(np.abs(t.mean("v")[-1, 0] - v) < 5 * t.sem("v")[-1, 0])
    np.testing.assert_allclose(t.Q[:, -1], t.Q[:, 0], rtol=0, atol=1e-12)


def test_it_ends_in_the_best_second_layer():
    """Any Q and R with the right v are a fixed point; the search may move them, not the flow."""
    end = gd.run(gd.flow(), PROBLEM, X, 2000.0).state(-1)
    np.testing.assert_allclose(end.v[0, 0], learnt()[1], rtol=0, atol=1e-6)
    found = gd.fixed_point(PROBLEM, near=X)
    np.testing.assert_allclose(gd.rate(PROBLEM, found).v, 0, atol=1e-10)
    rates, _ = gd.modes(PROBLEM, X)
    slow = np.sort(rates)[:2]  # the other entries do not move
    np.testing.assert_allclose(slow, np.sort(-PROBLEM.eta_v * np.linalg.eigvalsh(covariances()[0])))
    assert np.all(np.sort(rates)[2:] == 0)
