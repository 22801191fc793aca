"""Noise to come and the order of units that it decides, against brute force and known values."""

from dataclasses import replace

import numpy as np
import pytest

import gossipdyn as gd

TWO = gd.Problem(activation=gd.erf, v_star=(1, 1), T=np.eye(2), eta=1.5)
UNIT = gd.Overlaps.single(np.eye(2), np.zeros((2, 2)), [1, 1])


@pytest.mark.slow
@pytest.mark.parametrize("eta, V", [(1.5, 1.2321), (0.5, 0.2351), (0.1, 0.0404)])
def test_known_noise_to_come(eta, V):
    # by hand in chapter finite_size, where the quadrature of the kicks leaves 5e-4
    assert np.isclose(gd.noise_to_come(replace(TWO, eta=eta), UNIT, 0), V, rtol=6e-4, atol=5e-5)


def test_known_probabilities_of_different_orders():
    found = gd.spawning(TWO, UNIT, [0, 5, 10, 20, 40])
    assert np.allclose(found, [0.223, 0.140, 0.106, 0.058, 0.015], rtol=0, atol=6e-4)


@pytest.mark.slow
def test_it_is_the_variance_of_the_full_theory():
    """fluctuations() knows nothing of u: it has the covariance of all overlaps."""
    problem = replace(TWO, sigma=0.3, batch=2, T=[[1, 0.3], [0.3, 1]])
    times = np.array([0.0, 10.0, 30.0])
    found = gd.fluctuations(problem, UNIT, 30.0, times[1:])
    growth = gd.escape(problem, UNIT, times).growth
    gained = found.std(gd.specialisation, N=1)[:, 0] ** 2 * np.exp(-2 * growth)
    V = gd.noise_to_come(problem, UNIT, times)
    assert np.allclose(V[0] - V, gained, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_for_three_units_it_is_one_entry_of_the_diffusion_matrix():
    three = gd.Problem(activation=gd.erf, v_star=np.ones(3), T=np.eye(3), eta=1.0)
    x = gd.Overlaps.single(np.eye(3), np.zeros((3, 3)), np.ones(3))
    step = 0.05
    V = gd.noise_to_come(three, x, [0.0, step])
    middle = gd.escape(three, x, [step / 2])
    x = gd.Overlaps(middle.x.Q[0], middle.x.R[0], middle.x.v[0])
    for order in ([0, 1, 2], [1, 2, 0]):
        turn = np.where(np.eye(3)[order], 1, -0.5)
        turn = np.append(np.zeros(6), turn.ravel())
        D = turn @ gd.diffusion(three, x) @ turn
        gained = D * np.exp(-2 * middle.growth[0]) * step
        assert np.isclose(V[0] - V[1], gained, rtol=5e-3)  # the quadrature of six fields


def test_late_noise_is_a_geometric_tail():
    late = np.array([300.0, 320.0])
    V = gd.noise_to_come(TWO, UNIT, late)
    path = gd.escape(TWO, UNIT, late)
    assert np.isclose(V[1] / V[0], np.exp(-2 * np.diff(path.growth))[0], rtol=2e-2)


@pytest.mark.slow
def test_the_chain_parts_as_often_as_the_law_says():
    """With label noise, at N = 60, two workers spawned from one start at alpha = 5."""
    problem, runs, N = replace(TWO, sigma=0.2), 512, 60
    x = gd.random_start(problem, 1, 2, N, runs=runs, seed=1)
    x = gd.run(gd.chain(N, runs, seed=2), problem, x, 5.0).state(-1)
    end = gd.run(gd.chain(N, runs, seed=3), problem, gd.mix(np.ones((2, 1)), x), 100.0).state(-1)
    u = gd.specialisation(end)
    seen = int(np.sum(u[:, 0] * u[:, 1] < 0))
    law = gd.spawning(problem, UNIT, 5.0)
    assert isinstance(law, float)
    # five standard errors, and what N = 60 leaves of a long plateau
    assert abs(seen / runs - law) < 5 * np.sqrt(law * (1 - law) / runs) + 0.02


def test_smaller_rows_and_correlated_units_scale_the_start():
    """T with T_12 = c is T = I seen by rows that differ in a plane: s0^2 is that of random rows."""
    problem = replace(TWO, T=[[1, 0.4], [0.4, 1]])
    x0 = gd.Overlaps.single(0.25 * np.eye(2), np.zeros((2, 2)), [1, 1])
    found = gd.fluctuations(problem, x0, 0.1, random_rows=True)
    s0 = found.std(gd.specialisation, N=1)[0, 0] ** 2
    V = gd.noise_to_come(problem, x0, [0.0, 7.0])
    expected = np.arccos(1 - V[1] / (s0 + V[0])) / np.pi
    assert np.isclose(gd.spawning(problem, x0, 7.0), expected, rtol=1e-9)


def test_two_units_are_a_case_of_the_sampled_law():
    """Doubly centred Gaussian matrices of two units have one dimension: arccos, by sampling."""
    rng = np.random.default_rng(0)
    rho = 0.8
    X, Y = rng.standard_normal((2, 40_000, 2, 2))
    Y = rho * X + np.sqrt(1 - rho**2) * Y
    u = [
        gd.specialisation(
            gd.Overlaps(
                np.zeros((40_000, 2, 2, 2, 2)), np.stack([Z, Z], 1), np.ones((40_000, 2, 2))
            )
        )
        for Z in (X, Y)
    ]
    seen = np.mean(u[0][:, 0] * u[1][:, 0] < 0)
    law = np.arccos(rho) / np.pi
    assert abs(seen - law) < 5 * np.sqrt(law * (1 - law) / 40_000)


@pytest.mark.slow
def test_three_units_part_at_random_when_nothing_is_shared():
    three = gd.Problem(activation=gd.erf, v_star=np.ones(3), T=np.eye(3), eta=1.0)
    small = gd.Overlaps.single(np.eye(3), np.zeros((3, 3)), np.ones(3))
    found = gd.spawning(three, small, [0.0, 20.0, 1000.0], draws=4000)
    assert found[0] > found[1] > found[2] == 0  # of 1 - 1/3! for strangers
    assert found[0] < 5 / 6
    # the chapter's own sampling says .464 and .269
    error = np.sqrt(found * (1 - found) / 4000)
    assert abs(found[0] - 0.464) < 5 * error[0] and abs(found[1] - 0.269) < 5 * error[1]
    assert np.array_equal(found, gd.spawning(three, small, [0.0, 20.0, 1000.0], draws=4000))


def test_refusals():
    with pytest.raises(ValueError, match="from 0 up"):
        gd.noise_to_come(TWO, UNIT, -1.0)
    wide = gd.Overlaps.single(np.eye(3), np.zeros((3, 2)), np.ones(3))
    with pytest.raises(ValueError, match="K=3 and M=2"):
        gd.noise_to_come(TWO, wide, 0.0)
    with pytest.raises(ValueError, match="does not grow by exp"):
        gd.noise_to_come(replace(TWO, eta=2.5, sigma=3.0), UNIT, 0.0)
    tilted = gd.Overlaps.single(np.eye(2), 0.1 * np.eye(2), [1, 1])
    with pytest.raises(ValueError, match="R = 0"):
        gd.spawning(TWO, tilted, 0.0)


@pytest.mark.parametrize("Q", [np.zeros((2, 2)), np.ones((2, 2))])
def test_equal_students_have_no_order(Q):
    with pytest.raises(ValueError, match="students of x0 are equal or zero"):
        gd.spawning(TWO, gd.Overlaps.single(Q, np.zeros((2, 2)), [1, 1]), 1.0)
