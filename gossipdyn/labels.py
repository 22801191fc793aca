"""Labelled axes: what makes a record of arrays a state.

A state is a frozen record of arrays, each with a label for every axis. Gossip acts on the axes
labelled "worker", an engine moves the others; leading axes, which have no label, count runs. What
mixes, records, saves and restores states reads the labels and never asks for the class, so that a
state of another kind needs no change there: see labelled().
"""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from .checks import through_constructor, whole

KINDS: dict[str, Any] = {}  # the kinds of state by their names, for files


def as_numpy(a):
    """A torch tensor, on whatever device, or a NumPy array, as a NumPy array."""
    return a.detach().cpu().numpy() if hasattr(a, "cpu") else a


def _equal(a, b):
    return type(a) is type(b) and all(
        np.array_equal(*(as_numpy(getattr(x, f.name)) for x in (a, b))) for f in fields(a)
    )


def labelled(kind: Any) -> Any:
    """Make a frozen dataclass of arrays a kind of state; a class decorator.

    Parameters
    ----------
    kind : type
        A frozen dataclass with two things besides its arrays. Its ClassVar ``axes`` is a dict that
        names the axes of each array from the last leading axis on, such as {"R": ("worker",
        "student", "teacher")}. Its method ``overlaps(problem)`` returns the Overlaps of the state.
        Fields that ``axes`` does not name go along as they are.

    Returns
    -------
    type
        The class, with four things more: ``worker_axes``, which names the places of the axes on
        which gossip acts; ``runs``, the shape of the leading axes; x[i], len(x) and iteration over
        the first of them; and comparison by value, with pickles and copies that are checked like
        any new record.

    Notes
    -----
    The labels are "worker", "student", "teacher", "input" and "mode". A state with an axis "input"
    grows with N, so a Trajectory keeps its overlaps in its place.
    """
    kind.worker_axes = {
        name: places for name, axes in kind.axes.items() if (places := _places(axes, "worker"))
    }
    kind.runs = property(_runs)
    kind.__getitem__, kind.__len__, kind.__iter__ = _run, _number_of_runs, _each_run
    kind.__eq__, kind.__hash__, kind.__reduce__ = _equal, None, through_constructor
    KINDS[kind.__name__] = kind
    return kind


def _places(axes, label):
    """The axes with a label, counted from the end."""
    return tuple(i - len(axes) for i, axis in enumerate(axes) if axis == label)


def _runs(state):
    """The shape of the leading axes: () for one run, (runs,) for several."""
    name, axes = next(iter(state.axes.items()))
    array = getattr(state, name)
    return tuple(array.shape[: array.ndim - len(axes)])


def _number_of_runs(state):
    if not state.runs:
        raise ValueError("the state is that of one run, without a leading axis: it has no length")
    return state.runs[0]


def _run(state, i):
    """The state of run number i, or of the runs of a slice."""
    runs = len(state)
    if not isinstance(i, slice) and not -runs <= whole(i, "i, the number of a run,", -runs) < runs:
        raise ValueError(f"i is the number of a run, of which there are {runs}, got {i}")
    return replace(state, **{name: getattr(state, name)[i] for name in state.axes})


def _each_run(state):
    return (state[i] for i in range(len(state)))


def check_kind(state, what):
    """Refuse what is no state; `what` is what needs one, in the refusal."""
    if not hasattr(type(state), "worker_axes"):
        raise ValueError(
            f"{what} a state such as gossipdyn.Overlaps or gossipdyn.Weights, got "
            f"{type(state).__name__}"
        )


def has_axis(state, label):
    """Whether an array of the state has an axis of this label."""
    return any(label in axes for axes in state.axes.values())


def workers(state):
    """P, the number of workers of a state."""
    name, places = next(iter(state.worker_axes.items()))
    return getattr(state, name).shape[places[0]]


def made(kind, **arrays):
    """A state of arrays that the package has computed: without the checks, and without copies."""
    state = object.__new__(kind)
    for f in fields(kind):
        object.__setattr__(state, f.name, arrays.get(f.name))
    return state


def with_runs(state, runs=None):
    """The state with a leading axis of runs: of length 1, or the same for each of `runs`."""
    if state.runs:
        return state
    arrays = {name: getattr(state, name)[None] for name in state.axes}
    if runs is not None:
        arrays = {name: _repeated(array, runs) for name, array in arrays.items()}
    return replace(state, **arrays)


def _repeated(array, runs):
    shape = (runs, *array.shape[1:])
    return array.expand(shape) if hasattr(array, "expand") else np.broadcast_to(array, shape)


def of_workers(state, chosen):
    """The state of some of the workers: an index array, or a slice."""
    arrays = {}
    for name, places in state.worker_axes.items():
        array = getattr(state, name)
        for place in places:
            array = array[(..., chosen, *(-1 - place) * (slice(None),))]
        arrays[name] = array
    return replace(state, **arrays)


def told_apart(axes):
    """Names of axes, each once: the second "worker" is "worker_2"."""
    return tuple(
        axis if axis not in axes[:i] else f"{axis}_{1 + axes[:i].count(axis)}"
        for i, axis in enumerate(axes)
    )
