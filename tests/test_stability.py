"""Fixed points, modes, perfect learning: against known answers, the flow itself, and sign sums."""

from dataclasses import replace
from itertools import product

import anything
import numpy as np
import pytest

import gossipdyn as gd

DIGITS = 5.1e-7  # of known answers printed with six decimals


def committee(K, M=None, activation=gd.erf, **options):
    M = K if M is None else M
    return gd.Problem(activation=activation, v_star=np.ones(M), T=np.eye(M), **options)


def alike(K, same, other, R):
    """One worker whose students are alike before two or more teacher units that are alike."""
    Q = np.full((K, K), other) + (same - other) * np.eye(K)
    return gd.Overlaps.single(Q=Q, R=np.full((K, K), R), v=np.ones(K))


def plateau(problem, apart=0.02):
    """The symmetric fixed point near the one of eta -> 0 whose students are `apart`."""
    K = problem.M
    near = alike(K, 1 / (2 * K - 1) + apart, 1 / (2 * K - 1), 1 / np.sqrt(K * (2 * K - 1)))
    return gd.fixed_point(problem, near, within=gd.symmetric)


def slope_along(problem, x, d, step=1e-4):
    """d rate along the change d, by central differences."""
    ahead, behind = (
        gd.rate(problem, gd.Overlaps(x.Q + s * d.Q, x.R + s * d.R, x.v + s * d.v))
        for s in (step, -step)
    )
    return [(a - b) / (2 * step) for a, b in zip(entries(ahead), entries(behind))]


def entries(x):
    return x.Q, x.R, x.v


# fixed points


@pytest.mark.parametrize("K", [2, 3, 4, 5])
def test_the_plateau_as_eta_goes_to_zero(K):
    problem = committee(K, eta=1e-6)
    x = plateau(problem)
    # students differ by O(eta), which relaxes at less than 1e-7 eta: found to some 1e-6
    assert x.Q == pytest.approx(np.full(x.Q.shape, 1 / (2 * K - 1)), abs=5e-6)
    assert x.R == pytest.approx(np.full(x.R.shape, 1 / np.sqrt(K * (2 * K - 1))), abs=1e-6)
    closed = K / np.pi * (np.pi / 6 - K * np.arcsin(1 / (2 * K)))
    assert gd.risk(problem, x)[0] == pytest.approx(closed, abs=1e-7)


@pytest.mark.parametrize(
    "K, risk, escape, students",
    [(2, 0.012085, 0.065316, (0.338824, 0.332031)), (3, 0.021882, 0.045346, None)],
)
def test_the_plateau_at_eta_one_tenth(K, risk, escape, students):
    problem = committee(K, eta=0.1)
    x = plateau(problem)
    rates, directions = gd.modes(problem, x)
    assert gd.risk(problem, x)[0] == pytest.approx(risk, abs=DIGITS)
    assert rates[0] / problem.eta == pytest.approx(escape, abs=DIGITS)
    if students is not None:
        assert x.Q[0, 0, 0] == pytest.approx(students, abs=DIGITS)
        assert x.R == pytest.approx(np.full(x.R.shape, 0.409235), abs=DIGITS)
    # (K - 1)^2 directions escape, all alike, in R alone, students turning to different units
    escaping = (K - 1) ** 2
    assert np.ptp(rates[:escaping]) < 1e-10
    assert rates[escaping] < 0
    for d in directions[:escaping]:
        assert np.abs(d.Q).max() < 1e-7
        assert np.abs(d.R.sum(-1)).max() < 1e-7 and np.abs(d.R.sum(-2)).max() < 1e-7


