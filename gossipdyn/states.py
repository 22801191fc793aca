"""States: the weights of P workers, or their overlaps; and the arrow from one to the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from .checks import COARSE, EXACT, apart, frozen, reals, rounding, whole, within_range
from .labels import as_numpy, check_kind, labelled
from .problem import Problem, check_problem, overlaps_of_teacher


@labelled
@dataclass(frozen=True, eq=False)
class Overlaps:
    """The order parameters of P workers with K student units each, before a teacher of M units.

    A leading axis counts runs.

    Attributes
    ----------
    Q : (..., P, K, P, K) array
        Student-student overlaps w^p_k.w^q_l / N, of all pairs of workers.
    R : (..., P, K, M) array
        Student-teacher overlaps ``w^p_k.w*_m / N``.
    v : (..., P, K) array
        Second layers.

    Raises
    ------
    ValueError
        If the shapes do not fit, if an argument is no array of finite real numbers (booleans and
        masked entries are none), or if Q is not symmetric.

    Notes
    -----
    Arrays become float64 and read-only. If mirrored places of a float32 Q differ by its rounding
    (1e-6 of the largest entry), their mean is taken. ``axes`` names the axes of each array and
    ``worker_axes`` the places of those on which gossip acts. ``x[i]`` is run number i and
    ``x.runs`` the shape of the leading axes.

    References
    ----------
    Chapter :doc:`teacher_student`, equation :eq:`eq-overlaps`; Saad and Solla (1995).

    Examples
    --------
    Two workers with three units each, before a teacher of two units:

    >>> Q = 0.25 * np.eye(6).reshape(2, 3, 2, 3)
    >>> x = gd.Overlaps(Q=Q, R=np.zeros((2, 3, 2)), v=np.ones((2, 3)))
    >>> print(x.R.shape)
    (2, 3, 2)
    """

    Q: np.ndarray
    R: np.ndarray
    v: np.ndarray
    runs: ClassVar[tuple[int, ...]]  # labelled() makes it
    axes: ClassVar = {
        "Q": ("worker", "student", "worker", "student"),
        "R": ("worker", "student", "teacher"),
        "v": ("worker", "student"),
    }

    def __post_init__(self):
        Q, R, v = reals(self.Q, "Q"), frozen(self.R, "R"), frozen(self.v, "v")
        if v.ndim < 2 or R.ndim < 3 or R.shape[:-1] != v.shape or Q.shape != v.shape + v.shape[-2:]:
            raise ValueError(
                f"Q (..., P, K, P, K), R (..., P, K, M) and v (..., P, K) disagree: got shapes "
                f"{Q.shape}, {R.shape} and {v.shape} (for one worker use Overlaps.single)"
            )
        if R.size == 0:
            raise ValueError(
                f"workers, students and teacher units count from 1 up, got R of shape {R.shape}"
            )
        mirrored, scale = _mirrored(Q), np.max(np.abs(Q), initial=0)
        off = np.abs(Q - mirrored)
        if np.any(off > EXACT * scale):
            worst = np.unravel_index(np.argmax(off), Q.shape)
            if off[worst] > rounding(Q) * scale:
                here, there = apart(Q[worst], mirrored[worst])
                raise ValueError(
                    f"Q is not symmetric: {here} at {tuple(map(int, worst))} against {there} in "
                    "the mirrored place; Q holds w_k.w_l / N, give both alike"
                )
            Q = (Q + mirrored) / 2
        Q.setflags(write=False)
        for name, array in (("Q", Q), ("R", R), ("v", v)):
            object.__setattr__(self, name, array)

    @classmethod
    def single(cls, Q: ArrayLike, R: ArrayLike, v: ArrayLike) -> Self:
        """Make the overlaps of one worker, P = 1; what does not fit is refused as by Overlaps.

        Parameters
        ----------
        Q : (K, K) array
            Student-student overlaps.
        R : (K, M) array
            Student-teacher overlaps.
        v : (K,) array
            Second layer.

        Returns
        -------
        Overlaps
            The state, with a worker axis of length one.

        Examples
        --------
        >>> x = gd.Overlaps.single(Q=0.25 * np.eye(2), R=np.zeros((2, 3)), v=np.ones(2))
        >>> print(x.Q.shape, x.R.shape)
        (1, 2, 1, 2) (1, 2, 3)
        """
        Q, R, v = (reals(a, name) for a, name in zip((Q, R, v), "QRv", strict=True))
        if v.ndim != 1 or R.ndim != 2 or R.shape[0] != v.size or Q.shape != 2 * v.shape:
            raise ValueError(
                f"one worker has Q (K, K), R (K, M) and v (K,): got shapes {Q.shape}, {R.shape} "
                f"and {v.shape}"
            )
        return cls(Q=Q[None, :, None, :], R=R[None], v=v[None])

    def overlaps(self, problem: Problem | None = None) -> Self:
        """Return the state itself."""
        return self


@labelled
@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of P workers and of their teacher.

    A leading axis counts runs: w[i] is run number i.

    Attributes
    ----------
    W : (..., P, K, N) array
        First layers of the workers. The chain holds the rows of R^N in the few coordinates in which
        they are not zero: the last axis of its W and W_star is then shorter than N.
    v : (..., P, K) array
        Second layers.
    W_star : (..., M, N) array
        First layer of the teacher, with the same leading axes.
    N : int
        Number of inputs, by which products of rows are divided to give overlaps; by default the
        length of the last axis.

    Raises
    ------
    ValueError
        If the shapes do not fit, if a tensor has another type, or if an argument is no array of
        finite real numbers.

    Notes
    -----
    Arrays are those of NumPy, float32 or float64 and read-only (whatever else is real becomes
    float64), or all three are torch tensors, float32 or float64, on one device.

    Examples
    --------
    >>> w = gd.Weights(W=np.ones((1, 2, 50)), v=np.ones((1, 2)), W_star=np.ones((3, 50)))
    >>> print(gd.overlaps(w).R[0])
    [[1. 1. 1.]
     [1. 1. 1.]]
    """

    W: np.ndarray
    v: np.ndarray
    W_star: np.ndarray
    N: int | None = None
    axes: ClassVar = {
        "W": ("worker", "student", "input"),
        "v": ("worker", "student"),
        "W_star": ("teacher", "input"),
    }

    def __post_init__(self):
        given = [getattr(self, name) for name in self.axes]
        if any(hasattr(a, "new_tensor") for a in given):
            _check_tensors(given)
        else:
            for name, a in zip(self.axes, given, strict=True):
                object.__setattr__(self, name, frozen(a, name, narrow=True))
        W, v, W_star = (tuple(a.shape) for a in (self.W, self.v, self.W_star))
        if len(W) < 3 or v != W[:-1] or W_star[:-2] + W_star[-1:] != W[:-3] + W[-1:]:
            raise ValueError(
                f"W (..., P, K, N), v (..., P, K) and W_star (..., M, N) disagree: got shapes "
                f"{W}, {v} and {W_star}"
            )
        if 0 in W + W_star:
            raise ValueError(
                f"workers, students, teacher units and inputs count from 1 up, got W of shape {W} "
                f"and W_star of shape {W_star}"
            )
        N = W[-1] if self.N is None else whole(self.N, "N, the number of inputs,", 1)
        object.__setattr__(self, "N", N)

    def overlaps(self, problem: Problem | None = None) -> Overlaps:
        """Compute the Overlaps of these weights, summed in float64, as overlaps(w) does."""
        if problem is not None:
            check_teacher(problem, self)
        W, v, W_star = (
            a.double() if hasattr(a, "double") else np.asarray(a, float)
            for a in (self.W, self.v, self.W_star)
        )
        *runs, P, K, n = W.shape
        rows = W.reshape(*runs, P * K, n)
        with np.errstate(over="ignore", invalid="ignore"):  # Overlaps refuses what is infinite
            Q = as_numpy(rows @ rows.swapaxes(-1, -2)).reshape(*runs, P, K, P, K) / self.N
            R = as_numpy(rows @ W_star.swapaxes(-1, -2)).reshape(*runs, P, K, -1) / self.N
        return Overlaps(Q=Q, R=R, v=as_numpy(v))


