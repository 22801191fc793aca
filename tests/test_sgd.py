"""SGD at finite N: the block solver against the plain loop, and the promises about samples."""

import builtins
import os
import signal
import sys
import threading
import time
from dataclasses import replace

import by_definition
import numpy as np
import pytest
import torch
from anything import problem_of, weights

import gossipdyn as gd
from gossipdyn import engines
from gossipdyn.engines import blocks
from gossipdyn.engines import sgd as simulation

FULL = {"eta": 0.7, "eta_v": 0.4, "sigma": 0.3, "weight_decay": 0.2}
ALGEBRA = 1e-12  # some hundred steps of order 1 in float64
ONE = gd.Problem(activation=gd.erf, v_star=[1.0], T=[[1.0]], sigma=0.1)
TWO = gd.Problem(activation=gd.erf, v_star=[1.0, 1.0], T=np.eye(2))


def tensors(w, dtype=torch.float64):
    return gd.Weights(*(torch.tensor(np.array(a), dtype=dtype) for a in (w.W, w.v, w.W_star)))


def samples(P, steps, batch, N, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((P, steps, batch, N)), rng.standard_normal((P, steps, batch))


def plain(problem, w, X, zeta):
    """One worker after the other, one step after the other."""
    W, v = [], []
    for own_W, own_v, own_X, own_zeta in zip(w.W, w.v, X, zeta):
        for x, z in zip(own_X, own_zeta):
            own_W, own_v = by_definition.sgd_step(problem, own_W, own_v, w.W_star, x, z)
        W.append(own_W)
        v.append(own_v)
    return gd.Weights(np.array(W), np.array(v), w.W_star)


def close(w, expected, tolerance=ALGEBRA):
    for name in ("W", "v"):
        got, want = np.asarray(getattr(w, name)), np.asarray(getattr(expected, name))
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * abs(want).max())


# one block, given samples


@pytest.mark.parametrize("options", [{"eta": 0.5}, FULL], ids=["plain", "full"])
@pytest.mark.parametrize("activation", [gd.erf, gd.linear])
@pytest.mark.parametrize("P, K, M, batch, N", [(1, 1, 1, 1, 5), (3, 2, 3, 1, 12), (2, 4, 1, 3, 11)])
def test_a_block_is_the_plain_loop(P, K, M, batch, N, activation, options):
    w = weights(P, K, M, N)
    problem = problem_of(w, activation, batch=batch, **options)
    X, zeta = samples(P, 24, batch, N)
    expected = plain(problem, w, X, zeta)
    X, zeta = torch.tensor(X), torch.tensor(zeta)
    close(blocks.steps(problem, tensors(w), X, zeta), expected)
    single = blocks.steps(problem, tensors(w, torch.float32), X.float(), zeta.float())
    assert single.W.dtype == torch.float32
    # float32 rounds at 6e-8; 24 steps of sums, which errors of earlier steps shift
    close(single, expected, 1e-5)


def test_one_step_by_hand():
    """lambda = 0 and rho = 1, so that the teacher is ahead by erf(1 / sqrt 2)."""
    w = gd.Weights(W=[[[1.0, 0, 1, 0]]], v=[[1.0]], W_star=[[0.0, 2, 0, 0]])
    problem = gd.Problem(activation=gd.erf, v_star=[1.0], T=[[1.0]], eta=0.5)
    X = torch.tensor([[[[1.0, 1, -1, 2]]]], dtype=torch.float64)
    moved = blocks.steps(problem, tensors(w), X, torch.zeros(1, 1, 1, dtype=torch.float64))
    change = (moved.W.numpy() - w.W)[0, 0]
    size = 0.5 / 2 * np.sqrt(2 / np.pi) * 0.6826894921370859
    np.testing.assert_allclose(change, size * np.array([1, 1, -1, 2]), rtol=0, atol=1e-15)
    assert round(float(size), 6) == 0.136177


def test_averaging_after_every_step_is_a_batch():
    P, K, N, steps = 4, 2, 20, 200
    start = gd.mix(np.ones((P, 1)), weights(1, K, 2, N))
    problem = problem_of(start, **FULL)
    X, zeta = (torch.tensor(a) for a in samples(P, steps, 1, N))
    w = tensors(start)
    for i in range(steps):
        w = blocks.steps(problem, w, X[:, i : i + 1], zeta[:, i : i + 1])
        w = gd.mix(gd.complete(P), w)
    student = tensors(gd.mix(np.ones((1, P)) / P, start))
    as_batch = X.permute(2, 1, 0, 3), zeta.permute(2, 1, 0)
    student = blocks.steps(replace(problem, batch=P), student, *as_batch)
    for p in range(P):
        np.testing.assert_allclose(w.W[p], student.W[0], rtol=0, atol=ALGEBRA)
        np.testing.assert_allclose(w.v[p], student.v[0], rtol=0, atol=ALGEBRA)


