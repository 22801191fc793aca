"""The flow: the engine of the limit N -> infinity.

Chapter :doc:`from_sgd_to_ode`, equation :eq:`eq-flow`.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from ..checks import check_mixing, flag
from ..equations import State, check_coupling
from ..gossip.mix import with_rows
from ..labels import has_axis, made, with_runs, workers
from ..states import Overlaps
from .divergence import LARGEST_RISK, Diverged, watch
from .engine import Engine
from .paths import Apart, Coupled

BATCH = 2**15  # rows times fields of the runs that one solver takes together, about
MANY = 25  # explicit steps after which LSODA gets along better
CHECKED = 4  # steps of LSODA between two looks at whether its path is still good


def flow(
    rtol: float = 1e-8,
    atol: float | None = None,
    coupling: tuple[float, ArrayLike] | None = None,
    together: bool = False,
) -> Engine:
    """Make the engine of the limit N -> infinity: deterministic, adaptive, implicit if it is stiff.

    Parameters
    ----------
    rtol, atol : float, optional
        Tolerances of the solver, between 0 and 1; by default atol is rtol / 1000. Recorded states
        are the solver's own interpolation at exactly the times asked for.
    coupling : (kappa, A), optional
        Beside any rounds, workers drift towards their neighbours all the time,
        dW^p/dalpha = ... - kappa (W^p - sum_q A_pq W^q), with a mixing matrix A (P, P) as in mix().
    together : bool, optional
        Whether the runs of a leading axis share the steps of one solver. That is several times as
        fast for many small runs; each is as exact, but its last digits depend on the others. By
        default a run is, to the last bit, what it is alone.

    Returns
    -------
    Engine
        An engine for run(), which starts from Overlaps.

    Raises
    ------
    ValueError
        If a tolerance is out of its range, if coupling is no pair (kappa, A), or if together is
        neither True nor False.

    See Also
    --------
    chain, sgd : The engines of finite N.

    Notes
    -----
    The solver is LSODA, which takes implicit steps where the flow is stiff, and DOP853 from a round
    to the next where they lie close together. Between rounds, without coupling, workers learn
    independently, so the cost grows like P, and not like P^2 (equation :eq:`eq-propagator`).

    References
    ----------
    Chapter :doc:`from_sgd_to_ode`, equation :eq:`eq-flow`; chapter :doc:`gossip_ode`, equation
    :eq:`eq-coupling`, for the coupling, derived in the book.

    Examples
    --------
    From a small overlap with the teacher a single unit learns it:

    >>> problem = gd.Problem(gd.erf, v_star=np.ones(1), T=np.eye(1), eta=0.5)
    >>> x0 = gd.Overlaps.single(Q=np.eye(1), R=[[0.1]], v=np.ones(1))
    >>> t = gd.run(gd.flow(), problem, x0, 150.0)
    >>> print(t.R[0, -1].ravel().round(3))
    [1.]
    """
    atol = rtol / 1000 if atol is None and isinstance(rtol, Real) else atol
    options: dict[str, Any] = {}
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        if not isinstance(tolerance, Real) or not 0 < tolerance < 1:
            raise ValueError(f"{name} is a tolerance between 0 and 1, got {tolerance!r}")
        options[name] = float(tolerance)
    if coupling is not None:
        coupling = check_coupling(coupling)
        options["coupling"] = [coupling[0], coupling[1].tolist()]

    if flag(together, "together"):
        options["together"] = True

    begin = partial(_begin, coupling=coupling)
    advance = partial(_advance, rtol=rtol, atol=atol, coupling=coupling, together=together)
    return Engine("flow", options, None, begin, advance)


def _begin(problem, x0, start, rows, *, coupling):
    if has_axis(x0, "input"):
        raise ValueError(
            f"flow starts from Overlaps, got {type(x0).__name__}: gossipdyn.overlaps(w) makes them"
        )
    if coupling is not None:
        check_mixing(coupling[1], workers(x0))
    inverse = np.linalg.pinv(problem.T, rcond=1e-9, hermitian=True)
    return with_runs(with_rows(x0, rows)), _Source(len(rows), inverse)


class _Source(NamedTuple):
    """What the engine keeps beside the state.

    still : how many workers stay. inverse : that of T. steps : the length in alpha of an explicit
    step of each batch of runs, as far as it is known.
    """

    still: int
    inverse: np.ndarray
    steps: tuple | None = None


def _advance(problem, x, source, now, times, *, rtol, atol, coupling, together):
    if not times:
        return
    if coupling is not None and source.still:  # nothing pulls rows that only a round knows
        kappa, A = coupling
        coupling = kappa, scipy.linalg.block_diag(A, np.eye(source.still))
    runs, everyone, K, M = x.R.shape
    batch = 1
    if together:  # no more than leave a tolerance that float64 can hold
        batch = BATCH // (everyone * K * (K + M)) if coupling is None else BATCH // x.Q[0].size
        batch = max(1, min(batch, int((rtol / 1e-13) ** 2)))
    batches = [slice(first, first + batch) for first in range(0, runs, batch)]
    paths = []
    for part, step in zip(batches, source.steps or len(batches) * (None,), strict=True):
        start = State(x.Q[part], x.R[part], x.v[part]), source.still, source.inverse
        path = Apart(problem, *start) if coupling is None else Coupled(problem, *start, coupling)
        narrow = len(start[0].v) ** -0.5  # solvers look at a mean over all that moves
        paths.append(
            _integrate(part.start, path, step, now, times, rtol=rtol * narrow, atol=atol * narrow)
        )
    for _ in times:
        states, steps = zip(*(next(path) for path in paths), strict=True)
        Q, R, v = (
            np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
            for arrays in zip(*states, strict=True)
        )
        yield made(Overlaps, Q=Q, R=R, v=v), source._replace(steps=steps)


def _integrate(first, path, step, now, times, *, rtol, atol):
    """The State of a batch of runs at the given times, and the explicit step to go on with.

    A solver that changes its order, as LSODA does, has to begin with tiny steps: that costs about
    as much as three steps of a Runge-Kutta method of order 8, each of which is as long as five of
    LSODA's and costs 12 rates to their 2. So a short way is gone by Runge-Kutta, a long one by
    LSODA, and also one that has become long because a stiff path holds the explicit steps short.

    first : number of the first run, for a refusal. step : None where no explicit step is known.
    """
    problem, slack, y = path.problem, min(100 * rtol, 1e-2), path.start
    length = times[-1] - now
    ends = [*problem.breaks(now, times[-1]), times[-1]]
    explicit = step is not None and length <= MANY * step
    if not explicit:  # where the last guess was too short it will be found out sooner or later
        step = length / MANY if step is None else 2 * step
    solver, pending, since = None, 0, 0
    while pending < len(times):
        if solver is None:
            solver = _solver(path, explicit and step, now, y, ends[0], rtol, atol)
        tried, failed = solver.h_abs if explicit else 0.0, False
        try:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # noticed below
                message = solver.step()
            failed = solver.status == "failed"
        except ValueError:  # a long step meets fields that the path itself never reaches
            if not explicit:
                raise
            failed = True
        if explicit and failed:
            explicit, solver, now, y = False, None, solver.t, solver.y
            continue
        if failed or not solver.y @ solver.y < LARGEST_RISK:
            watch(problem, path.unpack(solver.y), solver.t, first=first)
        if failed:
            raise Diverged(f"the solver stopped at alpha={solver.t:.6g}: {message}")
        now = solver.t
        if explicit:
            step = max(tried, solver.h_abs) if solver.status == "finished" else solver.h_abs
            long = times[-1] - now > MANY * step and step < 2 * tried
        reached = bisect_right(times, now, lo=pending)
        if reached > pending:
            within = np.array(times[pending:reached])
            if pending < reached - (within[-1] == now):
                along = np.moveaxis(solver.dense_output()(within), -1, 0)
                along[within == now] = solver.y
                for state in zip(*path.unpack(along), strict=True):
                    yield State(*state), step
            else:
                yield path.unpack(solver.y), step
            pending = reached
        since += 1
        again = None
        if pending < len(times) and (explicit or since % CHECKED == 0 or now == ends[0]):
            again = path.restarted(solver.y, slack)
        if again or now == ends[0] or (explicit and long):
            y = again.start if again else solver.y
            path = again or path
            ends = [end for end in ends if end > now]
            explicit, solver = explicit and not long, None


def _solver(path, step, now, y, end, rtol, atol):
    """SciPy's solver from now to `end`, between which rates are smooth."""
    last = max(now, np.nextafter(end, now))  # at `end` rates are those just before it

    def rate(t, y):
        return path.rate(min(t, last), y)

    if step:
        return scipy.integrate.DOP853(
            rate, now, y, end, first_step=min(step, end - now), rtol=rtol, atol=atol
        )
    return scipy.integrate.LSODA(
        rate, now, y, end, rtol=rtol, atol=atol,
        jac=lambda t, y: path.jacobian(min(t, last), y),
        lband=path.size - 1, uband=path.size - 1,
    )  # fmt: skip
