"""Graphs: their spectra in closed form, what their weights keep, and what is refused."""

from types import SimpleNamespace

import numpy as np
import pytest
from anything import weights
from hypothesis import given
from hypothesis import strategies as st

import gossipdyn as gd

ALGEBRA = 1e-12  # rounding of sums of some 64 numbers of order one


def spectrum(A):
    """Eigenvalues of a symmetric A, ascending."""
    np.testing.assert_array_equal(A, A.T)
    return np.linalg.eigvalsh(A)


def second_modulus(A):
    return np.sort(np.abs(np.linalg.eigvals(A)))[-2]


def same(eigenvalues, formula):
    np.testing.assert_allclose(eigenvalues, np.sort(np.ravel(formula)), rtol=0, atol=ALGEBRA)


def angles(n):
    return 2 * np.pi * np.arange(n) / n


NAMED = {
    **{f"{g.__name__}({P})": g(P) for P in range(1, 10) for g in (gd.complete, gd.ring)},
    **{f"{g.__name__}({P})": g(P) for P in range(1, 10) for g in (gd.path, gd.star)},
    **{f"exponential({P})": gd.exponential(P) for P in range(1, 18)},
    **{f"hypercube({d})": gd.hypercube(d) for d in range(6)},
    **{f"torus({n}, {m})": gd.torus(n, m) for n in range(1, 6) for m in range(1, 6)},
    **{f"erdos_renyi({P})": gd.erdos_renyi(P, 0.4, seed=P) for P in range(1, 10)},
    **{f"max_degree(path({P}))": gd.max_degree(gd.path(P)) for P in range(1, 6)},
    **{f"lazy(star({P}))": gd.lazy(gd.star(P)) for P in range(1, 6)},
}


@pytest.mark.parametrize("A", NAMED.values(), ids=NAMED)
def test_every_graph_keeps_the_mean_and_reaches_consensus(A):
    P = len(A)
    assert A.min() >= 0
    np.testing.assert_allclose(A.sum(0), 1, rtol=0, atol=ALGEBRA)
    np.testing.assert_allclose(A.sum(1), 1, rtol=0, atol=ALGEBRA)
    gap = gd.spectral_gap(A)
    assert gap > 0
    # warnings are errors here: that mix() has nothing to say about these is part of the test
    w = weights(P, K=2, M=2, N=3)
    mixed = gd.mix(A, w)
    np.testing.assert_allclose(mixed.W.mean(0), w.W.mean(0), rtol=0, atol=ALGEBRA)

    def disagreement(W):
        return ((W - W.mean(0)) ** 2).sum()

    bound = (1 - gap) ** 2 * disagreement(w.W)
    assert disagreement(mixed.W) <= bound * (1 + ALGEBRA) + ALGEBRA


@pytest.mark.parametrize("n, m", [(3, 3), (3, 4), (4, 4), (5, 7), (6, 3)])
def test_the_spectrum_of_the_torus_is_known(n, m):
    formula = 1 + 2 * np.cos(angles(n))[:, None] + 2 * np.cos(angles(m))
    same(spectrum(gd.torus(n, m)), formula / 5)


def test_a_torus_of_one_row_is_a_ring_and_of_two_rows_is_as_the_edges_say():
    for P in range(1, 7):
        np.testing.assert_array_equal(gd.torus(P, 1), gd.ring(P))
        np.testing.assert_array_equal(gd.torus(1, P), gd.ring(P))
    np.testing.assert_allclose(gd.torus(2, 2)[0], [1 / 3, 1 / 3, 1 / 3, 0], atol=ALGEBRA)
    # worker i m + j at row i, column j
    neighbours = {(i * 5 + j) for i, j in [(1, 2), (3, 2), (2, 1), (2, 3), (2, 2)]}
    assert set(np.flatnonzero(gd.torus(4, 5)[2 * 5 + 2])) == neighbours


@pytest.mark.parametrize("d", range(1, 7))
def test_the_spectrum_of_the_hypercube_is_known(d):
    A = gd.hypercube(d)
    ones = np.array([bin(p).count("1") for p in range(2**d)])
    same(spectrum(A), 1 - 2 * ones / (d + 1))
    assert second_modulus(A) == pytest.approx((d - 1) / (d + 1), abs=ALGEBRA)


