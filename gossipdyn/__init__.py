"""How two-layer networks learn, and what gossip averaging between workers does to it.

    weights            W  --sgd step-->  W'   --mix(A)-->  W''        simulation.py   finite N
      | overlaps()         |                 |
      v                    v                 v
    overlaps, N     (Q,R) --chain step-> (Q,R)' --mix(A)-> (Q,R)''    markov.py       equal in law
      | N -> infinity      |                 |
      v                    v                 v
    overlaps, limit (Q,R) ----flow-----> (Q,R)' --mix(A)-> (Q,R)''    ode.py          the limit

Rows are the three engines. The vertical arrow is overlaps(). The right-hand arrow is one function,
mix(), on all three floors: overlaps(mix(A, weights)) == mix(A, overlaps(weights)), exactly.
"""

from importlib.util import find_spec

from .activations import gelu, smooth, softplus, tanh
from .diagnosis import Diagnosis, Setbacks, diagnose, setbacks
from .divergence import Diverged
from .fluctuations import Fluctuations, diffusion, fluctuations
from .gaussian import Activation, erf, linear, quadratic, relu
from .generalisation import interpolation, mean_risk, risk
from .gossip import Matched, consensus_distance, independent, matched, mix
from .graphs import (
    complete,
    drop_edges,
    erdos_renyi,
    exponential,
    from_edges,
    from_networkx,
    hypercube,
    lazy,
    max_degree,
    one_peer_exponential,
    path,
    random_pairs,
    ring,
    spectral_gap,
    star,
    torus,
)
from .intervals import bootstrap, proportion
from .markov import chain
from .noise_floors import GossipFloor, gossip_floor
from .ode import drift, flow, noise, rate
from .order_parameters import Overlaps, Weights, cosines, lift, overlaps, random_start
from .plateau import (
    Escape,
    Phases,
    assignment,
    asymmetry,
    escape,
    phases,
    plateau_length,
    specialisation,
    symmetric,
)
from .problem import Problem
from .rounds import Engine, run
from .spawning import noise_to_come, spawning
from .stability import fixed_point, largest_stable_eta, modes, noise_floor, perfect
from .sweep import SweepFailed, sweep
from .trajectory import VERSION as __version__
from .trajectory import Trajectory

__all__ = [
    "Activation",
    "Diagnosis",
    "Diverged",
    "Engine",
    "Escape",
    "Fluctuations",
    "GossipFloor",
    "Matched",
    "Overlaps",
    "Phases",
    "Problem",
    "Setbacks",
    "SweepFailed",
    "Trajectory",
    "Weights",
    "__version__",
    "assignment",
    "asymmetry",
    "bootstrap",
    "chain",
    "complete",
    "consensus_distance",
    "cosines",
    "diagnose",
    "diffusion",
    "drift",
    "drop_edges",
    "erdos_renyi",
    "erf",
    "escape",
    "exponential",
    "fixed_point",
    "flow",
    "fluctuations",
    "from_edges",
    "from_networkx",
    "gelu",
    "gossip_floor",
    "hypercube",
    "independent",
    "interpolation",
    "largest_stable_eta",
    "lazy",
    "lift",
    "linear",
    "matched",
    "max_degree",
    "mean_risk",
    "mix",
    "modes",
    "noise",
    "noise_floor",
    "noise_to_come",
    "one_peer_exponential",
    "overlaps",
    "path",
    "perfect",
    "phases",
    "plateau_length",
    "proportion",
    "quadratic",
    "random_pairs",
    "random_start",
    "rate",
    "relu",
    "ring",
    "risk",
    "run",
    "setbacks",
    "sgd",
    "smooth",
    "softplus",
    "spawning",
    "specialisation",
    "spectral_gap",
    "star",
    "sweep",
    "symmetric",
    "tanh",
    "torus",
]


try:
    _torch_is_here = find_spec("torch") is not None
except (ImportError, ValueError):  # a finder or a stand-in that refuses
    _torch_is_here = False
if not _torch_is_here:  # so that `from gossipdyn import *` takes all the rest
    __all__.remove("sgd")


def __getattr__(name):
    """gossipdyn.sgd, when it is first asked for: it needs torch, the rest does not."""
    if name != "sgd":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from .simulation import sgd
    except (ImportError, OSError) as error:
        raise AttributeError(
            f"gossipdyn.sgd needs torch ({error}): pip install torch, or in a clone "
            "pip install '.[torch]'"
        ) from error
    return sgd


def __dir__():
    return sorted({*globals(), *__all__})
