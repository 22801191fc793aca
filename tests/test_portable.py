"""The same seed gives the same runs on every machine: to 1e-9 up to alpha=2, as chain() says.

A machine differs from another in the kernels that OpenBLAS and torch choose for its CPU. Two
variables choose others, but they are read when a process starts; so each choice has a process of
its own, which computes the whole panel.py. Later than alpha=2 rounding grows as runs escape.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
CHOICES = [("", ""), ("Haswell", "default"), ("SkylakeX", "avx2"), ("Prescott", "default")]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def panels(tmp_path_factory):
    """The panel as this machine computes it, then under each choice that its CPU can run."""
    folder = tmp_path_factory.mktemp("panels")
    found = []
    for blas, torch in CHOICES:
        path = folder / f"{blas or 'own'}.npz"
        choice = {"OPENBLAS_CORETYPE": blas, "ATEN_CPU_CAPABILITY": torch}
        environment = {k: v for k, v in os.environ.items() if k not in choice}
        environment |= {k: v for k, v in choice.items() if v} | {"OMP_NUM_THREADS": "1"}
        run = subprocess.run([sys.executable, HERE / "panel.py", path], env=environment)
        if run.returncode < 0 and blas:  # stopped by a signal: the CPU lacks the instructions
            continue
        assert run.returncode == 0
        with np.load(path) as panel:
            found.append(dict(panel))
    return found


@pytest.mark.parametrize("library", ["blas", "torch"])
def test_another_kernel_gives_the_same_states(panels, library):
    names = [str(panel[library]) for panel in panels]
    others = [i for i, name in enumerate(names) if name != names[0]]
    if not others:
        pytest.skip(f"{library}: only {names[0] or 'no OpenBLAS'} runs here, of the kernels tried")
    own = {key: value for key, value in panels[0].items() if key not in ("blas", "torch")}
    for i in others:
        for key, states in own.items():
            error = np.abs(panels[i][key] - states).max()
            assert error < 1e-9, f"{key}: {names[i]} and {names[0]} differ by {error:.2g}"


def test_this_machine_gives_the_states_that_are_stored(panels):
    with np.load(HERE / "data" / "panel.npz") as stored:
        assert len(stored) > 50
        for key, state in stored.items():
            np.testing.assert_allclose(panels[0][key][0], state, rtol=0, atol=1e-9, err_msg=key)
