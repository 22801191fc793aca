"""Gossip: one operator on weights and on overlaps; its graphs, spectra and limits."""

import warnings
from dataclasses import replace

import by_definition
import numpy as np
import pytest
from anything import problem_and_overlaps, problem_of, weights
from hypothesis import given
from hypothesis import strategies as st

import gossipdyn as gd

EXACT = 1e-12  # sums of a few dozen products of order 1
sizes = st.integers(1, 5)
seeds = st.integers(0, 2**32 - 1)
drifting = pytest.mark.filterwarnings("ignore:columns do not sum to 1")


def averages(rng, P_new, P):
    """A random matrix of weighted means, with zeros in it."""
    A = rng.exponential(size=(P_new, P)) * (rng.random((P_new, P)) < 0.7)
    A[np.arange(P_new), rng.integers(P, size=P_new)] += 0.1
    return A / A.sum(1, keepdims=True)


def connected(rng, P, extra):
    """Edges of a random tree, and up to `extra` more."""
    edges = {(int(rng.integers(i)), i) for i in range(1, P)}
    pairs = [(i, j) for j in range(P) for i in range(j)]
    return edges | {pairs[i] for i in rng.permutation(len(pairs))[:extra]}


def assert_same(x, y, tolerance=EXACT):
    for name in x.worker_axes:
        np.testing.assert_allclose(getattr(x, name), getattr(y, name), rtol=0, atol=tolerance)


# the square


@drifting
@given(P=sizes, P_new=sizes, K=sizes, M=sizes, N=st.integers(1, 12), seed=seeds)
def test_the_square_commutes(P, P_new, K, M, N, seed):
    """overlaps(mix(A, w)) == mix(A, overlaps(w)) for any weights and any weighted means."""
    w = weights(P, K, M, N, seed)
    A = averages(np.random.default_rng(seed), P_new, P)
    assert_same(gd.overlaps(gd.mix(A, w)), gd.mix(A, gd.overlaps(w)))


@drifting
@given(P=sizes, K=sizes, runs=st.lists(st.integers(1, 3), max_size=2), seed=seeds)
def test_the_square_commutes_for_runs_and_torch_tensors(P, K, runs, seed):
    torch = pytest.importorskip("torch")
    w = weights(P, K, M=2, N=7, seed=seed, runs=tuple(runs))
    tensors = gd.Weights(*(torch.tensor(np.array(a)) for a in (w.W, w.v, w.W_star)))
    A = averages(np.random.default_rng(seed), P, P)
    x = gd.mix(A, gd.overlaps(w))
    assert_same(gd.overlaps(gd.mix(A, w)), x)
    assert_same(gd.overlaps(gd.mix(A, tensors)), x)


@drifting
@given(P=sizes, P_new=sizes, K=sizes, seed=seeds)
def test_mixing_is_its_definition(P, P_new, K, seed):
    w = weights(P, K, M=2, seed=seed)
    A = averages(np.random.default_rng(seed), P_new, P)
    mixed = gd.mix(A, w)
    np.testing.assert_allclose(mixed.W, by_definition.gossip_round(A, w.W), atol=EXACT)
    np.testing.assert_allclose(mixed.v, by_definition.gossip_round(A, w.v), atol=EXACT)
    Q, R = by_definition.overlaps(mixed.W, w.W_star)
    assert_same(gd.mix(A, gd.overlaps(w)), gd.Overlaps(Q=Q, R=R, v=mixed.v))


@drifting
@given(P=sizes, seed=seeds)
def test_two_rounds_are_one_with_the_product(P, seed):
    _, x = problem_and_overlaps(P, 2, 2, seed=seed)
    rng = np.random.default_rng(seed)
    A, B = averages(rng, P, P), averages(rng, 3, P)
    assert_same(gd.mix(B, gd.mix(A, x)), gd.mix(B @ A, x))


def test_spawning_and_the_mean():
    problem, x = problem_and_overlaps(1, 2, 2)
    four = gd.mix(np.ones((4, 1)), x)
    assert four.R.shape == (4, 2, 2)
    assert all(np.array_equal(four.Q[p, :, q], x.Q[0, :, 0]) for p in range(4) for q in range(4))
    assert gd.mix(np.full((1, 4), 0.25), four) == x
    problem, x = problem_and_overlaps(3, 2, 2)
    mean = gd.mix(np.full((1, 3), 1 / 3), x)
    assert gd.mean_risk(problem, x) == gd.risk(problem, mean)[0]