def test_two_symmetric_fixed_points():
    """With identical students there is another one, which a search started there finds."""
    problem = committee(2, eta=0.1)
    distinct, identical = plateau(problem), plateau(problem, apart=0)
    assert identical.Q[0, 0, 0, 0] == pytest.approx(identical.Q[0, 0, 0, 1], abs=1e-9)
    assert gd.modes(problem, identical)[0][0] / 0.1 == pytest.approx(0.0662, abs=1e-4)
    # identical students are unstable to differing; distinct ones hold, by a rate close to 0
    assert gd.modes(problem, identical)[0][1] > 1e-4 * 0.1
    rates, directions = gd.modes(problem, distinct)
    assert rates[1:3] / 0.1 == pytest.approx([-0.0007, -0.0013], abs=5e-5)
    # two directions are near-neutral: one student growing as the other shrinks, and Q_ii - Q_ij
    change, apart = (d.Q[0, :, 0] for d in directions[1:3])
    assert change == pytest.approx(abs(change[0, 0]) * np.diag(np.sign(np.diag(change))), abs=1e-6)
    assert change[0, 0] == pytest.approx(-change[1, 1], abs=1e-6)
    assert abs(apart[0, 0] - apart[0, 1]) > 0.9
    assert apart[0, 0] == pytest.approx(apart[1, 1], abs=1e-6)


def test_the_plateau_of_relu():
    problem = committee(2, activation=gd.relu, eta=1e-6)
    near = alike(2, 0.72, 0.38, 0.52)
    x = gd.fixed_point(problem, near, within=gd.symmetric)
    assert x.Q[0, 0, 0] == pytest.approx((0.717756, 0.382977), abs=DIGITS)
    assert x.R == pytest.approx(np.full(x.R.shape, 0.524579), abs=DIGITS)
    assert gd.risk(problem, x)[0] == pytest.approx(0.073613, abs=DIGITS)
    erf = gd.modes(committee(2, eta=1e-6), plateau(committee(2, eta=1e-6)))[0][0]
    assert 3.5 < gd.modes(problem, x)[0][0] / erf < 4


def test_the_flow_above_the_stable_rate_ends_on_the_fixed_point():
    problem = committee(2, eta=2.5)
    start = alike(2, 0.9, 0, 0)
    start = gd.Overlaps(Q=start.Q, R=0.9 * np.eye(2)[None], v=start.v)
    end = gd.run(gd.flow(), problem, start, 2000.0).state(-1)
    x = gd.fixed_point(problem, gd.Overlaps(end.Q[0], end.R[0], end.v[0]))
    assert gd.risk(problem, x)[0] == pytest.approx(0.0255122, abs=6e-8)
    assert x.Q[0, 0, 0, 0] == pytest.approx(1.52217, abs=6e-6)
    assert gd.modes(problem, x)[0][0] < 0


@pytest.mark.parametrize("B, risk", [(1, 4.63104e-3), (4, 9.6944e-4)])
def test_the_stationary_error_with_label_noise(B, risk):
    problem = committee(2, eta=0.5, sigma=0.2, batch=B)
    x = gd.fixed_point(problem, gd.perfect(problem))
    assert gd.risk(problem, x)[0] == pytest.approx(risk, rel=2e-6)


def test_a_family_of_fixed_points_is_reached_by_least_squares():
    """Spare students of opposite rows (w, -w) are silent: a line of perfect solutions."""
    problem = committee(4, 2, eta=0.3)
    Q = np.eye(4)
    Q[2:, 2:] = 0.2 * np.array([[1, -1], [-1, 1]])
    near = gd.Overlaps.single(Q=Q, R=np.eye(4)[:, :2], v=np.ones(4))
    moved = gd.Overlaps(Q=near.Q * 0.9995, R=near.R * 0.999, v=near.v)
    x = gd.fixed_point(problem, moved)
    assert gd.risk(problem, x)[0] < 1e-12
    assert x.Q[0, 2, 0, 2] == pytest.approx(0.2, abs=0.01)


def test_directions_slower_than_1e_7_of_the_fastest_are_left_where_they_are():
    """On the plateau Q_ii - Q_ij relaxes at 4.7e-3 eta of the fastest rate, to 0.0649 eta."""
    for eta, relaxes in [(3e-5, True), (5e-6, False)]:
        Q = plateau(committee(2, eta=eta), apart=0.5 * eta).Q[0, 0, 0]
        assert (abs((Q[0] - Q[1]) / eta - 0.0649) < 0.005) == relaxes


