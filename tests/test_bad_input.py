"""Every refusal of the core: a ValueError in words that holds both things that disagree.

The last test walks through the sources: a refusal that nothing here meets fails it.
"""

import ast
import json
import pickle
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy

import gossipdyn as gd

MODULES = ["checks", "averages/activation", "problem", "states", "starts", "equations"]
MODULES += ["engines/divergence", "engines/flow", "runs/clock", "runs/run"]
MODULES += ["runs/trajectory", "runs/saved", "runs/files", "runs/checkpoint", "runs/digest"]
PACKAGE = Path(gd.__file__).parent

I2 = np.eye(2)
NAN = np.diag([1.0, np.nan])
PROBLEM = gd.Problem(activation=gd.erf, v_star=[1, 1], T=I2)
X = gd.Overlaps.single(Q=0.5 * I2, R=0.3 * I2, v=[1, 1])
TWO, THREE = gd.mix(np.ones((2, 1)), X), gd.mix(np.ones((3, 1)), X)
ONE = gd.Overlaps.single(Q=[[1]], R=[[0]], v=[1])
W = gd.lift(PROBLEM, X, 10)
PAIR = gd.Overlaps(*(np.stack([a, a]) for a in (X.Q, X.R, X.v)))
WIDE = gd.Overlaps.single(Q=I2, R=np.zeros((2, 3)), v=[1, 1])
IMPOSSIBLE = gd.Overlaps.single(Q=0.5 * I2, R=np.diag([0.8, 0.3]), v=[1, 1])  # .64 > .5 x 1
T = gd.run(gd.flow(), PROBLEM, X, 1.0)
STILL = gd.Problem(activation=gd.erf, v_star=[1, 1], T=I2, eta=0, eta_v=0.5)
CHAIN = gd.chain(N=50, runs=2)
TEACHERS = np.array([[1.0, 2.0], [1.0, 1.0]])[..., None, None]  # of two by two runs


def problem(**change):
    return lambda: gd.Problem(**{"activation": gd.erf, "v_star": [1, 1], "T": I2} | change)


def single(**change):
    return lambda: gd.Overlaps.single(**{"Q": I2, "R": np.zeros((2, 3)), "v": [1, 1]} | change)


def several(Q, R, v):
    return lambda: gd.Overlaps(Q=np.zeros(Q), R=np.zeros(R), v=np.zeros(v))


def mix(A, state=TWO):
    return lambda: gd.mix(A, state)


def run(rounds=1.0, engine=None, problem=PROBLEM, x0=X, **options):
    engine = gd.flow() if engine is None else engine
    return lambda: gd.run(engine, problem, x0, rounds, **options)


def runs_of(x, axes):
    return gd.Overlaps(*(np.broadcast_to(a, (*axes, *a.shape)) for a in (x.Q, x.R, x.v)))


def start(**change):
    options = {"problem": PROBLEM, "workers": 1, "students": 2, "N": 10} | change
    return lambda: gd.random_start(**options)


def two_teachers():
    w = gd.lift(PROBLEM, runs_of(X, (2,)), 10)
    return replace(w, W_star=w.W_star * np.array([1, 1.1])[:, None, None])


class Foreign:
    """Not ours, but with fields of a Problem."""

    activation, v_star, T = gd.erf, np.ones(2), I2


class tensors:
    """Weights of torch tensors, made only when their test runs."""

    def __init__(self, dtype="float64", change=lambda a: a, names=("W", "v", "W_star")):
        self.dtype, self.change, self.names = dtype, change, names

    def __call__(self):
        torch = pytest.importorskip("torch")
        kind = getattr(torch, self.dtype)
        return gd.Weights(**{
            name: self.change(torch.tensor(a.copy()).to(kind)) if name in self.names else a
            for name, a in vars(W).items()
        })  # fmt: skip


class sgd:
    """gd.sgd(...), made only when its test runs: it needs torch."""

    def __init__(self, start=X, **options):
        self.start, self.options = start, {"N": 50, "runs": 2} | options

    def __call__(self):
        pytest.importorskip("torch")
        return gd.run(gd.sgd(**self.options), PROBLEM, self.start, 1.0)


def linear(eta, batch=1, engine=None):
    problem = gd.Problem(activation=gd.linear, v_star=[1], T=[[1]], eta=eta, batch=batch)
    return run(100.0, engine, problem, ONE)


