"""Learning rates that change with time: one mechanism in all engines and in checkpoints."""

from dataclasses import dataclass, replace

import by_definition as definition
import numpy as np
import pytest
import torch

import gossipdyn as gd
from gossipdyn.engines import blocks
from gossipdyn.problem import Rates


@dataclass(frozen=True, eq=False)
class Scheduled(gd.Problem):
    """A problem whose eta is linear between nodes (alpha, eta); two at one time are a jump."""

    nodes: tuple = ()

    def rates(self, alpha):
        times, values = map(np.array, zip(*self.nodes))
        if alpha >= times[-1]:
            return Rates(values[-1], self.eta_v)
        i = np.searchsorted(times, alpha, side="right") - 1
        part = (alpha - times[i]) / (times[i + 1] - times[i])
        return Rates(values[i] + part * (values[i + 1] - values[i]), self.eta_v)

    def breaks(self, start, end):
        return sorted({t for t, _ in self.nodes if start < t < end})


def scheduled(*nodes, **fields):
    return Scheduled(gd.erf, [1, 1], np.eye(2), nodes=nodes, **fields)


A = gd.Overlaps.single(Q=np.diag([0.2, 0.3]), R=np.diag([1e-3, 5e-4]), v=[1, 1])
JUMPS = ((0, 0.5), (0.4, 0.5), (0.4, 1.5), (0.8, 1.0), (1.5, 0.2), (1.5, 0.7))
STEEP = scheduled(*JUMPS, sigma=0.2, weight_decay=0.1, eta_v=0.3)
START = gd.random_start(STEEP, workers=2, students=2, N=20, seed=3)
ENGINES = {
    "flow": gd.flow(),
    "chain": gd.chain(N=20, runs=4, seed=1),
    "sgd": gd.sgd(N=20, runs=4, seed=1, dtype="float64"),
}


def test_a_jump_up_and_down_has_its_known_risk():
    problem = scheduled((0, 0.5), (100, 0.5), (100, 0.6), (150, 0.6), (150, 0.5))
    t = gd.run(gd.flow(rtol=1e-10), problem, A, 300.0)  # the escape makes errors grow
    np.testing.assert_allclose(t.risk[0, -1, 0], 0.0007150273918, rtol=1e-6)


def test_ramps_have_their_known_risks():
    nodes = (0, 1.2), (50, 0.6), (100, 0.4), (200, 0.24), (400, 0.16)
    t = gd.run(gd.flow(), scheduled(*nodes, sigma=0.3), A, 400.0, record=[50, 100, 200])
    known = [0.0348893045, 0.0254914716, 0.0190164267, 0.0091226667]
    np.testing.assert_allclose(t.risk[0, 1:, 0], known, rtol=1e-6)


def test_a_smooth_law_has_its_known_risks():
    class Hyperbolic(gd.Problem):
        def rates(self, alpha):
            return Rates(1.2 / (1 + alpha / 50), 0.0)

    problem = Hyperbolic(gd.erf, [1, 1], np.eye(2), sigma=0.3)
    t = gd.run(gd.flow(), problem, A, 400.0, record=[50, 100])
    known = [0.034112613, 0.0252798003, 0.0110068807]
    np.testing.assert_allclose(t.risk[0, 1:, 0], known, rtol=1e-6)


def test_a_step_of_sgd_has_the_rate_of_its_time():
    rng = np.random.default_rng(1)
    P, K, N, steps = 2, 2, 20, 40
    w = gd.Weights(rng.normal(size=(P, K, N)), np.ones((P, K)), rng.normal(size=(2, N)))
    problem = replace(STEEP, T=gd.Problem.from_weights(w, gd.erf, v_star=[1, 1]).T)
    X, zeta = rng.normal(size=(P, steps, 1, N)), rng.normal(size=(P, steps, 1))
    W, v = w.W.copy(), w.v.copy()
    for p in range(P):
        for s in range(steps):
            now = replace(problem, eta=problem.rates(0.1 + s / N).eta)
            W[p], v[p] = definition.sgd_step(now, W[p], v[p], w.W_star, X[p, s], zeta[p, s])
    tensors = gd.Weights(*(torch.tensor(a) for a in (w.W, w.v, w.W_star)))
    got = blocks.steps(problem, tensors, torch.tensor(X), torch.tensor(zeta), now=0.1)
    np.testing.assert_allclose(got.W.numpy(), W, rtol=0, atol=1e-12)
    np.testing.assert_allclose(got.v.numpy(), v, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ENGINES)
def test_a_run_from_a_later_start_sees_the_rates_of_then(name):
    """Shifting the clock and the nodes together changes nothing; shifting one of them does."""
    later = replace(STEEP, nodes=tuple((t + 5, eta) for t, eta in JUMPS))
    runs = [
        gd.run(ENGINES[name], problem, START, [(0.9, gd.complete(2))] * 2, start=start)
        for problem, start in ((STEEP, 0.0), (later, 5.0), (STEEP, 5.0))
    ]
    np.testing.assert_allclose(runs[0].Q, runs[1].Q, rtol=0, atol=1e-8)
    assert np.abs(runs[0].Q - runs[2].Q).max() > 1e-3


@pytest.mark.slow
def test_the_three_engines_agree_in_law_with_rates_that_jump():
    rounds = [(0.5, gd.complete(2))] * 4
    start = gd.random_start(STEEP, workers=2, students=2, N=200, seed=3)
    chain = gd.run(gd.chain(200, runs=4000, seed=1), STEEP, start, rounds)
    sgd = gd.run(gd.sgd(200, runs=1000, seed=1), STEEP, start, rounds)
    flow = gd.run(gd.flow(), STEEP, start, rounds)
    for array in ("Q", "R", "v", "risk"):
        gap, error = chain.mean(array) - sgd.mean(array), np.hypot(chain.sem(array), sgd.sem(array))
        assert np.all(np.abs(gap) < 5 * error + 1e-6)
    # the bias of the mean is O(1 / N), with a constant below 4 here
    assert np.abs(chain.mean("risk") - flow.mean("risk")).max() < 4 / 200
    constant = gd.run(gd.flow(), replace(STEEP, nodes=((0, 0.5),)), start, rounds)
    assert np.abs(chain.mean("risk") - constant.mean("risk")).max() > 4 / 200


@pytest.mark.parametrize("name", ENGINES)
def test_a_checkpoint_goes_on_with_the_rates_of_its_time(name, tmp_path, monkeypatch):
    from gossipdyn.runs import run as loop

    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    rounds = [(0.45, gd.complete(2))] * 4
    write, left = loop.Checkpoint.write, [3]

    def stops(self, content, last=False):
        write(self, content, last)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop.Checkpoint, "write", stops)
    file = tmp_path / "file"
    stopped = gd.run(ENGINES[name], STEEP, START, rounds, checkpoint=file)
    assert not stopped.complete
    again = gd.run(ENGINES[name], STEEP, START, rounds, checkpoint=file)
    whole = gd.run(ENGINES[name], STEEP, START, rounds, checkpoint=tmp_path / "other")
    assert again.complete and np.array_equal(again.Q, whole.Q) and np.array_equal(again.v, whole.v)


def test_a_problem_of_the_users_own_is_not_taken_for_another_from_a_file(tmp_path):
    t = gd.run(gd.flow(), STEEP, START, 0.5)
    t.save(tmp_path / "run.npz")
    with pytest.raises(ValueError, match="Scheduled"):
        gd.Trajectory.load(tmp_path / "run.npz")
