"""Break the package in one place after another, and list what no test notices: make mutants.

A mutant is the package with one comparison, operator, number or return changed. Tests of its
module, in the files beside it in TESTS, have to fail. A mutant that lives gets a test, or an entry
with the reason why it has none in tests/mutants_alive.txt; without either the run fails. An entry
is the module, the code and the change, without the number of a line, so that it holds when lines
move.

Of a module with many mutants some are drawn, the same ones every time; --most draws more or fewer.
"""

import argparse
import ast
import importlib
import json
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALIVE = ROOT / "tests" / "mutants_alive.txt"
TESTS = {
    "reading/diagnosis.py": ["diagnosis", "specialisation"],
    "reading/setbacks.py": ["diagnosis"],
    "reading/phases.py": ["phases", "specialisation", "plateau"],
    "theory/plateau.py": ["plateau"],
    "theory/symmetry.py": ["specialisation", "plateau"],
    "theory/stability.py": ["stability"],
    "theory/perfect.py": ["stability", "specialisation"],
    "gossip/mix.py": ["gossip", "matched", "specialisation", "rows"],
    "gossip/matched.py": ["matched"],
    "gossip/graphs.py": ["graphs", "gossip"],
}
OTHERS = {
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
    ast.And: [ast.Or],
    ast.Or: [ast.And],
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Div],
    ast.Div: [ast.Mult],
    ast.Mod: [ast.FloorDiv],
    ast.FloorDiv: [ast.Mod],
    ast.Pow: [ast.Mult],
    ast.BitAnd: [ast.BitOr],
    ast.BitOr: [ast.BitAnd],
    ast.BitXor: [ast.BitOr],
}

# the mutants


@dataclass(frozen=True)
class Mutant:
    """One change of one module: where, in words, and the whole source with it.

    around : first and last line of the function that it is in, or of the module.
    """

    module: str
    line: int
    around: tuple
    code: str
    change: str
    source: str

    @property
    def entry(self):
        return f"{self.module} | {self.code} | {self.change}"


def mutants(module):
    """Every Mutant of a module, in its order."""
    source = (ROOT / "gossipdyn" / module).read_text()
    tree, texts, found = ast.parse(source), source.splitlines(), []
    functions = [
        (min([f.lineno, *(d.lineno for d in f.decorator_list)]), f.end_lineno)
        for f in ast.walk(tree)  # the outer ones before what they hold
        if isinstance(f, ast.FunctionDef)
    ]
    for node in _mutable(tree):
        for field, value in _changes(node):
            code = texts[node.lineno - 1 : node.end_lineno]
            code = " ".join(re.sub(r"\s+# .*", "", line).strip() for line in code)
            around = (lines for lines in functions if lines[0] <= node.lineno <= lines[1])
            around = next(around, (1, len(texts)))
            before, old = ast.unparse(node), getattr(node, field)
            setattr(node, field, value)
            change = f"{before} -> {ast.unparse(node)}"
            found.append(Mutant(module, node.lineno, around, code, change, ast.unparse(tree)))
            setattr(node, field, old)
    return found


def _mutable(node):
    """What may be changed under a node: all but hints, decorators, and the words of refusals."""
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.Raise | ast.JoinedStr):
                    yield child
                    yield from _mutable(child)


def _changes(node):
    """The changes of a node: pairs of one of its fields and what is put there."""
    match node:
        case ast.Compare(ops=ops):
            return [
                ("ops", [*ops[:i], new(), *ops[i + 1 :]])
                for i, op in enumerate(ops)
                for new in OTHERS[type(op)]
            ]
        case ast.BoolOp() | ast.BinOp() | ast.AugAssign():
            return [("op", new()) for new in OTHERS.get(type(node.op), [])]
        case ast.UnaryOp():
            return [("operand", ast.UnaryOp(node.op, node.operand))]  # twice, which is not at all
        case ast.Constant(value=bool()):
            return []
        case ast.Constant(value=int()):
            return [("value", node.value + 1)]
        case ast.Constant(value=float()) if node.value:
            factor = 1.3 if node.value > 0.01 else 1000  # of a threshold, or of what is rounding
            return [("value", node.value * factor), ("value", node.value / factor)]
        case ast.Return(value=ast.AST()):
            return [("value", ast.Constant(None))]
    return []


def drawn(found, most):
    """The mutants that are tried: all, or so many of them, the same ones every time."""
    shuffled = random.Random(0).sample(range(len(found)), len(found))
    return [found[i] for i in sorted(shuffled[:most])]


# their tests


