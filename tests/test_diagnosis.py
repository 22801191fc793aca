"""What diagnose() says where a rise of Q_ij alone misleads, and what setbacks() measures."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from anything import problem_of, weights
from hypothesis import given
from hypothesis import strategies as st

import gossipdyn as gd

ALGEBRA = 1e-12  # rounding of sums of a few dozen numbers of order one
PAIR = gd.complete(2)
seeds = st.integers(0, 2**32 - 1)


def teacher(M, T=None, **options):
    T = np.eye(M) if T is None else T
    return gd.Problem(activation=gd.erf, v_star=np.ones(M), T=T, **options)


def students(rows, v=None):
    """Overlaps of workers whose rows (P, K, M) are given in the basis of a teacher with T = 1."""
    rows = np.array(rows, dtype=float)
    v = np.ones(rows.shape[:2]) if v is None else v
    return gd.Overlaps(Q=np.einsum("pkn,qln->pkql", rows, rows), R=rows, v=v)


def ordered(*orders):
    """Perfect students, each with the teacher's units in its own order."""
    return students([np.eye(len(order))[list(order)] for order in orders])


def old_rule(d):
    """The rule that is not enough: the units' cosines rise above the noise."""
    return d.cosine_rise > d.noise_floor


# the record


@given(P=st.integers(1, 4), K=st.integers(1, 4), M=st.integers(1, 3), seed=seeds)
def test_every_measure_is_its_definition(P, K, M, seed):
    w = weights(P, K, M, seed=seed)
    problem, N = problem_of(w), w.W.shape[-1]
    A = gd.ring(P)
    after = gd.mix(A, w)
    d = gd.diagnose(w, A, problem=problem)

    def cos(a, b):
        return a @ b / np.sqrt(a @ a * (b @ b))

    def spread(W):
        return sum(((W[p] - W.mean(0)) ** 2).sum() for p in range(P)) / P / N

    def rise(p):
        pairs = [(k, l) for k in range(K) for l in range(K) if k != l]
        each = [cos(*after.W[p, [k, l]]) - cos(*w.W[p, [k, l]]) for k, l in pairs]
        return np.mean(each) if pairs else 0

    def alignment(W):
        best = [[max(abs(cos(row, u)) for u in w.W_star) for row in units] for units in W]
        return np.mean(best, axis=1)

    def close(value, expected):
        np.testing.assert_allclose(value, expected, rtol=0, atol=ALGEBRA * 10)

    close(d.cosine_rise, [rise(p) for p in range(P)])
    close(d.noise_floor, 2 / np.sqrt(N))
    close(d.trace_loss, spread(w.W) - spread(after.W))
    close(d.alignment_before, alignment(w.W))
    close(d.alignment_after, alignment(after.W))
    close(d.risk_before, gd.risk(problem, gd.overlaps(w)))
    close(d.risk_after, gd.risk(problem, gd.overlaps(after)))
    close(d.mean_risk_after, gd.mean_risk(problem, gd.overlaps(after)))
    assert isinstance(d.harmful, bool) and isinstance(d.verdict, str)
    if P == 2:
        apart, least = (((w.W[0] - W) ** 2).sum() for W in (w.W[1], nearest(w)))
        close(d.matched_ratio, least / apart)


def nearest(w):
    """Worker 1's rows in the order nearest to worker 0's, over all permutations."""
    Q, alike = w.W[0] @ w.W[1].T, w.v[0][:, None] * w.v[1] > 0
    likeness = np.where(alike, Q, -np.abs(Q))
    orders = [list(order) for order in permutations(range(len(Q)))]
    return w.W[1][max(orders, key=lambda order: likeness[range(len(Q)), order].sum())]


