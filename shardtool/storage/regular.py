"""Opening what must be a file: a FIFO or a device under its name would block whoever opens it, or never end."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable

_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: str | bytes) -> int:
    """A descriptor of a regular file, for reading.

    Raises:
        OSError: it is something else, is not there, or may not be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would wait for its writer
    kind = special_kind(os.fstat(fd).st_mode)
    if kind:
        os.close(fd)
        raise _not_regular(path, kind)
    return fd


def opener(path: str, _flags: int) -> int:
    """`open_regular` for the `opener` of `open(path, "rb")`."""
    return open_regular(path)


def check_regular(path: str | bytes) -> None:
    """Before a library opens `path` by itself: it must be a regular file.

    Raises:
        OSError: it is something else, or is not there.
    """
    if kind := special_kind(os.stat(path).st_mode):
        raise _not_regular(path, kind)


def refuse_special(paths: Iterable[str]) -> None:
    """Refuse sources that are no files; those that do not exist are left to whoever reads them.

    Raises:
        SourceError: naming the first.
    """
    for path in paths:
        with suppress(OSError):
            if (kind := special_kind(os.stat(path).st_mode)) and kind != "a folder":
                raise SourceError(
                    f"{path} is {kind}, and shards are read at many places",
                    hint="write what it gives to a file, and name that",
                    where={"path": path},
                )


def special_kind(mode: int) -> str:
    """What `st_mode` says in words, such as `a FIFO`; "" of a regular file."""
    return next((word for is_kind, word in _KINDS if is_kind(mode)), "")


def _not_regular(path: str | bytes, kind: str) -> OSError:
    return OSError(errno.EISDIR if kind == "a folder" else errno.EINVAL, f"it is {kind}, not a file", path)
