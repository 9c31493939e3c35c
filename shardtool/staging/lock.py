"""One copier a folder: a lock of the kernel on `.stage/lock`, gone with the process that holds it, however it dies.

The file is never removed and its content means nothing, so nothing stale can block, and nobody can remove it under a
holder. Locks are asked for without waiting: a file system that does not answer cannot hang us.
"""

from __future__ import annotations

import errno
import fcntl
import os

from shardtool.errors import DestinationError
from shardtool.storage.local import write_errors

_HELD = (errno.EAGAIN, errno.EACCES)


class CopierLock:
    """The right to copy into a folder.

    Args:
        path: the lock file; its folder exists.
    """

    def __init__(self, path: str) -> None:
        self.path, self._fd = path, -1

    def try_take(self) -> bool:
        """Whether this process holds it now.

        Raises:
            DestinationError: the file system has no locks.
        """
        with write_errors(self.path):
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if _lock(fd, self.path, fcntl.LOCK_EX):
                fd, self._fd = -1, fd
        finally:
            if fd >= 0:
                os.close(fd)
        return self._fd >= 0

    def release(self) -> None:
        """Let others copy; harmless when not held."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def is_held(path: str) -> bool:
    """Whether some process copies into the folder of this lock file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _lock(fd, path, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def _lock(fd: int, path: str, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise DestinationError(
            f"{path} cannot be locked: {error.strerror}",
            hint="stage to a local disk: this file system has no locks",
            where={"path": path},
        ) from error
    return True