def test_the_mean_risk_is_that_of_the_mean_weights():
    w = weights(3, 2, 2, N=9)
    problem = problem_of(w)
    W, v = w.W.mean(0), w.v.mean(0)
    direct = by_definition.risk(problem, W @ W.T / 9, W @ w.W_star.T / 9, v)
    assert gd.mean_risk(problem, gd.overlaps(w)) == pytest.approx(direct, abs=EXACT)


def test_rounds_of_a_run_are_mix():
    """Rounds of period 0 in any engine are matrices, and nothing else happens."""
    problem, x = problem_and_overlaps(4, 2, 2)
    A, B = gd.ring(4), gd.star(4)
    t = gd.run(gd.flow(), problem, x, [(0, A), (0, B), (0, A)])
    assert_same(t.state(-1), gd.mix(A @ B @ A, gd.Overlaps(x.Q[None], x.R[None], x.v[None])))


# graphs and their spectra


@given(P=st.integers(1, 8), extra=st.integers(0, 10), seed=seeds)
def test_metropolis_weights(P, extra, seed):
    """A_ij = 1 / (1 + max(d_i, d_j)): symmetric, doubly stochastic, whatever the graph."""
    edges = connected(np.random.default_rng(seed), P, extra)
    A = gd.from_edges(P, edges)
    degree = [sum(i in edge for edge in edges) for i in range(P)]
    for i, j in np.ndindex(P, P):
        if i != j:
            joined = (i, j) in edges or (j, i) in edges
            assert A[i, j] == (1 / (1 + max(degree[i], degree[j])) if joined else 0)
    np.testing.assert_array_equal(A, A.T)
    np.testing.assert_allclose(A.sum(0), 1, atol=1e-15)
    assert np.all(A >= 0)
    assert (P == 1) or 0 < gd.spectral_gap(A) <= 1 + 1e-12


def spectrum(A):
    return np.sort(np.linalg.eigvalsh(A))


@pytest.mark.parametrize("P", range(3, 10))
def test_spectra_of_the_named_graphs(P):
    k = np.arange(P)
    known = {
        gd.complete: np.r_[1, np.zeros(P - 1)],
        gd.ring: (1 + 2 * np.cos(2 * np.pi * k / P)) / 3,
        gd.path: 1 / 3 + 2 / 3 * np.cos(np.pi * k / P),
        gd.star: np.r_[1, np.full(P - 2, 1 - 1 / P), 0],
    }
    for graph, eigenvalues in known.items():
        A = graph(P)
        np.testing.assert_allclose(spectrum(A), np.sort(eigenvalues), atol=EXACT)
        second = np.sort(np.abs(eigenvalues))[-2]
        assert gd.spectral_gap(A) == pytest.approx(1 - second, abs=EXACT)
    assert gd.spectral_gap(gd.star(P)) == pytest.approx(1 / P, abs=EXACT)


def test_a_spectral_gap_in_numbers():
    assert 1 - gd.spectral_gap(gd.ring(8)) == pytest.approx(0.804738, abs=5e-7)


@pytest.mark.parametrize("graph", [gd.complete, gd.ring, gd.path, gd.star])
def test_one_and_two_workers(graph):
    np.testing.assert_array_equal(graph(1), [[1]])
    np.testing.assert_array_equal(graph(2), [[0.5, 0.5], [0.5, 0.5]])
    assert gd.spectral_gap(graph(1)) == 1
    assert gd.spectral_gap(graph(2)) == pytest.approx(1, abs=1e-15)


@drifting
@given(P=st.integers(2, 5), seed=seeds)
def test_the_gap_bounds_what_one_round_leaves_of_the_disagreement(P, seed):
    """|A W - mean| <= (1 - gap) |W - mean|, for any A; for a normal A nothing better holds."""
    rng = np.random.default_rng(seed)
    A, W = averages(rng, P, P), rng.standard_normal((P, 7))
    gap = gd.spectral_gap(A)
    centred = W - W.mean(0)
    left = np.linalg.norm((A - 1 / P) @ centred)
    assert left <= (1 - gap) * np.linalg.norm(centred) * (1 + EXACT)
    shift = np.roll(np.eye(P), 1, axis=0)  # normal, not symmetric: all moduli are 1
    assert gd.spectral_gap(shift) == pytest.approx(0, abs=1e-12)


def consensus_distance(x):
    """(1/P) sum_p |W^p - mean|^2 / N = (1/P) sum_p tr Q^pp - tr Q of the mean."""
    P = x.v.shape[-2]
    mean = gd.mix(np.full((1, P), 1 / P), x)
    return np.einsum("pkpk->", x.Q) / P - np.einsum("pkpk->", mean.Q)


