"""The one loop and the one clock: which times stand where, what a stop leaves, what files keep."""

import gc
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
from dataclasses import replace
from textwrap import dedent

import numpy as np
import pytest
from anything import problem_and_overlaps, problem_of, weights

import gossipdyn as gd

PROBLEM, X = problem_and_overlaps(2, 2, 2, eta=0.3)
A, B = gd.complete(2), np.array([[0.7, 0.3], [0.3, 0.7]])
CHAIN = {"N": 50, "runs": 3, "seed": 1}


def engines():
    return [gd.flow(), gd.chain(**CHAIN)]


def clock(t):
    """Times, with a star where the state is one after mixing."""
    return [f"{alpha:g}{'*' * bool(after)}" for alpha, after in zip(t.alpha, t.after_mixing)]


# the clock


@pytest.mark.parametrize("engine", engines(), ids=lambda e: e.name)
@pytest.mark.parametrize(
    "rounds, options, times",
    [
        (3.0, {}, "0 3"),
        ([], {}, "0"),
        ([(0, None)], {}, "0"),
        ([(2, A), (2, A)], {}, "0 2 2* 4 4*"),
        ([(2, A), (2, None)], {}, "0 2 2* 4"),
        ([(2, None), (2, None)], {}, "0 2 4"),
        ([(0, A), (2, B)], {}, "0 0* 2 2*"),
        ([(2, A), (0, B), (2, None)], {}, "0 2 2* 2* 4"),
        ([(2, A), (2, A)], {"record": [1, 2, 3]}, "0 1 2 2* 3 4 4*"),
        ([(2, A), (2, A)], {"record": [1, 3], "ends": False}, "0 1 3 4 4*"),
        ([(2, A), (2, A)], {"record": [1, 2], "ends": False}, "0 1 2 2* 4 4*"),
        ([(2, A), (2, A)], {"record": [0, 0, 1, 1, 4]}, "0 1 2 2* 4 4*"),
        ([(2, A), (0, B)], {"record": [1], "ends": False}, "0 1 2 2* 2*"),
        ([(2, A), (0, B), (2, A)], {"ends": False}, "0 4 4*"),
        ([(2, A)], {"start": 10.0, "record": [11]}, "10 11 12 12*"),
        ([(2, A)], {"start": -1.0, "record": [0]}, "-1 0 1 1*"),
    ],
)
def test_the_times_of_a_run(engine, rounds, options, times):
    t = gd.run(engine, PROBLEM, X, rounds, **options)
    assert clock(t) == times.split()
    runs = t.Q.shape[0]
    assert t.Q.shape == (runs, len(t.alpha), 2, 2, 2, 2) and t.R.shape == t.Q.shape[:4] + (2,)
    assert t.v.shape == t.Q.shape[:4] and t.risk.shape == t.Q.shape[:3]
    assert t.mean_risk.shape == t.Q.shape[:2]
    assert t.complete


@pytest.mark.parametrize("engine", engines(), ids=lambda e: e.name)
def test_the_state_after_mixing_is_the_mixed_state(engine):
    t = gd.run(engine, PROBLEM, X, [(1, A), (0, B), (2, B)])
    for i in np.flatnonzero(t.after_mixing):
        matrix = A if t.alpha[i] == 1 and not t.after_mixing[: i - 1].any() else B
        mixed = gd.mix(matrix, t.state(i - 1))
        for name in "QRv":
            np.testing.assert_allclose(
                getattr(t.state(i), name), getattr(mixed, name), rtol=0, atol=1e-12
            )


def test_the_flow_records_the_floats_that_were_asked():
    asked = [0.1, 1 / 3, 0.7, 1.0000000001, 2**0.5]
    t = gd.run(gd.flow(), PROBLEM, X, [(1.0, A), (1.0, None)], record=asked)
    # 1.0000000001 is the end of the first round, to within 1e-9: one time, as it was asked
    assert t.alpha.tolist() == [0, 0.1, 1 / 3, 0.7, 1.0000000001, 1.0000000001, 2**0.5, 2.0]