@pytest.mark.parametrize("P", range(2, 41))
def test_the_gap_of_the_exponential_graph_is_known(P):
    A, tau = gd.exponential(P), int(np.ceil(np.log2(P)))
    assert np.count_nonzero(A[0]) == tau + 1
    assert set(np.flatnonzero(A[0])) == {0} | {2**i for i in range(tau)}
    if P % 2 == 0:
        assert second_modulus(A) == pytest.approx((tau - 1) / (tau + 1), abs=ALGEBRA)
        assert gd.spectral_gap(A) == pytest.approx(2 / (tau + 1), abs=ALGEBRA)


@pytest.mark.parametrize("P", range(1, 20))
def test_one_peer_rounds_reach_consensus_at_once_where_P_is_a_power_of_two(P):
    tau = int(np.ceil(np.log2(P)))
    schedule = gd.one_peer_exponential(P, period=2.5, rounds=2 * tau + 1)
    assert [period for period, _ in schedule] == [2.5] * (2 * tau + 1)
    matrices = [A for _, A in schedule]
    assert all(np.count_nonzero(row) == min(P, 2) for A in matrices for row in A)
    for start in range(tau + 1):  # any tau rounds in a row, not only the first ones
        product = np.linalg.multi_dot([np.eye(P), np.eye(P), *matrices[start : start + tau]])
        consensus = np.abs(product - 1 / P).max() < ALGEBRA
        assert consensus == (P & (P - 1) == 0)


def pairs_of(schedule):
    return [tuple(np.flatnonzero(np.diag(A) < 1)) for _, A in schedule]


def test_random_pairs_are_uniform():
    schedule = gd.random_pairs(8, period=1.0, rounds=1000, seed=3)
    drawn = pairs_of(schedule)
    for (period, A), (i, j) in zip(schedule, drawn):
        expected = np.eye(8)
        expected[[i, i, j, j], [i, j, i, j]] = 0.5
        assert period == 1.0
        np.testing.assert_array_equal(A, expected)
    counts = np.array([drawn.count((i, j)) for i in range(8) for j in range(i + 1, 8)])
    assert counts.sum() == 1000
    sigma = np.sqrt(1000 * (1 / 28) * (27 / 28))
    assert np.abs(counts - 1000 / 28).max() < 5 * sigma


@pytest.mark.parametrize("P", range(2, 9))
def test_the_mean_round_of_random_pairs_has_a_known_gap(P):
    pairs = [(i, j) for i in range(P) for j in range(i)]
    rounds = gd.random_pairs(P, 1.0, rounds=40 * len(pairs), seed=0)
    every = {pair: A for (_, A), pair in zip(rounds, pairs_of(rounds))}
    assert len(every) == len(pairs)
    mean = sum(every.values()) / len(pairs)
    assert second_modulus(mean) == pytest.approx(1 - 1 / (P - 1), abs=ALGEBRA)


def test_the_pairs_depend_on_their_own_seed_alone():
    def draw(seed, rounds=50):
        return pairs_of(gd.random_pairs(8, 0.1, rounds, seed=seed))

    first = draw(1)
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    problem = gd.Problem(activation=gd.erf, v_star=np.ones(2), T=np.eye(2))
    x0 = gd.random_start(problem, workers=8, students=2, N=50, seed=5)
    rounds = gd.random_pairs(8, 0.1, 3, seed=1)
    runs = [gd.run(gd.chain(N=50, runs=1, seed=s), problem, x0, rounds) for s in (1, 2)]
    assert not np.array_equal(runs[0].risk, runs[1].risk)
    for t in runs:
        assert pairs_of(t.asked["rounds"]) == first[:3]
    assert draw(1) == first
    assert draw(1, rounds=10) == first[:10]
    assert draw(2) != first
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


