"""The ledger: every statement of the note once, with a verdict and with evidence that was computed.

The page itself asserts the check behind each verdict; here it is read from outside, so that no row
can get lost, repeat itself, or rest on a number that nobody computed.
"""

import ast
import re
from collections import Counter
from pathlib import Path

import nbformat
import pytest

BOOK = Path(__file__).parents[1] / "book"
STATEMENTS = 45
VERDICTS = {"holds", "holds with a condition", "too strong", "wrong", "not testable here"}
NAMED = {"C1", "C2", "C3", "R1", "Q1", "Q2", "Q3"}  # as the note numbers them
ROW = re.compile(r"^\| (\d+) \| (.+) \| \*\*(.+)\*\* \| (.+) \|$", re.MULTILINE)
LABELS = set(
    re.findall(r"\$\$ \((eq-[\w-]+)\)", "".join(path.read_text() for path in BOOK.glob("*.ipynb")))
)


def entries(source):
    """number: (the evidence, the check), expressions in the calls of claim() in a cell."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    claims = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "claim"]
    return {c.args[0].value: (c.args[3], c.args[5]) for c in claims}


def rows(cell):
    """(number, statement, verdict, evidence) of the tables among the outputs of a cell."""
    tables = [output.get("data", {}).get("text/markdown", "") for output in cell.outputs]
    return [(int(n), *rest) for n, *rest in ROW.findall("\n".join(tables))]


def faults(notebook):
    """What is wrong with the ledger of a notebook, in words."""
    found, numbers, said = [], Counter(), []
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        computed = entries(cell.source)
        shown = rows(cell)
        numbers.update(row[0] for row in shown)
        said += [row[1] for row in shown]
        if shown and cell.execution_count is None:
            found.append(f"the cell that shows {shown[0][0]} was not executed")
        if hidden := sorted(computed.keys() - {row[0] for row in shown}):
            found.append(f"{hidden} are entered and not shown")
        for number, _, verdict, evidence in shown:
            if verdict not in VERDICTS:
                found.append(f"{number} has the verdict {verdict!r}")
            if number not in computed:
                found.append(f"{number} is shown by a cell that does not enter it")
            else:
                found += [f"{number} {fault}" for fault in unsupported(*computed[number])]
            found += [f"{number} {fault}" for fault in unlinked(evidence)]
    repeated = [n for n, count in numbers.items() if count > 1]
    if repeated or set(numbers) != set(range(1, STATEMENTS + 1)):
        missing = sorted(set(range(1, STATEMENTS + 1)) ^ set(numbers))
        found.append(f"numbers repeated: {repeated}, missing or too many: {missing}")
    if missing := NAMED - set(re.findall(r"\b[CRQ]\d\b", " ".join(said))):
        found.append(f"no statement names {sorted(missing)}")
    return found


def unsupported(evidence, check):
    numbers = any(isinstance(node, ast.FormattedValue) for node in ast.walk(evidence))
    # a statement about a paper may rest on the paper, if the row says so
    read = all(words in ast.unparse(evidence) for words in ("{cite", "nothing is computed"))
    if not (numbers or read):
        yield "has evidence in which no number is computed"
    if not any(isinstance(node, ast.Name) for node in ast.walk(check)):
        yield "has a check that cannot fail"


def unlinked(evidence):
    text, arrow, links = evidence.rpartition("$\\to$")
    pages = re.findall(r"\]\(([\w.]+)\)", links)
    if not pages or not all((BOOK / page).exists() for page in pages):
        yield f"links to no page of the book: {pages}"
    if unknown := set(re.findall(r"\{eq\}`([\w-]+)`", links)) - LABELS:
        yield f"cites unknown equations: {unknown}"
    if not re.search(r"\d", text):
        yield "has no number in its evidence"


def page():
    return nbformat.read(BOOK / "claims.ipynb", as_version=4)


def test_every_statement_stands_once_with_a_verdict_and_computed_evidence():
    found = faults(page())
    assert not found, "\n".join(found)


def shown(old, new):
    """A change of the first table."""

    def change(notebook):
        cell = next(c for c in notebook.cells if c.cell_type == "code" and rows(c))
        for output in cell.outputs:
            text = output.data["text/markdown"]
            assert old in text
            output.data["text/markdown"] = text.replace(old, new, 1)

    return change


def source(pattern, new):
    """A change of the first cell whose source has the pattern."""

    def change(notebook):
        cell = next(c for c in notebook.cells if re.search(pattern, c.source, re.DOTALL))
        cell.source = re.sub(pattern, new, cell.source, count=1, flags=re.DOTALL)

    return change


def not_executed(notebook):
    next(c for c in notebook.cells if c.cell_type == "code" and rows(c)).execution_count = None


FIRST = r"claim\(\n    1,.*?\n\)\n"


@pytest.mark.parametrize(
    "change, fault",
    [
        (shown("| 2 |", "| 3 |"), "numbers repeated: [3]"),
        (shown("| 2 |", "| 99 |"), "missing or too many: [2, 99]"),
        (shown("| **holds** |", "| **true** |"), "1 has the verdict 'true'"),
        (shown("](from_sgd_to_ode.ipynb)", "](nowhere.ipynb)"), "1 links to no page"),
        (shown("{eq}`eq-flow`", "{eq}`eq-flaw`"), "1 cites unknown equations: {'eq-flaw'}"),
        (source(FIRST, ""), "1 is shown by a cell that does not enter it"),
        (
            source(FIRST, 'claim(1, "a", HOLDS, "it is 3", see("index"), x > 2)\n'),
            "1 has evidence in which no number is computed",
        ),
        (
            source(FIRST, 'claim(1, "a", HOLDS, f"it is {x}", see("index"), True)\n'),
            "1 has a check that cannot fail",
        ),
        (not_executed, "the cell that shows 1 was not executed"),
        (source(r"\ntable\(\"definitions\"\)", "\nclaim(46, 1, 2, 3, 4, 5)"), "[46] are entered"),
    ],
)
def test_the_fault_of_a_ledger_is_named(change, fault):
    notebook = page()
    change(notebook)
    assert fault in "\n".join(faults(notebook))


def test_a_question_of_the_note_that_is_left_out_is_named():
    notebook = page()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "text/markdown" in output.get("data", {}):
                text = output.data["text/markdown"]
                output.data["text/markdown"] = text.replace("Q2: ", "")
    assert "no statement names ['Q2']" in faults(notebook)
