"""Matched gossip: what plain averaging destroys it keeps, and near ties it leaves alone."""

import pickle
from itertools import permutations

import numpy as np
import pytest
from anything import weights
from hypothesis import given
from hypothesis import strategies as st

import gossipdyn as gd

ALGEBRA = 1e-12  # rounding of sums of a few dozen numbers of order one
PAIR = gd.complete(2)
SWAP = np.array([[0.0, 1.0], [1.0, 0.0]])  # each worker takes the weights of the other
seeds = st.integers(0, 2**32 - 1)


def teacher(M, **options):
    return gd.Problem(activation=gd.erf, v_star=np.ones(M), T=np.eye(M), **options)


def students(rows, v=None):
    """Overlaps of workers whose rows (P, K, M) are given in the basis of a teacher with T = 1."""
    rows = np.array(rows, dtype=float)
    v = np.ones(rows.shape[:2]) if v is None else v
    return gd.Overlaps(Q=np.einsum("pkn,qln->pkql", rows, rows), R=rows, v=v)


def ordered(*orders):
    """Perfect students, each with the teacher's units in its own order."""
    return students([np.eye(len(order))[list(order)] for order in orders])


def shuffled(w, p, order, signs=1):
    """The weights w with worker p's units in another order, and with other signs."""
    W, v = np.array(w.W), np.array(w.v)
    W[..., p, :, :] = np.reshape(signs, (-1, 1)) * W[..., p, order, :]
    v[..., p, :] = signs * v[..., p, order]
    return gd.Weights(W=W, v=v, W_star=w.W_star)


def assert_same(x, y, tolerance=ALGEBRA):
    for name in x.worker_axes:
        np.testing.assert_allclose(getattr(x, name), getattr(y, name), rtol=0, atol=tolerance)


# what it keeps


@pytest.mark.parametrize(
    "order, naive",
    [
        ([1, 0], 0.0203091),
        ([1, 2, 0], 0.0257456),
        ([1, 2, 3, 0], 0.0343275),
        ([1, 0, 3, 2], 0.0406183),
    ],
)
def test_perfect_students_in_different_order_have_a_poor_mean_and_a_perfect_matched_one(
    order, naive
):
    K = len(order)
    problem, x = teacher(K), ordered(range(K), order)
    assert gd.risk(problem, x) == pytest.approx(0, abs=ALGEBRA)
    # the known values have seven digits
    assert gd.risk(problem, gd.mix(PAIR, x)) == pytest.approx(naive, abs=6e-8)
    after = gd.matched(PAIR)(x)
    assert gd.risk(problem, after) == pytest.approx(0, abs=ALGEBRA)
    np.testing.assert_allclose(after.R, x.R, rtol=0, atol=ALGEBRA)  # each in its own order


@pytest.mark.parametrize("A", [gd.ring(5), gd.star(5), gd.complete(5), gd.exponential(5)])
def test_many_workers_in_any_order_stay_perfect_on_any_graph(A):
    rng = np.random.default_rng(1)
    x = ordered(*(rng.permutation(4) for _ in range(5)))
    after = gd.matched(A)(x)
    assert_same(after, x)
    assert gd.risk(teacher(4), gd.mix(A, x)).max() > 0.01


def test_students_with_copies_of_a_unit_are_sorted_too():
    """Two copies of each teacher unit: any of four assignments is as good as the best."""
    a, b = np.eye(2)
    x = students([[a, a, b, b], [b, b, a, a]], v=np.full((2, 4), 0.5))
    assert gd.mix(PAIR, x).Q[0, 0, 0, 1] == pytest.approx(0.5)
    assert gd.risk(teacher(2), gd.mix(PAIR, x)).min() > 0.02
    assert_same(gd.matched(PAIR)(x), x)


def test_a_flipped_unit_is_turned_back_where_its_second_layer_learns():
    rows, v = [np.eye(2), np.diag([-1.0, 1.0])], np.array([[1.0, 1.0], [-1.0, 1.0]])
    fixed, trained = teacher(2), teacher(2, eta_v=0.5)
    x = students(rows, v)
    assert gd.risk(fixed, x) == pytest.approx(0, abs=ALGEBRA)
    after = gd.mix(PAIR, x)
    assert gd.risk(fixed, after) == pytest.approx(1 / 6, abs=ALGEBRA)
    assert x.Q[0, 0, 0, 1] == after.Q[0, 0, 0, 1] == 0  # nothing to see in Q_12
    assert_same(gd.matched(PAIR, trained)(x), x)
    # a fixed second layer would not come back: no flip
    assert_same(gd.matched(PAIR, fixed)(x), after)
    assert_same(gd.matched(PAIR)(x), after)
    # the same with fixed v of one sign, where the flipped student is no longer perfect
    after = gd.mix(PAIR, students(rows))
    assert gd.risk(fixed, after) == pytest.approx(1 / 6, abs=ALGEBRA)


