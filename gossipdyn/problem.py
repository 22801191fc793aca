"""The problem: everything that never changes while a student learns."""

from dataclasses import dataclass, fields

import numpy as np

from .gaussian import ROUNDING, Activation
from .refusals import number


@dataclass(frozen=True, eq=False)
class Problem:
    """A teacher and the rule by which students learn from it.

    The student computes phi(x) = sum_k v_k g(w_k.x / sqrt N), the label is
    y = sum_m v*_m g(w*_m.x / sqrt N) + sigma zeta with zeta ~ N(0, 1), the loss is (phi - y)^2 / 2,
    inputs have independent N(0, 1) components. One step on `batch` fresh samples is

        w_k -= (eta / sqrt N) v_k mean[g'(lambda_k) (phi - y) x] + (eta / N) weight_decay w_k
        v_k -= (eta_v / N) mean[g(lambda_k) (phi - y)] + (eta_v / N) weight_decay v_k

    Attributes
    ----------
    activation : Activation, such as gossipdyn.erf.
    v_star : (M,) second layer of the teacher.
    T : (M, M) overlaps of the teacher's rows, W* W*^T / N.
    eta : learning rate of the first layer, above 0 (nn.MSELoss has no factor 1/2: its lr is eta/2).
    eta_v : learning rate of the second layer; 0 keeps v fixed.
    sigma : standard deviation of the label noise (not its variance).
    batch : fresh samples per step and worker.
    weight_decay : rate of decay, see the two lines above.

    Raises ValueError for anything else. Chapter `teacher_student`, equation :eq:`eq-sgd`;
    Saad & Solla (1995), Goldt et al. (2019).
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
        if not isinstance(self.activation, Activation):
            raise ValueError(
                f"activation is a gossipdyn.Activation such as gossipdyn.erf, "
                f"got {self.activation!r}"
            )
        v_star, T = (_frozen_array(getattr(self, name), name) for name in ("v_star", "T"))
        if v_star.ndim != 1 or v_star.size == 0:
            raise ValueError(
                f"v_star has shape (M,), one weight a teacher unit, got {v_star.shape}"
            )
        if T.shape != 2 * v_star.shape:
            raise ValueError(
                f"v_star of shape {v_star.shape} needs T of shape {2 * v_star.shape}, got {T.shape}"
            )
        if not np.all(np.abs(T - T.T) <= 1e-9 * np.abs(T).max()):
            m, n = np.unravel_index(np.argmax(np.abs(T - T.T)), T.shape)
            raise ValueError(
                f"T is not symmetric: {T[m, n]:.6g} at ({m}, {n}) against {T[n, m]:.6g} at "
                f"({n}, {m}); T holds w*_m.w*_n / N, give both alike"
            )
        eigenvalues = np.linalg.eigvalsh(T)
        if eigenvalues[0] < -ROUNDING * abs(eigenvalues[-1]):
            raise ValueError(
                f"no teacher has these overlaps: the smallest eigenvalue of T is "
                f"{eigenvalues[0]:.3g}, it must not be below 0"
            )
        object.__setattr__(self, "v_star", v_star)
        object.__setattr__(self, "T", T)
        for name in ("eta", "eta_v", "sigma", "weight_decay"):
            object.__setattr__(self, name, _rate(getattr(self, name), name))
        if self.eta == 0:
            raise ValueError("eta is 0, then nothing is learnt: use a learning rate above 0")
        batch = _rate(self.batch, "batch")
        if batch < 1 or batch != int(batch):
            raise ValueError(f"batch counts samples, a whole number from 1 up, got {self.batch!r}")
        object.__setattr__(self, "batch", int(batch))

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


def _frozen_array(a, name):
    try:
        if np.iscomplexobj(a):
            raise TypeError("complex numbers")
        a = np.array(a, dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array of real numbers, got {a!r}") from error
    if not np.all(np.isfinite(a)):
        raise ValueError(f"{name} holds NaN or infinity: {a}")
    a.setflags(write=False)
    return a


def _rate(x, name):
    return number(x, name, 0)
