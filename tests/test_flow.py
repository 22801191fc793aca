"""The flow against its definition, and the structure of its right-hand side."""

from dataclasses import replace
from itertools import product

import by_definition
import numpy as np
import pytest
from anything import problem_and_overlaps, problem_of, weights

import gossipdyn as gd

ALGEBRA = 1e-12  # sums of some hundred terms of order 1
FULL = {"eta": 0.7, "eta_v": 0.4, "sigma": 0.3, "batch": 3, "weight_decay": 0.2}
SIZES = [(1, 1, 1), (1, 3, 2), (2, 2, 2), (3, 2, 1), (2, 1, 3)]


def assert_same(x, y, tolerance):
    for name in "QRv":
        np.testing.assert_allclose(
            getattr(x, name), getattr(y, name), rtol=0, atol=tolerance, err_msg=name
        )


# the right-hand side


@pytest.mark.parametrize("options", [{"eta": 0.5}, FULL], ids=["plain", "full"])
@pytest.mark.parametrize("activation", [gd.erf, gd.linear])
@pytest.mark.parametrize("P, K, M", SIZES)
def test_the_rate_is_its_definition(P, K, M, activation, options):
    problem, x = problem_and_overlaps(P, K, M, activation=activation, **options)
    dQ, dR, dv = by_definition.rate(problem, x.Q, x.R, x.v)
    assert_same(gd.rate(problem, x), gd.Overlaps(Q=dQ, R=dR, v=dv), 10 * ALGEBRA)


@pytest.mark.parametrize("activation", [gd.erf, gd.linear])
def test_the_risk_is_its_definition(activation):
    problem, x = problem_and_overlaps(3, 2, 2, activation=activation)
    direct = [by_definition.risk(problem, x.Q[p, :, p], x.R[p], x.v[p]) for p in range(len(x.v))]
    np.testing.assert_allclose(gd.risk(problem, x), direct, rtol=ALGEBRA)


def test_the_mean_sgd_step_is_the_rate():
    """E[change of R and v] = rate / N, exactly, at every N: an average over fresh samples.

    (Q has a further term of order 1 / N.) Fails beyond 5 standard errors.
    """
    w = weights(P=1, K=2, M=2, N=6)
    problem = problem_of(w, **FULL)
    rng, N, trials = np.random.default_rng(1), 6, 3000
    changes = []
    for _ in range(trials):
        X, zeta = rng.standard_normal((problem.batch, N)), rng.standard_normal(problem.batch)
        W, v = by_definition.sgd_step(problem, w.W[0], w.v[0], w.W_star, X, zeta)
        dR = (W - w.W[0]) @ w.W_star.T  # times N of alpha, over N of the overlap
        changes.append(np.concatenate([dR.ravel(), N * (v - w.v[0])]))
    slope = gd.rate(problem, gd.overlaps(w))
    expected = np.concatenate([slope.R.ravel(), slope.v.ravel()])
    error = np.std(changes, axis=0, ddof=1) / np.sqrt(trials)
    assert np.all(np.abs(np.mean(changes, axis=0) - expected) < 5 * error)


def test_a_state_of_several_runs_has_the_rate_of_each():
    problem, x = problem_and_overlaps(2, 2, 2, runs=(3,), **FULL)
    whole = gd.rate(problem, x)
    for run in range(3):
        one = gd.rate(problem, gd.Overlaps(Q=x.Q[run], R=x.R[run], v=x.v[run]))
        for name in "QRv":
            np.testing.assert_allclose(getattr(whole, name)[run], getattr(one, name), atol=ALGEBRA)


# term by term


def terms():
    """A problem and state, and functions of options: the rate of Q, R, v under them."""
    problem, x = problem_and_overlaps(3, 2, 2, **FULL)
    return problem, x, lambda **options: gd.rate(replace(problem, **options), x)


def own_blocks(P):
    """Mask (P, 1, P, 1) of the overlaps within one worker."""
    return np.eye(P, dtype=bool)[:, None, :, None]


