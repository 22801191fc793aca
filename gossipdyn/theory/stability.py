"""Linear stability of the flow: fixed points and their modes.

Chapter :doc:`plateau`. What names no paper here is derived in the book.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
import scipy
from numpy.typing import ArrayLike

from ..checks import check_mixing, function, number, pair, rounding
from ..coordinates import Coordinates
from ..gossip.mix import mixed
from ..problem import Problem
from ..states import Overlaps, check_overlaps
from .diffusion import check_one_state

ERASED = 1e-13  # a multiplier below this part of the largest is one that the round erased


def fixed_point(
    problem: Problem,
    near: Overlaps,
    within: Callable[[Overlaps], Overlaps] | None = None,
    round: tuple[float, ArrayLike | Callable] | None = None,
) -> Overlaps:
    """Find the fixed point of the flow that Newton's method reaches from ``near``.

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    near : Overlaps
        State (P, ...) without a leading axis of runs; P = 1 unless a round of gossip is given.
    within : callable, optional
        Linear projection of Overlaps onto a family that the flow keeps, such as
        ``gossipdyn.symmetric``. The search then stays in the family, however unstable that is.
    round : (period, A), optional
        A round of gossip. Then the state just after mixing is found that comes back to itself when
        it trains for ``period`` and is mixed with A.

    Returns
    -------
    Overlaps
        The fixed point.

    Raises
    ------
    ValueError
        If nothing is found, if the flow does not keep the family ``within``, or if the result is
        not the overlaps of any weights.

    See Also
    --------
    modes : How small deviations from a fixed point grow.

    Notes
    -----
    If fixed points form a family (spare units, copies of a unit) the Jacobian is singular. Steps
    are then those of least squares, and the result is a member of the family close to ``near``. Two
    fixed points can lie close together (at small eta, a plateau with distinct and one with
    identical students), so ``near`` decides.

    References
    ----------
    Chapter :doc:`plateau`, equation :eq:`eq-fixed-point`; derived in the book.
    """
    coordinates, gossip = _checked(problem, near, round)
    if within is not None:
        function(within, "within, a projection of Overlaps such as gossipdyn.symmetric,")
    unit = np.eye(coordinates.size)
    if gossip is None:
        tolerance = 1e-11
        eta = problem.eta or problem.eta_v  # the unit of rates

        def mismatch(y):
            return coordinates.rate(y) / eta

        def jacobian(y):
            return coordinates.jacobian(y) / eta
    else:
        tolerance = 1e-8  # the integration's own, 1e-10, grows along unstable directions

        def mismatch(y):
            return _after_round(coordinates, y, gossip) - y

        def jacobian(y):
            return _round_derivative(coordinates, y, gossip) - unit

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


def modes(
    problem: Problem, x: Overlaps, round: tuple[float, ArrayLike | Callable] | None = None
) -> tuple[Annotated[np.ndarray, "n"], list[Overlaps]]:
    """Compute how small deviations from a state grow.

    Parameters
    ----------
    problem : Problem
        The teacher and the learning rule.
    x : Overlaps
        State (P, ...) without a leading axis of runs; P = 1 unless a round of gossip is given. It
        is usually a fixed point. Elsewhere the result holds the modes of the moment.
    round : (period, A), optional
        A round of gossip: training for ``period``, then mixing with A, which is a matrix (P, P) or
        a callable on states.

    Returns
    -------
    rates : (n,) array
        Real parts of the eigenvalues of the Jacobian, per unit of alpha, the largest first;
        positive ones escape. The Jacobian acts on the independent entries of Q (symmetric), R, and
        v if eta_v > 0. With a round they are ``ln |multiplier|`` / period of training and then
        mixing, and -inf for what the round erases.
    directions : list of Overlaps
        The matching changes (dQ, dR, dv), of norm 1 on those entries. A complex pair of eigenvalues
        is given by the real and the imaginary part of its vector.

    Raises
    ------
    ValueError
        If x has several workers and no round is given, if the period is not above 0, or if the flow
        has a kink at x (a ReLU student on top of a teacher unit, or at zero).

    See Also
    --------
    fixed_point : The states about which this is asked.

    Notes
    -----
    The phase of a complex vector, and the basis of the space that directions of equal rates span,
    are arbitrary, and can differ on another machine.

    References
    ----------
    Chapter :doc:`plateau`, equation :eq:`eq-modes`; Saad and Solla (1995) for the escape from the
    plateau, beyond it derived in the book.
    """
    coordinates, gossip = _checked(problem, x, round)
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
    if gossip is None:
        values, vectors = np.linalg.eig(fine)
        rates = values.real
    else:
        values, vectors = np.linalg.eig(_round_derivative(coordinates, y, gossip))
        size = np.abs(values)
        erased = size < ERASED * size.max()
        rates = np.full(size.shape, -np.inf)
        rates[~erased] = np.log(size[~erased]) / gossip[0]
    directions = []
    for i in np.argsort(-rates, kind="stable"):
        vector = vectors[:, i].imag if values[i].imag < 0 else vectors[:, i].real
        size = np.abs(vector)
        first = (size > 0.9 * size.max()).argmax()  # of entries of equal size: made positive
        vector = vector / np.linalg.norm(vector) * np.sign(vector[first])
        directions.append(Overlaps(*coordinates.unpack(vector, v0=np.zeros_like(x.v))))
    return np.sort(rates)[::-1], directions


def _checked(problem, x, round):
    """The Coordinates of x, and the round of gossip with its A as an array or a callable."""
    check_one_state(problem, x)
    if round is None and len(x.v) > 1:
        raise ValueError(
            f"x has {len(x.v)} workers, which learn independently between rounds: give a "
            "round=(period, A), or the overlaps of one worker"
        )
    if round is not None:
        period, A = pair(round, "round", "(period, A)")
        period = number(period, "the period of a round", above=0)
        if not callable(A):
            A = check_mixing(A, len(x.v), square="a state that comes back to itself")
            if not problem.eta_v and not np.allclose(A @ x.v, x.v, rtol=rounding(A), atol=0):
                raise ValueError(
                    "mixing changes the second layers of these workers, which differ and are not "
                    "trained (eta_v=0): give all workers the same v, or train it"
                )
        round = period, A
    return Coordinates(problem, x), round


def _after_round(coordinates, y, gossip):
    """The state y after training and mixing."""
    period, A = gossip
    path = scipy.integrate.solve_ivp(
        lambda _, y: coordinates.rate(y), (0, period), y, "DOP853", rtol=1e-10, atol=1e-13
    )
    return coordinates.pack(mixed(A, Overlaps(*coordinates.unpack(path.y[:, -1]))))


def _round_derivative(coordinates, y, gossip):
    """The derivative (n, n) of _after_round() with respect to y.

    That of the flow, Z, obeys dZ/dalpha = J Z along it. Equation :eq:`eq-round-modes`.
    """
    period, A = gossip
    n = y.size

    def rate(_, z):
        y, Z = z[:n], z[n:].reshape(n, n)
        return np.concatenate([coordinates.rate(y), (coordinates.jacobian(y) @ Z).ravel()])

    start = np.concatenate([y, np.eye(n).ravel()])
    end = scipy.integrate.solve_ivp(rate, (0, period), start, "DOP853", rtol=1e-10, atol=1e-13).y[
        :, -1
    ]
    slope = coordinates.jump(lambda x: mixed(A, x), end[:n])[1]
    return slope @ end[n:].reshape(n, n)


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
    """Return an orthonormal basis (n, k) of what a projection of Overlaps leaves as it is."""
    unit = np.eye(coordinates.size)
    states = Overlaps(*coordinates.unpack(unit, v0=0.0))
    images = coordinates.pack(mixed(projection, states))
    if not np.allclose(images @ images, images, rtol=0, atol=1e-9):
        raise ValueError("`within` is no projection: applied twice it differs from applied once")
    vectors, sizes, _ = np.linalg.svd(images.T)
    return vectors[:, sizes > 1e-9]
