"""The page of the package lists the public names, each once, as soon as their equations exist."""

import re
from collections import Counter
from pathlib import Path

import gossipdyn as gd

BOOK = Path(__file__).parents[1] / "book"
PAGE = (BOOK / "api.md").read_text()
DIRECTIVE = re.compile(r"^\.\. auto(?:function|class|exception):: (?:\S+\.)?(\w+)$", re.MULTILINE)
SAID = re.compile(r"`gd\.(\w+)")  # activations are records: the page names them in a sentence


def equations(text):
    return set(re.findall(r":eq:`([\w-]+)`", text or ""))


def test_every_public_name_stands_on_the_page_once():
    listed = Counter(DIRECTIVE.findall(PAGE))
    records = {name for name in SAID.findall(PAGE) if isinstance(getattr(gd, name), gd.Activation)}
    assert max(listed.values()) == 1
    files = re.findall(r"file: (\S+)", (BOOK.parent / "_toc.yml").read_text())
    pages = [BOOK.parent / f"{file}.ipynb" for file in files]
    chapters = "".join(page.read_text() for page in pages if page.exists())
    known = set(re.findall(r"\$\$ \((eq-[\w-]+)\)", chapters))
    ready = {name for name in gd.__all__ if equations(getattr(gd, name).__doc__) <= known}
    missing = ready - listed.keys() - records - {"__version__"}
    assert not missing, f"their equations are in the book by now, add to book/api.md: {missing}"
    assert listed.keys() | records <= set(gd.__all__)
