"""Anything wrong put in any place is refused in our own words, or computed on to numbers.

Each case is a call that works, with one argument replaced by something else. No foreign error, no
NaN, no hang may come out.
"""

import inspect
import linecache
import signal
import tempfile
import traceback
import warnings
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from anything import no_numbers, odd_values, same_numbers

import gossipdyn as gd

PACKAGE = str(Path(gd.__file__).parent)
I2 = np.eye(2)
PROBLEM = gd.Problem(activation=gd.erf, v_star=[1, 1], T=I2, sigma=0.1)
X = gd.random_start(PROBLEM, workers=2, students=2, N=20, seed=1)
ONE = gd.Overlaps.single(Q=0.5 * I2, R=0.3 * I2, v=[1, 1])
START = gd.Overlaps.single(Q=0.5 * I2, R=0 * I2, v=[1, 1])
W = gd.lift(PROBLEM, X, 10)
NEAR = gd.Overlaps.single(Q=0.5 * I2, R=[[0.25, 0.25], [0.25, 0.251]], v=[1, 1])
FLUCTUATIONS = gd.fluctuations(PROBLEM, NEAR, 0.1)
RUN = gd.run(gd.chain(N=20, runs=3), PROBLEM, X, [(1.0, gd.ring(2))], record=[0.5])
C4 = np.eye(4) + 0.1
FOLDER = tempfile.TemporaryDirectory()  # it goes when this module does
FILE = Path(FOLDER.name) / "run.npz"
RUN.save(FILE)

ODD = odd_values(
    PROBLEM, X, ONE, W, RUN, gd.erf, gd.flow(), gd.ring(3), gd.ring(2),
    gd.Problem(gd.relu, v_star=[1, 1], T=I2, eta=0, eta_v=0.5),
    gd.Problem(gd.erf, v_star=[1], T=[[1]], weight_decay=0.1),
    gd.Overlaps.single([[1]], [[0.5]], [1]), gd.Overlaps.single(I2, np.zeros((2, 3)), [1, 1]),
    gd.random_start(PROBLEM, workers=1, students=2, N=20, runs=2), gd.perfect(PROBLEM),
)  # fmt: skip

