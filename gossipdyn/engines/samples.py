"""Where the samples of sgd come from: inputs and clean labels, made of normal numbers.

A problem whose inputs or labels are not those of a teacher on independent normal components says so
by a method samples(w) that returns a Samples; streams, blocks and noise of sgd stay as they are.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Samples(NamedTuple):
    """How samples are made of independent standard normal numbers.

    size : how many numbers a sample takes.
    rows : (runs, rows, N) tensor of further rows, whose fields w.x the labels are made of.
    inputs : draws (L, n, size) -> inputs (L, n, N).
    labels : (draws, fields (L, rows, n)) -> clean labels (L, 1, n).
    """

    size: int
    rows: object
    inputs: Callable
    labels: Callable


def samples_of(problem, w):
    """The Samples of a problem, for the tensors of the Weights w (runs, ...)."""
    return problem.samples(w) or teacher_on_normal_inputs(problem, w)


def teacher_on_normal_inputs(problem, w):
    """Inputs of independent N(0, 1) components, labelled by the teacher: equation :eq:`eq-sgd`."""
    v_star = w.W.new_tensor(np.array(problem.v_star))[:, None]
    scale = w.N**-0.5

    def labels(_, fields):
        return (v_star * problem.activation.torch_g(fields * scale)).sum(1, keepdim=True)

    return Samples(w.N, w.W_star, lambda draws: draws, labels)
