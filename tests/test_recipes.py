"""The recipes of CONTRIBUTING, each tried once: what can be added without a change of the package.

An activation, a graph, an engine, a problem and a state of the user's own.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch

import gossipdyn as gd
from gossipdyn.engines.samples import Samples, teacher_on_normal_inputs

I2 = np.eye(2)
PROBLEM = gd.Problem(gd.erf, [1, 1], I2, eta=0.5, sigma=0.2)
START = gd.random_start(PROBLEM, workers=2, students=2, N=100, seed=3)


# an activation: leaky ReLU. g = relu(x) - leak relu(-x), so every average is a sum of ReLU's

LEAK = 0.3


def leaky_two(average, first, second):
    """<f(a) g(b)> of functions that are a part of ReLU's on either side of zero."""

    def of(caa, cab, cbb):
        return sum(
            first[s] * second[t] * average(caa, s * t * cab, cbb) for s in (1, -1) for t in (1, -1)
        )

    return of


SIDE = {1: 1.0, -1: -LEAK}  # of g, on either side
STEP = {1: 1.0, -1: LEAK}  # of its slope


def leaky_square(C, K, c):
    """From <g'_i g'_j g_a g_b> of ReLU, with fields turned round: all sets of four at once."""
    n = C.shape[-1]
    sets = np.array([*np.ndindex(K, K, n, n)])[:, None]
    signs = 1 - 2 * np.array([*np.ndindex(2, 2, 2, 2)])
    parts = [
        np.where(signs[:, k] > 0, 1, side[-1]) for k, side in enumerate([STEP] * 2 + [SIDE] * 2)
    ]
    four = C[..., sets[..., :, None], sets[..., None, :]] * (signs[:, :, None] * signs[:, None])
    values = gd.relu.i4(four) @ np.prod(parts, axis=0)
    values = values * c[..., sets[:, 0, 2]] * c[..., sets[:, 0, 3]]
    return values.reshape(*C.shape[:-2], K, K, -1).sum(-1)


leaky = gd.Activation(
    name="leaky",
    g=lambda x: np.where(x > 0, x, LEAK * x),
    dg=lambda x: np.where(x > 0, 1, LEAK) + (1 - LEAK) / 2 * (x == 0),
    torch_g=lambda x: torch.nn.functional.leaky_relu(x, LEAK),
    torch_dg=lambda x: LEAK + (1 - LEAK) * (x.sign() / 2 + 0.5),
    odd=False,
    i2=leaky_two(gd.relu.i2, SIDE, SIDE),
    j2=leaky_two(gd.relu.j2, STEP, STEP),
    # g'' is (1 - leak) times a delta function, which has no sides
    h2=leaky_two(gd.relu.h2, {1: (1 - LEAK) / 2, -1: (1 - LEAK) / 2}, SIDE),
    square=leaky_square,
)


@pytest.mark.slow
def test_an_activation_of_ones_own_serves_flow_and_simulation():
    problem = replace(PROBLEM, activation=leaky, eta=0.2, eta_v=0.1)
    flow = gd.run(gd.flow(rtol=1e-5), problem, START, [(0.5, gd.complete(2))] * 2)
    sgd = gd.run(gd.sgd(N=400, runs=500, seed=1), problem, START, [(0.5, gd.complete(2))] * 2)
    chain = gd.run(gd.chain(N=400, runs=2000, seed=1), problem, START, [(0.5, gd.complete(2))] * 2)
    for array in ("Q", "R", "v", "risk"):
        gap = chain.mean(array) - sgd.mean(array)
        assert np.all(np.abs(gap) < 5 * np.hypot(chain.sem(array), sgd.sem(array)) + 1e-6)
        # the bias of the mean is O(1 / N), with a constant below 4 here
        assert np.abs(chain.mean(array) - flow.mean(array)).max() < 4 / 400


def test_averages_over_four_fields_follow_from_the_square():
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(20, 4, 6))
    C = rows @ rows.swapaxes(-1, -2) / 6
    for f in (gd.erf, gd.relu, gd.linear, gd.quadratic, gd.gelu(1.5)):
        scale = f.square(C, 2, np.broadcast_to([0.0, 0, 1, 1], (20, 4)))[:, 0, 0]
        gap = np.abs(replace(f, i4=None).I4(C) - f.I4(C))
        assert np.all(gap < 1e-14 * (1 + scale))


# a graph: any row-stochastic matrix, or edges


def test_a_graph_of_ones_own_is_a_list_of_edges():
    rim = [(p, p % 4 + 1) for p in range(1, 5)]
    wheel = gd.from_edges(5, [(0, p) for p in range(1, 5)] + rim)
    assert np.allclose(wheel.sum(0), 1) and 0 < gd.spectral_gap(wheel) < 1
    w = gd.lift(PROBLEM, gd.random_start(PROBLEM, 5, 2, N=50, seed=1), N=50)
    one, other = gd.overlaps(gd.mix(wheel, w)), gd.mix(wheel, gd.overlaps(w))
    np.testing.assert_allclose(one.Q, other.Q, rtol=0, atol=1e-12)