def test_a_search_halves_steps_that_do_not_help():
    """From a unit of Q = 6.3 seven steps in a row would lead to negative Q, unless halved."""
    problem = committee(1, eta=0.5)
    near = gd.Overlaps.single([[6.3]], [[0.9 * np.sqrt(6.3)]], [1])
    x = gd.fixed_point(problem, near)
    assert x.Q.item() == pytest.approx(1) and x.R.item() == pytest.approx(1)


def test_what_fixed_point_refuses():
    problem = committee(2, eta=0.5)
    two = gd.mix(np.ones((2, 1)), two_students())
    with pytest.raises(ValueError, match=r"2 workers, which learn independently .* round="):
        gd.fixed_point(problem, two)
    graded = replace(problem, T=np.diag([1.0, 2.0]))
    with pytest.raises(ValueError, match="does not keep the family `within`.*lacks the symmetry"):
        gd.fixed_point(graded, alike(2, 0.34, 0.33, 0.4), within=gd.symmetric)
    with pytest.raises(
        ValueError, match="made Overlaps of shapes .* return the same kind and shapes"
    ):
        both = np.ones((2, 1))
        gd.fixed_point(problem, two_students(), within=lambda x: gd.mix(both, x))
    with pytest.raises(ValueError, match="no projection"):
        gd.fixed_point(problem, two_students(), within=lambda x: gd.Overlaps(2 * x.Q, x.R, x.v))
    # an unstable linear unit with label noise grows for ever: its fixed point has Q < R^2 / T
    unstable = committee(1, activation=gd.linear, eta=2.4, sigma=0.5)
    with pytest.raises(ValueError, match="no weights have these overlaps"):
        gd.fixed_point(unstable, gd.perfect(unstable))
    critical = replace(unstable, eta=2.0)
    with pytest.raises(ValueError, match="no fixed point found"):
        gd.fixed_point(critical, gd.perfect(critical))


def two_students():
    return alike(2, 0.34, 0.33, 0.4)


# modes


@pytest.mark.parametrize("eta_v", [0.0, 0.4])
def test_a_mode_is_a_direction_in_which_the_flow_is_linear(eta_v):
    problem, x = anything.problem_and_overlaps(1, 2, 3, eta=0.7, eta_v=eta_v, sigma=0.3)
    rates, directions = gd.modes(problem, x)
    assert len(rates) == 3 + 6 + 2 * (eta_v > 0)
    assert np.all(np.diff(rates) <= 0)
    real = [
        i
        for i in range(len(rates))
        if np.min(np.abs(rates - rates[i])[np.arange(len(rates)) != i]) > 1e-9
    ]
    assert len(real) > 3
    for i in real:
        for change, d in zip(slope_along(problem, x, directions[i]), entries(directions[i])):
            assert change == pytest.approx(rates[i] * d, abs=1e-7)  # step^2 of the differences


def test_the_rates_of_linear_units():
    """K = M = 1, e = w - w*: R - 1 decays at eta, |e|^2 at 2 eta - eta^2 / B."""
    problem = committee(1, activation=gd.linear, eta=0.8, batch=2)
    rates, _ = gd.modes(problem, gd.perfect(problem))
    assert rates == pytest.approx([-0.8, -2 * 0.8 + 0.8**2 / 2], abs=1e-9)


def test_modes_of_training_and_mixing():
    """At the plateau the workers' escape modes are those of A: rate + ln(eigenvalue) / period."""
    problem, P, period = committee(2, eta=0.5), 3, 10.0
    one = plateau(problem)
    R = np.repeat(one.R, P, axis=0)
    Q = np.einsum("pkm,qlm->pkql", R, R)  # independent workers: Q^pq = R^p R^q.T
    Q[np.arange(P), :, np.arange(P), :] = one.Q[0, :, 0]
    x = gd.Overlaps(Q=Q, R=R, v=np.ones((P, 2)))
    assert max(np.abs(change).max() for change in entries(gd.rate(problem, x))) < 1e-9
    escape = gd.modes(problem, one)[0][0]
    rates, directions = gd.modes(problem, x, round=(period, gd.path(P)))
    turning = [
        rate
        for rate, d in zip(rates, directions)
        if np.isfinite(rate) and gd.asymmetry(d).max() > 0.3
    ]
    eigenvalues = np.array([1, 2 / 3])  # of path(3), and 0: erased
    assert turning == pytest.approx(escape + np.log(eigenvalues) / period, abs=1e-8)
    assert np.isneginf(rates).sum() >= 2


