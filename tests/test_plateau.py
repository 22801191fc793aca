"""The escape from symmetry and the phases of a run."""

from dataclasses import replace
from itertools import permutations

import anything
import numpy as np
import pytest

import gossipdyn as gd

HALF = gd.Problem(activation=gd.erf, v_star=np.ones(2), T=np.eye(2), eta=0.5)
TENTH = replace(HALF, eta=0.1)


def start(Q, R, v=None):
    R = np.array(R, float)
    return gd.Overlaps.single(Q=np.array(Q, float), R=R, v=np.ones(len(R)) if v is None else v)


# symmetry


def test_symmetric_is_the_mean_over_permutations():
    problem, x = anything.problem_and_overlaps(2, 3, 2)
    copies = [
        gd.Overlaps(Q=x.Q[:, s][..., s], R=x.R[:, s][..., t], v=x.v[:, s])
        for s in map(list, permutations(range(3)))
        for t in map(list, permutations(range(2)))
    ]
    mean = gd.symmetric(x)
    for name in "QRv":
        expected = np.mean([getattr(copy, name) for copy in copies], axis=0)
        assert getattr(mean, name) == pytest.approx(expected, abs=1e-14)


def test_asymmetry_of_two_students_is_half_of_u():
    x = start(np.eye(2), [[0.4, 0.1], [-0.2, 0.3]])
    assert gd.asymmetry(x) == pytest.approx([abs(0.4 + 0.3 - 0.1 + 0.2) / 2])


# escape


def test_the_local_rate_from_unit_norms():
    """At eta = .1 from Q = I: far below the fixed point's .0653 eta for long."""
    times = np.array([10, 30, 60, 100, 300]) / 0.1
    found = gd.escape(TENTH, start(np.eye(2), np.zeros((2, 2))), times)
    known = [0.023, 0.041, 0.052, 0.058, 0.063]
    assert found.rate / 0.1 == pytest.approx(known, abs=5.1e-4)  # three decimals
    assert found.alpha.tolist() == times.tolist()


def test_the_growth_is_the_integral_of_the_rate():
    times = np.linspace(0, 40, 401)
    found = gd.escape(HALF, start(np.eye(2), np.zeros((2, 2))), times)
    trapezes = np.append(0, np.cumsum((found.rate[1:] + found.rate[:-1]) / 2 * 0.1))
    assert found.growth == pytest.approx(trapezes, abs=1e-3)  # curvature * step^2 / 12
    # and the rate is an eigenvalue of the Jacobian there
    x = gd.Overlaps(*(a[-1] for a in (found.x.Q, found.x.R, found.x.v)))
    rates, _ = gd.modes(HALF, x)
    assert np.abs(rates - found.rate[-1]).min() < 1e-9


def test_rounding_does_not_end_the_symmetric_trajectory():
    problem = replace(HALF, eta=1e-3)
    near = start([[0.353, 0.333], [0.333, 0.353]], np.full((2, 2), 0.408))
    fixed = gd.modes(problem, gd.fixed_point(problem, near, within=gd.symmetric))[0][0]
    found = gd.escape(problem, start(np.eye(2), np.zeros((2, 2))), [3e5, 3e6])
    assert np.exp(found.growth[0]) > 1e7
    # students that differ by 5 / (eta alpha) lower the rate by .13 of that
    assert found.rate / 1e-3 == pytest.approx(fixed / 1e-3, abs=3e-3)
    assert found.rate[1] / 1e-3 == pytest.approx(fixed / 1e-3, abs=3e-4)


@pytest.mark.parametrize("K, M", [(2, 2), (3, 3), (4, 2)])
def test_small_asymmetry_grows_by_the_predicted_factor(K, M):
    """In the full flow, for students and teachers of any number, both layers learning."""
    problem = gd.Problem(gd.erf, np.ones(M), np.eye(M), eta=0.4, eta_v=0.2, sigma=0.1)
    R = 1e-6 * np.random.default_rng(0).standard_normal((K, M))
    x0 = start(np.eye(K), R)
    t = gd.run(gd.flow(rtol=1e-11), problem, x0, 20.0)
    ends = gd.Overlaps(t.Q[0], t.R[0], t.v[0])
    first, last = gd.asymmetry(ends)[:, 0]
    growth = gd.escape(problem, x0, [20.0]).growth[-1]
    assert np.log(last / first) == pytest.approx(growth, abs=1e-5)  # the asymmetry itself


@pytest.mark.slow
def test_the_plateaus_length_over_six_decades():
    """Time to eps = 5e-3 for R_11 = a: that of leaving, plus a fall that does not depend on a."""
    known = {1e-3: 1313.67, 1e-4: 1685.22, 1e-6: 2418.35, 1e-8: 3143.60}
    fall = {}
    for a, reached in known.items():
        x0 = start(0.2 * np.eye(2), [[a, 0], [0, 0]])
        fall[a] = reached - gd.plateau_length(TENTH, x0, threshold=0.01)
    # from a = 1e-4 on the start is symmetric but for a; what is left is Q_ii - Q_ij, still relaxing
    assert fall[1e-6] == pytest.approx(fall[1e-8], rel=0.02)
    assert fall[1e-4] == pytest.approx(fall[1e-8], rel=0.05)


