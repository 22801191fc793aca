"""What a round of gossip did, or would do, to what the workers have learnt.

diagnose() looks at one round, setbacks() at all rounds of a Trajectory. Chapter :doc:`diagnosis`
shows why a rise of Q_ij alone is no sign of harm: it is small when units are many, it misses
flipped signs and copies, and with correlated teachers it comes without loss. The measures are
derived in the book.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from html import escape
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from ..checks import one_given, whole
from ..equations import mean_risk, risk
from ..gossip.matched import TIE, relative_order, signs_are_free
from ..gossip.mix import mix
from ..problem import Problem
from ..states import Overlaps, Weights, cosines, overlaps

DIFFERENCE = 1e-9  # what is smaller than this is rounding and no difference
SAME = "same features"
SCATTER = 0.1  # of their squared norm is lost by two units of cosine 0.8: noise of one solution
NEAR_ZERO = 0.2  # mutual cosines below share no feature
ALIGNED = 0.5  # mean alignment with a teacher unit above is specialised
ALIKE = 0.8  # units of one worker with larger cosines have not separated


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What one round of gossip does, as returned by diagnose().

    The states may have a leading axis of runs.

    Attributes
    ----------
    cosine_rise : (..., P) array
        Rise of the mean cosine between the units of one worker, equation :eq:`eq-cosine-rise`.
    noise_floor : (..., P) array
        What a cosine between two random rows reaches by chance: two standard deviations,
        2 / sqrt(N), and 0 without N. It is also called ``cosine_floor``, because the function
        gossipdyn.noise_floor() is another thing: a floor of the risk.
    trace_loss : (...) array
        Fall of tr Q^pp, mean over workers. If A keeps the mean of the workers, this is the fall of
        the consensus distance, equation :eq:`eq-trace-loss`.
    alignment_before, alignment_after : (..., P) array
        Mean over units of max_m ``|cos R_im|``, equation :eq:`eq-alignment`; nan without a problem.
    matched_ratio : (...) array
        Squared distance between workers after their units are put in the same order, divided by
        that before, equation :eq:`eq-matched-ratio`. It is near 0 for the same features in another
        order, and near 1 for different features, for units in order already, and for unspecialised
        ones. It is 1 for equal workers.
    risk_before, risk_after : (..., P) array
        Generalisation errors; nan without a problem.
    mean_risk_after : (...) array
        Generalisation error of the network of the mean weights; nan without a problem.
    harmful : bool or (runs,) array of bool
        With a problem: whether the alignment falls by more than the floor, mean over the workers
        whose weights the round changes. Without: whether some unit loses more of its squared norm
        than the floor and the scatter around one solution (0.1) explain.
    verdict : str
        The result in words; for runs that differ, how many runs each verdict has.
    """

    cosine_rise: np.ndarray
    noise_floor: np.ndarray
    trace_loss: np.ndarray
    alignment_before: np.ndarray
    alignment_after: np.ndarray
    matched_ratio: np.ndarray
    risk_before: np.ndarray
    risk_after: np.ndarray
    mean_risk_after: np.ndarray
    harmful: bool | np.ndarray
    verdict: str

    @property
    def cosine_floor(self) -> Annotated[np.ndarray, "... P"]:
        """The field noise_floor under a name that cannot be taken for a floor of the risk."""
        return self.noise_floor

    def _rows(self):
        """The rows of the table: a name, and a value for each worker or one for all of them."""
        for f in fields(self)[:-2]:
            value = getattr(self, f.name)
            per_worker = f.name not in ("trace_loss", "matched_ratio", "mean_risk_after")
            value = value.reshape(-1, value.shape[-1] if per_worker else 1).mean(0)
            yield f.name.replace("_", " "), [f"{x:.4g}" for x in value]

    def __str__(self):
        P, runs = self.cosine_rise.shape[-1], self.trace_loss.size
        title = f"means of {runs} runs" if runs > 1 else ""
        head = f"{title:17}" + "".join(f"{f'worker {p}':>12}" for p in range(P))
        rows = [f"{name:17}" + "".join(f"{x:>12}" for x in row) for name, row in self._rows()]
        return "\n".join([self.verdict, head, *rows])

    def _repr_html_(self):
        P, runs = self.cosine_rise.shape[-1], self.trace_loss.size
        title = f"means of {runs} runs" if runs > 1 else ""
        head = "".join(f"<th>worker {p}</th>" for p in range(P))
        body = "".join(
            f"<tr><th>{name}</th>"
            + "".join(f'<td colspan="{P // len(row)}">{x}</td>' for x in row)
            + "</tr>"
            for name, row in self._rows()
        )
        return (
            f"<table><caption>{escape(self.verdict)}</caption>"
            f"<tr><th>{title}</th>{head}</tr>{body}</table>"
        )

    def __eq__(self, other):
        return isinstance(other, Diagnosis) and all(
            np.array_equal(a, b, equal_nan=f.name not in ("harmful", "verdict"))
            for f in fields(self)
            for a, b in [(getattr(self, f.name), getattr(other, f.name))]
        )


