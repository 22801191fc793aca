"""sweep(): one function over a table of points, on all cores, or on a cluster."""

import os
import re
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ..checks import whole
from .digest import digest, environment
from .files import read_pickle, write_pickle


class SweepFailed(ValueError):
    """Some points of a sweep failed.

    Attributes
    ----------
    records : list
        The results in the order of the points, None where a point gave none.
    failures : list of (int, object, str)
        The number, the point and the traceback of each point that failed.
    """

    def __init__(self, message, records=(), failures=()):
        super().__init__(message)  # the rest has defaults, so that copies and pickles can be made
        self.records, self.failures = records, failures


def sweep(
    function: Callable[[Any], Any],
    points: Iterable[Any],
    store: str | os.PathLike | None = None,
    cores: int = -1,
) -> list[Any]:
    """Compute [function(point) for point in points] in parallel, and keep the results.

    Parameters
    ----------
    function : callable
        A function of one point. It must pickle, and so must what it returns. Every process it runs
        in gets its share of the cores, so that engines inside do not compete for them.
    points : iterable
        Anything that pickles: problems, starts, schedules, tuples of numbers.
    store : path, optional
        A folder in which results are kept as they come. The same sweep started again, after a kill
        as well and by whatever process, computes only what is missing. A damaged file counts as
        missing. The folder holds pickles, so use only your own.
    cores : int, optional
        Number of processes at once, -1 for all cores. A joblib backend that is registered and
        chosen by ``joblib.parallel_config`` (dask, ray) takes the sweep past one machine unchanged.

    Returns
    -------
    list
        The results in the order of the points.

    Raises
    ------
    SweepFailed
        A ValueError that names the points that failed, once all others are done.
    ValueError
        If a store is asked for and a function or a point holds what cannot be told (a lock, an open
        file, a running generator).

    Notes
    -----
    A result in the store is found again by four things. The first is what the point holds: numbers,
    strings, arrays and records. The second is what the function holds: its code, closure, defaults
    and bound arguments, and the globals that it reads, the user's own functions and classes among
    them. The third is the code of gossipdyn, and the fourth the versions of NumPy, SciPy and torch.
    A change in any of these computes anew. A change in other installed packages, or in files that
    the function reads, is not noticed: use a fresh folder then.

    Examples
    --------
    >>> gd.sweep(abs, [1, -2, 3], cores=1)
    [1, 2, 3]
    """
    if not callable(function):
        raise ValueError(f"sweep needs a function of one point, got {function!r}")
    if not np.iterable(points):
        raise ValueError(f"points is a list of what the function takes, got {points!r}")
    if whole(cores, "cores, of which -1 are all,", -np.inf) == 0:
        raise ValueError("0 cores compute nothing: give 1 or more, or -1 for all")
    points = list(points)
    keys = range(len(points)) if store is None else _files(store, function, points)
    records, failed = {}, {}
    if store is not None:
        records = {file: found[0] for file in set(keys) if (found := _kept(file)) is not None}
    missing = {key: point for key, point in zip(keys, points, strict=True) if key not in records}
    from joblib import Parallel, delayed  # here, since `import gossipdyn` is quicker without it

    attempts = Parallel(n_jobs=cores, return_as="generator_unordered")(
        delayed(_attempt)(function, key, point) for key, point in missing.items()
    )
    bar = tqdm(attempts, total=len(missing), unit="point", delay=2, leave=False, disable=None)
    for key, record, failure in bar:
        if store is not None and failure is None and not key.exists():
            failure = _keep(key, record)  # here, where the classes of a script are known
        records[key] = record
        if failure is not None:
            failed[key] = failure
    results = [records[key] for key in keys]
    if failed:
        failures = [(i, points[i], failed[key]) for i, key in enumerate(keys) if key in failed]
        i, point, failure = failures[0]
        raise SweepFailed(
            f"{len(failures)} of {len(points)} points failed, the first is point {i}, {point!r}:\n"
            f"{failure}",
            results,
            failures,
        )
    return results


def _attempt(function, key, point):
    try:
        record = function(point)
    except Exception:  # an error at one point must not lose the results of the others
        return key, None, traceback.format_exc()
    if isinstance(key, Path):
        _keep(key, record)  # at once, so that a kill loses little; if it fails, sweep() does it
    return key, record, None


def _files(store, function, points):
    """Where in the store the result of each point stands."""
    if not isinstance(store, str | os.PathLike):
        raise ValueError(f"store is the path of a folder, got {store!r}")
    name = re.sub(r"\W", "", getattr(function, "__name__", type(function).__name__))
    folder = Path(store) / f"{name}-{digest(environment(), function)[:16]}"
    files = [folder / digest(point) for point in points]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the store {store} cannot be made: {error}; name a folder") from error
    return files


def _kept(file):
    """The result in a file of the store, as (result,), or None."""
    try:
        return read_pickle(file)
    except Exception:  # the file is damaged, or its classes are gone: the point is computed again
        return None


def _keep(file, record):
    """Write a result to the store; what went wrong, or None."""
    try:
        write_pickle(file, (record,), "a store needs results")
    except (ValueError, OSError):
        return traceback.format_exc()