def test_from_a_start_on_the_plateau_the_length_is_a_logarithm():
    near = start([[0.353, 0.333], [0.333, 0.353]], np.full((2, 2), 0.408))
    x = gd.fixed_point(TENTH, near, within=gd.symmetric)
    rate = gd.modes(TENTH, x)[0][0]
    for a in (1e-2, 1e-5, 1e-8):
        tilted = gd.Overlaps(Q=x.Q, R=x.R + a / 2 * np.array([[1, -1], [-1, 1]]), v=x.v)
        length = gd.plateau_length(TENTH, tilted, threshold=0.1)
        assert length == pytest.approx(np.log(0.1 / a) / rate, rel=1e-7)


def test_what_escape_refuses():
    x0 = start(np.eye(2), np.zeros((2, 2)))
    with pytest.raises(ValueError, match="no asymmetry: .* stays symmetric for ever"):
        gd.plateau_length(HALF, x0)
    with pytest.raises(ValueError, match="teacher's units differ"):
        gd.escape(replace(HALF, T=np.diag([1.0, 2.0])), x0, [1.0])
    with pytest.raises(ValueError, match="one worker with two or more students"):
        gd.escape(HALF, gd.mix(np.ones((2, 1)), x0), [1.0])
    for record in ([2.0, 1.0], [0.0, 0.0], [-1.0, 1.0], []):
        with pytest.raises(ValueError, match="ascend from 0 up"):
            gd.escape(HALF, x0, record)


@pytest.mark.parametrize("off, alike", [(0.95e-9, True), (1.05e-9, False)])
def test_units_of_the_teacher_are_alike_up_to_rounding(off, alike):
    """In v_star, in the norms and in the overlaps with one another, of 1 or 0.5."""
    T = 0.5 * (np.eye(3) + 1)
    x0 = start(np.eye(3), np.zeros((3, 3)))
    one = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]])
    three = replace(HALF, v_star=np.ones(3), T=T)
    for problem in (
        replace(three, v_star=[1, 1, 1 - off]),
        replace(three, T=T * (1 - off * np.diag([0, 0, 1]))),
        replace(three, T=T * (1 - off * one)),
    ):
        if alike:
            gd.escape(problem, x0, [0.0])
        else:
            with pytest.raises(ValueError, match="teacher's units differ"):
                gd.escape(problem, x0, [0.0])


def test_the_length_is_that_to_an_asymmetry_of_a_tenth():
    tilted = start(0.2 * np.eye(2), [[0.02, 0], [0, 0.02]])
    growth = gd.escape(HALF, tilted, [gd.plateau_length(HALF, tilted)]).growth[0]
    assert gd.asymmetry(tilted) * np.exp(growth) == pytest.approx(0.1, rel=1e-6)
    assert gd.plateau_length(HALF, tilted, threshold=0.02) == 0
    assert gd.plateau_length(HALF, tilted, threshold=0.019) == 0


def test_what_does_not_escape_is_given_up():
    """Students before a silent teacher push one another away, and no more."""
    silent = replace(HALF, v_star=[0, 0])
    with pytest.raises(ValueError, match=r"exp\(2.3\) before alpha=2e\+05: it grew by exp\(0.1"):
        gd.plateau_length(silent, start(np.eye(2), [[0.01, 0], [0, 0.01]]))


# phases


def flow(x0, problem=HALF, alpha=600.0, every=1.0):
    return gd.run(gd.flow(), problem, x0, alpha, record=np.arange(0, alpha + every / 2, every))


A = start(np.diag([0.2, 0.3]), [[1e-3, 0], [0, 5e-4]])
SWAPPED = start(np.diag([0.2, 0.3]), [[0, 1e-3], [5e-4, 0]])


@pytest.mark.parametrize("x0, assignment", [(A, [0, 1]), (SWAPPED, [1, 0])])
def test_trajectory_A(x0, assignment):
    found = gd.phases(flow(x0))
    assert found.assignment.tolist() == [[assignment]]
    assert found.plateau_begins.shape == (1, 1)
    # "from about 10 to about 220": the risk has left its level by 1/3 at 230
    assert 8 <= found.plateau_begins <= 12
    assert 215 <= found.plateau_ends <= 235
    assert found.plateau_ends <= found.refinement_begins <= 250


def test_trajectory_A_does_not_depend_on_how_it_is_recorded():
    fine, coarse = gd.phases(flow(A, every=0.5)), gd.phases(flow(A, every=5.0))
    for name in ("plateau_begins", "plateau_ends", "refinement_begins"):
        assert getattr(coarse, name) == pytest.approx(getattr(fine, name), abs=5.0)


