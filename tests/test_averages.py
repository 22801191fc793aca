"""Averages over Gaussian fields: formulas against quadrature, and their limits."""

import by_definition
import numpy as np
import pytest

import gossipdyn as gd

ACTIVATIONS = [gd.erf, gd.linear]
# The trapezoidal rule of by_definition.average converges to rounding for fields of norm up to 3.
QUADRATURE = 1e-12


def covariance(seed, k, rank=6):
    B = np.random.default_rng(seed).standard_normal((k, rank))
    return B @ B.T / rank


def integrands(f):
    """{name: (number of fields, integrand)} of the four averages."""
    g, dg = f.g, f.dg
    return {
        "I2": (2, lambda a, b: g(a) * g(b)),
        "J2": (2, lambda a, b: dg(a) * dg(b)),
        "I3": (3, lambda a, b, c: dg(a) * b * g(c)),
        "I4": (4, lambda a, b, c, d: dg(a) * dg(b) * g(c) * g(d)),
    }


CASES = [(f, name) for f in ACTIVATIONS for name in ("I2", "J2", "I3", "I4")]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("f, name", CASES)
def test_averages_are_their_integrals(f, name, seed):
    k, integrand = integrands(f)[name]
    C = covariance(seed, k)
    direct = by_definition.average(integrand, C, step=0.3)
    assert getattr(f, name)(C) == pytest.approx(direct, abs=QUADRATURE)


# Index patterns in which fields coincide: equal letters are one field. For I4 these are all the
# ways in which four fields can coincide up to order, among them those the noise term needs.
PATTERNS = {
    "I2": ["aa"],
    "J2": ["aa"],
    "I3": ["aaa", "aab", "aba", "abb"],
    "I4": ["aaaa", "aabb", "abab", "abba", "aaab", "aaba", "abaa", "abbb", "aabc", "abac", "abcc"],
}


@pytest.mark.parametrize("f, name", CASES)
def test_averages_of_coinciding_fields(f, name):
    k, integrand = integrands(f)[name]
    C = covariance(7, 4)
    for pattern in PATTERNS[name]:
        pick = ["abcd".index(letter) for letter in pattern]
        merged = C[np.ix_(pick, pick)]
        direct = by_definition.average(integrand, merged, step=0.2)
        assert getattr(f, name)(merged) == pytest.approx(direct, abs=QUADRATURE), pattern


@pytest.mark.parametrize("f, name", CASES)
def test_averages_of_parallel_fields_and_of_fields_in_one_plane(f, name):
    k, integrand = integrands(f)[name]
    along = np.array([1.0, -2.0, 0.5, 1.5])[:k]
    plane = np.random.default_rng(3).standard_normal((k, 2))
    for C in (np.outer(along, along), plane @ plane.T, np.zeros((k, k))):
        # a zero covariance has no direction to integrate over: all fields are 0
        direct = by_definition.average(integrand, C, step=0.1) if C.any() else integrand(*C)[0]
        assert getattr(f, name)(C) == pytest.approx(direct, abs=QUADRATURE)


@pytest.mark.parametrize("f, name", CASES)
def test_averages_are_continuous_where_two_fields_become_parallel(f, name):
    """r -> 1 and r -> -1: no jump, no NaN. Averages move by at most O(sqrt(1 - r))."""
    k, _ = integrands(f)[name]
    a, b, *rest = np.eye(4)[:k]
    for sign in (1, -1):
        for distance in (1e-4, 1e-6, 1e-8, 0):
            rows = np.array([a, sign * a + distance * b, *rest])
            limit = np.array([a, sign * a, *rest])
            for order in ([0, 1, 2, 3], [0, 2, 1, 3], [2, 3, 0, 1]):
                order = [i for i in order if i < k]
                moved, still = rows[order] @ rows[order].T, limit[order] @ limit[order].T
                gap = getattr(f, name)(moved) - getattr(f, name)(still)
                assert abs(gap) <= 2 * distance + 1e-15


def test_erf_averages_of_huge_fields_are_those_of_a_sign():
    """At norm s the unit erf(x / sqrt 2) is a sign, up to O(1 / s^2), and g' a delta function."""
    C = covariance(1, 4)
    scale = np.sqrt(np.diagonal(C))
    r = C / np.outer(scale, scale)
    sign = 2 / np.pi * np.arcsin(r[2, 3])
    # two fields pinned to zero, then the sign average of the other two
    pinned = C[2:, 2:] - C[2:, :2] @ np.linalg.solve(C[:2, :2], C[:2, 2:])
    density = 2 / np.pi / np.sqrt(np.linalg.det(C[:2, :2]))
    rest = 2 / np.pi * np.arcsin(pinned[0, 1] / np.sqrt(pinned[0, 0] * pinned[1, 1]))
    for s in (1e4, 1e8, 1e12):
        assert gd.erf.I2(s * C[2:, 2:]) == pytest.approx(sign, abs=10 / s)
        assert s * gd.erf.J2(s * C[:2, :2]) == pytest.approx(density, rel=10 / s + 1e-12)
        assert s * gd.erf.I4(s * C) == pytest.approx(density * rest, rel=30 / s + 1e-12)