def _check_tensors(given):
    """Refuse W, v, W_star that torch cannot compute with as weights."""
    kinds = {type(a).__name__ if not hasattr(a, "new_tensor") else str(a.device) for a in given}
    if len(kinds) > 1:
        raise ValueError(
            f"W, v and W_star are torch tensors on one device, or none is, got {', '.join(kinds)}"
        )
    for name, a in zip(("W", "v", "W_star"), given, strict=True):
        if str(a.dtype) not in ("torch.float32", "torch.float64"):
            raise ValueError(
                f"{name} is a tensor of {a.dtype}, weights are float32 or float64: "
                f"give {name}.float() or {name}.double(), or choose what else it is to become"
            )
        if str(a.layout) != "torch.strided" or a.is_meta:
            raise ValueError(f"{name} is a tensor without its numbers side by side, got {a!r}")
        if not bool(a.isfinite().all()):
            raise ValueError(f"{name} holds NaN or infinity: {a}")


def overlaps(state: Any, problem: Problem | None = None) -> Overlaps:
    """Compute the overlaps of a state, summed in float64.

    Parameters
    ----------
    state : Weights
        Weights; leading axes pass through, and torch tensors on any device are read. Any other kind
        of state has overlaps too, and those of Overlaps are themselves.
    problem : Problem, optional
        If it is given, its teacher must be that of the weights.

    Returns
    -------
    Overlaps
        They do not hold the teacher's own overlaps T: Problem.from_weights(w, ...) does.

    Raises
    ------
    ValueError
        If the argument is no state, or if the teacher is not that of the problem.

    See Also
    --------
    lift : The way back, to weights in random directions.

    References
    ----------
    Chapter :doc:`teacher_student`, equation :eq:`eq-overlaps`.

    Examples
    --------
    >>> w = gd.Weights(W=2 * np.ones((1, 1, 10)), v=np.ones((1, 1)), W_star=np.ones((1, 10)))
    >>> x = gd.overlaps(w)
    >>> print(x.Q.item(), x.R.item())
    4.0 2.0
    """
    check_kind(state, "overlaps are taken of")
    if problem is not None:
        check_problem(problem)
    return state.overlaps(problem)


