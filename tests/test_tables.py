"""Every table in book/data comes from its script: the head says so, and a cell is computed again.

A flow is compared to its tolerance. A finite engine is run with fresh seeds and fewer runs, and
compared within five combined standard errors: another BLAS kernel gives other runs after long
times, so the stored ones cannot come back digit for digit.
"""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
tables = importlib.import_module("tables")

SCRIPTS = {name: importlib.import_module(name) for name in tables.scripts()}
TABLES = {table: name for name, script in SCRIPTS.items() for table in script.TABLES}
FRESH = 12345  # a seed of no script
# files not made anew since heads name commit and versions: take yours out when you make it
WAITING = set(
    """
    exit_times diagnosis gelu_bridge global_minimum matched_early noise_and_width setback_early
    setback_map setback_noise setback_runs theory_meets_simulation_exit
    theory_meets_simulation_fixed topology warm_start
    """.split()
)


def column(rows, name):
    return np.array([float(row[name]) for row in rows])


def mean_and_error(x):
    return np.mean(x), np.std(x, ddof=1) / np.sqrt(len(x))


def assert_near(one, other, sigmas=5):
    """Two pairs (value, standard error) agree."""
    (a, da), (b, db) = one, other
    assert abs(a - b) <= sigmas * np.hypot(da, db), f"{a} +- {da} and {b} +- {db}"


def test_make_tables_makes_every_file():
    files = {path.stem for path in tables.DATA.iterdir()} - WAITING
    assert files == set(TABLES) - WAITING


@pytest.mark.parametrize("table", sorted(TABLES))
def test_every_table_has_a_test_here(table):
    assert f"test_{table}" in globals()


@pytest.mark.parametrize("table", sorted(set(TABLES) - WAITING))
def test_the_head_names_script_commit_and_versions(table):
    script = TABLES[table]
    head, rows = tables.read(table)
    assert re.fullmatch(
        rf"# python benchmarks/{script}\.py, seed {SCRIPTS[script].SEED}; commit [0-9a-f]{{7,40}}; "
        r"gossipdyn [\w.]+, python [\w.]+, numpy [\w.]+, scipy [\w.]+, torch [\w.+]+\n",
        head,
    )
    columns, _, points = SCRIPTS[script].TABLES[table]
    assert list(rows[0]) == list(columns)
    assert len(rows) >= len(points)


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_a_script_says_how_long_it_takes(script):
    assert re.search(r"(minutes?|seconds) (on|of) (one|an) idle core", SCRIPTS[script].__doc__)


def test_exit_times():
    seen = SCRIPTS["exit_times"].exits(50, 64, FRESH)
    rows = [row for row in tables.read("exit_times")[1] if row["N"] == "50"]
    for i, name in enumerate(["u_start", "exit", "u_exit"]):
        stored = np.abs(column(rows, name))
        assert_near(mean_and_error(np.abs(seen[:, i])), mean_and_error(stored))
