"""ReLU averages: Gaussian moments of second order over orthants, in any number of fields.

With fields x_a = s_a u_a.z, unit vectors u_a and z of standard normals, an average over ReLU is

    <theta_i theta_j x_a+ x_b+> = s_a s_b E_S[a, b],    S = {i, j, a, b} as a set,

and E_S[a, b], the moment of u_a.z u_b.z over the part of space where all fields in S are positive,
follows from Stein's lemma used twice,

    E_S[a, b] = u_a.u_b P(S) + (1 / 2 pi) sum_{q < r in S} F_qr[a, b] P(S - {q, r} | q = r = 0),
    F_qr[a, b] = sin phi_qr ((u_a.e)(u_b.e) - (u_a.f)(u_b.f)),

where P are orthant probabilities, phi_qr is the angle between u_q and u_r, and e, f are the unit
vectors along u_q + u_r and u_q - u_r. In this form nothing cancels when fields coincide. P of three
fields is an excess of angles; P of four is an integral over one angle, see orthants. Derived in
the book, chapter :doc:`gaussian_averages`.
"""

from functools import lru_cache
from itertools import combinations

import numpy as np

TINY = 1e-20  # a separation of vectors that stands for zero, where a direction is needed
PAIRS = list(combinations(range(4), 2))
Q, R = np.array(PAIRS).T


# Nodes that bring the integral of orthants to 1e-13, by the length of its interval.
NODES = ((2, 12), (4, 20), (8, 32), (16, 56), (np.inf, 80))
CHUNK = 4096  # sets of four fields at a time, so that arrays over their nodes stay in the cache


def directions(C):
    """Norms (..., n) and unit rows u (..., n, n) with u u^T the correlations.

    A field that vanishes gets a direction of its own, orthogonal to all others: then theta counts
    1/2 in every average with them. Fields that are equal to the last bit get equal rows.
    """
    variance = np.diagonal(C, axis1=-2, axis2=-1)
    norms = np.sqrt(np.maximum(variance, 0))
    inverse = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)
    r = C * inverse[..., :, None] * inverse[..., None, :]
    units = np.arange(C.shape[-1])
    r[..., units, units] = 1
    values, vectors = np.linalg.eigh(r)
    u = vectors * np.sqrt(np.maximum(values, 0))[..., None, :]
    u /= np.sqrt((u * u).sum(-1, keepdims=True))
    equal = (C == variance[..., :, None]) & (C == variance[..., None, :]) & (C > 0)
    equal[..., units, units] = True
    return norms, np.take_along_axis(u, equal.argmax(-1)[..., None], axis=-2)


def _half_tangents(u):
    """tan(phi / 2) of the angles between rows, exact for nearly parallel and antiparallel ones."""
    difference, total = (np.sqrt((w * w).sum(-1)) for w in (_outer(u, -u), _outer(u, u)))
    return np.maximum(difference, TINY) / np.maximum(total, TINY)


def _outer(u, w):
    return u[..., :, None, :] + w[..., None, :, :]


def _surface(G, tangent, a, b, q, r):
    """F_qr[a, b] of the module's head, for index arrays; G = u u^T, tangent of _half_tangents."""
    aq, ar, bq, br = G[:, a, q], G[:, a, r], G[:, b, q], G[:, b, r]
    t = tangent[:, q, r]
    return ((aq + ar) * (bq + br) * t - (aq - ar) * (bq - br) / t) / 2


def _three_fields(u, x, y, z, a, b):
    """E_S[a, b] (runs, terms) for S = {x, y, z}, which may coincide."""
    G = u @ np.swapaxes(u, -1, -2)
    tangent = _half_tangents(u)
    angle = 2 * np.arctan(tangent)
    sides = ((x, y), (x, z), (y, z))
    positive = 0.5 - sum(angle[:, q, r] for q, r in sides) / (4 * np.pi)
    faces = sum(_surface(G, tangent, a, b, q, r) for q, r in sides)
    return G[:, a, b] * positive + faces / (4 * np.pi)


def _four_fields(u, sets, which, a, b):
    """E_S[a, b] (runs, terms) for S = sets[which], a and b being places in S. sets: (sets, 4)."""
    G = u @ np.swapaxes(u, -1, -2)
    tangent = _half_tangents(u)
    positive, angles = orthants(u[:, sets].reshape(-1, 4, u.shape[-1]))
    positive, angles = positive.reshape(len(u), -1), angles.reshape(len(u), -1, 6)
    S = sets[which]
    term = np.arange(len(S))
    a, b = S[term, a], S[term, b]
    faces = _surface(G, tangent, a[:, None], b[:, None], S[:, Q], S[:, R])
    faces = (faces * (np.pi - angles[:, which])).sum(-1)
    return G[:, a, b] * positive[:, which] + faces / (4 * np.pi**2)