@given(P=st.integers(2, 4), K=st.integers(1, 4), seed=seeds)
def test_a_prediction_is_what_is_then_seen(P, K, seed):
    """The round as a matrix or as the state after it, on weights or overlaps: one record."""
    w = weights(P, K, M=2, seed=seed)
    problem, A = problem_of(w), gd.path(P)
    x, N = gd.overlaps(w), w.W.shape[-1]
    predicted = gd.diagnose(x, A, problem=problem, N=N)
    assert predicted == gd.diagnose(x, after=gd.mix(A, x), problem=problem, N=N)
    of_weights = gd.diagnose(w, after=gd.mix(A, w), problem=problem)
    assert of_weights.verdict == predicted.verdict
    np.testing.assert_allclose(of_weights.risk_after, predicted.risk_after, rtol=0, atol=ALGEBRA)
    assert predicted != gd.diagnose(x, A, problem=problem, N=N + 1)
    without = gd.diagnose(x, A)
    assert without == gd.diagnose(x, A) and np.isnan(without.risk_before).all()
    assert np.isnan([without.alignment_before, without.alignment_after]).all()
    assert np.isnan(without.mean_risk_after) and np.all(without.noise_floor == 0)


def test_runs_are_diagnosed_one_by_one():
    x = [ordered([0, 1], [1, 0]), ordered([0, 1], [0, 1]), ordered([1, 0], [0, 1])]
    runs = gd.Overlaps(*(np.stack([getattr(s, name) for s in x]) for name in "QRv"))
    d = gd.diagnose(runs, PAIR, problem=teacher(2), N=100)
    np.testing.assert_array_equal(d.harmful, [True, False, True])
    assert d.verdict == (
        "2 of 3 runs: units in different order; the round loses alignment"
        " | 1 of 3 runs: same features: averaging is safe"
    )
    for run, state in enumerate(x):
        alone = gd.diagnose(state, PAIR, problem=teacher(2), N=100)
        for name in ("cosine_rise", "matched_ratio", "risk_after", "trace_loss", "noise_floor"):
            np.testing.assert_array_equal(getattr(d, name)[run], getattr(alone, name))
    assert "means of 3 runs" in str(d) and "means of 3 runs" in d._repr_html_()
    assert d.cosine_floor is d.noise_floor
    for count in (1, 2):
        some = gd.diagnose(gd.Overlaps(*(getattr(runs, name)[:count] for name in "QRv")), PAIR)
        for text in (str(some), some._repr_html_()):
            assert ("means of" in text) == (count > 1)


def test_a_diagnosis_is_readable():
    d = gd.diagnose(ordered([0, 1], [1, 0]), PAIR, problem=teacher(2), N=1000)
    assert str(d).splitlines()[0] == d.verdict
    table = {line[:17].strip(): line[17:].split() for line in str(d).splitlines()[2:]}
    assert table["alignment before"] == ["1", "1"]
    assert table["alignment after"] == ["0.7071", "0.7071"]
    assert table["matched ratio"] == ["0"] and table["risk after"] == ["0.02031", "0.02031"]
    html = d._repr_html_()
    assert d.verdict in html and html.count("<tr>") == len(table) + 1
    assert '<td colspan="2">0</td>' in html and '<td colspan="1">0.7071</td>' in html


# verdicts


@pytest.mark.parametrize("K", [2, 3, 4, 8])
def test_units_in_different_order(K):
    x, problem = ordered(range(K), np.roll(range(K), 1)), teacher(K)
    for d in (gd.diagnose(x, PAIR, problem=problem, N=10**4), gd.diagnose(x, PAIR)):
        assert d.harmful and d.verdict.startswith("units in different order")
        assert d.matched_ratio == pytest.approx(0, abs=ALGEBRA)
    sorted_ = gd.diagnose(x, gd.matched(PAIR), problem=problem)
    assert not sorted_.harmful
    assert sorted_.verdict == "units in different order; the round loses no alignment"
    assert sorted_.trace_loss == pytest.approx(0, abs=ALGEBRA)


def test_same_features():
    x = ordered([0, 1, 2], [0, 1, 2])
    rng = np.random.default_rng(0)
    noisy = students(
        np.concatenate([x.R, 0.1 * rng.standard_normal((2, 3, 200)) / np.sqrt(200)], axis=-1)
    )
    noisy = gd.Overlaps(Q=noisy.Q, R=noisy.R[..., :3], v=noisy.v)
    for state in (x, noisy):
        for problem in (teacher(3), None):
            d = gd.diagnose(state, PAIR, problem=problem)
            assert not d.harmful and d.verdict == "same features: averaging is safe"
            assert d.matched_ratio == pytest.approx(1, abs=ALGEBRA)


