"""Paths of the flow: the states of a few runs as one vector, its rate, and its derivative.

Runs and workers stand side by side in blocks, and no block's rate depends on another's. A path is
good for a while; then another takes over where it is.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..coordinates import Coordinates, banded_jacobian
from ..equal_units import first_by_overlaps
from ..equations import State, unchecked_rate

LARGEST_GROWTH = 100  # of a propagator before its path starts again; costs four digits of sixteen


def nearest_possible(Q, R, inverse, slack):
    """The Q (runs, ..., n, n) nearest to Q that rows with these R (..., n, M) can have, or None.

    None: Q itself will do. Rounding makes the square of a short distance between two rows negative
    now and then, and where distances grow, one below zero would grow without bound. It is brought
    back when it has passed `slack`, as a part of the run's largest Q. inverse : that of T.
    """
    across = Q - R @ inverse @ R.swapaxes(-1, -2)  # what the rows do not share with the teacher
    room = slack * np.abs(Q).max(axis=tuple(range(1, Q.ndim)), keepdims=True)
    try:
        np.linalg.cholesky(across + room * np.eye(Q.shape[-1]))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(across)
        passed = values[..., :1] < -room[..., 0]
        missing = np.where(passed, np.maximum(-values, 0), 0)
        return Q + (vectors * missing[..., None, :]) @ vectors.swapaxes(-1, -2)


class _Block(NamedTuple):
    """Where things stand in the block of a worker.

    size : of a block. C (n, n), v (K,), Z (K, n) : places of these in it; of the teacher's part of
    C, which is T, any place. change : where the change of each place stands among those of Q
    (K, K), of the rows' overlaps with all n (K, n), of v and of Z, written one after the other.
    """

    size: int
    C: np.ndarray
    v: np.ndarray
    Z: np.ndarray
    change: np.ndarray


@lru_cache
def _block(K, M, trains_v, linked):
    n, upper = K + M, np.triu_indices(K)
    cuts = np.cumsum([len(upper[0]), K * M, K * trains_v, K * n * linked])
    C = np.zeros((n, n), dtype=int)
    C[upper] = np.arange(cuts[0])
    C[:K, K:] = np.arange(cuts[0], cuts[1]).reshape(K, M)
    Q, rows = np.arange(K * K).reshape(K, K), K * K + np.arange(K * n).reshape(K, n)
    change = [Q[upper], rows[:, K:].ravel(), K * K + K * n + np.arange(cuts[3] - cuts[1])]
    return _Block(
        size=int(cuts[3]),
        C=np.maximum(C, C.T),
        v=np.arange(cuts[1], cuts[2]),
        Z=np.arange(cuts[2], cuts[3]).reshape(-1, n),
        change=np.concatenate(change),
    )


class Apart:
    """Runs as a vector, their workers side by side, each with what it needs of its own.

    A worker's block holds the upper triangle of its Q, its R, its v if it is trained, and, if
    there are other workers, its propagator Z (K, n): W(alpha) = Z [W(0); W*] + noise of its own.
    The overlaps between workers follow from two propagators and the overlaps at the start. Where
    students escape, Z grows without bound while the overlaps do not: their digits would cancel.
    So a path starts again, from where it is, when its Z is spent. The last `still` workers have no
    block: they stay where they were.

    x : State with a leading axis of runs. inverse : that of T.
    """

    def __init__(self, problem, x, still, inverse):
        self.problem, self.x0, self.still, self.inverse = problem, x, still, inverse
        runs, everyone, K, M = x.R.shape
        self.shape = runs, P, K, M = runs, everyone - still, K, M
        self.linked = everyone > 1
        block = _block(K, M, problem.trains_v, self.linked)
        self.size = block.size
        self.own_v = x.v[:, :P]
        self.first = first_by_overlaps(*x)
        start = np.empty((runs, P, block.size))
        start[..., block.C[:K]] = np.concatenate([_own(x.Q)[:, :P], x.R[:, :P]], axis=-1)
        if problem.trains_v:
            start[..., block.v] = self.own_v
        if self.linked:
            start[..., block.Z] = np.eye(K, K + M)
        self.start = start.ravel()
        self._read_at(block)

    def _read_at(self, block):
        """Where C, v, Z and the changes stand, of equal units those of the first of them."""
        runs, P, K, M = self.shape
        first = block.size * np.arange(runs * P).reshape(runs, P)[..., None]
        at, width = np.arange(block.size), block.change.max() + 1
        unit = self.first[:, :P]
        if np.array_equal(unit, np.broadcast_to(np.arange(K), unit.shape)):
            at = np.broadcast_to(at, (runs, P, block.size))
            self.first = None
        else:
            row = np.concatenate([unit, np.broadcast_to(np.arange(K, K + M), (runs, P, M))], -1)
            at = np.tile(at, (runs, P, 1))
            at[..., block.C] = block.C[row[..., :, None], row[..., None, :]]
            if block.v.size:
                at[..., block.v] = block.v[unit]
            if block.Z.size:
                at[..., block.Z] = block.Z[unit]
        self.at_C, self.at_v, self.at_Z = (
            (first + at[..., where.ravel()]).reshape(runs, P, *where.shape)
            for where in (block.C, block.v, block.Z)
        )
        offset = width * np.arange(runs * P).reshape(runs, P)[..., None]
        self.at_change = (offset + block.change[at]).ravel()

    def _read(self, y):
        """The overlaps C of each worker's rows and the teacher's, and v, of all that move."""
        K = self.shape[2]
        C = y.take(self.at_C, axis=-1)
        C[..., K:, K:] = self.problem.T
        if self.problem.trains_v:
            return C, y.take(self.at_v, axis=-1)
        if y.ndim == 1:  # broadcast_to takes a tenth of the time of a rate
            return C, self.own_v
        return C, np.broadcast_to(self.own_v, (*y.shape[:-1], *self.own_v.shape))

    def rate(self, alpha, y):
        problem, K = self.problem, self.shape[2]
        C, v = self._read(y)
        lead = C.shape[:-2]
        rates = problem.rates(alpha)
        want = ("U", "V", "noise", "dv") if problem.trains_v else ("U", "V", "noise")
        found = problem.local(C, v, rates, want)
        G = np.concatenate([found.U, found.V], axis=-1)
        if problem.weight_decay:
            G[..., np.arange(K), np.arange(K)] -= rates.eta * problem.weight_decay
        rows = G @ C
        own = rows[..., :K]
        dQ = own + own.swapaxes(-1, -2) + found.noise
        change = [dQ.reshape(*lead, -1), rows.reshape(*lead, -1)]
        if problem.trains_v:
            change.append(found.dv - rates.eta_v * problem.weight_decay * v)
        if self.linked:
            dZ = G[..., :K] @ y.take(self.at_Z, axis=-1)
            dZ[..., K:] += G[..., K:]
            change.append(dZ.reshape(*lead, -1))
        change = np.concatenate(change, axis=-1).reshape(*y.shape[:-1], -1)
        return change.take(self.at_change, axis=-1)

    def jacobian(self, alpha, y):
        return banded_jacobian(lambda moved: self.rate(alpha, moved), y, self.size)

    def restarted(self, y, slack):
        """The path that takes over at y, or None while this one is good."""
        K = self.shape[2]
        C = y.take(self.at_C)
        own = nearest_possible(C[..., :K, :K], C[..., :K, K:], self.inverse, slack)
        spent = self.linked and np.abs(y.take(self.at_Z)).max() > LARGEST_GROWTH
        if own is None and not spent:
            return None
        x = self.unpack(y)
        if own is not None:
            if self.first is not None:
                first = self.first[:, : self.shape[1]]
                own = np.take_along_axis(own, first[..., None], -2)
                own = np.take_along_axis(own, first[..., None, :], -1)
            _own(x.Q)[:, : self.shape[1]] = own
        return Apart(self.problem, x, self.still, self.inverse)

    def unpack(self, y):
        """The State of all workers, for y (..., blocks)."""
        _, P, K, M = self.shape
        C, v = self._read(y)
        R = np.broadcast_to(self.x0.R, (*y.shape[:-1], *self.x0.R.shape)).copy()
        Q = self._between(y) if self.linked else np.empty((*R.shape[:-3], 1, K, 1, K))
        _own(Q)[..., :P, :, :] = C[..., :K, :K]
        R[..., :P, :, :] = C[..., :K, K:]
        if self.still:
            v = np.concatenate(
                [v, np.broadcast_to(self.x0.v[:, P:], (*v.shape[:-2], self.still, K))], -2
            )
        return State(Q, R, v)

    def _between(self, y):
        """The overlaps of the rows of different workers, (..., P, K, P, K)."""
        runs, P, K, M = self.shape
        Q0, R0, lead, everyone = self.x0.Q, self.x0.R, y.shape[:-1], P + self.still
        n, rows = K + M, everyone * K
        Z = np.empty((*lead, runs, everyone, K, n))
        Z[..., :P, :, :], Z[..., P:, :, :] = y.take(self.at_Z, axis=-1), np.eye(K, n)
        U, V = Z[..., :K], Z[..., K:]
        # with the rows of all workers at the start, and with the teacher's
        before = U @ Q0.reshape(runs, everyone, K, rows)
        before += V @ R0.reshape(runs, 1, rows, M).swapaxes(-1, -2)
        teacher = (U @ R0 + V @ self.problem.T).reshape(*lead, runs, 1, rows, M)
        before = np.moveaxis(before.reshape(*lead, runs, rows, everyone, K), -2, -3)
        Q = before @ U.swapaxes(-1, -2) + teacher @ V.swapaxes(-1, -2)  # (..., q, (p, k), l)
        Q = np.moveaxis(Q.reshape(*lead, runs, everyone, everyone, K, K), -4, -2)
        if self.still:
            Q[..., P:, :, P:, :] = Q0[:, P:, :, P:]
        if self.first is not None:  # a matrix product rounds according to the place
            run, worker = np.arange(runs)[:, None, None], np.arange(everyone)[:, None]
            Q = Q[..., run, worker, self.first, :, :]
            Q = np.moveaxis(Q, (-2, -1), (-4, -3))
            Q = Q[..., run, worker, self.first, :, :]
        return Q


def _own(Q):
    """A view (..., P, K, K) of the overlaps of workers' own rows, Q (..., P, K, P, K)."""
    return np.einsum("...pkpl->...pkl", Q)


