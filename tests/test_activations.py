"""Every activation: its averages against independent integrals, and what they do in the engines."""

import dataclasses
import itertools
import pickle

import by_definition
import numpy as np
import pytest
from scipy.optimize import root

import gossipdyn as gd
from gossipdyn.coordinates import Coordinates
from gossipdyn.equations import State

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


@pytest.mark.parametrize("kind", CLOSE)
def test_relu_average_of_fields_of_any_norms(kind):
    rng = np.random.default_rng(3)
    for scale in ([1e-6, 1e6, 2, 3], [1, 1, 1e-5, 1e5], [1e-9, 1e-9, 1e-9, 1]):
        u = close_fields(CLOSE[kind], 0, rng)
        value = gd.relu.i4(np.outer(scale, scale) * (u @ u.T)) / (scale[2] * scale[3])
        assert value == pytest.approx(relu_reference(u), abs=1e-8)


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


def correlated(variance, seed=0, size=12):
    """Covariances (size, 4, 4) of four fields of one variance; in some of them fields coincide."""
    B = unit(np.random.default_rng(seed).standard_normal((size, 4, 4)))
    B[0] = B[0, 0]
    B[1, 1] = B[1, 0]
    B[2, 2], B[2, 3] = B[2, 0], -B[2, 1]
    return variance * B @ np.swapaxes(B, -1, -2)


@pytest.mark.parametrize("variance", [0.1, 1, 2])
def test_smooth_reaches_the_stated_accuracy(variance):
    """erf by quadrature against erf in closed form."""
    C, f = correlated(variance), gd.smooth(gd.erf.g, gd.erf.dg)
    pairs, triples = C[:, :2, :2], C[:, :3, :3]
    np.testing.assert_allclose(f.I2(pairs), gd.erf.I2(pairs), rtol=0, atol=1e-12)
    np.testing.assert_allclose(f.J2(pairs), gd.erf.J2(pairs), rtol=0, atol=1e-12)
    np.testing.assert_allclose(f.I3(triples), gd.erf.I3(triples), rtol=0, atol=1e-12)
    np.testing.assert_allclose(f.I4(C), gd.erf.I4(C), rtol=0, atol=1e-7)


def test_two_field_averages_of_large_fields_keep_the_stated_accuracy():
    C, f = correlated(6.0), gd.smooth(gd.erf.g, gd.erf.dg)
    for name, k in (("I2", 2), ("J2", 2), ("I3", 3)):
        off = getattr(f, name)(C[:, :k, :k]) - getattr(gd.erf, name)(C[:, :k, :k])
        assert np.abs(off).max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("f", [gd.tanh, gd.softplus])
def test_shipped_smooth_activations_reach_the_stated_accuracy(f):
    many = gd.smooth(f.g, f.dg, nodes=64)
    C = correlated(1.0)
    assert np.abs(f.I4(C) - many.I4(C)).max() < 1e-6
    with pytest.raises(ValueError, match="nodes=16: .* up to a variance of 0, not to 1"):
        gd.smooth(f.g, f.dg, nodes=16)
    # one witness that shares no code: a grid in all four directions
    _, integrand = integrands(f)["I4"]
    assert many.I4(C[-1]) == pytest.approx(by_definition.average(integrand, C[-1], 0.4), abs=1e-8)


@pytest.mark.parametrize("f", [gd.tanh, gd.gelu(2)])
@pytest.mark.parametrize("n, K, rank", [(2, 1, None), (4, 2, None), (4, 2, 3)])
def test_the_noise_average_by_other_formulas_is_its_double_sum(f, n, K, rank):
    """The square has grids of its own, over one field where i = j."""
    C, c = field_covariance(n, n, rank)
    direct = noise_by_definition(f, C, K, c)
    np.testing.assert_allclose(f.square(C, K, c), direct, rtol=1e-10 if f != gd.tanh else 1e-5)


@pytest.mark.parametrize("beta", [0.01, 0.5, 1, 2])
def test_gelu_in_closed_form_is_gelu_by_quadrature(beta):
    exact = gd.gelu(beta)
    f = gd.smooth(exact.g, exact.dg, nodes=64)
    C = correlated(1.0)
    for name, k in (("I2", 2), ("J2", 2), ("I3", 3), ("I4", 4)):
        off = getattr(exact, name)(C[:, :k, :k]) - getattr(f, name)(C[:, :k, :k])
        assert np.abs(off).max() < (1e-8 if k == 4 else 1e-12), name