CALLS = {
    "Problem": (gd.Problem, dict(
        activation=gd.erf, v_star=[1, 1], T=I2, eta=0.5, eta_v=0.1, sigma=0.1, batch=2,
        weight_decay=0.1,
    )),
    "Overlaps": (gd.Overlaps, dict(Q=X.Q, R=X.R, v=X.v)),
    "Overlaps.single": (gd.Overlaps.single, dict(Q=I2, R=I2, v=[1, 1])),
    "Weights": (gd.Weights, dict(W=W.W, v=W.v, W_star=W.W_star)),
    "overlaps": (gd.overlaps, dict(state=W)),
    "Overlaps.overlaps": (X.overlaps, dict(problem=PROBLEM)),
    "Weights.overlaps": (W.overlaps, dict(problem=PROBLEM)),
    "rows": (gd.rows, dict(B=I2, hidden={})),
    "Rows": (gd.Rows, dict(B=I2, hidden={})),
    "Rows.__call__": (gd.rows(I2), dict(state=X)),
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
    "symmetric": (gd.symmetric, dict(x=X)),
    "asymmetry": (gd.asymmetry, dict(x=X)),
    "escape": (gd.escape, dict(problem=PROBLEM, x0=NEAR, record=[0.0, 0.5])),
    "plateau_length": (gd.plateau_length, dict(problem=PROBLEM, x0=NEAR, threshold=0.001)),
    "phases": (gd.phases, dict(trajectory=RUN)),
    "Problem.from_weights": (gd.Problem.from_weights, dict(w=W, activation=gd.erf, v_star=[1, 1])),
    "from_networkx": (gd.from_networkx, dict(graph=nx.path_graph(3))),
    "Matched": (gd.Matched, dict(A=gd.ring(2), signs=False, tie=0.1)),
    "Matched.__call__": (gd.matched(gd.ring(2)), dict(state=X)),
    "Matched.matrix": (gd.matched(gd.ring(2)).matrix, dict(state=X)),
    "Trajectory.save": (RUN.save, dict(path=FILE)),
    "Trajectory.load": (gd.Trajectory.load, dict(path=FILE, activation=gd.erf)),
    "Trajectory.to_xarray": (RUN.to_xarray, {}),
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
    "Trajectory.state": (RUN.state, dict(i=0)),
    "Trajectory.at": (RUN.at, dict(alpha=0.5)),
    "Trajectory.mean": (RUN.mean, dict(name="risk")),
    "Trajectory.sem": (RUN.sem, dict(name="risk")),
    "fixed_point": (gd.fixed_point, dict(problem=PROBLEM, near=gd.perfect(PROBLEM))),
    "fixed_point of rounds": (gd.fixed_point, dict(
        problem=PROBLEM, near=gd.perfect(PROBLEM), within=gd.symmetric, round=(0.1, np.eye(1)),
    )),
    "modes": (gd.modes, dict(problem=PROBLEM, x=ONE, round=(0.1, np.eye(1)))),
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
    "Trajectory.std": (RUN.std, dict(name="risk")),
    "Trajectory.quantile": (RUN.quantile, dict(name="risk", q=[0.5])),
    "Trajectory.first_below": (RUN.first_below, dict(
        level=0.1, name="risk", since=0.5, for_good=True,
    )),
    "fluctuations": (gd.fluctuations, dict(
        problem=PROBLEM, x0=ONE, rounds=0.1, record=[0.05], random_rows=False,
    )),
    "Fluctuations.std": (FLUCTUATIONS.std, dict(f="R", N=100)),
    "Fluctuations.passed": (FLUCTUATIONS.passed, dict(f=lambda x: 0 * x.v, threshold=0.1, N=100)),
    "diffusion": (gd.diffusion, dict(problem=PROBLEM, x=ONE)),
    "Activation.I2": (gd.erf.I2, dict(C=C4[:2, :2])),
    "Activation.I3": (gd.relu.I3, dict(C=C4[:3, :3])),
    "Activation.I4": (gd.relu.I4, dict(C=C4)),
    "Activation.J2": (gd.tanh.J2, dict(C=C4[:2, :2])),
    "gelu": (gd.gelu, dict(beta=2.0)),
    "smooth": (gd.smooth, dict(g=np.tanh, dg=lambda x: 1 / np.cosh(x) ** 2)),
    "sweep": (gd.sweep, dict(function=len, points=[[1], [2]], cores=1)),
}  # fmt: skip
# "never": no plateau, no teacher, no floor, no time
NAN_IS_AN_ANSWER = {"phases", "setbacks", "diagnose", "Trajectory.first_below", "bootstrap"}
SLOW = {"noise_to_come", "spawning", "fixed_point of rounds"}  # a second: every tenth bad argument


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


class Late(BaseException):
    """A call has not returned in time. It is no Exception, which the call itself might catch."""


@contextmanager
def time_limit(seconds=20):
    """Raise Late in what takes longer."""

    def stop(*_):
        raise Late(f"it has not returned within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def complaint(name, key, value, seconds=20):
    """What is wrong with the answer to one odd call, or None."""
    call, arguments = CALLS[name]
    with warnings.catch_warnings(), time_limit(seconds):
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="columns do not sum to 1")
        try:
            result = call(**(arguments | {key: value}))
        except ValueError as error:
            if ours(error) and len(str(error).split()) > 3:
                return None
            return f"{name}({key}={value!r}): foreign or wordless: {error!r}"
        except (Exception, Late) as error:
            if value is len and key in ("A", "f", "statistic", "within"):  # its author's own error
                return None
            return f"{name}({key}={value!r}): {type(error).__name__}: {error}"
    if name.split()[0] not in NAN_IS_AN_ANSWER and not all(
        np.isfinite(a).all() for a in numbers(result)
    ):
        return f"{name}({key}={value!r}): NaN or infinity came out"
    return None