def test_first_averaging_of_workers_with_mutual_cosine_near_0():
    """Said before the round, with the risk it leads to; no alignment is there to lose."""
    problem = teacher(2)
    x = gd.random_start(problem, workers=4, students=2, N=1000, seed=0)
    A = gd.ring(4)
    d = gd.diagnose(x, A, problem=problem, N=1000)
    assert d.verdict == "not specialised yet: mutual cosine near 0; the round loses no alignment"
    assert not d.harmful and d.matched_ratio > 0.9
    after = gd.mix(A, x)
    np.testing.assert_array_equal(d.risk_after, gd.risk(problem, after))
    assert d.mean_risk_after == gd.mean_risk(problem, after)
    blind = gd.diagnose(x, A, N=1000)
    assert blind.verdict == "not specialised yet: mutual cosine near 0; the round loses norm"
    assert blind.harmful


def test_units_that_have_not_separated_are_said_to_be_alike():
    x = students(np.full((2, 2, 2), 0.4) + 0.02 * np.array([[1, -1], [-1, 1]]))
    d = gd.diagnose(x, PAIR, problem=teacher(2))
    assert d.verdict.startswith("not specialised yet: the units of a worker are alike")


def test_workers_with_different_features_cannot_be_matched():
    """Two of the four teacher units each: nothing in common, though both have specialised."""
    e = np.eye(4)
    x = students([e[:2], e[2:]])
    d = gd.diagnose(x, PAIR, problem=teacher(4))
    assert d.harmful and d.matched_ratio == 1
    assert d.verdict.startswith("different features, which matching cannot help")
    x = students([e[:3], e[[0, 1, 3]]])
    d = gd.diagnose(x, PAIR, problem=teacher(4))
    assert d.harmful and d.verdict.startswith("some features differ")


def test_one_pair_among_many_workers_is_not_diluted():
    x = ordered([1, 0], *[[0, 1]] * 15)
    A = gd.from_edges(2, [(0, 1)])
    A = np.block([[A, np.zeros((2, 14))], [np.zeros((14, 2)), np.eye(14)]])
    d = gd.diagnose(x, A, problem=teacher(2), N=1000)
    assert d.harmful and d.matched_ratio == 0
    assert d.verdict.startswith("units in different order")
    # one exchange among 16 units, seen without a teacher as well
    x = ordered(range(16), [1, 0, *range(2, 16)])
    assert gd.diagnose(x, PAIR).harmful and gd.diagnose(x, PAIR, problem=teacher(16)).harmful
    # the pair agrees, whatever the others hold
    x = ordered([0, 1], [0, 1], *[[1, 0], [0, 1]] * 7)
    scale = np.where(np.arange(16) == 0, 1.1, 1)[:, None, None]
    x = students(scale * x.R)
    d = gd.diagnose(x, A, problem=teacher(2))
    assert d.verdict == "same features: averaging is safe"
    # nobody changes: nothing is lost
    x = ordered([1, 0], *[[0, 1]] * 15)
    d = gd.diagnose(x, np.eye(16), problem=teacher(2))
    assert not d.harmful and d.verdict.endswith("the round loses no alignment")


def test_a_worker_or_a_unit_alone():
    d = gd.diagnose(ordered([0, 1]), gd.complete(1), problem=teacher(2))
    assert not d.harmful and d.verdict == "same features: averaging is safe"
    d = gd.diagnose(students([[[1.0]], [[1.0]]]), PAIR, problem=teacher(1))
    assert not d.harmful and np.all(d.cosine_rise == 0)
    nothing = gd.diagnose(students(np.zeros((2, 2, 2))), PAIR, problem=teacher(2), N=10)
    assert not nothing.harmful and nothing.matched_ratio == 1