@given(P=st.integers(2, 7), extra=st.integers(0, 6), seed=seeds)
def test_doubly_stochastic_rounds_keep_the_mean_and_lose_disagreement(P, extra, seed):
    w = weights(P, 2, 2, seed=seed)
    A = gd.from_edges(P, connected(np.random.default_rng(seed), P, extra))
    mixed = gd.mix(A, w)
    np.testing.assert_allclose(mixed.W.mean(0), w.W.mean(0), atol=EXACT)
    before, after = consensus_distance(gd.overlaps(w)), consensus_distance(gd.overlaps(mixed))
    direct = ((w.W - w.W.mean(0)) ** 2).sum() / w.W.shape[-1] / P
    assert before == pytest.approx(direct, rel=1e-10)
    assert after <= (1 - gd.spectral_gap(A)) ** 2 * before + EXACT


# the flow with gossip


@pytest.mark.slow
@pytest.mark.parametrize("P", [2, 3])
@pytest.mark.parametrize("eta_v", [0.0, 0.3])
def test_averaging_ever_more_often_tends_to_a_batch_of_P(P, eta_v):
    """Complete rounds every tau, from one start: the deviation is proportional to tau."""
    problem, one = problem_and_overlaps(1, 2, 2, eta=0.5, eta_v=eta_v, sigma=0.3, batch=2)
    limit = gd.run(gd.flow(), replace(problem, batch=2 * P), one, 2.0).state(-1)
    periods = np.array([0.1, 0.05, 0.025, 0.0125])
    gaps = []
    for tau in periods:
        schedule = [(tau, gd.complete(P))] * round(2 / tau)
        x = gd.run(gd.flow(), problem, gd.mix(np.ones((P, 1)), one), schedule).state(-1)
        gaps.append(
            [np.abs(x.Q[0, 0, :, 0] - limit.Q[0, 0, :, 0]).max(), np.abs(x.R - limit.R).max()]
        )
    slopes = np.polyfit(np.log(periods), np.log(gaps), 1)[0]
    np.testing.assert_allclose(slopes, 1, atol=0.05)


def test_identical_starts_differ_in_nothing_but_the_overlaps_between_them():
    """R^p, Q^pp and v^p stay the same; Q^pq lags behind Q^pp until a round."""
    problem, one = problem_and_overlaps(1, 2, 2, eta=0.8, eta_v=0.3, sigma=0.3)
    schedule = [(3.0, gd.complete(3)), (3.0, None)]
    t = gd.run(gd.flow(), problem, gd.mix(np.ones((3, 1)), one), schedule, record=[1, 2, 4, 5])
    for p in (1, 2):
        np.testing.assert_array_equal(t.R[0, :, p], t.R[0, :, 0])
        np.testing.assert_array_equal(t.v[0, :, p], t.v[0, :, 0])
        np.testing.assert_allclose(t.Q[0, :, p, :, p], t.Q[0, :, 0, :, 0], rtol=0, atol=EXACT)
    lag = np.einsum("tpkpk->t", t.Q[0][:, :1, :, :1]) - np.einsum("tkk->t", t.Q[0][:, 0, :, 1])
    at_round = int(np.flatnonzero(t.after_mixing)[0])
    assert lag[0] == 0 and np.all(lag[1:at_round] > 0.1)
    assert lag[at_round] == pytest.approx(0, abs=EXACT) and np.all(lag[at_round + 1 :] > 0.1)
    alone = gd.run(gd.flow(), problem, one, 3.0)
    np.testing.assert_allclose(t.at(2.999).R[0, 0], alone.state(-1).R[0, 0], atol=1e-7)


def test_independent_starts_meet_through_the_teacher_alone():
    """Q^pq = R^p T^-1 R^q.T holds in the flow until the first round, and not after it."""
    problem, x = problem_and_overlaps(3, 2, 2, eta=0.8, eta_v=0.3, sigma=0.3)

    def through_the_teacher(R):
        return np.einsum("...pkm,mn,...qln->...pkql", R, np.linalg.inv(problem.T), R)

    other = ~np.broadcast_to(np.eye(3, dtype=bool)[:, None, :, None], x.Q.shape)
    x = replace(x, Q=np.where(other, through_the_teacher(x.R), x.Q))
    t = gd.run(gd.flow(), problem, x, [(4.0, gd.ring(3)), (1.0, None)], record=[1, 2, 3])
    gap = np.abs(t.Q - through_the_teacher(t.R))[0][:, other].max(-1)
    until = int(np.flatnonzero(t.after_mixing)[0])
    assert np.all(gap[:until] < 1e-7)  # 10 rtol
    assert np.all(gap[until:] > 1e-3)


