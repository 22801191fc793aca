"""When a risk is low, and how runs spread, read off a Trajectory."""

from dataclasses import replace

import numpy as np
import pytest

import gossipdyn as gd

PROBLEM = gd.Problem(activation=gd.erf, v_star=(1, 1), T=np.eye(2), eta=1.5)
X = gd.random_start(PROBLEM, 2, 2, N=50, runs=6, seed=1)
ROUNDS = [(2.0, gd.ring(2)), (2.0, None)]
RUN = gd.run(gd.chain(N=50, runs=6, seed=2), PROBLEM, X, ROUNDS, record=np.arange(5.0))


def with_risk(risk):
    """RUN with this risk (runs, 6, P) at alpha = 0, 1, 2, 2 after the round, 3, 4."""
    assert RUN.alpha.tolist() == [0, 1, 2, 2, 3, 4]
    return replace(RUN, risk=np.array(risk, dtype=float))


def curve(*values):
    return with_risk(np.array(values)[None, :, None])


def test_between_two_times_it_interpolates_the_logarithm():
    t = curve(1, 1e-2, 1e-4, 1e-4, 1e-4, 1e-4)
    assert np.allclose(t.first_below(0.1), 0.5, rtol=0, atol=1e-12)
    assert np.allclose(t.first_below(1e-3), 1.5, rtol=0, atol=1e-12)
    assert np.allclose(t.first_below(10), 0)
    assert t.first_below(1e-5) == np.inf


def test_for_good_is_after_the_last_rise_and_since_leaves_out_the_past():
    t = curve(1, 1e-2, 1e-2, 1, 1e-2, 1e-2)
    assert np.isclose(t.first_below(0.1), 0.5)
    assert np.isclose(t.first_below(0.1, for_good=True), 2.5)
    assert np.isclose(t.first_below(0.1, since=2), 2.5)  # the state after the round counts
    assert np.isclose(t.first_below(0.1, since=1.5), 2)
    assert curve(1, 1, 1, 1e-2, 1e-2, 1).first_below(0.1, for_good=True) == np.inf
    assert curve(1, 1, 1, 1e-2, 1e-2, 1).first_below(0.1) == 2  # the round takes no time
    assert curve(1, 1, 1, 1, 1, 0).first_below(1e-9) < 4  # a risk of 0 has no logarithm


def test_every_run_and_worker_has_its_own_time():
    risk = np.exp(-np.arange(6.0))[None, :, None] * np.arange(1, 7)[:, None, None] * [1, 10]
    t = with_risk(risk)
    found = t.first_below(0.5)
    assert found.shape == (6, 2)
    for run, p in np.ndindex(6, 2):
        assert found[run, p] == curve(*risk[run, :, p]).first_below(0.5)[0, 0]
    assert t.first_below(0.05, "mean_risk").shape == (6,)


def test_quantiles_and_spread_over_runs():
    assert np.allclose(RUN.std("risk"), RUN.risk.std(0, ddof=1), rtol=1e-13, atol=0)
    low, median = RUN.quantile("R", [0.1, 0.5])
    assert np.allclose(median, np.median(RUN.R, axis=0), rtol=0, atol=1e-15)
    assert np.array_equal(median, RUN.quantile("R", 0.5)) and np.all(low <= median)


def test_refusals():
    for level in (0, -1, np.nan, "x"):
        with pytest.raises(ValueError, match="level"):
            RUN.first_below(level)
    with pytest.raises(ValueError, match="mean_risk"):
        RUN.first_below(0.1, "Q")
    with pytest.raises(ValueError, match="ends at alpha=4"):
        RUN.first_below(0.1, since=5)
    with pytest.raises(ValueError, match="True or False"):
        RUN.first_below(0.1, for_good=1)
    for q in (-0.1, 1.1, [], [[0.5]], "x", np.nan):
        with pytest.raises(ValueError, match="q "):
            RUN.quantile("risk", q)
    single = gd.run(gd.flow(), PROBLEM, gd.mix(np.eye(2), gd.Overlaps(X.Q[0], X.R[0], X.v[0])), 1.0)
    with pytest.raises(ValueError, match="2 or more runs"):
        single.std("risk")
