"""Anything wrong put in any place is refused in our own words, or computed on to numbers.

Each case is a call that works, with one argument replaced by something else. No foreign error, no
NaN, no hang may come out.
"""

import inspect
import linecache
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest

import gossipdyn as gd

PACKAGE = str(Path(gd.__file__).parent)
I2 = np.eye(2)
PROBLEM = gd.Problem(activation=gd.erf, v_star=[1, 1], T=I2, sigma=0.1)
X = gd.random_start(PROBLEM, workers=2, students=2, N=20, seed=1)
ONE = gd.Overlaps.single(Q=0.5 * I2, R=0.3 * I2, v=[1, 1])
START = gd.Overlaps.single(Q=0.5 * I2, R=0 * I2, v=[1, 1])
W = gd.lift(PROBLEM, X, 10)
RUN = gd.run(gd.chain(N=20, runs=3), PROBLEM, X, [(1.0, gd.ring(2))], record=[0.5])
C4 = np.eye(4) + 0.1

BAD = [
    None, True, -1, 0, 1.5, 3, -2.5, np.nan, np.inf, -np.inf, 1j, "x", b"x", [], {}, set(), (),
    object(), len, gd, np.array([]), np.zeros((0, 0)), np.zeros(3), np.zeros((1, 1, 1)),
    np.full((2, 2), np.nan), np.full(2, np.inf), np.eye(2) * 1j, np.eye(3), np.ones((2, 3)),
    np.array(["a", "b"]), np.array([None, None]), [[1, 2], [3]], [1, "x"], [np.nan], [3, 2, 1],
    [[0.5, 0.6], [0.5, 0.5]], [[1, -1], [-1, 1]], [(1.0,)], [(1.0, 2.0)], [(-1.0, None)],
    [("x", None)], PROBLEM, X, ONE, W, RUN, gd.erf, gd.flow(), gd.ring(3), gd.ring(2),
    np.datetime64("2020-01-01"), slice(None), range(3), ..., Exception("x"),
]  # fmt: skip

