"""The floor of gossiping workers, to first order in eta, against sums, flows and known values."""

from dataclasses import replace

import numpy as np
import pytest

import gossipdyn as gd

PROBLEM = gd.Problem(activation=gd.erf, v_star=(1, 1), T=np.eye(2), eta=0.05, sigma=0.01)
H = 2 / np.pi * (1 / np.sqrt(3) + np.array([-0.5, 0.5]))  # of two erf units


@pytest.mark.parametrize(
    "kappa, first, flow", [(0, 9.189, 9.391), (0.02, 6.409, 6.509), (2, 2.406, 2.420)]
)
def test_known_floors_with_coupling(kappa, first, flow):
    floor = gd.gossip_floor(PROBLEM, gd.complete(4), coupling=kappa)
    assert np.allclose(1e7 * PROBLEM.sigma**2 * floor.before, first, rtol=0, atol=5e-4)
    assert np.array_equal(floor.before, floor.after)
    end = gd.run(
        gd.flow(coupling=(kappa, gd.complete(4))), PROBLEM,
        gd.mix(np.ones((4, 1)), gd.perfect(PROBLEM)), 4000.0, keep=("risk",),
    )  # fmt: skip
    assert np.allclose(1e7 * end.risk[0, -1], flow, rtol=0, atol=5e-4)


@pytest.mark.parametrize(
    "A", [gd.ring(6), gd.exponential(6), gd.star(5), gd.complete(3), np.eye(2)]
)
@pytest.mark.parametrize("period", [0.3, 7.0, 200.0])
def test_for_a_normal_graph_it_is_the_sum_over_eigenvalues(A, period):
    floor = gd.gossip_floor(PROBLEM, A, period)
    P, lam2 = len(A), np.abs(np.linalg.eigvals(A)) ** 2
    E = np.exp(-2 * PROBLEM.eta * H[:, None] * period)
    parts = (1 - E) / (1 - lam2 * E)
    scale = PROBLEM.eta / (4 * P)
    assert np.isclose(floor.before.mean(), scale * (H[:, None] * parts).sum(), rtol=1e-10)
    assert np.isclose(floor.after.mean(), scale * (H[:, None] * lam2 * parts).sum(), rtol=1e-10)
    assert np.isclose(floor.mean, scale * H.sum(), rtol=1e-10)
    assert np.isclose(floor.consensus, 2 * scale * (parts.sum() - 2), rtol=1e-9, atol=1e-12)
    assert np.all(floor.after <= floor.over_time) and np.all(floor.over_time <= floor.before)


def test_the_mean_over_time_is_an_integral():
    tau = 40.0
    floor = gd.gossip_floor(PROBLEM, gd.star(4), tau)
    halves = [gd.gossip_floor(PROBLEM, gd.star(4), tau)]
    # between rounds every mode relaxes to its own level, at the rate 2 eta h
    alone = gd.gossip_floor(PROBLEM, np.eye(4), tau).before
    one = replace(PROBLEM, v_star=(1,), T=[[1.0]])
    h = 2 / np.pi / np.sqrt(3)
    single = gd.gossip_floor(one, gd.star(4), tau)
    level = one.eta * h / 4
    times = np.linspace(0, tau, 4001)
    between = level + np.exp(-2 * one.eta * h * times[:, None]) * (single.after - level)
    mean = np.trapezoid(between, times, axis=0) / tau
    assert np.allclose(single.over_time, mean, rtol=1e-6)  # the rule's step, squared
    assert np.allclose(between[-1], single.before, rtol=1e-10)
    assert np.all(floor.before < alone) and halves[0].mean == floor.mean


