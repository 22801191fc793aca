"""Averages at every variance that a run may meet, from 0.01 to 1e20, at every correlation."""

import by_definition
import mpmath
import numpy as np
import pytest

import gossipdyn as gd

# by_definition.average is exact to rounding when its step in the field is .3: the poles of tanh
# lie at a distance of pi/2, so its error is exp(-2 pi (pi/2) / .3).
STEP = 0.3
VARIANCES = [0.01, 0.3, 1, 1.2, 2, 5, 9, 25, 100]
# Largest part of the averages of squares that the docstring of smooth allows
TWO, FOUR = 1e-9, 1e-5
SMOOTH = [gd.tanh, gd.softplus]


def brute(integrand, C):
    return by_definition.average(integrand, C, step=min(0.3, STEP / np.sqrt(C.diagonal().max())))


def in_a_plane(variance, angles):
    rows = np.sqrt(variance) * np.array([np.cos(angles), np.sin(angles)]).T
    return rows @ rows.T


# Fields at angles in a plane: apart, equal, opposite, nearly equal. Brute force takes two
# dimensions there, so it can be as fine as large fields need.
ANGLES = {
    "apart": [0.0, 0.9, 2.0, -0.7],
    "students alike": [0.4, 0.4, 0.0, 1.5],
    "opposite": [0.0, np.pi, 1.1, 1.1],
    "nearly equal": [0.0, 1e-3, 1e-6, 1.0],
    "on a line": [0.0, np.pi, 0.0, 0.0],
}


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("f", SMOOTH)
def test_two_field_averages_hold_at_every_variance_and_correlation(f, variance):
    g, dg = f.g, f.dg
    squares = [brute(lambda a, F=F: F(a) ** 2, np.array([[variance]])) for F in (g, dg)]
    for r in (-1, -0.999999, -0.9, -0.3, 0, 0.6, 0.99, 1):
        C = variance * np.array([[1, r], [r, 1]])
        value, slope = brute(lambda a, b: g(a) * g(b), C), brute(lambda a, b: dg(a) * dg(b), C)
        assert abs(f.I2(C) - value) < TWO * squares[0]
        assert abs(f.J2(C) - slope) < TWO * squares[1]
        three = C[np.ix_([0, 0, 1], [0, 0, 1])]
        third = brute(lambda a, b: dg(a) * a * g(b), C)
        assert abs(f.I3(three) - third) < TWO * np.sqrt(variance * squares[0] * squares[1])


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("kind", ANGLES)
@pytest.mark.parametrize("f", SMOOTH)
def test_four_field_averages_hold_at_every_variance_and_correlation(f, kind, variance):
    g, dg = f.g, f.dg
    C = in_a_plane(variance, ANGLES[kind])
    scale = brute(lambda a: dg(a) ** 2 * g(a) ** 2, np.array([[variance]]))
    direct = brute(lambda a, b, c, d: dg(a) * dg(b) * g(c) * g(d), C)
    assert abs(f.I4(C) - direct) < FOUR * scale
    c = np.array([1, 0.7, -0.8, -1])

    def error2(*x):
        return (c @ g(np.array(x))) ** 2

    noise = f.square(C, 2, c)
    both = brute(lambda a, b, *x: dg(a) * dg(b) * error2(a, b, *x), C)
    own = brute(lambda a, *x: dg(a) ** 2 * error2(a, *x), C)
    size = np.abs(c).sum() ** 2 * scale
    assert abs(noise[0, 1] - both) < FOUR * size and abs(noise[0, 0] - own) < FOUR * size


@pytest.mark.parametrize("variance", VARIANCES)
def test_four_fields_in_general_position_hold_at_every_variance(variance):
    """erf by quadrature against erf in closed form."""
    f = gd.smooth(gd.erf.g, gd.erf.dg)
    B = np.random.default_rng(0).standard_normal((4, 4, 4))
    C = variance * B @ B.swapaxes(1, 2) / 4
    c = np.array([1, 0.7, -0.8, -1])
    size = np.abs(gd.erf.square(C, 2, c)).max()
    assert np.abs(f.square(C, 2, c) - gd.erf.square(C, 2, c)).max() < FOUR * size
    assert np.abs(f.I4(C) - gd.erf.I4(C)).max() < FOUR * size


def test_three_dimensions_of_large_fields_by_brute_force():
    C = 4 * np.array([[1, 0.3, -0.5, 0.8], [0.3, 1, 0.2, 0.1], [-0.5, 0.2, 1, 0], [0.8, 0.1, 0, 1]])
    values, vectors = np.linalg.eigh(C)
    C = (vectors[:, 1:] * values[1:]) @ vectors[:, 1:].T
    direct = brute(lambda a, b, c, d: gd.tanh.dg(a) * gd.tanh.dg(b) * np.tanh(c) * np.tanh(d), C)
    assert gd.tanh.I4(C) == pytest.approx(direct, abs=1e-7)


