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

import gossipdyn as gd

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
tables = importlib.import_module("tables")

SCRIPTS = {name: importlib.import_module(name) for name in tables.scripts()}
TABLES = {table: name for name, script in SCRIPTS.items() for table in script.TABLES}
FRESH = 12345  # a seed of no script


def column(rows, name):
    return np.array([float(row[name]) for row in rows])


def mean_and_error(x):
    return np.mean(x), np.std(x, ddof=1) / np.sqrt(len(x))


def assert_near(one, other, sigmas=5):
    """Two pairs (value, standard error) agree."""
    (a, da), (b, db) = one, other
    assert abs(a - b) <= sigmas * np.hypot(da, db), f"{a} +- {da} and {b} +- {db}"


def test_make_tables_makes_every_file():
    assert {path.stem for path in tables.DATA.iterdir()} == set(TABLES)


def assert_same_rate(one, other, count, of):
    """Two counts, `count` in `of`, of one rate."""
    k, n = (np.array([int(x[name]) for x in (one, other)]) for name in (count, of))
    p = (k.sum() + 1) / (n.sum() + 2)  # not 0: no count has no error
    assert_near(*zip(k / n, np.sqrt(p * (1 - p) / n), strict=True))


@pytest.mark.parametrize("table", sorted(TABLES))
def test_every_table_has_a_test_here(table):
    assert f"test_{table}" in globals()


@pytest.mark.parametrize("table", sorted(TABLES))
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


@pytest.mark.slow
def test_exit_times():
    seen = SCRIPTS["exit_times"].exits(50, 64, FRESH)
    rows = [row for row in tables.read("exit_times")[1] if row["N"] == "50"]
    for i, name in enumerate(["u_start", "exit", "u_exit"]):
        stored = np.abs(column(rows, name))
        assert_near(mean_and_error(np.abs(seen[:, i])), mean_and_error(stored))


@pytest.mark.slow
def test_theory_meets_simulation_fixed():
    script = SCRIPTS["theory_meets_simulation"]
    rows = [row for row in tables.read("theory_meets_simulation_fixed")[1] if row["N"] == "50"]
    for alpha, *seen in script.deviations(50, 400, FRESH):
        (row,) = (row for row in rows if float(row["alpha"]) == alpha)
        for name, pair in (("bias", seen[:2]), ("spread", seen[2:])):
            assert_near(pair, (float(row[name]), float(row[f"{name}_error"])))


@pytest.mark.slow
def test_theory_meets_simulation_exit():
    script = SCRIPTS["theory_meets_simulation"]
    chain, flow = script.exits(50, 48, FRESH)
    row = tables.read("theory_meets_simulation_exit")[1][0]
    assert row["N"] == "50"
    for name, times in (("gap", chain - flow), ("chain", chain)):
        stored = float(row[name]), float(row[f"{name}_error"])
        assert_near(script.spread_and_error(times), stored)


@pytest.mark.slow
def test_noise_and_width():
    script = SCRIPTS["noise_and_width"]
    point = ("linear", 2, 1, 0.2, 0.0)
    problem, x = script.setting(*point)
    window = np.arange(100.0, 141.0, 10.0)
    seen = script.floor(gd.chain(script.N, 256, FRESH), problem, script.settled(problem, x), window)
    (row,) = (
        row
        for row in tables.read("noise_and_width")[1]
        if row["activation"] == "linear" and row["K"] == "2"
    )
    assert_near(mean_and_error(seen), (float(row["chain"]), float(row["error"])))


@pytest.mark.slow
def test_matched_early():
    script = SCRIPTS["matched_early"]
    times = script.learning_times(script.GRAPHS["ring"], 0, 100, runs=32, seed=FRESH)
    row = tables.read("matched_early")[1][script.WAYS.index(("ring", 0, 100))]
    never, runs = int(row["never"]), int(row["runs"])
    both = (np.isinf(times).sum() + never) / (32 + runs)
    error = np.sqrt(both * (1 - both))
    assert_near((np.isinf(times).mean(), error / 32**0.5), (never / runs, error / runs**0.5))

    def median_and_error(median, low, high):
        return median, (high - low) / (2 * 1.96) + script.PERIOD

    assert_near(
        median_and_error(*gd.bootstrap(times)),
        median_and_error(*(float(row[name]) for name in ("median", "low", "high"))),
    )


@pytest.mark.slow
def test_gelu_bridge():
    script = SCRIPTS["gelu_bridge"]
    eta, beta = script.RATES[-1], 10
    seen = script.off(eta, beta, script.curve(gd.relu, eta))
    i = len(script.RATES) * len(script.SHARPNESS) - len(script.SHARPNESS)
    row = tables.read("gelu_bridge")[1][i + script.SHARPNESS.index(beta)]
    # six digits are stored, and rtol = 1e-10 leaves some 1e-9
    assert abs(seen - float(row["off"])) < 5e-6 * seen + 1e-8


