"""Numbers that are known from elsewhere: other programs, closed forms, published values.

Fixed points are found by SciPy's root finder on the right-hand side, never off a trajectory.
"""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq, root

import gossipdyn as gd

DATA = Path(__file__).parent / "data"


def committee(K, M=None, **options):
    """Teacher of M orthonormal units, all second layers 1."""
    M = K if M is None else M
    return gd.Problem(activation=gd.erf, v_star=np.ones(M), T=np.eye(M), **options)


# states as vectors: the upper triangle of Q, then R; v stays


def state(y, K, M, v=None):
    Q, cut = np.zeros((K, K)), K * (K + 1) // 2
    Q[np.triu_indices(K)] = y[:cut]
    Q = np.triu(Q) + np.triu(Q, 1).T
    return gd.Overlaps.single(Q=Q, R=y[cut:].reshape(K, M), v=np.ones(K) if v is None else v)


def vector(x):
    K = x.v.shape[-1]
    return np.concatenate([x.Q[0, :, 0][np.triu_indices(K)], x.R[0].ravel()])


def slope(problem, x):
    return vector(gd.rate(problem, x))


def gradient(f, y, step=1e-5):
    """Central differences: error about step^2 times a third derivative, 1e-10."""
    moves = step * np.eye(len(y))
    return np.array([(f(y + m) - f(y - m)) / (2 * step) for m in moves]).T


def jacobian(problem, x):
    K, M = x.R.shape[-2:]
    return gradient(lambda y: slope(problem, state(y, K, M)), vector(x))


def perfect(K, M):
    """The teacher's own weights, with K - M spare rows of zeros."""
    R = np.eye(K, M)
    return gd.Overlaps.single(Q=R @ R.T, R=R, v=np.ones(K))


# trajectories


@pytest.mark.parametrize("name", ["committee_M2_K2.csv", "two_layers_M2_K3.csv"])
def test_the_authors_own_program(name):
    """Every column at every row. Its Euler steps and six digits leave up to 1e-4."""
    source, *lines = (DATA / name).read_text().splitlines()
    start = json.loads(source[source.index("{") : source.rindex("}") + 1])
    problem = gd.Problem(
        activation=gd.erf,
        v_star=start["A"],
        T=start["T"],
        eta=start["lr"],
        eta_v=start["lr2"] if start["both"] else 0.0,
        sigma=start["sigma"],
    )
    x0 = gd.Overlaps.single(Q=start["Q"], R=start["R"], v=start["v"])
    rows = np.array([[float(entry) for entry in line] for line in csv.reader(lines)])
    t = gd.run(gd.flow(), problem, x0, rows[-1, 0], record=rows[:, 0])
    np.testing.assert_array_equal(t.alpha, rows[:, 0])
    K, times = len(start["v"]), len(rows)
    upper = np.triu_indices(K)
    ours = np.column_stack(
        [
            t.alpha,
            t.risk[0, :, 0],
            t.Q[0, :, 0, :, 0][:, *upper],
            t.R[0].reshape(times, -1),
            np.tile(problem.v_star, (times, 1)),
            t.v[0, :, 0],
        ]
    )
    assert ours.shape == rows.shape
    np.testing.assert_allclose(ours, rows, rtol=0, atol=2e-4)


TRAJECTORY_A = {
    0: 0.4601496119,
    1: 0.2284993403,
    10: 0.0160574795,
    100: 0.0147763324,
    300: 0.0010872355,
}


def trajectory_A(engine, record):
    x0 = gd.Overlaps.single(Q=np.diag([0.2, 0.3]), R=[[1e-3, 0], [0, 5e-4]], v=[1, 1])
    return gd.run(engine, committee(2, eta=0.5), x0, 600.0, record=record)


def test_trajectory_A():
    t = trajectory_A(gd.flow(rtol=1e-10), [*TRAJECTORY_A, 600.0])
    np.testing.assert_allclose(t.risk[0, :-1, 0], list(TRAJECTORY_A.values()), rtol=1e-6)
    assert t.risk[0, -1, 0] == pytest.approx(2.0948e-9, rel=1e-2)


# plateaus


