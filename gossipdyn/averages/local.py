"""Local averages: what one worker's fields say about how it moves.

Everything that the theory asks of an activation stands in this one function of a worker's own
overlaps. The flow, its fixed points, the fluctuations and the risk call it; another kind of problem
brings a function of its own (see Problem.local).
"""

from typing import NamedTuple

import numpy as np


class Local(NamedTuple):
    """Averages over the fields of each worker; those that were not wanted are None.

    U (..., K, K), V (..., K, M): the mean change of rows per unit of alpha, U W + V W*, without
    weight decay. noise (..., K, K): the growth of a worker's own Q by the scatter of single
    samples. dv (..., K): the mean change of v, without weight decay. risk (...): generalisation
    error.
    """

    U: np.ndarray | None = None
    V: np.ndarray | None = None
    noise: np.ndarray | None = None
    dv: np.ndarray | None = None
    risk: np.ndarray | None = None


def local_averages(problem, C, v, rates, want):
    """The Local averages of regression on a teacher, for workers with the overlaps C.

    C : (..., n, n), n = K + M, overlaps of a worker's K rows and of the teacher's M rows: the
        covariance of their fields. v : (..., K). rates : (eta, eta_v). want : names of Local.

    The error is a sum over fields, phi - teacher = sum_a c_a g_a with c = (v, -v*). By Stein's
    lemma -eta v_k <g'(lambda_k) e x> is a sum of rows: row a with weight c_a <g'_k g'_a>, and row
    k with weight sum_a c_a <g''_k g_a>. Equations :eq:`eq-drift`, :eq:`eq-noise`, :eq:`eq-risk`.
    """
    f, K = problem.activation, v.shape[-1]
    eta, eta_v = rates
    c = np.empty(C.shape[:-1])
    c[..., :K], c[..., K:] = v, -problem.v_star
    variance = C.diagonal(axis1=-2, axis2=-1)
    pair = variance[..., :K, None], C[..., :K, :], variance[..., None, :]
    found = {}
    if "U" in want or "V" in want:
        j2, h2 = f.slopes(*pair) if f.slopes else (f.j2(*pair), f.h2(*pair))
        G = j2 * c[..., None, :]
        own = np.einsum("...kk->...k", G[..., :K])  # a view of the diagonal
        own += (h2 @ c[..., None])[..., 0]
        G *= -eta * v[..., None]
        found |= {"U": G[..., :K], "V": G[..., K:]}
    if "noise" in want:
        scatter = f.square(C, K, c)
        if problem.sigma:
            among = variance[..., :K, None], C[..., :K, :K], variance[..., None, :K]
            scatter = scatter + problem.sigma**2 * f.j2(*among)
        found["noise"] = eta**2 / problem.batch * v[..., :, None] * v[..., None, :] * scatter
    if "dv" in want:
        found["dv"] = -eta_v * (f.i2(*pair) @ c[..., None])[..., 0]
    if "risk" in want:
        every = variance[..., :, None], C, variance[..., None, :]
        found["risk"] = np.einsum("...a,...ab,...b->...", c, f.i2(*every), c) / 2
    return Local(**found)
