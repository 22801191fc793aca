"""One look for every figure of the book, and the plots that its chapters share."""

import warnings
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler

from . import book
from .problem import Problem
from .runs.trajectory import Trajectory

# The colours of Okabe and Ito can be told apart by every kind of colour vision; each also has a
# line style of its own.
BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#000000", "#767676"
CYCLE = cycler(
    color=[BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK],
    linestyle=["-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1))],
)
STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.prop_cycle": CYCLE,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "errorbar.capsize": 2,
    "figure.constrained_layout.use": True,
    "figure.dpi": 144,
    "figure.figsize": (7.2, 3.6),
    "font.size": 11,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "mathtext.fontset": "cm",
}


def style() -> None:
    """Draw all figures of this session like those of the book."""
    mpl.rcParams.update(STYLE)


def risk_curves(ax: Any, runs: dict[str, Trajectory], worker: int | None = None) -> None:
    """Plot generalisation errors against alpha.

    A flow is drawn as a line. A finite engine is drawn as points, the mean over its runs, with
    error bars of two standard errors if there are several runs. If the trajectories belong to
    different Problems, the labels also name what differs.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Where to draw.
    runs : dict
        Label and Trajectory of each curve.
    worker : int, optional
        Number of the worker whose risk is drawn; by default the risk of the workers' mean.
    """
    name, pick = ("mean_risk", ()) if worker is None else ("risk", (worker,))
    named = differences([t.problem for t in runs.values()])
    for (label, t), difference in zip(runs.items(), named, strict=True):
        label = f"{label} ({difference})" if difference else label
        mean = t.mean(name)[:, *pick]
        if t.engine["name"] == "flow":
            ax.plot(t.alpha, mean, label=label)
        else:
            bars = 2 * t.sem(name)[:, *pick] if len(getattr(t, name)) > 1 else None
            every = -(-len(mean) // 30)
            ax.errorbar(
                t.alpha, mean, bars, fmt="o", markevery=every, errorevery=every, label=label
            )
    ax.set_xlabel(r"time $\alpha$ = steps / $N$")
    ax.set_ylabel(r"generalisation error $\varepsilon_g$")
    ax.legend()


def differences(problems: Sequence[Problem]) -> list[str]:
    """For each Problem, write in words the fields in which the problems are not all alike."""

    def value(problem, name):
        x = getattr(problem, name)
        return x.name if name == "activation" else np.array2string(np.asarray(x), separator=", ")

    names = [f.name for f in fields(problems[0])] if problems else []
    differing = [name for name in names if len({value(p, name) for p in problems}) > 1]
    return [", ".join(f"{name}={value(p, name)}" for name in differing) for p in problems]


def three_engines() -> Any:
    """Draw the three engines and the arrows between their states, as in the head of the package."""
    fig, ax = plt.subplots(figsize=(7.6, 4.4))
    ax.set(xlim=(0, 10), ylim=(0.5, 5.9))
    ax.axis("off")
    columns, rows = [3.5, 6.1, 8.9], [5.2, 3.2, 1.2]
    floors = [
        ("gd.sgd", "weights, finite $N$", "$W$", "SGD step", BLUE),
        ("gd.chain", "overlaps, finite $N$", "$Q,\\,R$", "chain step", ORANGE),
        ("gd.flow", r"overlaps, $N \to \infty$", "$Q,\\,R$", "flow", GREEN),
    ]
    code = {"family": "monospace", "va": "center"}

    def arrow(start, end, **options):
        look = {"arrowstyle": "-|>", "mutation_scale": 14, "lw": 1.4, "color": "#333333"}
        ax.annotate("", end, start, arrowprops=look | options)

    for y, (engine, what, state, step, colour) in zip(rows, floors, strict=True):
        ax.text(0, y + 0.25, engine, weight="bold", size=12, **code)
        ax.text(0, y - 0.25, what, va="center", size=10)
        box = {"boxstyle": "round,pad=0.5", "ec": colour, "fc": colour + "28", "lw": 1.6}
        for x, primes in zip(columns, ("", "'", "''"), strict=True):
            label = state.replace("W", f"W{primes}")
            label = label.replace("Q", f"Q{primes}").replace("R", f"R{primes}")
            ax.text(x, y, label, ha="center", va="center", size=13, bbox=box)
        arrow((columns[0] + 0.75, y), (columns[1] - 0.8, y))
        arrow((columns[1] + 0.8, y), (columns[2] - 0.9, y), color=VERMILLION)
        ax.text(4.78, y + 0.3, step, ha="center", va="center", size=10)
        ax.text(7.45, y + 0.3, "mix(A)", ha="center", size=10, color="#A84600", **code)
    for x in columns:
        arrow((x, 4.75), (x, 3.65))
        arrow((x, 2.75), (x, 1.65), linestyle="--")
    ax.text(3.35, 4.2, "overlaps()", ha="right", size=10, **code)
    ax.text(3.35, 2.2, r"$N \to \infty$", ha="right", va="center", size=11)
    ax.text(4.8, 4.2, "equal in law", ha="center", va="center", size=10, style="italic")
    ax.text(4.8, 2.2, "equal in the limit", ha="center", va="center", size=10, style="italic")
    ax.text(7.5, 4.2, "equal, exactly", ha="center", va="center", size=10, style="italic")
    ax.text(7.5, 2.2, "equal, exactly", ha="center", va="center", size=10, style="italic")
    return fig


def __getattr__(name):
    """table and in_repository, which have moved to gossipdyn.book."""
    if name not in ("table", "in_repository"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"figures.{name} has moved: use gossipdyn.book.{name}", DeprecationWarning, 2)
    return getattr(book, name)