@pytest.mark.parametrize(
    "K, risk", [(2, 0.0116108), (3, 0.0202966), (4, 0.0283773), (5, 0.0362263)]
)
def test_the_symmetric_plateau_at_small_rates(K, risk):
    """Saad & Solla (1995): Q_ik = 1 / (2K - 1), R_im = 1 / sqrt(K (2K - 1))."""
    problem = committee(K, eta=1e-9)  # leaves the drift alone

    def symmetric(y):
        q, r = y
        return gd.Overlaps.single(Q=np.full((K, K), q), R=np.full((K, K), r), v=np.ones(K))

    def pull(y):
        x = gd.rate(problem, symmetric(y))
        return np.array([x.Q[0, 0, 0, 0], x.R[0, 0, 0]]) / problem.eta

    found = root(pull, [0.3, 0.3], tol=1e-12)
    assert found.success
    q, r = found.x
    # the noise left by eta = 1e-9 moves the point by about 1e-9
    assert q == pytest.approx(1 / (2 * K - 1), abs=1e-8)
    assert r == pytest.approx(1 / np.sqrt(K * (2 * K - 1)), abs=1e-8)
    x = symmetric(found.x)
    assert np.abs(slope(problem, x)).max() < 1e-8 * problem.eta
    closed = K / np.pi * (np.pi / 6 - K * np.arcsin(1 / (2 * K)))
    assert gd.risk(problem, x)[0] == pytest.approx(closed, abs=1e-8)
    assert closed == pytest.approx(risk, abs=5e-8)


PLATEAUS = {
    2: {"risk": 0.012085, "escape": 0.065316, "R": 0.409235, "Qii": 0.338824, "Qij": 0.332031},
    3: {"risk": 0.021882, "escape": 0.045346},
}


@pytest.mark.parametrize("K", PLATEAUS)
def test_the_plateau_at_eta_one_tenth(K):
    """Students differ (Q_ii > Q_ij) there. The escape rate is the largest eigenvalue."""
    problem, known = committee(K, eta=0.1), PLATEAUS[K]

    def symmetric(y):
        Q = np.full((K, K), y[1]) + y[0] * np.eye(K)
        return gd.Overlaps.single(Q=Q, R=np.full((K, K), y[2]), v=np.ones(K))

    def pull(y):
        x = gd.rate(problem, symmetric(y))
        return [x.Q[0, 0, 0, 0] - x.Q[0, 0, 0, 1], x.Q[0, 0, 0, 1], x.R[0, 0, 0]]

    # from distinct students: identical ones have a fixed point of their own
    found = root(pull, [0.02, 1 / (2 * K - 1), 1 / np.sqrt(K * (2 * K - 1))], tol=1e-13)
    assert found.success
    apart, Qij, R = found.x
    x = symmetric(found.x)
    assert np.abs(slope(problem, x)).max() < 1e-12
    assert apart > 1e-3
    assert gd.risk(problem, x)[0] == pytest.approx(known["risk"], abs=5e-7)
    escape = np.linalg.eigvals(jacobian(problem, x)).real.max()
    assert escape / problem.eta == pytest.approx(known["escape"], abs=5e-7)
    if K == 2:
        assert R == pytest.approx(known["R"], abs=5e-7)
        assert Qij + apart == pytest.approx(known["Qii"], abs=5e-7)
        assert Qij == pytest.approx(known["Qij"], abs=5e-7)


# stationary error and stability of perfect learning


def linear_response(problem, K):
    """lim eps / sigma^2 as sigma -> 0: the state moves by sigma^2 y with J y + noise = 0.

    Returns it with the Jacobian's singular values.
    """
    M = problem.M
    x = perfect(K, M)
    J = jacobian(problem, x)
    noise = slope(replace(problem, sigma=1.0), x) - slope(problem, x)
    risk = gradient(lambda y: _risk_of(problem, state(y, K, M)), vector(x))
    return risk @ np.linalg.solve(J, -noise), np.linalg.svd(J)[1]


def _risk_of(problem, x):
    """Half sum_ab c_a c_b I2, also just outside the overlaps that weights can have."""
    C = np.block([[x.Q[0, :, 0], x.R[0]], [x.R[0].T, problem.T]])
    c = np.concatenate([x.v[0], -problem.v_star])
    d = np.diagonal(C)
    return c @ gd.erf.i2(d[:, None], C, d) @ c / 2


STATIONARY = {
    (0.05, 0, 2): 0.009390905894,
    (0.05, 1, 2): 0.01778652815,
    (0.1, 0, 2): 0.01920429132,
    (0.2, 0, 2): 0.04021870694,
    (0.2, 1, 2): 0.08012239025,
}


@pytest.mark.parametrize("eta, L, M", STATIONARY)
def test_the_stationary_error_of_a_noisy_teacher(eta, L, M):
    """K = M + L, first layer only, to all orders in eta."""
    response, singular = linear_response(committee(M + L, M, eta=eta), M + L)
    assert singular[-1] > 1e-3 * eta  # no null modes
    assert response == pytest.approx(STATIONARY[eta, L, M], rel=1e-6)


