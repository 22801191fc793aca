"""A run that was stopped goes on from its checkpoint as if nothing had happened."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import gossipdyn as gd
from gossipdyn import rounds, storage

PROBLEM = gd.Problem(activation=gd.erf, v_star=[1.0, 1.0], T=np.eye(2), eta=0.5, sigma=0.1)
ENGINES = {
    "flow": gd.flow(),
    "chain": gd.chain(N=20, runs=5, seed=1),
    "sgd": gd.sgd(N=20, runs=5, seed=1, dtype="float64"),
}
FUSE = {"left": np.inf}


def mean_unless_stopped(state):
    """The mean of two workers; stops the run when its fuse has burnt down."""
    FUSE["left"] -= 1
    if FUSE["left"] < 0:
        raise RuntimeError("power cut")
    return gd.mix(gd.complete(2), state)


def go(engine, path):
    x0 = gd.random_start(PROBLEM, workers=2, students=2, N=20, seed=2)
    schedule = [(3.0, mean_unless_stopped)] * 6 + [(7.3, None)]
    record = np.arange(0, 25, 0.35)
    return gd.run(engine, PROBLEM, x0, schedule, record=record, checkpoint=path)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("stop", [1, 4])
def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path, monkeypatch, name, stop):
    monkeypatch.setattr(rounds, "CHECKPOINT_SECONDS", 0)
    engine = ENGINES[name]
    whole = go(engine, tmp_path / "whole")
    monkeypatch.setitem(FUSE, "left", stop)
    with pytest.raises(RuntimeError, match="power cut"):
        go(engine, tmp_path / "stopped")
    monkeypatch.setitem(FUSE, "left", 6 - stop)  # what was done is not done again
    assert go(engine, tmp_path / "stopped") == whole
    assert go(engine, tmp_path / "stopped") == whole  # finished: read back, nothing is mixed


def test_a_checkpoint_changes_a_flow_within_its_tolerance_only(tmp_path):
    plain, marked = go(ENGINES["flow"], None), go(ENGINES["flow"], tmp_path / "file")
    np.testing.assert_allclose(marked.Q, plain.Q, rtol=1e-6, atol=1e-6)  # rtol x 100


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    go(ENGINES["flow"], tmp_path / "file")
    with pytest.raises(ValueError, match="belongs to another run, its engine differs"):
        go(gd.flow(rtol=1e-6), tmp_path / "file")


def test_damaged_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "file"
    storage.write_checkpoint(path, [1, 2, 3])
    whole = path.read_bytes()
    assert storage.read_checkpoint(path) == [1, 2, 3]
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="is damaged"):
        storage.read_checkpoint(path)
    path.write_bytes(b"Dear diary")
    with pytest.raises(ValueError, match="is no checkpoint"):
        storage.read_checkpoint(path)


def test_a_schedule_that_does_not_pickle_is_refused(tmp_path):
    x0 = gd.random_start(PROBLEM, workers=1, students=2, N=20, seed=2)
    with pytest.raises(ValueError, match="parts pickle"):  # before anything is computed
        gd.run(gd.flow(), PROBLEM, x0, [(1e9, lambda x: x)], checkpoint=tmp_path / "file")


WRITER = """
import numpy as np, sys
from gossipdyn.storage import write_checkpoint
for i in range(10**6):
    write_checkpoint(sys.argv[1], np.full(10**6, i))
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
        numbers = storage.read_checkpoint(path)
        assert np.all(numbers == numbers[0])
