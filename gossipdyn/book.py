"""What the pages of the book share: its stored tables."""

import csv
from pathlib import Path


def table(name: str) -> list[dict[str, str]]:
    """Read the rows of book/data/<name>.csv, each a dict {column: text}, wherever the kernel runs.

    Raises ValueError, in words, if there is no such table or no copy of the repository.
    """
    with open(in_repository("book", "data", f"{name}.csv"), newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def in_repository(*parts: str) -> Path:
    """Return the path of a file of the repository, such as in_repository("book", "data", "x.csv").

    The repository is the one that the package is imported from. An installed package has these
    files itself, so that a page that was downloaded alone runs; else it is the repository that the
    kernel was started in. Raises ValueError, in words, if there is none, or no such file in it.
    """
    here, package = Path.cwd(), Path(__file__).parent
    roots = [package.parent, package / "files", here, *here.parents]
    root = next((r for r in roots if (r / "book" / "data").is_dir()), None)
    if root is None:
        raise ValueError(
            f"{'/'.join(parts)} belongs to the repository of the book, and neither {roots[0]} nor "
            f"{here} lies in one: clone it, and start the kernel in it or install it with "
            "pip install --editable ."
        )
    path = root.joinpath(*parts)
    if not path.is_file():
        there = ", ".join(sorted(p.name for p in path.parent.glob(f"*{path.suffix}"))) or "none"
        raise ValueError(f"there is no file {path}; those beside it are: {there}")
    return path
