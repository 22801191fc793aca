"""Sweeps: complete, in order, kept, and computed once."""

import copy
import functools
import importlib
import math
import multiprocessing
import operator
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import cloudpickle
import joblib
import numpy as np
import pytest
from scipy import special

import gossipdyn as gd
from gossipdyn.runs.digest import digest

sweeps = importlib.import_module("gossipdyn.runs.sweep")


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_changed_function_is_computed_anew(tmp_path):
    for factor in (1, 2):
        out = subprocess.check_output(script(tmp_path, factor), cwd=tmp_path, text=True)
        assert out.strip() == str([factor * i for i in range(8)])


def test_one_failing_point_is_named_and_loses_no_other():
    with pytest.raises(gd.SweepFailed, match="1 of 4 points failed, the first is point 2, 2") as e:
        gd.sweep(fail_at_two, range(4))
    assert e.value.records == [0, 1, None, 9]
    assert "two is too many" in e.value.failures[0][2]


@pytest.mark.slow
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


# what a stored result is found by


SHARE = 2.0
TABLE = {"a": np.arange(3.0), "b": (1, "x")}
PROBLEM = gd.Problem(activation=gd.erf, v_star=[1.0], T=[[1.0]], eta=0.5)


def scaled(x, by=1.0):
    return by * x


def shared(x):
    return SHARE * x


def through_another(x):
    return shared(x) + len(TABLE["a"])


def closure(by):
    def times(x):
        return by * x

    return times


def imports_inside(x):
    from kept_settings import FACTOR

    return FACTOR * x


class Law:
    power = 1

    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return self.by * x**self.power

    def at(self, x):
        return self(x) + 1


class Squared(Law):
    power = 2


def risk_of(x):
    return float(gd.risk(PROBLEM, gd.Overlaps.single(Q=[[x]], R=[[0.1]], v=[1.0]))[0])


@functools.lru_cache
def cached(x):
    return SHARE * x


def wrapped(function):
    @functools.wraps(function)
    def twice(x):
        return 2 * function(x)

    return twice


APART = [  # whose results differ, so that no two may be taken for one another
    closure(1.5), closure(2.5), lambda x: x + 1, lambda x: x + 2, lambda x: x + 2.0,
    lambda x: [y * x for y in (x, 3)], lambda x: [y * x for y in (x, 4)],
    functools.partial(scaled, by=3.0), functools.partial(scaled, by=4.0), scaled, shared,
    through_another, Law(5.0), Law(6.0), Squared(5.0), Law(5.0).at, Law(6.0).at,
    Squared(5.0).at,
    functools.partial(closure(1.5)), functools.partial(Law(7.0).at), risk_of, cached, np.sin,
    np.cos, math.sin,
    [1].__contains__, [2].__contains__, wrapped(scaled), wrapped(shared), wrapped(np.sin),
    np.vectorize(closure(1.5)), operator.attrgetter("real"), operator.attrgetter("imag"),
    gd.Activation.I2, special.erf, special.erfc,
    np.add.reduce, np.multiply.reduce, "a".__add__, "b".__add__,
]  # fmt: skip


def test_functions_that_hold_other_things_are_told_apart_and_always_in_the_same_way():
    names = [digest(f) for f in APART]
    assert len(set(names)) == len(APART)
    assert [digest(f) for f in APART] == names
    assert digest(closure(1.5)) == names[0] and digest(Law(5.0).at) == digest(Law(5.0).at)
    again = cloudpickle.loads(cloudpickle.dumps(APART[:20]))
    assert [digest(f) for f in again] == names[:20]


@pytest.mark.parametrize(
    "name, value", [("SHARE", 2.5), ("SHARE", 2), ("TABLE", {"a": np.arange(4.0), "b": (1, "x")})]
)
def test_a_changed_constant_is_seen_by_all_that_read_it_and_by_no_other(monkeypatch, name, value):
    readers = [through_another, wrapped(through_another), functools.partial(through_another)]
    others = [scaled, Law(5.0), risk_of, closure(1.5)]
    before = [digest(f) for f in readers + others]
    monkeypatch.setitem(globals(), name, value)
    after = [digest(f) for f in readers + others]
    assert [a == b for a, b in zip(after, before)] == [False] * 3 + [True] * 4


def test_a_changed_method_class_attribute_or_record_is_seen(monkeypatch):
    before = digest(Squared(5.0)), digest(Law(5.0).at), digest(risk_of)
    monkeypatch.setattr(Law, "__call__", lambda self, x: 0)
    monkeypatch.setitem(globals(), "PROBLEM", replace(PROBLEM, sigma=0.1))
    assert all(
        a != b for a, b in zip((digest(Squared(5.0)), digest(Law(5.0).at), digest(risk_of)), before)
    )


