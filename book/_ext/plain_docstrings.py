"""The package's docstrings are plain text; Sphinx wants reStructuredText.

Lists of `name : text` become definitions, indented lines formulas, `x` code,
and no other character is markup.
"""

import re
from itertools import groupby

SPAN = re.compile(r"((?::\w+:)?`[^`]+`)")


def prose(text):
    """One paragraph, with its code marked and its other signs escaped."""
    plain, marked = SPAN.split(text)[::2], SPAN.findall(text)
    plain = [re.sub(r"([\\*|]|_(?!\w))", r"\\\1", part) for part in plain]
    marked = [m if m.startswith(":") else f"`{m}`" for m in marked] + [""]
    return "".join(p + m for p, m in zip(plain, marked))


def definitions(lines):
    """`name : text` entries; a line that is not indented begins the next."""
    entries = []
    for line in lines:
        begun = entries and " : " not in entries[-1]
        if line.startswith(" ") or begun:
            entries[-1] += " " + line.strip()
        else:
            entries.append(line)
    for entry in entries:
        name, _, text = entry.partition(" : ")
        yield from (f"``{name}``", f"    {prose(text)}")


def restructured(lines):
    """A docstring's lines in reStructuredText."""
    for blank, block in groupby(lines, lambda line: not line.strip()):
        block = list(block)
        if blank:
            continue
        titled = len(block) > 1 and set(block[1].strip()) == {"-"}
        if titled:
            yield from (f".. rubric:: {block[0]}", "")
            block = block[2:]
        if block[0].startswith(" "):
            yield from (".. code-block:: text", "", *block)
        elif titled or any(line.startswith(" ") for line in block):
            yield from definitions(block)
        else:
            yield prose(" ".join(block))
        yield ""


def process(app, what, name, obj, options, lines):
    lines[:] = restructured(lines)


def setup(app):
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
