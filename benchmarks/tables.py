"""Tables in book/data: computed cell by cell, kept as they come, written with a head.

    python benchmarks/tables.py [--cores n] [script ...]     all scripts that have tables, or these
    python benchmarks/exit_times.py                          one of them
    make tables                                              all, under two hours on two cores

A script beside this file says in its docstring how long it takes. It has SEED and

    TABLES = {name: Table(columns, cell, points), ...}

and computes with gossipdyn alone, not with other scripts. Its cells are kept in _build/tables as
they come, so that a killed run goes on where it was. A cell is computed anew when the script, the
package or a version in the head is another.

The head of a table is its first line, a comment: script, seed, commit and versions.
"""

import argparse
import csv
import hashlib
import platform
import subprocess
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import gossipdyn as gd

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
DATA = ROOT / "book" / "data"


class Table(NamedTuple):
    """What a script says of one file.

    columns : {name: format of its values}, such as {"N": "", "risk": "z.4f"}. The z makes a
        rounded -0 a 0.
    cell : a function at the top level of the script, of a point: the rows that it adds.
    points : of plain data, such as (N, seed): all that tells one cell from the others.
    """

    columns: dict[str, str]
    cell: Callable
    points: list


def scripts():
    """The names of the scripts that make tables."""
    return [path.stem for path in sorted(HERE.glob("*.py")) if "\nTABLES = " in path.read_text()]


def make(script, cores=-1):
    """Write the tables of a script, given by name or path, on so many cores (-1: all)."""
    name = Path(script).stem
    module = import_module(name)
    versions = f"gossipdyn {gd.__version__}, python {platform.python_version()}, " + ", ".join(
        f"{package} {version(package)}" for package in ("numpy", "scipy", "torch")
    )
    head = f"# python benchmarks/{name}.py, seed {module.SEED}; commit {commit()}; {versions}"
    sources = [HERE / f"{name}.py", *sorted((ROOT / "gossipdyn").rglob("*.py"))]
    digest = hashlib.sha256(versions.encode() + b"".join(path.read_bytes() for path in sources))
    store = ROOT / "_build" / "tables" / f"{name}-{digest.hexdigest()[:12]}"
    for table, (columns, cell, points) in module.TABLES.items():
        start = time.perf_counter()
        cells = gd.sweep(cell, points, store=store, cores=cores)
        write(table, head, columns, [row for rows in cells for row in rows])
        print(f"book/data/{table}.csv: {time.perf_counter() - start:.0f} s", flush=True)


def commit():
    """The commit that is checked out, and whether what computes has changed since."""

    def git(*words):
        return subprocess.run(("git", "-C", ROOT, *words), check=True, capture_output=True).stdout

    changes = git("status", "--porcelain", "--", "gossipdyn", "benchmarks")
    return git("rev-parse", "--short", "HEAD").decode().strip() + ("+changes" if changes else "")


def write(name, head, columns, rows):
    """book/data/name.csv: the head, the names of the columns, the rows in the columns' formats."""
    DATA.mkdir(exist_ok=True)
    with open(DATA / f"{name}.csv", "w", newline="") as file:
        file.write(head + "\n")
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        for row in rows:
            table.writerow([f"{x:{form}}" for x, form in zip(row, columns.values(), strict=True)])


def read(name):
    """The head of a table, and its rows: a dict {column: text} each."""
    with open(DATA / f"{name}.csv", newline="") as file:
        return file.readline(), list(csv.DictReader(file))


if __name__ == "__main__":
    words = argparse.ArgumentParser(description="Make the tables in book/data.")
    words.add_argument("script", nargs="*", default=scripts())
    words.add_argument("--cores", type=int, default=-1)
    options = words.parse_args()
    for script in options.script:
        make(script, options.cores)
