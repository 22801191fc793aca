"""Files that survive a kill: written whole or not at all, and known when damaged."""

import hashlib
import os
import pickle
from contextlib import contextmanager
from pathlib import Path

HEADER = b"gossipdyn checkpoint 1\n"


@contextmanager
def atomically(path):
    """An open binary file that takes the place of `path` when the block ends without an error."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_checkpoint(path, content):
    """Pickle `content` to `path`, behind its digest."""
    try:
        body = pickle.dumps(content)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"a checkpoint needs a run whose parts pickle: {error}; define functions of the "
            "schedule at the top level of a module"
        ) from error
    with atomically(path) as file:
        file.write(HEADER + hashlib.sha256(body).digest() + body)


def read_checkpoint(path):
    """What write_checkpoint wrote, or None if there is no such file.

    Like every pickle it can run code: read only files that you wrote. Raises ValueError for
    files that are no checkpoint or are damaged.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return None
    start = len(HEADER) + hashlib.sha256().digest_size
    if data[: len(HEADER)] != HEADER:
        raise ValueError(f"{path} is no checkpoint of this version of gossipdyn: name another file")
    if hashlib.sha256(data[start:]).digest() != data[len(HEADER) : start]:
        raise ValueError(f"the checkpoint {path} is damaged: delete it to start again")
    return pickle.loads(data[start:])