def test_gelu_leads_from_linear_to_relu():
    C = correlated(1.0)
    half = dataclasses.replace(gd.linear)
    for name, k, weight in (("I2", 2, 4), ("J2", 2, 4), ("I3", 3, 4), ("I4", 4, 16)):
        part = C[:, :k, :k]
        least, most = (getattr(gd.gelu(beta), name)(part) for beta in (1e-5, 1e4))
        assert np.abs(weight * least - getattr(half, name)(part)).max() < 1e-4, name
        # <g' g'> of one field falls short of 1/2 by 1/beta, everything else by less
        assert np.abs(most - getattr(gd.relu, name)(part)).max() < 1e-4, name


def wrong_slope(x):
    return np.cos(x) + 1e-4 * (np.abs(x - 2) < 0.03)


def test_smooth_refuses_in_words():
    def flat(x):
        return np.sum(x)

    with pytest.raises(ValueError, match="not the slope of g in smooth.sin.: at x=(1.98|2.03) "):
        gd.smooth(np.sin, wrong_slope)
    with pytest.raises(ValueError, match="too sharp or too steep for nodes=32: .* more nodes"):
        gd.smooth(np.abs, np.sign)
    with pytest.raises(ValueError, match="entry by entry"):
        gd.smooth(flat, np.cos)
    with pytest.raises(ValueError, match="g of smooth.log. is nan at x=-5.97"):
        gd.smooth(np.log, np.cos)
    with pytest.raises(ValueError, match="even number"):
        gd.smooth(np.sin, np.cos, nodes=15)
    with pytest.raises(ValueError, match="both torch_g and torch_dg"):
        gd.smooth(np.sin, np.cos, torch_g=np.sin)
    for beta in (0, -1, 1e5, "2", np.nan, True):
        with pytest.raises(ValueError, match="beta.* is a finite number above 0 and up to 10000"):
            gd.gelu(beta)


def test_oddness_is_found():
    shipped = {f: f.odd for f in (gd.erf, gd.linear, gd.quadratic, gd.relu, gd.softplus, gd.tanh)}
    assert [f.name for f in shipped if shipped[f]] == ["erf", "linear", "tanh"]
    assert gd.smooth(np.sin, np.cos).odd
    assert not gd.smooth(np.cos, lambda x: -np.sin(x)).odd


EVERY = [gd.erf, gd.linear, gd.quadratic, gd.relu, gd.tanh, gd.softplus, gd.gelu(2.0)]
SINE = gd.smooth(np.sin, np.cos)


@pytest.mark.parametrize("f", [*EVERY, SINE])
def test_activations_pickle_and_compare(f):
    back = pickle.loads(pickle.dumps(f))
    assert back == f and hash(back) == hash(f)
    assert f == gd.gelu(2) if f.name.startswith("gelu") else f != gd.gelu(2)
    assert gd.gelu(2) != gd.gelu(2.5)


def test_files_name_their_activation(tmp_path):
    path = tmp_path / "t.npz"
    for f in EVERY:
        problem = gd.Problem(f, v_star=[1], T=[[1]], eta=0.1)
        t = gd.run(gd.flow(rtol=1e-3), problem, gd.random_start(problem, 1, 1, 20), 0.1)
        t.save(path)
        assert gd.Trajectory.load(path) == t
    t = dataclasses.replace(t, problem=dataclasses.replace(problem, activation=SINE))
    t.save(path)
    with pytest.raises(ValueError, match=r"smooth\(sin\).* make it again .*activation="):
        gd.Trajectory.load(path)
    with pytest.raises(ValueError, match=r"made with the activation smooth\(sin\), got tanh"):
        gd.Trajectory.load(path, activation=gd.tanh)
    assert gd.Trajectory.load(path, activation=gd.smooth(np.sin, np.cos)) == t


