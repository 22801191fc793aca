"""The checks that modules of all floors share: of numbers, arrays and mixing matrices."""

import reprlib
from dataclasses import fields
from numbers import Real
from typing import Any

import numpy as np

EXACT, COARSE = 1e-9, 1e-6  # what counts as rounding in float64, and in float32
LARGEST = 1e100  # averages are made of products of up to three overlaps


def whole(n: Any, name: str, least: float = 0, most: float = np.inf, even: bool = False) -> int:
    """n as an int, or a ValueError: it counts `name`, from `least` up to `most`."""
    is_whole = isinstance(n, int | np.integer) and not isinstance(n, bool)
    if not is_whole or not least <= n <= most or (even and n % 2):
        kind, end = "an even" if even else "a whole", f" to {most}" if most < np.inf else " up"
        raise ValueError(f"{name} is {kind} number from {least}{end}, got {n!r}")
    return int(n)


def number(
    x: Any,
    name: str,
    least: float = -np.inf,
    most: float = np.inf,
    above: float = -np.inf,
    below: float = np.inf,
) -> float:
    """x as a float, or a ValueError: it is `name`, finite, and within the bounds that are given.

    least, most : bounds that it may reach. above, below : bounds that it may not.
    """
    try:
        value = float(x) if isinstance(x, Real) and not isinstance(x, bool) else np.nan
    except OverflowError:  # a whole number beyond float64
        value = np.inf
    if not (least <= value <= most and above < value < below):
        raise ValueError(f"{name} is a finite number{_range(least, most, above, below)}, got {x!r}")
    return value


def _range(least, most, above=-np.inf, below=np.inf):
    """The bounds of a number in words."""
    if least > -np.inf:
        return f" from {least:g} to {most:g}" if most < np.inf else f" from {least:g} up"
    bounds = {"above": above, "up to": most, "below": below}
    return " and".join(
        f" {word} {bound:g}" for word, bound in bounds.items() if abs(bound) < np.inf
    )


def one_of(x, names, what):
    """x, or a ValueError: it is `what`, one of the strings `names`."""
    if not isinstance(x, str) or x not in names:
        raise ValueError(f"{what} is one of {', '.join(names)}, got {x!r}")
    return x


def pair(x, name, parts):
    """The two parts of x, or a ValueError: `name` is a pair, such as "(period, A)"."""
    try:
        first, second = x
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is a pair {parts}, got {x!r}") from error
    return first, second


def instance(x, kind, name):
    """x, or a ValueError: it is an instance of the class `kind`, which is told as `name`."""
    if not isinstance(x, kind):
        own = f"{type(x).__module__}.{type(x).__qualname__}"
        raise ValueError(f"expected {name}, got {reprlib.repr(x)} of the class {own}")
    return x


def one_given(a, b, needs):
    """Refuse both of two arguments, or neither: `needs` says what needs either which or which."""
    if (a is None) == (b is None):
        raise ValueError(f"{needs}: got {'neither' if a is None else 'both'}")


def function(f, name):
    """f, or a ValueError: `name` can be called."""
    if not callable(f):
        raise ValueError(f"{name} is a function, got {f!r}")
    return f


def flag(x: Any, name: str) -> bool:
    """x as a bool, or a ValueError: it answers `name`."""
    if not isinstance(x, bool | np.bool_):
        raise ValueError(f"{name} is True or False, got {x!r}")
    return bool(x)


def orders(a: Any, K: int) -> np.ndarray:
    """a as an int array (..., K), or a ValueError: every row is a permutation of 0 .. K-1."""
    try:
        a = np.asarray(a)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"orders of one length, {K}, are needed, got {a!r}") from error
    permuted = a.dtype.kind in "iu" and a.shape[-1:] == (K,)
    if not permuted or np.any(np.sort(a, axis=-1) != np.arange(K)):
        raise ValueError(f"an order is a permutation of 0 .. {K - 1}, got {a.tolist()}")
    return a


def reals(
    a: Any, name: str, narrow: bool = False, least: float = -np.inf, most: float = np.inf
) -> np.ndarray:
    """a as a new float64 array, or a ValueError: `name` is an array of finite real numbers.

    Integers and floats of every width and byte order, from NumPy, pandas, lists, or torch tensors
    on any device (read without their graph). narrow : whether float32 stays float32. least, most :
    bounds of every number.
    """
    if is_masked(a):
        raise ValueError(
            f"{name} has masked entries, which are no numbers: fill them or leave them out, got {a}"
        )
    try:
        given = _given(a)
        kind = np.float32 if narrow and given.dtype.newbyteorder("=") == np.float32 else float
        with np.errstate(over="ignore"):  # a longdouble beyond float64 is told as infinity
            numbers = np.array(given, dtype=kind, order="C", subok=False)
    except Exception as error:  # each foreign array's own conversion raises its own
        reason = str(error).split("\n")[0]
        raise ValueError(f"{name} must be an array of real numbers, got {a!r}: {reason}") from error
    if not np.all(np.isfinite(numbers)):
        raise ValueError(f"{name} holds NaN or infinity: {numbers}")
    if np.any((numbers < least) | (numbers > most)):
        raise ValueError(f"{name} holds numbers{_range(least, most)} alone, got {numbers}")
    return numbers


