"""The package imports anywhere, and soon: without torch, from a clone that is not installed, into a
star, and without the packages that only some of its functions use."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import gossipdyn as gd

PACKAGE = Path(gd.__file__).parent
# Each takes longer to import than the package itself, and many a session never uses it. A list is
# steadier than a clock.
LATER = {
    "IPython",
    "dask",
    "distributed",
    "joblib",
    "matplotlib",
    "networkx",
    "pandas",
    "scipy.integrate",
    "scipy.interpolate",
    "scipy.optimize",
    "scipy.stats",
    "torch",
    "xarray",
}
BLOCKS = {
    "no such module": """
        from importlib.machinery import PathFinder
        find = PathFinder.find_spec
        def found(name, path=None, target=None):
            return None if name.split(".")[0] == "torch" else find(name, path, target)
        PathFinder.find_spec = found
        """,
    "a finder that refuses": """
        import sys
        class Refusing:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "torch":
                    raise ModuleNotFoundError("No module named 'torch'", name="torch")
        sys.meta_path.insert(0, Refusing())
        """,
}


def child(*code, folder=PACKAGE.parent):
    """What Python prints for these lines, the package coming from the folder."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(map(dedent, code))],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize("block", BLOCKS)
def test_without_torch_only_sgd_is_missing_and_says_why(block):
    printed = child(
        BLOCKS[block],
        """
        import inspect, pydoc
        import gossipdyn as gd
        assert not hasattr(gd, "x") and not hasattr(gd, "sgd")
        try:
            gd.sgd
        except AttributeError as error:
            print(error)
        assert "sgd" not in gd.__all__
        assert {"flow", "chain", "mix"} <= set(dict(inspect.getmembers(gd)))
        assert "three engines" in pydoc.render_doc(gd)
        help(gd.flow)
        from gossipdyn import *
        print(flow(), chain(N=20, runs=2))
        """,
    )
    assert "gossipdyn.sgd needs torch" in printed[0]
    assert "pip install torch" in printed[0] and "pip install '.[torch]'" in printed[0]
    assert "Engine(name='flow'" in printed[-1]


@pytest.mark.slow
def test_with_torch_a_star_brings_all_names():
    pytest.importorskip("torch")
    (names,) = child("from gossipdyn import *; import gossipdyn", """
        print(set(gossipdyn.__all__) <= set(globals()), "sgd" in globals())
        """)  # fmt: skip
    assert names == "True True"


def test_a_clone_imports_without_being_installed(tmp_path):
    """Its version stands in the package, whatever else is installed."""
    shutil.copytree(PACKAGE, tmp_path / "gossipdyn", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "gossipdyn" / "version.py").write_text('__version__ = "9.9.9"\n')
    nothing_installed = """
        from importlib import metadata
        known = metadata.version
        def version(name):
            if name == "gossipdyn":
                raise metadata.PackageNotFoundError(name)
            return known(name)
        metadata.version = version
        """
    printed = child(
        nothing_installed, "import gossipdyn; print(gossipdyn.__version__)", folder=tmp_path
    )
    assert printed == ["9.9.9"]


def test_what_few_functions_use_is_imported_when_they_use_it():
    (early,) = child(f"import sys, gossipdyn; print(sorted({LATER} & set(sys.modules)))")
    assert early == "[]"