@pytest.mark.slow
@pytest.mark.parametrize("f", [*EVERY, SINE])
def test_torch_twins_are_the_same_functions(f):
    torch = pytest.importorskip("torch")
    x = np.array([-30.0, -2, -0.3, 0, 0.3, 2, 30])
    for dtype, tolerance in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
        t = torch.as_tensor(x, dtype=dtype)
        for here, there in ((f.g, f.torch_g), (f.dg, f.torch_dg)):
            value = there(t)
            assert value.dtype == dtype
            np.testing.assert_allclose(value.numpy(), here(x), rtol=tolerance, atol=tolerance)


def test_sgd_refuses_a_twin_that_is_another_function():
    pytest.importorskip("torch")
    f = gd.smooth(np.sin, np.cos, torch_g=gd.tanh.torch_g, torch_dg=gd.tanh.torch_dg)
    problem = gd.Problem(f, v_star=[1], T=[[1]])
    with pytest.raises(ValueError, match=r"g and torch_g of smooth\(sin\) disagree at x="):
        gd.run(gd.sgd(N=10, runs=2), problem, gd.random_start(problem, 1, 1, 10), 1.0)


# The ODE of each activation.


def rate_by_definition(problem, C, c, K):
    """(dQ, dR) of one worker from averages over two, three and four fields, term by term."""
    f, n, eta = problem.activation, len(C), problem.eta

    def pick(*fields):
        return C[np.ix_(fields, fields)]

    def pull(k, row):
        return -eta * c[k] * sum(c[a] * f.I3(pick(k, row, a)) for a in range(n))

    rows = np.array([[pull(k, row) for row in range(n)] for k in range(K)])
    noise = np.array(noise_by_definition(f, C, K, c))
    noise += problem.sigma**2 * np.array([[f.J2(pick(i, j)) for j in range(K)] for i in range(K)])
    dQ = rows[:, :K] + rows[:, :K].T + eta**2 / problem.batch * np.outer(c[:K], c[:K]) * noise
    return dQ, rows[:, K:]


@pytest.mark.parametrize("f", EVERY)
def test_the_flow_of_each_activation_is_its_definition(f):
    C, c = field_covariance(6, 4)
    c[2:] = -c[2:]
    problem = gd.Problem(f, -c[2:], C[2:, 2:], eta=0.7, eta_v=0.3, sigma=0.2, batch=3)
    change = gd.rate(problem, gd.Overlaps.single(C[:2, :2], C[:2, 2:], c[:2]))
    dQ, dR = rate_by_definition(problem, C, c, K=2)
    # the quadrature of the double sum is another than that of the square: good to 1e-6 each
    tolerance = 1e-5 if f in (gd.tanh, gd.softplus) else 1e-8
    np.testing.assert_allclose(change.Q[0, :, 0], dQ, rtol=0, atol=tolerance)
    np.testing.assert_allclose(change.R[0], dR, rtol=0, atol=1e-10)
    dv = [-0.3 * sum(c[a] * f.I2(C[np.ix_([k, a], [k, a])]) for a in range(4)) for k in (0, 1)]
    np.testing.assert_allclose(change.v[0], dv, rtol=0, atol=1e-10)


def perfect(problem):
    return gd.Overlaps.single(problem.T, problem.T, problem.v_star)


def relu_plateau(K):
    """The symmetric plateau at K = M, T = I, eta -> 0, and the problem."""
    problem = gd.Problem(gd.relu, np.ones(K), np.eye(K), eta=1e-7)

    def state(own, other, R):
        Q = np.full((K, K), other)
        np.fill_diagonal(Q, own)
        return gd.Overlaps.single(Q, np.full((K, K), R), np.ones(K))

    def change(z):
        rate = gd.rate(problem, state(*z))
        return np.array([rate.Q[0, 0, 0, 0], rate.Q[0, 0, 0, 1], rate.R[0, 0, 0]]) / problem.eta

    found = root(change, [0.7, 0.3, 0.5], tol=1e-13)
    assert found.success
    return problem, state(*found.x)


