"""Rounds on rows: any real matrix, and rows beside the workers that only rounds change."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gossipdyn as gd

ENGINES = {
    "flow": gd.flow(),
    "chain": gd.chain(N=40, runs=3, seed=1),
    "sgd": gd.sgd(N=40, runs=3, seed=1, dtype="float64"),
}
I2 = np.eye(2)
PROBLEM = gd.Problem(gd.erf, [1, 1], I2, eta=0.5, sigma=0.3)
START = gd.random_start(PROBLEM, workers=2, students=2, N=40, seed=3)


def outer(P, nu, mu, nesterov):
    """DiLoCo's round on the workers, their anchor and its momentum, all as rows.

    Delta = anchor - mean; m' = mu m + Delta; anchor' = anchor - nu (Delta + mu m'), or, heavy ball,
    anchor - nu m'; every worker goes on from anchor'.
    """
    delta = np.append(-np.full(P, 1 / P), [1.0, 0.0])
    momentum = mu * np.eye(P + 2)[-1] + delta
    anchor = np.eye(P + 2)[-2] - nu * (delta + mu * momentum if nesterov else momentum)
    B = np.stack([*[anchor] * P, anchor, momentum])
    return gd.rows(B, {"anchor": np.full((1, P), 1 / P), "momentum": np.zeros((1, P))})


def from_one(P, Q, R):
    """P workers with the same weights."""
    return gd.mix(np.ones((P, 1)), gd.Overlaps.single(Q=Q, R=R, v=[1, 1]))


A_START = np.diag([0.2, 0.3]), np.diag([1e-3, 5e-4])
B_START = [[0.5, 0.1], [0.1, 0.4]], [[0.3, 0.1], [0.05, 0.2]]
C_START = np.diag([0.2, 0.3]), np.diag([0.15, 0.1])


# the square


@given(seed=st.integers(0, 99), P=st.integers(1, 3), K=st.integers(1, 3))
def test_any_matrix_on_rows_makes_the_square_commute(seed, P, K):
    rng = np.random.default_rng(seed)
    w = gd.Weights(rng.normal(size=(P, K, 9)), rng.normal(size=(P, K)), rng.normal(size=(2, 9)))
    round_ = gd.rows(rng.normal(size=(P, P)))
    one, other = gd.overlaps(round_(w)), round_(gd.overlaps(w))
    for name in ("Q", "R", "v"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=0, atol=1e-11)


# rows beside the workers


@pytest.mark.parametrize("name", ENGINES)
def test_rows_that_nobody_uses_change_no_run(name):
    """They get no samples and shift no stream: the workers move as if they were alone."""
    problem = replace(PROBLEM, eta_v=0.2, weight_decay=0.1, batch=2)
    mean = gd.complete(2)
    beside = gd.rows(
        np.block([[mean, np.zeros((2, 3))], [np.ones((3, 2)), np.ones((3, 3)) / 7]]),
        {"one": np.ones((1, 2)), "two": I2},
    )
    record = [0.3, 1.2, 1.5]
    alone = gd.run(ENGINES[name], problem, START, [(0.5, mean)] * 4, record)
    t = gd.run(ENGINES[name], problem, START, [(0.5, beside)] * 4, record)
    assert np.array_equal(t.alpha, alone.alpha) and t.Q.shape == alone.Q.shape
    for array in ("Q", "R", "v", "risk", "mean_risk"):
        # the flow to its tolerance, the chain to the rounding of other coordinates
        np.testing.assert_allclose(getattr(t, array), getattr(alone, array), rtol=0, atol=1e-7)
    if name == "sgd":
        assert np.array_equal(t.Q, alone.Q) and t.weights == alone.weights


@pytest.mark.parametrize("name", ENGINES)
def test_a_kept_copy_is_what_the_worker_was(name):
    """A round that swaps each worker with its copy of a round ago takes it back in time."""
    keep = np.block([[I2, 0 * I2], [I2, 0 * I2]])  # the copy becomes the worker of now
    back = np.block([[0 * I2, I2], [I2, 0 * I2]])  # and they change places
    copies = {"copy": I2}
    rounds = [(0.5, gd.rows(keep, copies)), (0.7, gd.rows(back, copies)), (0.0, None)]
    t = gd.run(ENGINES[name], PROBLEM, START, rounds)
    then, now = t.at(0.5), t.state(-1)
    for array in ("Q", "R", "v"):
        a, b = getattr(then, array), getattr(now, array)
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 if name == "chain" else 1e-14)


@pytest.mark.slow
def test_a_copy_takes_its_overlaps_with_the_workers_along():
    """Half of now and half of a round ago: exact in SGD, so on overlaps with all cross terms."""
    half = np.block([[I2 / 2, I2 / 2], [I2, 0 * I2]])
    rounds = [(0.5, gd.rows(half, {"copy": I2}))] * 3
    start = gd.lift(PROBLEM, START, 400, seed=2)
    sgd = gd.run(gd.sgd(400, runs=200, seed=5), PROBLEM, start, rounds)
    chain = gd.run(gd.chain(400, runs=2000, seed=5), PROBLEM, START, rounds)
    for array in ("Q", "R", "risk"):
        gap = sgd.mean(array)[-1] - chain.mean(array)[-1]
        error = np.hypot(sgd.sem(array)[-1], chain.sem(array)[-1])
        assert np.all(np.abs(gap) < 5 * error + 1e-6)
    flow = gd.run(gd.flow(), PROBLEM, START, rounds)
    gap = chain.mean("risk")[-1] - flow.risk[0, -1]
    assert np.all(np.abs(gap) < 5 * chain.sem("risk")[-1] + 5 / 400)  # the bias is O(1 / N)


def test_matched_gossip_leaves_rows_beside_it_where_they_are():
    swapped = gd.perfect(PROBLEM, orders=[(0, 1), (1, 0)])
    keep = gd.rows(np.block([[I2, 0 * I2], [I2, 0 * I2]]), {"copy": I2})
    back = gd.rows(np.block([[0 * I2, I2], [0 * I2, I2]]), {"copy": I2})
    rounds = [(0.0, keep), (0.0, gd.matched(gd.complete(2))), (0.0, back)]
    t = gd.run(gd.flow(), replace(PROBLEM, sigma=0.0), swapped, rounds)
    assert t.risk.max() < 1e-12
    np.testing.assert_allclose(t.state(-1).R[0], swapped.R, atol=1e-12)
    np.testing.assert_allclose(t.state(2).Q[0], t.state(2).Q[0][:, [1, 0]][:, :, :, [1, 0]])


def test_a_checkpoint_holds_the_rows_beside_the_workers(tmp_path):
    rounds = [(0.5, outer(2, 0.7, 0.9, True))] * 4
    for name, engine in ENGINES.items():
        whole = gd.run(engine, PROBLEM, START, rounds)
        file = tmp_path / name
        kept = gd.run(engine, PROBLEM, START, rounds, checkpoint=file)
        again = gd.run(engine, PROBLEM, START, rounds, checkpoint=file)
        assert np.array_equal(kept.Q, again.Q)
        np.testing.assert_allclose(kept.risk, whole.risk, rtol=1e-6)


# outer optimisers: known answers, and the three engines


def test_an_outer_step_overshoots_as_is_known():
    t = gd.run(gd.flow(), PROBLEM, from_one(4, *B_START), [(1.0, outer(4, 0.7, 0.9, True))] * 5)
    known = [0.12107770, 0.03833171, 0.04322026, 0.06406763, 0.07448666]
    np.testing.assert_allclose(t.risk[0, t.after_mixing, 0], known, rtol=1e-6)


@pytest.mark.slow
def test_heavy_ball_and_plain_outer_steps_have_their_known_risks():
    clean = replace(PROBLEM, sigma=0.0)
    start = from_one(4, *A_START)
    plain = gd.run(gd.flow(), clean, start, [(5.0, outer(4, 1.0, 0.0, True))] * 60)
    np.testing.assert_allclose(
        [plain.risk[0, plain.alpha == a, 0][-1] for a in (200, 300)],
        [0.0115734869, 0.000817583139],
        rtol=1e-6,
    )
    heavy = gd.run(gd.flow(), clean, start, [(5.0, outer(4, 1.0, 0.7, False))] * 26)
    np.testing.assert_allclose(
        [heavy.risk[0, heavy.alpha == a, 0][-1] for a in (50, 100, 130)],
        [0.022251652, 0.0133978393, 0.00585859129],
        rtol=1e-6,
    )


@pytest.mark.slow
def test_an_outer_step_is_the_same_in_law_in_sgd():
    clean, start = replace(PROBLEM, sigma=0.0), from_one(4, *C_START)
    rounds = [(5.0, outer(4, 1.0, 0.7, True))] * 8
    flow = gd.run(gd.flow(), clean, start, rounds)
    np.testing.assert_allclose(flow.risk[0, -1, 0], 0.00355338, rtol=1e-5)
    chain = gd.run(gd.chain(40, runs=512, seed=4), clean, start, rounds[:2], ends=False)
    sgd = gd.run(gd.sgd(40, runs=512, seed=4), clean, start, rounds[:2], ends=False)
    for array in ("Q", "R", "risk"):
        gap = chain.mean(array)[-1] - sgd.mean(array)[-1]
        assert np.all(np.abs(gap) < 5 * np.hypot(chain.sem(array)[-1], sgd.sem(array)[-1]))
    long = gd.run(gd.sgd(400, runs=64, seed=4), clean, start, rounds, ends=False)
    # the bias at N = 400 is below 1e-4
    assert abs(long.mean("risk")[-1, 0] - 0.00355338) < 5 * long.sem("risk")[-1, 0] + 1e-4


# refusals


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: gd.rows(np.ones((2, 3))), ("square", "(2, 3)")),
        (lambda: gd.rows(I2, {"a": np.ones((1, 2))}), ("'a'", "(1, 2)")),
        (lambda: gd.rows(I2, [1]), ("dict", "[1]")),
        (lambda: gd.rows(I2)(from_one(3, *A_START)), ("2 workers", "has 3")),
        (lambda: outer(2, 1, 0, True)(START), ("anchor, momentum", "only a run")),
        (
            lambda: gd.run(gd.flow(), PROBLEM, START, [(1.0, outer(3, 1, 0, True))]),
            ("3 workers", "x0 has 2"),
        ),
        (
            lambda: gd.run(
                gd.flow(), PROBLEM, START,
                [(0, gd.rows(np.eye(3), {"a": np.zeros((1, 2))})),
                 (0, gd.rows(np.eye(3), {"a": np.ones((1, 2))}))],
            ),
            ("'a'", "[[1. 1.]]", "[[0. 0.]]"),
        ),
        (
            lambda: gd.run(
                gd.flow(), PROBLEM, START,
                [(0, gd.rows(np.eye(3), {"a": np.zeros((1, 2))})), (0, lambda x: x)],
            ),
            ("round 1", "matrix(state)"),
        ),
        (
            lambda: gd.run(gd.chain(6), PROBLEM, START, [(1.0, outer(2, 1, 0, True))]),
            ("N >= P*K + M = 10", "N=6"),
        ),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_are_refused_in_words(call, words):
    with pytest.raises(ValueError) as refusal:
        call()
    for word in words:
        assert word in str(refusal.value)
