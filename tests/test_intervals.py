"""Intervals cover the truth as often as they say, and know infinite values."""

import numpy as np
import pytest
from scipy.stats import binomtest

import gossipdyn as gd


def masked(values):
    return np.ma.masked_greater(values, 1)


@pytest.mark.parametrize("k, n", [(0, 1), (0, 40), (3, 7), (91, 100), (200, 200)])
@pytest.mark.parametrize("confidence", [0.95, 0.5])
def test_a_proportion_has_wilsons_interval(k, n, confidence):
    expected = binomtest(k, n).proportion_ci(confidence, "wilson")
    found = gd.proportion(k, n, confidence)
    assert np.allclose(found, (k / n, *expected), rtol=0, atol=1e-12)
    assert all(isinstance(x, float) for x in found)


def test_proportions_of_arrays_are_those_of_their_entries():
    k, n = np.array([[0, 5], [9, 10]]), 10
    arrays = gd.proportion(k, n)
    for place in np.ndindex(k.shape):
        assert np.array_equal([a[place] for a in arrays], gd.proportion(int(k[place]), n))


@pytest.mark.parametrize("kind", ["uint8", "int16", "int32", "int64"])
def test_large_counts_of_any_width_do_not_wrap_around(kind):
    largest = np.iinfo(kind).max
    n = np.array([largest, largest - 1], dtype=kind)
    k = n // np.array([2, 3], dtype=kind)
    expected = [binomtest(int(a), int(b)).proportion_ci(method="wilson") for a, b in zip(k, n)]
    assert np.allclose(np.transpose(gd.proportion(k, n)[1:]), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "k, n",
    [(-1, 3), (4, 3), (0, 0), (0.5, 1), (True, 3), ("x", 3), (1, np.nan), (masked([1, 2]), 3)],
)
def test_what_is_no_count_is_refused(k, n):
    with pytest.raises(ValueError, match="a rate is k of n"):
        gd.proportion(k, n)


def test_the_interval_of_a_median_covers_it():
    rng = np.random.default_rng(0)
    covered = 0
    for seed in range(200):
        _, low, high = gd.bootstrap(rng.exponential(size=60), seed=seed, draws=300)
        covered += low <= np.log(2) <= high
    # 95 % but for what 60 runs and percentiles miss; five standard errors of 200 counts
    assert 0.91 - 5 * 0.017 < covered / 200 < 0.95 + 5 * 0.017


def test_the_interval_of_a_mean_is_that_of_its_standard_error():
    x = np.random.default_rng(1).standard_normal((500, 3))
    estimate, low, high = gd.bootstrap(x, lambda s: s.mean(0), draws=4000)
    assert np.array_equal(estimate, x.mean(0))
    width = 2 * 1.96 * x.std(0, ddof=1) / np.sqrt(500)
    assert np.allclose(high - low, width, rtol=0.05)  # quantiles of 4000 draws


def test_runs_that_never_recover_are_infinite_not_lost():
    times = np.concatenate([np.arange(30.0), np.full(25, np.inf)])
    estimate, low, high = gd.bootstrap(times)
    assert estimate == 27 and 15 < low < 27 and high == np.inf
    assert gd.bootstrap(np.full(10, np.inf)) == (np.inf, np.inf, np.inf)


def test_the_same_seed_gives_the_same_interval_everywhere():
    values = np.arange(40.0) ** 2
    assert gd.bootstrap(values, seed=3) == gd.bootstrap(values, seed=3)
    assert gd.bootstrap(values, seed=3) != gd.bootstrap(values, seed=4)
    assert gd.bootstrap(values, seed=3) == (380.5, 182.5, 650.5)  # stored


def test_a_statistic_over_paired_runs_draws_pairs():
    x = np.random.default_rng(2).standard_normal((50, 1)) * 100 + np.array([0.0, 1.0])
    assert np.allclose(gd.bootstrap(x, lambda s: np.median(s[:, 1] - s[:, 0])), 1)


def test_what_has_no_interval_is_refused():
    for values in ([1.0], 1.0, [1, np.nan], ["a", "b"], masked([1.0, 2.0, 3.0])):
        with pytest.raises(ValueError, match="run"):
            gd.bootstrap(values)
    with pytest.raises(ValueError, match="statistic is nan"):
        gd.bootstrap([np.inf, 1, 2, 3], np.std)
    for statistic in (str, lambda x: x[x > x.mean()]):
        with pytest.raises(ValueError, match="statistic makes"):
            gd.bootstrap([1, 2, 30], statistic)
    with pytest.raises(ValueError, match="above 0 and below 1"):
        gd.bootstrap([1, 2, 3], confidence=1.0)
