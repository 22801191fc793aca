"""The import floors: what a module imports lies in its own room or on a floor below."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[1]

FLOORS = [  # rooms of the house: a folder, or a module that is a room by itself
    {"checks", "version", "book"},
    {"labels"},
    {"averages"},
    {"problem"},
    {"states", "equal_units"},
    {"starts", "gossip"},
    {"equations"},
    {"coordinates"},
    {"engines"},
    {"runs"},
    {"theory"},
    {"reading"},
    {"figures"},
]
HEAVY = {
    "torch": {"engines.sgd", "engines.blocks"},
    "matplotlib": {"figures"},
    "ipywidgets": {"figures"},
}


def floor(module):
    """The number of the floor on which the room of a module lies."""
    return next(i for i, rooms in enumerate(FLOORS) if module.split(".")[0] in rooms)


def imports(source, module=""):
    """The dotted names that a module's source imports, wherever in it they stand.

    What it imports relatively, or from a package, counts by its full name: in gossipdyn.runs.run
    `from ..states import Overlaps` is gossipdyn.states.Overlaps.
    """
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            here = ["gossipdyn", *module.split(".")[:-1]]
            here = here[: len(here) - node.level + 1] if node.level else []
            base = ".".join([*here, *filter(None, [node.module])])
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return names


def own(names):
    """The modules of the package among dotted names of modules and of what they hold."""
    parts = {name.removeprefix("gossipdyn.") for name in names if name.startswith("gossipdyn.")}
    return {name if name in MODULES else name.rpartition(".")[0] for name in parts}


PACKAGE = ROOT / "gossipdyn"
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path.read_text()
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.stem != "__init__"
}
IMPORTED = {module: own(imports(source, module)) for module, source in MODULES.items()}


def test_every_module_lies_in_a_room_and_every_room_is_there():
    rooms = {module.split(".")[0] for module in MODULES}
    assert rooms == set().union(*FLOORS)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_its_room_and_from_floors_below(module):
    for other in IMPORTED[module]:
        assert other in MODULES, f"{other}: import the module that holds the name"
        same_room = other.split(".")[0] == module.split(".")[0]
        assert same_room or floor(other) < floor(module), other


def test_no_imports_form_a_circle():
    TopologicalSorter(IMPORTED).prepare()  # raises CycleError


@pytest.mark.parametrize("module", MODULES)
def test_a_file_can_be_read_in_one_go(module):
    assert len(MODULES[module].splitlines()) <= 400


@pytest.mark.parametrize("module", MODULES)
def test_heavy_packages_stay_in_their_modules(module):
    top = {name.split(".")[0] for name in imports(MODULES[module])}
    assert {heavy for heavy in HEAVY if heavy in top and module not in HEAVY[heavy]} == set()


def test_an_import_in_any_form_is_seen():
    source = """
    from .. import states
    from .trajectory import Trajectory
    from ..gossip.mix import mix
    def f():
        import gossipdyn.engines.flow
        from gossipdyn import problem
        from gossipdyn.checks import whole
    """
    found = own(imports(dedent(source), "runs.run"))
    assert found == {
        "states", "runs.trajectory", "gossip.mix", "engines.flow", "problem", "checks"
    }  # fmt: skip


def test_importing_the_package_imports_neither_torch_nor_matplotlib():
    code = f"import sys, gossipdyn; print(sorted({set(HEAVY)} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_slow_loops_import_nothing_of_the_package():
    loops = (ROOT / "tests" / "by_definition.py").read_text()
    assert {name for name in imports(loops) if name.startswith("gossipdyn")} == set()
