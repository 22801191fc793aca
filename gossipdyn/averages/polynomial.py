"""The activations linear, g(x) = x, and quadratic, g(x) = x^2.

Their averages are polynomials in the covariances, by the theorem of Isserlis.
"""

import numpy as np

from .activation import Activation


def _linear_g(x):
    return x


def _linear_dg(x):
    return x * 0 + 1


def _linear_i2(caa, cab, cbb):
    return cab + 0 * (caa + cbb)


def _linear_j2(caa, cab, cbb):
    return 1 + 0 * (caa + cab + cbb)


def _linear_h2(caa, cab, cbb):
    return 0 * (caa + cab + cbb)


def _linear_i4(C):
    return C[..., 2, 3]


def _linear_square(C, K, c):
    error = np.einsum("...a,...ab,...b->...", c, C, c)
    return error[..., None, None] * np.ones((K, K))


linear = Activation(
    name="linear",
    g=_linear_g,
    dg=_linear_dg,
    torch_g=_linear_g,
    torch_dg=_linear_dg,
    odd=True,
    i2=_linear_i2,
    j2=_linear_j2,
    h2=_linear_h2,
    i4=_linear_i4,
    square=_linear_square,
)


def _quadratic_g(x):
    return x * x


def _quadratic_dg(x):
    return 2 * x


def _quadratic_i2(caa, cab, cbb):
    return caa * cbb + 2 * cab * cab


def _quadratic_j2(caa, cab, cbb):
    return 4 * cab + 0 * (caa + cbb)


def _quadratic_h2(caa, cab, cbb):
    return 2 * cbb + 0 * (caa + cab)


def _quadratic_i4(C):
    def c(p, q):
        return C[..., p, q]

    return 4 * (
        c(0, 1) * (c(2, 2) * c(3, 3) + 2 * c(2, 3) ** 2)
        + 2 * c(0, 2) * c(1, 2) * c(3, 3)
        + 2 * c(0, 3) * c(1, 3) * c(2, 2)
        + 4 * c(2, 3) * (c(0, 2) * c(1, 3) + c(0, 3) * c(1, 2))
    )


def _quadratic_square(C, K, c):
    """With D = diag(c) and e = x.D x: 4 <x_i x_j e^2>, from traces and powers of C D."""
    once = C @ (c[..., :, None] * C)
    twice = once @ (c[..., :, None] * C)
    mean = np.einsum("...a,...aa->...", c, C)[..., None, None]
    square = mean**2 + 2 * np.einsum("...a,...aa->...", c, once)[..., None, None]
    return 4 * (C * square + 4 * mean * once + 8 * twice)[..., :K, :K]


quadratic = Activation(
    name="quadratic",
    g=_quadratic_g,
    dg=_quadratic_dg,
    torch_g=_quadratic_g,
    torch_dg=_quadratic_dg,
    odd=False,
    i2=_quadratic_i2,
    j2=_quadratic_j2,
    h2=_quadratic_h2,
    i4=_quadratic_i4,
    square=_quadratic_square,
)
