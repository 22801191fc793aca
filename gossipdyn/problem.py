"""The problem: everything that never changes while a student learns."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np

from .averages.activation import Activation
from .averages.local import Local, local_averages
from .checks import (
    EXACT,
    frozen,
    instance,
    number,
    reals,
    semidefinite,
    symmetric,
    through_constructor,
    whole,
)  # fmt: skip


class Rates(NamedTuple):
    """Learning rates of the two layers at one time."""

    eta: float
    eta_v: float


@dataclass(frozen=True, eq=False)
class Problem:
    """A teacher and the rule by which students learn from it.

    The student computes phi(x) = sum_k v_k g(w_k.x / sqrt N). The label is
    y = ``sum_m v*_m g(w*_m.x / sqrt N)`` + sigma zeta with zeta ~ N(0, 1), the loss is
    (phi - y)^2 / 2, and inputs x have independent N(0, 1) components. One step on ``batch`` fresh
    samples is::

        w_k -= (eta / sqrt N) v_k mean[g'(lambda_k) (phi - y) x] + (eta / N) weight_decay w_k
        v_k -= (eta_v / N) mean[g(lambda_k) (phi - y)] + (eta_v / N) weight_decay v_k

    Attributes
    ----------
    activation : Activation
        The activation function g, such as ``gossipdyn.erf``.
    v_star : (M,) array
        Second layer of the teacher.
    T : (M, M) array
        Overlaps ``W* W*^T / N`` of the teacher's rows.
    eta : float
        Learning rate of the first layer; 0 keeps W fixed. The loss nn.MSELoss of torch has no
        factor 1/2, so its learning rate is eta / 2.
    eta_v : float
        Learning rate of the second layer; 0 keeps v fixed. One of the two rates is above 0.
    sigma : float
        Standard deviation (not the variance) of the label noise.
    batch : int
        Fresh samples per step and worker.
    weight_decay : float
        Rate of decay, as in the two lines above.

    Raises
    ------
    ValueError
        If an argument is none of these; booleans and masked entries are no numbers here.

    Notes
    -----
    Arrays become float64 and read-only. If the two triangles of a float32 T differ by its rounding
    (1e-6 of the largest entry), their mean is taken.

    References
    ----------
    Chapter :doc:`teacher_student`, equation :eq:`eq-sgd`; Saad and Solla (1995), Goldt et al.
    (2019).

    Examples
    --------
    A teacher with two orthogonal units, and students that learn with the rate 0.5:

    >>> problem = gd.Problem(gd.erf, v_star=np.ones(2), T=np.eye(2), eta=0.5)
    >>> problem.M
    2
    """

    activation: Activation
    v_star: np.ndarray
    T: np.ndarray
    eta: float = 0.5
    eta_v: float = 0.0
    sigma: float = 0.0
    batch: int = 1
    weight_decay: float = 0.0

    def __post_init__(self):
        instance(self.activation, Activation, "a gossipdyn.Activation such as gossipdyn.erf")
        v_star, T = frozen(self.v_star, "v_star"), reals(self.T, "T")
        if v_star.ndim != 1 or v_star.size == 0:
            raise ValueError(f"v_star has shape (M,), a weight per unit, got {v_star.shape}")
        if T.shape != 2 * v_star.shape:
            need = 2 * v_star.shape
            raise ValueError(f"v_star {v_star.shape} needs T of shape {need}, got {T.shape}")
        T = symmetric(T, "T")
        T.setflags(write=False)
        semidefinite(T, "no teacher has the overlaps T")
        object.__setattr__(self, "v_star", v_star)
        object.__setattr__(self, "T", T)
        for name in ("eta", "eta_v", "sigma", "weight_decay"):
            object.__setattr__(self, name, number(getattr(self, name), name, 0))
        if self.eta == self.eta_v == 0:
            raise ValueError("eta is 0 and eta_v is 0, so nothing is learnt: give one above 0")
        batch = number(self.batch, "batch, the number of samples,", 1)
        batch = int(batch) if batch == int(batch) else self.batch  # 4.0 counts, 2.5 does not
        object.__setattr__(self, "batch", whole(batch, "batch, the number of samples,", 1))

    @classmethod
    def from_weights(cls, w: Any, activation: Activation, **others: Any) -> Self:
        """Make the problem whose teacher has the first layer of given weights.

        The overlaps T = ``W* W*^T / N`` are summed in float64.

        Parameters
        ----------
        w : Weights
            Weights, of which ``W_star`` is used.
        activation : Activation
            The activation function.
        **others
            The field ``v_star`` and, where they are not to be the defaults, ``eta``, ``eta_v``,
            ``sigma``, ``batch`` and ``weight_decay``.

        Returns
        -------
        Problem

        Raises
        ------
        ValueError
            If w is no Weights, if its runs have different teachers, or if Problem refuses a field.
        """
        if not hasattr(w, "W_star"):
            raise ValueError(f"from_weights takes gossipdyn.Weights, got {type(w).__name__}")
        unknown = [name for name in others if name not in {f.name for f in fields(cls)} - {"T"}]
        if unknown or "v_star" not in others:
            raise ValueError(
                "from_weights needs v_star, and takes the other fields of a Problem but T, got "
                f"{', '.join(others) or 'none'}"
            )
        T = overlaps_of_teacher(w)
        first = T.reshape(-1, *T.shape[-2:])[0]
        far = np.abs(T - first).max((-2, -1)) > EXACT * np.abs(T).max()
        if far.any():
            run = tuple(map(int, np.argwhere(far)[0]))
            raise ValueError(
                f"the runs have different teachers, a Problem has one T: run "
                f"{', '.join(map(str, run))} has\n{T[run]}\nthe first run\n{first}"
            )
        return cls(activation=activation, T=first, **others)

    def rates(self, alpha: float) -> Rates:
        """Return the learning rates at a time, for which all engines ask.

        A class that gives other rates at other times is a schedule; breaks() says where they jump
        or bend.

        Parameters
        ----------
        alpha : float
            The time.

        Returns
        -------
        Rates
            The pair (eta, eta_v).
        """
        return Rates(self.eta, self.eta_v)

    def breaks(self, start: float, end: float) -> Sequence[float]:
        """Return the times at which rates() is not smooth.

        Parameters
        ----------
        start, end : float
            The times between which they lie, strictly.

        Returns
        -------
        sequence of float
            The times, ascending; there are none unless a class changes the rates.
        """
        return ()

    def local(
        self, C: np.ndarray, v: np.ndarray, rates: Rates, want: Sequence[str] = Local._fields
    ) -> Local:
        """Compute the local averages of workers: all that equations know of this kind of problem.

        Parameters
        ----------
        C : (..., K + M, K + M) array
            Overlaps of each worker's rows and the teacher's.
        v : (..., K) array
            Second layers.
        rates : Rates
            The learning rates, as rates() gives them.
        want : sequence of str, optional
            Names of the averages that are needed; by default all.

        Returns
        -------
        Local
            The averages; those that were not wanted are None.
        """
        return local_averages(self, C, v, rates, want)

    def samples(self, w: Any) -> Any:
        """Return how sgd makes its samples, or None for the usual ones.

        The inputs of the usual samples have N(0, 1) components, and the teacher labels them. A
        problem with other samples returns how they are made, see engines/samples.py.

        Parameters
        ----------
        w : Weights
            Weights (runs, ...) of tensors.

        Returns
        -------
        Samples or None
            None here.
        """
        return None

    @property
    def trains_v(self):
        """Whether the second layers learn."""
        return self.eta_v > 0

    @property
    def M(self):
        """Number of teacher units."""
        return self.v_star.size

    def __eq__(self, other):
        return isinstance(other, Problem) and all(
            np.array_equal(getattr(self, f.name), getattr(other, f.name))
            if f.name in ("v_star", "T")
            else getattr(self, f.name) == getattr(other, f.name)
            for f in fields(self)
        )

    __reduce__ = through_constructor


def overlaps_of_teacher(w):
    """W* W*^T / N of Weights, summed in float64: (..., M, M)."""
    W_star = reals(w.W_star, "W_star")
    return W_star @ W_star.swapaxes(-1, -2) / w.N


def check_learns(problem, what):
    """Refuse what is no Problem, or one in which the first layers stay as they are."""
    check_problem(problem)
    if problem.eta == 0:
        raise ValueError(f"with eta=0 the first layers do not learn: {what} needs eta above 0")


def check_problem(problem):
    """Refuse what is no Problem."""
    instance(problem, Problem, "a gossipdyn.Problem")
