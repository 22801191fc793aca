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

from functools import partial
from numbers import Real
from typing import NamedTuple

import numpy as np
from scipy.integrate import LSODA

from .divergence import LARGEST_RISK, Diverged, watch
from .generalisation import coefficients
from .gossip import check_mixing, warn_of_drift
from .order_parameters import Overlaps, check_fit, field_covariance
from .refusals import number
from .rounds import Engine

LARGEST_GROWTH = 100  # of a propagator before its path starts again; costs four digits of sixteen


def drift(problem, x):
    """U (..., P, K, K) and V (..., P, K, M): the mean change of weight rows, U W + V W*.

    By Stein's lemma -eta v_k <g'(lambda_k) e x> is a sum of weight rows: row a with weight
    c_a <g'_k g'_a>, and row k with weight sum_a c_a <g''_k g_a>. x: Overlaps. Equation
    :eq:`eq-drift`.
    """
    check_fit(problem, x)
    G = _drift(problem, field_covariance(problem.T, x), coefficients(problem, x))
    K = x.v.shape[-1]
    return G[..., :K], G[..., K:]


def noise(problem, x):
    """(..., P, K, K): the growth of a worker's own Q by the scatter of single samples.

    (eta^2 / batch) v_k v_l (<g'_k g'_l e^2> + sigma^2 <g'_k g'_l>). x: Overlaps. Equation
    :eq:`eq-noise`.
    """
    check_fit(problem, x)
    return _noise(problem, field_covariance(problem.T, x), coefficients(problem, x))


def rate(problem, x, coupling=None):
    """d(Q, R, v)/dalpha, as a record of the shapes of x: the right-hand side of the flow.

    x: Overlaps with any leading axes. coupling: (kappa, A), see flow(). Equation :eq:`eq-flow`.
    """
    check_fit(problem, x)
    if coupling is not None:
        coupling = _check_coupling(coupling)
        check_mixing(coupling[1], x.v.shape[-2])
    return Overlaps(*_rate(problem, x, coupling))


# C (..., P, n, n) is the covariance of a worker's K + M = n fields, c (..., P, n) the coefficients
# of the error in them; G = [U, V] (..., P, K, n).


def _drift(problem, C, c):
    K = c.shape[-1] - problem.M
    v = c[..., :K]
    variance = C.diagonal(axis1=-2, axis2=-1)
    pair = variance[..., :K, None], C[..., :K, :], variance[..., None, :]
    G = problem.activation.j2(*pair) * c[..., None, :]
    own = (problem.activation.h2(*pair) @ c[..., None])[..., 0]
    units = np.arange(K)
    G[..., units, units] += own
    G *= -problem.eta * v[..., None]
    if problem.weight_decay:
        G[..., units, units] -= problem.eta * problem.weight_decay
    return G


def _noise(problem, C, c):
    K = c.shape[-1] - problem.M
    v = c[..., :K]
    scatter = problem.activation.square(C, K, c)
    if problem.sigma:
        variance = C.diagonal(axis1=-2, axis2=-1)[..., :K]
        scatter = scatter + problem.sigma**2 * problem.activation.j2(
            variance[..., :, None], C[..., :K, :K], variance[..., None, :]
        )
    return problem.eta**2 / problem.batch * v[..., :, None] * v[..., None, :] * scatter


def _second_layer(problem, C, c):
    K = c.shape[-1] - problem.M
    variance = C.diagonal(axis1=-2, axis2=-1)
    g = problem.activation.i2(variance[..., :K, None], C[..., :K, :], variance[..., None, :])
    return -problem.eta_v * ((g @ c[..., None])[..., 0] + problem.weight_decay * c[..., :K])


