"""The activations that ship, by their names."""

import re

from .activation import Activation
from .erf import erf
from .gelu import gelu
from .polynomial import linear, quadratic
from .relu import relu
from .smooth import softplus, tanh

SHIPPED = {f.name: f for f in (erf, linear, quadratic, relu, softplus, tanh)}


def named(name: str) -> Activation:
    """Return the activation that a file names; raise ValueError for one that is not shipped."""
    match = re.fullmatch(r"gelu\(beta=(.*)\)", name)
    if match:
        return gelu(float(match[1]))
    if name not in SHIPPED:
        raise ValueError(
            f"the activation {name!r} is not shipped (those are {', '.join(SHIPPED)} and gelu): "
            "make it again and give it, Trajectory.load(path, activation=...)"
        )
    return SHIPPED[name]