def test_one_tanh_unit_at_variance_25():
    """K = M = 1, eta = 1, Q = 25, R = 5, by a trapezoidal rule with 2e6 points."""
    problem = gd.Problem(gd.tanh, v_star=[1], T=[[1]], eta=1)
    x = gd.Overlaps.single([[25]], [[5]], [1])
    assert gd.risk(problem, x).item() == pytest.approx(0.075086, abs=1e-6)
    assert gd.noise(problem, x).item() == pytest.approx(0.011927, abs=1e-6)
    assert gd.rate(problem, x).R.item() == pytest.approx(-0.010488, abs=1e-6)


def test_a_flow_that_starts_at_variance_25_is_the_limit_of_the_chain():
    """The chain at N = 4000, 2048 runs of seed 1: .581430 +- .000015, and .581411 +- .000029 at
    N = 1000. Without finer grids the flow said .5878."""
    problem = gd.Problem(gd.tanh, v_star=[1], T=[[1]], eta=0.5)
    t = gd.run(gd.flow(), problem, gd.Overlaps.single([[25]], [[0]], [1]), 8.0)
    assert abs(t.risk[0, -1, 0] - 0.581430) < 5 * 0.000015


@pytest.mark.parametrize("T", [1, 4, 25, 100])
def test_the_stable_rate_of_a_large_tanh_teacher(T):
    """One unit: eta = 2 <g'^2> / <g'^4>, from the equation of its error."""
    problem = gd.Problem(gd.tanh, v_star=[1], T=[[T]])
    two, four = (brute(lambda a, k=k: gd.tanh.dg(a) ** k, np.array([[float(T)]])) for k in (2, 4))
    assert gd.largest_stable_eta(problem) == pytest.approx(2 * two / four, rel=1e-5)


@pytest.mark.parametrize("f", SMOOTH)
def test_averages_do_not_jump_where_grids_change(f):
    rule = f.i4.first[0]
    C, c = in_a_plane(1.0, ANGLES["apart"]), np.array([1, 0.7, -0.8, -1])
    for level in range(4):
        for edge in (level, level + 0.9):
            for part, average in (
                (rule.four, lambda s: f.square(s * s * C, 2, c)[0, 1]),
                (rule.two, lambda s: f.I2(s * s * C[:2, :2])),
            ):
                s = part.reach * 2 ** ((edge - 1) / 2)
                ends = [average(s * (1 + shift)) for shift in (-1e-10, 1e-10)]
                assert abs(np.diff(ends)) < 2e-9 * np.abs(ends).max()


def test_variances_beyond_the_quadrature_are_refused_in_words():
    with pytest.raises(ValueError, match=r"tanh over fields of variance 1e\+06 .* 1e-09 up to"):
        gd.tanh.I2(1e6 * np.eye(2))
    with pytest.raises(ValueError, match="variance 1e.06 .* 1e-05 up to .* smaller weights"):
        gd.softplus.I4(1e6 * np.eye(4))
    with pytest.raises(ValueError, match="too sharp or too steep for nodes=32: its averages"):
        gd.smooth(lambda x: np.tanh(80 * x), lambda x: 80 - 80 * np.tanh(80 * x) ** 2)


def steep(x):
    return np.tanh(4 * x)


def steep_slope(x):
    return 4 - 4 * np.tanh(4 * x) ** 2


def silu(x):
    return x / (1 + np.exp(-x))


def silu_slope(x):
    s = 1 / (1 + np.exp(-x))
    return s + x * s * (1 - s)


def test_a_unit_that_overflows_far_out_is_made_without_a_warning():
    f = gd.smooth(silu, silu_slope)  # warnings are errors in these tests
    C = in_a_plane(25.0, ANGLES["apart"])[:2, :2]
    size = brute(lambda a: silu(a) ** 2, C[:1, :1])
    assert abs(f.I2(C) - brute(lambda a, b: silu(a) * silu(b), C)) < TWO * size


def test_a_steep_unit_is_a_flat_one_of_larger_fields():
    f = gd.smooth(steep, steep_slope)
    for variance in (0.1, 1.0, 4.0):
        C = in_a_plane(variance, ANGLES["apart"])
        assert f.I2(C[:2, :2]) == pytest.approx(gd.tanh.I2(16 * C[:2, :2]), abs=1e-9)
        assert f.I4(C) == pytest.approx(16 * gd.tanh.I4(16 * C), abs=1e-5)


# erf, whose averages are closed, at overlaps so large that differences of them lose all digits


def exact_erf(C):
    """I2, J2, <g''(a) g(b)> and I4, to 50 digits and more."""
    C = mpmath.matrix(C.tolist())
    a, ab, b = C[0, 0], C[0, 1], C[1, 1]
    pi = mpmath.pi

    def i2(a, ab, b):
        return 2 / pi * mpmath.asin(ab / mpmath.sqrt((1 + a) * (1 + b)))

    det = (1 + a) * (1 + b) - ab**2
    inverse = mpmath.matrix([[1 + b, -ab], [-ab, 1 + a]]) / det
    tilted = C - C[:, :2] * inverse * C[:2, :]
    J2 = 2 / pi / mpmath.sqrt(det)
    return i2(a, ab, b), J2, -ab / (1 + a) * J2, J2 * i2(tilted[2, 2], tilted[2, 3], tilted[3, 3])


