"""Orders of the units, consensus, and the line between two workers, against weights."""

from itertools import permutations

import numpy as np
import pytest

import gossipdyn as gd

RNG = np.random.default_rng(0)


def problem(K, **options):
    return gd.Problem(activation=gd.erf, v_star=np.ones(K), T=np.eye(K), **options)


def start(K, M=None, workers=3, runs=4, seed=0):
    return gd.random_start(problem(M or K), workers, K, N=20, runs=runs, seed=seed)


def perfect(orders):
    """Perfect workers with these orders."""
    R = np.eye(len(orders[0]))[np.array(orders)]
    return gd.Overlaps(np.einsum("pkm,qlm->pkql", R, R), R, np.ones(R.shape[:2]))


@pytest.mark.parametrize("K", [2, 3, 4])
def test_specialisation_by_a_loop_over_units(K):
    x = start(K)
    for order in permutations(range(K)):
        found = gd.specialisation(x, order)
        for run, p in np.ndindex(4, 3):
            R, u = x.R[run, p], 0.0
            for k, m in np.ndindex(K, K):
                u += R[k, m] if m == order[k] else -R[k, m] / (K - 1)
            assert np.isclose(found[run, p], u, rtol=0, atol=1e-14)
        assert np.all(np.abs(found) <= K / np.sqrt(K - 1) * gd.asymmetry(x) + 1e-14)
    # over all orders it sums to zero: none is preferred
    every = sum(gd.specialisation(x, order) for order in permutations(range(K)))
    assert np.allclose(every, 0, rtol=0, atol=1e-12)


def test_for_two_units_it_is_u_and_asymmetry_is_half_of_its_size():
    x = start(2)
    R = x.R
    u = R[..., 0, 0] + R[..., 1, 1] - R[..., 0, 1] - R[..., 1, 0]
    assert np.allclose(gd.specialisation(x), u, rtol=0, atol=1e-15)
    assert np.allclose(gd.specialisation(x, [1, 0]), -u, rtol=0, atol=1e-15)
    assert np.allclose(gd.asymmetry(x), np.abs(u) / 2, rtol=0, atol=1e-15)


def test_perfect_workers_have_all_of_it_in_their_own_order():
    orders = [(0, 1, 2), (2, 0, 1), (1, 0, 2)]
    x = perfect(orders)
    assert np.array_equal(gd.assignment(problem(3), x), orders)
    assert np.allclose(gd.specialisation(x, orders), 3, rtol=0, atol=1e-15)
    assert np.allclose(gd.specialisation(x), [3, -1.5, 0], rtol=0, atol=1e-15)


def test_an_assignment_is_that_of_phases_and_has_none_for_the_undecided():
    fast = problem(2, eta=1.5)
    x0 = gd.random_start(fast, 2, 2, N=200, runs=3, seed=1)
    t = gd.run(gd.flow(rtol=1e-6), fast, x0, 150.0, record=[10.0])
    assert np.array_equal(gd.assignment(fast, t.state(-1)), gd.phases(t).assignment)
    assert np.all(gd.assignment(fast, t.at(10.0)) == -1)


def test_a_teacher_unit_of_length_zero_takes_no_student_and_hides_no_other():
    silent = gd.Problem(activation=gd.erf, v_star=[1, 1], T=np.diag([1.0, 0.0]))
    x = gd.Overlaps.single(np.eye(2), [[1, 0], [0, 0]], [1, 1])
    assert np.array_equal(gd.assignment(silent, x), [[0, -1]])


def test_no_order_is_made_up():
    x = start(2)
    for order in ([0, 0], [0, 2], [1], [0.0, 1.0], [-1, 0], "ab", [[0, 1]] * 2):
        with pytest.raises(ValueError, match="order"):
            gd.specialisation(x, order)
    with pytest.raises(ValueError, match="K=3 and M=2"):
        gd.specialisation(start(3, M=2))
    with pytest.raises(ValueError, match="K=1 and M=1"):
        gd.specialisation(start(1))


def test_the_consensus_distance_is_that_of_the_weights():
    P, K, N = 5, 3, 17
    W, W_star = RNG.standard_normal((2, P, K, N)), RNG.standard_normal((2, 2, N))
    w = gd.Weights(W=W, v=np.ones((2, P, K)), W_star=W_star)
    by_hand = ((W - W.mean(1, keepdims=True)) ** 2).sum((1, 2, 3)) / (P * N)
    assert np.allclose(gd.consensus_distance(w), by_hand, rtol=0, atol=1e-12)
    assert np.allclose(gd.consensus_distance(gd.overlaps(w)), by_hand, rtol=0, atol=1e-12)
    one = gd.mix(np.full((P, P), 1 / P), w)
    fall = gd.diagnose(w, after=one).trace_loss
    assert np.allclose(fall, by_hand, rtol=0, atol=1e-12)
    assert np.allclose(gd.consensus_distance(one), 0, rtol=0, atol=1e-12)
    equal = gd.mix(np.ones((3, 1)), gd.random_start(problem(2), 1, 2, N=20, seed=3))
    assert gd.consensus_distance(equal) == 0  # not a small number, perhaps below 0


