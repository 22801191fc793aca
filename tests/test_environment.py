"""What a newcomer relies on: the two lists of packages agree, and the README's example runs."""

import contextlib
import io
import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA_NAMES = {"torch": "pytorch"}


def asked_by_pyproject():
    """[(name on conda-forge, bounds)], in the order of the file: the package, then the extras."""
    extras = PROJECT["optional-dependencies"].values()
    asked = [Requirement(line) for line in sum(extras, PROJECT["dependencies"])]
    python = Requirement(f"python{PROJECT['requires-python']}")
    return [(CONDA_NAMES.get(r.name, r.name), r.specifier) for r in [python, *asked]]


def test_conda_and_pip_ask_for_the_same_packages():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    *packages, last = environment["dependencies"]
    assert last == {"pip": ["-e ."]}
    asked = [Requirement(line) for line in packages if line != "pip"]
    assert [(r.name, r.specifier) for r in asked] == asked_by_pyproject()


def test_every_package_asked_for_has_one_tested_version():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"==[\d.]+(post\d+)?", str(pin.specifier)) for pin in pins)
    versions = {pin.name: str(pin.specifier).removeprefix("==") for pin in pins}
    for lines in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]:
        for asked in map(Requirement, lines):
            assert versions[asked.name] in asked.specifier


def test_the_example_in_the_readme_runs():
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "<the example>", "exec"), {})
    theory, mean, error = map(float, re.findall(r"\d+\.\d+", printed.getvalue()))
    assert abs(theory - mean) < 5 * error + 1e-4  # five standard errors, and the printed digits
