"""Linear stability of the flow: fixed points and their modes, and perfect learning.

Chapters `plateau`, `global_minimum` and `noise_and_width`. What names no paper here is derived in
the book.
"""

from dataclasses import replace

import numpy as np
from scipy.integrate import solve_ivp

from .generalisation import risk
from .gossip import apply_mixing, check_mixing
from .ode import Coordinates, drift, noise
from .order_parameters import Overlaps, check_overlaps
from .problem import check_learns, check_problem
from .refusals import number, rounding
from .refusals import orders as check_orders

ROUNDING = 1e-13  # a multiplier below this part of the largest is one that the round erased


def fixed_point(problem, near, within=None, round=None):
    """The fixed point of the flow that Newton's method reaches from `near`, as Overlaps.

    near : Overlaps (P, ...) without a leading axis of runs; P = 1 unless there is a round.
    within : None, or a linear projection of Overlaps onto a family that the flow keeps, such as
        gossipdyn.symmetric: the search stays in the family, however unstable that is.
    round : None, or (period, A): find the state after mixing that comes back to itself when it
        trains for `period` and is mixed with A.

    Where fixed points form a family (spare units, copies of a unit) the Jacobian is singular: steps
    are then those of least squares, and the result is a member of the family close to `near`. Two
    fixed points can lie close together (a plateau with distinct and one with identical students, at
    small eta), so `near` decides.
    Raises ValueError when nothing is found, when `within` is not kept by the flow, and when the
    result is no overlaps of weights. Chapter `plateau`, equation :eq:`eq-fixed-point`.
    """
    coordinates, round = _checked(problem, near, round)
    if within is not None and not callable(within):
        raise ValueError(
            f"within is a projection of Overlaps, such as gossipdyn.symmetric, got {within!r}"
        )
    unit = np.eye(coordinates.size)
    if round is None:
        tolerance = 1e-11
        eta = problem.eta or problem.eta_v  # the unit of rates

        def mismatch(y):
            return coordinates.rate(y) / eta

        def jacobian(y):
            return coordinates.jacobian(y) / eta
    else:
        tolerance = 1e-8  # the integration's own, 1e-10, grows along unstable directions

        def mismatch(y):
            return _after_round(coordinates, y, round) - y

        def jacobian(y):
            return _round_derivative(coordinates, y, round) - unit

    basis = unit if within is None else _range(coordinates, within)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        y = _newton(mismatch, jacobian, basis @ (basis.T @ coordinates.pack(near)), basis)
        inside, whole = np.abs(basis.T @ mismatch(y)).max(), np.abs(mismatch(y)).max()
    if not inside < tolerance:
        raise ValueError(
            f"no fixed point found: Newton's method from `near` ends where a rate is {inside:.3g} "
            "(in units of eta, of eta_v where eta is 0, or of one round); start nearer, say at the "
            "end of a run of the flow"
        )
    if not whole < tolerance:
        raise ValueError(
            f"the flow does not keep the family `within`: it leaves it at a rate of {whole:.3g} "
            "eta; T, v_star or v lacks the symmetry of that family"
        )
    x = Overlaps(*coordinates.unpack(y))
    check_overlaps(problem, x)
    return x


