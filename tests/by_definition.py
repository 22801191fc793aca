"""The whole project once more, as slow loops straight from the definitions.

Nothing here imports the package: these are independent witnesses. Arrays are NumPy's, indices are
the page's: p q workers, k l students, m teachers, n inputs, a b fields, s samples.
"""

from itertools import product
from math import asin, erf, exp, pi, sqrt

import numpy as np

# Gaussian averages: brute force, and the closed formulas of Saad & Solla (1995)


def average(f, C, step=0.4, largest=8.0):
    """<f(x_1, ..., x_k)> over Gaussian fields of covariance C, by the trapezoidal rule.

    Fields are written as x = L z with independent z, one for every positive eigenvalue of C. For
    a smooth f the rule converges faster than any power of the step.
    """
    values, vectors = np.linalg.eigh(np.asarray(C, dtype=float))
    positive = values > 1e-13 * values[-1]
    L = vectors[:, positive] * np.sqrt(values[positive])
    line = np.arange(-largest, largest + step / 2, step)
    z = np.array(np.meshgrid(*[line] * L.shape[1], indexing="ij")).reshape(L.shape[1], -1)
    weight = np.exp(-(z**2).sum(0) / 2)
    return (f(*(L @ z)) * weight).sum() / weight.sum()


def erf_g(x):
    return erf(x / sqrt(2))


def erf_dg(x):
    return sqrt(2 / pi) * exp(-(x**2) / 2)


def erf_I2(C):
    return 2 / pi * asin(C[0][1] / sqrt((1 + C[0][0]) * (1 + C[1][1])))


def erf_J2(C):
    return 2 / pi / sqrt((1 + C[0][0]) * (1 + C[1][1]) - C[0][1] ** 2)


def erf_I3(C):
    (c11, c12, c13), (_, _, c23), (_, _, c33) = C
    L3 = (1 + c11) * (1 + c33) - c13**2
    return 2 / pi * (c23 * (1 + c11) - c12 * c13) / ((1 + c11) * sqrt(L3))


def erf_I4(C):
    (c11, c12, c13, c14), (_, c22, c23, c24), (_, _, c33, c34), (_, _, _, c44) = C
    L4 = (1 + c11) * (1 + c22) - c12**2
    L0 = L4 * c34 - c23 * c24 * (1 + c11) - c13 * c14 * (1 + c22)
    L0 += c12 * c13 * c24 + c12 * c14 * c23
    L1 = L4 * (1 + c33) - c23**2 * (1 + c11) - c13**2 * (1 + c22) + 2 * c12 * c13 * c23
    L2 = L4 * (1 + c44) - c24**2 * (1 + c11) - c14**2 * (1 + c22) + 2 * c12 * c14 * c24
    return 4 / pi**2 * asin(L0 / sqrt(L1 * L2)) / sqrt(L4)


class Erf:
    g, dg = staticmethod(erf_g), staticmethod(erf_dg)
    I2, I3, I4, J2 = map(staticmethod, (erf_I2, erf_I3, erf_I4, erf_J2))


class Linear:
    g = staticmethod(lambda x: x)
    dg = staticmethod(lambda x: 1.0)
    I2 = staticmethod(lambda C: C[0][1])
    I3 = staticmethod(lambda C: C[1][2])
    I4 = staticmethod(lambda C: C[2][3])
    J2 = staticmethod(lambda C: 1.0)


AVERAGES = {"erf": Erf, "linear": Linear}

# At finite N


def overlaps(W, W_star):
    """Q (P, K, P, K) and R (P, K, M) of W (P, K, N) and W_star (M, N), by double loops."""
    P, K, N = W.shape
    M = len(W_star)
    Q, R = np.zeros((P, K, P, K)), np.zeros((P, K, M))
    for p, k, n in np.ndindex(P, K, N):
        for q, l in np.ndindex(P, K):
            Q[p, k, q, l] += W[p, k, n] * W[q, l, n] / N
        for m in range(M):
            R[p, k, m] += W[p, k, n] * W_star[m, n] / N
    return Q, R


def output(problem, W, v, x):
    """sum_k v_k g(w_k.x / sqrt N) of one network W (K, N), v (K,) on one input x (N,)."""
    g = AVERAGES[problem.activation.name].g
    return sum(v[k] * g(sum(W[k] * x) / sqrt(len(x))) for k in range(len(v)))