@pytest.mark.parametrize("kept", [1e-11, 1e-15])
def test_what_a_round_erases_has_the_rate_minus_infinity(kept):
    """Linear units: R of their difference keeps a part of itself, and decays at eta between."""
    problem, period = committee(1, activation=gd.linear, eta=0.5), 2.0
    A = (1 - kept) * gd.complete(2) + kept * np.eye(2)
    x = gd.mix(np.ones((2, 1)), gd.perfect(problem))
    rates = gd.modes(problem, x, round=(period, A))[0]
    difference = -0.5 + np.log(kept) / period
    found = np.abs(rates - difference) < 0.01
    assert found.any() == (kept > 1e-13) and np.isneginf(rates).any()


def test_one_worker_that_mixes_with_nobody_has_the_flows_modes():
    problem = committee(2, eta=0.5)
    x = plateau(problem)
    alone = gd.modes(problem, x)[0]
    assert gd.modes(problem, x, round=(3.0, np.eye(1)))[0] == pytest.approx(alone, abs=1e-8)


def test_the_noise_floor_of_workers_that_mix():
    """Before and after a round, at small eta and sigma (derived for normal A)."""
    eta, sigma, P, period = 0.01, 0.01, 2, 20.0
    problem = committee(2, eta=eta, sigma=sigma)
    A = gd.complete(P)
    start = gd.mix(np.ones((P, 1)), gd.perfect(problem))
    after = gd.fixed_point(problem, start, round=(period, A))
    before = gd.run(gd.flow(), problem, after, period)
    again = gd.mix(A, gd.Overlaps(before.Q[0, -1], before.R[0, -1], before.v[0, -1]))
    assert again.Q == pytest.approx(after.Q, abs=1e-8)
    h = 2 / np.pi * (1 / np.sqrt(3) + np.array([0.5, -0.5]))
    E = np.exp(-2 * eta * h * period)
    lam = np.array([[1.0], [0.0]])
    terms = eta * sigma**2 / (4 * P) * h * (1 - E) / (1 - lam**2 * E)
    # corrections of order eta: 1 to 2 per cent here
    assert before.risk[0, -1] == pytest.approx(np.full(P, terms.sum()), rel=0.02)
    assert gd.risk(problem, after) == pytest.approx(np.full(P, (lam**2 * terms).sum()), rel=0.02)
    assert gd.modes(problem, after, round=(period, A))[0][0] < 0


def test_a_fixed_point_of_rounds_comes_back_to_itself():
    """With noise that moves Q by 0.1 between two rounds."""
    problem, A, period = committee(2, eta=0.5, sigma=0.5), gd.path(3), 2.0
    start = gd.mix(np.ones((3, 1)), gd.perfect(problem))
    x = gd.fixed_point(problem, start, round=(period, A))
    t = gd.run(gd.flow(rtol=1e-10), problem, x, [(period, A)])
    assert np.abs(t.Q[0, 1] - x.Q).max() > 0.01
    for name in "QR":
        assert getattr(t, name)[0, -1] == pytest.approx(getattr(x, name), abs=1e-7)


def test_what_modes_refuses():
    problem = committee(2, activation=gd.relu, eta=0.5)
    with pytest.raises(ValueError, match="kink at x.*largest_stable_eta"):
        gd.modes(problem, gd.perfect(problem))
    with pytest.raises(ValueError, match="2 workers"):
        gd.modes(*anything.problem_and_overlaps(2, 2, 2))
    with pytest.raises(ValueError, match="period of a round is a finite number above 0, got 0"):
        gd.modes(*anything.problem_and_overlaps(2, 2, 2), round=(0, gd.complete(2)))
    with pytest.raises(ValueError, match="second layers of these workers, which differ"):
        gd.modes(*anything.problem_and_overlaps(2, 2, 2), round=(1, gd.complete(2)))
    with pytest.raises(ValueError, match="leading axis"):
        gd.modes(*anything.problem_and_overlaps(1, 2, 2, runs=(3,)))