def test_finite_engines_record_the_nearest_step_and_say_which():
    t = gd.run(gd.chain(**CHAIN), PROBLEM, X, [(1.0, A)], record=[0.001, 0.029, 0.031, 0.987])
    assert t.alpha.tolist() == [0, 1 / 50, 2 / 50, 49 / 50, 1, 1]
    t = gd.run(gd.chain(**CHAIN), PROBLEM, X, [(0.02, None)], start=0.005, record=[0.024])
    assert t.alpha.tolist() == [0.005, 0.025]


def test_times_that_agree_to_1e_9_are_one_time():
    close = [0.5, 0.5 + 5e-10, 1 - 5e-10, 1 + 5e-10]
    for engine in engines():
        t = gd.run(engine, PROBLEM, X, [(1.0, A), (1.0, None)], record=close)
        assert [round(alpha, 6) for alpha in t.alpha] == [0, 0.5, 1, 1, 2]


def test_sums_of_periods_do_not_drift_away_from_the_steps():
    """0.1 is no binary fraction; ten of them are 5 x 10 steps all the same."""
    t = gd.run(gd.chain(**CHAIN), PROBLEM, X, [(0.1, None)] * 10)
    assert t.alpha.tolist() == [5 * i / 50 for i in range(11)]


@pytest.mark.parametrize("engine", engines(), ids=lambda e: e.name)
def test_what_is_recorded_does_not_change_what_happens(engine):
    whole = gd.run(engine, PROBLEM, X, [(1.0, A), (1.0, B)], record=np.linspace(0, 2, 26))
    ends = gd.run(engine, PROBLEM, X, [(1.0, A), (1.0, B)], ends=False, keep="Q")
    tolerance = 1e-6 if engine.name == "flow" else 0
    np.testing.assert_allclose(whole.Q[:, -1], ends.Q[:, -1], rtol=0, atol=tolerance)


def test_a_second_run_continues_the_first():
    engine = gd.flow()
    first = gd.run(engine, PROBLEM, X, [(1.0, A)])
    second = gd.run(engine, PROBLEM, first.state(-1), [(1.0, B)], start=first.alpha[-1])
    whole = gd.run(engine, PROBLEM, X, [(1.0, A), (1.0, B)])
    assert second.alpha.tolist() == [1, 2, 2]
    np.testing.assert_allclose(second.Q[:, -1], whole.Q[:, -1], rtol=0, atol=1e-7)


def test_an_engine_begins_again_from_its_seed():
    engine = gd.chain(**CHAIN)
    schedule = [(1.0, A)]
    assert gd.run(engine, PROBLEM, X, schedule) == gd.run(engine, PROBLEM, X, schedule)


def test_callables_stand_where_matrices_do():
    def twice(state):
        return gd.mix(B, gd.mix(B, state))

    for engine in engines():
        t = gd.run(engine, PROBLEM, X, [(1.0, twice), (1.0, None)])
        u = gd.run(engine, PROBLEM, X, [(1.0, B @ B), (1.0, None)])
        np.testing.assert_allclose(t.Q, u.Q, rtol=0, atol=1e-9)


def test_long_schedules_are_laid_out_quickly():
    """Averaging after every step is a common schedule: 10 000 rounds beside 500 times."""
    rounds = [(0.001, A)] * 10_000

    def begin(problem, x0, start, rows):
        return gd.Overlaps(x0.Q[None], x0.R[None], x0.v[None]), None

    def advance(problem, x, source, now, times):
        return ((x, source) for _ in times)

    still = gd.Engine("still", {}, None, begin, advance)
    with bounded(seconds=6):
        t = gd.run(still, PROBLEM, X, rounds, record=np.linspace(0, 10, 501), ends=False)
    assert len(t.alpha) == 501 + 500


