"""Steps of SGD in torch, a block of them at once.

Weights move along samples only, so the fields of a step follow from those at the start of the block
and from the Gram matrix of its samples: for batch 1

    lambda_k(t) = (W x_t)_k / sqrt N - (eta / N) sum_{s < t} v_k g'(lambda_k(s)) e(s) (x_s.x_t)

One matrix product gives all fields, one the Gram matrix, and one more writes the block into W. The
small recursion between them is solved by sweeps over the whole block: being strictly triangular,
it has step j right after j sweeps, and the sweeps stop when one changes not a single bit. So the
result is that of the plain loop, up to rounding. Derived in the book, chapter
:doc:`theory_meets_simulation`, equation :eq:`eq-block`.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from ..problem import Problem
from .samples import samples_of

KEPT = 64  # rules of blocks, about


def steps(problem, w, X, zeta, now=0.0):
    """The weights after the steps that given samples and label noise make.

    w : Weights of tensors, W (..., P, K, N). X : (..., P, steps, batch, N) samples, zeta :
    (..., P, steps, batch) label noise in units of sigma. now : alpha before the first step, for a
    problem whose rates change. Returns Weights. A pure function; it is what the engine does with
    the samples that it draws. Equation :eq:`eq-sgd`.
    """
    *lead, P, K, N = w.W.shape
    length, B = zeta.shape[-2:]
    _, _, inputs, labels = samples_of(problem, w)
    W_star = w.W_star.unsqueeze(-3).expand(*lead, P, -1, N)
    rows = torch.cat([w.W, W_star], -2).reshape(-1, K + W_star.shape[-2], N)
    draws = X.reshape(-1, length * B, N)
    v = block_of_steps(
        _rule(problem, N, _rates(problem, now, N, length), w.W),
        rows,
        w.v.reshape(-1, K),
        inputs(draws),
        zeta.reshape(-1, length * B),
        partial(labels, draws),
    )
    return replace(w, W=rows[:, :K].reshape(w.W.shape), v=v.reshape(w.v.shape))


class Rule(NamedTuple):
    """The numbers of a block: decay of the start, effect on later fields, effect at the end.

    rates : the learning rates (eta, eta_v) of each of its steps. kept : the parts of W and of v at
    its start that are left at its end.
    """

    problem: Problem
    N: int
    rates: np.ndarray
    kept: tuple
    decay: torch.Tensor
    reach: torch.Tensor
    push: torch.Tensor
    decay_v: torch.Tensor
    reach_v: torch.Tensor
    push_v: torch.Tensor


def _rates(problem, now, N, steps):
    """The learning rates (steps, 2) of the steps from alpha = now on."""
    if type(problem).rates is Problem.rates:  # the same at all times
        return np.full((steps, 2), problem.rates(now))
    return np.array([problem.rates(now + s / N) for s in range(steps)])


def _rule(problem, N, rates, like):
    """The Rule of a block of steps with these rates, its tensors on the device of `like`."""
    step = np.repeat(np.arange(len(rates)), problem.batch)  # of each sample
    later = step > step[:, None]  # than the other sample's step

    def layer(eta, length):
        kept = 1 - eta * problem.weight_decay / N
        # of what step s adds, between[s, t] is left before step t, left[s] after the last step
        after = np.where(np.tri(len(eta), dtype=bool), 1.0, kept).cumprod(1)
        between, left = np.roll(after, 1, 1), after[:, -1]
        decay = np.append(1.0, kept.cumprod()[:-1])[step] / length
        rate = -eta[step] / (problem.batch * N)
        reach = np.where(later, rate[:, None] * between[np.ix_(step, step)], 0)
        push = rate * length * left[step]
        return [like.new_tensor(a) for a in (decay, reach, push)], kept.prod()

    (own, kept), (own_v, kept_v) = layer(rates[:, 0], N**0.5), layer(rates[:, 1], 1)
    return Rule(problem, N, rates, (kept, kept_v), *own, *own_v)


def rules_of(problem, N, start, pieces, like, made):
    """The Rule of each of the pieces (first, end) of blocks of steps; `made` keeps some of them."""
    rules = []
    if len(made) > KEPT:  # where rates change all the time, no block is like another
        made.clear()
    for first, end in pieces:
        rates = _rates(problem, start + first / N, N, end - first)
        key = rates.tobytes()
        if key not in made:
            made[key] = _rule(problem, N, rates, like)
        rules.append(made[key])
    return rules


def block_of_steps(rule, rows, v, X, zeta, labels):
    """Make the steps of n samples X (L, n, N), with label noise zeta (L, n), for L learners.

    rows : (L, K + M, N) student rows, which are updated in place, above those that labels are made
    of. v : (L, K). labels : fields w.x (L, M, n) of these rows -> clean labels (L, 1, n). Returns
    the new v.
    """
    problem, n, K = rule.problem, X.shape[1], v.shape[1]
    length = n // problem.batch
    g, dg = problem.activation.torch_g, problem.activation.torch_dg
    # for one sample torch would take another product, which rounds in another way
    fields = torch.bmm(rows, X.mT) if n > 1 else (rows * X).sum(-1, keepdim=True)
    clean = labels(fields[:, K:])
    label = clean + problem.sigma * zeta[:, None]
    lam = lam_0 = fields[:, :K] * rule.decay
    V = V_0 = v[:, :, None] * rule.decay_v if problem.trains_v else v[:, :, None]
    if length > 1:
        kick = torch.bmm(X, X.mT).mul_(rule.reach)
    for _ in range(length):
        g_lam = g(lam)
        e = (V * g_lam).sum(1, keepdim=True) - label
        a = dg(lam) * V * e
        if length == 1:
            break
        before = lam, V
        lam = torch.baddbmm(lam_0, a, kick)
        if problem.trains_v:
            V = V_0 + (g_lam * e) @ rule.reach_v
        if torch.equal(lam, before[0]) and (not problem.trains_v or torch.equal(V, before[1])):
            break
    else:
        # Every step is right now, unless guesses at late ones overflowed: 0 * inf spoils them all.
        if not torch.isfinite(lam).all():
            parts = (a.split(problem.batch, i) for a, i in ((X, 1), (zeta, 1), (clean, 2)))
            for rates, x, z, y in zip(rule.rates, *parts, strict=True):
                one = _rule(problem, rule.N, rates[None], rows)
                v = block_of_steps(one, rows, v, x, z, lambda _, y=y: y)
            return v
    kept, kept_v = rule.kept
    rows[:, :K].baddbmm_(a * rule.push, X, beta=kept)
    return v * kept_v + (g_lam * e) @ rule.push_v if problem.trains_v else v
