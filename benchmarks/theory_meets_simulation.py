"""The tables of the chapter theory_meets_simulation, in book/data. Four minutes on one idle core.

    python benchmarks/theory_meets_simulation.py

Four erf students learn from two orthonormal teachers (eta = 0.5, second layers fixed at 1, no
label noise). For inputs N = 50 to 1000 the chain is compared with the flow, in two ways:

- `..._fixed.csv`: all runs from one start, off the symmetric plateau. Relative deviations of the
  risk at fixed alpha: of the mean (`bias`) and of single runs (`spread`), with standard errors.
- `..._exit.csv`: every run from its own random start. `chain` is the spread over runs of the time
  at which the chain's risk falls below 0.01, `gap` the spread of that time less the flow's from the
  same start.
"""

import numpy as np
import tables

import gossipdyn as gd

SIZES = (50, 100, 200, 500, 1000)
PROBLEM = gd.Problem(activation=gd.erf, v_star=(1, 1), T=np.eye(2), eta=0.5)
START = gd.Overlaps.single(
    Q=np.diag([0.2, 0.3, 0.25, 0.15]),
    R=[[0.3, 0], [0, 0.25], [0.1, 0], [0, 0.05]],
    v=[1, 1, 1, 1],
)
TIMES = (1, 2, 5, 10)
SEED = 1


def deviations(N, runs, seed):
    """Rows (alpha, bias, its error, spread, its error) of the risk, relative to the flow."""
    options = {"record": TIMES, "keep": ("risk",)}
    flow = gd.run(gd.flow(), PROBLEM, START, TIMES[-1], **options)
    chain = gd.run(gd.chain(N=N, runs=runs, seed=seed), PROBLEM, START, TIMES[-1], **options)
    off = (chain.risk[..., 0] / flow.risk[..., 0] - 1)[:, 1:]
    spread, error = spread_and_error(off)
    return np.column_stack([TIMES, off.mean(0), spread / np.sqrt(runs), spread, error])


def spread_and_error(x):
    """Standard deviation over runs, and its standard error."""
    x = x - x.mean(0)
    spread = x.std(0)
    return spread, np.sqrt(((x**4).mean(0) - spread**4) / len(x)) / (2 * spread)


def crossing(t, level=0.01):
    """(runs,) the first time at which the risk of each run is below the level, interpolated."""
    risk = t.risk[..., 0]
    i = np.argmax(risk < level, axis=1)
    if not i.all():
        raise ValueError(f"{np.sum(i == 0)} of {i.size} runs never came below {level}: run longer")
    run = np.arange(i.size)
    part = (risk[run, i - 1] - level) / (risk[run, i - 1] - risk[run, i])
    return t.alpha[i - 1] + part * (t.alpha[i] - t.alpha[i - 1])


def exits(N, runs, seed, last=800.0):
    """The times at which chain and flow leave the plateau, (runs,) each."""
    starts = gd.random_start(PROBLEM, workers=1, students=4, N=N, runs=runs, seed=seed)
    options = {"record": np.arange(0, last, 2.0), "keep": ("risk",)}
    engines = gd.chain(N=N, runs=runs, seed=seed), gd.flow(rtol=1e-6)
    return [crossing(gd.run(engine, PROBLEM, starts, last, **options)) for engine in engines]


def fixed(N):
    runs = 32 * N  # bias / spread ~ 1 / sqrt N: the bias is known equally well at every N
    return [(N, runs, *row) for row in deviations(N, runs, SEED)]


def random(N, runs=256):
    chain, flow = exits(N, runs, SEED)
    return [(N, runs, *spread_and_error(chain - flow), *spread_and_error(chain))]


def columns(given, numbers):
    return dict.fromkeys(given.split(), "") | dict.fromkeys(numbers.split(), ".5g")


TABLES = {
    "theory_meets_simulation_fixed": tables.Table(
        columns("N runs alpha", "bias bias_error spread spread_error"), fixed, SIZES
    ),
    "theory_meets_simulation_exit": tables.Table(
        columns("N runs", "gap gap_error chain chain_error"), random, SIZES
    ),
}

if __name__ == "__main__":
    tables.make(__file__)
