"""What a newcomer relies on: what several files say agrees, and what the README says holds."""

import contextlib
import io
import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement

import gossipdyn as gd

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text()
WORKFLOW = (ROOT / ".github/workflows/check.yml").read_text()
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


def versions_in_constraints():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"==[\d.]+(post\d+)?", str(pin.specifier)) for pin in pins)
    return {pin.name: str(pin.specifier).removeprefix("==") for pin in pins}


def test_every_package_asked_for_has_one_tested_version():
    versions = versions_in_constraints()
    for lines in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]:
        for asked in map(Requirement, lines):
            assert versions[asked.name] in asked.specifier


def test_the_hooks_run_the_tested_ruff():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert set(re.findall(r"ruff==([\d.]+)", hooks)) == {versions_in_constraints()["ruff"]}


def test_the_pythons_of_the_workflow_are_those_that_we_claim():
    claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert sorted(set(re.findall(r'python: "(.*)"', WORKFLOW))) == claimed
    assert PROJECT["requires-python"] == f">={claimed[0]}"


def test_actions_are_named_by_their_commits():
    for action in re.findall(r"uses: (.*)", WORKFLOW):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)


def test_the_citation_and_the_changelog_know_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert citation["version"] == newest == gd.__version__


def test_the_readme_names_verbs_files_extras_and_versions_that_are_there():
    verbs = re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`?make ([a-z]+)\b(?=`| *#)", README)) <= set(" ".join(verbs).split())
    files = {
        name
        for row in re.findall(r"^\| (`.*?) \|", README, re.MULTILINE)
        for name in re.findall(r"`([\w./]+[./]\w*|Makefile)`", row)
    }
    assert {"gossipdyn/", ".ci/run", "_toc.yml"} <= files
    assert [name for name in files if not (ROOT / name).exists()] == []
    (extras,) = set(re.findall(r"'\.\[(.*)\]'", README))
    assert extras.split(",") == list(PROJECT["optional-dependencies"])
    assert re.findall(r"install torch (\S+)", README) == [versions_in_constraints()["torch"]]
    assert re.findall(r"Python (3\.\d+) or newer", README) == [PROJECT["requires-python"][2:]]


def test_the_example_in_the_readme_runs():
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "<the example>", "exec"), {})
    theory, mean, error = map(float, re.findall(r"\d+\.\d+", printed.getvalue()))
    assert abs(theory - mean) < 5 * error + 1e-4  # five standard errors, and the printed digits