@pytest.mark.parametrize("L, M", [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3)])
def test_the_stationary_error_at_small_rates(L, M):
    """(eta / 2 pi) (L + M / sqrt 3), Goldt et al. (2019); corrections of order eta."""
    ratios = [
        linear_response(committee(M + L, M, eta=eta), M + L)[0]
        / (eta / (2 * np.pi) * (L + M / np.sqrt(3)))
        for eta in (0.002, 0.001)
    ]
    assert 2 * ratios[1] - ratios[0] == pytest.approx(1, abs=1e-5)  # eta -> 0
    assert ratios[1] == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize("K, stable", [(1, 4.055779), (2, 2.306828), (3, 1.620675)])
def test_the_largest_stable_rate(K, stable):
    """Of perfect learning: where the Jacobian there gets an eigenvalue with real part 0."""

    def growth(eta):
        return np.linalg.eigvals(jacobian(committee(K, eta=eta), perfect(K, K))).real.max()

    assert brentq(growth, 0.8 * stable, 1.2 * stable, xtol=1e-8) == pytest.approx(stable, abs=1e-6)
    if K == 1:  # the closed formula is exact here alone
        assert stable == pytest.approx(np.sqrt(3) * np.pi / (3 / np.sqrt(5)), abs=1e-6)


@pytest.mark.parametrize(
    "K, eta, risk", [(2, 2.5, 0.0255122), (1, 4.2, 0.0055812), (1, 5, 0.0357966)]
)
def test_beyond_the_stable_rate_the_flow_settles_elsewhere(K, eta, risk):
    problem = committee(K, eta=eta)
    x0 = gd.Overlaps.single(Q=0.9 * np.eye(K), R=0.9 * np.eye(K), v=np.ones(K))
    t = gd.run(gd.flow(), problem, x0, 3000.0)
    assert t.risk[0, -1, 0] == pytest.approx(risk, abs=1e-6)
    if K == 2:
        assert t.Q[0, -1, 0, 0, 0, 0] == pytest.approx(1.52217, abs=1e-5)