def modes(problem, x, round=None):
    """How small deviations from x grow: (rates, directions), the fastest first.

    x : Overlaps (P, ...) without a leading axis of runs; P = 1 unless there is a round. Usually a
        fixed point; elsewhere these are the modes of the moment.
    round : None, or (period, A): train for `period`, then mix with A (P, P), or with a callable on
        states.

    rates : (n,) real parts of the eigenvalues of the Jacobian on the independent entries of Q
        (symmetric), R, and v if eta_v > 0, per unit of alpha; positive ones escape. With a round:
        ln |multiplier| / period of training and then mixing, -inf for what the round erases.
    directions : list of n Overlaps, the matching changes (dQ, dR, dv), of norm 1 on those entries.
        A complex pair of eigenvalues is given by the real and the imaginary part of its vector.
        Arbitrary, and another on another machine: the phase of such a vector, and the basis of
        the space that directions of equal rates span.

    Raises ValueError for an x of several workers without a round, a period that is not above 0,
    and where the flow has a kink at x (a ReLU student on top of a teacher unit, or at zero).
    Chapter `plateau`, equation :eq:`eq-modes`; Saad & Solla (1995) for the plateau's escape.
    """
    coordinates, round = _checked(problem, x, round)
    y = coordinates.pack(x)
    rough = coordinates.jacobian(y, step=2e-3)
    fine = coordinates.jacobian(y)
    # where the flow is smooth the two differ by 2e-9; at a kink the difference does not shrink
    if not np.abs(fine - rough).max() < 1e-5 * np.abs(fine).max():
        raise ValueError(
            "the flow has a kink at x, where its Jacobian does not exist: a student lies on a "
            "teacher unit, on another student or at zero; for perfect learning use "
            "largest_stable_eta"
        )
    if round is None:
        values, vectors = np.linalg.eig(fine)
        rates = values.real
    else:
        values, vectors = np.linalg.eig(_round_derivative(coordinates, y, round))
        size = np.abs(values)
        erased = size < ROUNDING * size.max()
        rates = np.full(size.shape, -np.inf)
        rates[~erased] = np.log(size[~erased]) / round[0]
    directions = []
    for i in np.argsort(-rates, kind="stable"):
        vector = vectors[:, i].imag if values[i].imag < 0 else vectors[:, i].real
        size = np.abs(vector)
        first = (size > 0.9 * size.max()).argmax()  # of entries of equal size: made positive
        vector = vector / np.linalg.norm(vector) * np.sign(vector[first])
        directions.append(Overlaps(*coordinates.unpack(vector, v0=np.zeros_like(x.v))))
    return np.sort(rates)[::-1], directions


def _checked(problem, x, round):
    """The Coordinates of x, and the round with its A as an array or a callable."""
    check_overlaps(problem, x)
    if x.v.ndim != 2:
        raise ValueError(
            f"stability is about one state (P, ...), got a leading axis: v {x.v.shape}"
        )
    if round is None and len(x.v) > 1:
        raise ValueError(
            f"x has {len(x.v)} workers, which learn independently between rounds: give a "
            "round=(period, A), or the overlaps of one worker"
        )
    if round is not None:
        try:
            period, A = round
        except (TypeError, ValueError) as error:
            raise ValueError(f"round is a pair (period, A), got {round!r}") from error
        period = number(period, "the period of a round", 0)
        if period == 0:
            raise ValueError("a round trains for a period above 0, got 0")
        if not callable(A):
            A = check_mixing(A, len(x.v))
            if len(A) != len(x.v):
                raise ValueError(
                    f"A of shape {A.shape} would turn {len(x.v)} workers into {len(A)}: a state "
                    "that comes back to itself needs a square A"
                )
            if not problem.eta_v and not np.allclose(A @ x.v, x.v, rtol=rounding(A), atol=0):
                raise ValueError(
                    "mixing changes the second layers of these workers, which differ and are not "
                    "trained (eta_v=0): give all workers the same v, or train it"
                )
        round = period, A
    return Coordinates(problem, x), round


def _after_round(coordinates, y, round):
    """The state y after training and mixing."""
    period, A = round
    path = solve_ivp(
        lambda _, y: coordinates.rate(y), (0, period), y, "DOP853", rtol=1e-10, atol=1e-13
    )
    return _mixed(coordinates, path.y[:, -1], A)


def _round_derivative(coordinates, y, round):
    """The derivative (n, n) of _after_round() with respect to y.

    That of the flow, Z, obeys dZ/dalpha = J Z along it. Equation :eq:`eq-round-modes`.
    """
    period, A = round
    n = y.size

    def rate(_, z):
        y, Z = z[:n], z[n:].reshape(n, n)
        return np.concatenate([coordinates.rate(y), (coordinates.jacobian(y) @ Z).ravel()])

    start = np.concatenate([y, np.eye(n).ravel()])
    end = solve_ivp(rate, (0, period), start, "DOP853", rtol=1e-10, atol=1e-13).y[:, -1]
    y, Z = end[:n], end[n:].reshape(n, n)
    step = 1e-3 * np.eye(n)  # mixing is linear (also a matched one, nearby): any step is exact
    before = y + np.concatenate([step, -step])
    forward, back = np.split(_mixed(coordinates, before, A), 2)
    return ((forward - back) / 2e-3).T @ Z