@given(K=st.integers(1, 5), seed=seeds, signs=st.booleans())
def test_a_sorted_student_computes_what_it_computed(K, seed, signs):
    """Rows of W, entries of v and signs move together: the outputs stay the same."""
    rng = np.random.default_rng(seed)
    w = weights(2, K, M=2, N=30, seed=seed)
    W = np.array(w.W)
    W[1] = W[0] + 0.1 * rng.standard_normal(W[0].shape)
    v = np.array([w.v[0], w.v[0]])
    flips = np.where(rng.random(K) < 0.5, -1, 1) if signs else np.ones(K)
    w = shuffled(gd.Weights(W=W, v=v, W_star=w.W_star), 1, rng.permutation(K), flips)
    after = gd.matched(SWAP, teacher(2, eta_v=1.0) if signs else None)(w)
    inputs = rng.standard_normal((100, 30))

    def outputs(w, p):
        return gd.erf.g(inputs @ w.W[p].T / np.sqrt(30)) @ w.v[p]

    scale = np.abs(w.v[1]).sum()
    np.testing.assert_allclose(outputs(after, 0), outputs(w, 1), rtol=0, atol=1e-14 * scale)
    assert np.abs(after.W[0] - W[0]).max() < 1  # and they stand in the receiver's order


# how it sorts


@given(K=st.integers(1, 5), signs=st.booleans(), seed=seeds)
def test_the_assignment_is_the_best_one(K, signs, seed):
    """tie=0, against all permutations; likeness is Q, or |Q| where signs are free."""
    w = weights(2, K, M=2, seed=seed)
    w = gd.Weights(W=w.W, v=np.abs(w.v), W_star=w.W_star)
    x = gd.overlaps(w)
    problem = teacher(2, eta_v=1.0) if signs else None
    after = gd.matched(SWAP, problem, tie=0)(w)
    Q = x.Q[0, :, 1]
    likeness = np.abs(Q) if signs else Q
    best = max(sum(likeness[range(K), order]) for order in permutations(range(K)))
    reached = np.einsum("kn,kn->", w.W[0], after.W[0]) / w.W.shape[-1]
    assert reached == pytest.approx(best, abs=ALGEBRA * K)


def test_a_cycle_is_sorted_by_itself():
    """Units 0, 1 are specialised and swapped; 2, 3 are nearly alike, and stay as they are."""
    a, b, c, d = np.eye(4)
    alike = [c + 0.1 * d, c - 0.1 * d]
    x = students([[a, b, *alike], [b, a, *alike[::-1]]])
    G = gd.matched(SWAP).matrix(x)
    np.testing.assert_array_equal(G[:4, 4:], np.eye(4)[[1, 0, 2, 3]])
    # what an exchange of the two gains: (c.c - c.c + 4 * 0.1^2) / 2, relative to 1 + 0.1^2
    threshold = 0.02 / 1.01
    for tie, order in [(0.99 * threshold, [1, 0, 3, 2]), (1.01 * threshold, [1, 0, 2, 3])]:
        G = gd.matched(SWAP, tie=tie).matrix(x)
        np.testing.assert_array_equal(G[:4, 4:], np.eye(4)[order])
    np.testing.assert_array_equal(gd.matched(SWAP, tie=2).matrix(x)[:4, 4:], np.eye(4))


@pytest.mark.parametrize("gain, order", [(0.095, [0, 1]), (0.105, [1, 0])])
def test_by_default_an_exchange_must_gain_a_tenth(gain, order):
    """Units a + d b and a - d b, exchanged, gain 2 d^2 / (1 + d^2) of their squared norms."""
    a, b = np.eye(2)
    d = np.sqrt(gain / (2 - gain))
    x = students([[a + d * b, a - d * b], [a - d * b, a + d * b]])
    np.testing.assert_array_equal(gd.matched(SWAP).matrix(x)[:2, 2:], np.eye(2)[order])


