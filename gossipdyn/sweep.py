"""sweep(): one function over a table of points, on all cores, or on a cluster."""

import traceback

import numpy as np
from joblib import Memory, Parallel, delayed
from tqdm import tqdm


class SweepFailed(ValueError):
    """Some points of a sweep failed.

    `.records` holds the results in the order of the points, None where a point failed;
    `.failures` lists (index, point, traceback) of those.
    """

    def __init__(self, message, records, failures):
        super().__init__(message)
        self.records, self.failures = records, failures


def sweep(function, points, store=None, cores=-1):
    """[function(point) for point in points], computed in parallel and kept.

    Parameters
    ----------
    function : of one point; it and what it returns must pickle. Every process it runs in gets its
        share of the cores, so engines inside do not compete for them.
    points : anything that pickles: problems, starts, schedules, tuples of numbers.
    store : a folder in which results are kept as they come. The same sweep started again, after a
        kill as well, computes only what is missing; a point or a function whose source changed is
        computed anew (a change in what the function calls is not seen: use a fresh folder).
    cores : processes at once, -1 for all. A joblib backend that is registered and chosen by
        `joblib.parallel_config` (dask, ray) takes the sweep past one machine unchanged; store
        must then be a folder that all machines see.

    Returns a list in the order of the points. Raises SweepFailed (a ValueError), naming the points
    that failed, once all others are done.
    """
    if not callable(function):
        raise ValueError(f"sweep needs a function of one point, got {function!r}")
    if not np.iterable(points):
        raise ValueError(f"points is a list of what the function takes, got {points!r}")
    if isinstance(cores, bool) or not isinstance(cores, int | np.integer) or cores == 0:
        raise ValueError(f"cores is a whole number but 0, or -1 for all, got {cores!r}")
    points = list(points)
    if store is not None:
        function = Memory(store, verbose=0).cache(function)
    attempts = Parallel(n_jobs=cores, return_as="generator")(
        delayed(_attempt)(function, point) for point in points
    )
    bar = tqdm(attempts, total=len(points), unit="point", delay=2, leave=False)
    records, failures = [], []
    for i, (record, failure) in enumerate(bar):
        records.append(record)
        if failure:
            failures.append((i, points[i], failure))
    if failures:
        i, point, failure = failures[0]
        raise SweepFailed(
            f"{len(failures)} of {len(points)} points failed, the first is point {i}, {point!r}:\n"
            f"{failure}",
            records,
            failures,
        )
    return records


def _attempt(function, point):
    try:
        return function(point), None
    except Exception:  # whatever a point does must not lose the others
        return None, traceback.format_exc()