# thresholds, from both sides


@pytest.mark.parametrize(
    "cosine, verdict",
    [
        (0.19, "different features, which matching cannot help"),
        (0.21, "some features differ"),
        (0.79, "some features differ"),
        (0.81, "same features: averaging is safe"),
    ],
)
def test_how_alike_two_workers_are_in_words(cosine, verdict):
    """Each unit of one worker has one cosine with its partner; 0.8 is the scatter of one solution.

    The mean of two such units loses (1 - cosine) / 2 of their squared norm: 0.1 at 0.8.
    """
    e, sine = np.eye(4), np.sqrt(1 - cosine**2)
    x = students([e[:2], cosine * e[:2] + sine * e[2:]])
    assert gd.diagnose(x, PAIR, problem=teacher(4)).verdict.startswith(verdict)
    assert gd.diagnose(x, PAIR).harmful == (cosine < 0.8)


@pytest.mark.parametrize("lost, harmful", [(0.19, False), (0.21, True)])
def test_without_a_teacher_the_larger_of_floor_and_scatter_counts(lost, harmful):
    """At N = 100 the floor is 0.2, at N = 10^4 it is 0.02 and the scatter is more."""
    cosine = 1 - 2 * lost
    x = students([[[1, 0]], [[cosine, np.sqrt(1 - cosine**2)]]])
    assert gd.diagnose(x, PAIR, N=100).harmful == harmful
    assert gd.diagnose(x, PAIR, N=10**4).harmful


@pytest.mark.parametrize(
    "alignment, verdict",
    [
        (0.49, "not specialised yet: mutual cosine near 0"),
        (0.51, "different features, which matching cannot help"),
    ],
)
def test_half_aligned_units_are_features(alignment, verdict):
    """Workers look at different teacher units, by one cosine, and elsewhere where nobody looks."""
    rows = alignment * np.eye(8)[:4] + np.sqrt(1 - alignment**2) * np.eye(8)[4:]
    x = students([rows[:2], rows[2:]])
    x = gd.Overlaps(Q=x.Q, R=x.R[..., :4], v=x.v)
    assert gd.diagnose(x, PAIR, problem=teacher(4)).verdict.startswith(verdict)


@pytest.mark.parametrize(
    "cosine, verdict",
    [
        (0.79, "same features: averaging is safe"),
        (0.81, "not specialised yet: the units of a worker are alike"),
    ],
)
def test_units_of_one_worker_have_separated_below_a_cosine(cosine, verdict):
    x = students([[[1, 0], [cosine, np.sqrt(1 - cosine**2)]]] * 2)
    assert gd.diagnose(x, PAIR, problem=teacher(2)).verdict.startswith(verdict)


@pytest.mark.parametrize("gain, verdict", [(0.095, "same"), (0.105, "units in different order")])
def test_an_exchange_that_gains_less_than_the_tie_is_none(gain, verdict):
    """Units a + d b and a - d b, which stand the other way round: 2 d^2 / (1 + d^2) is gained."""
    a, b, rest = np.eye(3)
    d = np.sqrt(gain / (2 - gain))
    rows = [a + d * b, a - d * b, 2 * rest]
    x = students([rows, [rows[1], rows[0], rows[2]]])
    assert gd.diagnose(x, PAIR, problem=teacher(3)).verdict.startswith(verdict)


@pytest.mark.parametrize("apart, ratio", [(1e-11, 1), (1e-7, 0)])
def test_workers_that_differ_by_rounding_are_equal(apart, ratio):
    """Their units are a + d b and a - d b, exchanged: |difference|^2 is 2 d^2 of the total."""
    d = np.sqrt(apart / 2)
    x = students([[[1, d], [1, -d]], [[1, -d], [1, d]]])
    assert gd.diagnose(x, PAIR).matched_ratio == pytest.approx(ratio, abs=1e-4)


