"""Which cells of a page print numbers that come from a finite engine, found in their source.

A name is drawn when it is assigned from gd.chain, gd.sgd or another drawn name, also through a
function, a loop or append; a later assignment of something else makes it an ordinary name again.
"""

import ast

ENGINES = ("gd.chain", "gd.sgd")


def cells_that_print_them(sources):
    """Indices of the cells of one page with a print of a drawn value in digits, such as {x:.3f}."""
    drawn, found = set(), []
    for index, source in enumerate(sources):
        statements = ast.parse(source).body
        digits = [_digits(call, drawn) for call in _prints(statements, drawn)]  # all: they note
        if any(digits):
            found.append(index)
    return found


def _digits(call, drawn):
    """Whether a print formats a drawn value as a float."""
    return any(
        isinstance(node, ast.FormattedValue)
        and node.format_spec is not None
        and ast.unparse(node.format_spec).rstrip("'\"")[-1:] in "feg%"
        and _is_drawn(node.value, drawn)
        for node in ast.walk(call)
    )


def _is_drawn(node, drawn):
    if isinstance(node, ast.Lambda):
        return _is_drawn(node.body, drawn - {a.arg for a in node.args.args})
    if isinstance(node, ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp):
        drawn = set(drawn)
        for part in node.generators:
            _assign(part.target, part.iter, drawn)
        parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        return any(_is_drawn(part, drawn) for part in parts)
    if isinstance(node, ast.Attribute) and ast.unparse(node) in ENGINES:
        return True
    if isinstance(node, ast.Name):
        return node.id in drawn
    return any(_is_drawn(child, drawn) for child in ast.iter_child_nodes(node))


def _assign(target, value, drawn):
    """Note what an assignment, or a loop over value, makes of the names in target."""
    if isinstance(target, ast.Tuple):
        if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
            for pair in zip(target.elts, value.elts):
                _assign(*pair, drawn)
            return
        call = value.func if isinstance(value, ast.Call) else None
        if isinstance(call, ast.Attribute) and call.attr == "items":  # keys are what we chose
            drawn -= {n.id for n in ast.walk(target.elts[0]) if isinstance(n, ast.Name)}
            target = target.elts[1]
    names = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    if _is_drawn(value, drawn):
        drawn |= names
    elif isinstance(target, ast.Name | ast.Tuple):  # not x[i] = ..., which leaves the rest of x
        drawn -= names


def _prints(body, drawn):
    """Go through statements in order, keep `drawn` up to date, and yield the calls of print."""
    for node in body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                _assign(target, node.value, drawn)
        elif isinstance(node, ast.AugAssign) and _is_drawn(node.value, drawn):
            drawn |= {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.FunctionDef):
            inside = drawn - {a.arg for a in (*node.args.args, *node.args.kwonlyargs)}
            list(_prints(node.body, inside))
            ends = [n.value for n in ast.walk(node) if isinstance(n, ast.Return | ast.Yield)]
            gives = any(end is not None and _is_drawn(end, inside) for end in ends)
            (drawn.add if gives else drawn.discard)(node.name)
        elif isinstance(node, ast.For | ast.While | ast.If | ast.With):
            if isinstance(node, ast.For):
                _assign(node.target, node.iter, drawn)
            list(_prints(node.body, drawn))  # a name may be drawn further down in a loop
            yield from _prints(node.body, drawn)
            yield from _prints(getattr(node, "orelse", []), drawn)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            if ast.unparse(call.func) == "print":
                yield call
            elif isinstance(call.func, ast.Attribute) and call.func.attr in ("append", "extend"):
                if any(_is_drawn(value, drawn) for value in call.args):
                    drawn |= {n.id for n in ast.walk(call.func) if isinstance(n, ast.Name)}
