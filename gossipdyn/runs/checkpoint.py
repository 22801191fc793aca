"""The checkpoint of a run: what the run is, and how far it has come."""

import pickle
import random
import sys

import numpy as np

from .digest import digest, environment
from .files import pickled, read_pickle, write_pickle

WHO = "a checkpoint needs a run"


class Checkpoint:
    """The file of one run: what the run is, and how far it has come.

    run : dict, what the run is made of. rounds : its schedule. The callables of a schedule may
    hold a state: they are written with the rest. What they find outside themselves (globals of
    their modules, attributes of their classes, global random numbers) no file holds, so that must
    not change.
    """

    def __init__(self, path, run, rounds):
        self.path, self.run = path, run
        self.digests = {"gossipdyn": environment(), **{name: digest(run[name]) for name in run}}
        callables = [A for _, A in rounds if callable(A)]
        self.callables = pickled(callables, WHO) if callables else None
        self.torch = sys.modules.get("torch")
        self.outside = self._outside()

    def resumed(self):
        """What an earlier run of the same call has written last, or None."""
        found = read_pickle(self.path)
        if found is None:
            return None
        digests, run, self.callables, content = found
        self.outside = self._outside()
        for name, own in self.digests.items():
            if digests[name] != own and name == "gossipdyn":
                raise ValueError(
                    f"the checkpoint {self.path} was written by another version of gossipdyn, "
                    "numpy, scipy or torch, with which the run cannot go on bit for bit: name "
                    "another file, or delete it"
                )
            if digests[name] != own:
                raise ValueError(
                    f"the checkpoint {self.path} belongs to another run, its {name} differs "
                    f"(in values, in the code of functions, or in the state that a callable "
                    f"starts from):\n{run[name]}\nagainst\n{self.run[name]}\nmake callables "
                    "anew as at the start, name another file, or delete it"
                )
        return content

    def write(self, content, last=False):
        """Write how far the run has come; unless it is the last time, refuse a changed outside."""
        if not last and self._outside() != self.outside:
            raise ValueError(
                "a callable of the schedule changes what lies outside it (a global of its module, "
                "an attribute of its class, global random numbers), which no checkpoint "
                f"{self.path} can hold: keep the state in an object with a __call__, or run "
                "without a checkpoint"
            )
        content = self.digests, self.run, self.callables, content
        write_pickle(self.path, content, WHO)

    def _outside(self):
        """A digest of what the callables find outside: of themselves as they were at the start."""
        if self.callables is None:
            return None
        streams = [random.getstate(), np.random.get_state()]  # noqa: NPY002
        if self.torch is not None:
            streams.append(self.torch.get_rng_state())
        return digest(pickle.loads(self.callables), streams)