class Coupled:
    """Runs as a vector with the overlaps of all pairs of workers, which coupling mixes.

    x : State with a leading axis of runs. inverse : that of T.
    """

    def __init__(self, problem, x, still, inverse, coupling):
        self.problem, self.still, self.inverse, self.coupling = problem, still, inverse, coupling
        self.coordinates = Coordinates(problem, State(*(a[0] for a in x)), moving_v=True)
        start = self.coordinates.pack(x)
        self.start, self.size, self.runs = start.ravel(), start.shape[1], len(start)
        number = self.coordinates.unpack(np.arange(self.size))
        worker = np.arange(x.v.shape[1])[:, None]
        shared = []
        for first in first_by_overlaps(*x):
            Q = number.Q[worker, first][:, :, worker, first]
            R, v = number.R[worker, first], number.v[worker, first]
            shared.append(self.coordinates.pack(State(Q, R, v)).astype(int))
        self.shared = (np.stack(shared) + self.size * np.arange(self.runs)[:, None]).ravel()

    def unpack(self, y):
        """The State of all workers, for y (..., blocks)."""
        y = y.take(self.shared, axis=-1)
        return self.coordinates.unpack(y.reshape(*y.shape[:-1], self.runs, self.size))

    def rate(self, alpha, y):
        change = unchecked_rate(self.problem, self.unpack(y), self.coupling, alpha, self.still)
        return self.coordinates.pack(change).reshape(y.shape).take(self.shared, axis=-1)

    def jacobian(self, alpha, y):
        return banded_jacobian(lambda moved: self.rate(alpha, moved), y, self.size)

    def restarted(self, y, slack):
        """The path that takes over at y, or None while this one is good."""
        x = self.unpack(y)
        runs, P, K, M = x.R.shape
        Q = x.Q.reshape(runs, P * K, P * K)
        Q = nearest_possible(Q, x.R.reshape(runs, P * K, M), self.inverse, slack)
        if Q is None:
            return None
        x = x._replace(Q=Q.reshape(x.Q.shape))
        return Coupled(self.problem, x, self.still, self.inverse, self.coupling)