def test_relu_plateau():
    """At small eta the students of the plateau differ, where those of erf are identical."""
    problem, x = relu_plateau(2)
    assert x.R == pytest.approx(0.524579, abs=1e-6)
    assert x.Q[0, 0, 0, 0] == pytest.approx(0.717756, abs=1e-6)
    assert x.Q[0, 0, 0, 1] == pytest.approx(0.382977, abs=1e-6)
    assert gd.risk(problem, x)[0] == pytest.approx(0.073613, abs=1e-6)
    coordinates = Coordinates(problem, x)
    jacobian = coordinates.jacobian(coordinates.pack(State(x.Q, x.R, x.v)))
    escape = np.linalg.eigvals(jacobian).real.max() / problem.eta
    assert escape == pytest.approx(0.23924, abs=1e-5)
    problem, x = relu_plateau(3)
    assert gd.risk(problem, x)[0] == pytest.approx(0.158652, abs=1e-6)


def test_relu_risk_of_one_unit():
    problem = gd.Problem(gd.relu, [1], [[1]])
    x = gd.Overlaps.single([[1]], [[0.5]], [1])
    assert gd.risk(problem, x)[0] == pytest.approx(0.1955011, abs=1e-7)


@pytest.mark.parametrize("v", [[1, 1], [0.5, 1.5]])
def test_relu_noise_floor(v):
    """eta sigma^2 sum v^2 / 8 at first order in eta: what is missing halves with eta."""
    off = []
    for eta in (4e-3, 2e-3):
        problem = gd.Problem(gd.relu, v, np.eye(2), eta=eta, sigma=1e-3)
        t = gd.run(gd.flow(rtol=1e-10), problem, perfect(problem), 60 / eta)
        off.append(t.risk[0, -1, 0] / (eta * 1e-6 * np.sum(np.square(v)) / 8) - 1)
    assert 0 < off[1] < 0.005
    assert off[1] == pytest.approx(off[0] / 2, rel=0.05)


def counting(f):
    """The activation f and the list of calls to its noise average, one for each right-hand side."""
    calls = []

    def square(*arguments):
        calls.append(1)
        return f.square(*arguments)

    return dataclasses.replace(f, square=square), calls


def starts(problem):
    near = np.eye(2) * (1 - 1e-6)
    yield "generic", gd.random_start(problem, 1, 2, 1000, scale=0.5, seed=1), 100.0
    workers = gd.random_start(problem, 3, 2, 1000, scale=0.5, seed=1)
    complete = np.full((3, 3), 1 / 3)
    yield "gossip", workers, [(5, complete), (5, complete), (90, None)]
    yield "near", gd.Overlaps.single(np.eye(2), near, np.ones(2)), 100.0
    yield "tiny", gd.Overlaps.single(1e-8 * np.eye(2), np.zeros((2, 2)), np.ones(2)), 100.0
    yield "zero", gd.Overlaps.single(np.zeros((2, 2)), np.zeros((2, 2)), np.ones(2)), 100.0
    yield "perfect", perfect(problem), 100.0


@pytest.mark.slow
def test_relu_flow_does_not_stall():
    """To alpha = 100 at rtol 1e-8 from wherever fields are parallel, coincide or vanish."""
    for eta in (0.1, 0.5):
        f, calls = counting(gd.relu)
        problem = gd.Problem(f, np.ones(2), np.eye(2), eta=eta)
        for name, x0, rounds in starts(problem):
            calls.clear()
            t = gd.run(gd.flow(), problem, x0, rounds)
            assert len(calls) < 2000, name
            assert np.all(np.isfinite(t.risk)) and t.risk.min() > -1e-11, name


@pytest.mark.slow
@pytest.mark.parametrize("f", [gd.erf, gd.relu, gd.tanh, gd.gelu(2.0)])
def test_equal_students_stay_equal(f):
    problem = gd.Problem(f, np.ones(2), np.eye(2), eta=0.5, eta_v=0.1)
    x = gd.random_start(problem, 2, 2, 50, seed=1)
    pick = [0, 0, 1]
    x0 = gd.Overlaps(Q=x.Q[:, pick][:, :, :, pick], R=x.R[:, pick], v=x.v[:, pick])
    half = np.full((2, 2), 0.5)
    for engine in (gd.flow(), gd.flow(coupling=(0.3, half))):
        t = gd.run(engine, problem, x0, [(5, half), (30, None)])
        own = np.stack([t.Q[:, :, p, :, p] for p in (0, 1)])
        assert np.array_equal(own[..., 0, 0], own[..., 0, 1])
        assert np.array_equal(own[..., 0, 0], own[..., 1, 1])
        assert np.array_equal(t.R[..., 0, :], t.R[..., 1, :])
        assert np.array_equal(t.v[..., 0], t.v[..., 1])
        assert not np.array_equal(t.v[..., 0], t.v[..., 2])