CALLS = {
    "Problem": (gd.Problem, dict(
        activation=gd.erf, v_star=[1, 1], T=I2, eta=0.5, eta_v=0.1, sigma=0.1, batch=2,
        weight_decay=0.1,
    )),
    "Overlaps": (gd.Overlaps, dict(Q=X.Q, R=X.R, v=X.v)),
    "Overlaps.single": (gd.Overlaps.single, dict(Q=I2, R=I2, v=[1, 1])),
    "Weights": (gd.Weights, dict(W=W.W, v=W.v, W_star=W.W_star)),
    "overlaps": (gd.overlaps, dict(w=W)),
    "lift": (gd.lift, dict(problem=PROBLEM, x=X, N=10, seed=0)),
    "random_start": (gd.random_start, dict(
        problem=PROBLEM, workers=2, students=2, N=20, scale=1.0, v=[1, 1], shared=False, seed=0,
        runs=2,
    )),
    "cosines": (gd.cosines, dict(problem=PROBLEM, x=X)),
    "risk": (gd.risk, dict(problem=PROBLEM, x=X)),
    "mean_risk": (gd.mean_risk, dict(problem=PROBLEM, x=X)),
    "rate": (gd.rate, dict(problem=PROBLEM, x=X, coupling=(0.1, gd.ring(2)))),
    "drift": (gd.drift, dict(problem=PROBLEM, x=X)),
    "noise": (gd.noise, dict(problem=PROBLEM, x=X)),
    "mix": (gd.mix, dict(A=gd.ring(2), state=X)),
    "matched": (gd.matched, dict(A=gd.ring(2), problem=PROBLEM, tie=0.1)),
    "diagnose": (gd.diagnose, dict(x=X, A=gd.ring(2), problem=PROBLEM, N=20)),
    "setbacks": (gd.setbacks, dict(t=RUN, slack=0.0, N=20)),
    "phases": (gd.phases, dict(trajectory=RUN)),
    "from_edges": (gd.from_edges, dict(P=3, edges=[(0, 1), (1, 2)])),
    "complete": (gd.complete, dict(P=3)),
    "ring": (gd.ring, dict(P=3)),
    "star": (gd.star, dict(P=3)),
    "path": (gd.path, dict(P=3)),
    "torus": (gd.torus, dict(n=3, m=3)),
    "hypercube": (gd.hypercube, dict(d=2)),
    "exponential": (gd.exponential, dict(P=4)),
    "erdos_renyi": (gd.erdos_renyi, dict(P=4, probability=0.9, seed=0)),
    "one_peer_exponential": (gd.one_peer_exponential, dict(P=4, period=1.0, rounds=3)),
    "random_pairs": (gd.random_pairs, dict(P=4, period=1.0, rounds=3, seed=0)),
    "lazy": (gd.lazy, dict(A=gd.ring(3))),
    "max_degree": (gd.max_degree, dict(A=gd.ring(4))),
    "drop_edges": (gd.drop_edges, dict(A=gd.ring(4), lost=[(0, 1)])),
    "spectral_gap": (gd.spectral_gap, dict(A=gd.ring(3))),
    "flow": (gd.flow, dict(rtol=1e-6, atol=1e-9, coupling=(0.1, gd.ring(2)))),
    "chain": (gd.chain, dict(N=20, runs=2, seed=0)),
    "sgd": (gd.sgd, dict(N=20, runs=2, seed=0, device="cpu", dtype="float32")),
    "run": (gd.run, dict(
        engine=gd.flow(), problem=PROBLEM, x0=X, rounds=[(1.0, gd.ring(2))], record=[0.5],
        ends=True, keep=("risk",), start=0.0,
    )),
    "run chain": (gd.run, dict(
        engine=gd.chain(N=20, runs=2), problem=PROBLEM, x0=X, rounds=[(1.0, gd.ring(2))],
        record=[0.5], ends=True, keep=("risk",), start=0.0,
    )),
    "run sgd": (gd.run, dict(
        engine=gd.sgd(N=20, runs=2), problem=PROBLEM, x0=X, rounds=[(1.0, gd.ring(2))],
        record=[0.5], ends=True, keep=("risk",), start=0.0,
    )),
    "state": (RUN.state, dict(i=0)),
    "at": (RUN.at, dict(alpha=0.5)),
    "mean": (RUN.mean, dict(name="risk")),
    "sem": (RUN.sem, dict(name="risk")),
    "fixed_point": (gd.fixed_point, dict(problem=PROBLEM, near=gd.perfect(PROBLEM))),
    "modes": (gd.modes, dict(problem=PROBLEM, x=ONE)),
    "largest_stable_eta": (gd.largest_stable_eta, dict(problem=PROBLEM, students=2)),
    "noise_floor": (gd.noise_floor, dict(problem=PROBLEM, x=gd.perfect(PROBLEM))),
    "perfect": (gd.perfect, dict(problem=PROBLEM, students=2, orders=[(0, 1), (1, 0)])),
    "specialisation": (gd.specialisation, dict(x=X, order=[1, 0])),
    "assignment": (gd.assignment, dict(problem=PROBLEM, x=X)),
    "consensus_distance": (gd.consensus_distance, dict(x=X)),
    "independent": (gd.independent, dict(problem=PROBLEM, x=X)),
    "interpolation": (gd.interpolation, dict(problem=PROBLEM, x=X, p=0, q=1, t=[0.5])),
    "gossip_floor": (gd.gossip_floor, dict(problem=PROBLEM, A=gd.ring(3), period=1.0)),
    "gossip_floor coupling": (gd.gossip_floor, dict(problem=PROBLEM, A=gd.ring(3), coupling=1.0)),
    "noise_to_come": (gd.noise_to_come, dict(problem=PROBLEM, x0=START, alpha=[0.5])),
    "spawning": (gd.spawning, dict(problem=PROBLEM, x0=START, alpha=[0.5], draws=100, seed=0)),
    "proportion": (gd.proportion, dict(k=1, n=3, confidence=0.9)),
    "bootstrap": (gd.bootstrap, dict(
        values=[1.0, 2.0, 4.0], statistic=np.median, seed=0, confidence=0.9, draws=100,
    )),
    "std": (RUN.std, dict(name="risk")),
    "quantile": (RUN.quantile, dict(name="risk", q=[0.5])),
    "first_below": (RUN.first_below, dict(level=0.1, name="risk", since=0.5, for_good=True)),
    "fluctuations": (gd.fluctuations, dict(
        problem=PROBLEM, x0=ONE, rounds=0.1, record=[0.05], random_rows=False,
    )),
    "I2": (gd.erf.I2, dict(C=C4[:2, :2])),
    "I3": (gd.relu.I3, dict(C=C4[:3, :3])),
    "I4": (gd.relu.I4, dict(C=C4)),
    "J2": (gd.tanh.J2, dict(C=C4[:2, :2])),
    "gelu": (gd.gelu, dict(beta=2.0)),
    "smooth": (gd.smooth, dict(g=np.tanh, dg=lambda x: 1 / np.cosh(x) ** 2)),
    "sweep": (gd.sweep, dict(function=len, points=[[1], [2]], cores=1)),
}  # fmt: skip
# "never": no plateau, no teacher, no floor, no recovery
NAN_IS_AN_ANSWER = {"phases", "setbacks", "diagnose", "first_below", "bootstrap"}


