"""Equal units stay equal: the one rule for units of a worker that are alike to the last bit.

Two units with the same weights and the same second-layer weight get the same change in every step
and every round, so in exact arithmetic they stay equal for ever. Rounding parts them, and what it
parts an unstable plateau drives apart: ReLU leaves the equal state like the solution (t / 2)^2 of
x' = sqrt(x) leaves 0. So whoever computes equal units finds, before it computes, the first unit
that each one equals, and gives all of them what that one got. (Where equal rows pass through the
same operations in the same order, as in gossip, in the chain's reflections and in lift, they come
out equal without help. A matrix product is none of these: it rounds according to the place.)
"""

import numpy as np


def first_by_overlaps(Q, R, v):
    """The first unit of the same worker that each unit equals, by overlaps: (..., P, K) ints.

    Q (..., P, K, P, K), R (..., P, K, M), v (..., P, K).
    """
    equal = equal_rows(np.einsum("...pkpl->...pkl", Q))
    equal &= (R[..., :, None, :] == R[..., None, :, :]).all(-1)
    equal &= v[..., :, None] == v[..., None, :]
    return equal.argmax(-1)


def equal_rows(G):
    """Which rows are the same, from their products G (..., n, n): G_ii = G_ij = G_jj."""
    norms = np.diagonal(G, axis1=-2, axis2=-1)
    return (norms[..., :, None] == G) & (norms[..., None, :] == G)


def first_by_weights(W, v):
    """The first unit that each of the units W (L, K, N), v (L, K) equals: (L, K), of tensors.

    None where no two units of any learner are equal.
    """
    alike = (v[:, :, None] == v[:, None]) & (W[:, :, None, 0] == W[:, None, :, 0])
    if alike.sum() == v.numel():
        return None
    return (alike & (W[:, :, None] == W[:, None]).all(-1)).byte().argmax(-1)