def diagnose(
    x: Overlaps | Weights,
    A: ArrayLike | Callable | None = None,
    after: Overlaps | Weights | None = None,
    problem: Problem | None = None,
    N: int | None = None,
) -> Diagnosis:
    """Predict what a round of gossip does to a state, or tell what it did.

    Exactly one of A and after is given.

    Parameters
    ----------
    x : Overlaps or Weights
        State before the round; leading axes of runs pass through.
    A : (P, P) array or callable, optional
        The round to predict: a mixing matrix, or a callable on states such as matched(A).
    after : Overlaps or Weights, optional
        The state after a round that was made.
    problem : Problem, optional
        For risks and alignments. If its activation is odd, signs are compared too.
    N : int, optional
        Input dimension, for the floor of a chance cosine; by default that of x if x is Weights.

    Returns
    -------
    Diagnosis
        Print it, or show it in a notebook.

    Raises
    ------
    ValueError
        Unless exactly one of A and after is given; if the two states have different shapes, if the
        teacher of the Weights does not have the T of the problem, or if mix() or risk() refuses an
        argument.

    See Also
    --------
    setbacks : The cost of all rounds of a Trajectory.
    matched : A round that first puts units in the same order.

    References
    ----------
    Chapter :doc:`diagnosis`.

    Examples
    --------
    Two perfect workers in opposite orders have a poor mean:

    >>> problem = gd.Problem(gd.erf, v_star=np.ones(2), T=np.eye(2))
    >>> x = gd.perfect(problem, orders=[(0, 1), (1, 0)])
    >>> result = gd.diagnose(x, A=gd.complete(2), problem=problem)
    >>> print(result.verdict)
    units in different order; the round loses alignment
    >>> result.harmful
    True
    """
    one_given(A, after, "diagnose needs either A, the round to predict, or after, the state after")
    given, x = x, overlaps(x, problem)
    floor = _floor(getattr(given, "N", None) if N is None else N)
    after = overlaps(after, problem) if A is None else mix(A, x)
    if after.R.shape != x.R.shape:
        raise ValueError(
            f"diagnose compares each worker before and after: R has shape {x.R.shape} before, "
            f"{after.R.shape} after"
        )
    changed = _changed(x, after)
    before_and_after = _own_cosine(x), _own_cosine(after)
    size, size_after = (np.einsum("...pkpk->...pk", state.Q) for state in (x, after))
    alignments = risks = 2 * [np.full(x.v.shape[:-1], np.nan)]
    mean_risk_after = np.full(x.v.shape[:-2], np.nan)
    if problem is None:
        mask = changed[..., None]
        lost = _ratio(_sum(size - size_after, mask, -2), _sum(size, mask, -2))
        harmful = lost.max(-1) > max(floor, SCATTER)
    else:
        risks = [risk(problem, s) for s in (x, after)]
        *alignments, harmful = _alignment_lost(problem, x, after, changed, floor)
        mean_risk_after = mean_risk(problem, after)
    ratio, causes = _compare_workers(problem, x, changed, alignments[0])
    return Diagnosis(
        cosine_rise=before_and_after[1] - before_and_after[0],
        noise_floor=np.full(x.v.shape[:-1], floor),
        trace_loss=(size - size_after).sum(-1).mean(-1),
        alignment_before=alignments[0],
        alignment_after=alignments[1],
        matched_ratio=ratio,
        risk_before=risks[0],
        risk_after=risks[1],
        mean_risk_after=mean_risk_after,
        harmful=harmful if harmful.ndim else bool(harmful),
        verdict=_verdict(causes, harmful, "norm" if problem is None else "alignment"),
    )


def _alignment_lost(problem, x, after, changed, floor):
    """Alignments before and after (..., P), and whether the round did harm (...): the definition.

    The alignment falls by more than the floor, mean over the workers that the round changes.
    """
    before, behind = (np.abs(cosines(problem, s)[1]).max(-1).mean(-1) for s in (x, after))
    fall = _sum(before - behind, changed, -1)
    return before, behind, fall > (floor + DIFFERENCE) * changed.sum(-1)


