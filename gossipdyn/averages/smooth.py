"""Activations made of functions: smooth(g, dg), and two that ship ready, tanh and softplus."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from ..checks import apart, function, whole
from . import quadrature
from .activation import Activation, Given

TRIED = np.linspace(-5.97, 6.03, 241)  # where g, dg and oddness are tried; 0 is not among them
SLOPE = 1e-6  # largest error of dg that is accepted, as a part of the largest slope


@dataclass(frozen=True)
class OnCPU:
    """The torch twin of a NumPy function: the function itself, on a copy in the main memory."""

    function: Callable

    def __call__(self, x):
        return x.new_tensor(self.function(x.cpu().numpy()))


def smooth(
    g: Callable,
    dg: Callable,
    name: str | None = None,
    nodes: int = 32,
    torch_g: Callable | None = None,
    torch_dg: Callable | None = None,
) -> Activation:
    """Make an activation of any smooth function g, with its averages by quadrature.

    Parameters
    ----------
    g, dg : callable
        The function and its slope, on NumPy arrays of any shape.
    name : str, optional
        What to call the activation; by default g's own name. It is kept as "smooth(<name>)".
    nodes : int, optional
        Nodes of the quadrature in each direction, an even number, for fields of small variance.
        Finer grids take over as the variance grows. The time of the noise term grows as nodes^3,
        with the number of pairs of students, and at variances above 1 with up to the fourth power
        of the standard deviation of the fields.
    torch_g, torch_dg : callable, optional
        The same functions on torch tensors, for ``sgd``, which compares them with g and dg.
        Unless they are given, ``sgd`` calls g and dg themselves, on copies in the main memory.

    Returns
    -------
    Activation

    Raises
    ------
    ValueError
        If dg is not the slope of g (the message names the point where they disagree), if the
        functions do not map arrays to arrays of finite numbers, or if g is too sharp or too steep
        for the nodes at variance 1. The averages themselves raise ValueError for variances that
        the finest grid does not resolve.

    Notes
    -----
    Averages over two fields hold to 1e-9 of ``<g^2>`` (of ``<g'^2>`` for slopes), those over four
    fields to 1e-5 of ``<g'^2 g^2>``. They do so at every correlation, up to the variance that the
    refusal names: with 32 nodes this is 284 for tanh, and 800 where two fields are enough.

    A trajectory stores the name alone. To read one, make the activation again and give it:
    ``Trajectory.load(path, activation=...)``. To pickle an activation (for checkpoints, and for
    sweeps over processes), define g and dg at the top level of a module.

    References
    ----------
    Chapter :doc:`gaussian_averages`, equation :eq:`eq-mehler`; derived in the book.

    Examples
    --------
    The average of g(a) g(b) for g = sin and fields of variance 1 and correlation 1/2:

    >>> sine = gd.smooth(np.sin, np.cos)
    >>> print(f"{sine.I2([[1.0, 0.5], [0.5, 1.0]]):.6f}, {np.exp(-1) * np.sinh(0.5):.6f}")
    0.191700, 0.191700
    """
    function(g, "g"), function(dg, "dg")
    nodes = whole(nodes, "nodes", 2, even=True)
    if (torch_g is None) != (torch_dg is None):
        raise ValueError("give both torch_g and torch_dg, or neither")
    name = f"smooth({getattr(g, '__name__', 'g') if name is None else name})"
    _check_slope(g, dg, name)
    if torch_g is None:
        torch_g, torch_dg = OnCPU(g), OnCPU(dg)
    return _smooth(name, g, dg, torch_g, torch_dg, nodes)


def _smooth(name, g, dg, torch_g, torch_dg, nodes=32):
    values = g(TRIED)
    odd = bool(np.allclose(g(-TRIED), -values, rtol=0, atol=1e-12 * np.abs(values).max()))
    rule = quadrature.rule(g, dg, name, nodes)
    if not rule.four.largest >= 1 <= rule.two.largest:
        raise ValueError(
            f"{name} is too sharp or too steep for nodes={nodes}: its averages hold to "
            f"{rule.four.tolerance:g} up to a variance of {rule.four.largest**2:.2g}, not to 1; "
            "give more nodes, or a smoother g"
        )
    return Activation(
        name=name,
        g=g,
        dg=dg,
        torch_g=torch_g,
        torch_dg=torch_dg,
        odd=odd,
        i2=Given(quadrature.i2, (rule,)),
        j2=Given(quadrature.j2, (rule,)),
        h2=Given(quadrature.h2, (rule,)),
        i4=Given(quadrature.i4, (rule,)),
        square=Given(quadrature.square, (rule, odd)),
    )


def _check_slope(g, dg, name):
    for label, f in (("g", g), ("dg", dg)):
        with np.errstate(all="ignore"):
            values = f(TRIED[None])
        if np.shape(values) != (1, TRIED.size):
            raise ValueError(
                f"{label} of {name} maps an array of shape (1, {TRIED.size}) to one of shape "
                f"{np.shape(values)}: write it for arrays, entry by entry"
            )
        if not np.all(np.isfinite(values)):
            at = np.argmin(np.isfinite(values[0]))
            raise ValueError(f"{label} of {name} is {values[0, at]} at x={TRIED[at]:.6g}")
    far, near, back, far_back = (g(TRIED + 1e-4 * k) for k in (2, 1, -1, -2))
    slope = (8 * (near - back) - (far - far_back)) / 12e-4
    off = np.abs(dg(TRIED) - slope)
    if not off.max() <= SLOPE * np.abs(slope).max():
        at = np.argmax(off)
        given, right = apart(dg(TRIED)[at], slope[at], 6)
        raise ValueError(
            f"dg is not the slope of g in {name}: at x={TRIED[at]:.6g} dg is {given}, the slope of "
            f"g {right}"
        )


def _tanh_dg(x):
    t = np.tanh(x)
    return 1 - t * t


def _tanh_torch_g(x):
    return x.tanh()


def _tanh_torch_dg(x):
    t = x.tanh()
    return 1 - t * t


tanh = _smooth("tanh", np.tanh, _tanh_dg, _tanh_torch_g, _tanh_torch_dg)


def _softplus_g(x):
    return np.logaddexp(0, x)


def _softplus_torch_g(x):
    return x.clamp(min=0) + (-x.abs()).exp().log1p()


def _softplus_torch_dg(x):
    return x.sigmoid()


softplus = _smooth("softplus", _softplus_g, expit, _softplus_torch_g, _softplus_torch_dg)
