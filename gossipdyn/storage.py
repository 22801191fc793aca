"""Files that survive a kill: written whole or not at all, and known when damaged."""

import hashlib
import os
import pickle
import random
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from .digest import digest, environment

HEADER = b"gossipdyn checkpoint 2\n"
WHO = "a checkpoint needs a run"


@contextmanager
def atomically(path):
    """An open binary file that takes the place of `path` when the block ends without an error.

    Raises ValueError where no file can be written at `path`.
    """
    path = path_of(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
    try:
        if path.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        file = open(partial, "wb")
    except OSError as error:
        there = "" if path.parent.is_dir() else f", there is no folder {path.parent}: make it"
        raise ValueError(f"{path} cannot be written ({error.strerror}){there}") from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_pickle(path, content, who):
    """Pickle `content` to `path`, behind its digest. `who` needs it, in a refusal."""
    body = pickled(content, who)
    with atomically(path) as file:
        file.write(HEADER + hashlib.sha256(body).digest() + body)


def pickled(content, who):
    """The pickle of `content`, bytes, or a ValueError: `who` needs it."""
    try:
        return pickle.dumps(content)
    except Exception as error:  # whatever a part's own way to pickle raises
        raise ValueError(
            f"{who} whose parts pickle: {error}; define functions and classes at the top level "
            "of a module"
        ) from error


def read_pickle(path):
    """What write_pickle wrote, or None if there is no such file.

    Like every pickle it can run code: read only files that you wrote. Raises ValueError for
    files that are no checkpoint or are damaged.
    """
    try:
        data = path_of(path).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): name another file") from error
    start = len(HEADER) + hashlib.sha256().digest_size
    if data[: len(HEADER)] != HEADER:
        raise ValueError(f"{path} is no checkpoint of this version of gossipdyn: name another file")
    if hashlib.sha256(data[start:]).digest() != data[len(HEADER) : start]:
        raise ValueError(f"the checkpoint {path} is damaged: delete it to start again")
    return pickle.loads(data[start:])


def path_of(path):
    """`path` as a Path, or a ValueError: a number would be an open file of the process."""
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"a file is named by a path, got {path!r}")
    return Path(path)


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