def _rate(problem, x, coupling=None):
    C, c = field_covariance(problem.T, x), coefficients(problem, x)
    *runs, P, K, M = x.R.shape
    G = _drift(problem, C, c)
    U, V = G[..., :K], G[..., K:]
    dR = U @ x.R + V @ problem.T
    everyone = x.R.reshape(*runs, 1, P * K, M)
    half = U @ x.Q.reshape(*runs, P, K, P * K) + V @ everyone.swapaxes(-1, -2)
    dv = _second_layer(problem, C, c) if problem.eta_v else np.zeros_like(x.v)
    if coupling is not None:
        kappa, A = coupling
        towards = kappa * (A - np.eye(P))
        half = half + np.einsum("pr,...rkql->...pkql", towards, x.Q).reshape(half.shape)
        dR = dR + np.einsum("pr,...rkm->...pkm", towards, x.R)
        dv = dv + np.einsum("pr,...rk->...pk", towards, x.v)
    half = half.reshape(*runs, P * K, P * K)
    dQ = (half + half.swapaxes(-1, -2)).reshape(*runs, P, K, P, K)
    worker = np.arange(P)
    dQ[..., worker, :, worker, :] += np.moveaxis(_noise(problem, C, c), -3, 0)
    return State(dQ, dR, dv)


class State(NamedTuple):
    """Q, R, v without the checks of Overlaps, for inner loops and for changes of a state."""

    Q: np.ndarray
    R: np.ndarray
    v: np.ndarray


def flow(rtol=1e-8, atol=None, coupling=None):
    """The engine of the limit N -> infinity: deterministic, adaptive, implicit where it is stiff.

    rtol, atol : tolerances of the solver (LSODA); atol is rtol / 1000 unless given. Recorded
        states are the solver's own interpolation at exactly the times asked.
    coupling : None, or (kappa, A): beside any rounds, workers drift towards their neighbours all
        the time, dW^p/dalpha = ... - kappa (W^p - sum_q A_pq W^q), with A (P, P) as in mix().
        Chapter `gossip_ode`, equation :eq:`eq-coupling`; derived in the book.

    A leading axis of runs is integrated run by run. Between rounds, without coupling, workers
    learn independently, so the cost grows like P, not P^2 (equation :eq:`eq-propagator`). Raises
    ValueError for tolerances that are not above 0 and a coupling that is no pair (kappa, A).
    """
    atol = rtol / 1000 if atol is None and isinstance(rtol, Real) else atol
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        if not isinstance(tolerance, Real) or not 0 < tolerance < 1:
            raise ValueError(f"{name} is a tolerance between 0 and 1, got {tolerance!r}")
    options = {"rtol": float(rtol), "atol": float(atol)}
    if coupling is not None:
        coupling = _check_coupling(coupling)
        options["coupling"] = [coupling[0], coupling[1].tolist()]

    begin = partial(_begin, coupling=coupling)
    advance = partial(_advance, rtol=rtol, atol=atol, coupling=coupling)
    return Engine("flow", options, None, begin, advance)


def _begin(problem, x0, *, coupling):
    if not isinstance(x0, Overlaps):
        raise ValueError("flow starts from Overlaps, got Weights: gossipdyn.overlaps(w) makes them")
    if coupling is not None:
        check_mixing(coupling[1], x0.v.shape[-2])
    if x0.v.ndim == 2:
        x0 = Overlaps(Q=x0.Q[None], R=x0.R[None], v=x0.v[None])
    return x0, None


def _advance(problem, x, source, now, times, *, rtol, atol, coupling):
    runs = [
        _Apart(problem, *arrays) if coupling is None else _Coupled(problem, *arrays, coupling)
        for arrays in zip(x.Q, x.R, x.v, strict=True)
    ]
    paths = [_integrate(i, run, now, times, rtol, atol) for i, run in enumerate(runs)]
    for _ in times:
        states = [next(path) for path in paths]
        yield Overlaps(*(np.stack(arrays) for arrays in zip(*states, strict=True)))


def _check_coupling(coupling):
    try:
        kappa, A = coupling
    except (TypeError, ValueError) as error:
        raise ValueError(f"coupling is a pair (kappa, A), got {coupling!r}") from error
    kappa = number(kappa, "the coupling rate kappa", 0)
    A = check_mixing(A)
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"coupling needs a square A, got shape {A.shape}")
    warn_of_drift(A, stacklevel=4)
    return kappa, A