# (what it is about, a call, the words its message must hold)
REFUSALS = [
    # averages
    ("fields of the wrong number", lambda: gd.erf.I2(np.eye(3)), "(3, 3)", "(..., 2, 2)"),
    ("fields of the wrong number", lambda: gd.erf.I4(I2), "(2, 2)", "(..., 4, 4)"),
    ("a covariance with NaN", lambda: gd.erf.I2(NAN), "nan", "1."),
    ("a covariance not symmetric", lambda: gd.erf.J2([[1, 0.2], [0.1, 1]]), "0.2", "0.1"),
    ("a covariance of no fields", lambda: gd.erf.I3(-np.eye(3)), "-1", "not be below 0"),
    ("fields too correlated", lambda: gd.linear.I2([[1, 1.2], [1.2, 1]]), "-0.2", "below 0"),
    ("a complex covariance", lambda: gd.erf.I2(1j * I2), "real", "1.j"),
    # problem
    ("an activation by name", problem(activation="erf"), "gossipdyn.erf", "'erf'"),
    ("v_star as a matrix", problem(v_star=I2), "(M,)", "(2, 2)"),
    ("no teacher", problem(v_star=[], T=np.zeros((0, 0))), "(M,)", "(0,)"),
    ("T of another teacher", problem(T=np.eye(3)), "(2,)", "(3, 3)"),
    ("T of another teacher", problem(v_star=[1, 1, 1]), "(3,)", "(2, 2)"),
    ("T not symmetric", problem(T=[[1, 0.2], [0.1, 1]]), "0.2 at (0, 1)", "0.1 at (1, 0)"),
    ("T of no teacher", problem(T=[[1, 2], [2, 1]]), "-1", "below 0"),
    ("T with NaN", problem(T=NAN), "T", "nan"),
    ("v_star with infinity", problem(v_star=[1, np.inf]), "v_star", "inf"),
    ("T of words", problem(T="identity"), "T must be an array of real numbers", "'identity'"),
    ("T complex", problem(T=1j * I2), "T must be an array of real numbers", "1.j"),
    ("nothing to learn", problem(eta=0), "eta is 0", "eta_v is 0", "above 0"),
    ("T of booleans", problem(T=I2 > 0), "T must be an array of real numbers", "bool"),
    ("v_star of text", problem(v_star=["1", "1"]), "v_star", "real numbers", "['1', '1']"),
    ("v_star masked", problem(v_star=np.ma.array([1, 2], mask=[1, 0])), "v_star", "masked", "--"),
    ("T of masked rows", problem(T=[np.ma.array([1, 0], mask=[0, 1]), [0, 1]]), "T has masked"),
    ("T off by 2e-8", problem(T=[[1, 0.1], [0.1 + 2e-8, 1]]), "0.1 at", "0.10000002 at"),
    ("a teacher of no weights", lambda: gd.Problem.from_weights(X, gd.erf, v_star=[1]), "Overlaps"),
    ("weights without v_star", lambda: gd.Problem.from_weights(W, gd.erf, eta=1), "v_star", "eta"),
    (
        "weights with a T",
        lambda: gd.Problem.from_weights(W, gd.erf, v_star=[1, 1], T=I2),
        "but T",
        "v_star, T",
    ),
    (
        "weights of two teachers",
        lambda: gd.Problem.from_weights(two_teachers(), gd.erf, v_star=[1, 1]),
        "run 1 has",
        "1.21",
    ),
    ("a foreign Problem", lambda: gd.risk(Foreign(), X), "gossipdyn.Problem", "Foreign"),
    ("eta of words", problem(eta="0.5"), "eta", "'0.5'"),
    ("eta an array", problem(eta=[0.5]), "eta", "[0.5]"),
    ("eta complex", problem(eta=1j), "eta", "1j"),
    ("eta beyond float64", problem(eta=10**400), "eta", "finite"),
    ("eta a flag", problem(eta=True), "eta", "True"),
    *(
        (f"{name} of {value}", problem(**{name: value}), name, str(value))
        for name in ("eta", "eta_v", "sigma", "weight_decay")
        for value in (-0.5, np.nan, np.inf)
    ),
    *(
        (f"a batch of {batch!r}", problem(batch=batch), "batch", repr(batch))
        for batch in (0, 2.5, "4", True, None, 1j)
    ),
    ("an infinite batch", problem(batch=np.inf), "batch", "inf"),
    # overlaps
    ("R the other way round", single(R=np.zeros((3, 2))), "(3, 2)", "(2,)"),
    ("v as a column", single(v=np.ones((2, 1))), "(2, 1)", "(2, 2)"),
    ("v too short", single(v=[1]), "(1,)", "(2, 2)"),
    ("Q of another K", single(Q=np.eye(3)), "(3, 3)", "(2, 3)"),
    ("Q not symmetric", single(Q=[[1, 0.2], [0.1, 1]]), "0.2 at", "0.1 in the mirrored place"),
    ("Q with NaN", single(Q=NAN), "Q", "nan"),
    ("R with infinity", single(R=np.full((2, 3), np.inf)), "R", "inf"),
    ("Q of words", single(Q="identity"), "Q must be an array of real numbers", "'identity'"),
    ("Q complex", single(Q=1j * I2), "Q must be an array of real numbers", "1.j"),
    ("Q of one worker", several((2, 2), (2, 2), (2,)), "(2, 2)", "(2,)", "Overlaps.single"),
    ("R of one worker less", several((2, 1, 2, 1), (1, 1, 1), (2, 1)), "(1, 1, 1)", "(2, 1)"),
    ("v of other runs", several((3, 1, 1, 1, 1), (3, 1, 1, 1), (2, 1, 1)), "(3, 1, 1, 1)", "(2, 1"),
    ("no student", several((1, 0, 1, 0), (1, 0, 2), (1, 0)), "from 1 up", "(1, 0, 2)"),
    ("no runs", several((0, 1, 1, 1, 1), (0, 1, 1, 1), (0, 1, 1)), "from 1 up", "(0, 1, 1, 1)"),
    (
        "Q not symmetric across workers",
        lambda: replace(gd.mix(np.ones((2, 1)), ONE), Q=np.arange(4.0).reshape(2, 1, 2, 1)),
        "1 at (0, 0, 1, 0)",
        "2 in",
    ),
    # weights
    (
        "a teacher of another N",
        lambda: gd.Weights(W=np.ones((1, 2, 5)), v=np.ones((1, 2)), W_star=np.ones((2, 4))),
        "(1, 2, 5)",
        "(2, 4)",
    ),
    (
        "weights of one worker",
        lambda: gd.Weights(W=np.ones((2, 5)), v=np.ones(2), W_star=np.ones((2, 5))),
        "(2, 5)",
        "(..., P, K, N)",
    ),
    (
        "v of another K",
        lambda: gd.Weights(W=np.ones((1, 2, 5)), v=np.ones((1, 3)), W_star=np.ones((2, 5))),
        "(1, 2, 5)",
        "(1, 3)",
    ),
    (
        "a teacher that is not the problem's",
        lambda: gd.diagnose(W, I2[:1, :1], problem=replace(PROBLEM, T=[[1, 0.25], [0.25, 1]])),
        "(0, 1)",
        "0.25",
        "from_weights",
    ),
    (
        "SGD of another teacher's weights",
        run(engine=CHAIN, x0=W, problem=replace(PROBLEM, T=I2 * (1 + 1e-7))),
        "1.0000001",
        "from_weights",
    ),
    (
        "weights of more teacher units",
        lambda: gd.diagnose(W, I2[:1, :1], problem=replace(PROBLEM, v_star=[1], T=[[1]])),
        "(2, 10)",
        "(1, 1)",
    ),
    *(
        (f"weights of {dtype}", tensors(dtype=dtype), f"W is a tensor of torch.{dtype}", "float32")
        for dtype in ("int64", "bool", "complex64", "float16", "bfloat16")
    ),
    ("tensors with NaN", tensors(change=lambda a: a * np.nan), "W holds NaN", "nan"),
    ("tensors without numbers", tensors(change=lambda a: a.to("meta")), "W", "device='meta'"),
    ("a tensor among arrays", tensors(names="W"), "ndarray", "cpu"),
    (
        "weights without inputs",
        lambda: gd.Weights(W=np.ones((1, 2, 0)), v=np.ones((1, 2)), W_star=np.ones((2, 0))),
        "from 1 up",
        "(1, 2, 0)",
    ),
    ("W too long", lambda: gd.overlaps(replace(W, W=W.W * 1e200)), "Q holds NaN", "inf"),
    ("W masked", lambda: replace(W, W=np.ma.masked_less(W.W, 0)), "W has masked entries", "--"),
    ("W with NaN", lambda: replace(W, W=np.full((1, 2, 10), np.nan)), "W", "nan"),
    ("W complex", lambda: replace(W, W=W.W * 1j), "W must be an array of real numbers", "j"),
    ("overlaps of an array", lambda: gd.overlaps(I2), "gossipdyn.Weights", "ndarray"),
    ("the length of one run", lambda: len(X), "one run", "without a leading axis"),
    ("a run that is not there", lambda: PAIR[2], "of which there are 2", "got 2"),
    ("a run by name", lambda: PAIR["0"], "whole number", "'0'"),
    # a state and a problem that do not fit
    *(
        (f"{f.__name__} of another teacher", lambda f=f: f(PROBLEM, WIDE), "(1, 2, 3)", "(2, 2)")
        for f in (gd.risk, gd.mean_risk, gd.rate, gd.drift, gd.noise, gd.cosines)
    ),
    ("lift of another teacher", lambda: gd.lift(PROBLEM, WIDE, 10), "(1, 2, 3)", "(2, 2)"),
    ("a run of another teacher", run(x0=WIDE), "(1, 2, 3)", "(2, 2)"),
    *(
        (f"{f.__name__} of weights", lambda f=f: f(PROBLEM, W), "Overlaps", "Weights")
        for f in (gd.risk, gd.mean_risk, gd.rate, gd.drift, gd.noise, gd.cosines)
    ),
    ("arguments exchanged", lambda: gd.risk(X, PROBLEM), "Overlaps", "Problem"),
    # overlaps that no weights have
    ("risk of no weights", lambda: gd.risk(PROBLEM, IMPOSSIBLE), "no weights", "-0.0882"),
    ("mean risk of no weights", lambda: gd.mean_risk(PROBLEM, IMPOSSIBLE), "no weights", "-0.0882"),
    ("lift of no weights", lambda: gd.lift(PROBLEM, IMPOSSIBLE, 10), "no weights", "-0.0882"),
    ("a flow of no weights", run(x0=IMPOSSIBLE), "no weights", "-0.0882"),
    ("a chain of no weights", run(x0=IMPOSSIBLE, engine=CHAIN), "no weights", "-0.0882"),
    ("SGD of no weights", sgd(IMPOSSIBLE), "no weights", "-0.0882"),
    (
        "one run in three of no weights",
        run(x0=gd.Overlaps(*(np.stack([a, b, a]) for a, b in zip(
            (X.Q, X.R, X.v), (IMPOSSIBLE.Q, IMPOSSIBLE.R, IMPOSSIBLE.v))))),
        "no weights",
        "-0.0882",
    ),
    (
        "workers that cannot have these overlaps together",
        lambda: gd.risk(PROBLEM, replace(TWO, Q=TWO.Q * (2 * I2 - 1)[:, None, :, None])),
        "no weights",
        "-0.",
    ),
    # N too small
    ("lift into too few dimensions", lambda: gd.lift(PROBLEM, TWO, 5), "P*K + M = 6", "N=5"),
    ("a chain in too few dimensions", run(x0=TWO, engine=gd.chain(N=5)), "P*K + M = 6", "N=5"),
    ("SGD in too few dimensions", sgd(TWO, N=5), "P*K + M = 6", "N=5"),
    ("a random start in too few", start(N=1), "M = 2", "N=1"),
    ("an N that is no whole number", lambda: gd.lift(PROBLEM, X, 10.5), "whole number", "10.5"),
    ("a chain at a broken N", lambda: gd.chain(N=10.5), "N", "10.5"),
    ("SGD at a broken N", sgd(N=10.5), "N", "10.5"),
    # random starts
    ("no workers", start(workers=0), "workers", "0"),
    ("half a student", start(students=1.5), "students", "1.5"),
    ("no runs", start(runs=0), "runs", "0"),
    ("a flag for a count", start(workers=True), "workers", "True"),
    ("a negative scale", start(scale=-1.0), "scale", "-1.0"),
    ("an infinite scale", start(scale=np.inf), "scale", "inf"),
    ("a scale of words", start(scale="1"), "scale", "'1'"),
    ("v of another K", start(v=[1, 1, 1]), "(2,)", "(3,)"),
    ("v with NaN", start(v=[1, np.nan]), "v", "nan"),
    # mixing matrices
    ("a row that sums to more", mix([[0.5, 0.6667], [0.5, 0.5]]), "row 0", "1.1667", "sum to 1"),
    ("doubly normalised weights", mix([[0.5, 0.5], [0.125, 0.125]]), "row 1", "0.25", "sum to 1"),
    ("weights .1 and 1", mix([[0.1, 1.0], [1.0, 0.1]]), "row 0", "1.1", "sum to 1"),
    ("a negative weight", mix([[1.5, -0.5], [0, 1]]), "A[0, 1] = -0.5", "below 0"),
    ("A for other workers", mix(np.eye(3)), "(3, 3)", "2"),
    ("A for one worker", mix(I2, X), "(2, 2)", "1"),
    ("A as a vector", mix([0.5, 0.5]), "matrix", "(2,)"),
    ("A with NaN", mix(NAN), "A", "nan"),
    ("A by name", mix("ring"), "real numbers", "'ring'"),
    ("A of a sum beside 1", mix([[0.5, 0.5 + 1e-8], [0.5, 0.5]]), "sums to 1.00000001:"),
    ("A in half precision", mix(np.full((3, 3), 1 / 3, "f2"), THREE), "row 0", "0.99976"),
    ("A of booleans", mix(I2 > 0), "A must be an array of real numbers", "bool"),
    ("A masked", mix(np.ma.masked_equal(I2, 1)), "A has masked entries"),
    ("matched gossip of arrays", lambda: gd.matched(I2)(I2), "gossipdyn.Weights", "ndarray"),
    ("a Matched of a rectangle", lambda: gd.Matched([[0.5, 0.5]], False, 0.1), "square", "(1, 2)"),
    ("A complex", mix(1j * I2), "real numbers", "1.j"),
    ("arguments exchanged", lambda: gd.mix(TWO, I2), "Overlaps or gossipdyn.Weights", "ndarray"),
    ("a trajectory for a state", mix([[1]], T), "Overlaps or gossipdyn.Weights", "Trajectory"),
    ("weights in a run", run([(1, [[0.5, 0.25]] * 2)], x0=TWO), "row 0", "0.75", "sum to 1"),
    ("weights of a coupling", lambda: gd.flow(coupling=(1, [[0.3]])), "row 0", "0.3", "sum to 1"),
    ("a gap of weights", lambda: gd.spectral_gap([[0.3]]), "row 0", "0.3", "sum to 1"),
    ("a gap of a rectangle", lambda: gd.spectral_gap([[0.5, 0.5]]), "square", "(1, 2)"),
    ("more workers in a run", run([(1, np.ones((2, 1)))]), "(2, 1)", "gossipdyn.mix"),
    # graphs
    ("two parts", lambda: gd.from_edges(5, [(0, 1), (1, 2), (3, 4)]), "{0, 1, 2} and {3, 4}"),
    ("no edges", lambda: gd.from_edges(3, []), "3 parts", "{0} and {1} and {2}"),
    ("a self-loop", lambda: gd.from_edges(2, [(0, 1), (1, 1)]), "(1, 1)", "self-loop"),
    ("an edge twice", lambda: gd.from_edges(2, [(0, 1), (0, 1)]), "(0, 1)", "twice"),
    ("an edge there and back", lambda: gd.from_edges(2, [(0, 1), (1, 0)]), "(1, 0)", "twice"),
    ("a worker too many", lambda: gd.from_edges(2, [(0, 2)]), "(0, 2)", "from 0 to 1"),
    ("a negative worker", lambda: gd.from_edges(2, [(0, -1)]), "(0, -1)", "from 0 to 1"),
    ("an edge of three", lambda: gd.from_edges(3, [(0, 1, 2)]), "pair", "(0, 1, 2)"),
    *(
        (f"a {graph.__name__} of {P}", lambda graph=graph, P=P: graph(P), "P", repr(P))
        for graph in (gd.complete, gd.ring, gd.path, gd.star)
        for P in (0, -1, 2.5, True)
    ),
    # engines
    ("a tolerance of 0", lambda: gd.flow(rtol=0), "rtol", "0"),
    ("a tolerance of words", lambda: gd.flow(rtol="1e-8"), "rtol", "'1e-8'"),
    ("two tolerances", lambda: gd.flow(atol=[1e-8]), "atol", "[1e-08]"),
    ("a tolerance of 1", lambda: gd.flow(atol=1), "atol", "1"),
    ("a coupling without graph", lambda: gd.flow(coupling=0.3), "(kappa, A)", "0.3"),
    ("a negative coupling", lambda: gd.flow(coupling=(-1, I2)), "kappa", "-1"),
    ("a coupling of a rectangle", lambda: gd.flow(coupling=(1, [[0.5, 0.5]])), "square", "(1, 2)"),
    ("a coupling of others", run(engine=gd.flow(coupling=(1, I2))), "(2, 2)", "1"),
    ("a flow of weights", run(x0=W), "Overlaps", "Weights"),
    ("a chain of weights", run(x0=W, engine=CHAIN), "Overlaps", "Weights"),
    ("a chain of other runs", run(x0=runs_of(X, (3,)), engine=CHAIN), "3", "runs=2"),
    ("SGD of other runs", sgd(runs_of(X, (3,))), "3", "2"),
    ("no runs of a chain", lambda: gd.chain(runs=0), "runs", "0"),
    ("a broken seed", lambda: gd.chain(seed=1.5), "seed", "1.5"),
    ("no runs of SGD", sgd(runs=0), "runs", "0"),
    ("an unknown device", sgd(device="gpu7"), "'gpu7'", "cpu"),
    ("an unknown dtype", sgd(dtype="float16"), "'float16'", "float32", "float64"),
    # run
    ("a function for an engine", run(engine=gd.flow), "gossipdyn.flow()", "<function flow"),
    ("an engine by name", run(engine="flow"), "gossipdyn.flow()", "'flow'"),
    ("no problem", run(problem=None), "gossipdyn.Problem", "None"),
    ("an array for a state", run(x0=I2), "Overlaps", "ndarray"),
    ("two axes of runs", run(x0=runs_of(X, (2, 3))), "2 leading axes", "(2, 3, 1, 2)", "one axis"),
    ("rounds of nothing", run(None), "(period, A)", "None"),
    ("a flag for rounds", run(True), "(period, A)", "True"),
    ("a round without a list", run((5.0, I2)), "(period, A)", "round 0 is 5.0"),
    ("a round of words", run([(1, None), ("long", None)]), "round 1", "'long'"),
    ("a negative period", run([(1, None), (-2, None)]), "round 1", "-2"),
    ("a period without end", run(np.inf), "round 0", "inf"),
    ("a broken period", run(0.013, engine=CHAIN), "0.013", "0.65 steps", "N=50", "0.02"),
    ("a second broken period", run([(1, None), (0.5001, None)], engine=CHAIN), "0.5001", "N=50"),
    ("ends of words", run(ends="no"), "ends", "True or False", "'no'"),
    ("a start of words", run(start="0"), "start", "'0'"),
    ("a start that is no number", run(start=np.nan), "start", "nan"),
    ("times out of order", run(record=[0.1, 0.5, 0.3]), "0.5 before 0.3"),
    ("a time before the start", run(record=[2], start=3.0), "2", "from 3 to 4"),
    ("a time just after the end", run(record=[1 + 1e-8]), "1.00000001", "from 0 to 1"),
    ("times just out of order", run(record=[0.5 + 1e-8, 0.5]), "0.50000001 before 0.5"),
    ("a period just beside", run(0.1 + 1e-8, engine=CHAIN), "5.0000005 steps", "not 5"),
    ("a time after the end", run(record=[0.5, 7.0]), "7", "from 0 to 1"),
    ("a time after the chain's end", run(record=[7.0], engine=CHAIN), "7", "from 0 to 1"),
    ("one time", run(record=0.5), "list", "0.5"),
    ("times with NaN", run(record=[np.nan]), "record", "NaN", "nan"),
    ("times of words", run(record="all"), "list", "'all'"),
    ("complex times", run(record=np.array([1j])), "list", "1.j"),
    ("an array that is not kept", run(keep=("Q", "eps")), "risk, mean_risk", "'eps'"),
    ("a number to keep", run(keep=5), "risk, mean_risk", "5"),
    ("a mixing that returns nothing", run([(1, lambda x: None)]), "lambda", "NoneType", "Overlaps"),
    (
        "a mixing that changes the workers",
        run([(1, lambda x: gd.mix(np.ones((2, 1)), x))]),
        "(1, 2, 2)",
        "(1, 1, 2)",
    ),
    # trajectories
    ("an error of one run", lambda: T.sem("risk"), "2 or more", "1"),
    ("an array no trajectory has", lambda: T.mean("eps"), "risk, mean_risk", "'eps'"),
    ("a state not kept", lambda: run(keep="risk")().state(0), "Q was not kept", "['risk']"),
    ("a time that was not recorded", lambda: T.state(2), "the 2 recorded", "got 2"),
    ("orders of two lengths", lambda: gd.specialisation(X, [[0, 1], [0]]), "one length, 2", "[0]"),
    ("an order that repeats", lambda: gd.specialisation(X, [1, 1]), "a permutation", "[1, 1]"),
    ("a quantile beyond 1", lambda: T.quantile("risk", [0.5, 1.5]), "from 0 to 1", "1.5"),
    ("no quantile", lambda: T.quantile("risk", []), "q is a part from 0 to 1", "[]"),
    ("a risk no trajectory has", lambda: T.first_below(1.0, "Q"), "mean_risk", "'Q'"),
    ("a level of 0", lambda: T.first_below(0), "level", "above 0"),
    ("after the end", lambda: T.first_below(0.1, since=7.0), "ends at alpha=1", "since=7"),
    ("no point of a line", lambda: gd.interpolation(PROBLEM, TWO, 0, 1, []), "shape (0,)"),
    ("runs of two teachers", lambda: gd.Problem.from_weights(gd.Weights(
        np.ones((2, 2, 1, 1, 3)), np.ones((2, 2, 1, 1)), np.ones((2, 2, 1, 3)) * TEACHERS),
        gd.erf, v_star=[1]), "run 0, 1 has\n[[4.]]\n", "first run\n[[1.]]"),
    ("overlaps whose products overflow", run(x0=gd.Overlaps.single(1e155 * I2, 0 * I2, [1, 1])),
     "1e+155", "another unit"),
    ("a teacher whose products overflow", lambda: gd.risk(problem(T=1e200 * I2)(), X), "1e+200"),
    *((f"{f.name} of huge fields", lambda f=f: f.I2(1e155 * I2), "1e+155", "float64")
      for f in (gd.erf, gd.relu, gd.quadratic)),
    ("a line to nobody", lambda: gd.interpolation(PROBLEM, TWO, 0, 2, 0.5), "2 workers", "q=2"),
    *(
        (f"{call.__name__} without learning", lambda call=call, a=a: call(STILL, *a), "eta=0")
        for call, a in (
            (gd.noise_floor, [gd.perfect(PROBLEM)]),
            (gd.gossip_floor, [I2, 1.0]),
            (gd.plateau_length, [X, 1.0]),
            (gd.noise_to_come, [X, 1.0]),
        )
    ),
    ("phases of a problem", lambda: gd.phases(PROBLEM), "gossipdyn.Trajectory", "Problem("),
    ("no file", lambda: gd.Trajectory.load("nowhere.npz"), "no file", "nowhere.npz"),
    ("a file by its number", lambda: gd.Trajectory.load(0), "named by a path", "0"),
    ("load, with no activation", lambda: gd.Trajectory.load("x", "erf"), "Activation", "'erf'"),
    ("a round of one part", lambda: gd.modes(PROBLEM, X, 5), "round is a pair (period, A)", "5"),
    ("a number for a function", lambda: gd.smooth(3, np.cos), "g is a function", "3"),
    ("a round and its end", lambda: gd.diagnose(X, [[1]], X), "either A", "or after", "both"),
    # divergence
    ("a linear unit", linear(2.4), "1e6", "alpha=14.", "eta=2.4", "batch=1", "below 2"),
    ("a batch of 2", linear(4.4, 2), "1e6", "eta=4.4", "batch=2", "below 4"),
    ("a chain", linear(2.4, engine=CHAIN), "1e6", "alpha=1", "eta=2.4", "1.92308 at N=50"),
]  # fmt: skip


