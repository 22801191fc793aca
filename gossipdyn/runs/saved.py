"""Trajectories in files: what .save writes and .load reads."""

from contextlib import contextmanager
from dataclasses import fields

import numpy as np

from ..labels import KINDS
from ..problem import Problem
from ..states import Weights

FORMAT = 1  # of saved files
KEPT = ("Q", "R", "v", "risk", "mean_risk")


@contextmanager
def _refusing(path):
    """Any failure to read `path` as a ValueError in words."""
    try:
        yield
    except FileNotFoundError as error:
        raise ValueError(f"there is no file {path}") from error
    except Exception as error:  # zip, zlib, NumPy, JSON and our records each raise their own
        raise ValueError(f"{path} is no saved trajectory, or it is damaged: {error}") from error


def _plain(number):
    """A NumPy number as Python's own, for JSON."""
    return number.item()


def _pack(t):
    """Arrays and a JSON-able description of a trajectory."""
    arrays = {}

    def put(name, record):
        for f in fields(record):
            if isinstance(getattr(record, f.name), np.ndarray):
                arrays[f"{name}.{f.name}"] = getattr(record, f.name)

    put("trajectory", t)
    put("problem", t.problem)
    if t.weights is not None:
        put("weights", t.weights)
    put("x0", t.asked["x0"])
    arrays |= {f"more.{name}": array for name, array in t.more.items()}
    for i, (_, A) in enumerate(t.asked["rounds"]):
        if isinstance(A, np.ndarray):
            arrays[f"rounds.{i}"] = A
    if t.asked["record"] is not None:
        arrays["record"] = t.asked["record"]
    description = {
        "format": FORMAT,
        "problem": {"activation": t.problem.activation.name, **_scalars(t.problem)},
        "class": type(t.problem).__name__,
        "complete": t.complete,
        "engine": t.engine,
        "rounds": [(period, repr(A) if callable(A) else None) for period, A in t.asked["rounds"]],
        "ends": t.asked["ends"],
        "keep": t.asked["keep"],
        "start": t.asked["start"],
        "version": t.version,
        "kind": t.kind,
        "x0": {"kind": type(t.asked["x0"]).__name__, **_scalars(t.asked["x0"])},
    }
    return arrays, description


def _scalars(record):
    """The fields of a record that are numbers, by their names."""
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def _unpack(cls, arrays, description, activation):
    def get(name):
        return {k.split(".")[1]: a for k, a in arrays.items() if k.startswith(f"{name}.")}

    problem = get("problem") | description["problem"]
    problem["activation"] = activation
    start, weights, A = get("x0"), get("weights"), get("rounds")
    first = description.get("x0", {"kind": "Overlaps" if "Q" in start else "Weights"})
    kind = KINDS[first.pop("kind")]
    asked = {
        "x0": kind(**start, **first),
        "rounds": [
            (period, A.get(str(i), name)) for i, (period, name) in enumerate(description["rounds"])
        ],
        "record": arrays.get("record"),
        "ends": description["ends"],
        "keep": tuple(description["keep"]),
        "start": description["start"],
    }
    kept = dict.fromkeys(KEPT)
    return cls(
        problem=Problem(**problem),
        weights=Weights(**weights) if weights else None,
        complete=description["complete"],
        engine=description["engine"],
        asked=asked,
        version=description["version"],
        kind=description.get("kind", "Overlaps"),
        more=get("more"),
        **(kept | get("trajectory")),
    )
