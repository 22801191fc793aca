"""The flow: the closed equations of motion of the overlaps in the limit N -> infinity.

With U and V from drift() and the noise matrix from noise(), the mean change of all weight rows is
dW^p/dalpha = U^p W^p + V^p W*, hence

    dR^p/dalpha    = U^p R^p + V^p T
    dQ^pq/dalpha   = U^p Q^pq + V^p R^q.T + (the same with p and q exchanged).T + [p = q] noise^p
    dv^p_k/dalpha  = -eta_v <g(lambda_k) e^p> - eta_v weight_decay v^p_k

Workers draw their own samples, so overlaps between different workers have no noise term. Chapter
`from_sgd_to_ode`, equation :eq:`eq-flow`; Saad & Solla (1995) for one worker, Goldt et al. (2019)
for the second layer; the equations of several workers are derived in the book.
"""

from typing import NamedTuple

import numpy as np
from scipy.integrate import LSODA

from .generalisation import coefficients
from .order_parameters import Overlaps, field_covariance
from .rounds import LARGEST_RISK, Diverged, Engine, watch


def drift(problem, x):
    """U (..., P, K, K) and V (..., P, K, M): the mean change of weight rows, U W + V W*.

    By Stein's lemma -eta v_k <g'(lambda_k) e x> is a sum of weight rows: row a with weight
    c_a <g'_k g'_a>, and row k with weight sum_a c_a <g''_k g_a>. x: Overlaps. Equation
    :eq:`eq-drift`.
    """
    C, c = field_covariance(problem.T, x), coefficients(problem, x)
    return _drift(problem, C, c, x.v)


def _drift(problem, C, c, v):
    K = v.shape[-1]
    variance = np.diagonal(C, axis1=-2, axis2=-1)
    pair = variance[..., :K, None], C[..., :K, :], variance[..., None, :]
    G = problem.activation.j2(*pair) * c[..., None, :]
    own = (problem.activation.h2(*pair) * c[..., None, :]).sum(-1)
    units = np.arange(K)
    G[..., units, units] += own
    G *= -problem.eta * v[..., None]
    G[..., units, units] -= problem.eta * problem.weight_decay
    return G[..., :K], G[..., K:]


def noise(problem, x):
    """(..., P, K, K): the growth of a worker's own Q by the scatter of single samples.

    (eta^2 / batch) v_k v_l (<g'_k g'_l e^2> + sigma^2 <g'_k g'_l>). x: Overlaps. Equation
    :eq:`eq-noise`.
    """
    C, c = field_covariance(problem.T, x), coefficients(problem, x)
    return _noise(problem, C, c, x.v)


def _noise(problem, C, c, v):
    K = v.shape[-1]
    scatter = problem.activation.square(C, K, c)
    if problem.sigma:
        variance = np.diagonal(C, axis1=-2, axis2=-1)[..., :K]
        scatter = scatter + problem.sigma**2 * problem.activation.j2(
            variance[..., :, None], C[..., :K, :K], variance[..., None, :]
        )
    return problem.eta**2 / problem.batch * v[..., :, None] * v[..., None, :] * scatter


def rate(problem, x):
    """d(Q, R, v)/dalpha, as a record of the shapes of x: the right-hand side of the flow.

    x: Overlaps with any leading axes. Equation :eq:`eq-flow`.
    """
    dQ, dR, dv = _rate(problem, x)
    return Overlaps(Q=dQ, R=dR, v=dv)


def _rate(problem, x):
    C, c = field_covariance(problem.T, x), coefficients(problem, x)
    U, V = _drift(problem, C, c, x.v)
    dR = U @ x.R + V @ problem.T
    *runs, P, K, M = x.R.shape
    # rows of all workers side by side: (..., P, K, P K)
    half = U @ x.Q.reshape(*runs, P, K, P * K)
    half = half + V @ np.swapaxes(x.R.reshape(*runs, 1, P * K, M), -1, -2)
    half = half.reshape(*runs, P * K, P * K)
    dQ = (half + np.swapaxes(half, -1, -2)).reshape(*runs, P, K, P, K)
    worker = np.arange(P)
    own = np.moveaxis(_noise(problem, C, c, x.v), -3, 0)
    dQ[..., worker, :, worker, :] += own
    if problem.eta_v:
        variance = np.diagonal(C, axis1=-2, axis2=-1)
        g = problem.activation.i2(variance[..., :K, None], C[..., :K, :], variance[..., None, :])
        dv = -problem.eta_v * ((g @ c[..., None])[..., 0] + problem.weight_decay * x.v)
    else:
        dv = np.zeros_like(x.v)
    return dQ, dR, dv


