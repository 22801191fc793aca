"""Intervals for what is measured over runs: rates, medians and other statistics.

The standard of evidence of the book, in CONTRIBUTING: every rate and every median has one. The
lower and upper end cover the truth with the probability `confidence`, nearly.
"""

import numpy as np
from scipy.special import ndtri

from ..checks import function, is_masked, number, whole


def proportion(k, n, confidence=0.95):
    """A rate seen as k of n, with Wilson's interval: (estimate, low, high).

    k, n : whole numbers, or arrays of them, 0 <= k <= n and n from 1 up. Wilson's interval stays
    within [0, 1] and has a length above 0 also at k = 0 and k = n.

    Returns three floats, or three arrays of the shape of k and n. Raises ValueError for other k
    and n and a confidence that is not between 0 and 1. Chapter `global_minimum`, equation
    :eq:`eq-wilson`; Wilson (1927).
    """
    given = k, n
    try:
        k, n = np.broadcast_arrays(*map(np.asarray, given))
        counts = k.dtype.kind in "iu" and n.dtype.kind in "iu"
        counts = counts and bool(np.all((n >= 1) & (k >= 0) & (k <= n)))
        counts = counts and not is_masked(given)
    except Exception:  # rows of different lengths, or a foreign array's own refusal
        counts = False
    if not counts:
        raise ValueError(
            f"a rate is k of n, whole numbers with 0 <= k <= n and n from 1 up, got k={given[0]!r} "
            f"and n={given[1]!r}"
        )
    k, n = k.astype(float), n.astype(float)  # products of small integer types wrap around
    z = ndtri((1 + number(confidence, "confidence", above=0, below=1)) / 2)
    centre, spread = k + z**2 / 2, z * np.sqrt(k * (n - k) / n + z**2 / 4)
    parts = k / n, (centre - spread) / (n + z**2), (centre + spread) / (n + z**2)
    # at k = 0 and k = n the ends are 0 and 1 but for rounding
    parts = parts[0], np.where(k == 0, 0.0, parts[1]), np.where(k == n, 1.0, parts[2])
    return tuple(map(float, parts)) if parts[0].ndim == 0 else parts


def bootstrap(values, statistic=np.median, seed=0, confidence=0.95, draws=2000):
    """A statistic over independent runs, with its bootstrap interval: (estimate, low, high).

    The interval holds the middle of the statistic over samples of the runs that are drawn again
    with replacement (percentiles). For a median it holds up from some twenty runs on; for fewer,
    and for statistics of a few extreme runs, it is too narrow.

    values : (runs, ...), one row a run; inf is a number (a run that has never recovered), nan is
    not. statistic : function of such an array, along its first axis, with a number or an array as
    its value: lambda x: np.median(x[:, 0] - x[:, 1]) for a difference of paired runs.
    seed : of the draws. The same seed gives the same interval on every machine.

    Returns three floats, or three arrays of the shape of the statistic. Raises ValueError for fewer
    than 2 runs, nan among the values or in the statistic (inf - inf), and options that are none.
    """
    values = _values(values)
    function(statistic, "statistic, of an array of runs,")
    low = (1 - number(confidence, "confidence", above=0, below=1)) / 2
    rng = np.random.default_rng(whole(seed, "seed"))
    rows = rng.integers(len(values), size=(whole(draws, "draws", 100), len(values)))
    with np.errstate(invalid="ignore"):  # inf - inf is answered below, in words
        try:
            estimate = np.asarray(statistic(values), dtype=float)
            again = np.array([statistic(values[row]) for row in rows], dtype=float)
            same = again.shape[1:] == estimate.shape
        except (TypeError, ValueError) as error:
            raise ValueError(f"statistic makes a number or an array of runs: {error}") from error
    if not same:
        raise ValueError(
            f"statistic makes an array of shape {estimate.shape} of all runs, and of shape "
            f"{again.shape[1:]} of drawn ones: its shape must not hang on the values"
        )
    if np.isnan(estimate).any() or np.isnan(again).any():
        raise ValueError(
            "the statistic is nan for some of the drawn samples: it subtracts or interpolates "
            "between infinite values; use a median or a quantile without interpolation"
        )
    # without interpolation: between two values that are inf there is nothing to interpolate
    ends = np.quantile(again, (low, 1 - low), axis=0, method="inverted_cdf")
    parts = estimate, ends[0], ends[1]
    return tuple(map(float, parts)) if estimate.ndim == 0 else parts


def _values(values):
    try:
        given = np.asarray(values)
        real = given.dtype.kind in "biuf" and not is_masked(values)
    except Exception:  # rows of different lengths, or a foreign array's own refusal
        real = False
    if not real:
        raise ValueError(f"values are real numbers, none masked, one row a run, got {values!r}")
    values = given.astype(float)
    if values.ndim == 0 or len(values) < 2 or np.isnan(values).any():
        raise ValueError(
            f"a bootstrap needs the values of 2 or more runs, none of them nan, got {values}"
        )
    return values
