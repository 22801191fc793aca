"""Linear noise at finite N: its diffusion by sampling, its covariance in closed form, by chain."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.interpolate import CubicSpline

import gossipdyn as gd
from gossipdyn.coordinates import Coordinates
from gossipdyn.equations import State
from gossipdyn.theory.diffusion import nodes

TWO = gd.Problem(activation=gd.erf, v_star=np.ones(2), T=np.eye(2), eta=0.5, sigma=0.2)
START = gd.Overlaps.single(Q=[[0.55, 0.05], [0.05, 0.45]], R=[[0.3, 0.1], [0.0, 0.2]], v=np.ones(2))


def u(x):
    """R_11 + R_22 - R_12 - R_21 of a single worker."""
    return x.R[..., 0, 0, 0] + x.R[..., 0, 1, 1] - x.R[..., 0, 0, 1] - x.R[..., 0, 1, 0]


# the quadrature


@pytest.mark.parametrize(
    "d, activation, error",
    [(d, gd.erf, 1e-4) for d in (1, 2, 3, 4)]
    + [(5, gd.erf, 1e-3), (6, gd.erf, 3e-3), (7, gd.erf, 2e-2), (4, gd.relu, 2e-2)],
)
def test_the_nodes_average_narrow_functions(d, activation, error):
    """<exp(-2 s^2) t^2> for unit s, t of correlation r: (1 - 4 r^2 / 5) / sqrt 5.

    As narrow as four slopes of erf on one field of variance 1, the narrowest that D holds there.
    """
    z, weight = nodes(d, activation)
    rng = np.random.default_rng(0)
    for _ in range(20):
        s, t = rng.standard_normal((2, d))
        s, t = s / np.linalg.norm(s), t / np.linalg.norm(t)
        found = weight @ (np.exp(-2 * (z @ s) ** 2) * (z @ t) ** 2)
        assert found == pytest.approx((1 - 0.8 * (s @ t) ** 2) / np.sqrt(5), rel=error)


def test_the_diffusion_of_u_by_a_product_rule():
    """eta^2 <((g'_1 - g'_2)(rho_1 - rho_2))^2 (e^2 + sigma^2)> - (du)^2 by Gauss-Hermite."""
    x, w = np.polynomial.hermite_e.hermegauss(32)
    w = w / w.sum()
    z = np.stack(np.meshgrid(*[x] * 4, indexing="ij"), -1).reshape(-1, 4)
    weight = np.einsum("i,j,k,l->ijkl", w, w, w, w).ravel()
    Q, R = START.Q[0, :, 0], START.R[0]
    f = z @ np.linalg.cholesky(np.block([[Q, R], [R.T, np.eye(2)]])).T
    slope, e = gd.erf.dg(f[:, :2]), gd.erf.g(f) @ [1, 1, -1, -1]
    turn = (slope[:, 0] - slope[:, 1]) * (f[:, 2] - f[:, 3])
    expected = TWO.eta**2 * weight @ (turn**2 * (e**2 + TWO.sigma**2))
    expected -= u(gd.rate(TWO, START)) ** 2
    direction = np.array([0, 0, 0, 1, -1, -1, 1])
    D = gd.diffusion(TWO, START)
    # the quadrature's 1e-4, of every entry
    error = 1e-4 * (np.abs(direction) @ np.sqrt(D.diagonal())) ** 2
    assert direction @ D @ direction == pytest.approx(expected, abs=error)
    assert error < 0.01 * expected


@pytest.mark.slow
@pytest.mark.parametrize("activation", [gd.erf, gd.relu])
@pytest.mark.parametrize("P, batch", [(1, 1), (1, 3), (2, 2)])
def test_the_diffusion_is_the_covariance_of_one_step(activation, P, batch):
    """By sampling all fields of all workers' samples; entry by entry."""
    K, M, n = 2, 3, 200_000
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((P * K + M, 12))
    gram = rows @ rows.T / 12
    problem = gd.Problem(
        activation, [1.0, -0.5, 0.7], gram[P * K :, P * K :], 0.8, 0.6, 1.0, batch, 0.1
    )
    v = rng.standard_normal((P, K))
    x = gd.Overlaps(
        Q=gram[: P * K, : P * K].reshape(P, K, P, K), R=gram[: P * K, P * K :].reshape(P, K, M), v=v
    )
    f = rng.standard_normal((n, P, batch, 12)) @ rows.T / np.sqrt(12)  # (n, P, batch, all rows)
    lam = np.stack([f[:, p, :, p * K : p * K + K] for p in range(P)], 1)
    e = np.einsum("npbk,pk->npb", activation.g(lam), v)
    e -= activation.g(f[..., P * K :]) @ problem.v_star
    e += problem.sigma * rng.standard_normal(e.shape)
    pull = -problem.eta * v[:, None] * activation.dg(lam) * e[..., None]  # (n, P, batch, K)
    half = np.einsum("npbk,npbr->npkr", pull, f) / batch
    Q = half[..., : P * K].reshape(n, P * K, P * K)
    Q = (Q + Q.swapaxes(1, 2)).reshape(n, P, K, P, K)
    own = np.einsum("npbk,npbl->npkl", pull, pull) / batch**2
    for p in range(P):
        Q[:, p, :, p] += own[:, p]
    dv = -problem.eta_v * np.einsum("npbk,npb->npk", activation.g(lam), e) / batch
    change = Coordinates(problem, x).pack(State(Q, half[..., P * K :], dv))
    change -= change.mean(0)
    D = gd.diffusion(problem, x)
    scale = np.sqrt(np.outer(D.diagonal(), D.diagonal()))
    sampled = change.T @ change / n
    spread = np.sqrt(np.maximum((change**2).T @ change**2 / n - sampled**2, 0) / n)
    # 5 sigma of the sample, and the quadrature's own error: 5 fields, or a kink
    tolerance = 5 * spread + (1e-3 if activation is gd.erf else 2e-2) * scale
    assert np.all(np.abs(sampled - D) < tolerance)
    assert np.median(spread / scale) < 0.01