def test_a_module_imported_inside_the_function_is_read(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for factor in (2, 3):
        (tmp_path / "kept_settings.py").write_text(f"FACTOR = {factor}\n")
        sys.modules.pop("kept_settings", None)
        importlib.invalidate_caches()
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        found.append(gd.sweep(imports_inside, [10], store=tmp_path / "store", cores=1))
    assert found == [[20], [30]]


POINTS = {  # all unlike each other
    "1": 1, "1.0": 1.0, "True": True, "'1'": "1", "b'1'": b"1", "[1]": [1], "(1,)": (1,),
    "{1}": {1}, "-0.0": -0.0, "0.0": 0.0, "float32": np.float32(1), "array": np.ones(2),
    "ints": np.ones(2, int), "row": np.ones((1, 2)), "column": np.ones((2, 1)), "None": None,
    "...": ..., "dict": {"a": 1, "b": 2}, "frozenset": frozenset({1}), "problem": PROBLEM,
    "another": replace(PROBLEM, eta=0.3), "flow": gd.flow(), "chain": gd.chain(), "1j": 1j,
    "objects": np.array([1, "x"], dtype=object), "objects 2": np.array([1, "y"], dtype=object),
    "path": Path("a"), "range": range(3), "masked": np.ma.masked_array([1.0, 1.0], [0, 1]),
    "masked 2": np.ma.masked_array([1.0, 1.0], [1, 0]), "nan": math.nan, "big": 10**5000,
    "rng": np.random.default_rng(1), "rng 2": np.random.default_rng(2), "type": int,
    "schedule": [(5.0, gd.complete(2))], "matched": [(5.0, gd.matched(gd.complete(2)))],
}  # fmt: skip


def test_points_that_hold_other_things_are_told_apart():
    names = [digest(point) for point in POINTS.values()]
    assert len(set(names)) == len(POINTS)
    again = pickle.loads(pickle.dumps(list(POINTS.values())))
    assert [digest(point) for point in again] == names


def test_tensors_are_told_apart_by_their_numbers_whatever_their_strides():
    import torch

    z = torch.tensor([1 + 2j, 3 - 4j])
    whole, parts = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([[1.0, 9.0], [2.0, 9.0], [3.0, 9.0]])
    assert digest(whole) == digest(parts[:, 0])
    assert digest(whole[:1]) == digest(whole[:1:2]) == digest(whole[::3])
    assert digest(z.conj()) == digest(z.conj().resolve_conj()) != digest(z)
    assert digest(z.conj().imag) == digest(torch.tensor([-2.0, 4.0]))
    for a in (whole.to_sparse(), torch.empty(2, device="meta")):
        with pytest.raises(ValueError, match="nobody can tell"):
            digest(a)


def test_what_holds_itself_has_a_name():
    mine, its = [1], [1]
    mine.append(mine), its.append(its)
    assert digest(mine) == digest(its) != digest([1, [1]])


@pytest.mark.parametrize(
    "held",
    [
        threading.Lock(),
        (x for x in "ab"),
        sys.stdout,
        np.frompyfunc(scaled, 1, 1),
        sys.modules[__name__],
    ],
    ids=["lock", "generator", "file", "ufunc", "module"],
)
def test_what_cannot_be_told_is_refused_before_anything_is_computed(tmp_path, held):
    for function, points in ((lambda x: held, [1]), (len, [[held]])):
        with pytest.raises(ValueError, match="nobody can tell what it holds"):
            gd.sweep(function, points, store=tmp_path / "store", cores=1)


PROGRAM = """
    import functools, sys
    import numpy as np
    import gossipdyn as gd

    SHARE = {share}
    NAMES = {{"alpha", "beta", "gamma"}}

    def plain(x):
        return x in {{1, 2, 3}}, SHARE * x, sorted(NAMES)

    def closure(by):
        return lambda x: by * x + SHARE

    class Law:
        power = {power}

        def __init__(self, by):
            self.by = by

        def __call__(self, x):
            return self.by * x**self.power

        def at(self, x):
            return self(x)

    KINDS = [plain, closure(2), functools.partial(pow, 2), Law(3), Law(3).at, lambda x: x + {share}]

    def noted(function, x):
        with open("notes", "a") as notes:
            notes.write(".")
        return function(x)

    if __name__ == "__main__":
        for kind in KINDS:
            print(gd.sweep(functools.partial(noted, kind), [1, 2], store="store", cores={cores}))
"""


@pytest.mark.slow
def test_every_kind_of_function_is_found_again_by_another_process(tmp_path):
    def lines(seed, **values):
        (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM.format(**values)))
        (tmp_path / "notes").write_text("")
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "program.py"]
        out = subprocess.check_output(command, cwd=tmp_path, text=True, env=environment)
        return out.splitlines(), len((tmp_path / "notes").read_text())

    first, computed = lines(1, share=2, power=1, cores=2)
    assert computed == 12 and first[1] == "[4, 6]" and first[3] == first[4] == "[3, 6]"
    assert lines(2, share=2, power=1, cores=1) == (first, 0)
    other, computed = lines(3, share=5, power=1, cores=1)
    assert computed == 6 and other[1] == "[7, 9]" and other[5] == "[6, 7]"  # three read SHARE
    other, computed = lines(4, share=2, power=2, cores=1)
    assert computed == 4 and other[3] == other[4] == "[3, 12]"


