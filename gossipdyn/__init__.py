"""How two-layer networks learn, and what gossip averaging between workers does to it.

    weights            W  --sgd step-->  W'   --mix(A)-->  W''        engines/sgd.py    finite N
      | overlaps()         |                 |
      v                    v                 v
    overlaps, N     (Q,R) --chain step-> (Q,R)' --mix(A)-> (Q,R)''    engines/chain.py  equal in law
      | N -> infinity      |                 |
      v                    v                 v
    overlaps, limit (Q,R) ----flow-----> (Q,R)' --mix(A)-> (Q,R)''    engines/flow.py   the limit

Rows are the three engines. The vertical arrow is overlaps(). The right-hand arrow is one function,
mix(), on all three floors: overlaps(mix(A, weights)) == mix(A, overlaps(weights)), exactly.
"""

from importlib.util import find_spec

from .averages.activation import Activation
from .averages.erf import erf
from .averages.gelu import gelu
from .averages.polynomial import linear, quadratic
from .averages.relu import relu
from .averages.smooth import smooth, softplus, tanh
from .engines.chain import chain
from .engines.divergence import Diverged
from .engines.engine import Engine
from .engines.flow import flow
from .equations import drift, interpolation, mean_risk, noise, rate, risk
from .gossip.graphs import (
    complete,
    erdos_renyi,
    exponential,
    from_edges,
    from_networkx,
    hypercube,
    path,
    ring,
    star,
    torus,
)
from .gossip.matched import Matched, matched
from .gossip.matrices import drop_edges, lazy, max_degree, spectral_gap
from .gossip.mix import consensus_distance, independent, mix
from .gossip.rows import Rows, rows
from .gossip.schedules import one_peer_exponential, random_pairs
from .labels import labelled
from .problem import Problem
from .reading.diagnosis import Diagnosis, diagnose
from .reading.intervals import bootstrap, proportion
from .reading.phases import Phases, assignment, phases
from .reading.setbacks import Setbacks, setbacks
from .runs.run import run
from .runs.sweep import SweepFailed, sweep
from .runs.trajectory import Trajectory
from .starts import lift, random_start
from .states import Overlaps, Weights, cosines, overlaps
from .theory.diffusion import diffusion
from .theory.fluctuations import Fluctuations, fluctuations
from .theory.gossip_floor import GossipFloor, gossip_floor
from .theory.perfect import largest_stable_eta, noise_floor, perfect
from .theory.plateau import Escape, escape, plateau_length
from .theory.spawning import noise_to_come, spawning
from .theory.stability import fixed_point, modes
from .theory.symmetry import asymmetry, specialisation, symmetric
from .version import __version__

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
    "Rows",
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
    "labelled",
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
    "rows",
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
        from .engines.sgd import sgd
    except (ImportError, OSError) as error:
        raise AttributeError(
            f"gossipdyn.sgd needs torch ({error}): pip install torch, or in a clone "
            "pip install '.[torch]'"
        ) from error
    return sgd


def __dir__():
    return sorted({*globals(), *__all__})
