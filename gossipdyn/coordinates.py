"""Coordinates: the independent entries of a state as a vector, and the flow in them."""

import numpy as np

from .equations import State, unchecked_rate
from .states import Overlaps

CHUNK = 2**15  # numbers in the vectors that rate() gets at once, about


def banded_jacobian(rate, y, size):
    """Differences of a system that falls into blocks of `size`, in LAPACK's band storage.

    Coordinate i of every block is moved at once, and rate() gets many i in one call. Forward
    differences are enough for a solver, which only needs them to converge.
    """
    step = 1e-7 * np.maximum(np.abs(y), 1e-3)
    moved = np.zeros((size + 1, y.size // size, size))  # the last one stays
    column = np.arange(size)
    moved[column, :, column] = step.reshape(-1, size).T
    moved = y + moved.reshape(size + 1, -1)
    rows = max(1, CHUNK // y.size)
    rates = [rate(moved[first : first + rows]) for first in range(0, size + 1, rows)]
    rates = np.concatenate(rates) if len(rates) > 1 else rates[0]
    change = (rates[:-1] - rates[-1]).reshape(size, -1, size)  # (column, block, row)
    change /= step.reshape(-1, size).T[:, :, None]
    row, column = np.indices((size, size))
    band = np.zeros((2 * size - 1, y.size))
    block = np.arange(0, y.size, size)[:, None, None]
    band[size - 1 + row - column, block + column] = change.transpose(1, 2, 0)
    return band


class Coordinates:
    """The independent entries of one state of P workers as a vector, and the flow in them.

    They are the upper triangle of Q over all rows (p, k), R, and v where it moves: if the problem
    trains it, or moving_v says so. Vectors may carry leading axes; `size` is their length.
    """

    def __init__(self, problem, x, moving_v=False):
        self.problem, self.v0, self.shape = problem, x.v, x.R.shape
        self.moving_v = moving_v or problem.trains_v
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

    def rate(self, y, alpha=0.0):
        """The right-hand side of the flow."""
        return self.pack(unchecked_rate(self.problem, self.unpack(y), alpha=alpha))

    def jacobian(self, y, step=5e-4, alpha=0.0):
        """The derivative of rate() at y, (size, size), to about 1e-12 eta where it is smooth.

        The step times 1 + |y| is that of slope(): the averages vary on that scale.
        """
        moves = np.diag(step * (1 + np.abs(y)))
        return slope(lambda moved: self.rate(moved, alpha), y, moves).T

    def jump(self, f, y):
        """The state after the map f of Overlaps, and its derivative (size, size), at y.

        For maps that are linear nearby, as a round of gossip is (a matched one too): a difference
        of any step is then exact.
        """
        step = 1e-3 * np.eye(self.size)
        moved = np.concatenate([y[None], y + step, y - step])
        after = self.pack(f(Overlaps(*self.unpack(moved))))
        forward, back = np.split(after[1:], 2)
        return after[0], ((forward - back) / 2e-3).T


def slope(f, y, moves):
    """How f(y) changes along each of `moves` (n, ...), per unit of the move's length.

    Differences of fourth order, from one call of f on all moved points: an error of step^4 from
    the curvature and of 1e-16 / step from rounding, least together near a step of 5e-4.
    """
    length = np.linalg.norm(moves, axis=-1)
    moved = y + np.concatenate([2 * moves, moves, -moves, -2 * moves])
    far, near, back, far_back = np.split(f(moved), 4)
    change = 8 * (near - back) - (far - far_back)
    return change / (12 * length.reshape(-1, *(change.ndim - 1) * (1,)))
