"""The shared plots show what they are handed, and name what differs."""

import json
import re
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

import gossipdyn as gd
from gossipdyn import book, figures

ROOT = Path(__file__).parents[1]
PROBLEM = gd.Problem(activation=gd.erf, v_star=(1, 1), T=np.eye(2), eta=0.5)
START = gd.Overlaps.single(Q=np.diag([0.2, 0.3]), R=np.diag([0.1, 0.05]), v=[1, 1])


@pytest.fixture
def ax():
    mpl.use("Agg")
    with mpl.rc_context():
        figures.style()
        fig, ax = mpl.pyplot.subplots()
        yield ax
        mpl.pyplot.close(fig)


def labels(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def flow(problem):
    return gd.run(gd.flow(), problem, START, 2.0, record=[1.0])


def test_runs_of_different_problems_are_named_by_what_differs(ax):
    problems = {"a": PROBLEM, "b": replace(PROBLEM, batch=4), "c": replace(PROBLEM, v_star=(2, 1))}
    figures.risk_curves(ax, {label: flow(problem) for label, problem in problems.items()})
    assert labels(ax) == [
        "a (v_star=[1., 1.], batch=1)",
        "b (v_star=[1., 1.], batch=4)",
        "c (v_star=[2., 1.], batch=1)",
    ]


def test_runs_of_one_problem_keep_their_labels(ax):
    figures.risk_curves(ax, {"theory": flow(PROBLEM), "again": flow(replace(PROBLEM))})
    assert labels(ax) == ["theory", "again"]


def test_a_flow_is_a_line_and_a_finite_engine_is_points_with_two_standard_errors(ax):
    theory = flow(PROBLEM)
    chain = gd.run(gd.chain(N=20, runs=8, seed=0), PROBLEM, START, 2.0, record=[1.0])
    figures.risk_curves(ax, {"flow": theory, "chain": chain}, worker=0)
    line, points = ax.lines[:2]
    assert np.array_equal(line.get_ydata(), theory.risk[0, :, 0])
    assert points.get_linestyle() == "None"
    segments = np.array(ax.collections[0].get_segments())  # (times, two ends, x and y)
    middle, length = segments[..., 1].mean(1), np.diff(segments[..., 1])[:, 0]
    assert np.allclose(middle, chain.mean("risk")[:, 0], rtol=1e-12)
    assert np.allclose(length, 4 * chain.sem("risk")[:, 0], rtol=1e-9)


def test_every_line_of_a_figure_differs_in_colour_and_in_dashes():
    looks = list(figures.CYCLE)
    assert len({look["color"] for look in looks}) == len(looks)
    assert len({str(look["linestyle"]) for look in looks}) == len(looks)


# stored tables


def test_a_table_is_found_wherever_the_kernel_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = book.table("exit_times")
    assert list(rows[0]) == ["N", "u_start", "exit", "u_exit"]
    assert len(rows) > 1000 and not any(row["N"].startswith("#") for row in rows)
    assert book.in_repository("tests", "data", "committee_M2_K2.csv").exists()


def test_an_installed_package_has_all_files_that_pages_read(tmp_path, monkeypatch):
    """The wheel takes along what stands in the repository, where in_repository looks for it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    taken = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    site = tmp_path / "site"
    for source, target in taken.items():
        assert target == f"gossipdyn/files/{source}"
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        (site / target).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / source, site / target)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(book, "__file__", str(site / "gossipdyn" / "book.py"))
    read = {
        tuple(re.findall(r'"([^"]+)"', arguments))
        for page in ROOT.glob("book/*.ipynb")
        for cell in json.loads(page.read_text())["cells"]
        for arguments in re.findall(r"in_repository\(([^)]*)\)", "".join(cell["source"]))
    }
    assert len(read) >= 5
    for parts in read:
        if "." in parts[-1]:  # the name may be the page's variable
            assert book.in_repository(*parts).is_file()
    assert len(book.table("exit_times")) > 1000


def test_a_table_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match=r"there is no file .*exit\.csv; those .*exit_times\.csv"):
        book.table("exit")


def test_a_table_outside_any_repository_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(book, "__file__", str(tmp_path / "site" / "gossipdyn" / "book.py"))
    with pytest.raises(ValueError, match="book/data/exit_times.csv belongs .*clone it"):
        book.table("exit_times")
    (tmp_path / "book" / "data").mkdir(parents=True)
    (tmp_path / "book" / "data" / "own.csv").write_text("# made by hand\na,b\n1,2\n")
    assert book.table("own") == [{"a": "1", "b": "2"}]
