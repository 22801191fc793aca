"""Fields in a plane or on a line, some of them equal or opposite: ReLU and GELU, exactly."""

import by_definition
import numpy as np
import pytest

import gossipdyn as gd

COUNT = 500
# A covariance knows a height above a plane to the root of its rounding, 1e-8, and I4 moves by a
# part of that.
TOLERANCE = 1e-8


def exact(angles):
    """I4 of ReLU for unit fields at angles (..., 4) in a plane: an integral over a wedge."""
    turned = (angles - angles[..., :1] + np.pi) % (2 * np.pi) - np.pi
    low = turned.max(-1) - np.pi / 2
    high = np.maximum(turned.min(-1) + np.pi / 2, low)
    c, d = turned[..., 2], turned[..., 3]
    ends = np.sin(2 * high - c - d) - np.sin(2 * low - c - d)
    return (np.cos(c - d) * (high - low) + ends / 2) / (2 * np.pi)


KINDS = {
    "apart": [],
    "b opposite to a": [(1, 0, 1)],
    "b equal to a": [(1, 0, 0)],
    "c opposite to a": [(2, 0, 1)],
    "d opposite to c": [(3, 2, 1)],
    "two opposite pairs": [(1, 0, 1), (3, 2, 1)],
    "on their teachers": [(2, 0, 0), (3, 1, 0)],
    "one on its teacher, one opposite": [(2, 0, 0), (3, 1, 1)],
    "three on a line": [(1, 0, 0), (2, 0, 1)],
    "all equal": [(1, 0, 0), (2, 0, 0), (3, 0, 0)],
    "on a line": [(1, 0, 1), (2, 0, 0), (3, 0, 0)],
}


def angles_of(kind, separation):
    rng = np.random.default_rng(0)
    angles = rng.uniform(0, 2 * np.pi, (COUNT, 4))
    for field, onto, half_turns in KINDS[kind]:
        angles[:, field] = angles[:, onto] + half_turns * np.pi
    return angles + separation * rng.standard_normal(angles.shape)


def rows(angles):
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


@pytest.mark.parametrize("separation", [0, *10.0 ** -np.arange(1, 13)])
@pytest.mark.parametrize("kind", KINDS)
def test_relu_average_of_fields_in_a_plane(kind, separation):
    angles = angles_of(kind, separation)
    u = rows(angles)
    for norms in ([1, 1, 1, 1], [3, 1e-3, 1e2, 0.5]):
        v = u * np.array(norms)[:, None]
        value = gd.relu.i4(v @ v.swapaxes(-1, -2)) / (norms[2] * norms[3])
        np.testing.assert_allclose(value, exact(angles), rtol=0, atol=TOLERANCE)


def test_students_on_opposite_fields_make_no_common_noise():
    """Where a is positive b = -a is not: their slopes have no product, whatever the others are."""
    c, d, cd = -0.6819561019468208, -0.6190998531979621, -0.15217306229439637
    C = np.array([[1, -1, c, d], [-1, 1, -c, -d], [c, -c, 1, cd], [d, -d, cd, 1]])
    assert abs(gd.relu.I4(C)) < 1e-12
    u = rows(angles_of("b opposite to a", 0))
    noise = gd.relu.square(u @ u.swapaxes(-1, -2), 2, np.array([1, 0.7, -0.8, -1]))
    assert np.abs(noise[:, 0, 1]).max() < 10 * TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beta", [1.0, 20.0, 1e3, 1e4])
def test_gelu_average_of_fields_in_a_plane(kind, beta):
    angles = angles_of(kind, 0)[:30]
    u = rows(angles)
    value = gd.gelu(beta).i4(u @ u.swapaxes(-1, -2))
    if beta > 100:  # the steps are 1 / beta wide
        np.testing.assert_allclose(value, exact(angles), rtol=0, atol=1 / beta)
    else:
        f = gd.gelu(beta)
        step = min(0.3, 0.6 / beta)
        for k in range(2):
            direct = by_definition.average(
                lambda a, b, c, d: f.dg(a) * f.dg(b) * f.g(c) * f.g(d),
                u[k] @ u[k].T,
                step=step,
            )
            assert value[k] == pytest.approx(direct, abs=TOLERANCE)


@pytest.mark.parametrize("s", [1e-3, 1e-1, 10, 1e3])
def test_units_keep_their_form_when_fields_grow(s):
    """relu(s x) = s relu(x), x^2 likewise, and a GELU unit of s x is one of s beta."""
    u = rows(angles_of("apart", 0))[:50]
    C = u @ u.swapaxes(-1, -2) + 0.1 * np.eye(4)
    same = [(gd.relu, gd.relu, 2), (gd.quadratic, gd.quadratic, 6), (gd.gelu(3), gd.gelu(3 * s), 2)]
    for f, scaled, power in same:
        whole = f.i4(s**2 * C) / s**power
        np.testing.assert_allclose(whole, scaled.i4(C), rtol=1e-9, atol=1e-12)