def numbers(result):
    """All float arrays within a result."""
    if isinstance(result, float | np.floating):
        return [np.asarray(result)]
    if isinstance(result, np.ndarray):
        return [result] if result.dtype.kind == "f" else []
    if isinstance(result, list | tuple):
        return [array for part in result for array in numbers(part)]
    if hasattr(result, "__dataclass_fields__"):
        return [array for part in vars(result).values() for array in numbers(part)]
    return []


def ours(error):
    """Whether an error was raised by a raise statement of the package."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(last.filename, last.lineno).strip()
    return last.filename.startswith(PACKAGE) and line.startswith("raise")


def complaint(name, key, value):
    """What is wrong with the answer to one bad call, or None."""
    call, arguments = CALLS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="columns do not sum to 1")
        try:
            result = call(**(arguments | {key: value}))
        except ValueError as error:
            if ours(error) and len(str(error).split()) > 3:
                return None
            return f"{name}({key}={value!r}): foreign or wordless: {error!r}"
        except Exception as error:
            if name in ("diagnose", "bootstrap") and value is len:  # a callable's error is its own
                return None
            return f"{name}({key}={value!r}): {type(error).__name__}: {error}"
    if name not in NAN_IS_AN_ANSWER and not all(np.isfinite(a).all() for a in numbers(result)):
        return f"{name}({key}={value!r}): NaN or infinity came out"
    return None


@pytest.mark.parametrize("name", CALLS)
def test_the_call_itself_works(name):
    call, arguments = CALLS[name]
    call(**arguments)
    assert arguments.keys() <= inspect.signature(call).parameters.keys()


@pytest.mark.parametrize("name", CALLS)
def test_one_bad_argument_is_refused_in_words_or_computed_on(name):
    complaints = [complaint(name, key, value) for key in CALLS[name][1] for value in BAD]
    assert [c for c in complaints if c] == []


def test_two_random_bad_arguments_at_once():
    rng = np.random.default_rng(0)
    several = [name for name in CALLS if len(CALLS[name][1]) > 1]
    for _ in range(300):
        name = several[rng.integers(len(several))]
        call, arguments = CALLS[name]
        first, second = rng.permutation(list(arguments))[:2]
        changed = call, arguments | {first: BAD[rng.integers(len(BAD))]}
        CALLS["both"] = changed
        assert complaint("both", second, BAD[rng.integers(len(BAD))]) is None
    del CALLS["both"]
