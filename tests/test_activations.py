"""Every activation: its averages against independent integrals, and what they do in the engines."""

import itertools

import by_definition
import numpy as np
import pytest

import gossipdyn as gd

NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)


def graded(a, b):
    """Gauss nodes and weights on [a, b], in panels that shrink towards both ends."""
    left = (b - a) / 2 * np.append(0, 0.3 ** np.arange(28)[::-1])
    edges = np.append(a + left, (b - left)[-2::-1])
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (1 + NODES)).ravel(), (half * WEIGHTS).ravel()


def relu_reference(u):
    """<theta_1 theta_2 x_3+ x_4+> of the fields x_a = u_a.z, unit rows u (4, 4).

    Neither Stein's lemma nor Plackett's identity: polar coordinates in the plane of x_3 and x_4,
    where the radius and the two directions outside are integrated in closed form, and Gauss's
    rule over the angle, graded to where the integrand can bend.
    """
    plane = np.linalg.qr(np.column_stack([u[2], u[3], np.eye(4)]))[0].T
    within, outside = (u @ plane[:2].T), (u[:2] @ plane[2:].T)
    norms = np.maximum(np.hypot(*outside.T), 1e-40)
    turn = outside[0, 0] * outside[1, 1] - outside[0, 1] * outside[1, 0]
    angle = np.arctan2(abs(turn), outside[0] @ outside[1])
    cos, sin = np.cos(angle), max(np.sin(angle), 1e-40)
    root = np.sqrt(2 * np.pi)

    def along(psi):
        x = within @ [np.cos(psi), np.sin(psi)]
        h = x[:2] / norms[:, None]
        total = (np.pi - angle) / np.pi
        for k in (0, 1):
            A, slope = np.hypot(1, h[k]), (h[1 - k] - cos * h[k]) / sin
            part = 1 / 4 + np.arctan2(slope, A) / (2 * np.pi)
            rest = slope / np.hypot(A, slope) / np.hypot(A, slope) / A**2 / root
            total = total + h[k] / root * (root * part * (2 / A + 1 / A**3) + rest)
        return np.maximum(x[2], 0) * np.maximum(x[3], 0) * total

    bends = [*within, within[0] * norms[1] - cos * within[1] * norms[0]]
    bends += [within[1] * norms[0] - cos * within[0] * norms[1]]
    angles = np.arctan2([b[0] for b in bends], [-b[1] for b in bends])
    edges = np.unique(
        np.concatenate([[0, 2 * np.pi], angles % (2 * np.pi), (angles + np.pi) % (2 * np.pi)])
    )
    pieces = [graded(a, b) for a, b in itertools.pairwise(edges)]
    return sum(along(psi) @ weight for psi, weight in pieces) / (2 * np.pi)


def unit(u):
    return u / np.linalg.norm(u, axis=-1, keepdims=True)


def correlations(u):
    C = u @ u.T
    np.fill_diagonal(C, 1)
    return (C + C.T) / 2


def close_fields(kind, distance, rng):
    """Four unit vectors in R^4 at a distance of order `distance` from a degenerate position."""
    u, moved = unit(rng.standard_normal((4, 4))), distance * rng.standard_normal((4, 4))
    if isinstance(kind, int):
        span = np.linalg.qr(rng.standard_normal((4, 4)))[0][:kind]
        return unit(unit(rng.standard_normal((4, len(span))) @ span) + moved)
    for field, onto, sign in kind:
        u[field] = sign * u[onto] + moved[field]
    return unit(u)


CLOSE = {
    "a near b": [(1, 0, 1)],
    "c near d": [(3, 2, 1)],
    "a near c": [(2, 0, 1)],
    "a near -b": [(1, 0, -1)],
    "b near -d": [(3, 1, -1)],
    "students on teachers": [(2, 0, 1), (3, 1, 1)],
    "two pairs": [(1, 0, 1), (3, 2, 1)],
    "three of them": [(1, 0, 1), (2, 0, 1)],
    "two and their opposite": [(1, 0, 1), (2, 0, -1)],
    "in a space": 3,
    "in a plane": 2,
    "on a line": 1,
}


def test_relu_average_of_four_fields_is_its_integral():
    rng = np.random.default_rng(0)
    for _ in range(50):
        u = unit(rng.standard_normal((4, 4)))
        assert gd.relu.I4(correlations(u)) == pytest.approx(relu_reference(u), abs=1e-12)


@pytest.mark.parametrize("distance", [0, 1e-12, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-2, 0.1])
@pytest.mark.parametrize("kind", CLOSE)
def test_relu_average_of_four_fields_near_every_degeneracy(kind, distance):
    """A distance is known to 1e-16 / distance from the covariance, and so is the average."""
    tolerance = 1e-12 + min(1e-8, 2e-16 / (distance + 1e-30))
    rng = np.random.default_rng(1)
    for _ in range(6):
        u = close_fields(CLOSE[kind], distance, rng)
        assert gd.relu.i4(correlations(u)) == pytest.approx(relu_reference(u), abs=tolerance)