def test_random_graphs_are_drawn_again_until_connected():
    # Of the graphs of 3 workers four connect; at probability 1/2 they are equally likely.
    graphs = [gd.erdos_renyi(3, 0.5, seed=seed) > 0 for seed in range(1000)]
    edges = np.array([[g[0, 1], g[0, 2], g[1, 2]] for g in graphs])
    kinds, counts = np.unique(edges, axis=0, return_counts=True)
    assert len(kinds) == 4 and np.all(kinds.sum(1) >= 2)
    assert np.abs(counts - 250).max() < 5 * np.sqrt(1000 * 0.25 * 0.75)
    np.testing.assert_allclose(gd.erdos_renyi(5, 1.0), gd.complete(5), rtol=0, atol=ALGEBRA)
    np.testing.assert_array_equal(gd.erdos_renyi(9, 0.3, seed=4), gd.erdos_renyi(9, 0.3, seed=4))
    np.testing.assert_array_equal(gd.erdos_renyi(9, 0.3), gd.erdos_renyi(9, 0.3, seed=0))
    with pytest.raises(ValueError, match=r"none of 1000 .* 30 workers .* 0\.01 .* ln\(P\) / P = 0"):
        gd.erdos_renyi(30, 0.01)


def test_networkx_graphs_are_taken_as_they_are():
    nx = pytest.importorskip("networkx")
    for graph, A in [
        (nx.cycle_graph(7), gd.ring(7)),
        (nx.path_graph(5), gd.path(5)),
        (nx.star_graph(4), gd.star(5)),
        (nx.complete_graph(4), gd.complete(4)),
        (nx.grid_2d_graph(3, 4, periodic=True), gd.torus(3, 4)),
        (nx.complete_graph(1), gd.complete(1)),
        (nx.Graph([("b", "a"), ("a", "c")]), gd.from_edges(3, [(0, 1), (1, 2)])),
    ]:
        np.testing.assert_allclose(gd.from_networkx(graph), A, rtol=0, atol=ALGEBRA)
    weighted = nx.Graph([("a", "b")])
    weighted["a"]["b"]["weight"] = 0.3
    looped = nx.path_graph(3)
    looped.add_edge(1, 1)
    for graph, words in [
        (nx.DiGraph([(0, 1), (1, 0)]), r"directed.*to_undirected"),
        (weighted, r"edge \('a', 'b'\) has weight 0.3"),
        (looped, r"edge \(1, 1\) is a self-loop"),
        (nx.MultiGraph([(0, 1), (1, 0)]), "given twice"),
        (nx.Graph([(0, 1), (2, 3)]), r"2 parts: \{0, 1\} and \{2, 3\}"),
        (nx.Graph(), "P is a whole number from 1 up, got 0"),
        ([(0, 1)], "expected a networkx graph, got list"),
        (SimpleNamespace(nodes=[0]), "expected a networkx graph, got SimpleNamespace"),
    ]:
        with pytest.raises(ValueError, match=words):
            gd.from_networkx(graph)


def test_lazy_gossip_halves_the_way_to_one():
    for A in (gd.ring(4), gd.star(5), gd.hypercube(3)):
        same(spectrum(gd.lazy(A)), (1 + spectrum(A)) / 2)
    # a ring without own weight never converges at even P; its lazy form does
    alternating = 1.5 * gd.ring(4) - 0.5 * np.eye(4)
    assert gd.spectral_gap(alternating) == pytest.approx(0, abs=ALGEBRA)
    assert gd.spectral_gap(gd.lazy(alternating)) == pytest.approx(0.5, abs=ALGEBRA)


def test_max_degree_weights():
    star = np.eye(5) - 1 / 5 * np.diag([4, 1, 1, 1, 1])
    star[0, 1:] = star[1:, 0] = 1 / 5
    np.testing.assert_allclose(gd.max_degree(gd.star(5)), star, rtol=0, atol=ALGEBRA)
    for A in (gd.ring(6), gd.torus(3, 4), gd.hypercube(3), gd.complete(5), gd.complete(1)):
        np.testing.assert_allclose(gd.max_degree(A), A, rtol=0, atol=ALGEBRA)
    # two degrees: Metropolis weights are larger where both ends have few neighbours
    assert gd.max_degree(gd.from_edges(4, [(0, 1), (1, 2), (1, 3)]))[0, 1] == 1 / 4


