"""The flow: the engine of the limit N -> infinity.

Chapter :doc:`from_sgd_to_ode`, equation :eq:`eq-flow`.
"""

from __future__ import annotations

from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from ..checks import check_mixing
from ..coordinates import Coordinates, banded_jacobian
from ..equal_units import first_by_overlaps
from ..equations import State, check_coupling, unchecked_rate
from ..gossip.mix import with_rows
from ..labels import has_axis, made, with_runs, workers
from ..states import Overlaps
from .divergence import LARGEST_RISK, Diverged, watch
from .engine import Engine

LARGEST_GROWTH = 100  # of a propagator before its path starts again; costs four digits of sixteen


def flow(
    rtol: float = 1e-8, atol: float | None = None, coupling: tuple[float, ArrayLike] | None = None
) -> Engine:
    """Make the engine of the limit N -> infinity: deterministic, adaptive, implicit if it is stiff.

    Parameters
    ----------
    rtol, atol : float, optional
        Tolerances of the solver (LSODA), between 0 and 1; by default atol is rtol / 1000. Recorded
        states are the solver's own interpolation at exactly the times asked for.
    coupling : (kappa, A), optional
        Beside any rounds, workers drift towards their neighbours all the time,
        dW^p/dalpha = ... - kappa (W^p - sum_q A_pq W^q), with a mixing matrix A (P, P) as in mix().

    Returns
    -------
    Engine
        An engine for run(), which starts from Overlaps.

    Raises
    ------
    ValueError
        If a tolerance is out of its range, or if coupling is no pair (kappa, A).

    See Also
    --------
    chain, sgd : The engines of finite N.

    Notes
    -----
    A leading axis of runs is integrated run by run. Between rounds, without coupling, workers learn
    independently, so the cost grows like P, and not like P^2 (equation :eq:`eq-propagator`).

    References
    ----------
    Chapter :doc:`from_sgd_to_ode`, equation :eq:`eq-flow`; chapter :doc:`gossip_ode`, equation
    :eq:`eq-coupling`, for the coupling, derived in the book.

    Examples
    --------
    From a small overlap with the teacher a single unit learns it:

    >>> problem = gd.Problem(gd.erf, v_star=np.ones(1), T=np.eye(1), eta=0.5)
    >>> x0 = gd.Overlaps.single(Q=np.eye(1), R=[[0.1]], v=np.ones(1))
    >>> t = gd.run(gd.flow(), problem, x0, 150.0)
    >>> print(t.R[0, -1].ravel().round(3))
    [1.]
    """
    atol = rtol / 1000 if atol is None and isinstance(rtol, Real) else atol
    options: dict[str, Any] = {}
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        if not isinstance(tolerance, Real) or not 0 < tolerance < 1:
            raise ValueError(f"{name} is a tolerance between 0 and 1, got {tolerance!r}")
        options[name] = float(tolerance)
    if coupling is not None:
        coupling = check_coupling(coupling)
        options["coupling"] = [coupling[0], coupling[1].tolist()]

    begin = partial(_begin, coupling=coupling)
    advance = partial(_advance, rtol=rtol, atol=atol, coupling=coupling)
    return Engine("flow", options, None, begin, advance)


def _begin(problem, x0, start, rows, *, coupling):
    if has_axis(x0, "input"):
        raise ValueError(
            f"flow starts from Overlaps, got {type(x0).__name__}: gossipdyn.overlaps(w) makes them"
        )
    if coupling is not None:
        check_mixing(coupling[1], workers(x0))
    return with_runs(with_rows(x0, rows)), len(rows)


def _advance(problem, x, still, now, times, *, rtol, atol, coupling):
    if coupling is not None and still:  # nothing pulls rows that only a round knows
        kappa, A = coupling
        coupling = kappa, scipy.linalg.block_diag(A, np.eye(still))
    runs = [
        _Apart(problem, *arrays, still)
        if coupling is None
        else _Coupled(problem, *arrays, still, coupling)
        for arrays in zip(x.Q, x.R, x.v, strict=True)
    ]
    paths = [_integrate(i, run, now, times, rtol, atol) for i, run in enumerate(runs)]
    for _ in times:
        states = [next(path) for path in paths]
        Q, R, v = (np.stack(arrays) for arrays in zip(*states, strict=True))
        yield made(Overlaps, Q=Q, R=R, v=v), still