# the covariance


def test_a_linear_unit_in_closed_form():
    """q = |w - w*|^2 / N: steps multiply it, dq = J q z^2 / N, so N var = 2 J^2 alpha q^2."""
    eta = 0.7
    problem = gd.Problem(gd.linear, [1.0], [[1.0]], eta)
    x0 = gd.Overlaps.single(Q=[[0.8]], R=[[0.3]], v=[1.0])
    found = gd.fluctuations(problem, x0, 4.0, record=[1.0, 2.5])
    J = eta**2 - 2 * eta
    q = (0.8 - 0.6 + 1) * np.exp(J * found.alpha)
    std = found.std(lambda x: x.Q[:, 0, 0, 0, 0] - 2 * x.R[:, 0, 0, 0] + 1, N=100)
    expected = np.sqrt(2 * found.alpha / 100) * abs(J) * q
    assert std == pytest.approx(expected, rel=1e-4)  # the integration's 1e-5 adds up
    # for linear units the risk is q / 2
    assert found.std("risk", N=100)[:, 0] == pytest.approx(expected / 2, rel=1e-4)


def deviations(problem, x0, rounds, record, N, runs, **options):
    """Covariances of chain and theory in units of their error: (times, n, n), and the theory."""
    theory = gd.fluctuations(problem, x0, rounds, record=record, **options)
    t = gd.run(gd.chain(N=N, runs=runs, seed=4), problem, x0, rounds, record=record)
    assert t.alpha == pytest.approx(theory.alpha)
    coordinates = Coordinates(problem, x0)
    scores = []
    for i, S in enumerate(theory.covariance):
        sample = N * np.cov(coordinates.pack(t.state(i)).T)
        scale = np.outer(S.diagonal(), S.diagonal())
        # of a Gaussian's sample covariance, and a relative correction of a few 1/N to S itself
        error = np.sqrt((scale + S**2) / runs) + np.sqrt(scale) * 2 / N
        scores.append((sample - S) / np.where(error > 0, error, 1))
    return np.array(scores), theory


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"eta_v": 0.3, "batch": 2}, {"weight_decay": 0.1}, {"activation": gd.relu, "eta": 0.3}],
    ids=["first layer", "both layers, batch 2", "decay", "relu"],
)
def test_every_entry_against_the_chain(options):
    scores, _ = deviations(replace(TWO, **options), START, 6.0, [1.0, 3.0], N=150, runs=1024)
    assert np.abs(scores).max() < 5
    assert np.abs(scores[0]).max() < 1e-9  # all runs start alike


