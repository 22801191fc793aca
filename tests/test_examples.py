"""The examples in the docstrings print what they say, and all names in wide use have one."""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import gossipdyn as gd

WITHOUT = {  # what needs matplotlib or torch
    "gossipdyn.engines.blocks",
    "gossipdyn.engines.samples",
    "gossipdyn.engines.sgd",
    "gossipdyn.figures",
}
MODULES = [
    name for _, name, _ in pkgutil.walk_packages(gd.__path__, "gossipdyn.") if name not in WITHOUT
]
IN_WIDE_USE = [
    "Overlaps",
    "Problem",
    "Weights",
    "bootstrap",
    "chain",
    "diagnose",
    "escape",
    "flow",
    "largest_stable_eta",
    "lift",
    "matched",
    "mean_risk",
    "mix",
    "noise_floor",
    "overlaps",
    "perfect",
    "phases",
    "proportion",
    "random_start",
    "ring",
    "risk",
    "run",
    "setbacks",
    "spectral_gap",
    "sweep",
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_print_what_they_say(name):
    result = doctest.testmod(importlib.import_module(name), extraglobs={"gd": gd, "np": np})
    assert result.failed == 0


@pytest.mark.parametrize("name", IN_WIDE_USE)
def test_a_name_in_wide_use_has_an_example(name):
    assert doctest.DocTestParser().get_examples(getattr(gd, name).__doc__)
