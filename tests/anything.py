"""A random problem, random overlaps that fit it, and arrays of every kind.

What holds for these holds for anything.
"""

import numpy as np
import pandas
import scipy.sparse

import gossipdyn as gd

try:
    import torch
except ImportError:
    torch = None


def weights(P, K, M, N=None, seed=0, runs=()):
    """Random Weights of P workers with correlated units and random second layers."""
    rng = np.random.default_rng(seed)
    N = P * K + M + 2 if N is None else N
    return gd.Weights(
        W=0.8 * rng.standard_normal((*runs, P, K, N)),
        v=rng.standard_normal((*runs, P, K)),
        W_star=np.broadcast_to(rng.standard_normal((M, N)), (*runs, M, N)),
    )


def problem_of(w, activation=gd.erf, **options):
    """A Problem whose teacher is that of the Weights w."""
    W_star = w.W_star.reshape(-1, *w.W_star.shape[-2:])[0]
    M, N = W_star.shape
    v_star = np.random.default_rng(M).standard_normal(M)
    return gd.Problem(activation=activation, v_star=v_star, T=W_star @ W_star.T / N, **options)


def problem_and_overlaps(P, K, M, seed=0, runs=(), activation=gd.erf, **options):
    w = weights(P, K, M, seed=seed, runs=runs)
    return problem_of(w, activation, **options), gd.overlaps(w)


def nothing(x):
    return None


def a_word(x):
    return "x"


def itself(x):
    return x


def odd_values(*ours):
    """Values that few arguments can take: of Python, of NumPy, and those given."""
    return [
        None, True, -1, 0, 1.5, 3, -2.5, np.nan, np.inf, -np.inf, 1j, "x", b"x", [], {}, set(), (),
        object(), len, gd, np.array([]), np.zeros((0, 0)), np.zeros(3), np.zeros((1, 1, 1)),
        np.full((2, 2), np.nan), np.full(2, np.inf), np.eye(2) * 1j, np.eye(3), np.ones((2, 3)),
        np.array(["a", "b"]), np.array([None, None]), [[1, 2], [3]], [1, "x"], [np.nan], [3, 2, 1],
        [[0.5, 0.6], [0.5, 0.5]], [[1, -1], [-1, 1]], [(1.0,)], [(1.0, 2.0)], [(-1.0, None)],
        [("x", None)], np.datetime64("2020-01-01"), slice(None), range(3), ..., Exception("x"),
        nothing, a_word, itself, (1.0, nothing), [(1.0, nothing)], [(1.0, a_word)], *ours,
    ]  # fmt: skip


def same_numbers(a):
    """The array a, whose entries half precision holds too, in every form that is accepted: by name.

    Tensors come last, and only where torch is installed.
    """
    a = np.asarray(a, dtype=float)
    forms = {
        "a list": a.tolist(),
        "tuples": tuple(map(tuple, a)) if a.ndim == 2 else tuple(a),
        "numbers that are objects": a.astype(object),
        "a masked array without masks": np.ma.array(a),
        "Fortran's order": np.asfortranarray(a),
        "every second entry": np.repeat(a, 2, axis=-1)[..., ::2],
        "read-only": np.broadcast_to(a, (1, *a.shape))[0],
    }
    for kind in ("f2", "f4", "f8", ">f4", ">f8", "g"):
        forms[f"numpy {kind}"] = a.astype(kind)
    if a.ndim <= 2:
        forms["pandas"] = (pandas.Series if a.ndim == 1 else pandas.DataFrame)(a)
    if torch is not None:
        forms["a tensor in a graph"] = torch.tensor(a, requires_grad=True) * 1
        for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            forms[str(kind)] = torch.tensor(a, dtype=kind)
    return forms


def no_numbers(a):
    """What looks like the array a and holds something that is no finite real number: by name."""
    a = np.asarray(a, dtype=float)
    first = np.zeros(a.shape, dtype=bool)
    first.flat[0] = True
    forms = {
        "booleans": a > 0,
        "text": a.astype(str),
        "bytes": a.astype("S"),
        "complex numbers": a.astype(complex),
        "dates": a.astype("M8[s]"),
        "times": a.astype("m8[s]"),
        "fields": a.astype([("x", float)]),
        "objects": np.where(first, None, a.astype(object)),
        "text among objects": np.where(first, "1", a.astype(object)),
        "booleans among objects": np.where(first, True, a.astype(object)),
        "a masked entry": np.ma.array(a, mask=first),
        "rows with a masked entry": list(np.ma.array(a, mask=first)),
        "NaN": np.where(first, np.nan, a),
        "infinity": np.where(first, -np.inf, a),
        "NaN in half precision": np.where(first, np.nan, a).astype("f2"),
        "beyond float64": np.where(first, np.longdouble("1e4000"), a.astype("g")),
        "a whole number beyond float64": np.where(first, 10**400, a.astype(object)),
    }
    if a.ndim <= 2:
        frame = pandas.Series if a.ndim == 1 else pandas.DataFrame
        forms["missing values of pandas"] = frame(np.where(first, pandas.NA, a.astype(object)))
        forms["a sparse matrix"] = scipy.sparse.csr_array(np.atleast_2d(a))
    if torch is not None:
        tensor = torch.tensor(a)
        forms["a complex tensor"] = tensor.to(torch.complex64)
        forms["a tensor of booleans"] = tensor > 0
        forms["a tensor on no device"] = tensor.to("meta")
        forms["a tensor with NaN"] = tensor / 0 * 0
        forms["a sparse tensor"] = tensor.to_sparse()
    return forms
