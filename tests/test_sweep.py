"""Sweeps: complete, in order, kept, and computed once."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import joblib
import numpy as np
import pytest

import gossipdyn as gd


def settle(point):
    """Risk after learning; notes every call in a folder."""
    eta, folder = point
    problem = gd.Problem(activation=gd.erf, v_star=[1.0], T=[[1.0]], eta=eta)
    x0 = gd.Overlaps.single(Q=[[0.5]], R=[[0.1]], v=[1.0])
    if folder is not None:
        with open(Path(folder) / f"{eta}", "a") as notes:
            notes.write("called\n")
    return gd.run(gd.flow(), problem, x0, 5.0).risk[0, -1, 0]


def calls(folder):
    return {p.name: p.read_text().count("called") for p in Path(folder).iterdir()}


def fail_at_two(x):
    if x == 2:
        raise RuntimeError("two is too many")
    return x * x


def own_threads(_):
    import torch

    return torch.get_num_threads()


def test_a_sweep_returns_what_a_loop_returns():
    points = [(eta, None) for eta in (0.1, 0.2, 0.3)]
    assert gd.sweep(settle, points) == [settle(point) for point in points]


def test_stored_points_are_computed_once_and_new_points_alone(tmp_path):
    store, notes = tmp_path / "store", tmp_path / "notes"
    notes.mkdir()
    first = gd.sweep(settle, [(eta, notes) for eta in (0.1, 0.2)], store=store)
    again = gd.sweep(settle, [(eta, notes) for eta in (0.3, 0.1, 0.2)], store=store)
    assert again[1:] == first
    assert calls(notes) == {"0.1": 1, "0.2": 1, "0.3": 1}


SCRIPT = """
    import sys, time
    from pathlib import Path
    import gossipdyn as gd

    def slow(i):
        Path("notes", f"{i}-{time.time_ns()}").touch()
        time.sleep(FACTOR * 0.2)
        return FACTOR * i

    if __name__ == "__main__":
        print(gd.sweep(slow, range(8), store="store", cores=2))
"""


def script(folder, factor=1):
    (folder / "notes").mkdir(exist_ok=True)
    path = folder / "work.py"
    path.write_text(textwrap.dedent(SCRIPT).replace("FACTOR", str(factor)))
    return [sys.executable, str(path)]


def test_a_killed_sweep_computes_only_what_is_missing(tmp_path):
    process = subprocess.Popen(script(tmp_path), cwd=tmp_path, start_new_session=True)
    while len(list((tmp_path / "notes").iterdir())) < 5:
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    out = subprocess.check_output(script(tmp_path), cwd=tmp_path, text=True)
    assert out.strip() == str(list(range(8)))
    seen = [int(p.name.split("-")[0]) for p in (tmp_path / "notes").iterdir()]
    assert set(seen) == set(range(8))
    assert 8 <= len(seen) <= 8 + 2  # the two points that were being computed are done again
    assert seen.count(0) == 1


def test_a_changed_function_is_computed_anew(tmp_path):
    for factor in (1, 2):
        out = subprocess.check_output(script(tmp_path, factor), cwd=tmp_path, text=True)
        assert out.strip() == str([factor * i for i in range(8)])


def test_one_failing_point_is_named_and_loses_no_other():
    with pytest.raises(gd.SweepFailed, match="1 of 4 points failed, the first is point 2, 2") as e:
        gd.sweep(fail_at_two, range(4))
    assert e.value.records == [0, 1, None, 9]
    assert "two is too many" in e.value.failures[0][2]


def test_processes_share_the_cores():
    assert set(gd.sweep(own_threads, range(2), cores=os.cpu_count())) == {1}


def test_a_sweep_runs_on_a_cluster_unchanged():
    distributed = pytest.importorskip("distributed")
    points = [(eta, None) for eta in (0.1, 0.2, 0.3)]
    client = distributed.Client(
        n_workers=2, threads_per_worker=1, dashboard_address=None, processes=False
    )
    with client, joblib.parallel_config(backend="dask"):
        there = gd.sweep(settle, points)
    np.testing.assert_array_equal(there, [settle(point) for point in points])


def test_bad_function_is_refused():
    with pytest.raises(ValueError, match="needs a function of one point, got 3"):
        gd.sweep(3, [1])
