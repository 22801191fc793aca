"""Files that survive a kill: written whole or not at all, and known when damaged."""

import hashlib
import os
import pickle
import threading
from contextlib import contextmanager
from pathlib import Path

HEADER = b"gossipdyn checkpoint 2\n"


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
