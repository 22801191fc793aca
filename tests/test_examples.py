"""The examples in the docstrings print what they say, and all names in wide use have one."""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import gossipdyn as gd

MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(gd.__path__, "gossipdyn.")
    if not name.endswith((".figures", ".sgd"))  # they need matplotlib and torch
]
IN_WIDE_USE = [
    "Overlaps",
    "Problem",
    "bootstrap",
    "diagnose",
    "escape",
    "largest_stable_eta",
    "matched",
    "noise_floor",
    "perfect",
    "phases",
    "proportion",
    "ring",
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
