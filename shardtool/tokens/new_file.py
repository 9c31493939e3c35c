"""A file that gets its name when it is whole. No digest is taken, unlike of the files of a shard."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from shardtool.storage.local import temp_name, write_errors

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def new_file(path: str, tag: str, *, durable: bool) -> Iterator[IO[bytes]]:
    """A file that is called `path` when the body ends well, and is gone when it does not.

    Args:
        path: its final name; folders above it are made.
        tag: part of its name until then, which a later run sweeps by.
        durable: the bytes are on the device before the name is there.

    Raises:
        NoSpace, DestinationError: it cannot be written.
    """
    temp = temp_name(path, tag)
    with write_errors(path):
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        try:
            with open(temp, "wb") as file:
                yield file
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.rename(temp, path)
        except BaseException:
            if os.path.lexists(temp):
                os.unlink(temp)
            raise