def test_drift_goes_like_eta_and_noise_like_eta_squared_over_batch():
    problem, x, _ = terms()
    twice, batch = replace(problem, eta=2 * problem.eta), replace(problem, batch=12)
    for one, two in zip(gd.drift(problem, x), gd.drift(twice, x)):
        np.testing.assert_allclose(two, 2 * one, rtol=ALGEBRA)
    np.testing.assert_allclose(gd.noise(twice, x), 4 * gd.noise(problem, x), rtol=ALGEBRA)
    np.testing.assert_allclose(gd.noise(batch, x), gd.noise(problem, x) / 4, rtol=ALGEBRA)


def test_drift_and_noise_make_the_rate():
    problem, x, rate = terms()
    (U, V), slope = gd.drift(problem, x), rate()
    np.testing.assert_allclose(slope.R, U @ x.R + V @ problem.T, atol=ALGEBRA)
    half = np.einsum("pkj,pjql->pkql", U, x.Q) + np.einsum("pkm,qlm->pkql", V, x.R)
    scatter = slope.Q - half - np.transpose(half, (2, 3, 0, 1))
    own = np.broadcast_to(own_blocks(3), x.Q.shape)
    np.testing.assert_allclose(scatter[~own], 0, atol=ALGEBRA)
    for p in range(3):
        np.testing.assert_allclose(scatter[p, :, p], gd.noise(problem, x)[p], atol=ALGEBRA)


@pytest.mark.parametrize("change", [{"sigma": 0.0}, {"sigma": 2.0}, {"batch": 1}, {"batch": 50}])
def test_label_noise_and_batch_touch_nothing_but_a_workers_own_Q(change):
    problem, x, rate = terms()
    difference = rate(**change).Q - rate().Q
    assert np.all(difference[np.broadcast_to(~own_blocks(3), x.Q.shape)] == 0)
    assert np.all(np.abs(np.einsum("pkpk->pk", difference)) > 1e-4)
    assert np.all(rate(**change).R == rate().R) and np.all(rate(**change).v == rate().v)


def test_overlaps_of_different_workers_have_no_eta_squared_term():
    problem, x, rate = terms()
    own = np.broadcast_to(own_blocks(3), x.Q.shape)
    curvature = rate(eta=1.4).Q - 2 * rate(eta=0.7).Q  # 0 for what is linear in eta
    np.testing.assert_allclose(curvature[~own], 0, atol=ALGEBRA)
    assert np.all(np.abs(np.einsum("pkpk->pk", curvature)) > 1e-3)


def test_label_noise_enters_as_a_variance():
    problem, x, rate = terms()
    silent, one, three = (rate(sigma=sigma).Q for sigma in (0.0, 1.0, 3.0))
    np.testing.assert_allclose(three - silent, 9 * (one - silent), atol=ALGEBRA)
    direct = problem.eta**2 / problem.batch
    direct *= x.v[0, 0] ** 2 * by_definition.erf_J2(np.full((2, 2), x.Q[0, 0, 0, 0]))
    assert (one - silent)[0, 0, 0, 0] == pytest.approx(direct, rel=1e-10)


@pytest.mark.parametrize("activation", [gd.erf, gd.linear])
def test_weight_decay_adds_three_terms(activation):
    problem, x = problem_and_overlaps(3, 2, 2, activation=activation, **FULL)
    decay, free = gd.rate(problem, x), gd.rate(replace(problem, weight_decay=0.0), x)
    eta, eta_v, rate = problem.eta, problem.eta_v, problem.weight_decay
    np.testing.assert_allclose(decay.R - free.R, -eta * rate * x.R, atol=ALGEBRA)
    np.testing.assert_allclose(decay.Q - free.Q, -2 * eta * rate * x.Q, atol=ALGEBRA)
    np.testing.assert_allclose(decay.v - free.v, -eta_v * rate * x.v, atol=ALGEBRA)


def test_a_second_layer_that_is_not_trained_stays():
    problem, x = problem_and_overlaps(2, 2, 2, **(FULL | {"eta_v": 0.0}))
    assert np.all(gd.rate(problem, x).v == 0)
    t = gd.run(gd.flow(), problem, x, [(1.0, None), (1.0, None)])
    assert np.all(t.v == x.v)


