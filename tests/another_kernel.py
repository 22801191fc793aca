"""Run a command as if this machine had another CPU: python tests/another_kernel.py COMMAND...

OpenBLAS and torch choose their kernels for the CPU when a process starts. Two variables choose
others, so the command gets them in its environment. Without a second kernel nothing is run.
"""

import os
import subprocess
import sys

# Prescott's has no fused multiply-add: it rounds unlike every kernel that a CPU of today gets
NAMES = ["Prescott", "Haswell", "ARMV8", "NEOVERSEN1"]
ASK = "import numpy, threadpoolctl as t; print([i['architecture'] for i in t.threadpool_info()])"


def chosen(environment):
    """What the libraries choose in a process with that environment, as text."""
    asked = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True)
    return asked.stdout


if __name__ == "__main__":
    own = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    for name in NAMES:
        other = own | {"OPENBLAS_CORETYPE": name, "ATEN_CPU_CAPABILITY": "default"}
        if chosen(other) not in (chosen(own), b""):  # nothing is said where the CPU cannot run it
            print(f"under OpenBLAS's kernel {name}:", flush=True)
            os.execvpe(sys.argv[1], sys.argv[1:], other)
    print(f"no second kernel of {NAMES} runs here, so nothing is tested under another one")