RECORDS = {  # made by the package, of its own numbers; Diverged and SweepFailed are errors
    "Activation", "Diagnosis", "Diverged", "Engine", "Escape", "Fluctuations", "GossipFloor",
    "Phases", "Setbacks", "SweepFailed", "Trajectory",
    # what the engines ask of a problem, with arrays that they made
    "Problem.breaks", "Problem.local", "Problem.rates", "Problem.samples",
    "labelled",  # a decorator of classes
}  # fmt: skip


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Some odd values are names of files."""
    monkeypatch.chdir(tmp_path)


def parameters(name):
    """The names of all arguments of a call, those that it leaves out among them."""
    call, arguments = CALLS[name]
    signature = inspect.signature(call).parameters.values()
    return list(arguments | {p.name: None for p in signature if p.kind is not p.VAR_KEYWORD})


@lru_cache
def records():
    """One record of each class that public functions take or return, by the name of the class."""
    results = [call(**arguments) for call, arguments in CALLS.values()]
    given = [thing for _, arguments in CALLS.values() for thing in arguments.values()]
    parts = [part for result in results if isinstance(result, list | tuple) for part in result]
    ours = [t for t in [*results, *given, *parts] if type(t).__module__.startswith("gossipdyn")]
    return {type(thing).__name__: thing for thing in ours}


def methods(cls):
    """The names of the methods that a class of the package gives to its users."""
    return [
        name for name, thing in vars(cls).items()
        if callable(getattr(cls, name)) and not isinstance(thing, type)
        and (not name.startswith("_") or name == "__call__")
    ]  # fmt: skip


def test_every_public_callable_has_valid_arguments_here():
    public = {name for name in gd.__all__ if callable(getattr(gd, name))}
    found = {type(record) for record in records().values()}
    found |= {thing for name in gd.__all__ if inspect.isclass(thing := getattr(gd, name))}
    public |= {f"{cls.__name__}.{name}" for cls in found for name in methods(cls)}
    assert sorted(public - RECORDS - {name.split()[0] for name in CALLS}) == []


@pytest.mark.parametrize("name", CALLS)
def test_the_call_itself_works(name):
    call, arguments = CALLS[name]
    call(**arguments)
    inspect.signature(call).bind(**arguments)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_one_odd_argument_is_refused_in_words_or_computed_on(name):
    odd = ODD[::10] if name in SLOW else ODD
    complaints = [complaint(name, key, value) for key in parameters(name) for value in odd]
    assert [c for c in complaints if c] == []


def test_records_are_shown_and_compared_with_anything():
    for name, record in records().items():
        properties = [key for key, p in vars(type(record)).items() if isinstance(p, property)]
        assert all(getattr(record, key) is not None for key in properties), name
        assert repr(record) and str(record) and getattr(record, "_repr_html_", record.__repr__)()
        for value in ODD:
            with time_limit():
                assert record.__eq__(value) in (True, False, NotImplemented), (name, value)


def test_a_call_that_hangs_is_a_complaint(monkeypatch):
    def hang(x):
        while x is None:
            pass

    monkeypatch.setitem(CALLS, "hang", (hang, {"x": 1}))
    assert complaint("hang", "x", 1) is None
    assert "has not returned" in complaint("hang", "x", None, seconds=0.1)


def as_it_is(array):
    return array


HALF = gd.complete(2)
# (call, argument, an array, how the argument is made of it)
ARRAYS = [
    ("Problem", "v_star", [1, 1], as_it_is),
    ("Problem", "T", I2, as_it_is),
    ("Overlaps", "Q", np.eye(4).reshape(2, 2, 2, 2), as_it_is),
    ("Overlaps", "R", np.full((2, 2, 2), 0.25), as_it_is),
    ("Overlaps", "v", np.ones((2, 2)), as_it_is),
    ("Overlaps.single", "Q", I2, as_it_is),
    ("Overlaps.single", "R", I2, as_it_is),
    ("Overlaps.single", "v", [1, 2], as_it_is),
    ("random_start", "v", [1, 2], as_it_is),
    ("rate", "coupling", HALF, lambda A: (0.1, A)),
    ("mix", "A", HALF, as_it_is),
    ("matched", "A", HALF, as_it_is),
    ("Matched", "A", HALF, as_it_is),
    ("diagnose", "A", HALF, as_it_is),
    ("lazy", "A", HALF, as_it_is),
    ("max_degree", "A", HALF, as_it_is),
    ("drop_edges", "A", gd.ring(2), as_it_is),
    ("spectral_gap", "A", HALF, as_it_is),
    ("flow", "coupling", HALF, lambda A: (0.1, A)),
    ("run", "rounds", HALF, lambda A: [(1.0, A)]),
    ("run", "record", [0.25, 0.5], as_it_is),
    ("run chain", "rounds", HALF, lambda A: [(1.0, A)]),
    ("run chain", "record", [0.25, 0.5], as_it_is),
    ("run sgd", "rounds", HALF, lambda A: [(1.0, A)]),
    ("escape", "record", [0.25, 0.5], as_it_is),
    ("fluctuations", "record", [0.0625], as_it_is),
    ("modes", "round", [[1]], lambda A: (0.125, A)),
    ("gossip_floor", "A", HALF, as_it_is),
    ("interpolation", "t", [0.5, 1], as_it_is),
    ("Trajectory.quantile", "q", [0.5], as_it_is),
    ("Activation.I2", "C", I2, as_it_is),
    ("Activation.I3", "C", np.eye(3), as_it_is),
    ("Activation.I4", "C", np.eye(4), as_it_is),
    ("Activation.J2", "C", I2, as_it_is),
    *(("Weights", name, np.round(getattr(W, name)), as_it_is) for name in ("W", "v", "W_star")),
]  # fmt: skip


@pytest.mark.parametrize("name, key, array, put", ARRAYS)
def test_an_array_of_no_numbers_is_refused(name, key, array, put):
    call, arguments = CALLS[name]
    if name == "drop_edges":
        arguments = arguments | {"lost": [(0, 1)]}
    for form, bad in no_numbers(array).items():
        with pytest.raises(ValueError) as refusal:
            call(**(arguments | {key: put(bad)}))
        assert ours(refusal.value), (form, refusal.value)
        assert "Error" not in str(refusal.value), form


@pytest.mark.slow
@pytest.mark.parametrize("name, key, array, put", [a for a in ARRAYS if a[0] != "Weights"])
def test_the_same_numbers_give_the_same_result_in_every_form(name, key, array, put):
    call, arguments = CALLS[name]
    if name == "drop_edges":
        arguments = arguments | {"lost": [(0, 1)]}
    right = numbers(call(**(arguments | {key: put(np.array(array, dtype=float))})))
    for form, same in same_numbers(array).items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = numbers(call(**(arguments | {key: put(same)})))
        for a, b in zip(result, right, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=form)


def test_two_random_odd_arguments_at_once():
    rng = np.random.default_rng(0)
    several = [name for name in CALLS if len(CALLS[name][1]) > 1 and name not in SLOW]
    for _ in range(300):
        name = several[rng.integers(len(several))]
        call, arguments = CALLS[name]
        first, second = rng.permutation(list(arguments))[:2]
        changed = call, arguments | {first: ODD[rng.integers(len(ODD))]}
        CALLS["both"] = changed
        assert complaint("both", second, ODD[rng.integers(len(ODD))]) is None
    del CALLS["both"]