def test_coupling_adds_the_laplacian():
    problem, x = problem_and_overlaps(3, 2, 2, **FULL)
    kappa, A = 0.3, gd.path(3)
    L = np.eye(3) - A
    with_it, without = gd.rate(problem, x, coupling=(kappa, A)), gd.rate(problem, x)
    LQ = np.einsum("pr,rkql->pkql", L, x.Q)
    np.testing.assert_allclose(
        with_it.Q - without.Q, -kappa * (LQ + np.transpose(LQ, (2, 3, 0, 1))), atol=ALGEBRA
    )
    np.testing.assert_allclose(
        with_it.R - without.R, -kappa * np.einsum("pr,rkm->pkm", L, x.R), atol=ALGEBRA
    )
    np.testing.assert_allclose(with_it.v - without.v, -kappa * L @ x.v, atol=ALGEBRA)


# the engine


@pytest.mark.parametrize("P, K, M", SIZES)
def test_the_flow_integrates_its_definition(P, K, M):
    """Training, a round of gossip, training: against Runge-Kutta steps of the slow loops."""
    problem, x = problem_and_overlaps(P, K, M, **FULL)
    A = gd.path(P)
    Q, R, v = by_definition.flow(problem, x.Q, x.R, x.v, 0.5, steps=10)
    Q = by_definition.gossip_round(A, Q)
    Q = np.moveaxis(by_definition.gossip_round(A, np.moveaxis(Q, 2, 0)), 0, 2)
    R, v = by_definition.gossip_round(A, R), by_definition.gossip_round(A, v)
    fine = by_definition.flow(problem, Q, R, v, 1.0, steps=20)
    rough = by_definition.flow(problem, Q, R, v, 1.0, steps=10)
    t = gd.run(gd.flow(), problem, x, [(0.5, A), (1.0, None)])
    # the fine steps are 2^4 times better than the rough ones; the first period has their length
    for got, a, b in zip((t.Q, t.R, t.v), fine, rough):
        error = np.max(np.abs(a - b)) / 15
        assert error < 1e-5
        np.testing.assert_allclose(got[0, -1], a, rtol=0, atol=3 * error + 1e-6)


def test_workers_apart_are_workers_coupled_with_strength_zero():
    """The cross overlaps from propagators, against integrating all of them."""
    for eta_v in (0.0, 0.4):
        problem, x = problem_and_overlaps(4, 2, 3, **(FULL | {"eta_v": eta_v}))
        schedule = [(2.0, gd.ring(4)), (1.0, gd.star(4)), (3.0, None)]
        apart = gd.run(gd.flow(), problem, x, schedule, record=[0.5, 2.5, 5.0])
        coupled = gd.run(
            gd.flow(coupling=(0, gd.ring(4))), problem, x, schedule, record=[0.5, 2.5, 5.0]
        )
        for name in "QRv":  # both to 100 rtol of numbers up to about 10
            np.testing.assert_allclose(
                getattr(apart, name), getattr(coupled, name), rtol=0, atol=1e-5
            )


@pytest.mark.slow
def test_coupling_is_the_limit_of_many_small_rounds():
    """Rounds with I + tau kappa (A - I) every tau: a deviation proportional to tau."""
    problem, x = problem_and_overlaps(3, 2, 2, **FULL)
    kappa, A = 0.8, gd.path(3)
    limit = gd.run(gd.flow(coupling=(kappa, A)), problem, x, 2.0)
    periods = np.array([0.2, 0.1, 0.05, 0.025])
    gaps = []
    for tau in periods:
        small = np.eye(3) + tau * kappa * (A - np.eye(3))
        t = gd.run(gd.flow(), problem, x, [(tau, small)] * round(2 / tau), ends=False)
        gaps.append(np.abs(t.Q[0, -1] - limit.Q[0, -1]).max())
    slope = np.polyfit(np.log(periods), np.log(gaps), 1)[0]
    assert slope == pytest.approx(1, abs=0.05)


def test_the_answer_does_not_depend_on_what_is_recorded():
    problem, x = problem_and_overlaps(2, 2, 2, **FULL)
    few = gd.run(gd.flow(), problem, x, 20.0)
    many = gd.run(gd.flow(), problem, x, 20.0, record=np.linspace(0, 20, 333))
    np.testing.assert_allclose(many.Q[0, -1], few.Q[0, -1], atol=1e-6)
    between = gd.run(gd.flow(rtol=1e-11), problem, x, 20.0, record=np.linspace(0, 20, 333))
    np.testing.assert_allclose(many.Q, between.Q, rtol=0, atol=1e-6)  # interpolation included