# an engine: begin and advance


def euler(step):
    """The flow by Euler's method: an engine in a dozen lines."""

    def begin(problem, x0, start, rows):
        if len(rows):
            raise ValueError("euler knows no rows beside the workers")
        return gd.Overlaps(Q=x0.Q[None], R=x0.R[None], v=x0.v[None]), None

    def advance(problem, x, source, now, times):
        for time in times:
            count = max(1, round((time - now) / step))
            for i in range(count):
                dx = gd.rate(problem, x, alpha=now + i * (time - now) / count)
                part = (time - now) / count
                x = gd.Overlaps(*(getattr(x, n) + part * getattr(dx, n) for n in x.axes))
            now = time
            yield x, source

    return gd.Engine("euler", {"step": step}, None, begin, advance)


def test_an_engine_of_ones_own_converges_to_the_flow():
    rounds = [(0.5, gd.complete(2))] * 2
    flow = gd.run(gd.flow(), PROBLEM, START, rounds, record=[0.25])
    gaps = []
    for step in (0.05, 0.025):
        t = gd.run(euler(step), PROBLEM, START, rounds, record=[0.25])
        assert np.array_equal(t.alpha, flow.alpha) and t.engine["name"] == "euler"
        gaps.append(np.abs(t.risk - flow.risk).max())
    assert 1.8 < gaps[0] / gaps[1] < 2.2  # of first order


def test_an_engine_of_version_0_1_still_runs_and_says_what_to_change():
    def begin(problem, x0):
        return gd.Overlaps(Q=x0.Q[None], R=x0.R[None], v=x0.v[None]), None

    def advance(problem, x, source, now, times):
        return (x for _ in times)

    with pytest.warns(DeprecationWarning, match="yields \\(state, source\\)"):
        old = gd.Engine("old", {}, None, begin, advance)
    t = gd.run(old, PROBLEM, START, 1.0)
    assert np.array_equal(t.Q[0, 0], START.Q)
    with pytest.raises(ValueError, match="asks for 2"):
        gd.run(old, PROBLEM, START, [(1.0, gd.rows(np.eye(4), {"copy": I2}))])


# a problem: inputs of another size, through its local averages and its samples


@dataclass(frozen=True, eq=False)
class Scaled(gd.Problem):
    """Inputs N(0, size^2): the fields are those of unit inputs, times size."""

    size: float = 1.0

    def local(self, C, v, rates, want=("U", "V", "noise", "dv", "risk")):
        found = super().local(self.size**2 * C, v, rates, want)
        moves = {
            name: self.size**2 * a
            for name in ("U", "V", "noise")
            if (a := getattr(found, name)) is not None
        }
        return found._replace(**moves)

    def samples(self, w):
        usual = teacher_on_normal_inputs(self, w)
        return Samples(w.N, w.W_star, lambda draws: self.size * draws, usual.labels)


@pytest.mark.slow
def test_a_problem_of_ones_own_brings_its_averages_and_its_samples():
    problem = Scaled(gd.erf, [1, 1], I2, eta=0.3, sigma=0.2, size=1.5)
    rounds = [(0.5, gd.complete(2))] * 2
    flow = gd.run(gd.flow(), problem, START, rounds)
    sgd = gd.run(gd.sgd(N=400, runs=600, seed=1), problem, START, rounds)
    for array in ("Q", "R"):
        gap = np.abs(sgd.mean(array) - flow.mean(array))
        assert np.all(gap < 5 * sgd.sem(array) + 4 / 400)
    usual = gd.run(gd.flow(), PROBLEM, START, rounds)
    assert np.abs(usual.R - flow.R).max() > 5 * sgd.sem("R").max() + 4 / 400
    assert np.allclose(flow.risk[0, -1], gd.risk(problem, flow.state(-1))[0])


# a state: labelled axes


@gd.labelled
@dataclass(frozen=True, eq=False)
class Halves:
    """Overlaps in two halves of the inputs, which count .25 and .75: a state with a mode axis."""

    q: np.ndarray
    r: np.ndarray
    v: np.ndarray
    axes: ClassVar = {
        "q": ("mode", "worker", "student", "worker", "student"),
        "r": ("mode", "worker", "student", "teacher"),
        "v": ("worker", "student"),
    }

    def overlaps(self, problem=None):
        Q = 0.25 * self.q[..., 0, :, :, :, :] + 0.75 * self.q[..., 1, :, :, :, :]
        R = 0.25 * self.r[..., 0, :, :, :] + 0.75 * self.r[..., 1, :, :, :]
        return gd.Overlaps(Q=Q, R=R, v=self.v)