@pytest.mark.parametrize("K", [2, 3, 4])
def test_students_that_have_not_specialised_are_averaged_as_they_are(K):
    """At N = 10^5 chance gains 3 / sqrt(N) = 0.01 at most, a tenth of the default tie."""
    A = gd.ring(4)
    x = gd.random_start(teacher(2), workers=4, students=K, N=10**5, seed=K, runs=50)
    assert_same(gd.matched(A)(x), gd.mix(A, x))
    # on the symmetric plateau, with a noise of its own in every unit
    rng = np.random.default_rng(K)
    rows = np.concatenate(
        [np.full((4, K, 2), 0.4), 0.1 * rng.standard_normal((4, K, 500)) / np.sqrt(500)], axis=-1
    )
    x = students(rows)
    assert_same(gd.matched(A)(x), gd.mix(A, x))


def test_exactly_equal_units_are_a_tie():
    x = students(np.full((2, 3, 2), 0.5))
    np.testing.assert_array_equal(gd.matched(PAIR).matrix(x), np.kron(PAIR, np.eye(3)))
    nothing = students(np.zeros((2, 3, 2)))
    assert_same(gd.matched(PAIR)(nothing), nothing)


def test_units_of_opposite_second_layers_are_never_taken_for_alike():
    """Their mean would be no unit at all, and a fixed second layer would stay at 0."""
    v = np.array([1.0, -1.0])
    problem = gd.Problem(activation=gd.erf, v_star=v, T=np.eye(2))
    same_function = students([np.eye(2), np.eye(2)[::-1]], v=[v, v[::-1]])
    assert gd.risk(problem, gd.matched(PAIR)(same_function)) == pytest.approx(0, abs=ALGEBRA)
    rows_alone = students([np.eye(2), np.eye(2)[::-1]], v=[v, v])
    after = gd.matched(PAIR)(rows_alone)
    np.testing.assert_array_equal(after.v, [v, v])
    assert_same(after, gd.mix(PAIR, rows_alone))


def test_second_layers_and_overlaps_of_zero_have_no_sign():
    """Silent units are like any others; a unit that is like none is moved and not flipped."""
    silent = students([np.eye(2), np.eye(2)[::-1]], v=[[0, 1], [1, 0]])
    np.testing.assert_array_equal(gd.matched(SWAP).matrix(silent)[:2, 2:], np.eye(2)[::-1])
    a, b, c = np.eye(3)
    x = students([[a, b], [c, a]])
    G = gd.matched(SWAP, teacher(3, eta_v=0.5)).matrix(x)
    np.testing.assert_array_equal(G[:2, 2:], np.eye(2)[::-1])


@given(P=st.integers(1, 4), K=st.integers(1, 4), signs=st.booleans(), seed=seeds)
def test_workers_that_hear_each_other_use_inverse_orders(P, K, signs, seed):
    x = gd.overlaps(weights(P, K, M=2, seed=seed))
    A = gd.complete(P)
    G = gd.matched(A, teacher(2, eta_v=1.0) if signs else None, tie=0).matrix(x)
    np.testing.assert_array_equal(G, G.T)
    np.testing.assert_allclose(np.abs(G).sum(1), 1, rtol=0, atol=ALGEBRA)
    assert signs or G.min() >= 0


# the square


@given(
    P=st.integers(1, 4),
    K=st.integers(1, 4),
    runs=st.lists(st.integers(1, 3), max_size=1),
    signs=st.booleans(),
    seed=seeds,
)
def test_the_square_commutes(P, K, runs, signs, seed):
    """overlaps(matched(A)(w)) == matched(A)(overlaps(w)), for arrays and tensors."""
    torch = pytest.importorskip("torch")
    w = weights(P, K, M=2, seed=seed, runs=tuple(runs))
    gossip = gd.matched(gd.ring(P), teacher(2, eta_v=1.0) if signs else None)
    x = gossip(gd.overlaps(w))
    np.testing.assert_array_equal(gossip.matrix(w), gossip.matrix(gd.overlaps(w)))
    assert_same(gd.overlaps(gossip(w)), x)
    tensors = gd.Weights(*(torch.tensor(np.array(a)) for a in (w.W, w.v, w.W_star)))
    after = gossip(tensors)
    assert all(isinstance(a, torch.Tensor) for a in (after.W, after.v, after.W_star))
    assert_same(gd.overlaps(after), x)