@pytest.mark.slow
@pytest.mark.parametrize("batch, activation, M", [(4, gd.erf, 1), (1, gd.relu, 2)])
def test_the_flow_falls_to_it_on_any_graph(batch, activation, M):
    """Also where workers differ and columns do not sum to 1, worker by worker."""
    eta, rounds = 2e-3 * batch, 40  # the slowest mode has decayed by exp(-6)
    v_star = np.array([0.8, 1.2])[:M]
    problem = gd.Problem(activation, v_star, T=np.eye(M), eta=eta, sigma=0.1, batch=batch)
    A = np.array([[0.6, 0.3, 0.1], [0.2, 0.8, 0], [0, 0.5, 0.5]])
    tau, x = 0.4 / eta, gd.mix(np.ones((3, 1)), gd.perfect(problem))
    with pytest.warns(UserWarning, match="columns"):
        t = gd.run(
            gd.flow(), problem, x, [(tau, A)] * rounds, keep=("Q", "R", "v", "risk", "mean_risk")
        )
    floor = gd.gossip_floor(problem, A, tau)
    s2 = problem.sigma**2
    # what errors make themselves, of relative order eta
    close = {"rtol": 6 * eta / batch, "atol": 0}
    assert np.allclose(t.risk[0, -2], s2 * floor.before, **close)
    assert np.allclose(t.risk[0, -1], s2 * floor.after, **close)
    assert np.allclose(t.mean_risk[0, -1], s2 * floor.mean, **close)
    assert np.allclose(gd.consensus_distance(t.state(-2))[0], s2 * floor.consensus, **close)
    assert np.ptp(floor.before) > 0.05 * floor.before.mean()


def test_alone_it_is_the_first_order_of_noise_floor():
    for eta in (1e-3, 1e-4):
        problem = replace(PROBLEM, eta=eta)
        alone = gd.gossip_floor(problem, [[1.0]], coupling=0).mean
        exact = gd.noise_floor(problem, gd.perfect(problem))
        assert abs(alone / exact - 1) < 0.5 * eta


@pytest.mark.parametrize("eta, none, complete", [(0.5, 0.117, 0.0945), (1.5, 0.262, 0.101)])
def test_its_range_is_small_eta(eta, none, complete):
    """The floor of the mean of 8 workers, in units of eta sigma^2 / 4B: .092 by the first order."""
    problem = replace(PROBLEM, eta=eta)
    x = gd.mix(np.ones((8, 1)), gd.perfect(problem))
    assert abs(gd.gossip_floor(problem, np.eye(8), coupling=0).mean * 4 / eta - 0.0919) < 5e-5
    for kappa, seen in ((0, none), (100, complete)):
        flow = gd.flow(coupling=(kappa, gd.complete(8))) if kappa else gd.flow()
        t = gd.run(flow, problem, x, 120 / eta, keep=("mean_risk",))
        assert abs(t.mean_risk[0, -1] * 4 / eta / problem.sigma**2 - seen) < 6e-4


def test_refusals():
    A = gd.ring(3)
    for options in ({}, {"period": 1.0, "coupling": 1.0}):
        with pytest.raises(ValueError, match="either period"):
            gd.gossip_floor(PROBLEM, A, **options)
    with pytest.raises(ValueError, match="above 0"):
        gd.gossip_floor(PROBLEM, A, 0)
    with pytest.raises(ValueError, match=r"\(P, P\)"):
        gd.gossip_floor(PROBLEM, np.ones((1, 3)) / 3, 1.0)
    with pytest.raises(ValueError, match="weight_decay"):
        gd.gossip_floor(replace(PROBLEM, weight_decay=0.1), A, 1.0)
    with pytest.raises(ValueError, match="silent"):
        gd.gossip_floor(replace(PROBLEM, v_star=(0, 0)), A, 1.0)


@pytest.mark.parametrize("A", [gd.ring(6), gd.path(3), np.eye(2)])
def test_periods_so_short_that_hardly_anything_is_learnt_between_two_rounds(A):
    """Then a round hardly changes anything: errors are those of the mean of who can meet."""
    floor = gd.gossip_floor(PROBLEM, A, period=1e-18)
    meet = np.linalg.matrix_power(gd.lazy(A), 4096)
    expected = PROBLEM.eta / 4 * H.sum() * np.diagonal(meet @ meet.T)
    for risk in (floor.before, floor.after, floor.over_time):
        assert np.allclose(risk, expected, rtol=1e-9, atol=0)


def test_a_pull_too_strong_for_the_digits_is_refused():
    with pytest.raises(ValueError, match="coupling of 1e.12 is more than 1e.08 times .* weaker"):
        gd.gossip_floor(PROBLEM, gd.ring(3), coupling=1e12)
    strong = gd.gossip_floor(PROBLEM, gd.ring(3), coupling=1e6)
    assert np.allclose(strong.before, PROBLEM.eta / 12 * H.sum(), rtol=1e-6)
