"""What counts as rounding, and how sharp a GELU may be: from both sides of the limit."""

import numpy as np
import pytest

import gossipdyn as gd


@pytest.mark.parametrize("dtype, rounding", [("float64", 1e-9), ("float32", 1e-6)])
def test_the_teacher_of_weights_is_that_of_the_problem_up_to_its_rounding(dtype, rounding):
    rng = np.random.default_rng(0)
    W_star = np.array(rng.standard_normal((2, 8)), dtype=dtype)
    w = gd.Weights(W=W_star[None], v=np.ones((1, 2)), W_star=W_star)
    T = np.array(W_star, dtype=float) @ np.array(W_star, dtype=float).T / 8
    off = np.zeros((2, 2))
    off[np.diag_indices(2)] = np.abs(T).max() * rounding
    for part in (0.95, -0.95):
        problem = gd.Problem(activation=gd.erf, v_star=np.ones(2), T=T + part * off)
        assert gd.overlaps(w, problem) == gd.overlaps(w)
    for part in (1.05, -1.05):
        problem = gd.Problem(activation=gd.erf, v_star=np.ones(2), T=T + part * off)
        with pytest.raises(ValueError, match=r"W_star has .* make the problem of the weights"):
            gd.overlaps(w, problem)


def test_the_sharpest_gelu():
    assert gd.gelu(9999).g(np.array([1.0])) == 1
    with pytest.raises(ValueError, match="above 0 and up to 10000, got 10001"):
        gd.gelu(10001)
