"""A run that was stopped goes on from its checkpoint as if nothing had happened."""

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import gossipdyn as gd
from gossipdyn.runs import checkpoint, files
from gossipdyn.runs import run as loop

TESTS = str(Path(__file__).parent)
PROBLEM = gd.Problem(activation=gd.erf, v_star=[1.0, 1.0], T=np.eye(2), eta=0.5, sigma=0.1)
ENGINES = {
    "flow": gd.flow(),
    "chain": gd.chain(N=20, runs=5, seed=1),
    "sgd": gd.sgd(N=20, runs=5, seed=1, dtype="float64"),
}


class Fuse:
    """The mean of two workers; stops the run when it has burnt down."""

    def __call__(self, state):
        left = int(os.environ.get("GOSSIPDYN_FUSE", 10**9)) - 1
        os.environ["GOSSIPDYN_FUSE"] = str(left)
        if left < 0:
            raise RuntimeError("power cut")
        return gd.mix(gd.complete(2), state)


def go(engine, path, A=None, problem=PROBLEM, **options):
    x0 = gd.random_start(PROBLEM, workers=2, students=2, N=20, seed=2)
    schedule = [(3.0, Fuse() if A is None else A)] * 6 + [(7.3, None)]
    record = np.arange(0, 25, 0.35)
    return gd.run(engine, problem, x0, schedule, record=record, checkpoint=path, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("stop", [1, 4])
def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path, monkeypatch, name, stop):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    engine = ENGINES[name]
    whole = go(engine, tmp_path / "whole")
    monkeypatch.setenv("GOSSIPDYN_FUSE", str(stop))
    with pytest.raises(RuntimeError, match="power cut"):
        go(engine, tmp_path / "stopped")
    monkeypatch.setenv("GOSSIPDYN_FUSE", str(6 - stop))  # what was done is not done again
    assert go(engine, tmp_path / "stopped") == whole
    assert go(engine, tmp_path / "stopped") == whole  # finished: read back, nothing is mixed


# what the callables of a schedule hold


class Counting:
    """Mixes at random, from its own stream, the more the oftener it was called."""

    def __init__(self):
        self.calls, self.rng, self.last = 0, np.random.default_rng(5), None

    def __call__(self, state):
        self.calls += 1
        share = self.rng.uniform(0, 0.5) / self.calls
        self.last = state.v.mean()
        return gd.mix([[1 - share, share], [share, 1 - share]], state)


def weighted(state, share):
    return gd.mix([[1 - share, share], [share, 1 - share]], state)


class Holder:
    def __init__(self, share):
        self.share = share

    def mixed(self, state):
        return weighted(state, self.share)


def bent(x, slope):
    return np.tanh(slope * x)


def bent_slope(x, slope):
    return slope / np.cosh(slope * x) ** 2


def curved():
    return gd.smooth(partial(bent, slope=0.9), partial(bent_slope, slope=0.9), "bent")


KINDS = {
    "state": Counting,
    "partial": lambda: partial(weighted, share=0.3),
    "method": lambda: Holder(0.3).mixed,
    "object": lambda: Fuse(),
    "function": lambda: steady,
}


def steady(state):
    return weighted(state, 0.2)


CHILD = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import test_checkpoint as t
from gossipdyn.runs import run as loop
loop.CHECKPOINT_SECONDS = 0
write, left = loop.Checkpoint.write, 0
def counted(self, content, last=False):
    global left
    write(self, content, last)
    left -= 1
    if left == 0 and kind == "function":
        os.kill(os.getpid(), signal.SIGKILL)
    if left == 0:
        raise SystemExit
loop.Checkpoint.write = counted
for kind, make in t.KINDS.items():
    left = {stop}
    keep = {{"R", "risk", "Q"}}
    try:
        x = t.go(t.ENGINES["chain"], f"{path}-{{kind}}", make(), keep=keep)
        x.save(f"{out}-{{kind}}.npz")
    except SystemExit:
        pass