def _mixed(coordinates, y, A):
    x = Overlaps(*coordinates.unpack(y))
    return coordinates.pack(A(x) if callable(A) else apply_mixing(A, x))


def _newton(mismatch, jacobian, y, basis):
    """Damped Newton steps within the span of basis, for as long as they help.

    Directions slower than 1e-7 of the fastest count as neutral: they are left where they are. A
    trial that leaves the possible overlaps has no finite rate, and counts as no help.
    """
    f = basis.T @ mismatch(y)
    for _ in range(100):
        slopes = basis.T @ jacobian(y) @ basis
        if not np.all(np.isfinite(slopes)):
            break
        step = basis @ np.linalg.lstsq(slopes, -f, rcond=1e-7)[0]
        for part in 0.5 ** np.arange(10):
            trial = basis.T @ mismatch(y + part * step)
            if np.abs(trial).max() < np.abs(f).max():
                break
        else:
            break
        y, f = y + part * step, trial
    return y


def _range(coordinates, projection):
    """An orthonormal basis (n, k) of what a linear projection of Overlaps keeps."""
    unit = np.eye(coordinates.size)
    images = coordinates.pack(projection(Overlaps(*coordinates.unpack(unit, v0=0.0))))
    if not np.allclose(images @ images, images, rtol=0, atol=1e-9):
        raise ValueError("`within` is no projection: applied twice it differs from applied once")
    vectors, sizes, _ = np.linalg.svd(images.T)
    return vectors[:, sizes > 1e-9]


# perfect learning


def perfect(problem, students=None, orders=None):
    """The perfect solution as Overlaps: student m is teacher unit m, spare students are zero.

    students : K, at least M; M unless given. v is v_star, repeated in turn for spare students.
    orders : (P, M), instead: P perfect workers, and student k of worker p is teacher unit
    orders[p][k], its v that unit's. [(0, 1), (1, 0)] are two workers in opposite orders.
    Raises ValueError for K below M, for K above M when the activation is not 0 at 0, and for orders
    that are no permutations or of which P is 0. Chapter `one_round`, equation :eq:`eq-two-values`.
    """
    check_problem(problem)
    K, M = problem.M if students is None else students, problem.M
    if isinstance(K, bool) or not isinstance(K, int | np.integer) or K < M:
        raise ValueError(f"perfect learning needs students >= M = {M}, a whole number, got {K!r}")
    if K > M and problem.activation.g(np.zeros(1))[0] != 0:
        raise ValueError(
            f"spare students at zero are silent only when g(0) = 0; {problem.activation.name} has "
            f"g(0) = {problem.activation.g(np.zeros(1))[0]:.4g}: use students={M}"
        )
    if orders is not None:
        units = check_orders(orders, M)
        if units.ndim != 2 or not len(units) or K > M:
            raise ValueError(
                f"orders are those of P workers with M = {M} students each, (P, {M}), got shape "
                f"{units.shape} and students={students}"
            )
        return Overlaps(
            Q=problem.T[units[:, :, None, None], units], R=problem.T[units], v=problem.v_star[units]
        )
    R = np.concatenate([problem.T, np.zeros((K - M, M))])
    Q = np.concatenate([R, np.zeros((K, K - M))], axis=1)
    return Overlaps.single(Q, R, np.resize(problem.v_star, K))


def largest_stable_eta(problem, students=None):
    """The learning rate above which perfect learning is unstable, in the limit N -> infinity.

    About perfect(problem, students) the covariance D of the students' errors obeys
    dD/dalpha = -eta (H D + D H) + eta^2 S[D], where S is the scatter of single samples; the rate at
    which S wins is the answer. It depends on the batch; not on eta, eta_v and sigma. Above it the
    flow does not diverge, it settles at an error. A finite N is less stable: a linear unit is
    stable up to 2 N / (N + 2), not 2.

    Raises ValueError with weight decay (no perfect solution), for K below M, and where errors do
    not obey linear equations (spare ReLU students). Chapter `global_minimum`, equation
    :eq:`eq-stable-eta`; derived in the book.
    """
    x = perfect(problem, students)
    decay, scatter = _errors(replace(problem, eta=1.0), x)[:2]
    gain = np.linalg.eigvals(np.linalg.pinv(decay, rcond=1e-9, hermitian=False) @ scatter)
    return float(1 / gain.real.max())


