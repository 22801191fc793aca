"""The upper square of the drawing: overlaps of SGD at finite N, and the chain, have one law.

Laws are compared by two-sample Kolmogorov-Smirnov tests at the level of 5 sigma, shared out over
the statistics of a test. The witnesses are sgd() and, below, SGD as one writes it, in float64.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ks_2samp

import gossipdyn as gd
from gossipdyn.engines import chain as markov
from gossipdyn.engines.engine import Engine

FIVE_SIGMA = 5.7e-7


def plain(N, runs, seed=0):
    """SGD as `Problem` writes it, on all coordinates of all samples."""

    def begin(problem, x0, start, rows):
        w = gd.lift(problem, x0, N)
        repeated = (np.repeat(a[None], runs, 0) for a in (w.W, w.v, w.W_star))
        return gd.Weights(*repeated), np.random.default_rng(seed)

    def advance(problem, w, rng, now, times):
        W, v, W_star = w.W, w.v, w.W_star
        (_, P, *_), B = W.shape, problem.batch
        g, dg = problem.activation.g, problem.activation.dg
        for time in times:
            for _ in range(now, int(time)):
                x = rng.standard_normal((runs, P, B, N))
                lam = x @ W.swapaxes(-1, -2) / np.sqrt(N)
                rho = x @ W_star[:, None].swapaxes(-1, -2) / np.sqrt(N)
                y = g(rho) @ problem.v_star + problem.sigma * rng.standard_normal((runs, P, B))
                e = (g(lam) @ v[..., None])[..., 0] - y
                pull = (v[:, :, None] * dg(lam) * e[..., None]).swapaxes(-1, -2) @ x / B
                pull_v = (e[..., None, :] @ g(lam))[..., 0, :] / B
                W = W - problem.eta / np.sqrt(N) * pull - problem.eta / N * problem.weight_decay * W
                v = v - problem.eta_v / N * (pull_v + problem.weight_decay * v)
            now = int(time)
            yield gd.Weights(W, v, W_star), rng

    return Engine("plain", {"N": N, "runs": runs, "seed": seed}, N, begin, advance)


def statistics(t):
    """What is compared: (runs,) arrays at the end of a run, by name; worker q is the last one."""
    x = t.state(-1)
    return {
        "Q_00 of worker 0": x.Q[:, 0, 0, 0, 0],
        "Q_01 of worker q": x.Q[:, -1, 0, -1, -1],
        "Q_00 between workers": x.Q[:, 0, 0, -1, 0],
        "R_00 of worker 0": x.R[:, 0, 0, 0],
        "R_01 of worker q": x.R[:, -1, 0, -1],
        "trace Q": np.einsum("rpkpk->r", x.Q) / x.v.shape[1],
        "v_0 of worker 0": x.v[:, 0, 0],
        "risk of worker q": t.risk[:, -1, -1],
        "risk of the mean": t.mean_risk[:, -1],
    }


def disagreement(t, u):
    """The smallest p-value of all statistics, times their number; and its statistic."""
    a, b = statistics(t), statistics(u)
    p = {name: ks_2samp(a[name], b[name], method="asymp").pvalue for name in a}
    worst = min(p, key=p.get)
    return p[worst] * len(p), worst


def agree(t, u):
    p, worst = disagreement(t, u)
    assert p > FIVE_SIGMA, f"{worst} differs: p = {p:.2g}"


RUNS = 3000
ERF = gd.Problem(gd.erf, v_star=[1.0, 1.0], T=np.eye(2), eta=2.0)
CORRELATED = replace(ERF, T=[[1.0, 0.4], [0.4, 0.7]], v_star=[1.0, -0.6], eta=3.0)
HALF = [[0.75, 0.25], [0.25, 0.75]]
# problem, N, P, K, and the matrix of four rounds of gossip
CASES = {
    "first layer": (ERF, 20, 2, 2, HALF),
    "both layers": (replace(ERF, eta_v=1.0), 20, 2, 2, HALF),
    "first layer, batch 2, label noise": (
        replace(ERF, sigma=0.5, batch=2, eta=3.0),
        20,
        2,
        2,
        gd.complete(2),  # the workers are equal after each round
    ),
    "both layers, batch 2, label noise": (
        replace(ERF, sigma=0.5, batch=2, eta=3.0, eta_v=0.5),
        20,
        2,
        2,
        gd.complete(2),
    ),
    "three workers, one step a block, weight decay": (
        replace(CORRELATED, sigma=0.4, batch=3, eta_v=0.5, weight_decay=0.2),
        24,
        3,
        3,
        gd.ring(3),
    ),
}


def play(engine, case):
    problem, N, P, K, A = CASES[case]
    x0 = gd.random_start(problem, workers=P, students=K, N=N, seed=1)
    return gd.run(engine(N=N, runs=RUNS), problem, x0, [(1.0, A)] * 4)


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """A case by name, plain SGD on it, and the chain on it."""
    return request.param, play(plain, request.param), play(gd.chain, request.param)


@pytest.mark.slow
def test_chain_and_plain_sgd_have_one_law(case):
    _, simulated, chained = case
    agree(simulated, chained)


@pytest.mark.slow
def test_chain_and_sgd_have_one_law(case):
    name, simulated, chained = case
    t = play(gd.sgd, name)
    agree(t, chained)
    agree(t, simulated)


@pytest.mark.slow
def test_one_degree_of_freedom_too_many_is_another_law(case, monkeypatch):
    name, simulated, _ = case
    chi = markov._chi
    monkeypatch.setattr(markov, "_chi", lambda rng, n, shape: chi(rng, n + 1, shape))
    assert disagreement(simulated, play(gd.chain, name))[0] < FIVE_SIGMA


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES)[:2])
def test_samples_that_forget_the_directions_before_them_have_another_law(name, monkeypatch):
    """Without the normals along what has piled up, fresh parts would be orthogonal."""
    draw = markov._draw

    def forgetful(problem, lanes, runs, P, N, widths):
        samples = draw(problem, lanes, runs, P, N, widths)
        for s, (z, _) in enumerate(samples):
            z[:, :, widths[0] : widths[s]] = 0
        return samples

    t = play(plain, name)
    monkeypatch.setattr(markov, "_draw", forgetful)
    assert disagreement(t, play(gd.chain, name))[0] < FIVE_SIGMA


# little room: d = P K + M = 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("N", "batch"), [(3, 1), (4, 1), (4, 2), (6, 2), (7, 2)]
)  # d, d + 1 = d + P batch - 1, d + 1, d + P batch - 1, d + P batch
@pytest.mark.parametrize("eta_v", [0.0, 0.5])
def test_small_n_leaves_fewer_fresh_directions(N, batch, eta_v):
    problem = gd.Problem(gd.erf, [1.0], [[1.0]], eta=1.0, eta_v=eta_v, sigma=0.3, batch=batch)
    x0 = gd.random_start(problem, workers=2, students=1, N=8, seed=3)
    rounds = [(5.0, HALF)] * 2
    agree(
        gd.run(plain(N, RUNS), problem, x0, rounds), gd.run(gd.chain(N, RUNS), problem, x0, rounds)
    )


# known moments


@pytest.mark.slow
@pytest.mark.parametrize(("eta", "grows"), [(1.5, False), (1.8, True)])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_linear_unit_at_small_n_grows_below_the_rate_that_the_limit_calls_stable(
    eta, grows, batch
):
    """K = M = 1. With D = w - w* one step on samples x_b is D' = D - (eta/N) mean[(D.x) x], and

        E|D'|^2 = |D|^2 (1 - 2 eta/N + (eta/N)^2 (N + 1 + B)/B)

    as E[(D.x)^2 |x|^2] = (N + 2)|D|^2 and E[(D.x)(D.y)(x.y)] = |D|^2 for another sample y. Label
    noise adds eta^2 sigma^2 / B. So |D| grows above eta = 2 N B / (N + 1 + B), not above 2 B.
    """
    N, B, sigma, steps, runs = 10, batch, 0.2, 30, 40_000
    eta = eta * B
    factor = 1 - 2 * eta / N + (eta / N) ** 2 * (N + 1 + B) / B
    assert grows == (factor > 1)
    problem = gd.Problem(gd.linear, [1.0], [[1.0]], eta=eta, sigma=sigma, batch=B)
    x0 = gd.Overlaps.single(Q=[[1.0]], R=[[0.2]], v=[1.0])
    times = np.arange(steps + 1) / N
    t = gd.run(gd.chain(N, runs), problem, x0, times[-1], record=times, keep="risk")
    risk = [0.8]
    for _ in range(steps):
        risk.append(factor * risk[-1] + eta**2 * sigma**2 / (2 * B * N))
    mean, sem = t.mean("risk")[1:, 0], t.sem("risk")[1:, 0]
    assert np.all(np.abs(mean - risk[1:]) < 5 * sem)
    quiet = replace(problem, sigma=0.0)
    assert (gd.run(gd.chain(N, runs), quiet, x0, times[-1]).mean("risk")[-1] > 0.8) == grows
    flow = gd.run(gd.flow(), quiet, x0, times[-1])
    assert flow.risk[0, -1, 0] < 0.8  # the limit sees it decay in either case


@pytest.mark.slow
def test_complete_averaging_after_every_step_is_a_batch_of_all_workers():
    problem = replace(ERF, eta_v=0.5, sigma=0.3)
    one = gd.random_start(problem, workers=1, students=2, N=20, seed=1)
    two = gd.mix(np.ones((2, 1)), one)
    t = gd.run(gd.chain(20, RUNS), replace(problem, batch=2), one, 4.0)
    u = gd.run(gd.chain(20, RUNS, seed=1), problem, two, [(1 / 20, gd.complete(2))] * 80)
    agree(t, u)
    alone = gd.run(gd.chain(20, RUNS, seed=1), problem, two, 4.0)
    assert disagreement(t, alone)[0] < FIVE_SIGMA