@pytest.mark.parametrize("fall, harmful", [(1e-11, False), (1e-7, True)])
def test_a_fall_of_alignment_by_rounding_is_none(fall, harmful):
    before, after = students([[[1]]]), gd.Overlaps.single([[1]], [[1 - fall]], [1])
    assert gd.diagnose(before, after=after, problem=teacher(1)).harmful == harmful


@pytest.mark.parametrize("name", ["Q", "R"])
def test_a_worker_that_a_round_changes_by_rounding_does_not_count(name):
    """One worker loses 0.3 of alignment, at a floor of 0.2. If two count, the mean is 0.15."""
    rows = [[[0.5, np.sqrt(0.75)]], [[1, 0]]]
    before, after = students(rows), students([rows[0], [[0.7, np.sqrt(0.51)]]])
    before = gd.Overlaps(before.Q, before.R[..., :1], before.v)
    for change, harmful in [(1e-14, True), (1e-10, False)]:
        arrays = {"Q": np.array(after.Q), "R": np.array(after.R[..., :1])}
        arrays[name].flat[0] *= 1 + change
        changed = gd.Overlaps(**arrays, v=after.v)
        d = gd.diagnose(before, after=changed, problem=teacher(1), N=100)
        assert d.harmful == harmful


# where the rule "Q_ij rises after averaging" fails


def test_many_units_hide_the_rise_of_each_pair_but_not_the_loss():
    """Per pair the signal (1 - s) / K is below the noise 1 / sqrt(N) from K = sqrt(N) / 2 on."""
    K, N = 32, 1000
    rng = np.random.default_rng(2)
    W_star = rng.standard_normal((K, N))
    signals, noises = [], []
    for _ in range(20):
        W = np.stack([W_star, W_star[rng.permutation(K)]])
        w = gd.Weights(W=W, v=np.ones((2, K)), W_star=W_star)
        problem = teacher(K, T=W_star @ W_star.T / N)
        d = gd.diagnose(w, PAIR, problem=problem)
        assert d.harmful and d.verdict.startswith("units in different order")
        assert d.matched_ratio < 1e-9
        cosines = gd.cosines(problem, gd.overlaps(w))[0][0, :, 0]
        noises.append(cosines[np.triu_indices(K, 1)].std())
        signals.append(d.cosine_rise[0])
        assert not old_rule(d).any()
    signal = 0.5 / K  # of Q_ij; of the cosine, with Q_ii = 1/2 + 1/2K, nearly twice as much
    assert signal < np.mean(noises)
    assert np.mean(signals) == pytest.approx(signal / (0.5 + signal), rel=0.1)
    assert np.mean(signals) < 2 * np.mean(noises)


def test_Q_falls_while_copies_of_units_are_lost():
    """Students (1, 1, 2, 2) and (2, 2, 1, 1): Q_12 goes from 1 to 1/2."""
    a, b = np.eye(2)
    x = students([[a, a, b, b], [b, b, a, a]], v=np.full((2, 4), 0.5))
    after = gd.mix(PAIR, x)
    assert x.Q[0, 0, 0, 1] == 1 and after.Q[0, 0, 0, 1] == 0.5
    d = gd.diagnose(x, PAIR, problem=teacher(2), N=1000)
    assert d.harmful and d.verdict.startswith("units in different order")
    assert d.risk_before[0] == pytest.approx(0, abs=ALGEBRA)
    # the known risk of one exchange
    assert d.risk_after == pytest.approx(0.0203091, abs=6e-8)
    assert gd.diagnose(x, PAIR).harmful


def test_a_flipped_sign_leaves_Q_as_it_was():
    x = students([np.eye(2), np.diag([-1, 1])], v=[[1, 1], [-1, 1]])
    for options in ({"eta_v": 0.5}, {}):
        problem = teacher(2, **options)
        d = gd.diagnose(x, PAIR, problem=problem, N=1000)
        assert np.all(d.cosine_rise == 0) and not old_rule(d).any()
        assert d.harmful and d.mean_risk_after == pytest.approx(1 / 6, abs=ALGEBRA)
        assert d.verdict == "signs differ; the round loses alignment"
        # matched gossip turns the unit back where v can follow
        assert d.matched_ratio == pytest.approx(0 if problem.eta_v else 1, abs=ALGEBRA)
        assert gd.diagnose(x, gd.matched(PAIR, problem), problem=problem).harmful == (
            not problem.eta_v
        )
    both = students([np.eye(2), [[0, -1], [1, 0]]], v=[[1, 1], [-1, 1]])
    d = gd.diagnose(both, PAIR, problem=teacher(2, eta_v=0.5))
    assert d.verdict == "units in different order and signs differ; the round loses alignment"