@pytest.mark.slow
def test_warm_start():
    script = SCRIPTS["warm_start"]
    problem, N, *_ = script.SETTINGS["three units, N = 25"]
    pairs, different, undecided = script.spawned(problem, N, 512, 10, FRESH)
    assert undecided == 0
    (row,) = (
        row
        for row in tables.read("warm_start")[1]
        if row["setting"] == "three units, N = 25" and row["spawned"] == "10"
    )
    stored = int(row["pairs"])
    p = (different + int(row["different"])) / (pairs + stored)
    error = np.sqrt(p * (1 - p))
    rates = different / pairs, int(row["different"]) / stored
    assert_near((rates[0], error / pairs**0.5), (rates[1], error / stored**0.5))


@pytest.mark.slow
def test_setback_map():
    script = SCRIPTS["setback_map"]
    point = (60, 10)
    (seen,) = script.map_cell(point, runs=96, seed=FRESH)
    seen = dict(zip(script.TABLES["setback_map"].columns, seen, strict=True))
    row = tables.read("setback_map")[1][script.TABLES["setback_map"].points.index(point)]
    assert_same_rate(seen, row, "harmful", "runs")
    for name in ("jump", "recovery", "delay"):
        assert_near(*((float(x[name]), float(x[f"{name}_error"])) for x in (seen, row)))


@pytest.mark.slow
def test_setback_runs():
    script = SCRIPTS["setback_map"]
    seen = np.array(script.runs_cell((0.0, 80), runs=64, seed=FRESH))
    rows = [r for r in tables.read("setback_runs")[1] if (r["sigma"], r["first"]) == ("0.0", "80")]
    for i, name in enumerate(script.TABLES["setback_runs"].columns):
        if name in ("jump", "trace_loss", "recovery", "R11"):
            assert_near(mean_and_error(seen[:, i]), mean_and_error(column(rows, name)))


@pytest.mark.slow
def test_setback_noise():
    script = SCRIPTS["setback_laws"]
    median, low, high = gd.bootstrap(script.capped(200, 64, FRESH))
    row = {k: float(x) for k, x in tables.read("setback_noise")[1][0].items()}
    assert_near((median, (high - low) / (2 * 1.96)), (row["median"], row["error"]))


@pytest.mark.slow
def test_setback_early():
    script = SCRIPTS["setback_laws"]
    row = tables.read("setback_early")[1][0]
    assert (row["N"], row["first"]) == ("100", "0")
    seen = script.cost(0, 100, 64, FRESH)
    assert_near(mean_and_error(seen), (float(row["cost"]), float(row["error"])))


def ends(table, *setting):
    """The stored risks of one setting of global_minimum's tables."""
    names = ("activation", "K", "M", "eta", "N")
    rows = [r for r in tables.read(table)[1] if tuple(r[n] for n in names) == setting]
    return np.array([float(rows[0][f"risk_{i}"]) for i in range(200)])


@pytest.mark.slow
@pytest.mark.parametrize("setting", [("erf", 3, 2, 1.3, 1000), ("erf", 3, 2, 0, 10)])
def test_global_minimum(setting):
    stored = ends("global_minimum", *map(str, setting))[:20]
    seen = SCRIPTS["global_minimum"].risks(setting, 20)[:, 1]
    # two digits are stored; a start near the watershed may fall to either side
    assert np.isclose(seen, stored, rtol=0.06, atol=1e-8).sum() >= 19
    assert (stored < 1e-6).any() and (stored > 1e-3).any()


@pytest.mark.slow
def test_global_minimum_free():
    setting = ("erf", 3, 2, 0, 10)
    stored = ends("global_minimum_free", *map(str, setting))[:20]
    seen = SCRIPTS["global_minimum"].risks(setting, 20, free=True)[:, 1]
    assert np.isclose(seen, stored, rtol=0.06, atol=1e-8).sum() >= 19


@pytest.mark.slow
def test_diagnosis():
    script, name = SCRIPTS["diagnosis"], "K = M = 2"
    stored = [row for row in tables.read("diagnosis")[1] if row["setting"] == name]
    for alpha, seen in script.rounds(name, runs=32, seed=FRESH, times=(20, 60)):
        rows = [row for row in stored if row["alpha"] == str(alpha)]
        assert len(rows) == script.RUNS
        for i, column_ in enumerate(("rise", "fall", "ratio", "risk")):
            assert_near(mean_and_error(seen[:, i]), mean_and_error(column(rows, column_)))
        for i, column_ in enumerate(("blind", "harmful", "setback"), 4):
            one = {"count": seen[:, i].sum(), "of": len(seen)}
            other = {"count": column(rows, column_).sum(), "of": len(rows)}
            assert_same_rate(one, other, "count", "of")


@pytest.mark.slow
def test_topology():
    script = SCRIPTS["topology"]
    seen = script.floors(gd.chain(100, 16, FRESH), script.GRAPHS["ring"])
    (row,) = (
        row for row in tables.read("topology")[1] if (row["graph"], row["N"]) == ("ring", "100")
    )
    for values, name in zip(seen.T, ("before", "after", "mean"), strict=True):
        assert_near(mean_and_error(values), (float(row[name]), float(row[f"{name}_error"])))
