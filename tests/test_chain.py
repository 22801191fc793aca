"""The chain, step by step: its inner step, its reductions, its streams and its refusals."""

import pickle
import re
from dataclasses import replace

import by_definition as definition
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gossipdyn as gd
from gossipdyn.engines import chain as markov

PROBLEM = gd.Problem(
    gd.erf,
    v_star=[1.0, -0.5],
    T=[[1.0, 0.3], [0.3, 0.8]],
    eta=0.7,
    eta_v=0.4,
    sigma=0.3,
    batch=2,
    weight_decay=0.2,
)
PERFECT = gd.mix(np.ones((2, 1)), gd.Overlaps.single(Q=np.eye(2), R=np.eye(2), v=np.ones(2)))


def start(problem=PROBLEM, P=2, K=2, **more):
    return gd.random_start(problem, workers=P, students=K, N=50, seed=1, **more)


def gram(rows):
    return np.einsum("icr,jcr->ijr", rows, rows)


def embedded(rows, basis):
    """Coordinates (..., c) of rows in R^N."""
    return rows @ basis[: rows.shape[-1]]


# the inner step


@pytest.mark.parametrize("problem", [PROBLEM, replace(PROBLEM, activation=gd.linear, eta_v=0.0)])
def test_a_step_is_a_step_of_sgd_on_the_embedded_samples(problem):
    P, K, B, N, runs = 2, 2, problem.batch, 12, 3
    c, c_new = 8, 11  # beyond P K + M = 6 two directions have piled up; three more come
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((N, N)))[0]
    W, v = rng.standard_normal((P, K, c, runs)), rng.standard_normal((P, K, runs))
    teacher, z = rng.standard_normal((2, 2, runs)), rng.standard_normal((P, B, c_new, runs))
    zeta = rng.standard_normal((P, B, runs))
    W_new, v_new = markov.step(problem, N, W, v, teacher, z, zeta)
    assert W_new.shape == (P, K, c_new, runs)
    for p, r in np.ndindex(P, runs):
        W_star = teacher[..., r] @ basis[:2]
        W_here = W[p, ..., r] @ basis[:c]
        X = z[p, ..., r] @ basis[:c_new]
        expected = definition.sgd_step(problem, W_here, v[p, :, r], W_star, X, zeta[p, :, r])
        got = W_new[p, ..., r] @ basis[:c_new]
        np.testing.assert_allclose(got, expected[0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(v_new[p, :, r], expected[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("N", [6, 7, 9, 40])  # d = 6: no, few and enough fresh directions
def test_blocks_with_their_reductions_are_sgd_on_the_embedded_samples(monkeypatch, N):
    P, runs, drawn = 2, 2, []
    draw = markov._draw
    monkeypatch.setattr(markov, "_draw", lambda *args: drawn.append(draw(*args)) or drawn[-1])
    engine = gd.chain(N=N, runs=runs, seed=3)
    state, source = engine.begin(PROBLEM, start(), 0.0, [])
    block = len(markov._coordinates(P, 2, 2, PROBLEM.batch, N)) - 1
    basis = np.linalg.qr(np.random.default_rng(5).standard_normal((N, N)))[0]
    ends = [block, 2 * block, 3 * block - 1]  # the last stands within a block
    moved = engine.advance(PROBLEM, state, source, 0, ends)
    for now, end, (state_after, _) in zip([0, *ends], ends, moved):
        for r in range(runs):
            W = embedded(state.W[r], basis)
            W_star, v = embedded(state.W_star[r], basis), state.v[r].copy()
            for z, zeta in drawn[-1][: end - now]:
                for p in range(P):
                    X = z[p, ..., r] @ basis[: z.shape[2]]
                    W[p], v[p] = definition.sgd_step(PROBLEM, W[p], v[p], W_star, X, zeta[p, :, r])
            Q, R = definition.overlaps(W, W_star)
            x = gd.overlaps(state_after)
            np.testing.assert_allclose(x.Q[r], Q, rtol=0, atol=1e-12)
            np.testing.assert_allclose(x.R[r], R, rtol=0, atol=1e-12)
            np.testing.assert_allclose(x.v[r], v, rtol=0, atol=1e-12)
        state = state_after


# reductions


@given(
    n=st.integers(1, 6),
    extra=st.integers(0, 9),
    rank=st.integers(0, 6),
    zeros=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_a_reduction_keeps_inner_products_also_of_dependent_and_zero_rows(
    n, extra, rank, zeros, seed
):
    rng = np.random.default_rng(seed)
    rows = np.einsum(
        "ijr,jcr->icr",
        rng.standard_normal((n, rank, 5)),
        rng.standard_normal((rank, n + extra, 5)),
    )
    rows[rng.permutation(n)[:zeros]] = 0
    few = markov.reduced(rows)
    assert not few[:, n:].any() or abs(few[:, n:]).max() < 1e-12 * (1 + abs(rows).max())
    np.testing.assert_allclose(gram(few), gram(rows), rtol=0, atol=1e-12 * (1 + gram(rows).max()))


@pytest.mark.parametrize("scale", [0.0, 1e-200, 1e-100, 1e100])
def test_a_reduction_holds_at_every_scale(scale):
    rows = np.random.default_rng(1).standard_normal((3, 7, 2))
    rows[1] *= scale
    few = markov.reduced(rows)
    # a row of 1e-200 has an inner product of 0 with itself, in floating point
    scales = np.array([1, scale, 1])[:, None] * np.array([1, scale, 1])
    error = np.abs(gram(few) - gram(rows)).max(-1)
    assert np.all(error <= 1e-13 * scales + 1e-300)


def test_a_reduction_leaves_equal_rows_equal_to_the_last_bit():
    rows = np.random.default_rng(2).standard_normal((6, 11, 130))
    rows[3] = rows[0]
    rows[4] = rows[5]
    few = markov.reduced(rows)
    assert np.array_equal(few[3], few[0])
    assert np.array_equal(few[4], few[5])


def test_a_start_has_its_overlaps_also_a_singular_one():
    zero = gd.Overlaps(Q=np.zeros((2, 2, 2, 2)), R=np.zeros((2, 2, 2)), v=np.ones((2, 2)))
    equal = start(shared=True)
    problem = gd.Problem(gd.erf, v_star=[1, 1], T=np.eye(2))
    for pr, x0 in ((PROBLEM, start()), (PROBLEM, equal), (PROBLEM, zero), (problem, PERFECT)):
        t = gd.run(gd.chain(N=6, runs=2), pr, x0, 0.0)
        for name in ("Q", "R", "v"):
            got, expected = getattr(t, name)[:, 0], getattr(x0, name)[None]
            np.testing.assert_allclose(got, np.repeat(expected, 2, 0), rtol=0, atol=1e-12)


def test_perfect_students_stay_perfect_where_labels_have_no_noise():
    problem = gd.Problem(gd.erf, v_star=[1, 1], T=np.eye(2))
    t = gd.run(gd.chain(N=30, runs=200), problem, PERFECT, [(1.0, gd.complete(2))] * 3)
    assert np.abs(t.Q - PERFECT.Q).max() < 1e-12
    assert np.abs(t.risk).max() < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("A", [gd.complete(3), gd.ring(3), [[0.5, 0.3, 0.2]] * 3])
@pytest.mark.filterwarnings("ignore:columns do not sum to 1")
def test_equal_units_of_a_worker_stay_equal_to_the_last_bit(A):
    problem = gd.Problem(gd.erf, v_star=[1, 1], T=np.eye(2), eta=1.5, eta_v=0.5, sigma=0.1)
    one = gd.Overlaps.single(Q=np.full((2, 2), 0.25), R=np.full((2, 2), 0.1), v=np.ones(2))
    x0 = gd.mix(np.ones((3, 1)), one)
    t = gd.run(gd.chain(N=50, runs=200), problem, x0, [(0.46, A)] * 40)
    x = t.state(-1)
    assert np.array_equal(x.R[..., 0, :], x.R[..., 1, :])
    assert np.array_equal(x.v[..., 0], x.v[..., 1])
    own = np.einsum("rpkpl->rpkl", x.Q)
    assert np.abs(own - own[..., :1, :1]).max() < 1e-14 * own.max()  # sums in another order
    assert x.Q.std(0).min() > 1e-3  # and yet the runs move


# streams


def same(t, u, times=slice(None), runs=slice(None)):
    return all(
        np.array_equal(getattr(t, name)[runs, times], getattr(u, name)[runs])
        for name in ("Q", "R", "v", "risk")
    )


MIXING = [(0.3, gd.complete(2)), (1.1, None), (0.0, gd.complete(2)), (0.6, None)]


def test_a_run_is_the_same_again_bit_for_bit():
    args = PROBLEM, start(), MIXING
    t = gd.run(gd.chain(N=20, runs=5, seed=4), *args)
    assert same(t, gd.run(gd.chain(N=20, runs=5, seed=4), *args))
    engine = pickle.loads(pickle.dumps(gd.chain(N=20, runs=5, seed=4)))
    assert same(t, gd.run(engine, *args)) and same(t, gd.run(engine, *args))
    again = getattr(gd, t.engine["name"])(**t.engine["options"])
    assert same(t, gd.run(again, t.problem, **t.asked))
    other = gd.run(gd.chain(N=20, runs=5, seed=5), *args)
    assert not np.any(other.risk[:, -1] == t.risk[:, -1])


@pytest.mark.parametrize("runs", [1, markov.LANE, markov.LANE + 1])
def test_a_run_does_not_depend_on_how_many_follow_it(runs):
    args = PROBLEM, start(), MIXING
    many = gd.run(gd.chain(N=20, runs=9 * markov.LANE + 7), *args)
    few = gd.run(gd.chain(N=20, runs=runs), *args)
    # the arithmetic of a run is the same, but sums over coordinates may be ordered by the tile
    np.testing.assert_allclose(many.Q[:runs], few.Q, rtol=0, atol=1e-12)
    np.testing.assert_allclose(many.risk[:runs], few.risk, rtol=0, atol=1e-12)
    assert len(np.unique(many.risk[:, -1])) == many.risk[:, -1].size


def test_being_looked_at_changes_no_bit():
    engine = gd.chain(N=20, runs=3)
    x0 = start()
    t = gd.run(engine, PROBLEM, x0, MIXING)
    looked = gd.run(engine, PROBLEM, x0, MIXING, record=np.arange(41) / 20, keep=("Q", "R", "v"))
    ends = [i for i, a in enumerate(looked.alpha) if a in t.alpha]
    assert np.array_equal(looked.alpha[ends], t.alpha)
    assert np.array_equal(looked.Q[:, ends], t.Q)
    assert np.array_equal(looked.v[:, ends], t.v)


def test_a_schedule_that_mixes_nothing_changes_no_bit():
    engine, x0 = gd.chain(N=20, runs=3), start()
    whole = gd.run(engine, PROBLEM, x0, 2.0, record=np.arange(9) / 4)
    pieces = gd.run(engine, PROBLEM, x0, [(0.25, None)] * 8)
    assert same(whole, pieces)


def test_mixing_does_not_change_the_samples():
    """At eta so small that students hardly move, runs with and without gossip move alike."""
    problem = replace(PROBLEM, eta=1e-6, eta_v=0.0, weight_decay=0.0)
    engine, x0 = gd.chain(N=20, runs=50), start(shared=True)
    apart = gd.run(engine, problem, x0, 1.05)
    gossip = gd.run(engine, problem, x0, [(0.35, gd.complete(2))] * 3)
    moved = apart.R[:, -1] - x0.R
    mean = np.repeat(moved.mean(1, keepdims=True), 2, 1)
    # to first order in eta the mean of the moves is the move of the mean
    np.testing.assert_allclose(gossip.R[:, -1] - x0.R, mean, rtol=0, atol=1e-4 * np.abs(mean).max())


def test_workers_and_runs_have_samples_of_their_own():
    """At eta so small that students hardly move, the moves of workers and runs are independent."""
    problem = replace(PROBLEM, eta=1e-6, eta_v=0.0, weight_decay=0.0)
    runs = 10 * markov.LANE
    t = gd.run(gd.chain(N=20, runs=runs), problem, start(shared=True), 1.0)
    moved = (t.R[:, -1] - t.R[:, 0]).reshape(runs, -1)
    moved = (moved - moved.mean(0)) / moved.std(0)
    pairs = {"workers": moved[:, :4] * moved[:, 4:]}
    for lag in (1, markov.LANE, 8 * markov.LANE):  # neighbours, lanes, tiles
        pairs[lag] = moved[:-lag] * moved[lag:]
    for name, products in pairs.items():
        assert np.all(np.abs(products.mean(0)) < 5 / np.sqrt(len(products))), name


def test_callables_get_weights_and_act_like_matrices():
    kinds = []

    def average(state):
        kinds.append(type(state))
        return gd.mix(gd.complete(2), state)

    engine, x0 = gd.chain(N=20, runs=3), start()
    by_matrix = gd.run(engine, PROBLEM, x0, [(0.35, gd.complete(2))] * 4)
    by_callable = gd.run(engine, PROBLEM, x0, [(0.35, average)] * 4)
    assert same(by_matrix, by_callable)
    assert set(kinds) == {gd.Weights}


def test_a_state_with_runs_goes_on_run_by_run():
    engine = gd.chain(N=20, runs=3, seed=8)
    x0 = start()
    many = gd.Overlaps(*(np.repeat(a[None], 3, 0) for a in (x0.Q, x0.R, x0.v)))
    one, three = (gd.run(engine, PROBLEM, x, MIXING) for x in (x0, many))
    np.testing.assert_allclose(one.Q, three.Q, rtol=0, atol=1e-12)
    onwards = gd.run(engine, PROBLEM, one.state(-1), 1.0)
    np.testing.assert_allclose(onwards.Q[:, 0], one.Q[:, -1], rtol=0, atol=1e-12)


# refusals


@pytest.mark.parametrize("name", ["N", "runs", "seed"])
@pytest.mark.parametrize("value", [-1, 2.5, "many", True, None])
def test_numbers_of_the_engine_are_whole(name, value):
    with pytest.raises(ValueError, match=f"{name} is a whole number from . up, got {value!r}"):
        gd.chain(**{name: value})


def test_too_small_an_n_is_refused():
    x0 = start(P=3, K=4)
    with pytest.raises(ValueError, match=r"chain needs N >= P\*K \+ M = 14 .* got N=12"):
        gd.run(gd.chain(N=12), PROBLEM, x0, 1.0)
    gd.run(gd.chain(N=14, runs=2), PROBLEM, x0, 1.0)


def test_a_start_that_does_not_fit_is_refused():
    x0 = start(runs=3)
    with pytest.raises(ValueError, match="axis of 3 runs, the engine runs=4"):
        gd.run(gd.chain(N=20, runs=4), PROBLEM, x0, 1.0)
    with pytest.raises(ValueError, match=r"gossipdyn.overlaps\(w\)"):
        gd.run(gd.chain(N=20, runs=4), PROBLEM, gd.lift(PROBLEM, start(), 20), 1.0)
    with pytest.raises(ValueError, match="0.0123 in alpha is 0.246 steps at N=20"):
        gd.run(gd.chain(N=20, runs=4), PROBLEM, start(), 0.0123)


@pytest.mark.parametrize(  # slowly, within a unit of time, at once
    ("eta", "eta_v"), [(2.4, 0.0), (50.0, 0.0), (50.0, 1.0), (1e200, 0.0), (1e200, 1.0)]
)
def test_divergence_is_noticed_and_warns_of_nothing_else(eta, eta_v):
    problem = gd.Problem(gd.linear, v_star=[1.0], T=[[1.0]], eta=eta, eta_v=eta_v)
    x0 = gd.Overlaps.single(Q=[[1.0]], R=[[0.0]], v=[1.0])
    with pytest.raises(gd.Diverged, match=re.escape(f"with eta={eta:.6g} and batch=1")) as caught:
        gd.run(gd.chain(N=50, runs=20), problem, x0, 100.0, record=np.arange(100))
    t = caught.value.trajectory
    assert not t.complete
    assert np.all(np.isfinite(t.risk)) and t.risk.shape[1] >= 1