def test_correlated_teachers_raise_Q_without_loss():
    """The mean of noisy students of one order comes nearer to a teacher with T_12 = 0.8."""
    T = np.array([[1, 0.8], [0.8, 1]])
    rng = np.random.default_rng(4)
    N = 2000
    W_star = np.linalg.cholesky(T) @ np.linalg.qr(rng.standard_normal((N, 2)))[0].T * np.sqrt(N)
    W = W_star + 0.6 * rng.standard_normal((4, 2, N))
    w = gd.Weights(W=W, v=np.ones((4, 2)), W_star=W_star)
    d = gd.diagnose(w, gd.complete(4), problem=teacher(2, T=T))
    assert np.all(old_rule(d))
    assert not d.harmful and np.all(d.alignment_after > d.alignment_before)
    assert np.all(d.risk_after < d.risk_before)


def test_the_floor_keeps_chance_from_counting():
    """Random starts: cosines of the order 1 / sqrt(N) come and go, and no alignment is lost."""
    problem = teacher(2)
    x = gd.random_start(problem, workers=2, students=2, N=200, seed=1, runs=400)
    d = gd.diagnose(x, PAIR, problem=problem, N=200)
    # The new cosine is half the sum of four old ones, one of which was there before: the rise has
    # sd 1 / sqrt(N) and passes 2 / sqrt(N) with probability 0.023; 400 runs, five sd.
    assert old_rule(d)[:, 0].mean() < 0.023 + 5 * np.sqrt(0.023 * 0.977 / 400)
    assert np.mean(d.harmful) < 0.01
    assert np.mean(gd.diagnose(x, PAIR, problem=problem).harmful) > 0.2


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda x: gd.diagnose(x), "either A, .* or after, .*: got neither"),
        (lambda x: gd.diagnose(x, PAIR, after=x), "either A, .* or after, .*: got both"),
        (lambda x: gd.diagnose(x, np.ones((1, 2)) / 2), r"R has shape \(2, 2, 2\) before, \(1, 2"),
        (lambda x: gd.diagnose(x, gd.ring(3)), "takes 3 workers, the state has 2"),
        (
            lambda x: gd.diagnose(x, PAIR, problem=teacher(3)),
            r"2 teacher units, .* \(3, 3\)",
        ),
        (lambda x: gd.diagnose(x, PAIR, N=10.5), "N, the input dimension, is a whole number"),
        (lambda x: gd.diagnose(x, PAIR, N=0), "N, .* from 1 up, got 0"),
    ],
)
def test_refusals_name_what_is_wrong(call, words):
    with pytest.raises(ValueError, match=words):
        call(ordered([0, 1], [1, 0]))


# setbacks


def slow_recovery(t, run, i, worker, slack=0.0):
    level = (1 + slack) * t.risk[run, i - 1, worker]
    for j in range(i, len(t.alpha)):
        if t.risk[run, j, worker] <= level:
            return t.alpha[j] - t.alpha[i]
    return np.inf


