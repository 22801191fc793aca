"""The flow: the engine of the limit N -> infinity.

Chapter `from_sgd_to_ode`, equation :eq:`eq-flow`.
"""

from functools import partial
from numbers import Real

import numpy as np
import scipy

from ..checks import check_mixing
from ..coordinates import Coordinates, _banded_jacobian
from ..equations import State, _check_coupling, _drift, _noise, _rate, _second_layer
from ..states import Overlaps
from .divergence import LARGEST_RISK, Diverged, watch
from .engine import Engine

LARGEST_GROWTH = 100  # of a propagator before its path starts again; costs four digits of sixteen


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


def _integrate(number, run, now, times, rtol, atol):
    """The states of one run at the given times; `number` is its name in a refusal."""
    solver, pending, slack = None, 0, min(100 * rtol, 1e-2)
    while pending < len(times):
        if solver is None:
            solver = scipy.integrate.LSODA(
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
            number.R[worker, first],
            number.v[worker, first],
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