def halves(seed=0, P=3, runs=()):
    """Halves of random weights; the weights themselves, for the square."""
    rng = np.random.default_rng(seed)
    W, W_star = rng.normal(size=(*runs, P, 2, 40)), rng.normal(size=(*runs, 2, 40))
    v = rng.normal(size=(*runs, P, 2))
    parts = [(W[..., :10], W_star[..., :10]), (W[..., 10:], W_star[..., 10:])]
    each = [gd.overlaps(gd.Weights(W=w, v=v, W_star=t)) for w, t in parts]
    q, r = np.stack([x.Q for x in each], -5), np.stack([x.R for x in each], -4)
    return Halves(q, r, v), gd.Weights(W, v, W_star)


def test_gossip_acts_on_a_state_of_ones_own_as_on_weights():
    x, w = halves()
    for round_ in (gd.ring(3), gd.matched(gd.complete(3), tie=0.0), gd.rows(np.eye(3)[::-1])):
        one, other = gd.overlaps(gd.mix(round_, w)), gd.overlaps(gd.mix(round_, x))
        for name in ("Q", "R", "v"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-12)
    assert gd.consensus_distance(x) == pytest.approx(gd.consensus_distance(w))


def test_runs_of_a_state_of_ones_own_are_counted_and_taken_like_those_of_any():
    x, _ = halves(runs=(4,))
    assert x.runs == (4,) and len(x) == 4 and len(list(x)) == 4
    assert x[1].runs == () and np.array_equal(x[1].q, x.q[1]) and x[1:3] == x[1:3] != x[:2]


def begin_any(problem, x0, start, rows):
    return type(x0)(*(getattr(x0, name)[None] for name in x0.axes)), None


def shrink(problem, x, source, now, times, *, rate):
    powers = {"q": 2, "r": 1, "v": 0}
    for time in times:
        kept = np.exp(-rate * (time - now))
        x = type(x)(*(getattr(x, name) * kept ** powers[name] for name in x.axes))
        now = time
        yield x, source


def shrinking(rate):
    """An engine for any state: all weights shrink."""
    return gd.Engine("shrinking", {"rate": rate}, None, begin_any, partial(shrink, rate=rate))


def test_a_run_records_saves_and_restores_a_state_of_ones_own(tmp_path):
    x, w = halves()
    problem = gd.Problem.from_weights(w, gd.erf, v_star=[1, 1])
    rounds = [(1.0, gd.ring(3)), (0.5, gd.matched(gd.ring(3)))]
    keep = ("Q", "R", "v", "risk", "q", "r")
    t = gd.run(shrinking(0.3), problem, x, rounds, record=[0.4], keep=keep)
    assert isinstance(t.state(-1), Halves) and t.q.shape == (1, len(t.alpha), 2, 3, 2, 3, 2)
    last = gd.overlaps(t.state(-1))
    np.testing.assert_allclose(last.Q, t.Q[:, -1], atol=1e-12)
    np.testing.assert_allclose(gd.risk(problem, last), t.risk[:, -1], atol=1e-12)
    plain = gd.run(shrinking(0.3), problem, x, rounds)
    assert isinstance(plain.state(-1), gd.Overlaps)  # q and r were not kept
    t.save(tmp_path / "run.npz")
    back = gd.Trajectory.load(tmp_path / "run.npz")
    assert isinstance(back.state(0), Halves) and np.array_equal(back.q, t.q)
    assert back.asked["x0"] == x and back.kind == "Halves"
    assert t.to_xarray()["q"].dims == (
        "run", "time", "mode", "worker", "student", "worker_2", "student_2"
    )  # fmt: skip
    file = tmp_path / "checkpoint"
    first = gd.run(shrinking(0.3), problem, x, rounds, keep=keep, checkpoint=file)
    assert first == gd.run(shrinking(0.3), problem, x, rounds, keep=keep, checkpoint=file)


def test_weights_in_few_coordinates_know_their_number_of_inputs():
    """What the chain hands to a callable: its overlaps and its floor are those of N inputs."""
    seen = []
    t = gd.run(
        gd.chain(N=50, runs=3, seed=1), PROBLEM, START, [(1.0, lambda w: seen.append(w) or w)]
    )
    (w,) = seen
    assert w.N == 50 and w.W.shape[-1] < 50 and len(w) == 3
    np.testing.assert_allclose(gd.overlaps(w).Q, t.Q[:, -1], rtol=0, atol=1e-13)
    np.testing.assert_allclose(gd.diagnose(w, A=gd.ring(2)).noise_floor, 2 / np.sqrt(50))
    assert gd.overlaps(w, PROBLEM) == gd.overlaps(w)
    assert gd.overlaps(w[0]).Q.shape == (2, 2, 2, 2)