def test_interpolation_of_opposite_orders_is_known():
    two, x = problem(2), perfect([(0, 1), (1, 0)])
    along = gd.interpolation(two, x, 0, 1, [0, 0.25, 0.5, 0.75, 1])
    assert np.allclose(along[[0, 4]], 0, rtol=0, atol=1e-12)
    assert abs(along[2] - 0.0203091) < 5e-8 and abs(along[1] - along[3]) < 1e-15
    assert gd.interpolation(two, x, 0, 0, 0.3) < 1e-12


@pytest.mark.parametrize("activation", [gd.erf, gd.relu])
def test_interpolation_is_the_risk_of_interpolated_weights(activation):
    """First and second layers, beyond the ends too, with a leading axis of runs."""
    T = [[1.0, 0.3], [0.3, 0.8]]
    case = gd.Problem(activation=activation, v_star=(1, -0.7), T=T)
    x = gd.random_start(case, 3, 3, N=12, runs=2, seed=3)
    x = gd.Overlaps(x.Q, x.R, RNG.standard_normal(x.v.shape))
    w = gd.lift(case, x, N=12)
    times = np.array([-0.5, 0, 0.2, 0.9, 1, 2])
    found = gd.interpolation(case, x, 2, 0, times)
    assert found.shape == (2, 6)
    for t, along in zip(times, found.T, strict=True):
        W = (1 - t) * w.W[:, 2:] + t * w.W[:, :1]
        v = (1 - t) * w.v[:, 2:] + t * w.v[:, :1]
        network = gd.Weights(W=W, v=v, W_star=w.W_star)
        assert np.allclose(gd.risk(case, gd.overlaps(network))[:, 0], along, rtol=0, atol=1e-10)
        assert np.allclose(gd.interpolation(case, x, 2, 0, float(t)), along, rtol=0, atol=1e-14)
    middle = gd.mean_risk(case, gd.mix(np.eye(3)[[2, 0]], x))
    assert np.allclose(gd.interpolation(case, x, 0, 2, 0.5), middle, rtol=0, atol=1e-12)


def test_a_line_needs_two_workers_that_exist():
    two, x = problem(2), perfect([(0, 1), (1, 0)])
    for p, q, t in ((0, 2, 0.5), (-1, 0, 0.5), (0, 1, [[0.5]]), (0, 1, np.nan), (0.5, 1, 0.5)):
        with pytest.raises(ValueError):
            gd.interpolation(two, x, p, q, t)


def test_perfect_workers_in_orders_of_their_own():
    T = [[1, 0.2, 0], [0.2, 0.8, 0.1], [0, 0.1, 1.2]]
    case = gd.Problem(activation=gd.erf, v_star=(1, -0.5, 2), T=T)
    orders = [(0, 1, 2), (2, 0, 1)]
    x = gd.perfect(case, orders=orders)
    W_star = gd.lift(case, gd.perfect(case), N=8).W_star
    w = gd.Weights(W=W_star[np.array(orders)], v=case.v_star[np.array(orders)], W_star=W_star)
    for a, b in ((x.Q, gd.overlaps(w).Q), (x.R, gd.overlaps(w).R), (x.v, w.v)):
        assert np.allclose(a, b, rtol=0, atol=1e-14)
    assert np.allclose(gd.risk(case, x), 0, rtol=0, atol=1e-12)
    assert gd.perfect(case, orders=[(0, 1, 2)]) == gd.perfect(case)
    for orders in ([0, 1, 2], [(0, 0, 1)], [(0, 1)], np.zeros((0, 3), dtype=int), [(0, 1), (2,)]):
        with pytest.raises(ValueError, match="order"):
            gd.perfect(case, orders=orders)


def test_independent_workers_share_what_both_know_of_the_teacher():
    """As the mean over rows that are random across the teacher's span."""
    T = [[1.0, 0.3], [0.3, 0.8]]
    case = gd.Problem(activation=gd.erf, v_star=(1, 1), T=T)
    x = gd.random_start(case, 3, 2, N=6, runs=2, seed=0)
    found = gd.independent(case, x)
    for run in range(2):
        for p, q in np.ndindex(3, 3):
            known = x.R[run, p] @ np.linalg.inv(T) @ x.R[run, q].T
            expected = x.Q[run, p, :, p] if p == q else known
            assert np.allclose(found.Q[run, p, :, q], expected, rtol=0, atol=1e-14)
    assert np.array_equal(found.R, x.R) and np.array_equal(found.v, x.v)
    own = np.einsum("rpkpl->rpkl", found.Q) == np.einsum("rpkpl->rpkl", x.Q)
    assert own.all()
    flat = gd.Problem(activation=gd.erf, v_star=(1, 1), T=np.ones((2, 2)))
    with pytest.raises(ValueError, match="singular"):
        gd.independent(flat, gd.random_start(flat, 2, 2, N=6))
