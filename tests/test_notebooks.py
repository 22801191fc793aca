"""The policy for notebooks: what nbval and Sphinx cannot see, or would let pass.

nbval compares the outputs of a cell that has an execution count, so counts that run from 1 to N
leave no cell unchecked. It never compares PNG files; tests of arrays do that.
"""

import re
import symtable
from pathlib import Path

import nbformat
import pytest
import yaml
from drawn_numbers import cells_that_print_them
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "book").rglob("*.ipynb"))
LARGEST = 1_500_000  # bytes
IGNORED_CELLS = 2  # live widgets alone need the tag

ABSOLUTE_PATH = re.compile(
    r"(?<![\w.:/-])/(?:home|root|tmp|mnt|opt|srv|usr|var|Users)/|[A-Z]:\\Users"
)
NBVAL_COMMENT = re.compile(r"#\s*(?:NBVAL|PYTEST_VALIDATE)_")
MAGIC = re.compile(r"^[%!]", re.MULTILINE)
EXERCISE = re.compile(r"\{exercise(?:-start)?\}[^\n]*\n(?::[^\n]*\n)*?:label: *(\S+)")
SOLUTION = re.compile(r"\{solution(?:-start)?\} *(\S+)[^\n]*\n((?::[^\n]*\n)*)")
SIGNED_ZERO = re.compile(r"(?<![\w.])-0(?:\.0*)?(?:e[+-]?\d+)?(?![\w.])")
# an error bar, an interval, a distance in standard errors, or a bound on what was not seen
BAR = re.compile(r"\+-|\[-?[\d.]+, -?[\d.]+\]|\d ?%? to \d|\berrors?\b|\bs\.e\.|\bto within\b")
# pages with a cell that runs a finite engine and prints what the theory says
THEORY_PRINTED = {"finite_size", "warm_start"}
IMAGE_WITHOUT_ALT = re.compile(r"!\[\s*\]\(|<img(?![^>]*\balt=\"[^\"])")


