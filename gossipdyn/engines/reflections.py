"""Reflections: rows turned into fewer coordinates, with the same inner products."""

import numpy as np

from ..starts import MARGIN

INDEPENDENT = 2.9e-7  # squared remainder of a row, in units of the longest, that makes it clear
TINY = 4 * np.finfo(float).tiny  # a row whose square lies below is zero, its inverse no number


def reduced(rows, n=None):
    """Rows (rows, c, runs) turned so that the first n of them fill n coordinates; n: all of them.

    A Householder sweep over rows, which need not be independent. No choice in it hangs on
    rounding: a sign is decided with a margin, and runs in which a row adds little to those before
    it, so that its direction is not known well, are swept again by pivoted(). Every reflection
    acts on every row by the same arithmetic, so that equal rows stay equal to the last bit.
    """
    n = len(rows) if n is None else n
    given, rows = rows, rows.copy()
    least = INDEPENDENT * np.einsum("jcr,jcr->jr", rows[:n], rows[:n]).max(0)
    clear = np.ones(least.shape, dtype=bool)
    for i in range(n):
        u = rows[i, i:].copy()
        square = np.einsum("cr,cr->r", u, u)
        clear &= square >= least
        _reflect(rows[:, i:], u, square)
    if not clear.all():
        rows[..., ~clear] = pivoted(given[..., ~clear], [n])
    return rows


def pivoted(rows, groups):
    """What reduced() does, at any rank: the first groups[0] rows fill as many coordinates.

    So do the first groups[1], and so on; rows behind the last group are turned along. Within a
    group comes next the first row whose squared remainder is at least MARGIN of the largest one.
    """
    rows = rows.copy()
    done = np.zeros((groups[-1], rows.shape[-1]), dtype=bool)
    for i in range(groups[-1]):
        part = rows[: next(end for end in groups if i < end), i:]
        rest = np.where(done[: len(part)], -1, np.einsum("jcr,jcr->jr", part, part))
        pivot = (rest >= MARGIN * rest.max(0)).argmax(0)[None]
        u = np.take_along_axis(part, pivot[None], 0)[0]
        _reflect(rows[:, i:], u, np.take_along_axis(rest, pivot, 0)[0])
        np.put_along_axis(done, pivot, True, 0)
    return rows


def _reflect(rows, u, square):
    """Turn u (c, runs), whose square is given, into the first of the coordinates of all rows."""
    length = np.sqrt(square)
    u[0] += np.where(u[0] > -MARGIN * length, length, -length)
    half = length * np.abs(u[0])  # half the square of the new u
    inverse = np.divide(1, half, out=np.zeros_like(half), where=half > TINY)
    along = np.einsum("cr,jcr->jr", u, rows)
    along *= inverse
    rows -= along[:, None] * u