def test_several_runs_are_each_run_alone():
    problem, x = problem_and_overlaps(2, 2, 2, runs=(3,), **FULL)
    schedule = [(1.0, gd.complete(2)), (2.0, None)]
    together = gd.run(gd.flow(), problem, x, schedule, record=[0.3])
    for run in range(3):
        alone = gd.Overlaps(Q=x.Q[run], R=x.R[run], v=x.v[run])
        t = gd.run(gd.flow(), problem, alone, schedule, record=[0.3])
        for name in ("Q", "R", "v", "risk", "mean_risk"):
            np.testing.assert_array_equal(getattr(together, name)[run], getattr(t, name)[0])


@pytest.mark.parametrize("options", [{"eta": 0.5}, FULL], ids=["plain", "full"])
def test_runs_do_better_with_tighter_tolerances(options):
    """The error goes down with rtol, and at the default stays within 100 rtol."""
    problem, x = problem_and_overlaps(2, 2, 2, **options)
    exact = gd.run(gd.flow(rtol=1e-12), problem, x, 30.0)
    errors = [
        np.abs(gd.run(gd.flow(rtol=rtol), problem, x, 30.0).Q[0, -1] - exact.Q[0, -1]).max()
        for rtol in (1e-4, 1e-6, 1e-8)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-6


def test_long_stiff_runs_keep_to_their_tolerance():
    """To alpha = 1e4 from a start with more students than teachers: quick, and right."""
    problem = gd.Problem(activation=gd.erf, v_star=[1, 1], T=np.eye(2), eta=0.2, sigma=0.01)
    x = gd.random_start(problem, workers=1, students=4, N=500, scale=0.5, seed=1)
    loose, tight = (gd.run(gd.flow(rtol=rtol), problem, x, 1e4) for rtol in (1e-8, 1e-11))
    np.testing.assert_allclose(loose.risk[0, -1], tight.risk[0, -1], rtol=1e-5)


def test_sizes_and_options_do_not_disturb_one_another():
    """A worker's own overlaps are the same alone and among others that it never meets."""
    for eta_v, sigma in product((0.0, 0.3), (0.0, 0.5)):
        problem, x = problem_and_overlaps(3, 2, 2, eta=0.6, eta_v=eta_v, sigma=sigma)
        crowd = gd.run(gd.flow(), problem, x, 5.0)
        for p in range(3):
            one = gd.Overlaps.single(Q=x.Q[p, :, p], R=x.R[p], v=x.v[p])
            alone = gd.run(gd.flow(), problem, one, 5.0)
            np.testing.assert_allclose(alone.risk[0, -1, 0], crowd.risk[0, -1, p], atol=1e-7)


@pytest.mark.parametrize("apart", [1e-3, 1e-12])
def test_overlaps_between_workers_survive_a_long_escape(apart):
    """The deviation of nearly equal units grows by 1/apart; digits of Q^pq must not go with it."""
    rng = np.random.default_rng(0)
    W = np.tile(rng.standard_normal((1, 1, 20)), (2, 2, 1)) + apart * rng.standard_normal(
        (2, 2, 20)
    )
    W_star = np.linalg.qr(rng.standard_normal((20, 2)))[0].T * np.sqrt(20)
    x0 = gd.overlaps(gd.Weights(W=W, v=np.ones((2, 2)), W_star=W_star))
    problem = gd.Problem(activation=gd.erf, v_star=[1, 1], T=W_star @ W_star.T / 20, eta=1.5)
    rounds = [(0, gd.complete(2)), (300.0, None)]
    t = gd.run(gd.flow(), problem, x0, rounds)  # a Q that is not symmetric would be refused
    # equal workers make equal overlaps, between them but for the noise, which each has alone
    between, own = t.Q[0, -1, 0, :, 1], t.Q[0, -1, 0, :, 0]
    assert np.all(np.abs(between - own) < 0.1) and t.risk[0, -1].max() < 1e-3
    joint = gd.run(gd.flow(coupling=(0, gd.ring(2))), problem, x0, rounds)
    if apart > 1e-6:  # below, rounding decides when each solver leaves
        np.testing.assert_allclose(t.Q, joint.Q, rtol=0, atol=1e-6)  # rtol x 100


def two_orders():
    """Two perfect workers whose units stand in opposite order."""
    R = np.array([np.eye(2), np.eye(2)[::-1]])
    rows = R.reshape(4, 2)
    return gd.Overlaps(Q=(rows @ rows.T).reshape(2, 2, 2, 2), R=R, v=np.ones((2, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("coupling", [None, (0.0, np.eye(2))], ids=["apart", "coupled"])
def test_units_that_are_equal_up_to_rounding_stay_possible(coupling):
    """The square of their distance is a rounding, and may lie below 0; at eta=1.5 it grows."""
    problem = gd.Problem(activation=gd.erf, v_star=[1, 1], T=np.eye(2), eta=1.5)
    t = gd.run(gd.flow(coupling=coupling), problem, two_orders(), [(5, gd.complete(2))] * 120)
    own = np.einsum("tpkpl->tpkl", t.Q[0])
    across = own - np.einsum("tpkm,tplm->tpkl", t.R[0], t.R[0])  # T = I
    assert t.complete and np.all(t.risk >= -1e-6)
    assert np.linalg.eigvalsh(across).min() > -1e-4  # rtol x 100, and what a step adds to it


@pytest.mark.parametrize("eta, activation", [(3.5, gd.erf), (6.0, gd.erf)])
def test_an_unstable_perfect_start_stays_possible(eta, activation):
    """Rounding decides whether the square of a distance to the teacher begins below 0."""
    problem = gd.Problem(activation=activation, v_star=[1, 1], T=np.eye(2), eta=eta)
    t = gd.run(gd.flow(), problem, gd.perfect(problem), [(5.0, None)] * 40)
    assert t.risk.min() > -1e-5


@pytest.mark.parametrize("coupling", [None, (0.3, gd.complete(2))], ids=["apart", "coupled"])
def test_runs_together_are_each_run_alone_within_the_tolerance(coupling):
    problem, x = problem_and_overlaps(2, 2, 2, runs=(5,), **FULL)
    schedule = [(1.0, gd.complete(2)), (0.2, None), (0.2, gd.ring(2)), (30.0, None)]
    engines = [gd.flow(coupling=coupling, together=together) for together in (True, False)]
    together, alone = (gd.run(f, problem, x, schedule, record=[0.3, 20]) for f in engines)
    assert together.engine["options"]["together"] and "together" not in alone.engine["options"]
    for name in ("Q", "R", "v", "risk"):
        one, other = getattr(together, name), getattr(alone, name)
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)  # rtol x 100


@pytest.mark.parametrize("together", [True, False])
def test_a_run_that_diverges_leaves_the_others_right_until_then(together):
    """One linear unit, e' = (-2 eta + eta^2) e: at eta = 2.4 a run that is not perfect grows."""
    problem = gd.Problem(gd.linear, v_star=[1], T=[[1]], eta=2.4)
    R = np.array([1.0, 1.0, 0.0])  # the first two are perfect
    Q, R, v = np.ones((3, 1, 1, 1, 1)), R.reshape(3, 1, 1, 1), np.ones((3, 1, 1))
    x = gd.Overlaps(Q=Q, R=R, v=v)
    with pytest.raises(gd.Diverged, match=r"run 2, worker 0") as error:
        gd.run(gd.flow(together=together), problem, x, 100.0, record=[1, 2, 3, 90])
    t = error.value.trajectory
    np.testing.assert_allclose(t.risk[:2], 0, atol=1e-6)
    after = t.alpha[:4]
    np.testing.assert_allclose(t.risk[2, :4, 0], np.exp(0.96 * after), rtol=1e-6)  # rtol x 100


def test_short_rounds_hold_the_tolerance_and_go_on_from_a_long_one():
    """Short ways are gone by another solver than long ones: both agree with tight tolerances."""
    problem, x = problem_and_overlaps(3, 2, 2, eta=0.5)
    A = gd.complete(3)
    schedule = [(30.0, A)] + [(0.2, A)] * 30 + [(400.0, A)] + [(3.0, A)] * 5
    loose, tight = (gd.run(gd.flow(rtol=rtol), problem, x, schedule) for rtol in (1e-8, 1e-11))
    np.testing.assert_allclose(loose.Q, tight.Q, rtol=0, atol=1e-6)  # rtol x 100