def test_setbacks_are_jump_and_first_return():
    """Workers from independent starts: some in the same order, some not; with label noise."""
    problem = teacher(2, eta=1.5, sigma=0.05)
    x0 = gd.random_start(problem, workers=2, students=2, N=50, seed=5, runs=24)
    rounds = [(80.0, PAIR), (40.0, None), (40.0, PAIR)]
    record = np.arange(0, 161.0, 2)
    t = gd.run(gd.chain(N=50, runs=24, seed=1), problem, x0, rounds, record=record)
    for slack in (0.0, 0.3):
        s = gd.setbacks(t, slack=slack)
        np.testing.assert_array_equal(s.alpha, [80, 160])
        at = [i for i in range(len(t.alpha)) if t.after_mixing[i]]
        for r, i in enumerate(at):
            assert t.alpha[i] == t.alpha[i - 1]
            np.testing.assert_array_equal(s.jump[:, r], t.risk[:, i] - t.risk[:, i - 1])
            for run in range(24):
                for worker in range(2):
                    expected = slow_recovery(t, run, i, worker, slack)
                    assert s.recovery[run, r, worker] == expected
        for N in (None, 50):  # one definition of harm, whoever computes it
            harmful = gd.setbacks(t, N=N).harmful
            for r, i in enumerate(at):
                states = t.state(i - 1), t.state(i)
                one = gd.diagnose(states[0], after=states[1], problem=problem, N=N).harmful
                np.testing.assert_array_equal(harmful[:, r], one)
    # The two kinds of runs: those whose workers disagree jump to the plateau and need long.
    first = gd.setbacks(t, slack=0.5)
    harmful = first.harmful[:, 0]  # N = 50 would hide a fall from 1 to .72
    assert 0 < harmful.sum() < 24
    long, short = (np.median(first.recovery[mask, 0]) for mask in (harmful, ~harmful))
    assert long > 10 > short
    assert np.median(first.jump[harmful, 0]) > 5 * np.abs(np.median(first.jump[~harmful, 0]))


def test_what_a_setback_is_in_the_flow():
    problem = teacher(2, eta=1.0)
    alike = gd.run(gd.flow(), problem, ordered([0, 1], [0, 1]), [(5.0, PAIR), (5.0, None)])
    s = gd.setbacks(alike)
    assert np.all(s.recovery == 0) and np.abs(s.jump).max() < ALGEBRA
    # Exactly swapped students have two equal units in their mean: these never separate.
    swapped = gd.run(gd.flow(), problem, ordered([0, 1], [1, 0]), [(0.0, PAIR), (300.0, None)])
    s = gd.setbacks(swapped)
    assert np.all(s.recovery == np.inf)
    np.testing.assert_allclose(s.jump, 0.0203091, rtol=0, atol=6e-8)


def test_a_round_is_compared_with_the_record_just_before_it():
    """What was half a unit of time before does not count; a risk that stays has come back."""
    problem = teacher(2, eta=1.0)
    t = gd.run(gd.flow(), problem, ordered([0, 1], [1, 0]), [(1.0, PAIR)], record=[0.5])
    assert t.alpha.tolist() == [0, 0.5, 1, 1]
    R = np.array(t.R)
    R[:, 1] = 0
    assert gd.setbacks(replace(t, R=R)).harmful.all()
    R[:, 2] = 0
    assert not gd.setbacks(replace(t, R=R)).harmful.any()
    same = gd.setbacks(replace(t, risk=np.ones_like(t.risk)))
    assert np.all(same.recovery == 0) and np.all(same.jump == 0)


def test_setbacks_are_refused_without_rounds_or_risks():
    problem, x = teacher(2), ordered([0, 1], [1, 0])
    with pytest.raises(ValueError, match="holds no round"):
        gd.setbacks(gd.run(gd.flow(), problem, x, 1.0))
    with pytest.raises(ValueError, match='keep "risk"'):
        gd.setbacks(gd.run(gd.flow(), problem, x, [(1.0, PAIR)], keep="Q"))
    t = gd.run(gd.flow(), problem, x, [(1.0, PAIR)])
    few = gd.run(gd.flow(), problem, x, [(1.0, PAIR)], keep=("Q", "risk"))
    assert gd.setbacks(few).harmful is None and gd.setbacks(t).harmful.all()
    with pytest.raises(ValueError, match="N, the input dimension"):
        gd.setbacks(t, N=0.5)
    for slack in (-1, np.inf, "little", True):
        with pytest.raises(ValueError, match="slack, a part of the risk"):
            gd.setbacks(t, slack=slack)