@pytest.mark.parametrize("kind", CLOSE)
def test_relu_average_is_smooth_across_every_change_of_formula(kind):
    """On paths from 1e-6 to 1, which pass all numbers of nodes, highest fields and coordinates:
    seventh differences show a jump 35 times, of a smooth function they leave nothing."""
    rng = np.random.default_rng(2)
    u, away = close_fields(CLOSE[kind], 0, rng), rng.standard_normal((4, 4))
    distance = np.geomspace(1e-6, 1, 8001)
    rows = unit(u + distance[:, None, None] * away)
    jumps = np.abs(np.diff(gd.relu.i4(rows @ np.swapaxes(rows, -1, -2)), 7)) / 35
    assert jumps.max() < 1e-9
    assert jumps[distance[:-7] > 1e-3].max() < 1e-12


def test_relu_average_at_known_points():
    A = np.random.default_rng(5).standard_normal((4, 6))
    assert gd.relu.I4(A @ A.T / 6) == pytest.approx(0.0319786909, abs=1e-10)
    assert gd.relu.I4(np.ones((4, 4))) == pytest.approx(1 / 2, abs=1e-11)
    assert gd.relu.I4(np.eye(4)) == pytest.approx(1 / (8 * np.pi), abs=1e-15)


def field_covariance(seed, n, rank=None):
    B = np.random.default_rng(seed).standard_normal((n, rank or n + 2))
    return B @ B.T / n, np.random.default_rng(seed + 100).standard_normal(n)


def noise_by_definition(f, C, K, c):
    def I4(*pick):
        return f.i4(C[np.ix_(pick, pick)])

    fields = range(len(C))
    return [
        [sum(c[a] * c[b] * I4(i, j, a, b) for a in fields for b in fields) for j in range(K)]
        for i in range(K)
    ]


@pytest.mark.parametrize("f", [gd.relu, gd.quadratic])
@pytest.mark.parametrize("n, K, rank", [(2, 1, None), (3, 3, None), (5, 3, None), (5, 3, 3)])
def test_the_noise_average_is_its_double_sum(f, n, K, rank):
    """Most terms of the sum have coinciding fields, for which square has formulas of its own."""
    C, c = field_covariance(n, n, rank)
    scale = np.abs(c[:, None] * c * np.sqrt(np.outer(C.diagonal(), C.diagonal()))).sum()
    np.testing.assert_allclose(
        f.square(C, K, c), noise_by_definition(f, C, K, c), rtol=0, atol=1e-8 * scale
    )


def test_a_relu_field_that_vanishes_has_slope_one_half():
    C, c = field_covariance(3, 5)
    C[1] = C[:, 1] = 0
    rest = np.delete(np.arange(5), 1)
    there = gd.relu.square(C, 3, c)
    without = gd.relu.square(C[np.ix_(rest, rest)], 2, c[rest])
    np.testing.assert_allclose(there[np.ix_([0, 2], [0, 2])], without, rtol=1e-13)
    i2 = gd.relu.i2(C.diagonal()[:, None], C, C.diagonal())
    assert there[1, 1] == pytest.approx(c @ i2 @ c / 4, rel=1e-12)
    assert gd.relu.J2(np.zeros((2, 2))) == 1 / 4
    assert gd.relu.J2(np.diag([1.0, 0])) == 1 / 4
    assert gd.relu.I3(np.diag([0.0, 1, 1])) == 0
    assert gd.relu.dg(0.0) == 1 / 2


def test_equal_students_make_equal_noise():
    C, c = field_covariance(4, 5)
    same = [0, 0, 2, 3, 4]
    out = gd.relu.square(C[np.ix_(same, same)], 3, c)
    assert out[0, 0] == pytest.approx(out[0, 1], abs=1e-13)
    assert out[0, 0] == pytest.approx(out[1, 1], abs=1e-13)


def integrands(f):
    """{name: (number of fields, integrand)} of the averages."""
    g, dg = f.g, f.dg
    return {
        "I2": (2, lambda a, b: g(a) * g(b)),
        "J2": (2, lambda a, b: dg(a) * dg(b)),
        "I3": (3, lambda a, b, c: dg(a) * b * g(c)),
        "I4": (4, lambda a, b, c, d: dg(a) * dg(b) * g(c) * g(d)),
    }


@pytest.mark.parametrize("name", ["I2", "J2", "I3", "I4"])
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_quadratic_averages_are_their_integrals(name, rank):
    k, integrand = integrands(gd.quadratic)[name]
    C, _ = field_covariance(k, k, rank)
    # the sum over a grid breaks off at 12 standard deviations, where the integrand is e^-72 x^6
    direct = by_definition.average(integrand, C, step=0.5, largest=12)
    assert getattr(gd.quadratic, name)(C) == pytest.approx(direct, rel=1e-11, abs=1e-12)
