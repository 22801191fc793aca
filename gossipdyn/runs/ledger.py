"""The record that a run keeps while it goes on."""

import numpy as np

from ..engines.divergence import LARGEST_RISK, check_size, refuse_risks
from ..equations import mean_worker, unchecked_risk
from ..labels import as_numpy, has_axis, made, of_workers, workers
from ..states import overlaps
from .saved import KEPT
from .trajectory import Trajectory

WAITING = 2**18  # numbers in Q of the states whose risks have not been computed yet, at most


class Ledger:
    """What is written down while a run goes on, and its last state that had not diverged.

    Risks are computed for many states at once, so a state waits until check() has found its risk
    in bounds. Only then it belongs to the record.
    """

    def __init__(self, engine, problem, asked, size):
        self.engine, self.problem, self.asked, self.size = engine, problem, asked, size
        self.P = workers(asked["x0"])
        self.alpha, self.after_mixing, self.arrays = [], [], {}
        self.kind = self.last = self.written = None
        self.waiting, self.numbers = [], 0

    def write(self, state, alpha, after_mixing=False, shown=True, in_bounds=False):
        """Look at a state, and record it if it is shown. Raises Diverged.

        in_bounds : whether it is known that the state has not diverged, if the last one had not.
        """
        seen = None
        if shown or not in_bounds:
            try:
                check_size(self.problem, state, alpha, self.engine.N)
                seen = self._seen(state)
            except ValueError:
                self.check()  # the cause may lie before
                raise
        self.waiting.append((state, seen, alpha, after_mixing, shown))
        self.numbers += 0 if seen is None else overlaps(seen, self.problem).Q.size
        if self.numbers > WAITING or has_axis(state, "input"):  # weights are not kept waiting
            self.check()

    def _seen(self, state):
        """What is recorded of a state: that of the workers, without the rows beside them."""
        if workers(state) > self.P:
            state = of_workers(state, slice(self.P))
        return overlaps(state, None) if has_axis(state, "input") else state

    def check(self):
        """Compute the risks of all states that wait, and record those that are shown.

        Raises Diverged at the first one out of bounds; those before it are recorded.
        """
        waiting = self.waiting
        looked_at = [entry[1] for entry in waiting if entry[1] is not None]
        try:
            if looked_at:
                seen = _stacked(looked_at)
                x = overlaps(seen, self.problem)
                with np.errstate(over="ignore", invalid="ignore"):  # of what has diverged
                    risks = unchecked_risk(self.problem, x)
        except ValueError:  # one of them has no risk: those before it have, and are recorded
            self.waiting, self.numbers = [], 0
            if len(waiting) == 1:
                raise
            for entry in waiting:
                self.waiting = [entry]
                self.check()
            return
        self.waiting, self.numbers = [], 0
        good, number = [], 0
        try:
            for state, own, alpha, after_mixing, shown in waiting:
                if own is not None:
                    if not np.all(risks[number] < LARGEST_RISK):
                        bad = overlaps(own, self.problem)
                        refuse_risks(self.problem, risks[number], bad, alpha, self.engine.N)
                    if shown:
                        good.append((number, state, alpha, after_mixing))
                    number += 1
                self.last = state, alpha, after_mixing
        finally:
            if good:
                numbers, states, alphas, mixings = zip(*good, strict=True)
                chosen = list(numbers)
                self._record(seen, x, risks, chosen, alphas, mixings)
                self.written = states[-1]

    def _record(self, seen, x, risks, chosen, alphas, mixings):
        """Write the states of number `chosen` of the stacked ones behind the others."""
        x = _chosen(x, chosen)
        values = {name: getattr(x, name) for name in x.axes}
        values |= {name: getattr(seen, name)[chosen] for name in seen.axes}
        values["risk"] = risks[chosen]
        values["mean_risk"] = unchecked_risk(self.problem, mean_worker(x))[..., 0]
        self.kind = type(seen)
        first = len(self.after_mixing)
        part = slice(first, first + len(chosen))
        for name in self.asked["keep"]:
            _, runs, *shape = values[name].shape
            if name not in self.arrays:
                self.arrays[name] = np.empty((runs, self.size, *shape))
            self.arrays[name][:, part] = values[name].swapaxes(0, 1)
        self.alpha[first:] = alphas
        self.after_mixing.extend(mixings)

    def trajectory(self, complete):
        """The Trajectory of what is written; of a run that was stopped, with its last state."""
        try:
            self.check()
        except ValueError:  # what has diverged is not part of it
            pass
        state, alpha, after_mixing = self.last
        if state is not self.written:
            self.write(state, alpha, after_mixing)
            self.check()
        n = len(self.after_mixing)
        weights = None
        if self.engine.keeps_weights:
            weights = of_workers(state, slice(self.P)) if workers(state) > self.P else state
            weights = type(state)(
                **{name: np.asarray(as_numpy(getattr(weights, name))) for name in state.axes}
            )
        kept = {name: array[:, :n] for name, array in self.arrays.items()}
        return Trajectory(
            problem=self.problem,
            alpha=np.array(self.alpha[:n], dtype=float),
            after_mixing=np.array(self.after_mixing, dtype=bool),
            **{name: kept.get(name) for name in KEPT},
            weights=weights,
            complete=complete,
            engine={"name": self.engine.name, "options": self.engine.options},
            asked=self.asked,
            kind=self.kind.__name__,
            more={name: array for name, array in kept.items() if name not in KEPT},
        )


def _stacked(states):
    """States of one kind and shape as one, along a new leading axis."""
    kind = type(states[0])
    if len(states) == 1:
        return made(kind, **{name: getattr(states[0], name)[None] for name in kind.axes})
    return made(kind, **{n: np.stack([getattr(s, n) for s in states]) for n in kind.axes})


def _chosen(x, chosen):
    return made(type(x), **{name: getattr(x, name)[chosen] for name in x.axes})