@given(P=st.integers(2, 8), seed=st.integers(0, 99), chance=st.floats(0, 1))
def test_a_lost_edge_gives_its_weight_back_to_its_ends(P, seed, chance):
    A = gd.erdos_renyi(P, 0.7, seed=seed)
    edges = np.argwhere(np.triu(A, 1))
    lost = edges[np.random.default_rng(seed).random(len(edges)) < chance]
    lost = [tuple(edge[:: 1 - 2 * (k % 2)]) for k, edge in enumerate(lost)]  # in either direction
    dropped = gd.drop_edges(A, lost)
    np.testing.assert_allclose(dropped.sum(0), 1, rtol=0, atol=ALGEBRA)
    np.testing.assert_allclose(dropped.sum(1), 1, rtol=0, atol=ALGEBRA)
    expected = A.copy()
    for i, j in lost:
        expected[i, i] += A[i, j]
        expected[j, j] += A[i, j]
        expected[i, j] = expected[j, i] = 0
    np.testing.assert_allclose(dropped, expected, rtol=0, atol=ALGEBRA)


def test_a_lost_edge_of_one_direction_keeps_rows_but_not_the_mean():
    A = gd.drop_edges(gd.exponential(5), [(0, 2)])
    assert A[0, 2] == 0
    np.testing.assert_allclose(A.sum(1), 1, rtol=0, atol=ALGEBRA)
    with pytest.warns(UserWarning, match="the mean is not kept"):
        gd.mix(A, weights(5, 2, 2))


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: gd.torus(0, 3), "n is a whole number from 1 up, got 0"),
        (lambda: gd.torus(3, 2.0), "m is a whole number from 1 up, got 2.0"),
        (lambda: gd.ring(0), "P is a whole number from 1 up, got 0"),
        (lambda: gd.hypercube(-1), "d is a whole number from 0 up, got -1"),
        (lambda: gd.exponential(True), "P is a whole number from 1 up, got True"),
        (lambda: gd.erdos_renyi(4, 1.5), "probability is a finite number from 0 to 1, got 1.5"),
        (
            lambda: gd.erdos_renyi(4, "half"),
            "probability is a finite number from 0 to 1, got 'half'",
        ),
        (lambda: gd.erdos_renyi(4, np.nan), "probability is a finite number from 0 to 1, got nan"),
        (lambda: gd.random_pairs(1, 1.0, 3), "P is a whole number from 2 up, got 1"),
        (lambda: gd.random_pairs(4, 1.0, -3), "rounds is a whole number from 0 up, got -3"),
        (lambda: gd.one_peer_exponential(4, 1.0, 2.5), "rounds is a whole number .* got 2.5"),
        (lambda: gd.lazy(np.ones((1, 2)) / 2), r"square A \(P, P\), got shape \(1, 2\)"),
        (lambda: gd.lazy(np.ones((2, 2))), "row 0 of A sums to 2"),
        (lambda: gd.max_degree(gd.exponential(5)), "worker 0 hears worker 2, and 2 does not hear"),
        (lambda: gd.drop_edges(gd.ring(4), [(0, 2)]), r"edge \(0, 2\) cannot be lost"),
        (lambda: gd.drop_edges(gd.ring(4), [(0, 4)]), "from 0 to 3, got 4"),
        (lambda: gd.drop_edges(gd.ring(4), [(0, 1), (1, 0)]), r"edge \(1, 0\) is given twice"),
        (lambda: gd.drop_edges(gd.ring(4), [(1, 1)]), "self-loop"),
        (lambda: gd.drop_edges(gd.ring(4), [0, 1]), "an edge is a pair of workers, got 0"),
    ],
)
def test_refusals_name_what_is_wrong(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_a_matrix_from_a_matrix_leaves_its_argument_alone():
    A = gd.ring(5)
    before = A.copy()
    gd.lazy(A), gd.max_degree(A), gd.drop_edges(A, [(0, 1)])
    np.testing.assert_array_equal(A, before)
