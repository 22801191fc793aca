"""The notation page says what the code says: names, shapes, equations."""

import re
from dataclasses import fields
from functools import reduce
from pathlib import Path

import numpy as np
import pytest

import gossipdyn as gd

BOOK = Path(__file__).parents[1] / "book"
PAGE = (BOOK / "notation.md").read_text()
RECORDS = {
    record.__name__: record for record in (gd.Problem, gd.Weights, gd.Overlaps, gd.Trajectory)
}

SIZES = {"P": 2, "K": 3, "M": 4, "N": 20, "runs": 1, "times": 3}


def table(section):
    """The rows of a section's table, as {column: text}."""
    text = re.search(rf"^## {section}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows]


def name(row):
    return row["code"].strip("`")


def example():
    """One of each record, with axes that all differ in length."""
    K, M, N = SIZES["K"], SIZES["M"], SIZES["N"]
    problem = gd.Problem(activation=gd.erf, v_star=np.ones(M), T=np.eye(M))
    x0 = gd.random_start(problem, workers=SIZES["P"], students=K, N=N)
    trajectory = gd.run(gd.flow(), problem, x0, [(1.0, gd.ring(2))])
    return {
        "Problem": problem,
        "Weights": gd.lift(problem, x0, N),
        "Overlaps": x0,
        "Trajectory": trajectory,
    }


EXAMPLE = example()


@pytest.mark.parametrize("section", RECORDS)
def test_the_table_names_the_fields_of_the_record(section):
    assert [name(row) for row in table(section)] == [f.name for f in fields(RECORDS[section])]


@pytest.mark.parametrize("section", RECORDS)
def test_the_table_has_the_shapes_of_the_arrays(section):
    for row in table(section):
        value, shape = getattr(EXAMPLE[section], name(row)), row["shape"].strip("`")
        assert isinstance(value, np.ndarray) == shape.startswith("("), name(row)
        if isinstance(value, np.ndarray):
            axes = shape.strip("()").replace("...", "").split(",")
            assert value.shape == tuple(SIZES[a.strip()] for a in axes if a.strip()), name(row)


@pytest.mark.parametrize("section", RECORDS)
def test_the_docstring_has_the_shapes_of_the_table(section):
    for row in table(section):
        if row["shape"].startswith("`"):
            said = rf"\b{name(row)}(?: :)? {re.escape(row['shape'].strip('`'))}"
            assert re.search(said, RECORDS[section].__doc__), f"{section}.{name(row)}"


def test_the_deeds_exist():
    for row in table("Deeds"):
        top, *names = name(row).split(".")
        assert top == "gd" and callable(reduce(getattr, names, gd))


def test_every_equation_of_the_page_stands_in_the_book():
    chapters = "".join(path.read_text() for path in BOOK.glob("*.ipynb"))
    labels = re.findall(r"\$\$ \((eq-[\w-]+)\)", chapters)
    assert set(re.findall(r"\{eq\}`(eq-[\w-]+)`", PAGE)) <= set(labels)
    assert len(labels) == len(set(labels)), "a label stands twice"
