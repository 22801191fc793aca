"""The thresholds of assignment() and phases(), each from both sides."""

from dataclasses import replace

import numpy as np
import pytest

import gossipdyn as gd

PROBLEM = gd.Problem(activation=gd.erf, v_star=np.ones(2), T=np.eye(2), eta=0.5)
NOWHERE = gd.Overlaps.single(Q=0.3 * np.eye(2), R=np.zeros((2, 2)), v=np.ones(2))
TIMES = 100
RUN = gd.run(gd.flow(), PROBLEM, NOWHERE, TIMES, record=np.arange(TIMES + 1.0))


def single(T, Q, R):
    """The assignment of one student."""
    problem = replace(PROBLEM, T=np.array(T, dtype=float))
    return gd.assignment(problem, gd.Overlaps.single([[Q]], [R], [1])).item()


@pytest.mark.parametrize("cosine, unit", [(0.89, -1), (0.91, 1), (-0.91, 1)])
def test_a_student_belongs_to_a_unit_from_a_cosine_on(cosine, unit):
    assert single(np.diag([1.0, 4]), Q=9.0, R=[0, cosine * 6]) == unit


@pytest.mark.parametrize("part, unit", [(0.32, -1), (0.35, 0)])
def test_a_unit_stands_out_by_a_third_of_what_a_perfect_student_sees(part, unit):
    """In the plane of two units, an angle apart, the student is at an angle a from the first.

    cos a - cos(angle - a) = 2 sin(angle / 2) sin(angle / 2 - a), and 1 - cos(angle) at a = 0.
    """
    for t in (0.8, -0.8):  # signs do not matter: the angle is that of the lines
        half = np.arccos(0.8) / 2
        a = half - np.arcsin(part * 0.2 / (2 * np.sin(half)))
        R = [np.cos(a), np.sign(t) * np.cos(2 * half - a)]
        assert single([[1, t], [t, 1]], 1.0, R) == unit


@pytest.mark.parametrize("R, unit", [(0.39, -1), (0.41, 0)])
def test_a_student_of_less_than_a_tenth_of_a_unit_is_spare(R, unit):
    """It has the unit's direction, T = 4, and R / T of its length."""
    assert single(np.diag([4.0, 1]), R**2 / 4, [R, 0]) == unit


def found(*levels):
    """The plateau, as [begin, end], of a risk that stands at levels, given as (level, until).

    From the last level it falls by a factor e in each unit of time.
    """
    risk, begin = 0.1 * np.exp(-np.arange(TIMES + 1.0)), 0
    for level, until in levels:
        risk[begin : until + 1] = level
        begin = until + 1
    phases = gd.phases(replace(RUN, risk=risk[None, :, None]))
    return [phases.plateau_begins.item(), phases.plateau_ends.item()]


@pytest.mark.parametrize("step, plateau", [(1.46, [6, 50]), (1.54, [21, 50])])
def test_on_a_plateau_the_risk_stays_within_a_factor(step, plateau):
    assert found((9, 5), (step, 20), (1, 50)) == plateau


@pytest.mark.parametrize("wait, there", [(19, True), (20, True), (21, False)])
def test_a_plateau_lasts_twice_as_long_as_the_falls_around_it(wait, there):
    """A stretch of 40, before or after which the risk takes `wait` for a factor 1.5.

    Its levels are 1 and 0.8, or 1.2 and 1, and 1.3 before or 0.75 after are neither in it nor a
    factor 1.5 from its ends.
    """
    begin = wait + 1
    before = found((2, 1), (1.3, begin - 1), (1, begin), (0.8, begin + 40))
    end = 41 + wait
    after = found((9, 0), (1.2, 33), (1, 41), (0.75, end - 1))
    nothing = [np.nan, np.nan]
    np.testing.assert_array_equal(before, [begin, begin + 40] if there else nothing)
    np.testing.assert_array_equal(after, [1, 41] if there else nothing)


def test_of_two_plateaus_the_longer_is_found_and_of_equal_ones_the_first():
    assert found((9, 1), (3, 30), (1, 70)) == [31, 70]
    assert found((9, 1), (3, 40), (1, 70)) == [2, 40]
    assert found((9, 0), (3, 30), (1, 60)) == [1, 30]


def test_a_plateau_that_goes_on_has_no_end():
    np.testing.assert_array_equal(found((9, 5), (1, TIMES)), [6, np.nan])
    np.testing.assert_array_equal(found((9, 5), (1, TIMES - 1)), [6, TIMES - 1])