def test_refinement_is_the_last_settling():
    """Two students that turned, turned back and turn again refine from the second time on."""
    t = flow(A, every=10.0)
    Q, R = t.Q.copy(), t.R.copy()
    Q[:, 1], R[:, 1] = Q[:, -1], R[:, -1]
    found = gd.phases(replace(t, Q=Q, R=R))
    assert found.refinement_begins == gd.phases(t).refinement_begins == 240


def test_two_students_on_one_teacher_unit():
    # K = M: the second one, which is worse, leaves for the other unit
    found = gd.phases(flow(start(0.6 * np.eye(2), [[0.5, 0], [0.4, 0]])))
    assert found.assignment.tolist() == [[[0, 1]]]
    assert found.plateau_ends < found.refinement_begins < 150
    # copies share a unit for ever: all are perfect from the start
    copies = start([[1, 1, 0], [1, 1, 0], [0, 0, 1]], [[1, 0], [1, 0], [0, 1]], [0.5, 0.5, 1])
    found = gd.phases(flow(copies, alpha=20.0))
    assert found.assignment.tolist() == [[[0, 0, 1]]]
    assert found.refinement_begins == 0 and np.isnan(found.plateau_begins)


def test_a_run_that_never_leaves():
    found = gd.phases(flow(start(0.3 * np.eye(2), np.zeros((2, 2)))))
    assert found.plateau_begins < 12
    assert np.isnan(found.plateau_ends) and np.isnan(found.refinement_begins)
    assert found.assignment.tolist() == [[[-1, -1]]]


def test_a_run_without_a_plateau():
    found = gd.phases(flow(start(0.6 * np.eye(2), [[0.5, 0], [0, 0.5]])))
    assert np.isnan(found.plateau_begins) and np.isnan(found.plateau_ends)
    assert found.assignment.tolist() == [[[0, 1]]]
    assert 10 < found.refinement_begins < 25


def test_spare_students_belong_to_nobody_and_correlated_units_are_told_apart():
    spare = start(np.diag([1, 1, 1e-6]), [[1, 0], [0, 1], [9.9e-4, 0]])
    Q = spare.Q[0, :, 0] + 9.9e-4 * (np.eye(3)[[2, 1, 0]] - np.diag([0, 1, 0]))
    spare = start(Q, spare.R[0])
    assert gd.assignment(HALF, spare).tolist() == [[0, 1, -1]]
    T = np.array([[1, 0.8], [0.8, 1]])
    problem = replace(HALF, T=T)
    middle = start(np.full((2, 2), 0.9) + 1e-3 * np.eye(2), np.full((2, 2), 0.9))
    assert gd.assignment(problem, middle).tolist() == [[-1, -1]]
    assert gd.assignment(problem, start(T, T)).tolist() == [[0, 1]]


def test_teacher_units_whose_norms_are_no_whole_numbers():
    for size in np.arange(1, 40) / 7:  # for some, size / sqrt(size)^2 is not 1
        T = size * np.eye(2)
        assert gd.assignment(replace(HALF, T=T), start(T, T)).tolist() == [[0, 1]]


@pytest.mark.slow
def test_every_run_and_worker_of_a_finite_engine():
    """Noisy runs: what phases() says of each is checked against the run's own risk and overlaps."""
    N, runs = 200, 32
    problem = replace(HALF, eta=1.5, sigma=0.05)
    x0 = gd.random_start(problem, 2, 2, N, runs=runs, seed=1)
    t = gd.run(gd.chain(N=N, runs=runs, seed=1), problem, x0, 150.0, record=np.arange(0.0, 151, 2))
    found = gd.phases(t)
    assert found.assignment.shape == (runs, 2, 2)
    assert np.isfinite(found.refinement_begins).mean() > 0.9
    assert np.isfinite(found.plateau_ends).mean() > 0.5
    both = np.isfinite(found.plateau_ends) & np.isfinite(found.refinement_begins)
    assert np.all(found.plateau_ends[both] < found.refinement_begins[both])
    for run, worker in np.argwhere(both):
        inside = (t.alpha >= found.plateau_begins[run, worker]) & (
            t.alpha <= found.plateau_ends[run, worker]
        )
        risk = t.risk[run, inside, worker]
        assert risk.max() <= 1.5 * risk.min() * (1 + 1e-12)
        assert sorted(found.assignment[run, worker]) == [0, 1]
        refined = t.alpha >= found.refinement_begins[run, worker]
        R = t.R[run, refined, worker][:, [0, 1], found.assignment[run, worker]]
        norms = np.sqrt(np.einsum("tkk->tk", t.Q[run, refined, worker, :, worker]))
        assert (R / norms).min() >= 0.9


def test_phases_needs_the_overlaps():
    t = gd.run(gd.flow(), HALF, A, 5.0, keep="risk")
    with pytest.raises(ValueError, match="Q was not kept"):
        gd.phases(t)


def test_phases_of_a_run_that_nobody_watched_are_refused():
    t = gd.run(gd.flow(), HALF, start(0.6 * np.eye(2), [[0.5, 0], [0.4, 0]]), 30.0)
    with pytest.raises(ValueError, match=r"none between its start and its end, alpha=30: record"):
        gd.phases(t)
