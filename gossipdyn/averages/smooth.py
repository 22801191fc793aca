"""Activations made of functions: smooth(g, dg), and two that ship ready, tanh and softplus."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from ..checks import apart, function, whole
from . import quadrature
from .activation import Activation, Given

TRIED = np.linspace(-5.97, 6.03, 241)  # where g, dg and oddness are tried; 0 is not among them
SLOPE = 1e-6  # largest deviation of dg from the slope of g, as a part of the largest slope


@dataclass(frozen=True)
class OnCPU:
    """The torch twin of a NumPy function: the function itself, on a copy in the main memory."""

    function: Callable

    def __call__(self, x):
        return x.new_tensor(self.function(x.cpu().numpy()))


def smooth(g, dg, name=None, nodes=32, torch_g=None, torch_dg=None):
    """The Activation of any smooth function g, with its averages by quadrature.

    Parameters
    ----------
    g, dg : the function and its slope, on NumPy arrays of any shape.
    name : what to call it, g's own name unless given; it is kept as "smooth(<name>)".
    nodes : of the quadrature in each direction, an even number, for fields of small variance;
        finer grids take over as the variance grows. Averages over two fields hold to 1e-9 of
        <g^2> (of <g'^2> for slopes), those over four to 1e-5 of <g'^2 g^2>, at every correlation
        and up to the variance that the refusal names: with 32 nodes 284 for tanh, 800 where two
        fields are enough. The time of the noise term grows as nodes^3, with the number of pairs of
        students, and at variances above 1 with up to the fourth power of the fields' deviation.
    torch_g, torch_dg : the same functions on torch tensors, for sgd, which compares them with g
        and dg. Unless given, sgd calls g and dg themselves, on copies in the main memory.

    Trajectories store the name alone: Trajectory.load(path, activation=...) takes the activation,
    made again. To pickle one (checkpoints, sweeps over processes), g and dg must be defined at the
    top level of a module. Raises ValueError for a dg that is not the slope of g (naming the point
    where they disagree), for functions that do not map arrays to arrays of finite numbers, and for
    a g too sharp or too steep for the nodes at variance 1. Averages raise ValueError for variances
    beyond what the finest grid resolves. Chapter `gaussian_averages`, :eq:`eq-mehler`; derived in
    the book.
    """
    function(g, "g"), function(dg, "dg")
    nodes = whole(nodes, "nodes", 2, even=True)
    if (torch_g is None) != (torch_dg is None):
        raise ValueError("give both torch_g and torch_dg, or neither")
    name = f"smooth({getattr(g, '__name__', 'g') if name is None else name})"
    _check_slope(g, dg, name)
    twins = (OnCPU(g), OnCPU(dg)) if torch_g is None else (torch_g, torch_dg)
    return _smooth(name, g, dg, *twins, nodes)


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
