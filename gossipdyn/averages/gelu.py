"""GELU averages in closed form: g(x) = x Phi(beta x), Phi the normal distribution function.

Phi(beta x) is the chance that x + y / beta is positive, y ~ N(0, 1). So g is a step at a field of
its own, s = x + y / beta, and its slope is that step and a delta function,

    g(x) = <x theta(s)>_y,    g'(x) = <theta(s) + x delta(s)>_y,

and every average over g is a moment of the fields x over an orthant of the fields s, as for ReLU,
the limit of beta to infinity. Stein's lemma takes one factor x off after the other,

    <x X theta_S> = sum_{y in X} C_xy <(X - y) theta_S> + sum_{q in S} C_xq <X delta_q theta_{S-q}>,

where a delta function conditions all others. Derived in the book, chapter :doc:`gaussian_averages`.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import combinations_with_replacement

import numpy as np
from scipy.special import ndtr

from ..checks import number
from .activation import Activation, Given
from .orthants import directions, orthants

CHUNK = 2**14  # sets of four fields at a time


def i2(beta, caa, cab, cbb):
    """<g(a) g(b)>."""
    return _Moments(beta, _entries(caa, cab, cbb)).of([0, 1], [])


def j2(beta, caa, cab, cbb):
    """<g'(a) g'(b)>."""
    return _Moments(beta, _entries(caa, cab, cbb)).slopes([])


def h2(beta, caa, cab, cbb):
    """<g''(a) g(b)>, with g''(x) = <(2 - beta^2 x^2) delta(s)>_y."""
    m = _Moments(beta, _entries(caa, cab, cbb))
    return 2 * m.of([1], [0]) - beta**2 * m.of([0, 0, 1], [0])


def i4(beta, C):
    """<g'(0) g'(1) g(2) g(3)> for covariances C (..., 4, 4). Equation :eq:`eq-gelu-I4`."""
    return _Moments(beta, np.moveaxis(C, (-2, -1), (0, 1))).slopes([2, 3])


def square(beta, C, K, c):
    """<g'_i g'_j (sum_a c_a g_a)^2> for i, j < K: (..., K, K), C (..., n, n), c (..., n)."""
    *lead, n, _ = C.shape
    sets, weight = _sets(n, K)
    C = C.reshape(-1, n, n)
    c = np.broadcast_to(c, (*lead, n)).reshape(-1, n)
    values = np.empty((len(C), len(sets)))
    step = max(1, CHUNK // len(sets))
    for begin in range(0, len(C), step):
        part = slice(begin, begin + step)
        values[part] = i4(beta, C[part][:, sets[:, :, None], sets[:, None, :]])
    values *= c[:, sets[:, 2]] * c[:, sets[:, 3]] * weight
    pairs = values.reshape(len(C), K * (K + 1) // 2, -1).sum(-1)
    i, j = np.triu_indices(K)
    full = np.empty((len(C), K, K))
    full[:, i, j] = full[:, j, i] = pairs
    return full.reshape(*lead, K, K)


@lru_cache
def _sets(n, K):
    """(i, j, a, b) with i <= j < K and a <= b < n, and how often a, b stand in the square."""
    sets = [
        (i, j, a, b)
        for i, j in combinations_with_replacement(range(K), 2)
        for a, b in combinations_with_replacement(range(n), 2)
    ]
    return np.array(sets), np.array([1 if a == b else 2 for _, _, a, b in sets])


def _entries(caa, cab, cbb):
    caa, cab, cbb = np.broadcast_arrays(caa, cab, cbb)
    return np.array([[caa, cab], [cab, cbb]], dtype=float)


class _Moments:
    """Moments of fields x_k, k < m, with steps and delta functions at s_k = x_k + y_k / beta.

    C (m, m, ...) is the covariance of the x_k. Covariances given delta functions at the s_k of a
    set are kept in `given`: (2 m, 2 m, ...), first the x_k, then the s_k.
    """

    def __init__(self, beta, C):
        self.m, self.least = len(C), beta**-2.0  # no s_k has less variance, whatever is given
        both = np.concatenate([np.concatenate([C, C], axis=1)] * 2)
        steps = np.arange(self.m, 2 * self.m)
        both[steps, steps] += self.least
        self.given = {frozenset(): both}
        self.known = {}

    def slopes(self, X):
        """<g'_0 g'_1 prod_{k in X} g_k>."""
        return sum(self.of([*at, *X], at) for at in ([], [0], [1], [0, 1]))

    def of(self, X, deltas):
        """<prod_{k in X} x_k prod_{k in deltas} delta(s_k) prod_{other k} theta(s_k)>."""
        D = frozenset(deltas)
        return self._density(D) * self._conditional(tuple(sorted(X)), D)

    def _conditional(self, X, D):
        """The same, over the density of the s_k in D at 0."""
        if (X, D) not in self.known:
            self.known[X, D] = self._stein(X, D)
        return self.known[X, D]

    def _stein(self, X, D):
        C = self._covariance(D)
        if not X:
            return self._positive(C, [k for k in range(self.m) if k not in D])
        x, *rest = X
        total = 0
        for at, y in enumerate(rest):
            total = total + C[x, y] * self._conditional((*rest[:at], *rest[at + 1 :]), D)
        for q in set(range(self.m)) - D:
            s = q + self.m
            slope = C[x, s] / np.sqrt(2 * np.pi * C[s, s])
            total = total + slope * self._conditional(tuple(rest), D | {q})
        return total

    def _covariance(self, D):
        """Of all fields given s_k = 0 for k in D."""
        if D not in self.given:
            q = max(D)
            C, s = self._covariance(D - {q}), q + self.m
            C = C - C[:, None, s] * (C[None, s] / C[s, s])
            left = [k + self.m for k in range(self.m) if k not in D]
            C[left, left] = np.maximum(C[left, left], self.least)  # a solver may step beyond
            self.given[D] = C
        return self.given[D]

    def _density(self, D):
        if not D:
            return 1
        q = max(D)
        variance = self._covariance(D - {q})[q + self.m, q + self.m]
        return self._density(D - {q}) / np.sqrt(2 * np.pi * variance)

    def _positive(self, C, left):
        """The chance that s_k > 0 for all k left, which are none, two or four."""
        s = [k + self.m for k in left]
        if not s:
            return 1
        if len(s) == 2:
            a, ab, b = C[s[0], s[0]], C[s[0], s[1]], C[s[1], s[1]]
            area = np.sqrt(np.maximum(a * b - ab * ab, 0))
            return 1 / 2 - np.arctan2(area, ab) / (2 * np.pi)
        u = directions(np.moveaxis(C[np.ix_(s, s)], (0, 1), (-2, -1)))[1]
        return orthants(u.reshape(-1, 4, 4))[0].reshape(u.shape[:-2])


SHARPEST = 1e4  # beta of gelu, beyond which its averages lose digits


def _gelu_g(beta, x):
    return x * ndtr(beta * x)


def _gelu_dg(beta, x):
    t = beta * x
    return ndtr(t) + t * np.exp(-t * t / 2) / np.sqrt(2 * np.pi)


def _gelu_torch_g(beta, x):
    return x * ((x * (beta * 0.5**0.5)).erf() + 1) / 2


def _gelu_torch_dg(beta, x):
    t = beta * x
    return ((t * 0.5**0.5).erf() + 1) / 2 + t * (t * t * -0.5).exp() / (2 * np.pi) ** 0.5


def gelu(beta: float = 1.0) -> Activation:
    """Make the activation g(x) = x Phi(beta x), where Phi is the normal distribution function.

    Its averages are exact. They use the formulas of ReLU, with one integral over an angle.

    Parameters
    ----------
    beta : float, optional
        Sharpness, above 0 and at most 1e4. The activation is GELU at 1 (Hendrycks and Gimpel
        2016). It tends to half a linear unit as beta goes to 0, and to ReLU as beta goes to
        infinity.

    Returns
    -------
    Activation

    Raises
    ------
    ValueError
        If beta is not a number above 0 and at most 1e4.

    References
    ----------
    Chapter :doc:`gaussian_averages`, equation :eq:`eq-gelu`; derived in the book.
    """
    beta = number(beta, "beta, of which relu is the limit,", above=0, most=SHARPEST)
    parts: dict[str, Callable] = {
        "g": _gelu_g,
        "dg": _gelu_dg,
        "torch_g": _gelu_torch_g,
        "torch_dg": _gelu_torch_dg,
        "i2": i2,
        "j2": j2,
        "h2": h2,
        "i4": i4,
        "square": square,
    }
    given = {name: Given(function, (beta,)) for name, function in parts.items()}
    return Activation(name=f"gelu(beta={beta!r})", odd=False, **given)
