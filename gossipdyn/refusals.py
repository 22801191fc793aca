"""The refusals that modules of all floors share."""

from numbers import Real

import numpy as np


def whole(n, name, least=0):
    """n as an int, or a ValueError: it counts `name`, from `least` up."""
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < least:
        raise ValueError(f"{name} is a whole number from {least} up, got {n!r}")
    return int(n)


def number(x, name, least=-np.inf):
    """x as a float, or a ValueError: it is `name`, finite, from `least` up."""
    if isinstance(x, bool) or not isinstance(x, Real) or not least <= x < np.inf:
        range_ = "" if least == -np.inf else f" from {least:g} up"
        raise ValueError(f"{name} is a finite number{range_}, got {x!r}")
    return float(x)


def flag(x, name):
    """x as a bool, or a ValueError: it answers `name`."""
    if not isinstance(x, bool | np.bool_):
        raise ValueError(f"{name} is True or False, got {x!r}")
    return bool(x)


def check_problem(problem):
    """Refuse what is no Problem. (By its name: the class stands on a higher floor.)"""
    if type(problem).__name__ != "Problem":
        raise ValueError(f"expected a gossipdyn.Problem, got {problem!r}")