def noise_floor(problem, x):
    """Stationary generalisation error per unit of label-noise variance, for small label noise.

    lim eps_g / sigma^2 at a perfect solution x (Overlaps of one worker without error), to all
    orders in eta: half of tr(H D), where D balances decay, scatter and label noise. Directions in
    which x is neutral (two spare units moving oppositely, copies of one unit moving apart) are left
    out: with label noise they drift slowly, so that there the floor is that of a long plateau.

    Raises ValueError where x is not perfect or not stable. Chapter `noise_and_width`, equation
    :eq:`eq-noise-floor`; Goldt et al. (2019) at first order in eta, beyond it derived in the book.
    """
    check_learns(problem, "a noise floor")
    decay, scatter, label, H = _errors(problem, x)
    balance = decay - scatter
    if np.linalg.eigvals(balance).real.min() < -1e-7 * np.abs(decay).max():
        raise ValueError(
            f"at eta={problem.eta:.6g} the perfect solution is unstable, it has no noise floor"
        )
    D = np.linalg.pinv(balance, rcond=1e-9) @ label
    return float(H @ D / 2)


def _errors(problem, x):
    """Decay, scatter (n, n) and label noise, risk (n,) of the errors' covariance D near x.

    With W = W_perfect + Z and Z across all else, D = Z Z^T / N has the drift U D + D U^T, with U
    that of drift(); noise() is linear in D, its slope is a limit that expands in powers of sqrt(D)
    where g has kinks: a table of extrapolation in those powers. Vectors: upper triangle of D.
    """
    check_overlaps(problem, x)
    if problem.weight_decay:
        raise ValueError(
            f"with weight_decay={problem.weight_decay:.6g} perfect learning is no fixed point: use "
            "fixed_point and modes"
        )
    if x.v.shape[:-1] != (1,) or risk(problem, x).max() > 1e-12:
        raise ValueError(
            "x is no perfect solution of one worker: its generalisation error is not 0"
        )
    clean, K = replace(problem, sigma=0.0), x.v.size
    i, j = np.triu_indices(K)
    unit = np.eye(K)
    # rows moving together or alone: errors that exist, and span all symmetric D
    basis = (unit[i] + (i != j)[:, None] * unit[j])[:, :, None]
    basis = basis * basis.swapaxes(1, 2)
    probes = np.concatenate([basis, basis.sum(0)[None]])
    size = 0.1 * 0.5 ** np.arange(7)  # of Z
    Q = x.Q[0, :, 0] + size[:, None, None, None] ** 2 * probes
    moved = Overlaps(
        Q=Q[:, :, None, :, None, :],
        R=np.broadcast_to(x.R, (*Q.shape[:2], *x.R.shape)),
        v=np.broadcast_to(x.v, (*Q.shape[:2], *x.v.shape)),
    )
    table = noise(clean, moved)[:, :, 0] / size[:, None, None, None] ** 2
    for order in range(1, len(size)):
        table = table[1:] + (table[1:] - table[:-1]) / (2**order - 1)
    slope = table[0]
    if not np.allclose(slope[:-1].sum(0), slope[-1], rtol=0, atol=1e-3 * np.abs(slope[-1]).max()):
        raise ValueError(
            f"near this perfect solution errors do not obey linear equations: a spare student at "
            f"zero sits on the kink of {problem.activation.name}; use students={problem.M}"
        )
    U = drift(clean, x)[0][0]
    fall = -(U @ basis + basis @ U.T)
    to_units = np.linalg.inv(basis[:, i, j].T)
    decay, scatter = fall[:, i, j].T @ to_units, slope[:-1][:, i, j].T @ to_units
    label = noise(replace(problem, sigma=1.0), x)[0][i, j]
    H = -U[i, j] * np.where(i == j, 1, 2) / problem.eta
    return decay, scatter, label, H