def _integrate(number, run, now, times, rtol, atol):
    """The states of one run at the given times; `number` is its name in a refusal."""
    solver, pending, slack = None, 0, min(100 * rtol, 1e-2)
    while pending < len(times):
        if solver is None:
            solver = LSODA(
                run.rate, now, run.start, times[-1], rtol=rtol, atol=atol,
                jac=run.jacobian, lband=run.size - 1, uband=run.size - 1,
            )  # fmt: skip
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # it is noticed below
            message = solver.step()
        if solver.status == "failed" or not np.abs(solver.y).max() < LARGEST_RISK**0.5:
            x = State(*(a[None] for a in run.unpack(solver.y)))
            watch(run.problem, x, solver.t, first=number)
        if solver.status == "failed":
            raise Diverged(f"the solver stopped at alpha={solver.t:.6g}: {message}")
        path = solver.dense_output() if solver.t >= times[pending] else None
        while pending < len(times) and times[pending] <= solver.t:
            yield run.unpack(path(times[pending]) if times[pending] < solver.t else solver.y)
            pending += 1
        if pending < len(times) and (again := run.restarted(solver.y, slack)):
            run, now, solver = again, solver.t, None


def _possible(Q, R, inverse, slack):
    """The Q (..., n, n) nearest to Q that rows with these R (..., n, M) can have; None: Q itself.

    Rounding makes the square of a short distance between two rows negative now and then, and where
    distances grow, one below zero would grow without bound. It is brought back when it has passed
    `slack`, as a part of the largest Q. inverse : that of T.
    """
    across = Q - R @ inverse @ R.swapaxes(-1, -2)  # what the rows do not share with the teacher
    try:
        np.linalg.cholesky(across + slack * np.abs(Q).max() * np.eye(Q.shape[-1]))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(across)
        return Q + (vectors * np.maximum(-values, 0)[..., None, :]) @ vectors.swapaxes(-1, -2)


def _equal_units(Q, R, v):
    """(P, K): the first unit of each worker that a unit equals to the last bit, in weights and v.

    Equal units stay equal, but rounding in the solver would part them: ReLU leaves the equal state
    like the solution (t / 2)^2 of x' = sqrt(x) leaves 0. So they share one set of coordinates.
    """
    own = np.einsum("pkpl->pkl", Q)
    norms = np.einsum("pkk->pk", own)
    equal = (own == norms[:, :, None]) & (own == norms[:, None, :])
    equal &= (R[:, :, None] == R[:, None]).all(-1) & (v[:, :, None] == v[:, None])
    return equal.argmax(-1)


def _banded_jacobian(rate, y, size):
    """Central differences of a system that falls into blocks of `size`, in LAPACK's band storage.

    One batched right-hand side: coordinate i of every block is moved at once.
    """
    step = 1e-7 * np.maximum(np.abs(y), 1e-3)
    moved = np.where(np.arange(y.size) % size == np.arange(size)[:, None], step, 0)
    both = rate(None, np.concatenate([y + moved, y - moved]))
    change = (both[:size] - both[size:]).reshape(size, -1, size)  # (column, block, row)
    change /= 2 * step.reshape(-1, size).T[:, :, None]
    row, column = np.indices((size, size))
    band = np.zeros((2 * size - 1, y.size))
    first = np.arange(0, y.size, size)[:, None, None]
    band[size - 1 + row - column, first + column] = change.transpose(1, 2, 0)
    return band


