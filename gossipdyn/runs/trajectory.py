"""Trajectory: what every engine returns."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from ..averages.activation import Activation
from ..averages.shipped import named
from ..checks import flag, instance, number, one_of, reals, whole
from ..labels import KINDS, told_apart
from ..problem import Problem
from ..states import Overlaps, Weights
from ..version import __version__
from .digest import same
from .files import atomically, path_of
from .saved import FORMAT, KEPT, _pack, _plain, _refusing, _unpack


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Overlaps and risks of all runs at the recorded times, and all it takes to run it again.

    Of Q, R, v, risk and mean_risk those are None that ``keep`` left out.

    Attributes
    ----------
    problem : Problem
        The teacher and the learning rule.
    alpha : (times,) array
        Recorded times, steps / N, as float64.
    after_mixing : (times,) array of bool
        Whether the state is the one after a round: the end of a round stands twice, before and
        after.
    Q : (runs, times, P, K, P, K) array or None
        Student-student overlaps.
    R : (runs, times, P, K, M) array or None
        Student-teacher overlaps.
    v : (runs, times, P, K) array or None
        Second layers.
    risk : (runs, times, P) array or None
        Generalisation error of each worker.
    mean_risk : (runs, times) array or None
        Generalisation error of the network of the mean weights.
    weights : Weights or None
        Weights at the last recorded time, with a leading axis of runs, from sgd; None from others.
    complete : bool
        False after Ctrl-C or divergence; the last recorded time is then that of the last whole
        state. It is also called ``finished``, because gossipdyn.complete() is another thing: a
        graph.
    engine : dict
        Name and options (N, seed, device, dtype, rtol, ...) of the engine.
    asked : dict
        The start ``x0``, ``rounds``, ``record``, ``ends``, ``keep`` and ``start`` as given to
        run().
    version : str
        Version of gossipdyn that computed it.
    kind : str
        Name of the kind of state that state() makes: "Overlaps", unless the run went on states of
        another kind and all their arrays were kept.
    more : dict
        The kept arrays (runs, times, ...) of such states, which are attributes too.

    Notes
    -----
    This runs it again, bit for bit on one machine::

        gd.run(getattr(gd, t.engine["name"])(**t.engine["options"]), t.problem, **t.asked)

    Runs on different devices agree in law only.

    References
    ----------
    Chapter :doc:`theory_meets_simulation`.
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

    def state(self, i: int) -> Any:
        """Return the state (runs, ...) at recorded time number i, ready to start from.

        Parameters
        ----------
        i : int
            Number of the recorded time; negative ones count from the end.

        Returns
        -------
        Overlaps
            The state. It is of another kind if the run went on such states, see ``kind``.
        """
        kind = KINDS[self.kind]
        if any(getattr(self, name, None) is None for name in kind.axes):
            kind = Overlaps
        arrays = {name: self._kept(name) for name in kind.axes}
        times = len(self.alpha)
        i = whole(i, f"i, which counts the {times} recorded times,", -times, times - 1)
        return kind(**{name: array[:, i] for name, array in arrays.items()})

    def at(self, alpha: float) -> Any:
        """Return the state at the recorded time nearest alpha, as state() does.

        If that time stands twice, because a round ended then, it is the state after mixing.

        Parameters
        ----------
        alpha : float
            The time.
        """
        distance = np.abs(self.alpha - number(alpha, "alpha"))
        return self.state(int(np.flatnonzero(distance == distance.min())[-1]))

    def mean(self, name: str) -> Annotated[np.ndarray, "times ..."]:
        """Take the mean over runs of a kept array.

        Parameters
        ----------
        name : str
            "Q", "R", "v", "risk" or "mean_risk".

        Returns
        -------
        (times, ...) array
            The mean.
        """
        return self._kept(name).mean(0)

    def sem(self, name: str) -> Annotated[np.ndarray, "times ..."]:
        """Estimate the standard error of mean(name), over runs.

        Parameters
        ----------
        name : str
            As in mean().

        Returns
        -------
        (times, ...) array
            The standard error.

        Raises
        ------
        ValueError
            If there is only one run.
        """
        array = self._kept(name)
        if len(array) < 2:
            raise ValueError(f"a standard error needs 2 or more runs, here are {len(array)}")
        return array.std(0, ddof=1) / np.sqrt(len(array))

    def std(self, name: str) -> Annotated[np.ndarray, "times ..."]:
        """Estimate the standard deviation of single runs, of a kept array.

        Parameters
        ----------
        name : str
            As in mean(); like sem() it takes two runs or more.

        Returns
        -------
        (times, ...) array
            The standard deviation.
        """
        return self.sem(name) * np.sqrt(len(self._kept(name)))

    def quantile(self, name: str, q: ArrayLike) -> np.ndarray:
        """Compute quantiles over runs of a kept array.

        Parameters
        ----------
        name : str
            As in mean().
        q : float or array
            A part from 0 to 1, or a list of them; 0.5 is the median.

        Returns
        -------
        (times, ...) or (len(q), times, ...) array
            The quantiles.

        See Also
        --------
        bootstrap : The interval of a quantile.
        """
        q = reals(q, "q", least=0, most=1)
        if q.ndim > 1 or not q.size:
            raise ValueError(f"q is a part from 0 to 1, or a list of them, got {q}")
        return np.quantile(self._kept(name), q, axis=0)

    def first_below(
        self, level: float, name: str = "risk", since: float | None = None, for_good: bool = False
    ) -> np.ndarray:
        """Find the alpha at which each run's risk is first below a level.

        Parameters
        ----------
        level : float
            The level, above 0.
        name : str, optional
            "risk" for each worker, or "mean_risk".
        since : float, optional
            Recorded times before this alpha do not count. If a round ends at ``since``, the state
            after it counts.
        for_good : bool, optional
            True asks for the alpha from which on the risk stays below, up to the end of the record.

        Returns
        -------
        (runs, P) or (runs,) array
            The time. It is interpolated between the recorded times before and after it, linearly in
            the logarithm of the risk; a round takes no time. It is the first recorded time if the
            risk is below already, and inf where it never comes.

        Raises
        ------
        ValueError
            If the risk was not kept, or if ``since`` lies after the end.

        References
        ----------
        Chapter :doc:`setback`.
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

    def to_xarray(self) -> Any:
        """Make an xarray.Dataset of the kept arrays, with named axes; it needs the package xarray.

        Its attributes ``problem`` and ``engine`` are JSON, so that netCDF files can hold them.
        """
        try:
            import xarray
        except ImportError as error:
            raise ValueError("to_xarray needs xarray: pip install xarray") from error
        axes = {**Overlaps.axes, **KINDS[self.kind].axes, "risk": ("worker",), "mean_risk": ()}
        arrays = {
            name: (("run", "time", *told_apart(axes[name])), array)
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

    def save(self, path: str | os.PathLike) -> None:
        """Write everything to one .npz file, atomically: a kill leaves the old file or none.

        Parameters
        ----------
        path : path
            The file. A schedule with callables is stored by their names, and cannot be run again
            from it.
        """
        arrays, description = _pack(self)
        with atomically(path) as file:
            np.savez_compressed(file, description=json.dumps(description, default=_plain), **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike, activation: Activation | None = None) -> Self:
        """Read what save() wrote.

        Parameters
        ----------
        path : path
            The file.
        activation : Activation, optional
            Needed for a trajectory whose activation was made by gossipdyn.smooth(): the file has
            its name alone.

        Returns
        -------
        Trajectory

        Raises
        ------
        ValueError
            If the file is no trajectory, is damaged or has a newer format, or if the activation is
            not the one that it names.
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
        if description.get("class", "Problem") != "Problem":
            raise ValueError(
                f"the problem of {path} is a {description['class']}, a file holds those of the "
                "class Problem alone: compute the run again"
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
    def finished(self) -> bool:
        """The field ``complete`` under a name that cannot be taken for the complete graph."""
        return self.complete

    @property
    def arrays(self) -> dict[str, np.ndarray]:
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


def check_trajectory(t):
    """Refuse what is no Trajectory."""
    instance(t, Trajectory, "a gossipdyn.Trajectory, as run() returns it")
