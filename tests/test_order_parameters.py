"""States: overlaps of weights, weights of overlaps, and random starts."""

import by_definition
import numpy as np
import pytest
from anything import problem_and_overlaps, problem_of, weights
from hypothesis import given
from hypothesis import strategies as st

import gossipdyn as gd
from gossipdyn.order_parameters import root

EXACT = 1e-12
sizes = st.integers(1, 4)
seeds = st.integers(0, 2**32 - 1)


@given(P=sizes, K=sizes, M=sizes, N=st.integers(1, 8), seed=seeds)
def test_overlaps_are_their_definition(P, K, M, N, seed):
    w = weights(P, K, M, N, seed)
    x = gd.overlaps(w)
    Q, R = by_definition.overlaps(w.W, w.W_star)
    np.testing.assert_allclose(x.Q, Q, rtol=0, atol=EXACT)
    np.testing.assert_allclose(x.R, R, rtol=0, atol=EXACT)
    np.testing.assert_array_equal(x.v, w.v)


@given(
    P=sizes, K=sizes, M=sizes, spare=st.integers(0, 5), runs=st.sampled_from([(), (2,)]), seed=seeds
)
def test_lifted_weights_have_the_overlaps_exactly(P, K, M, spare, runs, seed):
    """Of full rank and of any lower one: the start's own weights live in few dimensions."""
    few = 1 + seed % (P * K + M)
    w = weights(P, K, M, N=few, seed=seed, runs=runs)
    problem, x = problem_of(w), gd.overlaps(w)
    lifted = gd.lift(problem, x, N=P * K + M + spare, seed=seed)
    back = gd.overlaps(lifted)
    scale = max(1, np.abs(x.Q).max())
    np.testing.assert_allclose(back.Q, x.Q, rtol=0, atol=EXACT * scale)
    np.testing.assert_allclose(back.R, x.R, rtol=0, atol=EXACT * scale)
    T = lifted.W_star @ np.swapaxes(lifted.W_star, -1, -2) / lifted.W.shape[-1]
    np.testing.assert_allclose(T, np.broadcast_to(problem.T, T.shape), rtol=0, atol=EXACT * scale)
    np.testing.assert_array_equal(lifted.v, x.v)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: gd.mix(np.ones((5, 1)), x),
        lambda x: gd.mix(gd.complete(3), gd.mix(np.ones((3, 1)), x)),
        lambda x: gd.Overlaps.single(Q=np.eye(2), R=np.eye(2), v=[1, 1]),
        lambda x: gd.Overlaps.single(Q=np.ones((2, 2)), R=np.ones((2, 2)) / 2, v=[1, 1]),
        lambda x: gd.Overlaps.single(Q=np.zeros((2, 2)), R=np.zeros((2, 2)), v=[1, 1]),
        lambda x: gd.Overlaps.single(Q=1e6 * np.eye(2), R=np.zeros((2, 2)), v=[1, 1]),
        lambda x: gd.Overlaps.single(Q=np.diag([1, 1e-12]), R=np.zeros((2, 2)), v=[1, 1]),
    ],
    ids=["copies", "averaged", "perfect", "equal units", "zero", "huge", "tiny"],
)
def test_lifting_singular_overlaps(make):
    problem = gd.Problem(activation=gd.erf, v_star=[1, 1], T=np.eye(2))
    x = make(gd.Overlaps.single(Q=[[0.5, 0.1], [0.1, 0.4]], R=[[0.1, 0], [0, 0.2]], v=[1, 2]))
    back = gd.overlaps(gd.lift(problem, x, N=50))
    for name in "QR":
        a, b = getattr(back, name), getattr(x, name)
        np.testing.assert_allclose(a, b, rtol=0, atol=EXACT * max(1, np.abs(x.Q).max()))


def test_lifting_is_seeded():
    problem, x = problem_and_overlaps(2, 2, 2)
    one, again, other = (gd.lift(problem, x, 20, seed=seed) for seed in (1, 1, 2))
    assert one == again and one != other


def test_a_factor_does_not_hang_on_rounding():
    """Equal lengths, equal eigenvalues and dependent rows decide nothing: see root()."""
    rng = np.random.default_rng(0)
    even = np.full((4, 4), 0.3) + 0.7 * np.eye(4)
    z = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    close = np.array([z[0], z[0] + 1e-6 * z[1], z[1], z[0], 1e-5 * z[2], z[2] + 1e-4 * z[1]])
    flat = rng.standard_normal((9, 3)) @ z[:3]
    simple = np.eye(5), np.zeros((3, 3)), np.diag([0.0, 4.0, 1.0])
    for G in (*simple, even, close @ close.T, flat @ flat.T):
        noise = 1e-16 * rng.standard_normal((200, *G.shape)) * np.abs(G).max()
        nearby = G + noise + noise.swapaxes(1, 2)
        L, others = root(G), root(nearby)
        np.testing.assert_allclose(L @ L.T, G, rtol=0, atol=EXACT)
        np.testing.assert_allclose(others @ others.swapaxes(1, 2), nearby, rtol=0, atol=EXACT)
        # 1e-16 / 1e-6, the length along which the rows of `close` part
        np.testing.assert_allclose(others, np.broadcast_to(L, others.shape), rtol=0, atol=1e-9)
    np.testing.assert_array_equal(root(np.eye(5)), np.eye(5))


def test_small_rows_keep_their_overlaps():
    problem, x = problem_and_overlaps(2, 2, 2)
    small = np.array([1e-6, 1.0])[:, None]
    x = gd.Overlaps(Q=small[..., None, None] * x.Q * small, R=small[..., None] * x.R, v=x.v)
    back = gd.overlaps(gd.lift(problem, x, 20))
    np.testing.assert_allclose(back.Q[0, :, 0], x.Q[0, :, 0], rtol=0, atol=1e-12 * EXACT)
    np.testing.assert_allclose(back.R[0], x.R[0], rtol=0, atol=1e-6 * EXACT)