@pytest.mark.parametrize(
    "call, words", [(call, words) for _, call, *words in REFUSALS], ids=[r[0] for r in REFUSALS]
)
def test_a_refusal_names_both(call, words):
    with pytest.raises(ValueError) as refusal:
        call()
    for word in words:
        assert word in str(refusal.value)


def test_nothing_is_refused_that_is_only_rounded():
    """A last digit is no mistake: equal workers, asymmetric rounding, rows of thirds."""
    third = np.full((3, 3), 1 / 3)
    third[0, 0] += 1e-12
    gd.mix(third, gd.mix(np.ones((3, 1)), X))
    problem(T=[[1, 1e-17], [0, 1]])()
    single(Q=[[1, 1e-17], [0, 1]])()
    gd.erf.I2([[1, 1e-17], [0, 1]])
    same = gd.Overlaps.single(Q=np.ones((2, 2)) - 1e-12 * I2, R=np.ones((2, 1)), v=[1, 1])
    assert gd.risk(gd.Problem(activation=gd.erf, v_star=[1], T=[[1]]), same)[0] > 0
    many = gd.mix(np.ones((5, 1)), X)
    assert gd.overlaps(gd.lift(PROBLEM, many, 12)).Q.shape == (5, 2, 5, 2)
    run(0.1 + 0.2, engine=gd.chain(N=10, runs=2))()  # 0.30000000000000004


