"""CI fails when it should: mutated copies of a small checkout go through the Makefile's verbs.

The copy holds the package, the configuration and the notebook policy of this checkout, and a book
of one page that was executed with the package as it is.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).parents[1]
COPIED = [
    "Makefile",
    "_config.yml",
    "pyproject.toml",
    "book/_static",
    "book/references.bib",
    "book/references.md",
    "gossipdyn",
    "tests/another_kernel.py",
    "tests/conftest.py",
    "tests/drawn_numbers.py",
    "tests/test_notebooks.py",
]
TOC = "format: jb-book\nroot: book/index\nchapters:\n  - file: book/references\n"
PROSE = """# One page

Saad and Solla {cite}`saad1995exact` did it; see [](section).

(section)=
## Here
"""
CELL = "import gossipdyn as gd\n\nprint(f'{gd.erf.I2([[1, 0.5], [0.5, 1]]):.4f}')"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed"),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A small checkout without a fault."""
    root = tmp_path_factory.mktemp("checkout")
    for name in COPIED:
        (root / name).parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, root / name)
    (root / "_toc.yml").write_text(TOC)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [new_markdown_cell(PROSE), new_code_cell(CELL)]
    page = new_notebook(cells=cells, metadata={"kernelspec": kernel})
    NotebookClient(page).execute()
    nbformat.write(page, root / "book/index.ipynb")
    return root


@pytest.fixture
def checkout(sound, tmp_path):
    """A copy of it to put a fault into."""
    return shutil.copytree(sound, tmp_path / "checkout")


def make(verb, checkout):
    """`make verb` in the checkout, with this environment and the checkout's package."""
    command = ["make", verb, f"BIN={Path(sys.executable).parent}", "READY="]
    environ = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "MAKE", "MFLAGS"))
    }
    environ["PYTHONPATH"] = str(checkout)
    done = subprocess.run(command, cwd=checkout, env=environ, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def edit(path, old, new):
    text = path.read_text()
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new))


def test_a_sound_checkout_passes(sound):
    for verb in ["test", "book"]:
        code, said = make(verb, sound)
        assert code == 0, said
    assert (sound / "_build/html/book/index.html").exists()


def test_a_changed_output_fails(checkout):
    edit(checkout / "book/index.ipynb", "0.1609", "0.1610")
    code, said = make("test", checkout)
    assert code and "Cell outputs differ" in said


def test_a_changed_constant_in_the_package_fails(checkout):
    edit(checkout / "gossipdyn/averages/erf.py", "2 / np.pi", "2.01 / np.pi")
    code, said = make("test", checkout)
    assert code and "Cell outputs differ" in said


def test_a_notebook_without_outputs_fails(checkout):
    page = nbformat.read(checkout / "book/index.ipynb", as_version=4)
    page.cells[1].update(outputs=[], execution_count=None)
    nbformat.write(page, checkout / "book/index.ipynb")
    code, said = make("test", checkout)
    assert code and "no cell has an output" in said


def test_an_output_that_hangs_on_the_kernel_fails_under_another_one(checkout):
    """The page prints what make test-portable changes: it is right under the own kernel alone."""
    page = nbformat.read(checkout / "book/index.ipynb", as_version=4)
    page.cells[1].source = "import os\n\n" + page.cells[1].source
    page.cells[1].source += "\nprint(os.environ.get('OPENBLAS_CORETYPE'))  # like gd.chain()"
    page.cells[1].outputs[0].text += "None\n"
    nbformat.write(page, checkout / "book/index.ipynb")
    assert make("test", checkout)[0] == 0
    code, said = make("test-portable", checkout)
    if "no second kernel" in said:
        pytest.skip("no second kernel of OpenBLAS runs here")
    assert code and "Cell outputs differ" in said


def test_a_warning_of_the_book_fails(checkout):
    edit(checkout / "book/index.ipynb", "see [](section)", "see [](nowhere)")
    code, said = make("book", checkout)
    assert code and "nowhere" in said