# precision


def test_a_float32_matrix_is_used_as_it_is():
    """Thirds in float32 sum to 1 + 3e-8; what is made of them sums to 1 in float32 too."""
    A = np.full((3, 3), 1 / 3, dtype=np.float32)
    excess = A.astype(float).sum(1)[0] - 1
    assert 1e-8 < excess < 1e-7
    x = gd.mix(np.ones((3, 1)), gd.Overlaps.single(Q=[[1.0]], R=[[0.5]], v=[1.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for round in (A, A.tolist(), gd.matched(A)):
            mixed = round(x) if callable(round) else gd.mix(round, x)
            np.testing.assert_allclose(mixed.R, 0.5 * (1 + excess), rtol=1e-15)
        for made in (gd.lazy(A), gd.drop_edges(A, [(0, 1)]), gd.max_degree(A)):
            gd.mix(made, x)
        problem = gd.Problem(activation=gd.erf, v_star=[1], T=[[1]])
        t = gd.run(gd.flow(coupling=(0.1, A)), problem, x, [(np.float32(0.1), A)] * 2)
        again = gd.run(gd.flow(**t.engine["options"]), problem, **t.asked)
        assert again == t
        gd.modes(problem, x, round=(0.1, A))


def test_float32_periods_and_records_are_steps():
    """0.1 in float32 is 0.1 + 1.5e-9, which is no whole number of steps at N = 50 to 1e-9."""
    problem = gd.Problem(activation=gd.erf, v_star=[1], T=[[1]])
    x = gd.Overlaps.single(Q=[[1.0]], R=[[0.5]], v=[1.0])
    record = np.linspace(0, 0.3, 4, dtype=np.float32)
    for engine in (gd.chain(N=50, runs=2), gd.chain(N=10**6, runs=2), gd.flow()):
        short = [(np.float32(0.1), None)] * 3 if engine.N != 10**6 else np.float32(3e-6)
        times = record if engine.N != 10**6 else np.float32([0, 3e-6])
        t = gd.run(engine, problem, x, short, record=times)
        assert t.alpha[-1] == pytest.approx(3e-6 if engine.N == 10**6 else 0.3, abs=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_means_of_tensors_keep_the_digits_of_A(dtype):
    """A in float32 would make equal weights grow by 3e-8 a round: 3e-4 after 10^4 rounds."""
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    w = gd.Weights(
        torch.ones(3, 1, 4, dtype=kind), torch.ones(3, 1, dtype=kind), torch.ones(1, 4, dtype=kind)
    )
    for _ in range(200):
        for round in (gd.matched(gd.ring(3)), lambda state: gd.mix(gd.ring(3), state)):
            w = round(w)
    assert w.W.dtype == kind and float((w.W - 1).abs().max()) < 1e-14


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_what_torch_makes_by_default_does_not_matter(device, dtype):
    torch = pytest.importorskip("torch")
    problem = gd.Problem(activation=gd.tanh, v_star=[1], T=[[1]])
    x = gd.random_start(problem, workers=2, students=1, N=20)

    def run():
        t = gd.run(
            gd.sgd(N=20, runs=3), problem, x, [(0.5, gd.ring(2)), (0.5, gd.matched(gd.ring(2)))]
        )
        return gd.overlaps(t.weights), t

    right = run()
    usual = torch.get_default_dtype()
    try:
        torch.set_default_device(device)
        torch.set_default_dtype(getattr(torch, dtype))
        assert run() == right
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(usual)


def test_tensors_in_a_graph_are_weights():
    torch = pytest.importorskip("torch")
    W = torch.nn.Parameter(torch.randn(2, 1, 4, generator=torch.Generator().manual_seed(0)))
    w = gd.Weights(W, torch.ones(2, 1), torch.ones(1, 4))
    x = gd.overlaps(w)
    np.testing.assert_allclose(x.R[0, 0, 0], W[0].mean().item(), rtol=1e-6)
    mixed = gd.mix(gd.complete(2), w)
    mixed.W.sum().backward()
    np.testing.assert_allclose(W.grad, 1, rtol=1e-6)
    problem = gd.Problem.from_weights(w, gd.erf, v_star=torch.ones(1, requires_grad=True))
    assert gd.run(gd.sgd(N=4, runs=2), problem, w, 0.5).complete