@pytest.mark.slow
def test_every_entry_through_rounds_of_gossip():
    x0 = gd.mix(np.ones((2, 1)), START)
    A = np.array([[0.75, 0.25], [0.25, 0.75]])
    rounds = [(2.0, A), (2.0, gd.complete(2)), (1.0, None)]
    scores, theory = deviations(TWO, x0, rounds, [1.0], N=150, runs=1024)
    assert np.abs(scores).max() < 5
    assert theory.after_mixing.sum() == 2
    # a round of complete averaging leaves equal workers
    end = np.flatnonzero(theory.after_mixing)[-1]
    gap = theory.std(lambda x: x.R[:, 0] - x.R[:, 1], N=1)
    assert gap[end - 1].min() > 0.05 and gap[end].max() < 1e-6


@pytest.mark.slow
def test_every_entry_beyond_the_plateau():
    """eta = 1.5 from R = .2 I: the run leaves its plateau by alpha = 25, tested up to 40."""
    problem = replace(TWO, eta=1.5, sigma=0.0)
    x0 = gd.Overlaps.single(Q=0.4 * np.eye(2), R=0.2 * np.eye(2), v=np.ones(2))
    times = np.arange(0.0, 41.0)
    path = gd.run(gd.flow(), problem, x0, 40.0, record=times)
    assert gd.phases(path).refinement_begins < 30
    scores, _ = deviations(problem, x0, 40.0, [5.0, 10.0, 20.0, 30.0], N=400, runs=512)
    assert np.abs(scores).max() < 5


@pytest.mark.slow
def test_after_a_random_exit_the_theory_is_wrong():
    """From a symmetric start u grows without bound in the theory, but |u| stays below about 2."""
    problem, N = replace(TWO, eta=1.5), 100
    x0 = gd.Overlaps.single(Q=np.eye(2), R=np.zeros((2, 2)), v=np.ones(2))
    theory = gd.fluctuations(problem, x0, 80.0, record=[3.0])
    t = gd.run(gd.chain(N=N, runs=512, seed=0), problem, x0, 80.0, record=[3.0])
    ratio = [u(t.state(i)).std() / theory.std(u, N)[i] for i in (1, 2)]
    assert ratio[0] == pytest.approx(1, abs=5 / np.sqrt(2 * 512) + 2 / N)
    assert ratio[1] < 0.4


# random starts and exits