def test_float32_tensors_are_sorted_alike_and_stay_float32():
    torch = pytest.importorskip("torch")
    w = shuffled(gd.lift(teacher(4), ordered(range(4), range(4)), N=200), 1, [2, 0, 3, 1])
    single = gd.Weights(
        *(torch.tensor(np.array(a), dtype=torch.float32) for a in (w.W, w.v, w.W_star))
    )
    gossip = gd.matched(PAIR)
    np.testing.assert_array_equal(gossip.matrix(single), gossip.matrix(w))
    after = gossip(single)
    assert after.W.dtype == after.v.dtype == torch.float32
    # the risk is a second-order effect of float32's rounding, 6e-8 of every weight
    T = (single.W_star.double() @ single.W_star.double().T).numpy() / 200
    problem = gd.Problem(activation=gd.erf, v_star=np.ones(4), T=T)
    assert gd.risk(problem, gd.overlaps(after)) == pytest.approx(0, abs=1e-13)


# in a run


def test_a_run_takes_it_as_a_round():
    problem = teacher(2, eta=1.0)
    x = students([np.eye(2), np.eye(2)[::-1]])
    plain, sorted_ = (
        gd.run(gd.flow(), problem, x, [(1.0, A), (1.0, A)]) for A in (PAIR, gd.matched(PAIR))
    )
    assert plain.risk[:, -1].min() > 0.01
    assert sorted_.risk.max() < 1e-12
    start = gd.random_start(problem, workers=2, students=2, N=50, seed=1, runs=8)
    gossip = gd.matched(PAIR, tie=0)
    t = gd.run(gd.chain(N=50, runs=8, seed=2), problem, start, [(2.0, gossip)])
    before, after = t.state(-2), t.state(-1)
    np.testing.assert_allclose(after.Q, gossip(before).Q, rtol=0, atol=1e-10)
    assert np.abs(after.Q - gd.mix(PAIR, before).Q).max() > 0.01


def test_a_run_of_sgd_takes_it_as_a_round():
    pytest.importorskip("torch")
    x, sgd = ordered([0, 1, 2], [1, 2, 0]), gd.sgd(N=30, runs=2, seed=0, dtype="float64")
    plain, sorted_ = (gd.run(sgd, teacher(3), x, [(1.0, A)]) for A in (PAIR, gd.matched(PAIR)))
    np.testing.assert_allclose(plain.risk[:, -1], 0.0257456, rtol=0, atol=6e-8)
    np.testing.assert_allclose(sorted_.risk[:, -1], 0, rtol=0, atol=ALGEBRA)


def test_it_pickles_compares_and_is_stored_by_name(tmp_path):
    gossip = gd.matched(gd.ring(3), teacher(2, eta_v=0.1), tie=0.2)
    assert gossip == pickle.loads(pickle.dumps(gossip))
    assert gossip == gd.matched(gd.ring(3), teacher(2, eta_v=0.3), tie=0.2)
    for other in (gd.matched(gd.ring(3), tie=0.2), gd.matched(gd.ring(3), teacher(2, eta_v=0.1))):
        assert gossip != other
    assert repr(gd.matched(PAIR)) == "Matched(A=[[0.5, 0.5], [0.5, 0.5]], signs=False, tie=0.1)"
    x = ordered([0, 1], [1, 0])
    t = gd.run(gd.flow(), teacher(2), x, [(1.0, gd.matched(PAIR))])
    t.save(tmp_path / "t.npz")
    assert gd.Trajectory.load(tmp_path / "t.npz").asked["rounds"] == [(1.0, repr(gd.matched(PAIR)))]


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: gd.matched(np.ones((1, 2)) / 2), r"A is square, got shape \(1, 2\)"),
        (lambda: gd.matched(np.ones((2, 2))), "row 0 of A sums to 2"),
        (lambda: gd.matched([[2, -1], [0, 1]]), r"A\[0, 1\] = -1"),
        (lambda: gd.matched(PAIR, tie=-0.1), "tie is a finite number from 0 up, got -0.1"),
        (lambda: gd.matched(PAIR, tie=np.nan), "tie is a finite number"),
        (lambda: gd.matched(PAIR, tie="none"), "tie is a finite number from 0 up, got 'none'"),
        (lambda: gd.matched(gd.ring(3))(ordered([0, 1], [1, 0])), "takes 3 workers, the state"),
    ],
)
def test_refusals_name_what_is_wrong(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_weights_by_counts_are_taken_with_a_warning():
    counts = np.array([[0.25, 0.75], [0.25, 0.75]])
    with pytest.warns(UserWarning, match="the mean is not kept.*weights 0.25, 0.75"):
        gossip = gd.matched(counts)
    x = ordered([0, 1], [1, 0])
    assert_same(gossip(x), x)
    assert not gossip.A.flags.writeable and counts.flags.writeable