class Watch:
    """A plugin of pytest: how long each test takes, and which functions of a file it calls.

    seen : {test: [seconds, first lines of functions]}; "" holds what is called between tests.
    """

    def __init__(self, file):
        self.file, self.seen = str(file), {"": [0.0, set()]}
        self._watch("")

    def _watch(self, test):
        called = self.seen.setdefault(test, [0.0, set()])[1]

        def note(frame, event, argument):
            if frame.f_code.co_filename == self.file:
                called.add(frame.f_code.co_firstlineno)

        sys.settrace(note)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self._watch(item.nodeid)
        begin = time.perf_counter()
        result = yield
        self.seen[item.nodeid][0] = time.perf_counter() - begin
        self._watch("")
        return result


def tests_of(mutant, seen):
    """The tests that call the mutant's function, the quickest first."""
    tests = sorted((test for test in seen if test), key=lambda test: seen[test][0])
    first, last = mutant.around

    def calls(test):
        return any(first <= line <= last for line in seen[test][1])

    return tests if calls("") else list(filter(calls, tests))


def lives(checkout, seen, patience, mutant):
    """Whether a mutant's tests pass, in a copy of the checkout that this process has to itself."""
    copy = checkout.with_name(f"copy-{os.getpid()}")
    if not copy.exists():
        shutil.copytree(checkout, copy)
    file = copy / "gossipdyn" / mutant.module
    whole = file.read_text()
    file.write_text(mutant.source)
    tests = tests_of(mutant, seen)
    passed = not tests or passes(copy, tests, patience)
    file.write_text(whole)
    return passed


def passes(copy, tests, patience=None, watch=None):
    """Whether tests pass in a copy of the checkout, before patience (s) is over.

    They run in a fork of this process, which holds the libraries and nothing of the package.
    """
    child = get_context("fork").Process(target=_test, args=(copy, tests, watch))
    child.start()
    child.join(patience)
    if child.is_alive():  # in an endless loop, say
        child.kill()
        child.join()
    return child.exitcode == 0


def _test(copy, tests, watch):
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # none is needed, and they take seconds
    sys.dont_write_bytecode = True  # a mutant may have the length and the second of the last one
    resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))  # for a list that grows for ever
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1), os.dup2(nowhere, 2)
    plugin = None if watch is None else Watch(copy / "gossipdyn" / watch)
    code = pytest.main(
        ["-x", "-m", "not slow", "-p", "no:cacheprovider", *tests], plugins=[plugin] * bool(plugin)
    )
    if plugin:
        seen = {test: [seconds, sorted(lines)] for test, (seconds, lines) in plugin.seen.items()}
        (copy / "seen.json").write_text(json.dumps(seen))
    os._exit(code)


def watched(checkout, module):
    """Watch.seen of the tests of a whole module."""
    if not passes(checkout, [f"tests/test_{name}.py" for name in TESTS[module]], watch=module):
        sys.exit(f"the tests of {module} fail before anything is broken")
    return json.loads((checkout / "seen.json").read_text())


def main():
    found = {module: mutants(module) for module in TESTS}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*", default=list(TESTS), help="by default, all in TESTS")
    parser.add_argument("--most", type=int, default=40, help="mutants of a module, by default 40")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="by default, cores")
    left_out = sum(max(0, len(f) - parser.get_default("most")) for f in found.values())
    parser.epilog = f"By default {left_out} of {sum(map(len, found.values()))} are left out."
    asked = parser.parse_args()
    for library in ("pandas", "scipy.integrate", "scipy.optimize", "scipy.sparse", "torch"):
        with suppress(ImportError):
            importlib.import_module(library)
    listed = {line for line in ALIVE.read_text().splitlines() if line[:1] not in ("", " ", "#")}
    new, alive = [], set()
    gone = listed - {mutant.entry for every in found.values() for mutant in every}
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "checkout"
        for part in ("gossipdyn", "tests"):
            hidden = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, checkout / part, ignore=hidden)
        shutil.copy(ROOT / "pyproject.toml", checkout)
        for module in asked.modules:
            begin = time.perf_counter()
            seen = watched(checkout, module)
            patience = 10 + 5 * sum(seconds for seconds, _ in seen.values())
            tried = drawn(found[module], asked.most)
            with ProcessPoolExecutor(asked.processes, get_context("fork")) as pool:
                passed = pool.map(partial(lives, checkout, seen, patience), tried)
                for mutant, p in zip(tried, passed):
                    if p and mutant.entry not in listed:
                        new.append(mutant)
                        print(f"gossipdyn/{module}:{mutant.line} lives\n{mutant.entry}", flush=True)
                    if p:
                        alive.add(mutant.entry)
            gone |= (listed & {mutant.entry for mutant in tried}) - alive
            seconds = time.perf_counter() - begin
            print(
                f"{module}: {len(tried)} of {len(found[module])} mutants in {seconds:.0f} s",
                flush=True,
            )
    for entry in sorted(gone):
        print(f"listed, and not alive any more:\n{entry}")
    if new or gone:
        sys.exit(f"{len(new)} live without a reason in {ALIVE.name}, {len(gone)} listed are gone")


if __name__ == "__main__":
    main()