class _Apart:
    """One run as a vector, its workers side by side, each with what it needs of its own.

    A worker's block holds the upper triangle of its Q, its R, its v if it is trained, and, if
    there are other workers, its propagator Z (K, n): W(alpha) = Z [W(0); W*] + noise of its own.
    The overlaps between workers follow from two propagators and the overlaps at the start. Where
    students escape, Z grows without bound while the overlaps do not: their digits would cancel.
    So a path starts again, from where it is, when its Z is spent.
    """

    def __init__(self, problem, Q, R, v):
        self.problem, self.Q0, self.R0, self.v0 = problem, Q, R, v
        self.inverse = np.linalg.pinv(problem.T, rcond=1e-9, hermitian=True)
        P, K, M = R.shape
        self.upper = np.triu_indices(K)
        own = np.einsum("pkpl->pkl", Q)[:, *self.upper]
        parts = [own, R.reshape(P, -1), v if problem.eta_v else v[:, :0]]
        if P > 1:
            parts.append(np.tile(np.eye(K, K + M).ravel(), (P, 1)))
        block = np.concatenate(parts, axis=1)
        self.start, self.size = block.ravel(), block.shape[1]
        self.cuts = np.cumsum([part.shape[1] for part in parts])
        self.place = np.zeros((K + M, K + M), dtype=int)  # of C in a block; T is put in later
        self.place[self.upper] = np.arange(self.cuts[0])
        self.place[:K, K:] = np.arange(self.cuts[0], self.cuts[1]).reshape(K, M)
        self.place = np.maximum(self.place, self.place.T)
        self.c0 = np.concatenate([v, np.tile(-problem.v_star, (P, 1))], axis=1)
        self.shared = self._shared(_equal_units(Q, R, v))

    def _shared(self, first):
        """For each coordinate the one that stands for it, from _equal_units."""
        (P, K), n = first.shape, len(self.place)
        rows = np.concatenate([first, np.tile(np.arange(K, n), (P, 1))], axis=1)
        shared = np.tile(np.arange(self.size), (P, 1))
        for own, row in zip(shared, rows, strict=True):
            own[self.place] = self.place[np.ix_(row, row)]
            if self.problem.eta_v:
                own[self.cuts[1] : self.cuts[2]] = self.cuts[1] + row[:K]
            if P > 1:
                own[self.cuts[2] :] = (self.cuts[2] + n * row[:K, None] + np.arange(n)).ravel()
        return (shared + self.size * np.arange(P)[:, None]).ravel()

    def _read(self, blocks):
        """Covariances and coefficients of all workers."""
        P, K, M = self.R0.shape
        C = blocks.take(self.place, axis=-1)
        C[..., K:, K:] = self.problem.T
        c = np.broadcast_to(self.c0, (*blocks.shape[:-1], K + M))
        if self.problem.eta_v:
            c = c.copy()
            c[..., :K] = blocks[..., self.cuts[1] : self.cuts[2]]
        return C, c

    def rate(self, _, y):
        problem, (P, K, M) = self.problem, self.R0.shape
        blocks = y[..., self.shared].reshape(*y.shape[:-1], P, self.size)
        lead = blocks.shape[:-1]
        C, c = self._read(blocks)
        G = _drift(problem, C, c)
        rows = G @ C
        dQ = rows[..., :K] + rows[..., :K].swapaxes(-1, -2) + _noise(problem, C, c)
        change = np.empty_like(blocks)
        change[..., : self.cuts[0]] = dQ[..., *self.upper]
        change[..., self.cuts[0] : self.cuts[1]] = rows[..., K:].reshape(*lead, K * M)
        if problem.eta_v:
            change[..., self.cuts[1] : self.cuts[2]] = _second_layer(problem, C, c)
        if P > 1:
            dZ = G[..., :K] @ blocks[..., self.cuts[2] :].reshape(*lead, K, K + M)
            dZ[..., K:] += G[..., K:]
            change[..., self.cuts[2] :] = dZ.reshape(*lead, -1)
        return change.reshape(y.shape)[..., self.shared]

    def jacobian(self, _, y):
        return _banded_jacobian(self.rate, y, self.size)

    def restarted(self, y, slack):
        """The path that takes over at y, or None while this one is good."""
        P, K, _ = self.R0.shape
        C = y[self.shared].reshape(P, self.size).take(self.place, axis=-1)
        own = _possible(C[:, :K, :K], C[:, :K, K:], self.inverse, slack)
        spent = P > 1 and np.abs(y.reshape(P, -1)[:, self.cuts[2] :]).max() > LARGEST_GROWTH
        if own is None and not spent:
            return None
        Q, R, v = self.unpack(y)
        if own is not None:
            Q[np.arange(P), :, np.arange(P)] = own
        return _Apart(self.problem, Q, R, v)

    def unpack(self, y):
        P, K, M = self.R0.shape
        blocks = y[self.shared].reshape(P, self.size)
        C, c = self._read(blocks)
        Q = np.empty((P, K, P, K))
        if P > 1:
            Z = blocks[:, self.cuts[2] :].reshape(P, K, K + M)
            U, V = Z[..., :K], Z[..., K:]
            before = np.einsum("pkj,pjql->pkql", U, self.Q0, optimize=True)
            before += np.einsum("pkm,qlm->pkql", V, self.R0, optimize=True)
            teacher = U @ self.R0 + V @ self.problem.T
            Q = np.einsum("pkql,qjl->pkqj", before, U, optimize=True)
            Q += np.einsum("pkm,qjm->pkqj", teacher, V, optimize=True)
        worker = np.arange(P)
        Q[worker, :, worker, :] = C[:, :K, :K]
        return State(Q, C[:, :K, K:], c[:, :K])


