"""Trajectory: what every engine returns."""

import json
from dataclasses import dataclass, field, fields

import numpy as np

from ..averages.activation import Activation
from ..averages.shipped import named
from ..checks import flag, instance, number, one_of, reals, whole
from ..labels import KINDS
from ..problem import Problem
from ..states import Overlaps, Weights
from ..version import __version__
from .digest import alike
from .files import atomically, path_of
from .saved import FORMAT, KEPT, _pack, _plain, _refusing, _unpack


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Overlaps and risks of all runs at the recorded times, and all it takes to run it again.

    Attributes
    ----------
    problem : Problem.
    alpha : (times,) steps / N, as float64.
    after_mixing : (times,) bool: the end of a mixing round stands twice, before and after.
    Q (runs, times, P, K, P, K), R (runs, times, P, K, M), v (runs, times, P, K),
    risk (runs, times, P), mean_risk (runs, times) : None where `keep` left them out.
    weights : Weights at the last recorded time (sgd; leading axis of runs), None from the others.
    complete : False after Ctrl-C or divergence; the last recorded time is then that of the last
        whole state.
    engine : dict, name and options (N, seed, device, dtype, rtol, ...) of the engine.
    asked : dict, start (`x0`), `rounds`, `record`, `ends`, `keep` and `start` as given to run().
    version : of gossipdyn that computed it.
    kind : name of the kind of state that state() makes: "Overlaps", unless the run went on states
        of another kind and all their arrays were kept.
    more : dict of the kept arrays (runs, times, ...) of such states, which are attributes too.

    To run it again, bit for bit on one machine:
    `gd.run(getattr(gd, t.engine["name"])(**t.engine["options"]), t.problem, **t.asked)`.
    Runs on different devices agree in law only. Chapter `theory_meets_simulation`.
    """

    problem: Problem
    alpha: np.ndarray
    after_mixing: np.ndarray
    Q: np.ndarray | None
    R: np.ndarray | None
    v: np.ndarray | None
    risk: np.ndarray | None
    mean_risk: np.ndarray | None
    weights: Weights | None
    complete: bool
    engine: dict
    asked: dict
    version: str = __version__
    kind: str = "Overlaps"
    more: dict = field(default_factory=dict)

    def __getattr__(self, name):
        more = self.__dict__.get("more", {})
        if name in more:
            return more[name]
        raise AttributeError(f"a Trajectory has no {name!r}")

    def state(self, i):
        """Overlaps (runs, ...) at recorded time number i, ready to start from."""
        kind = KINDS[self.kind]
        if any(getattr(self, name, None) is None for name in kind.axes):
            kind = Overlaps
        arrays = {name: self._kept(name) for name in kind.axes}
        times = len(self.alpha)
        i = whole(i, f"i, which counts the {times} recorded times,", -times, times - 1)
        return kind(**{name: array[:, i] for name, array in arrays.items()})

    def at(self, alpha):
        """Overlaps at the recorded time nearest alpha, after the mixing where it stands twice."""
        distance = np.abs(self.alpha - number(alpha, "alpha"))
        return self.state(int(np.flatnonzero(distance == distance.min())[-1]))

    def mean(self, name):
        """Mean over runs of the array `name`: "Q", "R", "v", "risk" or "mean_risk"."""
        return self._kept(name).mean(0)

    def sem(self, name):
        """Standard error of mean(name), over runs. Raises ValueError for a single run."""
        array = self._kept(name)
        if len(array) < 2:
            raise ValueError(f"a standard error needs 2 or more runs, here are {len(array)}")
        return array.std(0, ddof=1) / np.sqrt(len(array))

    def std(self, name):
        """Standard deviation of single runs, of the array `name` as in mean().

        Raises ValueError for a single run.
        """
        return self.sem(name) * np.sqrt(len(self._kept(name)))

    def quantile(self, name, q):
        """Quantiles over runs of the array `name` as in mean(): (...), or (len(q), ...).

        q : a part from 0 to 1, or a list of them; 0.5 is the median. For an interval of a quantile
        see bootstrap().
        """
        q = reals(q, "q", least=0, most=1)
        if q.ndim > 1 or not q.size:
            raise ValueError(f"q is a part from 0 to 1, or a list of them, got {q}")
        return np.quantile(self._kept(name), q, axis=0)

    def first_below(self, level, name="risk", since=None, for_good=False):
        """The alpha at which each run's risk is first below `level`: (runs, P), or (runs,).

        Interpolated between the recorded times before and after it, linearly in the logarithm of
        the risk; a round takes no time. The first recorded time where that is below already, and
        inf where it never comes.

        level : above 0. name : "risk" for each worker, or "mean_risk". since : recorded times
        before this alpha do not count; of a round's end at `since`, the state after it counts.
        for_good : True for the alpha from which on the risk stays below, up to the end of the
        record; inf where the last one is not below.

        Raises ValueError for a risk that was not kept and for a `since` after the end. Chapter
        `setback`.
        """
        one_of(name, ("risk", "mean_risk"), "name")
        level = number(level, "level, a risk,", above=0)
        since = self.alpha[0] if since is None else number(since, "since")
        if since > self.alpha[-1] + 1e-9:
            raise ValueError(f"the record ends at alpha={self.alpha[-1]:.6g}, before since={since}")
        first, last = (np.searchsorted(self.alpha, since + slack) for slack in (-1e-9, 1e-9))
        start = max(first, last - 1)
        alpha = self.alpha[start:]
        tiny = np.finfo(float).tiny
        height = np.log(np.maximum(self._kept(name)[:, start:], tiny) / level)  # 0 at the level
        below = height < 0
        if flag(for_good, "for_good"):
            below = np.logical_and.accumulate(below[:, ::-1], axis=1)[:, ::-1]
        there = below.argmax(1)[:, None]
        before = np.maximum(there - 1, 0)
        high, low = (np.take_along_axis(height, i, 1)[:, 0] for i in (before, there))
        early, late = alpha[before[:, 0]], alpha[there[:, 0]]
        crosses = high >= 0
        part = np.divide(high, high - low, out=np.ones_like(high), where=crosses & (low < high))
        time = np.where(crosses, early + part * (late - early), late)
        return np.where(below.any(1), time, np.inf)

    def to_xarray(self):
        """An xarray.Dataset of the kept arrays with named axes (needs the package xarray).

        Its attributes `problem` and `engine` are JSON, so that netCDF files can hold them.
        """
        try:
            import xarray
        except ImportError as error:
            raise ValueError("to_xarray needs xarray: pip install xarray") from error
        axes = {**Overlaps.axes, **KINDS[self.kind].axes, "risk": ("worker",), "mean_risk": ()}
        arrays = {
            name: (("run", "time", *_told_apart(axes[name])), array)
            for name, array in self.arrays.items()
        }
        coordinates = {"alpha": ("time", self.alpha), "after_mixing": ("time", self.after_mixing)}
        problem = {f.name: getattr(self.problem, f.name) for f in fields(self.problem)}
        problem |= {name: problem[name].tolist() for name in ("v_star", "T")}
        attributes = {
            "problem": json.dumps(problem | {"activation": problem["activation"].name}),
            "engine": json.dumps(self.engine),
            "complete": int(self.complete),
            "gossipdyn": self.version,
        }
        return xarray.Dataset(arrays, coordinates, attributes)

    def save(self, path):
        """Write everything to one .npz file, atomically (a kill leaves the old file or none).

        A schedule with callables is stored by their names and cannot be run again from the file.
        """
        arrays, description = _pack(self)
        with atomically(path) as file:
            np.savez_compressed(file, description=json.dumps(description, default=_plain), **arrays)

    @classmethod
    def load(cls, path, activation=None):
        """Read what save() wrote.

        activation : needed for a trajectory whose activation was made by gossipdyn.smooth: the file
        has its name alone. Raises ValueError for a file that is no trajectory, is damaged or has a
        newer format, and for an activation that is not the one it names.
        """
        path = path_of(path)
        instance(activation, Activation | None, "a gossipdyn.Activation, that of the run")
        with _refusing(path):
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as content:
                arrays = {name: content[name] for name in content.files}
            description = json.loads(str(arrays.pop("description")))
            newest, name = int(description["format"]), description["problem"]["activation"]
        if newest > FORMAT:
            raise ValueError(
                f"{path} has format {newest}, gossipdyn {__version__} reads up to {FORMAT}: "
                "install a newer gossipdyn"
            )
        if activation is None:
            activation = named(name)
        elif activation.name != name:
            raise ValueError(
                f"{path} was made with the activation {name}, got {activation.name}: give the "
                "one that made it"
            )
        with _refusing(path):
            return _unpack(cls, arrays, description, activation)

    def __repr__(self):
        kept = self.arrays
        shapes = ", ".join(f"{name} {a.shape}" for name, a in kept.items()) or "nothing kept"
        span = f"from alpha={self.alpha[0]:.6g} to {self.alpha[-1]:.6g}"
        return (
            f"<Trajectory of {self.engine['name']}, {len(self.alpha)} times {span}"
            f"{'' if self.complete else ', not complete'}: {shapes}>"
        )

    def __eq__(self, other):
        """Whether two trajectories hold the same, their weights, engine and start included."""
        return isinstance(other, Trajectory) and all(
            same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)
        )

    @property
    def arrays(self):
        """The kept arrays (runs, times, ...) by their names."""
        named = {name: getattr(self, name) for name in KEPT} | self.more
        return {name: array for name, array in named.items() if array is not None}

    def _kept(self, name):
        known = (*KEPT, *KINDS[self.kind].axes)
        if one_of(name, known, "an array of a trajectory") not in self.arrays:
            raise ValueError(
                f"{name} was not kept, only {list(self.arrays)}: name it in run(..., keep=...)"
            )
        return self.arrays[name]


def _told_apart(axes):
    """Names of axes, each once: the second "worker" is "worker_2"."""
    return tuple(
        axis if axis not in axes[:i] else f"{axis}_{1 + axes[:i].count(axis)}"
        for i, axis in enumerate(axes)
    )


def check_trajectory(t):
    """Refuse what is no Trajectory."""
    instance(t, Trajectory, "a gossipdyn.Trajectory, as run() returns it")


def same(a, b):
    """Whether two records, containers or arrays hold the same."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and np.array_equal(a, b)
    return a is b or bool(a == b) or (callable(a) and callable(b) and alike(a, b))