def faults(path, root=ROOT):
    """The list of what is wrong with a notebook of the book under `root`, in words."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    page = "\n".join(cell.source for cell in notebook.cells)
    found = [*_file_faults(path, root, notebook), *_prose_faults(prose), *_check_faults(page)]
    counts = [cell.execution_count for cell in code]
    if counts != list(range(1, len(code) + 1)):
        found.append(f"execution counts are {counts}: run it from top to bottom")
    if not any(cell.outputs for cell in code):
        found.append("no cell has an output")
    ignored = sum("nbval-ignore-output" in _tags(cell) for cell in code)
    if ignored > IGNORED_CELLS:
        found.append(f"{ignored} cells have the tag nbval-ignore-output, {IGNORED_CELLS} may")
    for number, cell in enumerate(code, 1):
        found += [f"cell {number} {fault}" for fault in _cell_faults(cell)]
    return [*found, *_drawn_faults(path, code), *_leaning_checks(notebook)]


def _file_faults(path, root, notebook):
    kernel = notebook.metadata.get("kernelspec", {}).get("name")
    if kernel != "python3":
        yield f"the kernel is {kernel}, readers have python3"
    if path.stat().st_size > LARGEST:
        yield f"the file has {path.stat().st_size} bytes, at most {LARGEST}"
    if path.relative_to(root).with_suffix("").as_posix() not in _pages(root):
        yield "_toc.yml does not list it"
    for cell in notebook.cells:
        if place := ABSOLUTE_PATH.search(cell.source + _text(cell.get("outputs", []))):
            yield f"an absolute path, {place[0]}..., in the cell that begins {cell.source[:40]!r}"


def _pages(root):
    """Every page that _toc.yml names, at whatever depth."""
    entries, pages = [yaml.safe_load((root / "_toc.yml").read_text())], set()
    while entries:
        entry = entries.pop()
        if isinstance(entry, dict):
            pages |= {entry[key] for key in ("root", "file") if key in entry}
            entries += entry.values()
        elif isinstance(entry, list):
            entries += entry
    return pages


def _prose_faults(prose):
    exercises = EXERCISE.findall(prose)
    solutions = dict(SOLUTION.findall(prose))
    if prose.count("{exercise") - prose.count("{exercise-end}") != len(exercises):
        yield "an exercise without a label"
    if missing := set(exercises) - set(solutions):
        yield f"no solution for {sorted(missing)}"
    if open_ := [label for label, options in solutions.items() if "dropdown" not in options]:
        yield f"solutions without `:class: dropdown`: {open_}"
    if exercises and "**Time:**" not in prose:
        yield "a chapter says how long it takes, after **Time:**"
    if IMAGE_WITHOUT_ALT.search(prose):
        yield "an image in the prose without alt text"


def _check_faults(page):
    """Each exercise has an assertion, outside of its solution and before the next exercise."""
    for exercise in re.split(r"\{exercise(?:-start)?\}", page)[1:]:
        if "assert" not in exercise.split("{solution-end}")[-1]:
            yield f"no cell checks the answer to the exercise{exercise.splitlines()[0]}"


def _leaning_checks(notebook):
    """Checks that need a name which only the solution makes, so that a reader's own answer fails.

    `answer` may be needed, and what the exercise names in backticks.
    """
    given, solved, inside = {"answer"}, set(), False
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            if "{exercise" in cell.source:
                given, solved = {"answer", *re.findall(r"`(\w+)[`(]", cell.source)}, set()
            inside = "{solution-end}" not in cell.source and (
                inside or "{solution-start}" in cell.source
            )
        elif inside:
            solved |= _names(cell.source)[0]
        elif cell.cell_type == "code":
            made, needed = _names(cell.source)
            if lent := (needed - made - given) & solved:
                yield f"a check needs {sorted(lent)}, which only the solution defines"


def _names(source):
    """The global names that a cell makes, and those that it uses."""
    try:
        tables = [symtable.symtable(source, "cell", "exec")]
    except SyntaxError:  # a magic, which is a fault of its own
        return set(), set()
    top = tables[0].get_symbols()
    made = {s.get_name() for s in top if s.is_assigned() or s.is_imported() or s.is_namespace()}
    used = {s.get_name() for s in top if s.is_referenced()}
    while tables:
        table = tables.pop()
        used |= {s.get_name() for s in table.get_symbols() if s.is_global()}
        tables += table.get_children()
    return made, used


def _cell_faults(cell):
    if cell.source.rstrip().endswith(";"):
        yield "ends in ';', which nbval takes for another output"
    if MAGIC.search(cell.source):
        yield "holds a magic or a shell command, which is no Python"
    if NBVAL_COMMENT.search(cell.source):
        yield "speaks to nbval in a comment; only the tag nbval-ignore-output may"
    if refused := {"nbval-skip", "raises-exception", "nbval-raises-exception"} & _tags(cell):
        yield f"has the tag {refused.pop()}, which keeps it from being checked"
    if "nbval-ignore-output" in _tags(cell) and not cell.outputs:
        yield "ignores its output and has none"
    if zero := SIGNED_ZERO.search(_text(cell.outputs)):
        yield f"shows a signed zero, {zero[0]}: its sign is that of rounding"
    for output in cell.outputs:
        if output.output_type == "error":
            yield f"failed with {output.ename}"
        if output.get("name") == "stderr":
            yield f"wrote to stderr: {output.text[:60]!r}"
        alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
        if any(mime.startswith("image/") for mime in output.get("data", {})) and not alt.strip():
            yield "shows a figure without alt text (metadata: mystnb, image, alt)"


def _drawn_faults(path, code):
    if path.stem in THEORY_PRINTED or any(MAGIC.search(cell.source) for cell in code):
        return
    for i in cells_that_print_them([cell.source for cell in code]):
        if not BAR.search(_text(code[i].outputs)):
            yield f"cell {i + 1} prints numbers of a finite engine without an error bar"


def _tags(cell):
    return set(cell.metadata.get("tags", []))


def _text(outputs):
    """All that the outputs say in words."""
    said = [output.get("text", "") for output in outputs]
    data = [output.get("data", {}) for output in outputs]
    said += [str(value) for d in data for mime, value in d.items() if mime != "image/png"]
    return "\n".join(said)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_keeps_the_policy(path):
    found = faults(path)
    assert not found, "\n".join(found)


PROSE = """# A page

**Time:** a minute.

```{exercise}
:label: count
How many?
```

```{solution-start} count
:class: dropdown
```

One.

