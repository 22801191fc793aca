"""Intervals for what is measured over runs: rates, medians and other statistics.

The standard of evidence of the book, in CONTRIBUTING: every rate and every median has one. The
lower and upper end cover the truth with the probability `confidence`, nearly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from ..checks import function, is_masked, number, whole


def proportion(k: Any, n: Any, confidence: float = 0.95) -> tuple:
    """Estimate a rate that was seen k times in n, with Wilson's interval.

    Parameters
    ----------
    k, n : int or array of int
        How often it was seen, and in how many cases: 0 <= k <= n, with n from 1 up.
    confidence : float, optional
        Probability with which the interval covers the truth, nearly.

    Returns
    -------
    estimate, low, high : float or array
        The rate and the two ends of its interval, of the shape of k and n. The interval stays
        within [0, 1] and has a length above 0 also at k = 0 and k = n.

    Raises
    ------
    ValueError
        If k and n are not such counts, or if confidence is not between 0 and 1.

    See Also
    --------
    bootstrap : Intervals for any other statistic.

    References
    ----------
    Chapter :doc:`global_minimum`, equation :eq:`eq-wilson`; Wilson (1927).

    Examples
    --------
    >>> rate, low, high = gd.proportion(8, 10)
    >>> print(f"{rate:.2f}, between {low:.2f} and {high:.2f}")
    0.80, between 0.49 and 0.94
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


def bootstrap(
    values: ArrayLike,
    statistic: Callable = np.median,
    seed: int = 0,
    confidence: float = 0.95,
    draws: int = 2000,
) -> tuple:
    """Estimate a statistic over independent runs, with its bootstrap interval.

    The interval holds the middle of the statistic over samples of the runs that are drawn again
    with replacement (percentiles).

    Parameters
    ----------
    values : (runs, ...) array
        One row a run. Infinity is allowed (a run that has never recovered), nan is not.
    statistic : callable, optional
        Function of such an array, along its first axis, that returns a number or an array. For a
        difference of paired runs, for instance, ``lambda x: np.median(x[:, 0] - x[:, 1])``.
    seed : int, optional
        Seed of the draws. The same seed gives the same interval on every machine.
    confidence : float, optional
        Probability with which the interval covers the truth, nearly.
    draws : int, optional
        Number of samples that are drawn, 100 or more.

    Returns
    -------
    estimate, low, high : float or array
        The statistic and the two ends of its interval, of the shape of the statistic.

    Raises
    ------
    ValueError
        If there are fewer than 2 runs, if nan is among the values or in the statistic (inf - inf),
        or if an option is out of its range.

    See Also
    --------
    proportion : The interval of a rate.

    Notes
    -----
    For a median the interval holds up from some twenty runs on. For fewer runs, and for statistics
    of a few extreme runs, it is too narrow.

    Examples
    --------
    >>> median, low, high = gd.bootstrap(np.arange(1, 100))
    >>> median
    50.0
    >>> low < median < high
    True
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


def _values(values: Any) -> np.ndarray:
    try:
        given = np.asarray(values)
        real = given.dtype.kind in "biuf" and not is_masked(values) and not np.isnan(given).any()
    except Exception:  # rows of different lengths, or a foreign array's own refusal
        real = False
    if not real or given.ndim == 0 or len(given) < 2:
        raise ValueError(
            f"values are real numbers, none masked or nan, of 2 or more runs, got {values!r}"
        )
    return given.astype(float)