def sgd_step(problem, W, v, W_star, X, zeta):
    """One step of one worker, W (K, N), v (K,), on samples X (B, N) with label noise zeta (B,)."""
    g, dg = AVERAGES[problem.activation.name].g, AVERAGES[problem.activation.name].dg
    (B, N), K = X.shape, len(v)
    new_W, new_v = W.copy(), v.copy()
    for x, z in zip(X, zeta):
        label = output(problem, W_star, problem.v_star, x) + problem.sigma * z
        error = output(problem, W, v, x) - label
        for k in range(K):
            field = sum(W[k] * x) / sqrt(N)
            for n in range(N):
                new_W[k, n] -= problem.eta / sqrt(N) * v[k] * dg(field) * error * x[n] / B
            new_v[k] -= problem.eta_v / N * g(field) * error / B
    new_W -= problem.eta / N * problem.weight_decay * W
    new_v -= problem.eta_v / N * problem.weight_decay * v
    return new_W, new_v


def gossip_round(A, W):
    """Every worker takes the weighted mean of all: W (P, ...) -> (P_new, ...)."""
    new = np.zeros((len(A), *W.shape[1:]))
    for receiver, sender in np.ndindex(*np.shape(A)):
        new[receiver] += A[receiver][sender] * W[sender]
    return new


# In the limit


def risk(problem, Q, R, v):
    """Half the mean squared distance to the clean teacher of one worker, Q (K, K), R (K, M)."""
    I2 = AVERAGES[problem.activation.name].I2
    C = np.block([[Q, R], [R.T, problem.T]])
    c = [*v, *(-problem.v_star)]
    pairs = product(range(len(c)), repeat=2)
    return sum(c[a] * c[b] * I2(C[np.ix_([a, b], [a, b])]) for a, b in pairs) / 2


def rate(problem, Q, R, v):
    """(dQ, dR, dv) / dalpha of all workers, term by term as in the equations of motion."""
    g = AVERAGES[problem.activation.name]
    eta, eta_v, decay = problem.eta, problem.eta_v, problem.weight_decay
    P, K, M = R.shape
    size = P * K
    C = np.block(
        [
            [Q.reshape(size, size), R.reshape(size, M)],
            [R.reshape(size, M).T, problem.T],
        ]
    )
    student = np.arange(size).reshape(P, K)
    teacher = list(range(size, size + M))

    def cov(*fields):
        return C[np.ix_(fields, fields)]

    def error(p):
        """The error of worker p as pairs (coefficient, field)."""
        return [*zip(v[p], student[p]), *zip(-problem.v_star, teacher)]

    def pull(p, k, field):
        """-eta v_k <g'(lambda_k) e field>."""
        terms = (c * g.I3(cov(student[p, k], field, a)) for c, a in error(p))
        return -eta * v[p, k] * sum(terms)

    dQ, dR, dv = np.zeros_like(Q), np.zeros_like(R), np.zeros_like(v)
    for p, k in np.ndindex(P, K):
        for m in range(M):
            dR[p, k, m] = pull(p, k, teacher[m]) - eta * decay * R[p, k, m]
        terms = (c * g.I2(cov(student[p, k], a)) for c, a in error(p))
        dv[p, k] = -eta_v * sum(terms) - eta_v * decay * v[p, k]
        for q, l in np.ndindex(P, K):
            dQ[p, k, q, l] = pull(p, k, student[q, l]) + pull(q, l, student[p, k])
            dQ[p, k, q, l] -= 2 * eta * decay * Q[p, k, q, l]
            if p == q:
                both = student[p, k], student[p, l]
                scatter = problem.sigma**2 * g.J2(cov(*both))
                for (c, a), (d, b) in product(error(p), repeat=2):
                    scatter += c * d * g.I4(cov(*both, a, b))
                dQ[p, k, q, l] += eta**2 / problem.batch * v[p, k] * v[p, l] * scatter
    return dQ, dR, dv


def flow(problem, Q, R, v, period, steps):
    """The overlaps after `period`, by the classical Runge-Kutta rule of order 4."""
    h = period / steps
    x = [Q, R, v]
    for _ in range(steps):
        slopes = []
        for part in (0, h / 2, h / 2, h):
            at = [a + part * s for a, s in zip(x, slopes[-1])] if slopes else x
            slopes.append(rate(problem, *at))
        weights = (1 / 6, 1 / 3, 1 / 3, 1 / 6)
        x = [a + h * sum(w * s[i] for w, s in zip(weights, slopes)) for i, a in enumerate(x)]
    return x