def test_divergence_is_a_value_error_with_what_was_computed():
    with pytest.raises(gd.Diverged) as refusal:
        linear(2.4)()
    alpha = float(re.search(r"alpha=([\d.]+)", str(refusal.value))[1])
    # e = 2 exp(.96 alpha) makes the risk e / 2 pass 1e6 at 14.39; the solver notices at its step
    assert np.log(1e6) / 0.96 < alpha < 15
    first, last = refusal.value.trajectory.alpha  # the start, and the last state in bounds
    assert first == 0 < last < alpha


def test_no_cause_is_named_where_none_is_known():
    """An erf unit does not blow up by its rate; a huge v makes the risk pass 1e6."""
    huge = gd.Overlaps.single(Q=I2, R=0 * I2, v=[3e3, -3e3])
    with pytest.raises(gd.Diverged, match=r"1e6 at alpha=0 .*no bound is known that it breaks"):
        run(x0=huge)()


def test_torch_weights_that_blow_up_are_caught():
    torch = pytest.importorskip("torch")
    w = gd.Weights(*(torch.tensor(np.array(a)) for a in (W.W, W.v, W.W_star)))

    def explode(state):
        return replace(state, W=state.W * 1e19)

    with pytest.raises(gd.Diverged, match=r"weights passed 1e18 before alpha=1.*eta=0.5"):
        gd.run(gd.sgd(N=10, runs=2), PROBLEM, w, [(1.0, explode), (1.0, None)])