# perfect learning


@pytest.mark.parametrize("K, stable", [(1, 4.055779), (2, 2.306828), (3, 1.620675)])
def test_the_largest_stable_rate(K, stable):
    problem = committee(K, eta=0.1)
    found = gd.largest_stable_eta(problem)
    assert found == pytest.approx(stable, abs=DIGITS)
    # by the Jacobian: neutral there, stable below, unstable above
    top = [
        gd.modes(replace(problem, eta=e), gd.perfect(problem))[0][0]
        for e in found * np.array([0.99, 1, 1.01])
    ]
    assert top[0] < -1e-4 and abs(top[1]) < 1e-8 and top[2] > 1e-4
    if K == 1:
        assert found == pytest.approx(np.sqrt(3) * np.pi / (3 / np.sqrt(5)), rel=1e-9)


@pytest.mark.parametrize("students", [2, 3, 4])
def test_spare_students_are_less_stable(students):
    """Against the Jacobian, whose neutral directions (two spare units) have rate 0 always."""
    problem = committee(2, eta=gd.largest_stable_eta(committee(2), students))
    x = gd.perfect(problem, students)
    top = [gd.modes(replace(problem, eta=problem.eta * s), x)[0][0] for s in (0.98, 1, 1.02)]
    assert top[0] < 1e-8 and abs(top[1]) < 1e-8 and top[2] > 1e-4


def test_linear_units_are_stable_up_to_two_batches():
    for B, M in ((1, 1), (3, 1), (2, 3)):
        # M units share every error: rate 2 B / M
        problem = committee(M, activation=gd.linear, batch=B)
        assert gd.largest_stable_eta(problem) == pytest.approx(2 * B / M, rel=1e-8)


@pytest.mark.parametrize("K", [1, 2, 3])
def test_the_largest_stable_rate_of_relu(K):
    """Slopes are signs: with T = I every average is a count of the 2^K sign patterns."""
    on = np.array(list(product([0, 1], repeat=K)))
    H = on.T @ on / 2**K
    decay = np.kron(H, np.eye(K)) + np.kron(np.eye(K), H)
    scatter = np.einsum("si,sj,sl,sm->ijlm", on, on, on, on).reshape(K * K, K * K) / 2**K
    gain = np.linalg.eigvals(np.linalg.solve(decay, scatter)).real.max()
    problem = committee(K, activation=gd.relu)
    assert gd.largest_stable_eta(problem) == pytest.approx(1 / gain, rel=1e-8)


def test_at_small_N_a_linear_unit_is_less_stable():
    """Per step E|w - w*|^2 grows by 1 - 2 eta / N + eta^2 (N + 2) / N^2: stable below 2N / (N+2).

    At N = 10 that is 5/3: eta = 1.8 grows, although it is stable for N -> infinity.
    """
    problem, N, alpha = committee(1, activation=gd.linear, eta=1.8), 10, 5.0
    assert problem.eta < gd.largest_stable_eta(problem)
    x0 = gd.Overlaps.single(Q=[[1]], R=[[0.5]], v=[1])
    t = gd.run(gd.chain(N=N, runs=4096, seed=1), problem, x0, alpha)
    factor = 1 - 2 * 1.8 / N + 1.8**2 * (N + 2) / N**2
    expected = t.mean("risk")[0, 0] * factor ** (N * alpha)
    assert expected > t.mean("risk")[0, 0]
    assert abs(t.mean("risk")[-1, 0] - expected) < 5 * t.sem("risk")[-1, 0]
    assert t.mean("risk")[-1, 0] > t.mean("risk")[0, 0]
    assert gd.run(gd.flow(), problem, x0, alpha).risk[0, -1, 0] < t.mean("risk")[0, 0]


FLOORS = {
    (0.05, 0, 2): 0.009390905894,
    (0.05, 1, 2): 0.01778652815,
    (0.05, 2, 2): 0.02646352524,
    (0.1, 0, 2): 0.01920429132,
    (0.2, 0, 2): 0.04021870694,
    (0.2, 1, 2): 0.08012239025,
}


