"""The import floors: a module of the package imports only from floors below its own."""

import ast
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[1]

FLOORS = [
    {"orthants", "quadrature", "refusals", "digest"},
    {"soft_steps", "intervals"},
    {"gaussian", "graphs", "storage"},
    {"problem"},
    {"order_parameters"},
    {"gossip", "activations"},
    {"generalisation", "trajectory"},
    {"divergence"},
    {"rounds"},
    {"ode", "simulation", "markov", "distributed", "hidden_manifold", "gaussian_mixture"},
    {"stability", "plateau", "fluctuations", "diagnosis", "sweep"},
    {"noise_floors", "spawning"},
    {"figures"},
]
# Where the drawing is stricter than "below", or less strict.
PROBLEM_AND_GOSSIP = {
    "problem": {"gaussian", "refusals"},
    "gossip": {"order_parameters", "graphs", "problem", "refusals"},
}
ACROSS = {"distributed": {"simulation"}}  # reuses its step

HEAVY = {
    "torch": {"simulation", "distributed", "hidden_manifold", "gaussian_mixture"},
    "matplotlib": {"figures"},
    "ipywidgets": {"figures"},
}


def allowed(module):
    """The modules of the package that `module` may import."""
    if module in PROBLEM_AND_GOSSIP:
        return PROBLEM_AND_GOSSIP[module]
    floor = next(i for i, names in enumerate(FLOORS) if module in names)
    return set().union(*FLOORS[:floor]) | ACROSS.get(module, set())


def imports(source):
    """The dotted names that a module's source imports, wherever in it they stand.

    `from . import ode` and `from gossipdyn import ode` count as gossipdyn.ode.
    """
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(filter(None, ["gossipdyn" * bool(node.level), node.module]))
            within = base == "gossipdyn"
            names |= {f"{base}.{a.name}" for a in node.names} if within else {base}
    return names


def own(names):
    return {name.split(".")[1] for name in names if name.startswith("gossipdyn.")}


MODULES = {
    path.stem: path.read_text()
    for path in sorted((ROOT / "gossipdyn").glob("*.py"))
    if path.stem != "__init__"
}


def test_every_module_has_a_floor():
    assert set(MODULES) <= set().union(*FLOORS)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_below(module):
    names = imports(MODULES[module])
    assert "gossipdyn" not in names, "import the module that holds the name"
    assert own(names) <= allowed(module)


@pytest.mark.parametrize("module", MODULES)
def test_heavy_packages_stay_in_their_modules(module):
    top = {name.split(".")[0] for name in imports(MODULES[module])}
    assert {heavy for heavy in HEAVY if heavy in top and module not in HEAVY[heavy]} == set()


def test_an_import_in_any_form_is_seen():
    source = """
    from . import ode
    from .rounds import run
    def f():
        import gossipdyn.gossip
        from gossipdyn import markov
        from gossipdyn.problem import Problem
    """
    assert own(imports(dedent(source))) == {"ode", "rounds", "gossip", "markov", "problem"}


def test_importing_the_package_imports_neither_torch_nor_matplotlib():
    code = f"import sys, gossipdyn; print(sorted({set(HEAVY)} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_slow_loops_import_nothing_of_the_package():
    loops = (ROOT / "tests" / "by_definition.py").read_text()
    assert {name for name in imports(loops) if name.startswith("gossipdyn")} == set()