class bounded:
    """A block that may take so many seconds of this process."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __enter__(self):
        self.begun = os.times()

    def __exit__(self, *_):
        now = os.times()
        assert now.user + now.system - self.begun.user - self.begun.system < self.seconds


# what is kept, and how it is read


def test_keep_stores_less():
    for keep in ("risk", ["risk"], ("risk", "mean_risk"), ()):
        t = gd.run(gd.flow(), PROBLEM, X, 1.0, keep=keep)
        kept = (keep,) if isinstance(keep, str) else tuple(keep)
        for name in ("Q", "R", "v", "risk", "mean_risk"):
            assert (getattr(t, name) is not None) == (name in kept)
    with pytest.raises(ValueError, match=r"Q was not kept.*keep="):
        gd.run(gd.flow(), PROBLEM, X, 1.0, keep="risk").state(0)


def test_states_means_and_errors():
    t = gd.run(gd.chain(**CHAIN), PROBLEM, X, [(1.0, A), (1.0, None)], record=[0.5])
    assert t.at(0.6) == t.state(1) and t.at(99) == t.state(-1)
    assert t.at(1.0) == t.state(3) != t.state(2)  # after the mixing
    np.testing.assert_array_equal(t.state(1).Q, t.Q[:, 1])
    np.testing.assert_array_equal(t.mean("risk"), t.risk.mean(0))
    direct = np.sqrt(((t.risk - t.risk.mean(0)) ** 2).sum(0) / 2 / 3)
    np.testing.assert_allclose(t.sem("risk"), direct, rtol=1e-12)
    np.testing.assert_allclose(t.risk[:, 1], gd.risk(PROBLEM, t.state(1)), rtol=1e-12)
    np.testing.assert_allclose(t.mean_risk[:, 1], gd.mean_risk(PROBLEM, t.state(1)), rtol=1e-12)
    assert t.weights is None


def test_labelled_arrays():
    xarray = pytest.importorskip("xarray")
    t = gd.run(gd.chain(**CHAIN), PROBLEM, X, [(1.0, A)], keep=("Q", "R", "mean_risk"))
    data = t.to_xarray()
    assert isinstance(data, xarray.Dataset) and set(data) == {"Q", "R", "mean_risk"}
    assert data.Q.dims == ("run", "time", "worker", "student", "worker_2", "student_2")
    assert data.R.dims == ("run", "time", "worker", "student", "teacher")
    np.testing.assert_array_equal(data.alpha, t.alpha)
    np.testing.assert_array_equal(data.Q, t.Q)
    said = json.loads(data.attrs["problem"])
    again = gd.Problem(**(said | {"activation": getattr(gd, said["activation"])}))
    assert again == PROBLEM and json.loads(data.attrs["engine"]) == t.engine
    assert all(isinstance(value, str | int) for value in data.attrs.values())  # netCDF takes them


def test_a_trajectory_is_shown_in_a_line_and_says_its_shapes():
    t = gd.run(gd.chain(**CHAIN), PROBLEM, X, [(1.0, A)], keep=("R", "mean_risk"))
    assert repr(t) == (
        "<Trajectory of chain, 3 times from alpha=0 to 1: R (3, 3, 2, 2, 2), mean_risk (3, 3)>"
    )
    nothing = gd.run(gd.flow(), PROBLEM, X, 1.0, keep=())
    assert repr(nothing) == "<Trajectory of flow, 2 times from alpha=0 to 1: nothing kept>"


def test_what_cannot_be_written_names_the_file_that_was_asked_for(tmp_path):
    t = gd.run(gd.flow(), PROBLEM, X, 1.0)
    missing = tmp_path / "missing" / "run.npz"
    with pytest.raises(ValueError) as refusal:
        t.save(missing)
    assert f"no folder {missing.parent}: make it" in str(refusal.value)
    for path in (missing, tmp_path, 3):
        for write in (t.save, lambda path: gd.run(gd.flow(), PROBLEM, X, 1.0, checkpoint=path)):
            with pytest.raises(ValueError) as refusal:
                write(path)
            assert str(path) in str(refusal.value) and "partial" not in str(refusal.value)
    assert not list(tmp_path.iterdir())


# stops


def interrupting(after):
    """A mixing that is Ctrl-C at its call number `after`."""
    calls = []

    def mixing(state):
        calls.append(state)
        if len(calls) == after:
            raise KeyboardInterrupt
        return gd.mix(A, state)

    return mixing


@pytest.mark.parametrize("engine", engines(), ids=lambda e: e.name)
def test_ctrl_c_returns_what_was_computed(engine):
    t = gd.run(engine, PROBLEM, X, [(1.0, interrupting(3))] * 5, record=[0.5, 2.5])
    assert not t.complete
    assert clock(t) == "0 0.5 1 1* 2 2* 2.5 3".split()
    assert t.Q.shape[1] == t.risk.shape[1] == t.mean_risk.shape[1] == len(t.alpha)
    whole = gd.run(engine, PROBLEM, X, [(1.0, A)] * 5, record=[0.5, 2.5])
    np.testing.assert_allclose(t.Q, whole.Q[:, : len(t.alpha)], rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", engines(), ids=lambda e: e.name)
def test_a_real_ctrl_c_does_the_same(engine):
    """The signal itself, in the middle of the arithmetic of a run that would take long."""
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])

    def begin(state):
        timer.start()
        return state

    gc.disable()  # hypothesis listens to the collector, and would swallow the signal there
    try:
        t = gd.run(engine, PROBLEM, X, [(1.0, begin), *[(1.0, A)] * 3000])
        timer.join()
    finally:
        gc.enable()
    assert not t.complete and 3 <= len(t.alpha) < 6000
    assert np.all(np.isfinite(t.risk)) and t.risk.shape[1] == len(t.alpha)
    assert len(t.after_mixing) == len(t.alpha)


def linear(eta, **options):
    return gd.Problem(activation=gd.linear, v_star=[1], T=[[1]], eta=eta, **options)


UNIT = gd.Overlaps.single(Q=[[1]], R=[[0]], v=[1])


@pytest.mark.parametrize("engine", [gd.flow(), gd.chain(N=500, runs=4)], ids=lambda e: e.name)
def test_divergence_carries_the_trajectory_so_far(engine):
    with pytest.raises(gd.Diverged) as caught:
        gd.run(engine, linear(2.4), UNIT, 100.0, record=[1, 5, 10, 50])
    t = caught.value.trajectory
    assert isinstance(caught.value, ValueError)
    assert clock(t)[:4] == ["0", "1", "5", "10"] and not t.complete
    assert len(t.alpha) <= 5 and t.alpha[-1] < float(
        re.search("alpha=([0-9.]+)", str(caught.value))[1]
    )
    assert np.all(np.isfinite(t.Q)) and np.all(t.risk < 1e6)
    if engine.name == "flow":  # e' = (-2 eta + eta^2) e, e(0) = 2
        np.testing.assert_allclose(t.risk[0, :, 0], np.exp(0.96 * t.alpha), rtol=1e-5)


SLOW = gd.chain(N=10, runs=2)
ERF = {"activation": gd.erf, "v_star": [1], "T": [[1]]}
BROKEN = [  # engine, problem, start, the words that say which bound is broken
    (SLOW, gd.Problem(**ERF, weight_decay=100), UNIT, "weight_decay=100 with eta=0.5 multiplies "
     "weights by -4 in every step at N=10; it is stable below weight_decay = 2 N / eta = 40"),
    (SLOW, gd.Problem(**ERF, eta=0.1, eta_v=1, weight_decay=100), UNIT,
     "weight_decay=100 with eta_v=1 multiplies weights by -9"),
    (SLOW, linear(4.0), UNIT, "eta=4 and batch=1 is unstable (stable below 1.66667 at N=10"),
    (SLOW, linear(6.0, batch=2), UNIT, "batch=2 is unstable (stable below 3.07692 at N=10"),
    (gd.flow(), linear(4.4, batch=2, weight_decay=0.01), UNIT, "(stable below 4.04 as N"),
    (gd.flow(), linear(0.6), gd.Overlaps.single(Q=[[1]], R=[[0]], v=[2]),
     "(stable below 0.5 as N grows without bound, where the squares of its v sum to 4)"),
    (gd.flow(), gd.Problem(gd.quadratic, v_star=[1], T=[[1]], eta=1.0),
     gd.Overlaps.single(Q=[[9]], R=[[0]], v=[1]), "no bound is known that it breaks with eta=1"),
]  # fmt: skip


@pytest.mark.parametrize("engine, problem, x0, words", BROKEN)
def test_divergence_names_the_bound_that_is_broken_or_none(engine, problem, x0, words):
    with pytest.raises(gd.Diverged) as caught:
        gd.run(engine, problem, x0, 4000.0)
    assert words in str(caught.value)


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("decay", [0.0, 3.0])
def test_a_single_step_at_the_bound_of_a_linear_unit_keeps_the_mean_square(batch, decay):
    with pytest.raises(gd.Diverged) as caught:
        eta = 2.6 if decay else 50.0  # 2.6 x 3 < 2 N: decay alone is not too much
        gd.run(gd.chain(N=4, runs=2), linear(eta, batch=batch, weight_decay=decay), UNIT, 4000.0)
    bound = float(re.search(r"stable below ([0-9.]+) at N=4", str(caught.value))[1])
    silent = gd.Problem(gd.linear, v_star=[0], T=[[1]], eta=bound, batch=batch, weight_decay=decay)
    once = gd.run(gd.chain(N=4, runs=40000), silent, UNIT, 0.25).Q[:, -1].ravel()
    assert abs(once.mean() - 1) < 5 * once.std() / 200


def test_divergence_names_the_run():
    twice = gd.Overlaps(
        Q=[[[[[0.5]]]], [[[[1.0]]]]], R=[[[[0.5]]], [[[0.0]]]], v=[[[0.0]], [[1.0]]]
    )
    with pytest.raises(gd.Diverged, match="run 1, worker 0"):
        gd.run(gd.flow(), linear(2.4), twice, 100.0)


# files


def trajectories():
    sgd = [gd.sgd(N=20, runs=2, seed=3)] if _torch() else []
    for engine in [*engines(), *sgd]:
        for options in (
            {},
            {"record": [0.5], "ends": False, "keep": "risk", "start": 2},
            {"record": np.linspace(0, 1, 5), "keep": ["Q", "R", "v"], "start": np.float32(0)},
            {"record": range(2), "start": np.int64(0)},
        ):
            options = dict(options)
            if options.get("start") == 2:
                options["record"] = [2.5]
            yield pytest.param(engine, options, id=f"{engine.name}-{'-'.join(options) or 'plain'}")


def _torch():
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("engine, options", list(trajectories()))
def test_a_saved_trajectory_comes_back_equal(engine, options, tmp_path):
    problem = replace(PROBLEM, eta_v=0.1, sigma=0.2, batch=2, weight_decay=0.01)
    t = gd.run(engine, problem, X, [(1.0, A), (0, B), (1.0, None)], **options)
    t.save(tmp_path / "run.npz")
    back = gd.Trajectory.load(tmp_path / "run.npz")
    assert back == t and t == back
    assert back.problem == problem
    assert back.alpha.dtype == float and back.after_mixing.dtype == bool
    assert back != replace(t, alpha=t.alpha + 1) and back != replace(t, complete=False)
    assert (back.weights is not None) == (engine.name == "sgd")


def again(t):
    """Run a trajectory from its own record, as its docstring says."""
    return gd.run(getattr(gd, t.engine["name"])(**t.engine["options"]), t.problem, **t.asked)


@pytest.mark.parametrize("engine, options", list(trajectories()))
def test_a_trajectory_runs_again_from_its_own_record(engine, options, tmp_path):
    """Bit for bit, also from the file, and with the record written down in it."""
    t = gd.run(engine, PROBLEM, X, [(1.0, A), (0, B), (1.0, None)], **options)
    assert again(t) == t
    t.save(tmp_path / "run.npz")
    assert again(gd.Trajectory.load(tmp_path / "run.npz")) == t
    assert t.engine["name"] == engine.name and t.engine["options"] == engine.options
    assert t.version == gd.__version__
    for name in ("x0", "rounds", "record", "ends", "keep", "start"):
        assert name in t.asked


def test_the_record_does_not_change_when_the_callers_arrays_do():
    record, matrix = np.array([0.25, 0.5]), A.copy()
    t = gd.run(gd.flow(), PROBLEM, X, [(1.0, matrix)], record=record)
    record[:], matrix[:] = 0.75, np.eye(2)
    assert again(t) == t


def test_coupled_flows_are_saved_too(tmp_path):
    t = gd.run(gd.flow(coupling=(0.3, A)), PROBLEM, X, 1.0)
    t.save(tmp_path / "run.npz")
    back = gd.Trajectory.load(tmp_path / "run.npz")
    assert back == t == again(back)


def test_starts_from_weights_are_saved_too(tmp_path):
    pytest.importorskip("torch")
    w = weights(2, 2, 2, N=20)
    t = gd.run(gd.sgd(N=20, runs=2), problem_of(w), w, [(1.0, A)])
    t.save(tmp_path / "run.npz")
    back = gd.Trajectory.load(tmp_path / "run.npz")
    assert back == t == again(back)
    assert isinstance(back.asked["x0"], gd.Weights)


def test_a_schedule_of_callables_is_named_in_the_file_and_refused_by_a_second_run(tmp_path):
    t = gd.run(gd.flow(), PROBLEM, X, [(1.0, interrupting(99)), (1.0, B)])
    t.save(tmp_path / "run.npz")
    back = gd.Trajectory.load(tmp_path / "run.npz")
    np.testing.assert_array_equal(back.Q, t.Q)
    with pytest.raises(ValueError, match="interrupting"):
        again(back)


def test_a_kill_while_saving_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    t = gd.run(gd.flow(), PROBLEM, X, 1.0)
    t.save(path)
    before = path.read_bytes()

    def killed(file, **arrays):
        file.write(b"half a fi")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez_compressed", killed)
    with pytest.raises(KeyboardInterrupt):
        gd.run(gd.flow(), PROBLEM, X, 2.0).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_damaged_files_are_refused(tmp_path):
    """Whatever byte is hit, load() either refuses in words or returns the very same trajectory."""
    path = tmp_path / "run.npz"
    t = gd.run(gd.flow(), PROBLEM, X, [(1.0, A)])
    t.save(path)
    sound = path.read_bytes()
    rng = np.random.default_rng(0)
    damaged = [sound[:cut] for cut in rng.integers(len(sound), size=40)]
    for at in rng.integers(len(sound), size=300):
        damaged.append(sound[:at] + bytes([sound[at] ^ rng.integers(1, 256)]) + sound[at + 1 :])
    refused = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            assert gd.Trajectory.load(path) == t
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 200


def test_newer_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "run.npz"
    gd.run(gd.flow(), PROBLEM, X, 1.0).save(path)
    with np.load(path) as file:
        arrays = dict(file)
    description = json.loads(str(arrays.pop("description")))

    def refused(words, **change):
        np.savez(path, description=json.dumps(description | change), **arrays)
        with pytest.raises(ValueError, match=words):
            gd.Trajectory.load(path)

    refused("format 2.*reads up to 1.*newer", format=2)
    problem = description["problem"] | {"activation": "tanh_of_tomorrow"}
    refused("'tanh_of_tomorrow'.*erf", problem=problem)
    refused("no saved trajectory", problem={})
    refused("no saved trajectory", format="one")
    refused("no saved trajectory", rounds=3)

    with pytest.raises(ValueError, match="there is no file .*nowhere"):
        gd.Trajectory.load(tmp_path / "nowhere.npz")
    for foreign in ({"a": np.ones(3)}, {"description": "hello"}, {"description": "[1]"}):
        np.savez(path, **foreign)
        with pytest.raises(ValueError, match="no saved trajectory"):
            gd.Trajectory.load(path)
    path.write_text("alpha, risk\n0, 1\n")
    with pytest.raises(ValueError, match="no saved trajectory"):
        gd.Trajectory.load(path)
    np.save(path.with_suffix(".npy"), np.ones(3))
    with pytest.raises(ValueError, match="no saved trajectory"):
        gd.Trajectory.load(path.with_suffix(".npy"))
    with pytest.raises(ValueError, match="no saved trajectory"):
        gd.Trajectory.load(tmp_path)


# the progress bar


@pytest.mark.slow
def test_the_progress_bar_appears_after_two_seconds_on_a_terminal_alone():
    code = """
        import sys, time
        import numpy as np
        import gossipdyn as gd

        problem = gd.Problem(activation=gd.erf, v_star=[1], T=[[1]])
        x = gd.Overlaps.single(Q=[[1]], R=[[0]], v=[1])

        def begin(problem, x0, start, rows):
            return gd.Overlaps(x0.Q[None], x0.R[None], x0.v[None]), None

        def slow(seconds):
            def advance(problem, state, source, now, times):
                for _ in times:
                    time.sleep(seconds / 20)
                    yield state, source

            return gd.Engine("slow", {}, None, begin, advance)

        gd.run(slow(0.2), problem, x, 20.0)
        print("quick", file=sys.stderr)
        gd.run(slow(3.0), problem, x, 20.0)
    """
    environ = {k: v for k, v in os.environ.items() if k != "TQDM_DISABLE"}
    command = [sys.executable, "-c", dedent(code)]
    piped = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert (piped.stdout, piped.stderr) == ("", "quick\n")  # a file, a notebook's stored output
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 100))
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=end) as process:
        os.close(end)
        shown = b""
        while part := _read(terminal):
            shown += part
        assert process.stdout.read() == b""
    os.close(terminal)
    before, after = shown.decode().split("quick")
    assert before == ""
    assert "in alpha" in after and "20/20" in after.replace(".0", "")


def _read(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError:  # how Linux says that the other end is closed
        return b""


def test_whatever_stops_a_run_carries_what_was_computed():
    unit = gd.Problem(gd.softplus, v_star=(1,), T=[[1.0]], eta=6.0)
    x = gd.Overlaps.single([[1.0]], [[0.1]], [1.0])
    record = np.arange(0, 50, 0.5)
    # softplus leaves the range of its quadrature before its risk leaves every bound
    for engine in (gd.flow(), gd.chain(N=50, runs=2)):
        with pytest.raises(ValueError, match="fields of variance") as stopped:
            gd.run(engine, unit, x, 50.0, record=record)
        t = stopped.value.trajectory
        assert not t.complete and t.alpha[-1] >= 1
        assert np.all(np.isfinite(t.risk))

    def broken(state):
        raise KeyError("mine")

    with pytest.raises(KeyError) as stopped:
        gd.run(gd.flow(), unit, x, [(0.1, gd.complete(1)), (0.1, broken)])
    np.testing.assert_allclose(stopped.value.trajectory.alpha, [0, 0.1, 0.1, 0.2])


def test_states_before_one_without_a_risk_are_not_lost():
    """The averages of tanh end at a variance: risks of many states are computed together."""
    problem = gd.Problem(gd.tanh, [1], [[1]])

    def begin(problem, x0, start, rows):
        return gd.Overlaps(x0.Q[None], x0.R[None], x0.v[None]), None

    def advance(problem, x, source, now, times):
        for time in times:
            yield gd.Overlaps(x.Q * 10.0**time, x.R, x.v), source

    engine = gd.Engine("growing", {}, None, begin, advance)
    one = gd.Overlaps.single(Q=[[1]], R=[[0]], v=[1])
    with pytest.raises(ValueError, match="variance") as stopped:
        gd.run(engine, problem, one, 6.0, record=[1, 2, 4, 5])
    t = stopped.value.trajectory
    assert t.alpha.tolist()[:3] == [0, 1, 2] and t.alpha[-1] < 4 and not t.complete
    assert np.all(np.isfinite(t.risk))