# random starts


def test_random_starts_have_the_law_of_random_weights():
    """Means and covariances of all overlaps, against weights drawn row by row; 5 sigma."""
    N, runs, scale = 7, 4000, 0.6
    T = np.array([[1, -0.3], [-0.3, 0.8]])
    problem = gd.Problem(activation=gd.erf, v_star=[1, 1], T=T)
    x = gd.random_start(problem, workers=2, students=2, N=N, scale=scale, seed=1, runs=runs)
    teacher = np.linalg.cholesky(T) @ np.eye(2, N) * np.sqrt(N)
    W = scale * np.random.default_rng(2).standard_normal((runs, 4, N))
    ours = np.concatenate([x.Q.reshape(runs, -1), x.R.reshape(runs, -1)], axis=1)
    direct = np.concatenate(
        [
            np.einsum("bkn,bln->bkl", W, W).reshape(runs, -1) / N,
            (W @ teacher.T).reshape(runs, -1) / N,
        ],
        axis=1,
    )
    for power in (1, 2, 3):  # of single overlaps, and products of two
        a, b = ours**power, direct**power
        error = np.sqrt((a.var(0) + b.var(0)) / runs)
        assert np.all(np.abs(a.mean(0) - b.mean(0)) < 5 * error)
    a, b = (np.einsum("bi,bj->bij", y, y).reshape(runs, -1) for y in (ours, direct))
    error = np.sqrt((a.var(0) + b.var(0)) / runs)
    assert np.all(np.abs(a.mean(0) - b.mean(0)) < 5 * error)


@pytest.mark.parametrize("N", [2, 3, 5, 6, 1000])
def test_random_starts_are_possible_overlaps_at_every_N(N):
    """Also where the rows do not fit into R^N: then the Gram matrix has rank N."""
    problem = gd.Problem(activation=gd.erf, v_star=[1, 1], T=np.eye(2))
    x = gd.random_start(problem, workers=2, students=2, N=N, runs=3)
    assert np.all(gd.risk(problem, x) > 0)
    rows = np.block(
        [[x.Q.reshape(3, 4, 4), x.R.reshape(3, 4, 2)],
         [np.swapaxes(x.R.reshape(3, 4, 2), 1, 2), np.broadcast_to(problem.T, (3, 2, 2))]]
    )  # fmt: skip
    rank = np.linalg.matrix_rank(rows, tol=1e-9 * np.abs(rows).max())
    assert np.all(rank == min(N, 6))


def test_shared_starts_are_copies():
    problem = gd.Problem(activation=gd.erf, v_star=[1], T=[[1]])
    x = gd.random_start(problem, workers=3, students=2, N=50, shared=True, v=[0.5, 2], runs=2)
    for p, q in np.ndindex(3, 3):
        np.testing.assert_array_equal(x.Q[:, p, :, q], x.Q[:, 0, :, 0])
    assert np.all(x.R == x.R[:, :1]) and np.all(x.v == [0.5, 2])
    apart = gd.random_start(problem, workers=3, students=2, N=50, runs=2)
    assert not np.any(apart.R[:, 0] == apart.R[:, 1]) and np.all(apart.v == 1)


def test_more_runs_do_not_change_the_first():
    problem = gd.Problem(activation=gd.erf, v_star=[1, 1], T=np.eye(2))

    def start(**options):
        return gd.random_start(problem, workers=2, students=2, N=30, seed=5, **options)

    many, few, one = start(runs=4), start(runs=2), start()
    np.testing.assert_array_equal(many.Q[:2], few.Q)
    np.testing.assert_array_equal(many.R[0], one.R)
    assert start(runs=4) == many
    assert gd.random_start(problem, workers=2, students=2, N=30, seed=6, runs=4) != many


# cosines and records


def test_cosines():
    w = weights(2, 2, 3, N=9)
    problem, x = problem_of(w), gd.overlaps(w)
    QQ, RR = gd.cosines(problem, x)
    for p, k in np.ndindex(2, 2):
        a = w.W[p, k]
        for q, l in np.ndindex(2, 2):
            b = w.W[q, l]
            cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            assert QQ[p, k, q, l] == pytest.approx(cosine, abs=EXACT)
        for m, b in enumerate(w.W_star):
            cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            assert RR[p, k, m] == pytest.approx(cosine, abs=EXACT)
    zero = gd.Overlaps.single(Q=np.diag([1, 0]), R=np.zeros((2, 3)), v=[1, 1])
    QQ, RR = gd.cosines(problem, zero)
    assert QQ[0, 0, 0, 0] == 1 and QQ[0, 1, 0, 1] == 0 and np.all(RR == 0)


def test_states_are_frozen_and_compare_their_arrays():
    _, x = problem_and_overlaps(2, 2, 2)
    assert x == gd.Overlaps(Q=x.Q.copy(), R=x.R, v=x.v)
    assert x != gd.Overlaps(Q=x.Q, R=x.R, v=x.v + 1) and x != "x"
    for name in "QRv":
        with pytest.raises(ValueError, match="read-only"):
            getattr(x, name)[...] = 0
    Q = np.eye(2)
    kept = gd.Overlaps.single(Q=Q, R=np.eye(2), v=[1, 1])
    Q[:] = 7
    assert kept.Q[0, 0, 0, 0] == 1
    w = weights(1, 1, 1)
    assert w == gd.Weights(W=w.W, v=w.v, W_star=w.W_star) and w != x