def test_a_solver_that_gives_up_says_where(monkeypatch):
    class Tired(scipy.integrate.LSODA):
        def step(self):
            self.status = "failed"
            return "tired"

    monkeypatch.setattr(scipy.integrate, "LSODA", Tired)
    with pytest.raises(gd.Diverged, match="the solver stopped at alpha=0: tired"):
        run()()


def test_files_of_others_are_refused(tmp_path):
    path = tmp_path / "run.npz"

    def refused(*words, load=gd.Trajectory.load, **options):
        with pytest.raises(ValueError) as refusal:
            load(path, **options)
        for word in (str(path), *words):
            assert word in str(refusal.value)

    path.write_text("alpha, risk")
    refused("no saved trajectory")
    T.save(path)
    refused("erf", "linear", activation=gd.linear)
    with np.load(path) as file:
        arrays = dict(file)
    description = json.loads(str(arrays["description"])) | {"format": 9}
    np.savez(path, **arrays | {"description": json.dumps(description)})
    refused("format 9", "up to 1")
    checkpoint = lambda path: gd.run(gd.flow(), PROBLEM, X, 1.0, checkpoint=path)  # noqa: E731
    refused("no checkpoint", load=checkpoint)
    path.unlink()
    checkpoint(path)
    sound = path.read_bytes()
    path.write_bytes(sound[:-1])
    refused("damaged", load=checkpoint)
    path.write_bytes(sound)
    refused("another run", "eta=0.5", "eta=0.7", load=lambda path: gd.run(
        gd.flow(), replace(PROBLEM, eta=0.7), X, 1.0, checkpoint=path))  # fmt: skip
    with pytest.raises(ValueError, match="parts pickle: .*top level of a module") as refusal:
        gd.run(gd.flow(), PROBLEM, X, [(1, lambda x: x)], checkpoint=tmp_path / "other")
    assert isinstance(refusal.value.__cause__, pickle.PicklingError | AttributeError)