def frozen(a: Any, name: str, narrow: bool = False) -> np.ndarray:
    """The array of reals(), read-only, for records."""
    numbers = reals(a, name, narrow)
    numbers.setflags(write=False)
    return numbers


def is_masked(a):
    """Whether a, or what a list holds, has entries that a mask hides."""
    if isinstance(a, list | tuple):
        return any(map(is_masked, a))
    return bool(np.ma.is_masked(a))


def _given(a):
    """a as an array of whatever real numbers it holds, or a TypeError."""
    if hasattr(a, "new_tensor"):
        a = a.detach().cpu()
        a = (a.double() if a.is_floating_point() else a).numpy()
    a = np.asarray(a)
    if a.dtype == object and not all(isinstance(x, Real) and type(x) is not bool for x in a.flat):
        raise TypeError("some entries are no numbers")
    if a.dtype.kind not in "iufO":
        raise TypeError(f"its entries are of the type {a.dtype}")
    return a


def within_range(a, name):
    """Refuse an array `name` of overlaps whose products leave float64."""
    size = np.abs(a).max(initial=0)
    if size > LARGEST:
        raise ValueError(
            f"{name} goes up to {size:.3g}: averages multiply such numbers, and beyond "
            f"{LARGEST:g} the products leave float64; measure weights in another unit"
        )


def symmetric(a, name, axes=1):
    """a (..., rows, rows), the mean of its triangles where these differ by float32's rounding.

    axes : how many axes of a number its rows. Raises ValueError for triangles that differ by more.
    """
    lead = a.ndim - 2 * axes
    matrix = tuple(range(lead, a.ndim))
    mirrored = a.transpose(*range(lead), *matrix[axes:], *matrix[:axes])
    off, scale = np.abs(a - mirrored), np.abs(a).max(matrix, keepdims=True)
    if not np.any(off > EXACT * scale):
        return a
    if np.any(off > rounding(a) * scale):
        place = tuple(map(int, np.unravel_index(np.argmax(off), a.shape)))
        here, there = apart(a[place], mirrored[place])
        opposite = place[:lead] + place[lead + axes :] + place[lead : lead + axes]
        raise ValueError(
            f"{name} is not symmetric: {here} at {place} against {there} at {opposite}; give both "
            "alike"
        )
    return (a + mirrored) / 2


def semidefinite(a, what):
    """Refuse a symmetric a (..., n, n) of which an eigenvalue is below 0, but for rounding."""
    values = np.linalg.eigvalsh(a)
    if np.any(values[..., 0] < -EXACT * np.abs(values[..., -1])):
        least = values[..., 0].min()
        raise ValueError(f"{what}: its smallest eigenvalue is {least:.3g}, it must not be below 0")


def rounding(a):
    """What counts as rounding in the float64 array `a`: more where all entries are float32's."""
    return COARSE if np.array_equal(a, as_float32(a)) else EXACT


def as_float32(a):
    """A number or an array rounded to float32, infinite beyond its range."""
    with np.errstate(over="ignore"):
        return np.asarray(a, dtype=np.float32)


def apart(a, b, least=5):
    """Two numbers as text, in the fewest digits, `least` or more, that tell them apart."""
    for digits in range(least, 18):
        texts = f"{a:.{digits}g}", f"{b:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return texts


def through_constructor(record):
    """__reduce__ of a dataclass: its copies and pickles are made, and checked, by its class."""
    return type(record), tuple(getattr(record, f.name) for f in fields(record))


def check_mixing(A: Any, workers: int | None = None, square: str | None = None) -> np.ndarray:
    """A as a float64 array, or a ValueError that says what is wrong with it.

    Rows sum to 1 up to 1e-9, or, where all entries are float32 numbers, up to 1e-6; A is returned
    as it is. square : what needs as many receivers as senders, if something does.
    """
    A = reals(A, "A")
    if A.ndim != 2 or 0 in A.shape:
        raise ValueError(f"A is a matrix A[receiver, sender], got shape {A.shape}")
    if workers is not None and A.shape[1] != workers:
        raise ValueError(
            f"A of shape {A.shape} takes {A.shape[1]} workers, the state has {workers}"
        )
    if square is not None and A.shape[0] != A.shape[1]:
        raise ValueError(
            f"{square} needs a square A (P, P), got shape {A.shape}: gossipdyn.mix takes any"
        )
    if np.any(A < 0):
        i, j = np.argwhere(A < 0)[0]
        raise ValueError(
            f"A[{i}, {j}] = {A[i, j]:.4g}: gossip needs weighted averages, no entry below 0"
        )
    off = np.abs(A.sum(1) - 1)
    if np.any(off > EXACT) and np.any(off > rounding(A)):
        row = int(np.argmax(off > rounding(A)))
        raise ValueError(
            f"row {row} of A sums to {apart(A[row].sum(), 1)[0]}: gossip needs weighted averages, "
            "rows that sum to 1"
        )
    return A