class _Coupled:
    """One run as a vector with the overlaps of all pairs of workers, which coupling mixes."""

    def __init__(self, problem, Q, R, v, coupling):
        self.problem, self.coupling = problem, coupling
        self.coordinates = Coordinates(problem, State(Q, R, v), moving_v=True)
        self.start = self.coordinates.pack(State(Q, R, v))
        self.size = self.start.size
        number = self.coordinates.unpack(np.arange(self.size))
        first, worker = _equal_units(Q, R, v), np.arange(len(v))[:, None]
        Q, R, v = (
            number.Q[worker, first][:, :, worker, first],
            *(a[worker, first] for a in number[1:]),
        )
        self.shared = self.coordinates.pack(State(Q, R, v)).astype(int)

    def unpack(self, y):
        return self.coordinates.unpack(y[..., self.shared])

    def rate(self, _, y):
        change = _rate(self.problem, self.unpack(y), self.coupling)
        return self.coordinates.pack(change)[..., self.shared]

    def jacobian(self, _, y):
        return _banded_jacobian(self.rate, y, self.size)

    def restarted(self, y, slack):
        """The path that takes over at y, or None while this one is good."""
        x = self.unpack(y)
        P, K, M = x.R.shape
        inverse = np.linalg.pinv(self.problem.T, rcond=1e-9, hermitian=True)
        Q = _possible(x.Q.reshape(P * K, P * K), x.R.reshape(P * K, M), inverse, slack)
        if Q is None:
            return None
        return _Coupled(self.problem, Q.reshape(x.Q.shape), x.R, x.v, self.coupling)


class Coordinates:
    """The independent entries of one state of P workers as a vector, and the flow in them.

    They are the upper triangle of Q over all rows (p, k), R, and v where it moves: if problem.eta_v
    is above 0, or moving_v says so. Vectors may carry leading axes; `size` is their length.
    """

    def __init__(self, problem, x, moving_v=False):
        self.problem, self.v0, self.shape = problem, x.v, x.R.shape
        self.moving_v = moving_v or problem.eta_v > 0
        self.upper = np.triu_indices(x.v.size)
        triangle = len(self.upper[0])
        self.cuts = [triangle, triangle + x.R.size]
        self.size = self.cuts[1] + x.v.size * self.moving_v

    def pack(self, x):
        """The vector (..., size) of a state, or of a change of one."""
        lead, rows = x.R.shape[:-3], self.v0.size
        parts = [x.Q.reshape(*lead, rows, rows)[..., *self.upper], x.R.reshape(*lead, -1)]
        if self.moving_v:
            parts.append(x.v.reshape(*lead, -1))
        return np.concatenate(parts, axis=-1)

    def unpack(self, y, v0=None):
        """The State of a vector; where v does not move it is v0, by default that of the start."""
        lead, (P, K, M) = y.shape[:-1], self.shape
        triangle, R, v = np.split(y, self.cuts, axis=-1)
        i, j = self.upper
        Q = np.empty((*lead, P * K, P * K))
        Q[..., i, j] = triangle
        Q[..., j, i] = triangle
        if not self.moving_v:
            v = np.broadcast_to(self.v0 if v0 is None else v0, (*lead, P, K))
        return State(
            Q.reshape(*lead, P, K, P, K), R.reshape(*lead, P, K, M), v.reshape(*lead, P, K)
        )

    def rate(self, y):
        """The right-hand side of the flow."""
        return self.pack(_rate(self.problem, self.unpack(y)))

    def jacobian(self, y, step=5e-4):
        """The derivative of rate() at y, (size, size), to about 1e-12 eta where it is smooth.

        Differences of fourth order: an error of step^4 from the curvature (the averages vary on
        the scale 1 + |y|) and of 1e-16 / step from rounding, least together near 5e-4.
        """
        step = np.diag(step * (1 + np.abs(y)))
        moved = y + np.concatenate([2 * step, step, -step, -2 * step])
        far, near, back, far_back = self.rate(moved).reshape(4, y.size, y.size)
        return ((8 * (near - back) - (far - far_back)) / (12 * step.diagonal()[:, None])).T