```{solution-end}
```
"""
CHECK = "answer = 1\nassert answer == 1\nprint(answer)"
SOLVED = PROSE.split("One.")


def sound():
    """A notebook that keeps the policy: prose, a printed number, a figure."""
    printed = new_output("stream", text="1\n")
    figure = new_output("display_data", {"image/png": "", "text/plain": "<Figure>"})
    alt = {"mystnb": {"image": {"alt": "A falling line."}}}
    return new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        cells=[
            new_markdown_cell(PROSE),
            new_code_cell(CHECK, execution_count=1, outputs=[printed]),
            new_code_cell("plt.show()", execution_count=2, outputs=[figure], metadata=alt),
        ],
    )


def found_after(change, root):
    """The faults of the sound notebook after `change`, which gets its three cells."""
    (root / "book").mkdir()
    (root / "_toc.yml").write_text("root: book/page\n")
    notebook = sound()
    change(notebook)
    nbformat.write(notebook, root / "book/page.ipynb")
    return faults(root / "book/page.ipynb", root)


def test_the_policy_lets_a_sound_notebook_pass(tmp_path):
    assert found_after(lambda notebook: None, tmp_path) == []


@pytest.mark.parametrize(
    "source, text",
    [
        ("print(f'{m:.3f} +- {e:.3f}')", "0.021 +- 0.002"),
        ("print(f'within {m / e:.1f} standard errors')", "within 1.2 standard errors"),
        ("assert m < 1\nprint('below 1')", "below 1"),
        ("m = 0.5\nprint(f'{m:.1f}, {-0.5:.1f}, {1e-5:.0e}, {t}')", "0.5, -0.5, 1e-05, t-0"),
    ],
)
def test_numbers_with_error_bars_and_other_numbers_pass(source, text, tmp_path):
    assert found_after(drawn(source, text), tmp_path) == []


def prose(old, new):
    return lambda notebook: notebook.cells[0].update(source=PROSE.replace(old, new))


def source(text):
    return lambda notebook: notebook.cells[1].update(source=text)


def output(*args, **kwargs):
    return lambda notebook: notebook.cells[1].update(outputs=[new_output(*args, **kwargs)])


def tags(*names):
    return lambda notebook: notebook.cells[1].metadata.update(tags=names)


def drawn(source, text):
    """A cell that prints what a finite engine gave: the mean and the error of its risk."""
    chain = "t = gd.run(gd.chain(N=9), problem, x)\nm, e = t.mean('risk')[-1], t.sem('risk')[-1]\n"
    answer = "\nanswer = 1\nassert answer"

    def change(notebook):
        outputs = [new_output("stream", text=text)]
        notebook.cells[1].update(source=chain + source + answer, outputs=outputs)

    return change


def no_outputs(notebook):
    for cell in notebook.cells[1:]:
        cell.outputs = []


def all_ignored(notebook):
    outputs = notebook.cells[1].outputs
    notebook.cells.append(new_code_cell("print(1)", execution_count=3, outputs=outputs))
    for cell in notebook.cells[1:]:
        cell.metadata["tags"] = ["nbval-ignore-output"]


def leaning(made, needed):
    """A solution that makes a name, and a check that needs one."""

    def change(notebook):
        before, after = (new_markdown_cell(text) for text in SOLVED)
        solution = new_code_cell(made, execution_count=1)
        check = new_code_cell(f"assert {needed}\nprint(1)", execution_count=2)
        check.outputs = notebook.cells[1].outputs
        notebook.cells = [before, solution, after, check]

    return change


@pytest.mark.parametrize(
    "change, fault",
    [
        (leaning("rate = 1\nanswer = rate", "rate == answer"), "a check needs ['rate']"),
        (leaning("def rate():\n    pass", "(lambda: rate)()"), "a check needs ['rate']"),
        (lambda notebook: notebook.metadata.kernelspec.update(name="mine"), "kernel is mine"),
        (lambda notebook: notebook.cells[1].update(execution_count=7), "counts are [7, 2]"),
        (no_outputs, "no cell has an output"),
        (all_ignored, "3 cells have the tag"),
        (tags("nbval-skip"), "the tag nbval-skip"),
        (tags("raises-exception"), "the tag raises-exception"),
        (source("1;"), "ends in ';'"),
        (source("%%time\n1"), "a magic"),
        (source("# NBVAL_SKIP\n1"), "in a comment"),
        (source("open('/home/me/x')"), "an absolute path, /home/"),
        (output("stream", text="saved in /tmp/x"), "an absolute path, /tmp/"),
        (output("stream", name="stderr", text="beware"), "wrote to stderr: 'beware'"),
        (output("error", ename="KeyError", evalue="", traceback=[]), "failed with KeyError"),
        (output("stream", text="1" * LARGEST), "bytes, at most"),
        (output("stream", text="slope -0.00 at the end"), "a signed zero, -0.00"),
        (drawn("print(f'{m:.3f}')", "0.021"), "without an error bar"),
        (drawn("def f(q): return 2 * m * q\nprint(f'{f(3):.1f}')", "0.1"), "without an error bar"),
        (lambda notebook: notebook.cells[2].metadata.clear(), "a figure without alt text"),
        (prose("# A page", "![](plot.svg)"), "in the prose without alt text"),
        (prose("**Time:** a minute.", ""), "says how long"),
        (prose(":label: count", ":class: tip"), "an exercise without a label"),
        (prose("start} count", "start} other"), "no solution for ['count']"),
        (source("print(1)"), "no cell checks the answer"),
        (prose(":class: dropdown", ":class: tip"), "without `:class: dropdown`"),
    ],
)
def test_the_policy_names_the_fault(change, fault, tmp_path):
    assert fault in "\n".join(found_after(change, tmp_path))


def test_a_check_may_need_the_answer_and_names_of_its_own(tmp_path):
    sound = leaning("def f(rate):\n    inner = rate\n\nanswer = 1", "(rate := 1) + answer > 0")
    assert found_after(sound, tmp_path) == []


def test_the_policy_names_a_page_that_the_table_of_contents_lacks(tmp_path):
    assert found_after(lambda notebook: None, tmp_path) == []
    (tmp_path / "_toc.yml").write_text("root: book/index\n")
    assert faults(tmp_path / "book/page.ipynb", tmp_path) == ["_toc.yml does not list it"]