def test_labels_without_xarray(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "xarray", None)
    with pytest.raises(ValueError, match="needs xarray: pip install xarray"):
        T.to_xarray()


# what is accepted with a warning

STAR = np.array([[0.2] * 5, *([0.5 if q in (0, p) else 0 for q in range(5)] for p in range(1, 5))])
FIVE = gd.mix(np.ones((5, 1)), X)


@pytest.mark.parametrize(
    "call",
    [
        lambda: gd.mix(STAR, FIVE),
        lambda: gd.matched(STAR),
        lambda: gd.flow(coupling=(1.0, STAR)),
        lambda: gd.run(gd.flow(), PROBLEM, FIVE, [(0.1, STAR)] * 3),
        lambda: gd.run(gd.flow(), PROBLEM, FIVE, [(0.1, STAR.tolist()) for _ in range(3)]),
    ],
    ids=["mix", "matched", "coupling", "schedule", "schedule of lists"],
)
def test_weights_that_keep_no_mean_are_accepted_with_one_warning(call):
    """It names the weights of the workers in the long run, and points to the user's line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    (warning,) = caught
    words = "columns do not sum to 1: the mean is not kept"
    assert words in str(warning.message)
    assert "0.3846154, 0.1538462, 0.1538462, 0.1538462, 0.1538462" in str(warning.message)
    assert warning.filename == __file__


def test_weights_without_a_common_limit_are_accepted_with_a_warning():
    leader = np.array([[1, 0, 0], [0.5, 0, 0.5], [0, 0, 1]])
    with pytest.warns(UserWarning, match="different workers end with different means"):
        gd.mix(leader, gd.mix(np.ones((3, 1)), X))
    with pytest.warns(UserWarning, match="weights 0.25, 0.75"):  # by counts 1 and 3
        gd.mix([[0.25, 0.75], [0.25, 0.75]], TWO)


# every refusal of the sources is met


def raises():
    """(module, line) of every refusal in the core's sources."""
    for module in MODULES:
        for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
            named = isinstance(node, ast.Raise) and getattr(node.exc, "func", None)
            if named and named.id in ("ValueError", "Diverged"):
                yield module, node.lineno