def test_guesses_that_overflow_do_no_harm():
    """A quadratic unit squares wrong guesses of late steps in every sweep, up to infinity."""
    w = weights(1, 1, 1, 10)
    problem = problem_of(w, gd.quadratic, eta=0.8)
    X, zeta = (torch.tensor(a) for a in samples(1, 200, 1, 10))
    expected = tensors(w)
    for i in range(200):
        expected = blocks.steps(problem, expected, X[:, i : i + 1], zeta[:, i : i + 1])
    assert torch.isfinite(expected.W).all()
    close(blocks.steps(problem, tensors(w), X, zeta), expected)


# the engine


def stream(seed, r, p, steps, batch, N):
    """What worker p of run r sees, as the layout of the draws says: X (steps, batch, N), zeta."""
    base = int(np.random.SeedSequence(seed).generate_state(1)[0])
    generator = torch.Generator().manual_seed((base + p * 2**20 + r) % 2**32)
    draw = max([d for d in (1, 2, 4, 8, 16, 32, 64) if d * batch * N <= 2**14], default=1)
    X, zeta = [], []
    for _ in range(-(-steps // draw)):
        numbers = torch.empty(draw * batch * (N + 1), dtype=torch.float64)
        numbers = numbers.normal_(generator=generator).numpy()
        X.append(numbers[: draw * batch * N].reshape(draw, batch, N))
        zeta.append(numbers[draw * batch * N :].reshape(draw, batch))
    return np.concatenate(X)[:steps], np.concatenate(zeta)[:steps]


@pytest.mark.parametrize("N, batch, runs", [(9, 2, 3), (300, 2, 3), (300, 2, 1), (20000, 1, 1)])
def test_a_run_is_the_plain_loop_on_its_own_draws(N, batch, runs):
    """Whether blocks hold many draws or draws many blocks, and wherever rounds cut them."""
    P, r, lengths = 2, runs - 1, (25, 39, 17) if N < 10000 else (2, 1, 2)
    w = weights(P, 2, 1, N, runs=(runs,))
    problem = problem_of(w, batch=batch, **FULL)
    turned = [np.roll(teacher, i, -1) for i, teacher in enumerate(w.W_star)]
    w = replace(w, W_star=turned)  # every run has its own teacher, with the same overlaps
    A = np.array([[0.7, 0.3], [0.4, 0.6]])
    schedule = [(lengths[0] / N, A), (lengths[1] / N, None), (lengths[2] / N, A)]
    record = np.array([0, 1, sum(lengths) // 2, sum(lengths)]) / N
    engine = gd.sgd(N=N, runs=runs, seed=3, dtype="float64")
    with pytest.warns(UserWarning, match="columns do not sum to 1"):
        t = gd.run(engine, problem, w, schedule, record=record)
    streams = [stream(3, r, p, sum(lengths), batch, N) for p in range(P)]
    X, zeta = (np.stack(arrays) for arrays in zip(*streams))
    own = gd.Weights(w.W[r], w.v[r], w.W_star[r])
    first, second, third = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1])
    for part, mixes in ((first, True), (second, False), (third, True)):
        own = plain(problem, own, X[:, part], zeta[:, part])
        if mixes:
            W, v = (by_definition.gossip_round(A, a) for a in (own.W, own.v))
            own = gd.Weights(W, v, own.W_star)
    close(gd.Weights(t.weights.W[r], t.weights.v[r], t.weights.W_star[r]), own)


def go(runs=5, rounds=1.0, N=100, problem=TWO, x0=None, **options):
    special = options.pop("engine", {})
    engine = gd.sgd(**{"N": N, "runs": runs, "seed": 7, "dtype": "float64"} | special)
    x0 = gd.random_start(TWO, workers=2, students=2, N=N, seed=1) if x0 is None else x0
    return gd.run(engine, problem, x0, rounds, **options)


def test_looking_at_a_run_changes_no_bit_of_it():
    schedule = [(0.37, gd.complete(2)), (0.63, None)]
    bare = go(rounds=schedule)
    watched = go(rounds=schedule, record=np.linspace(0, 1, 34), keep=("Q", "risk"))
    assert np.array_equal(watched.weights.W, bare.weights.W)
    common = [int(np.flatnonzero(watched.alpha == alpha)[0]) for alpha in (0, 0.37, 1)]
    assert np.array_equal(watched.Q[:, common], bare.Q[:, [0, 1, 3]])


def test_more_runs_change_no_bit_of_the_first():
    assert np.array_equal(go(runs=3).Q, go(runs=5).Q[:3])
    # few learners take longer blocks: the same samples, rounded differently
    np.testing.assert_allclose(go(runs=1).Q, go(runs=5).Q[:1], rtol=0, atol=100 * ALGEBRA)


def test_the_schedule_does_not_change_the_samples():
    still = [(0.11, np.eye(2)), (0.5, None), (0.01, np.eye(2)), (0.38, None)]
    np.testing.assert_allclose(go(rounds=still).Q[:, -1], go().Q[:, -1], rtol=0, atol=100 * ALGEBRA)


def test_the_label_noise_does_not_change_the_samples():
    """A student that learns nothing but noise would move otherwise: compare first steps."""
    clean, noisy = (go(rounds=0.01, problem=replace(TWO, sigma=s)).weights.W for s in (0, 1e-9))
    assert 0 < abs(clean - noisy).max() < 1e-8


def test_threads_change_no_bit_and_the_setting_of_torch_stays():
    """Not even where a round leaves a block of one sample to a worker alone in its thread."""
    usual = torch.get_num_threads()
    seen = []
    try:
        many = []
        for threads in (1, 14):
            torch.set_num_threads(threads)
            many.append(go(7, [(0.001, None), (0.02, None)], N=1000).Q)
            other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            other.start()
            other.join()
            seen.append(torch.get_num_threads())
        assert np.array_equal(*many)
        assert seen == [1, 1, 14, 14]
    finally:
        torch.set_num_threads(usual)


def test_workers_of_torch_use_one_thread_each():
    usual = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with simulation._pool(2) as pool:
            assert list(pool.map(lambda _: torch.get_num_threads(), range(8))) == [1] * 8
    finally:
        torch.set_num_threads(usual)


def test_nothing_touches_global_random_state():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    go(runs=2, rounds=0.1)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


def test_streams_are_distinct_and_uncorrelated_and_normal():
    problem = replace(ONE, batch=1)
    x0 = gd.random_start(problem, workers=8, students=1, N=50, seed=1)
    engine = gd.sgd(N=50, runs=256, seed=0)
    w, source = engine.begin(problem, x0, 0.0, [])
    assert len({state.numpy().tobytes() for state in source.states}) == 256 * 8
    L, steps = 8 * 6, 128  # the first runs
    blocks = simulation._draws(
        problem, source, list(source.states), slice(0, L), 50, w.W, 0, steps, steps
    )
    X = torch.cat([torch.cat([x, z[..., None]], 2) for x, z in blocks], 1)
    X = X.double().reshape(L, -1).numpy()
    n = X.shape[1]
    pairs = (X @ X.T / np.sqrt(n))[np.triu_indices(L, 1)]
    halves = np.einsum("ln,ln->l", X[:, : n // 2], X[:, n // 2 :]) / np.sqrt(n / 2)
    assert abs(pairs).max() < 5 and abs(halves).max() < 5  # standard normal, 1128 and 48 of them
    assert abs(pairs.std() - 1) < 5 / np.sqrt(2 * pairs.size)
    total = X.size
    assert abs(X.mean()) < 5 / np.sqrt(total)
    assert abs((X**2).mean() - 1) < 5 * np.sqrt(2 / total)
    assert abs((X**4).mean() - 3) < 5 * np.sqrt(96 / total)


def test_another_seed_is_another_run():
    assert not np.array_equal(go().Q, go(engine={"seed": 8}).Q)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("N, runs", [(33, 1), (100, 5)])
def test_equal_units_stay_equal(N, runs, dtype):
    """Bit by bit, through training and mixing, at odd sizes too."""
    x = gd.random_start(TWO, workers=4, students=3, N=N, seed=1)
    twins = [0, 1, 0]
    x = gd.Overlaps(Q=x.Q[:, twins][..., twins], R=x.R[:, twins], v=x.v)
    problem = replace(TWO, eta_v=0.3, sigma=0.1)
    engine = {"dtype": dtype, "seed": 0}
    t = go(runs, [(3 / N, gd.ring(4)), (40 / N, gd.ring(4))] * 5, N, problem, x, engine=engine)
    assert np.array_equal(t.weights.W[:, :, 0], t.weights.W[:, :, 2])
    assert np.array_equal(t.weights.v[:, :, 0], t.weights.v[:, :, 2])
    assert not np.array_equal(t.weights.W[:, :, 0], t.weights.W[:, :, 1])


@pytest.mark.slow
def test_complete_averaging_after_every_step_has_the_law_of_a_batch():
    N, runs, steps = 20, 1500, 40
    problem = replace(TWO, eta=0.8, eta_v=0.3, sigma=0.3)
    one = gd.random_start(problem, workers=1, students=2, N=N, seed=5)
    start = gd.mix(np.ones((2, 1)), one)
    schedule = [(1 / N, gd.complete(2))] * steps
    t = go(runs, schedule, N, problem, start, ends=False, engine={"seed": 1, "dtype": "float32"})

    def gap(batch):
        """Largest difference of means and of variances, in standard errors."""
        student = go(
            runs, steps / N, N, replace(problem, batch=batch), one, engine={"seed": 2}
        ).state(-1)
        pairs = [
            (t.Q[:, -1, 0, :, 0].reshape(runs, -1), student.Q[:, 0, :, 0].reshape(runs, -1)),
            (t.R[:, -1, 0].reshape(runs, -1), student.R[:, 0].reshape(runs, -1)),
            (t.v[:, -1, 0], student.v[:, 0]),
        ]
        worst = 0
        for a, b in pairs:
            a, b = ((x - b.mean(0), (x - x.mean(0)) ** 2) for x in (a, b))
            for x, y in zip(a, b):
                error = np.sqrt((x.var(0) + y.var(0)) / runs)
                worst = max(worst, (abs(x.mean(0) - y.mean(0)) / error).max())
        return worst

    assert gap(2) < 5
    assert gap(1) > 10  # the test would see it


# starts, records and refusals


def test_starts_are_exact_singular_ones_too():
    x0 = gd.mix(np.ones((3, 1)), gd.random_start(TWO, workers=1, students=2, N=30, runs=4))
    t = go(4, [], 30, x0=x0)
    np.testing.assert_allclose(t.state(0).Q, x0.Q, rtol=0, atol=ALGEBRA)
    np.testing.assert_allclose(t.state(0).R, x0.R, rtol=0, atol=ALGEBRA)
    w = gd.lift(TWO, x0, 30)
    np.testing.assert_allclose(go(4, [], 30, x0=w).weights.W, w.W, rtol=0, atol=0)


def test_overlaps_of_float32_weights_are_taken_in_float64():
    t = go(engine={"dtype": "float32"})
    assert t.weights.W.dtype == np.float32 and go().weights.W.dtype == np.float64
    w = gd.Weights(*(np.float64(a) for a in (t.weights.W, t.weights.v, t.weights.W_star)))
    np.testing.assert_allclose(gd.overlaps(w).Q, t.Q[:, -1], rtol=0, atol=ALGEBRA)


def test_a_run_goes_on_from_the_weights_of_another():
    first = go(engine={"dtype": "float32"})
    second = go(x0=first.weights, start=1.0, engine={"seed": 8, "dtype": "float32"})
    assert np.array_equal(second.state(0).Q, first.state(-1).Q)
    assert second.alpha.tolist() == [1, 2]
    assert not np.array_equal(second.state(-1).Q, first.state(-1).Q)


def test_a_run_comes_again_from_its_record_alone():
    t = go(rounds=[(0.5, gd.complete(2))] * 2, record=[0.1], engine={"dtype": "float32"})
    again = gd.run(getattr(gd, t.engine["name"])(**t.engine["options"]), t.problem, **t.asked)
    assert again == t


@pytest.mark.parametrize("stop", ["ctrl-c", "divergence"])
def test_a_run_that_stops_early_keeps_the_weights_of_its_last_state(stop):
    def stopping(state):
        if stop == "ctrl-c":
            raise KeyboardInterrupt
        return replace(state, W=state.W * 1e20)

    x0 = gd.random_start(TWO, workers=2, students=2, N=20, seed=1)
    engine, rounds = gd.sgd(N=20, runs=3, seed=2), [(50.0, stopping), (50.0, None)]
    try:
        t = gd.run(engine, TWO, x0, rounds, ends=False)
    except gd.Diverged as diverged:
        t = diverged.trajectory
    assert not t.complete and t.alpha.tolist() == [0, 50]
    x = gd.overlaps(t.weights)
    np.testing.assert_allclose(x.Q, t.state(-1).Q, rtol=1e-12)
    on = gd.run(gd.sgd(N=20, runs=3, seed=3), TWO, t.weights, 1.0, start=50.0)
    np.testing.assert_allclose(on.risk[:, 0], t.risk[:, -1], rtol=1e-5)


def test_ctrl_c_stops_the_threads_too():
    """At N = 10^5 the next look at the state is half a minute away."""
    x0 = gd.random_start(ONE, workers=1, students=1, N=10**5)
    begun, impatience = (
        time.monotonic(),
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)),
    )
    impatience.start()
    try:
        t = gd.run(gd.sgd(N=10**5, runs=1), ONE, x0, 10.0)
    finally:
        impatience.cancel()
    assert not t.complete and t.alpha.tolist() == [0]
    np.testing.assert_allclose(gd.overlaps(t.weights).Q, t.Q[:, 0], rtol=1e-5)
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    "options, words",
    [
        ({"N": 0}, "from 1 up, got 0"),
        ({"N": 99.5}, "from 1 up, got 99.5"),
        ({"runs": 0}, "runs is a whole number from 1 up, got 0"),
        ({"runs": True}, "runs is a whole number from 1 up, got True"),
        ({"runs": 2**20 + 1}, "at most 1048576 runs at once, got runs=1048577"),
        ({"seed": -1}, "seed is a whole number from 0 up, got -1"),
        ({"dtype": "float16"}, "one of float32, float64, got 'float16'"),
        ({"dtype": torch.float32}, "one of float32, float64, got torch.float32"),
        ({"device": "gpu"}, "device 'gpu' is not there for float32"),
        ({"device": "meta"}, "device 'meta' is not there for float32"),
        ({"device": None}, "device 'None' is not there for float32"),
    ],
)
def test_an_engine_that_cannot_be_is_refused(options, words):
    with pytest.raises(ValueError) as refusal:
        gd.sgd(**options)
    assert words in str(refusal.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_named():
    with pytest.raises(ValueError, match="device 'cuda' is not there"):
        gd.sgd(device="cuda")


@pytest.mark.parametrize(
    "case, values",
    [
        ("runs", ["(3,)", "runs=5"]),
        ("room", ["P*K + M = 6", "N=5"]),
        ("inputs", ["30 inputs", "N=100"]),
        ("teacher", ["W_star has 1 at", "the problem's T 2"]),
    ],
)
def test_a_start_that_does_not_fit_is_refused(case, values):
    x0 = gd.random_start(TWO, workers=2, students=2, N=30)
    arguments = {
        "runs": {"x0": gd.random_start(TWO, workers=2, students=2, N=30, runs=3)},
        "room": {"N": 5, "x0": x0},
        "inputs": {"x0": gd.lift(TWO, x0, 30)},
        "teacher": {"x0": gd.lift(TWO, x0, 100), "problem": replace(TWO, T=2 * np.eye(2))},
    }[case]
    with pytest.raises(ValueError) as refusal:
        go(**arguments)
    for value in values:
        assert value in str(refusal.value)


def test_more_workers_than_seeds_tell_apart_are_refused():
    w = gd.Weights(np.zeros((4097, 1, 2)), np.ones((4097, 1)), np.ones((1, 2)))
    with pytest.raises(ValueError, match="at most 4096 workers, x0 has 4097"):
        gd.sgd(N=2).begin(ONE, w, 0.0, [])


def test_without_torch_the_refusal_says_how_to_install_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "gossipdyn.engines.sgd")
    monkeypatch.delattr(engines, "sgd")
    real = builtins.__import__

    def without_torch(name, *arguments, **options):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    with pytest.raises(AttributeError, match="needs torch .*: pip install torch, or in a clone"):
        gd.sgd(N=10)


# other devices


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_makes_the_same_steps_and_has_the_same_law():
    w = weights(3, 2, 2, 40)
    problem = problem_of(w, batch=2, **FULL)
    X, zeta = (torch.tensor(a) for a in samples(3, 50, 2, 40))
    here = blocks.steps(problem, tensors(w), X, zeta)
    there = gd.Weights(*(a.cuda() for a in (tensors(w).W, tensors(w).v, tensors(w).W_star)))
    there = blocks.steps(problem, there, X.cuda(), zeta.cuda())
    close(gd.Weights(*(a.cpu() for a in (there.W, there.v, there.W_star))), here)
    schedule, risks = [(0.7, gd.complete(2)), (0.83, None)], []
    for device in ("cpu", "cuda"):
        t = go(2000, schedule, engine={"device": device, "dtype": "float32"})
        risks.append(t.risk[:, -1, 0])
    error = np.sqrt(sum(r.var() for r in risks) / 2000)
    assert abs(risks[0].mean() - risks[1].mean()) < 5 * error
    prefix = go(3, engine={"device": "cuda"}).Q, go(7, engine={"device": "cuda"}).Q[:3]
    np.testing.assert_allclose(*prefix, rtol=0, atol=100 * ALGEBRA)