@pytest.mark.parametrize("s", [1.1, 123.4, 1.234e4, 1.234e6])
def test_erf_averages_of_huge_coinciding_fields(s):
    """One field of variance s in every place: closed forms in s.

    The formulas subtract numbers of order s to get one of order 1, so digits go like s.
    """
    one, digits = np.full((4, 4), s), 1e-15 * s + 1e-14
    expected = 2 / np.pi * np.arcsin(s / (1 + s))
    assert gd.erf.I2(one[:2, :2]) == pytest.approx(expected, rel=1e-14)
    assert gd.erf.J2(one[:2, :2]) == pytest.approx(2 / np.pi / np.sqrt(1 + 2 * s), rel=digits)
    assert gd.erf.I3(one[:3, :3]) == pytest.approx(
        2 / np.pi * s / ((1 + s) * np.sqrt(1 + 2 * s)), rel=digits
    )
    # weighted with g'^2 the field has variance s / (1 + 2 s)
    weighted = s / (1 + 2 * s)
    direct = 4 / np.pi**2 * np.arcsin(weighted / (1 + weighted)) / np.sqrt(1 + 2 * s)
    assert gd.erf.I4(one) == pytest.approx(direct, rel=digits)


def test_an_argument_of_asin_beyond_one_by_rounding_is_brought_back():
    """Parallel fields so large that 1 + c = c: the sign average, +-1, and never NaN."""
    a, b = 1e17 * (1 + np.random.default_rng(0).random((2, 200)))
    for sign in (1, -1):
        c = sign * np.sqrt(a * b) * (1 + 1e-15)  # as overlaps are rounded
        C = np.stack([np.stack([a, c], -1), np.stack([c, b], -1)], -2)
        assert np.any(np.abs(c / np.sqrt((1 + a) * (1 + b))) > 1)  # what is to be brought back
        np.testing.assert_allclose(gd.erf.I2(C), sign, rtol=0, atol=1e-7)


@pytest.mark.parametrize("f", ACTIVATIONS)
def test_the_noise_average_is_its_double_sum(f):
    """square(C, K, c)_ij = sum_ab c_a c_b I4(i, j, a, b): the fused form of the noise term."""
    n, K = 5, 3
    rng = np.random.default_rng(0)
    C, c = covariance(2, n), rng.standard_normal(n)
    I4 = by_definition.AVERAGES[f.name].I4
    direct = np.zeros((K, K))
    for i, j, a, b in np.ndindex(K, K, n, n):
        pick = [i, j, a, b]
        direct[i, j] += c[a] * c[b] * I4(C[np.ix_(pick, pick)])
    np.testing.assert_allclose(f.square(C, K, c), direct, rtol=0, atol=1e-12)


@pytest.mark.parametrize("f", ACTIVATIONS)
def test_averages_take_stacks_of_covariances(f):
    for name, k in (("I2", 2), ("J2", 2), ("I3", 3), ("I4", 4)):
        stack = np.array([[covariance(s + 10 * t, k) for s in range(3)] for t in range(2)])
        whole = getattr(f, name)(stack)
        assert whole.shape == (2, 3)
        for at in np.ndindex(2, 3):
            assert whole[at] == getattr(f, name)(stack[at])


@pytest.mark.slow
@pytest.mark.parametrize("f", ACTIVATIONS)
def test_slopes_are_slopes(f):
    """dg is the slope of g, h2 holds the slope of dg, and the torch pair is the NumPy pair."""
    x, h = np.linspace(-4, 4, 41), 1e-5
    np.testing.assert_allclose(f.dg(x), (f.g(x + h) - f.g(x - h)) / (2 * h), atol=1e-9)
    C = covariance(4, 2)
    second = by_definition.average(
        lambda a, b: (f.dg(a + h) - f.dg(a - h)) / (2 * h) * f.g(b), C, step=0.2
    )
    assert f.h2(C[0, 0], C[0, 1], C[1, 1]) == pytest.approx(second, abs=1e-9)
    assert np.allclose(f.g(-x), -f.g(x)) == f.odd
    torch = pytest.importorskip("torch")
    tensor = torch.tensor(x)
    np.testing.assert_allclose(f.torch_g(tensor).numpy(), f.g(x), atol=1e-14)
    np.testing.assert_allclose(f.torch_dg(tensor).numpy(), f.dg(x), atol=1e-14)


def test_two_erfs():
    """Averages a course would set."""
    assert gd.erf.I2([[1, 1], [1, 4]]) == pytest.approx(0.2048328, abs=5e-8)
    assert gd.erf.I2([[2, -0.5], [-0.5, 0.5]]) == pytest.approx(-0.1514780, abs=5e-8)
    assert gd.erf.I2(np.ones((2, 2))) == pytest.approx(1 / 3, abs=1e-15)