def test_the_error_falls_with_width_when_both_layers_learn():
    """Each teacher unit copied Z = K / M times, v = v* / Z: eps falls like 1 / K (derived)."""
    M, eta, sigma = 2, 0.05, 0.01
    for K, risk in ((2, 9.39e-7), (4, 4.64e-7), (8, 2.31e-7)):
        problem = committee(K, M, eta=eta, eta_v=eta, sigma=sigma)
        copies = np.repeat(np.eye(M), K // M, axis=0)
        x0 = gd.Overlaps.single(Q=copies @ copies.T, R=copies, v=np.full(K, M / K))
        t = gd.run(gd.flow(), problem, x0, 3000.0)
        first_order = eta * sigma**2 * M**2 / (2 * np.sqrt(3) * np.pi * K)
        assert t.risk[0, -1, 0] == pytest.approx(risk, abs=5.1e-10)
        assert t.risk[0, -1, 0] == pytest.approx(first_order, rel=0.03)


# the linear unit, solved by hand


def linear_unit(**options):
    return gd.Problem(activation=gd.linear, v_star=[1], T=[[1]], **options)


def unit_at_distance(e0):
    """A student of norm 1 with |w - w*|^2 / N = e0 = 2 - 2 R."""
    return gd.Overlaps.single(Q=[[1]], R=[[1 - e0 / 2]], v=[1])


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("eta, sigma", [(1.0, 0.5), (0.4, 0.0), (0.3, 1.0)])
def test_the_linear_unit(eta, sigma, batch):
    """e' = (-2 eta + eta^2 / B) e + eta^2 sigma^2 / B for e = |w - w*|^2 / N; eps = e / 2."""
    problem = linear_unit(eta=eta, sigma=sigma, batch=batch)
    alphas = np.linspace(0, 5, 21)
    t = gd.run(gd.flow(), problem, unit_at_distance(2.0), 5.0, record=alphas)
    decay = 2 * eta - eta**2 / batch
    floor = eta**2 * sigma**2 / batch / decay
    exact = floor + (2.0 - floor) * np.exp(-decay * alphas)
    np.testing.assert_allclose(t.risk[0, :, 0], exact / 2, rtol=1e-6)


def test_the_linear_unit_in_numbers():
    t = gd.run(gd.flow(), linear_unit(eta=1, sigma=0.5), unit_at_distance(2.0), 1.0)
    assert t.risk[0, -1, 0] == pytest.approx(0.4468945, abs=1e-7)
    for batch, floor in ((1, 0.125), (2, 0.0416667), (4, 0.0178571)):
        problem = linear_unit(eta=1, sigma=0.5, batch=batch)
        t = gd.run(gd.flow(), problem, unit_at_distance(2.0), 60.0)
        assert t.risk[0, -1, 0] == pytest.approx(floor, abs=1e-7)


@pytest.mark.parametrize("K, eta", [(1, 0.5), (2, 0.3), (3, 0.5)])
def test_the_stationary_error_of_linear_units(K, eta):
    """eta sigma^2 K / (4 - 2 eta K): K units that learn one linear map together."""
    sigma = 0.5
    problem = gd.Problem(activation=gd.linear, v_star=np.ones(K), T=np.eye(K), eta=eta, sigma=sigma)
    x0 = gd.Overlaps.single(Q=0.3 * np.eye(K), R=np.zeros((K, K)), v=np.ones(K))
    t = gd.run(gd.flow(), problem, x0, 200.0)
    closed = eta * sigma**2 * K / (4 - 2 * eta * K)
    assert t.risk[0, -1, 0] == pytest.approx(closed, rel=1e-6)


def test_the_linear_unit_under_weight_decay():
    """R and Q by hand: dR = eta (1 - R) - eta d R, and dQ from it."""
    eta, d, sigma = 0.5, 0.3, 0.2
    problem = linear_unit(eta=eta, sigma=sigma, weight_decay=d)
    alphas = np.linspace(0, 60, 61)
    x0 = gd.Overlaps.single(Q=[[0.5]], R=[[0.1]], v=[1])
    t = gd.run(gd.flow(), problem, x0, 60.0, record=alphas)
    R_end = 1 / (1 + d)
    R = R_end + (0.1 - R_end) * np.exp(-eta * (1 + d) * alphas)
    np.testing.assert_allclose(t.R[0, :, 0, 0, 0], R, rtol=1e-6)
    # 0 = 2 eta (R - Q) - 2 eta d Q + eta^2 (Q - 2 R + 1 + sigma^2)
    Q_end = (2 * eta * R_end + eta**2 * (1 + sigma**2 - 2 * R_end)) / (2 * eta * (1 + d) - eta**2)
    assert t.Q[0, -1, 0, 0, 0, 0] == pytest.approx(Q_end, rel=1e-6)


def test_a_second_layer_under_weight_decay():
    """A linear unit of fixed direction: dv = eta_v (R v* - Q v) - eta_v d v, v alone in motion."""
    eta_v, d = 0.5, 0.3
    problem = linear_unit(eta=1e-12, eta_v=eta_v, weight_decay=d)
    alphas = np.linspace(0, 10, 11)
    x0 = gd.Overlaps.single(Q=[[0.8]], R=[[0.6]], v=[2.0])
    t = gd.run(gd.flow(), problem, x0, 10.0, record=alphas)
    end = 0.6 / (0.8 + d)
    exact = end + (2 - end) * np.exp(-eta_v * (0.8 + d) * alphas)
    np.testing.assert_allclose(t.v[0, :, 0, 0], exact, rtol=1e-6)


# batch and noise


@pytest.mark.parametrize(
    "sigma, batch, risk, digits",
    [
        (0.5, 1, 0.0275, 5e-5),
        (0.5, 4, 0.0060, 5e-5),
        (0.2, 1, 4.63104e-3, 5e-9),
        (0.2, 4, 9.6944e-4, 5e-9),
    ],
)
def test_the_stationary_error_falls_with_the_batch(sigma, batch, risk, digits):
    problem = committee(2, eta=0.5, sigma=sigma, batch=batch)
    t = gd.run(gd.flow(), problem, perfect(2, 2), 2000.0)
    assert t.risk[0, -1, 0] == pytest.approx(risk, abs=digits)


def test_first_order_floor_of_any_second_layer():
    """(eta sigma^2 / 4B) sum_k v_k^2 <g'_k^2> as eta -> 0 (derived)."""
    v, eta, batch = np.array([1.5, -0.7]), 1e-3, 2
    problem = gd.Problem(activation=gd.erf, v_star=v, T=np.eye(2), eta=eta, batch=batch)
    x = gd.Overlaps.single(Q=np.eye(2), R=np.eye(2), v=v)
    J = gradient(lambda y: slope(problem, state(y, 2, 2, v)), vector(x))
    noise = slope(replace(problem, sigma=1.0), x) - slope(problem, x)
    risk = gradient(lambda y: _risk_of(problem, state(y, 2, 2, v)), vector(x))
    slopes = gd.erf.J2(np.ones((2, 2)))
    first = eta / (4 * batch) * (v**2).sum() * slopes
    assert risk @ np.linalg.solve(J, -noise) == pytest.approx(first, rel=2e-3)