def flow(rtol=1e-8, atol=None):
    """The engine of the limit N -> infinity: deterministic, adaptive, implicit where it is stiff.

    rtol, atol : tolerances of the solver (LSODA); atol is rtol / 1000 unless given. Recorded
    states are the solver's own interpolation at exactly the times asked. A leading axis of runs
    is integrated run by run. Raises ValueError for tolerances that are not above 0.
    """
    atol = rtol / 1000 if atol is None else atol
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        if not np.isscalar(tolerance) or not 0 < tolerance < 1:
            raise ValueError(f"{name} is a tolerance between 0 and 1, got {tolerance!r}")

    def begin(problem, x0):
        if not isinstance(x0, Overlaps):
            raise ValueError(
                "flow starts from Overlaps; gossipdyn.overlaps(w) makes them of Weights"
            )
        if x0.v.ndim == 2:
            x0 = Overlaps(Q=x0.Q[None], R=x0.R[None], v=x0.v[None])
        return x0, None

    def advance(problem, x, source, now, times):
        runs = [_Packing(problem, *arrays) for arrays in zip(x.Q, x.R, x.v, strict=True)]
        paths = [_integrate(run, now, times, rtol, atol) for run in runs]
        for _ in times:
            states = [run.unpack(next(path)) for run, path in zip(runs, paths, strict=True)]
            yield Overlaps(*(np.stack(arrays) for arrays in zip(*states, strict=True)))

    return Engine("flow", {"rtol": rtol, "atol": atol}, None, begin, advance)


def _integrate(run, now, times, rtol, atol):
    """The packed states of one run at the given times."""

    def jacobian(_, y):
        step = 1e-7 * np.maximum(np.abs(y), 1e-3)
        both = run.rate(None, y + np.concatenate([np.diag(step), -np.diag(step)]))
        return ((both[: y.size] - both[y.size :]) / (2 * step[:, None])).T

    if not times:
        return
    solver = LSODA(run.rate, now, run.start, times[-1], rtol=rtol, atol=atol, jac=jacobian)
    pending = 0
    while pending < len(times):
        message = solver.step()
        if solver.status == "failed" or not np.abs(solver.y).max() < LARGEST_RISK**0.5:
            x = run.unpack(solver.y)
            watch(run.problem, _State(*(array[None] for array in x)), solver.t)
        if solver.status == "failed":
            raise Diverged(f"the solver stopped at alpha={solver.t:.6g}: {message}")
        if solver.t < times[pending]:
            continue
        path = solver.dense_output()
        while pending < len(times) and times[pending] <= solver.t:
            yield path(times[pending]) if times[pending] < solver.t else solver.y
            pending += 1


class _State(NamedTuple):
    """Q, R, v without the checks of Overlaps."""

    Q: np.ndarray
    R: np.ndarray
    v: np.ndarray


class _Packing:
    """One run as a vector: the upper triangle of Q over all (p, k), R, and v if it is trained."""

    def __init__(self, problem, Q, R, v):
        self.problem, self.v, self.shape = problem, v, R.shape
        P, K, M = R.shape
        self.upper = np.triu_indices(P * K)
        self.cuts = [len(self.upper[0]), len(self.upper[0]) + R.size]
        self.start = self._pack(_State(Q, R, v))

    def _pack(self, x):
        P, K, M = self.shape
        lead = x.R.shape[:-3]
        parts = [x.Q.reshape(*lead, P * K, P * K)[..., *self.upper], x.R.reshape(*lead, -1)]
        if self.problem.eta_v:
            parts.append(x.v.reshape(*lead, -1))
        return np.concatenate(parts, axis=-1)

    def unpack(self, y):
        P, K, M = self.shape
        lead = y.shape[:-1]
        triangle, R, v = np.split(y, self.cuts, axis=-1)
        i, j = self.upper
        Q = np.empty((*lead, P * K, P * K))
        Q[..., i, j] = triangle
        Q[..., j, i] = triangle
        v = v if self.problem.eta_v else np.broadcast_to(self.v, (*lead, P, K))
        return _State(
            Q.reshape(*lead, P, K, P, K), R.reshape(*lead, P, K, M), v.reshape(*lead, P, K)
        )

    def rate(self, _, y):
        return self._pack(_State(*_rate(self.problem, self.unpack(y))))