def field_covariance(T, x):
    """Covariance of each worker's fields, its K students' then the teacher's: (..., P, n, n).

    n = K + M. x: Overlaps, T (M, M). Equation :eq:`eq-covariance`.
    """
    *_, K, M = x.R.shape
    C = np.empty((*x.R.shape[:-2], K + M, K + M))
    C[..., :K, :K] = np.einsum("...pkpl->...pkl", x.Q)
    C[..., :K, K:] = x.R
    C[..., K:, :K] = np.swapaxes(x.R, -1, -2)
    C[..., K:, K:] = T
    return C


def gram(T, x):
    """All overlaps of the P K student rows and the M teacher rows: (..., P K + M, P K + M)."""
    *runs, P, K, M = x.R.shape
    T = np.broadcast_to(T, (*runs, M, M))
    R = x.R.reshape(*runs, P * K, M)
    return np.block([[x.Q.reshape(*runs, P * K, P * K), R], [np.swapaxes(R, -1, -2), T]])


def check_state(x):
    """Refuse what is no Overlaps."""
    if not isinstance(x, Overlaps):
        raise ValueError(
            f"expected gossipdyn.Overlaps, got {type(x).__name__}; gossipdyn.overlaps(w) makes "
            "them of Weights"
        )


def check_fit(problem, x):
    """Refuse what is no Problem or no Overlaps, or an x that does not fit the problem's teacher."""
    check_problem(problem)
    check_state(x)
    M = x.R.shape[-1]
    if M != problem.T.shape[0]:
        raise ValueError(
            f"R of shape {x.R.shape} speaks of {M} teacher units, the problem's T has shape "
            f"{problem.T.shape}: R is (..., P, K, M)"
        )


def check_teacher(problem, w):
    """Refuse Weights whose teacher rows do not have the problem's T, to the rounding of W*."""
    check_problem(problem)
    T = overlaps_of_teacher(w)
    if T.shape[-2:] != problem.T.shape:
        raise ValueError(
            f"W_star of shape {tuple(w.W_star.shape)} has {T.shape[-1]} teacher units, the "
            f"problem's T has shape {problem.T.shape}: W_star is (..., M, N)"
        )
    off = np.abs(T - problem.T)
    if np.any(off > (COARSE if w.W_star.dtype.itemsize < 8 else EXACT) * np.abs(T).max()):
        worst = np.unravel_index(np.argmax(off), T.shape)
        here, there = apart(T[worst], problem.T[worst[-2:]])
        raise ValueError(
            f"W_star has {here} at {tuple(map(int, worst))} of its overlaps W* W*^T / N, the "
            f"problem's T {there}: make the problem of the weights, Problem.from_weights(w, ...)"
        )


def check_overlaps(problem, x):
    """Refuse overlaps that no weights have, or that do not fit the problem's teacher."""
    check_fit(problem, x)
    _check_gram(gram(problem.T, x))


def _check_gram(G):
    within_range(G, "[[Q, R], [R.T, T]]")
    values = np.linalg.eigvalsh(G)
    if np.any(values[..., 0] < -EXACT * np.abs(values[..., -1])):
        raise ValueError(
            f"no weights have these overlaps: smallest eigenvalue of [[Q, R], [R.T, T]] is "
            f"{values[..., 0].min():.3g}, it must not be below 0"
        )


def cosines(
    problem: Problem, x: Overlaps
) -> tuple[Annotated[np.ndarray, "... P K P K"], Annotated[np.ndarray, "... P K M"]]:
    """Compute the cosines behind Q and R: overlaps with the lengths divided out.

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    x : Overlaps
        State; leading axes pass through.

    Returns
    -------
    student : (..., P, K, P, K) array
        Cosines between the rows of students.
    teacher : (..., P, K, M) array
        Cosines between the rows of students and of the teacher. A row of zeros has cosine 0 with
        everything.

    References
    ----------
    Chapter :doc:`teacher_student`, equation :eq:`eq-cosines`.
    """
    check_fit(problem, x)
    student = np.sqrt(np.einsum("...pkpk->...pk", x.Q))
    teacher = np.sqrt(np.diagonal(problem.T))

    def divide(a, norms):
        return np.divide(a, norms, out=np.zeros_like(a), where=norms > 0)

    QQ = student[..., :, :, None, None] * student[..., None, None, :, :]
    return divide(x.Q, QQ), divide(x.R, student[..., None] * teacher)


def _mirrored(Q):
    """Q with the places of its two rows exchanged: (..., q, l, p, k)."""
    return np.moveaxis(Q, (-4, -3), (-2, -1))
