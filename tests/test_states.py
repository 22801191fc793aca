"""States: overlaps of weights, weights of overlaps, and random starts."""

import copy
import pickle
from dataclasses import replace

import by_definition
import numpy as np
import pytest
from anything import problem_and_overlaps, problem_of, weights
from hypothesis import given
from hypothesis import strategies as st

import gossipdyn as gd
from gossipdyn.starts import root

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


@pytest.mark.parametrize("size", [1e-150, 1e150])
def test_a_factor_holds_at_any_size(size):
    G = np.array([[2.0, 1.0, 1.0], [1.0, 1.0, 0.5], [1.0, 0.5, 3.0]])
    L = root(size**2 * G)
    np.testing.assert_allclose((L / size) @ (L / size).T, G, rtol=0, atol=EXACT)


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


RECORDS = {
    "Problem": gd.Problem(activation=gd.erf, v_star=[1, 1], T=np.eye(2)),
    "Overlaps": problem_and_overlaps(2, 2, 2)[1],
    "Weights": weights(2, 2, 2),
    "Matched": gd.matched(gd.ring(2)),
}


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, replace, lambda record: pickle.loads(pickle.dumps(record))],
    ids=["copy", "deepcopy", "replace", "pickle"],
)
@pytest.mark.parametrize("name", RECORDS)
def test_copies_of_records_are_equal_and_read_only(name, again):
    record = RECORDS[name]
    made = again(record)
    assert made == record
    arrays = [a for a in vars(made).values() if isinstance(a, np.ndarray)]
    assert arrays and not any(a.flags.writeable for a in arrays)


def test_a_pickle_that_was_changed_is_checked():
    """T is put out of symmetry in the bytes: eigh() would read one triangle of it."""
    problem = RECORDS["Problem"]
    good, bad = (np.array(T, dtype=float).tobytes() for T in (np.eye(2), [[1, 0.5], [0, 1]]))
    pickled = pickle.dumps(problem)
    assert pickled.count(good) == 1
    with pytest.raises(ValueError, match=r"T is not symmetric: 0.5 at \(0, 1\) against 0"):
        pickle.loads(pickled.replace(good, bad))


def test_subclasses_are_what_they_inherit():
    class Mine(gd.Problem):
        pass

    mine = Mine(activation=gd.erf, v_star=[1, 1], T=np.eye(2))
    x = gd.random_start(mine, workers=2, students=2, N=20)
    assert np.all(gd.risk(mine, x) == gd.risk(RECORDS["Problem"], x))
    assert gd.run(gd.flow(), mine, x, [(0.1, gd.ring(2))]).problem is mine


# the teacher of weights


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_problem_of_weights_has_their_teacher(kind):
    """Also without the exact T: a wrong one changes the risk, here by more than half."""
    w = gd.Weights(
        *(getattr(weights(2, 2, 3, N=8), name).astype(kind) for name in "W v W_star".split())
    )
    problem = gd.Problem.from_weights(w, gd.erf, v_star=[1, -1, 2], eta=0.3, sigma=0.1)
    W_star = w.W_star.astype(float)
    np.testing.assert_allclose(problem.T, W_star @ W_star.T / 8, rtol=0, atol=EXACT)
    assert (problem.eta, problem.sigma, problem.v_star.tolist()) == (0.3, 0.1, [1, -1, 2])
    diagnosis = gd.diagnose(w, gd.ring(2), problem=problem)
    risks = gd.risk(problem, gd.overlaps(w))
    np.testing.assert_allclose(diagnosis.risk_before, risks, rtol=0, atol=EXACT)
    other = replace(problem, T=np.diag(np.diagonal(problem.T)))
    with pytest.raises(ValueError, match="W_star has .* the problem's T 0: .*from_weights"):
        gd.diagnose(w, gd.ring(2), problem=other)
    with pytest.raises(ValueError, match="from_weights"):
        gd.diagnose(gd.overlaps(w), after=w, problem=other)


def test_runs_of_one_teacher_make_one_problem():
    w = weights(2, 2, 2, runs=(3,))
    one = gd.Weights(W=w.W[0], v=w.v[0], W_star=w.W_star[0])
    problems = [gd.Problem.from_weights(each, gd.erf, v_star=[1, 1]) for each in (w, one)]
    assert problems[0] == problems[1]


# single precision


def test_float32_overlaps_and_teachers_are_right_to_their_own_rounding():
    """One last digit of float32 apart, 7e-9: the mean is taken; 2e-6 apart is refused."""
    near = np.array([[1, 0.1], [0.1, 1]], dtype=np.float32)
    near[0, 1] = np.nextafter(near[0, 1], np.float32(1))
    assert near[0, 1] != near[1, 0]
    problem = gd.Problem(activation=gd.erf, v_star=[1, 1], T=near)
    x = gd.Overlaps.single(Q=near, R=near / 2, v=[1, 1])
    for made in (problem.T, x.Q[0, :, 0]):
        assert (
            made.dtype == float
            and made[0, 1] == made[1, 0] == near.astype(float)[[0, 1], [1, 0]].mean()
        )
    assert replace(problem, eta=0.1).T[0, 1] == problem.T[0, 1]
    assert gd.mix(np.ones((2, 1)), x).Q.shape == (2, 2, 2, 2)
    with pytest.raises(ValueError, match=r"0.10000001 at \(0, 1\) against 0.1 at"):
        gd.Problem(activation=gd.erf, v_star=[1, 1], T=[[1, 0.1 + 1e-8], [0.1, 1]])
    far = near + np.array([[0, 2e-6], [0, 0]], dtype=np.float32)
    for refused in (
        lambda: gd.Problem(activation=gd.erf, v_star=[1, 1], T=far),
        lambda: gd.Overlaps.single(Q=far, R=near, v=[1, 1]),
    ):
        with pytest.raises(ValueError, match=r"not symmetric: 0.100002 at .* against 0.1 "):
            refused()