def _integrate(number, run, now, times, rtol, atol):
    """The states of one run at the given times; `number` is its name in a refusal."""
    slack, y = min(100 * rtol, 1e-2), run.start
    ends = [*run.problem.breaks(now, times[-1]), times[-1]] if times else []
    solver, pending = None, 0
    while pending < len(times):
        if solver is None:
            smooth = _within(now, ends[0])
            solver = scipy.integrate.LSODA(
                lambda t, y, run=run, smooth=smooth: run.rate(smooth(t), y),
                now, y, ends[0], rtol=rtol, atol=atol,
                jac=lambda t, y, run=run, smooth=smooth: run.jacobian(smooth(t), y),
                lband=run.size - 1, uband=run.size - 1,
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
        if pending < len(times):
            again = run.restarted(solver.y, slack)
            if again or solver.t == ends[0]:
                now = solver.t
                ends = [end for end in ends if end > now]
                run, y = (again, again.start) if again else (run, solver.y)
                solver = None


def _within(begin, end):
    """A time, kept where rates are smooth: at `end` they are those just before it."""
    last = max(begin, np.nextafter(end, begin))
    return lambda t: min(t, last)


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


class _Apart:
    """One run as a vector, its workers side by side, each with what it needs of its own.

    A worker's block holds the upper triangle of its Q, its R, its v if it is trained, and, if
    there are other workers, its propagator Z (K, n): W(alpha) = Z [W(0); W*] + noise of its own.
    The overlaps between workers follow from two propagators and the overlaps at the start. Where
    students escape, Z grows without bound while the overlaps do not: their digits would cancel.
    So a path starts again, from where it is, when its Z is spent. The last `still` workers have no
    block: they stay where they were.
    """

    def __init__(self, problem, Q, R, v, still):
        self.problem, self.Q0, self.R0, self.v0, self.still = problem, Q, R, v, still
        self.inverse = np.linalg.pinv(problem.T, rcond=1e-9, hermitian=True)
        everyone, K, M = R.shape
        self.shape = P, K, M = everyone - still, K, M
        self.linked = everyone > 1
        self.upper = np.triu_indices(K)
        own = np.einsum("pkpl->pkl", Q)[:P, *self.upper]
        v = v[:P]
        parts = [own, R[:P].reshape(P, -1), v if problem.trains_v else v[:, :0]]
        if self.linked:
            parts.append(np.tile(np.eye(K, K + M).ravel(), (P, 1)))
        block = np.concatenate(parts, axis=1)
        self.start, self.size = block.ravel(), block.shape[1]
        self.cuts = np.cumsum([part.shape[1] for part in parts])
        self.place = np.zeros((K + M, K + M), dtype=int)  # of C in a block; T is put in later
        self.place[self.upper] = np.arange(self.cuts[0])
        self.place[:K, K:] = np.arange(self.cuts[0], self.cuts[1]).reshape(K, M)
        self.place = np.maximum(self.place, self.place.T)
        self.shared = self._shared(first_by_overlaps(Q, R, self.v0)[:P])

    def _shared(self, first):
        """For each coordinate the one that stands for it: that of the first of equal units."""
        (P, K), n = first.shape, len(self.place)
        rows = np.concatenate([first, np.tile(np.arange(K, n), (P, 1))], axis=1)
        shared = np.tile(np.arange(self.size), (P, 1))
        for own, row in zip(shared, rows, strict=True):
            own[self.place] = self.place[np.ix_(row, row)]
            if self.problem.trains_v:
                own[self.cuts[1] : self.cuts[2]] = self.cuts[1] + row[:K]
            if self.linked:
                own[self.cuts[2] :] = (self.cuts[2] + n * row[:K, None] + np.arange(n)).ravel()
        return (shared + self.size * np.arange(P)[:, None]).ravel()

    def _read(self, blocks):
        """The overlaps C of each worker's rows and the teacher's, and v, of all that move."""
        P, K, M = self.shape
        C = blocks.take(self.place, axis=-1)
        C[..., K:, K:] = self.problem.T
        if self.problem.trains_v:
            return C, blocks[..., self.cuts[1] : self.cuts[2]]
        return C, np.broadcast_to(self.v0[:P], (*blocks.shape[:-1], K))

    def rate(self, alpha, y):
        problem, (P, K, M) = self.problem, self.shape
        blocks = y[..., self.shared].reshape(*y.shape[:-1], P, self.size)
        lead = blocks.shape[:-1]
        C, v = self._read(blocks)
        rates = problem.rates(alpha)
        want = ("U", "V", "noise", "dv") if problem.trains_v else ("U", "V", "noise")
        found = problem.local(C, v, rates, want)
        G = np.concatenate([found.U, found.V], axis=-1)
        if problem.weight_decay:
            G[..., np.arange(K), np.arange(K)] -= rates.eta * problem.weight_decay
        rows = G @ C
        dQ = rows[..., :K] + rows[..., :K].swapaxes(-1, -2) + found.noise
        change = np.empty_like(blocks)
        change[..., : self.cuts[0]] = dQ[..., *self.upper]
        change[..., self.cuts[0] : self.cuts[1]] = rows[..., K:].reshape(*lead, K * M)
        if problem.trains_v:
            dv = found.dv - rates.eta_v * problem.weight_decay * v
            change[..., self.cuts[1] : self.cuts[2]] = dv
        if self.linked:
            dZ = G[..., :K] @ blocks[..., self.cuts[2] :].reshape(*lead, K, K + M)
            dZ[..., K:] += G[..., K:]
            change[..., self.cuts[2] :] = dZ.reshape(*lead, -1)
        return change.reshape(y.shape)[..., self.shared]

    def jacobian(self, alpha, y):
        return banded_jacobian(lambda moved: self.rate(alpha, moved), y, self.size)

    def restarted(self, y, slack):
        """The path that takes over at y, or None while this one is good."""
        P, K, _ = self.shape
        C = y[self.shared].reshape(P, self.size).take(self.place, axis=-1)
        own = _possible(C[:, :K, :K], C[:, :K, K:], self.inverse, slack)
        spent = self.linked and np.abs(y.reshape(P, -1)[:, self.cuts[2] :]).max() > LARGEST_GROWTH
        if own is None and not spent:
            return None
        Q, R, v = self.unpack(y)
        if own is not None:
            Q[np.arange(P), :, np.arange(P)] = own
        return _Apart(self.problem, Q, R, v, self.still)

    def unpack(self, y):
        """The State of all workers."""
        P, K, M = self.shape
        everyone, worker = P + self.still, np.arange(P)
        blocks = y[self.shared].reshape(P, self.size)
        C, v = self._read(blocks)
        Q, R = np.empty((everyone, K, everyone, K)), self.R0.copy()
        if self.linked:
            Z = np.tile(np.eye(K, K + M), (everyone, 1, 1))
            Z[:P] = blocks[:, self.cuts[2] :].reshape(P, K, K + M)
            U, V = Z[..., :K], Z[..., K:]
            before = np.einsum("pkj,pjql->pkql", U, self.Q0, optimize=True)
            before += np.einsum("pkm,qlm->pkql", V, self.R0, optimize=True)
            teacher = U @ self.R0 + V @ self.problem.T
            Q = np.einsum("pkql,qjl->pkqj", before, U, optimize=True)
            Q += np.einsum("pkm,qjm->pkqj", teacher, V, optimize=True)
            Q[P:, :, P:] = self.Q0[P:, :, P:]
        Q[worker, :, worker, :] = C[:, :K, :K]
        R[:P] = C[:, :K, K:]
        return State(Q, R, np.concatenate([v, self.v0[P:]]))


class _Coupled:
    """One run as a vector with the overlaps of all pairs of workers, which coupling mixes."""

    def __init__(self, problem, Q, R, v, still, coupling):
        self.problem, self.still, self.coupling = problem, still, coupling
        self.coordinates = Coordinates(problem, State(Q, R, v), moving_v=True)
        self.start = self.coordinates.pack(State(Q, R, v))
        self.size = self.start.size
        number = self.coordinates.unpack(np.arange(self.size))
        first, worker = first_by_overlaps(Q, R, v), np.arange(len(v))[:, None]
        Q, R, v = (
            number.Q[worker, first][:, :, worker, first],
            number.R[worker, first],
            number.v[worker, first],
        )
        self.shared = self.coordinates.pack(State(Q, R, v)).astype(int)

    def unpack(self, y):
        return self.coordinates.unpack(y[..., self.shared])

    def rate(self, alpha, y):
        change = unchecked_rate(self.problem, self.unpack(y), self.coupling, alpha, self.still)
        return self.coordinates.pack(change)[..., self.shared]

    def jacobian(self, alpha, y):
        return banded_jacobian(lambda moved: self.rate(alpha, moved), y, self.size)

    def restarted(self, y, slack):
        """The path that takes over at y, or None while this one is good."""
        x = self.unpack(y)
        P, K, M = x.R.shape
        inverse = np.linalg.pinv(self.problem.T, rcond=1e-9, hermitian=True)
        Q = _possible(x.Q.reshape(P * K, P * K), x.R.reshape(P * K, M), inverse, slack)
        if Q is None:
            return None
        Q = Q.reshape(x.Q.shape)
        return _Coupled(self.problem, Q, x.R, x.v, self.still, self.coupling)