def test_random_rows_scatter_as_random_start_says():
    N, scale, runs = 300, 0.7, 4000
    problem = replace(TWO, T=np.array([[1, 0.3], [0.3, 2]]))
    for shared in (False, True):
        starts = gd.random_start(problem, 2, 2, N, scale=scale, shared=shared, seed=3, runs=runs)
        mean = scale**2 * np.eye(2)
        Q = np.einsum("pq,kl->pkql", np.ones((2, 2)) if shared else np.eye(2), mean)
        x0 = gd.Overlaps(Q=Q, R=np.zeros((2, 2, 2)), v=np.ones((2, 2)))
        S = gd.fluctuations(problem, x0, 0.0, random_rows=True).covariance[0]
        sample = N * np.cov(Coordinates(problem, x0).pack(starts).T)
        error = np.sqrt((np.outer(S.diagonal(), S.diagonal()) + S**2) / runs)
        assert np.all(np.abs(sample - S) < 5 * error + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("eta, V0", [(1.5, 1.2317), (0.5, 0.23496), (0.1, 0.040397)])
def test_the_variance_that_noise_adds_to_the_escape(eta, V0):
    """V(0), the integral of D exp(-2 Lambda) from Q = I: what N u^2 gains over its start.

    By another road: Lambda from escape(), D from diffusion() on that trajectory, and a spline.
    """
    problem = replace(TWO, eta=eta, sigma=0.0)
    x0 = gd.Overlaps.single(Q=np.eye(2), R=np.zeros((2, 2)), v=np.ones(2))
    end = 100 / eta
    theory = gd.fluctuations(problem, x0, end)
    times = end * np.linspace(0, 1, 161) ** 2
    path = gd.escape(problem, x0, times)
    direction = np.array([0, 0, 0, 1, -1, -1, 1])
    D = [
        direction @ gd.diffusion(problem, gd.Overlaps(Q, R, v)) @ direction
        for Q, R, v in zip(path.x.Q, path.x.R, path.x.v)
    ]
    V = theory.std(u, N=1)[-1] ** 2 * np.exp(-2 * path.growth[-1])
    integral = CubicSpline(times, D * np.exp(-2 * path.growth)).integrate(0, end)
    assert V == pytest.approx(integral, rel=2e-4)
    assert V == pytest.approx(V0, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("random_rows", [True, False])
def test_exits_from_the_plateau_follow_their_law(random_rows):
    """N = 200, eta = 1.5, when |u| passes .3: by the start's scatter and the steps' noise,

    or, when all runs start alike, by the noise of the steps alone.
    """
    problem, N, runs, threshold = replace(TWO, eta=1.5, sigma=0.0), 200, 512, 0.3
    times = np.arange(0.0, 101.0)
    x0 = gd.Overlaps.single(Q=np.eye(2), R=np.zeros((2, 2)), v=np.ones(2))
    theory = gd.fluctuations(problem, x0, 100.0, record=times, random_rows=random_rows)
    law = theory.passed(u, threshold, N)
    starts = gd.random_start(problem, 1, 2, N, seed=5, runs=runs) if random_rows else x0
    engine = gd.chain(N=N, runs=runs, seed=3)
    t = gd.run(engine, problem, starts, 100.0, record=times, keep=("Q", "R", "v"))
    beyond = np.abs(u(gd.Overlaps(t.Q, t.R, t.v))) > threshold
    passed = np.logical_or.accumulate(beyond, axis=1).mean(0)
    # Kolmogorov's 1e-3 quantile of a sample, and the growth that is lost before u = .3 (3 %)
    assert np.abs(passed - law).max() < 1.95 / np.sqrt(runs) + 0.03
    assert law[0] < 0.05 and law[-1] > 0.95


def test_what_fluctuations_refuses():
    x = gd.random_start(TWO, 1, 2, 100, runs=3)
    with pytest.raises(ValueError, match="one start"):
        gd.fluctuations(TWO, x, 1.0)
    with pytest.raises(ValueError, match="x0.R goes up to 0.3"):
        gd.fluctuations(TWO, START, 1.0, random_rows=True)
    found = gd.fluctuations(TWO, START, 1.0)
    with pytest.raises(
        ValueError, match="f, unless .* function of Overlaps, is one of Q, R, v, risk, mean_risk"
    ):
        found.std("eps", 100)
    with pytest.raises(ValueError, match=r"f makes an array of 2 states, one row each, got \(1,"):
        found.passed(lambda x: x.v[:1], 0.3, 100)
    with pytest.raises(ValueError, match="law of exits"):
        found.passed(u, 0.3, 100)
    with pytest.raises(ValueError, match="N"):
        found.std("Q", 0)