def rows_of(kind):
    rows = np.random.default_rng(4).standard_normal((4, 6))
    for field, other, sign in {
        "apart": [],
        "students alike": [(1, 0, 1)],
        "all alike": [(1, 0, 1), (2, 0, 1), (3, 0, 1)],
        "on their teachers": [(2, 0, 1), (3, 1, 1)],
        "opposite": [(1, 0, -1), (2, 0, 1)],
    }[kind]:
        rows[field] = sign * rows[other]
    return rows


@pytest.mark.parametrize("size", [1, 1e4, 1e10, 1e20])
@pytest.mark.parametrize(
    "kind", ["apart", "students alike", "all alike", "on their teachers", "opposite"]
)
def test_erf_averages_of_huge_fields_keep_all_digits(kind, size):
    rows = rows_of(kind)
    C = size * np.sum(rows[:, None] * rows[None], axis=-1)
    with mpmath.workdps(100):
        I2, J2, H2, I4 = (float(value) for value in exact_erf(C))
    pair = C[0, 0], C[0, 1], C[1, 1]
    assert gd.erf.I2(C[:2, :2]) == pytest.approx(I2, abs=1e-15)
    assert gd.erf.J2(C[:2, :2]) == pytest.approx(J2, rel=1e-14)
    assert gd.erf.h2(*pair) == pytest.approx(H2, rel=1e-13, abs=1e-15 * J2)
    assert gd.erf.i4(C) == pytest.approx(I4, rel=1e-13, abs=1e-15 * J2)
    c = np.array([1, 0.7, -0.8, -1])
    direct = sum(
        c[a] * c[b] * gd.erf.i4(C[np.ix_([0, 1, a, b], [0, 1, a, b])]) for a, b in np.ndindex(4, 4)
    )
    assert gd.erf.square(C, 2, c)[0, 1] == pytest.approx(direct, rel=1e-12, abs=2e-15 * J2)


@pytest.mark.parametrize("size", [1e4, 1e7, 1e10])
def test_erf_averages_of_huge_nearly_equal_fields(size):
    """The covariance knows such fields to a part of 1e-16, so the averages are known to 1e-16 times
    its size; two fields that differ by little keep all digits of the area that they span."""
    rows = rows_of("all alike")
    rows = np.sqrt(size) * (rows + 1e-3 / np.sqrt(size) * np.random.default_rng(5).random((4, 6)))
    C = np.sum(rows[:, None] * rows[None], axis=-1)
    with mpmath.workdps(100):
        I2, J2, H2, I4 = (float(mpmath.re(value)) for value in exact_erf(C))
    assert gd.erf.i2(C[0, 0], C[0, 1], C[1, 1]) == pytest.approx(I2, abs=1e-15)
    assert gd.erf.j2(C[0, 0], C[0, 1], C[1, 1]) == pytest.approx(J2, rel=1e-13)
    assert gd.erf.h2(C[0, 0], C[0, 1], C[1, 1]) == pytest.approx(H2, rel=1e-13)
    assert abs(gd.erf.i4(C) - I4) < (1e-14 + 1e-15 * size) * J2


@pytest.mark.parametrize("ratio", [1e4, 1e8, 1e16])
def test_erf_averages_of_fields_of_different_size_keep_all_digits(ratio):
    size = np.sqrt([ratio, 1.0, ratio, 1.0])
    C = np.outer(size, size) * (1 + np.eye(4)) / 2
    with mpmath.workdps(100):
        I2, J2, H2, I4 = (float(mpmath.re(value)) for value in exact_erf(C))
    for a, b in ((0, 1), (1, 0)):
        pair = C[a, a], C[a, b], C[b, b]
        assert gd.erf.i2(*pair) == pytest.approx(I2, rel=1e-14)
        assert gd.erf.j2(*pair) == pytest.approx(J2, rel=1e-14)
    assert gd.erf.h2(C[0, 0], C[0, 1], C[1, 1]) == pytest.approx(H2, rel=1e-14)
    assert gd.erf.i4(C) == pytest.approx(I4, rel=1e-12)


def test_a_perfect_state_of_huge_overlaps_has_no_risk_and_no_noise():
    problem = gd.Problem(gd.erf, v_star=[1, 1], T=1e10 * np.eye(2), eta=1)
    x = gd.perfect(problem)
    assert abs(gd.risk(problem, x).item()) < 1e-15
    assert np.abs(gd.noise(problem, x)).max() < 1e-20
    change = gd.rate(problem, x)
    assert np.all(np.isfinite(change.Q)) and np.abs(change.R).max() < 1e-15