def orthants(u):
    """P(all four positive) (sets,) and the angles between two fields given the others (sets, 6).

    u: (sets, 4, n) unit rows. angles[:, k] is the angle between the parts of the two rows outside
    PAIRS[k] that are orthogonal to the rows in PAIRS[k].

    With d the row that rises highest above the span of a, b, c: turn d from the normal of that
    span, where P is P(a, b, c) / 2, down to its elevation tau. By Plackett's identity the change is

        (1 / 4 pi^2) int_tau^{pi/2} sum_q q.p tan t / sqrt(tan^2 t + |q x p|^2) (pi - angle_q(t)) dt

    with q = a, b, c and p the direction of d within their span. All singularities of the integrand
    lie where t is imaginary; x = -log tan(t / 2) takes them to Im x = +-pi/2, whatever the fields,
    so that Gauss's rule converges at a rate that only the length of the interval sets. The angles
    are taken between three vectors that the fields share, hence a direction that is lost to
    rounding (coinciding fields) is lost in the same way wherever it occurs, and drops out.
    """
    a, b, c, d, pair = _triangular(u)
    p, height = d[:3] / np.maximum(np.sqrt(_dot(d[:3], d[:3])), TINY), np.maximum(d[3], 0)
    tau = np.maximum(np.arctan2(height, np.sqrt(_dot(d[:3], d[:3]))), 1e-12)
    volume = b[1] * c[2]
    ab, ac, bc = _cross(a, b), _cross(a, c), _cross(b, c)
    ab_p, ac_p, bc_p = (_dot(p, w) for w in (ab, ac, bc))
    along = np.array([_dot(q, p) for q in (a, b, c)])
    across = np.array([_dot(w, w) for w in (_cross(q, p) for q in (a, b, c))])
    low = np.array([ab_p * ac_p, -ab_p * bc_p, ac_p * bc_p])
    high = np.array([_dot(ab, ac), -_dot(ab, bc), _dot(ac, bc)])

    def given_d(sin, cos, k):
        """Angles of the other two rows given d(t) and q = a, b, c, and the sine between q and d."""
        s2, c2 = sin * sin, cos * cos
        root = np.sqrt(s2 + c2 * across[:, k])
        return np.arctan2(volume[k] * sin * root, c2 * low[:, k] + s2 * high[:, k]), root

    w = np.tan(tau)
    given_ad, given_bd, given_cd = given_d(np.sin(tau), np.cos(tau), ...)[0]
    given_ab, given_ac, given_bc = (
        np.arctan2(w * np.sqrt(_dot(n, n)), n_p) for n, n_p in ((ab, ab_p), (ac, -ac_p), (bc, bc_p))
    )
    angles = np.stack([given_ab, given_ac, given_ad, given_bc, given_bd, given_cd], axis=-1)

    length = -np.log(np.tan(tau / 2))
    integral = np.empty_like(length)
    shorter = 0
    for longest, nodes in NODES:
        k = np.flatnonzero((length > shorter) & (length <= longest))
        shorter = longest
        if k.size:
            x, weight = _gauss(nodes)
            x = length[k, None] * x
            sin, cos = 1 / np.cosh(x), np.tanh(x)
            k_ = k[:, None]
            angle, root = given_d(sin, cos, k_)
            terms = (along[:, k_] * (np.pi - angle) / root).sum(0) * sin * sin
            integral[k] = length[k] * (terms @ weight)
    three = 0.5 - (_angle(a, b) + _angle(a, c) + _angle(b, c)) / (4 * np.pi)
    positive = three / 2 + integral / (4 * np.pi**2)
    return positive, np.take_along_axis(angles, pair, axis=-1)


def _triangular(u):
    """The four rows in coordinates where a, b, c are lower triangular, d the highest of them.

    Of the other three, a and b are those farthest from being parallel. So what is small (the height
    of c above a and b, that of d) is a coordinate, and not a difference of larger ones.

    Returns a, b, c (3, sets), d (4, sets), and for each of PAIRS its place after the reordering.
    """
    G = u @ np.swapaxes(u, -1, -2)
    x, y, z = (G[:, _REST[:, i], _REST[:, j]] for i, j in ((0, 1), (0, 2), (1, 2)))
    d = np.argmin(1 + 2 * x * y * z - x * x - y * y - z * z, axis=1)
    sets = np.arange(len(u))
    c = np.argmin(np.abs([z[sets, d], y[sets, d], x[sets, d]]), axis=0)
    order = 3 * d + c
    rows = u[sets[:, None], _ORDERS[order]]
    r = np.linalg.qr(np.swapaxes(rows, -1, -2), mode="r")
    r *= np.where(np.diagonal(r, axis1=1, axis2=2) < 0, -1.0, 1.0)[..., None]
    r = np.moveaxis(r, 0, -1)
    zero = np.zeros(len(u))
    a = np.array([zero + 1, zero, zero])
    b = np.array([r[0, 1], np.maximum(r[1, 1], TINY), zero])
    c = np.array([r[0, 2], r[1, 2], np.maximum(r[2, 2], TINY)])
    return a, b, c, r[:, 3], _REORDERED[order]


_REST = np.array([[k for k in range(4) if k != d] for d in range(4)])


_ORDERS = np.array(
    [[*np.delete(rest, c), rest[c], d] for d, rest in enumerate(_REST) for c in range(3)]
)


_REORDERED = np.array(
    [
        [PAIRS.index(tuple(sorted((order.index(q), order.index(r))))) for q, r in PAIRS]
        for order in _ORDERS.tolist()
    ]
)


def _dot(x, y):
    return x[0] * y[0] + x[1] * y[1] + x[2] * y[2]


def _cross(x, y):
    return np.array(
        [x[1] * y[2] - x[2] * y[1], x[2] * y[0] - x[0] * y[2], x[0] * y[1] - x[1] * y[0]]
    )


def _angle(x, y):
    n = _cross(x, y)
    return np.arctan2(np.sqrt(_dot(n, n)), _dot(x, y))


@lru_cache
def _gauss(n):
    """Gauss-Legendre nodes and weights on [0, 1]."""
    x, w = np.polynomial.legendre.leggauss(n)
    return (x + 1) / 2, w / 2