@pytest.mark.parametrize("eta, L, M", FLOORS)
def test_the_noise_floor_to_all_orders_in_eta(eta, L, M):
    """Two spare units (L = 2) have a neutral direction, which is left out."""
    problem = committee(M, eta=eta)
    floor = gd.noise_floor(problem, gd.perfect(problem, M + L))
    assert floor == pytest.approx(FLOORS[eta, L, M], rel=2e-9)


@pytest.mark.parametrize("activation, h", [(gd.erf, 2 / np.pi / np.sqrt(3)), (gd.relu, 0.5)])
@pytest.mark.parametrize("B", [1, 4])
def test_the_noise_floor_at_first_order(activation, h, B):
    """(eta / 4B) sum_k v_k^2 <g'^2>, with corrections of order eta."""
    M = 3
    ratios = []
    for eta in (2e-3, 1e-3):
        problem = replace(committee(M, activation=activation), eta=eta, batch=B)
        ratios.append(gd.noise_floor(problem, gd.perfect(problem)) / (eta * M * h / (4 * B)))
    assert 2 * ratios[1] - ratios[0] == pytest.approx(1, abs=1e-5)  # eta^2


def test_the_noise_floor_of_linear_units_and_of_copies():
    for K in (1, 2, 3):
        problem = committee(K, activation=gd.linear, eta=0.3)
        closed = 0.3 * K / (4 - 2 * 0.3 * K)
        assert gd.noise_floor(problem, gd.perfect(problem)) == pytest.approx(closed, rel=1e-8)
    for K, risk in ((2, 9.39e-7), (4, 4.64e-7), (8, 2.31e-7)):
        # full flow, both layers, sigma = .01: three digits
        problem = committee(2, eta=0.05, eta_v=0.05)
        copies = np.repeat(np.eye(2), K // 2, axis=0)
        x = gd.Overlaps.single(Q=copies @ copies.T, R=copies, v=np.full(K, 2 / K))
        assert 1e-4 * gd.noise_floor(problem, x) == pytest.approx(risk, abs=5.1e-10)


def test_what_perfect_learning_refuses():
    problem = committee(2, eta=0.5)
    with pytest.raises(ValueError, match="students >= M = 2, .* got 1"):
        gd.largest_stable_eta(problem, 1)
    with pytest.raises(ValueError, match="weight_decay=0.1 perfect learning is no fixed point"):
        gd.largest_stable_eta(replace(problem, weight_decay=0.1))
    with pytest.raises(ValueError, match="kink of relu; use students=2"):
        gd.largest_stable_eta(committee(2, activation=gd.relu), 3)
    with pytest.raises(ValueError, match="no perfect solution"):
        gd.noise_floor(problem, two_students())
    with pytest.raises(ValueError, match="unstable, it has no noise floor"):
        gd.noise_floor(replace(problem, eta=2.5), gd.perfect(problem))


def test_a_round_is_a_pair_and_spare_students_are_silent():
    problem = gd.Problem(activation=gd.softplus, v_star=[1], T=[[1]])
    with pytest.raises(ValueError, match=r"round is a pair \(period, A\), got 5"):
        gd.modes(problem, gd.perfect(problem), round=5)
    with pytest.raises(ValueError, match=r"softplus has g\(0\) = 0.6931: use students=1"):
        gd.perfect(problem, students=2)


@pytest.mark.parametrize("activation", [gd.erf, gd.relu], ids=lambda a: a.name)
def test_a_search_from_anywhere_ends_in_a_fixed_point_or_in_words(activation):
    problem = gd.Problem(activation=activation, v_star=[1, 1], T=np.eye(2), eta=0.5)
    for seed in range(20):  # warnings are errors here
        near = gd.random_start(problem, 1, 2, N=20, scale=1.5, seed=seed)
        try:
            x = gd.fixed_point(problem, near)
        except ValueError as refusal:
            assert "no fixed point found" in str(refusal) or "no weights have" in str(refusal)
        else:
            assert np.abs(gd.rate(problem, x).Q).max() < 1e-10