"""


@pytest.mark.slow
def test_a_killed_process_is_taken_up_by_another_bit_for_bit(tmp_path):
    def child(path, out, stop, seed):
        code = CHILD.format(tests=TESTS, path=tmp_path / path, out=tmp_path / out, stop=stop)
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        return subprocess.run([sys.executable, "-c", code], env=environment).returncode

    assert child("whole", "whole", -1, 1) == 0
    assert child("stopped", "never", 6, 2) == -signal.SIGKILL
    assert child("stopped", "resumed", -1, 3) == 0
    assert not list(tmp_path.glob("never*"))
    for kind in KINDS:
        whole, resumed = (
            gd.Trajectory.load(tmp_path / f"{name}-{kind}.npz") for name in ("whole", "resumed")
        )
        for name in ("alpha", "after_mixing", "Q", "R", "risk"):
            np.testing.assert_array_equal(getattr(resumed, name), getattr(whole, name))


def test_a_run_goes_on_with_the_callables_of_the_file(tmp_path):
    first = go(ENGINES["chain"], tmp_path / "file", Counting())
    again = go(ENGINES["chain"], tmp_path / "file", Counting())
    assert again == first and again.asked["rounds"][0][1].calls == 6


def test_a_callable_with_other_contents_belongs_to_another_run(tmp_path):
    go(ENGINES["flow"], tmp_path / "file", partial(weighted, share=0.3))
    go(ENGINES["flow"], tmp_path / "file", partial(weighted, share=0.3))
    with pytest.raises(ValueError, match="belongs to another run, its asked differs"):
        go(ENGINES["flow"], tmp_path / "file", partial(weighted, share=0.4))


def test_an_activation_made_of_partials_can_be_resumed(tmp_path):
    problem = gd.Problem(activation=curved(), v_star=[1.0, 1.0], T=np.eye(2))
    same = gd.Problem(activation=curved(), v_star=[1.0, 1.0], T=np.eye(2))
    first = go(ENGINES["chain"], tmp_path / "file", steady, problem)
    np.testing.assert_array_equal(go(ENGINES["chain"], tmp_path / "file", steady, same).Q, first.Q)


COUNT = 0


def counts_in_a_global(state):
    global COUNT
    COUNT += 1
    return weighted(state, 1 / (2 + COUNT))


def counts_in_a_default(state, seen=[]):  # noqa: B006
    seen.append(1)
    return weighted(state, 1 / (2 + len(seen)))


class CountsInItsClass:
    count = 0

    def __call__(self, state):
        type(self).count += 1
        return weighted(state, 1 / (2 + self.count))


def counts_on_itself(state):
    counts_on_itself.count = getattr(counts_on_itself, "count", 0) + 1
    return weighted(state, 1 / (2 + counts_on_itself.count))


def draws_from_numpy(state):
    return weighted(state, np.random.uniform(0, 0.5))  # noqa: NPY002


def draws_from_python(state):
    return weighted(state, random.uniform(0, 0.5))


OUTSIDE = [counts_in_a_global, counts_in_a_default, CountsInItsClass(), counts_on_itself]
OUTSIDE += [draws_from_numpy, draws_from_python]


@pytest.mark.slow
@pytest.mark.parametrize("A", OUTSIDE, ids=lambda A: getattr(A, "__name__", "class"))
def test_a_state_outside_the_callable_is_refused_after_its_first_round(tmp_path, A):
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with pytest.raises(ValueError, match="changes what lies outside it.*no checkpoint"):
            go(ENGINES["flow"], tmp_path / "file", A)
        go(ENGINES["flow"], None, A)  # without a checkpoint nothing is promised
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002


def test_a_checkpoint_of_another_version_is_refused(tmp_path, monkeypatch):
    go(ENGINES["flow"], tmp_path / "file", steady)
    monkeypatch.setattr(checkpoint, "environment", lambda: "other")
    with pytest.raises(ValueError, match="written by another version of gossipdyn"):
        go(ENGINES["flow"], tmp_path / "file", steady)


def test_a_checkpoint_changes_a_flow_within_its_tolerance_only(tmp_path):
    plain, marked = go(ENGINES["flow"], None), go(ENGINES["flow"], tmp_path / "file")
    np.testing.assert_allclose(marked.Q, plain.Q, rtol=1e-6, atol=1e-6)  # rtol x 100


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    go(ENGINES["flow"], tmp_path / "file")
    with pytest.raises(ValueError, match="belongs to another run, its engine differs"):
        go(gd.flow(rtol=1e-6), tmp_path / "file")


def test_damaged_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "file"
    files.write_pickle(path, [1, 2, 3], "a test needs a list")
    whole = path.read_bytes()
    assert files.read_pickle(path) == [1, 2, 3]
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="is damaged"):
        files.read_pickle(path)
    path.write_bytes(b"Dear diary")
    with pytest.raises(ValueError, match="is no checkpoint"):
        files.read_pickle(path)


def test_a_schedule_that_does_not_pickle_is_refused(tmp_path):
    x0 = gd.random_start(PROBLEM, workers=1, students=2, N=20, seed=2)
    with pytest.raises(ValueError, match="parts pickle"):  # before anything is computed
        gd.run(gd.flow(), PROBLEM, x0, [(1e9, lambda x: x)], checkpoint=tmp_path / "file")


WRITER = """
import numpy as np, sys
from gossipdyn.runs.files import write_pickle
for i in range(10**6):
    write_pickle(sys.argv[1], np.full(10**6, i), "a test needs numbers")
"""


def test_a_kill_in_the_middle_of_a_write_leaves_a_whole_file(tmp_path):
    path = tmp_path / "file"
    for pause in (0.01, 0.017, 0.023):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
        while not path.exists():
            assert writer.poll() is None
        time.sleep(pause)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        numbers = files.read_pickle(path)
        assert np.all(numbers == numbers[0])
