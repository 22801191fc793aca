"""Divergence: when the risk of a run has become too large, and which bound the run broke."""

import numpy as np

from ..equations import unchecked_risk
from ..labels import as_numpy

LARGEST_RISK = 1e6  # beyond it a run has diverged


class Diverged(ValueError):
    """The risk of a run has become too large.

    Attributes
    ----------
    trajectory : Trajectory or None
        What was computed before.
    """

    trajectory = None


def check_size(problem, state, alpha, N):
    """Raise Diverged when the weights of a state have become so large that overlaps overflow."""
    for name, axes in state.axes.items():
        if "worker" in axes and "input" in axes:
            array = getattr(state, name)
            if not float(abs(array).max()) < 1e18:  # NaN passes through max
                array = as_numpy(array)
                worst = tuple(np.argwhere(~(np.abs(array).max((-1, -2)) < 1e18))[0])
                reason = _reason(problem, N, as_numpy(state.v)[worst])
                raise Diverged(f"the weights passed 1e18 before alpha={alpha:.6g}: {reason}")


def watch(problem, x, alpha, N=None, first=0):
    """Raise Diverged when a risk in the Overlaps x passed LARGEST_RISK, or is no number.

    first : number of the first run in x.
    """
    risks = unchecked_risk(problem, x)
    if not np.all(risks < LARGEST_RISK):
        refuse_risks(problem, risks, x, alpha, N, first)


def refuse_risks(problem, risks, x, alpha, N=None, first=0):
    """Raise Diverged for the risks (runs, P) of the Overlaps x, one of which is out of bounds."""
    run, worker = np.argwhere(~(risks < LARGEST_RISK))[0]
    raise Diverged(
        f"the risk passed 1e6 at alpha={alpha:.6g} (run {first + run}, worker {worker}: "
        f"{risks[run, worker]:.3g}): {_reason(problem, N, x.v[run, worker])}"
    )


def _reason(problem, N, v):
    """Why a worker with second layer v diverged: the bound that is broken, if one is known.

    A step multiplies weights by 1 - eta weight_decay / N before it learns. For linear units with
    v fixed, the error d = sum_k v_k w_k - sum_m v*_m w*_m is multiplied by
    1 - eta (weight_decay + s x x^T) / N, s = |v|^2, averaged over a batch of x: its mean square
    grows above the eta of `bound`.
    """
    B, decay = problem.batch, problem.weight_decay
    where = "as N grows without bound" if N is None else f"at N={N}"
    for name in ("eta", "eta_v"):
        rate = getattr(problem, name)
        if N is not None and rate * decay > 2 * N:
            return (
                f"weight_decay={decay:.6g} with {name}={rate:.6g} multiplies weights by "
                f"{1 - rate * decay / N:.6g} in every step {where}; it is stable below "
                f"weight_decay = 2 N / {name} = {2 * N / rate:.6g}"
            )
    used = f"with eta={problem.eta:.6g} and batch={B}"
    if problem.activation.name == "linear" and not problem.eta_v and np.any(v):
        s = float(v @ v)
        spread = s**2 / B if N is None else ((decay + s) ** 2 + s**2 * (N + 1) / B) / N
        bound = 2 * (decay + s) / spread
        if problem.eta >= bound:
            return (
                f"a linear unit {used} is unstable (stable below {bound:.6g} {where}, "
                f"where the squares of its v sum to {s:.6g})"
            )
    if problem.eta_v:
        used += f" and eta_v={problem.eta_v:.6g}"
    return (
        f"no bound is known that it breaks {used}; try smaller rates, a larger batch, and smaller "
        "weights at the start"
    )