def met(call):
    """Where the refusals that a call meets were raised."""
    try:
        call()
    except ValueError as error:
        while error is not None:
            trace = error.__traceback__
            while trace is not None:
                file = Path(trace.tb_frame.f_code.co_filename)
                if PACKAGE in file.parents:
                    place = file.relative_to(PACKAGE).with_suffix("")
                    yield place.as_posix(), trace.tb_lineno
                trace = trace.tb_next
            error = error.__context__
    except pytest.skip.Exception:
        return


OTHERS = {  # met by a test of their own above
    "needs xarray",
    "nobody can tell",
    "too deeply",
    "cannot be written",
    "cannot be read",
    "a file is named by",
    "another version",
    "lies outside",
    "is no saved trajectory",
    "has format",
    "was made with",
    "the problem of {path}",
    "parts pickle",
    "no checkpoint of this",
    "is damaged: delete",
    "belongs to another run",
    "the weights passed",
    "the solver stopped",
}


def test_every_refusal_of_the_core_is_met():
    reached = {place for _, call, *_ in REFUSALS for place in met(call)}
    missed = []
    for module, line in set(raises()) - reached:
        source = (PACKAGE / f"{module}.py").read_text().splitlines()[line - 1 : line + 4]
        if not any(other in " ".join(source) for other in OTHERS):
            missed.append(f"{module}.py:{line}\n" + "\n".join(source))
    assert not missed, "no test meets\n" + "\n".join(missed)