def _floor(N):
    """What a cosine of random rows reaches: two standard deviations, 0 without N."""
    if N is None:
        return 0.0
    return 2 / np.sqrt(whole(N, "N, the input dimension,", 1))


def _own_cosine(x):
    """Mean cosine between different units of one worker: (..., P), 0 for a single unit."""
    own = np.einsum("...pkpl->...pkl", _cosines(x))
    K = own.shape[-1]
    return _sum(own, ~np.eye(K, dtype=bool), (-2, -1)) / max(K * (K - 1), 1)


def _cosines(x):
    norm = np.sqrt(np.einsum("...pkpk->...pk", x.Q))
    return _ratio(x.Q, norm[..., None, None] * norm[..., None, None, :, :])


def _changed(x, after):
    """Which workers a round changes: (..., P); all of them where it changes none."""
    own = np.abs(np.einsum("...pkpl->...pkl", after.Q - x.Q)) > 1e-12 * np.abs(x.Q).max()
    teacher = np.abs(after.R - x.R) > 1e-12 * np.abs(x.R).max()
    changed = own.any((-2, -1)) | teacher.any((-2, -1))
    return np.where(changed.any(-1, keepdims=True), changed, True)


def _compare_workers(problem, x, changed, alignment):
    """The matched ratio (...), and in words how the workers differ (...).

    Pairs of workers count where the round changes both, or else where it changes one.
    """
    P, K = x.v.shape[-2:]
    either = np.triu(changed[..., :, None] | changed[..., None, :], 1)
    both = np.triu(changed[..., :, None] & changed[..., None, :], 1)
    pairs = np.where(both.any((-2, -1), keepdims=True), both, either)

    size = np.einsum("...pkpk->...pk", x.Q)
    sizes = _sum(size[..., :, None, :] + size[..., None, :, :], pairs[..., None], (-3, -2))
    product = _sum(np.einsum("...pkqk->...pqk", x.Q), pairs[..., None], (-3, -2))
    total = sizes.sum(-1)
    everyone = np.ones((P, P), dtype=bool)
    free = signs_are_free(problem)
    best = relative_order(x, free, 0, everyone) * x.Q
    matched, mutual = (
        _sum(np.einsum("...pkql->...pq", likeness), pairs, (-2, -1))
        for likeness in (best, np.abs(best))
    )
    distance, least = total - 2 * product.sum(-1), total - 2 * matched
    apart = distance > DIFFERENCE * total
    ratio = np.where(apart, _ratio(least, np.where(apart, distance, 1)), 1.0)

    # what matched gossip would do, and what it would do if v were trained
    order = relative_order(x, free, TIE, everyone)
    turned = relative_order(x, problem is not None and problem.activation.odd, TIE, everyone)
    moved = ((np.einsum("...pkqk->...pq", np.abs(order)) < K) & pairs).any((-2, -1))
    flipped = ((turned < 0).any((-3, -1)) & pairs).any((-2, -1))
    stranger = (2 * _ratio(mutual, total) < NEAR_ZERO) & pairs.any((-2, -1))
    aligned = _ratio(_sum(alignment, changed, -1), changed.sum(-1)) > ALIGNED
    own = np.einsum("...pkpl->...pkl", _cosines(x))
    cause = {
        "different features, which matching cannot help": stranger & aligned,
        "not specialised yet: mutual cosine near 0": stranger,
        "units in different order and signs differ": moved & flipped,
        "units in different order": moved,
        "signs differ": flipped,
        "some features differ": pairs.any((-2, -1))
        & ((2 * _ratio(product, sizes)).min(-1) < 1 - 2 * SCATTER),
        "not specialised yet: the units of a worker are alike": (K > 1)
        & (own.min((-3, -2, -1)) > ALIKE),
    }
    return ratio, np.select(list(cause.values()), list(cause), SAME)


def _verdict(causes, harmful, quantity):
    verdicts = Counter()
    for cause, harm in zip(causes.ravel(), harmful.ravel(), strict=True):
        effect = f"the round loses {'' if harm else 'no '}{quantity}"
        safe = cause == SAME and not harm
        verdicts[f"{SAME}: averaging is safe" if safe else f"{cause}; {effect}"] += 1
    if len(verdicts) == 1:
        return str(*verdicts)
    return " | ".join(f"{n} of {causes.size} runs: {v}" for v, n in verdicts.most_common())


def _sum(array, mask, axes):
    return np.sum(array, axis=axes, where=mask)


def _ratio(a, b):
    """a / b, and 0 where b is 0."""
    a, b = np.broadcast_arrays(np.asarray(a, dtype=float), b)
    return np.divide(a, b, out=np.zeros(a.shape), where=b != 0)