@pytest.mark.slow
def test_gelu_flow_reaches_perfect_learning_at_the_sharpest():
    """Near it the solver's Jacobian asks for averages just beyond what overlaps can be."""
    problem = gd.Problem(gd.gelu(1e4), np.ones(2), np.eye(2), eta=1e-3)
    x0 = gd.random_start(problem, 1, 2, 100, scale=0.7, seed=3)
    t = gd.run(gd.flow(rtol=1e-10), problem, x0, 3e4)
    assert 0 < t.risk[0, -1, 0] < 1e-5


# Every activation in all engines, two workers, both layers, with gossip.


@pytest.mark.slow
@pytest.mark.parametrize("eta_v", [0, 0.2])
@pytest.mark.parametrize("f", EVERY)
def test_every_activation_in_every_engine(f, eta_v):
    """chain against sgd in law at N = 30; the flow as the limit of the chain."""
    teacher = np.array([[1, 0.3], [0.3, 1]])
    # single steps of a quadratic unit are steep: at eta = .2 and N = 30 some runs diverge
    eta = 0.03 if f == gd.quadratic else 0.2
    problem = gd.Problem(f, [1, 0.8], teacher, eta=eta, eta_v=eta_v, sigma=0.1)
    x0 = gd.random_start(problem, 2, 2, 30, scale=0.7, v=[0.6, 0.4], seed=5)
    rounds = [(1.0, np.full((2, 2), 0.5)), (0.5, None)]

    def ends(engine):
        t = gd.run(engine, problem, x0, rounds, keep=("risk", "R", "v"))
        return np.concatenate([a[:, -1].reshape(len(a), -1) for a in (t.risk, t.R, t.v)], axis=1)

    def moments(sample):
        return sample.mean(0), sample.std(0) / len(sample) ** 0.5 + 1e-6  # v may not move

    (few, e_few), (many, e_many) = (
        moments(ends(gd.chain(N=N, runs=700, seed=N))) for N in (100, 200)
    )
    limit, e_limit = 2 * many - few, np.hypot(2 * e_many, e_few)
    # beyond the bias of order 1/N, that of order 1/N^2 is left: 1 % of the first
    assert np.all(np.abs(limit - ends(gd.flow())[0]) < 5 * e_limit + 0.02 * np.abs(many - few))
    pytest.importorskip("torch")
    (chain, e_chain), (sgd, e_sgd) = (
        moments(ends(engine)) for engine in (gd.chain(30, 600, 3), gd.sgd(30, 400, 4))
    )
    assert np.all(np.abs(chain - sgd) < 5 * np.hypot(e_chain, e_sgd))


# GELU as a bridge from smooth activations to ReLU.


def deviation_from_relu(eta, span, betas):
    problem = gd.Problem(gd.relu, np.ones(2), np.eye(2), eta=eta)
    x0 = gd.random_start(problem, 1, 2, 100, scale=0.7, seed=3)

    def curve(f):
        at = np.linspace(0, span, 31)
        this = dataclasses.replace(problem, activation=f)
        return gd.run(gd.flow(rtol=1e-10), this, x0, span, record=at).risk

    relu = curve(gd.relu)
    return [np.abs(curve(gd.gelu(beta)) - relu).max() for beta in betas]


@pytest.mark.slow
def test_gelu_curves_become_those_of_relu():
    """Two laws (derived): the drift deviates by 1/beta^2; the noise, whose <g'^2> falls short of
    1/2 on a strip of width 1/beta, by eta/beta. The first rules at small eta, the second in the
    end."""
    decade = np.array([50, 500])
    slope = np.diff(np.log(deviation_from_relu(1e-3, 2000.0, decade))) / np.log(10)
    assert slope == pytest.approx(-2, abs=0.03)
    slope = np.diff(np.log(deviation_from_relu(0.4, 30.0, [1e3, 1e4]))) / np.log(10)
    assert slope == pytest.approx(-1, abs=0.01)
    assert np.all(np.diff(deviation_from_relu(0.4, 30.0, [3, 10, 30, 100])) < 0)