def test_a_damaged_file_is_computed_again(tmp_path):
    assert gd.sweep(scaled, [1.0, 2.0], store=tmp_path, cores=1) == [1.0, 2.0]
    for file in tmp_path.glob("*/*"):
        file.write_bytes(file.read_bytes()[:-1])
    assert gd.sweep(scaled, [1.0, 2.0], store=tmp_path, cores=1) == [1.0, 2.0]


def test_another_version_computes_anew(tmp_path, monkeypatch):
    notes = tmp_path / "notes"
    notes.mkdir()
    for version, count in (("a", 1), ("a", 1), ("b", 2)):
        monkeypatch.setattr(sweeps, "environment", lambda: version)  # noqa: B023
        gd.sweep(settle, [(0.1, notes)], store=tmp_path / "store", cores=1)
        assert calls(notes) == {"0.1": count}


def test_a_point_that_stands_twice_is_computed_once(tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    both = gd.sweep(settle, [(0.1, notes)] * 2, store=tmp_path / "store", cores=1)
    assert both[0] == both[1] and calls(notes) == {"0.1": 1}


def test_results_that_do_not_pickle_are_named_and_lose_no_other(tmp_path):
    with pytest.raises(gd.SweepFailed, match="a store needs results whose parts pickle"):
        gd.sweep(closure, [1, 2], store=tmp_path, cores=1)


@pytest.mark.parametrize("store", [3, Path(__file__), True])
def test_a_store_that_is_no_folder_is_refused(store):
    with pytest.raises(ValueError, match="store"):
        gd.sweep(len, [[1]], store=store, cores=1)


# what is raised


def fails(x):
    raise gd.SweepFailed("words", [x, None], [(1, 2, "trace")])


def diverges(_):
    problem = gd.Problem(activation=gd.linear, v_star=[1], T=[[1]], eta=2.4)
    return gd.run(gd.flow(), problem, gd.Overlaps.single(Q=[[1]], R=[[0]], v=[1]), 100.0)


@pytest.mark.slow
@pytest.mark.parametrize("function", [fails, diverges])
def test_what_is_raised_survives_copies_pickles_and_pools(function):
    with pytest.raises(ValueError) as caught:
        function(7)
    one = caught.value
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(type(one)) as caught:
            pool.submit(function, 7).result(timeout=120)
    for other in (
        copy.copy(one),
        copy.deepcopy(one),
        pickle.loads(pickle.dumps(one)),
        caught.value,
    ):
        assert type(other) is type(one) and str(other) == str(one)
        assert vars(other).keys() >= vars(one).keys() - {"__notes__"}
        if function is fails:
            assert (other.records, other.failures) == ([7, None], [(1, 2, "trace")])
        else:
            assert other.trajectory == one.trajectory


def test_every_exception_of_the_package_can_be_copied():
    for module in [m for name, m in sys.modules.items() if name.startswith("gossipdyn")]:
        for kind in vars(module).values():
            if (
                isinstance(kind, type)
                and issubclass(kind, Exception)
                and "gossipdyn" in kind.__module__
            ):
                assert str(copy.copy(kind("words"))) == "words"


@pytest.mark.slow
def test_a_change_anywhere_in_gossipdyn_is_another_environment(tmp_path):
    """In every folder of the package; a change of a docstring alone is none."""
    package = tmp_path / "gossipdyn"
    shutil.copytree(Path(gd.__file__).parent, package)

    def environment():
        code = "from gossipdyn.runs.digest import environment; print(environment())"
        here = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, env=here)

    known = {environment()}
    for name in ["equations.py", "averages/erf.py"]:
        file = package / name
        file.write_text(file.read_text().replace('"""', '"""Other words. ', 1))
        assert environment() in known
        file.write_text(file.read_text() + "\nOTHER = 1\n")
        known.add(environment())
    assert len(known) == 3
