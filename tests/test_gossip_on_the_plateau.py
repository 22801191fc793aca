"""The flow with gossip is what SGD does, from a random start and along the plateau."""

import numpy as np
import pytest
from gossip_and_sgd import (
    ALLOWED,
    GOSSIP,
    ROUNDS,
    START,
    N,
    integrated,
    largest_excess,
    shared_samples,
)

import gossipdyn as gd

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def simulated():
    """64 runs of SGD up to alpha = 100: 1.3e10 random numbers, about 90 s on one core."""
    pytest.importorskip("torch")
    return gd.run(gd.sgd(N=N, runs=64, seed=1), GOSSIP, START, ROUNDS)


def test_the_flow_with_gossip_is_what_sgd_does(simulated):
    """Within 5 standard errors of 64 runs plus O(1 / N), at every round."""
    t = gd.run(gd.flow(), GOSSIP, START, ROUNDS)
    assert t.risk[0, 20].mean() > 0.013  # on the plateau
    np.testing.assert_array_equal(simulated.alpha, t.alpha)
    assert largest_excess(simulated, {name: getattr(t, name)[0] for name in ALLOWED}) < 5
    assert largest_excess(simulated, integrated(START, lambda x: 0)) < 5


def test_sgd_refutes_an_eta_squared_term_between_workers(simulated):
    """The same comparison, with the term of shared samples put into Q^pq: off by many errors."""
    assert largest_excess(simulated, integrated(START, shared_samples)) > 50
