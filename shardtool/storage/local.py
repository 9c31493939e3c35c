"""Local files that have their final name only when complete: temp, write, fsync, rename, fsync folder."""

from __future__ import annotations

import errno
import os
import re
import zlib
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from shardtool.errors import AccessDenied, DestinationError, NoSpace
from shardtool.hashing import FileDigest
from shardtool.model import FileRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

TEMP_PREFIX = ".tmp-"  # .tmp-<plan>-<shard>-<host>-<process>-<name>
_TEMP_NAME = re.compile(r"\.tmp-[a-z0-9-]+-[0-9a-f]{8}-[0-9]+-.+")


def temp_name(final: str, tag: str) -> str:
    """The name beside `final` under which this process writes it; `tag` tells plan and shard, or the kind of file."""
    folder, name = os.path.split(final)
    host = zlib.crc32(os.uname().nodename.encode())
    return os.path.join(folder, f"{TEMP_PREFIX}{tag}-{host:08x}-{os.getpid()}-{name}")


def is_temp_name(name: str) -> bool:
    """Whether a file called `name` is a temp file of ours, of any run."""
    return _TEMP_NAME.fullmatch(name) is not None


class ShardFile:
    """A file being written, with its digests. Nothing is visible under `root/path` before `publish`."""

    def __init__(self, root: str, path: str, tag: str) -> None:
        self.root, self.path, self.tag = root, path, tag
        self.siblings: list[ShardFile] = []
        self.final = os.path.join(root, path)
        self.temp = temp_name(self.final, tag)
        self.digest = FileDigest()
        self._is_published = False
        with write_errors(self.final):
            os.makedirs(os.path.dirname(self.final), exist_ok=True)
            self._fd = os.open(self.temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    @property
    def position(self) -> int:
        """Bytes written so far."""
        return self.digest.num_bytes

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`.

        Raises:
            NoSpace: the file system is full.
        """
        view = memoryview(data)
        self.digest.update(view)
        with write_errors(self.final):
            while len(view):
                view = view[os.write(self._fd, view) :]

    def sibling(self, suffix: str) -> ShardFile:
        """Another file of the same shard, of the same stem; published after this one, aborted with it."""
        file = ShardFile(self.root, os.path.splitext(self.path)[0] + suffix, self.tag)
        self.siblings.append(file)
        return file

    def record(self) -> FileRecord:
        """Path, size and digest of what was written."""
        return FileRecord(self.path, self.position, self.digest.hexdigest())

    def records(self) -> tuple[FileRecord, ...]:
        """Of this file and its siblings."""
        return (self.record(), *(file.record() for file in self.siblings))

    def publish(self, *, durable: bool) -> None:
        """Give the file its final name; with `durable` its bytes are on the device before."""
        with write_errors(self.final):
            if durable:
                os.fsync(self._fd)
            self._close()
            os.rename(self.temp, self.final)
        self._is_published = True
        for file in self.siblings:
            file.publish(durable=durable)

    def abort(self) -> None:
        """Remove what was written; harmless after `publish`."""
        for file in self.siblings:
            file.abort()
        if self._is_published:
            return
        with suppress(OSError):
            self._close()
        with suppress(FileNotFoundError):
            os.unlink(self.temp)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def put_file(root: str, path: str, data: bytes, *, tag: str, durable: bool) -> FileRecord:
    """Write a small file atomically; the folder entry is durable too when asked for."""
    file = ShardFile(root, path, tag)
    try:
        file.write(data)
        file.publish(durable=durable)
    finally:
        file.abort()
    if durable:
        sync_folder(os.path.dirname(file.final))
    return file.record()


def sync_folder(folder: str) -> None:
    """Make the names in `folder` durable; file systems that cannot sync a folder are left alone."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def sweep_temps(folder: str, tag: str) -> None:
    """Remove temp files of `tag` in `folder`: leftovers of an attempt that was killed."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(f"{TEMP_PREFIX}{tag}-"):
                with suppress(FileNotFoundError):
                    os.unlink(entry.path)


@contextmanager
def write_errors(path: str) -> Iterator[None]:
    """Turn what the system says about writing `path` into our errors."""
    try:
        yield
    except OSError as error:
        raise destination_error(error, path) from error


def destination_error(error: OSError, path: str) -> DestinationError | AccessDenied:
    """Our error for an OSError met while writing `path`."""
    where = {"path": path}
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "quota used up" if error.errno == errno.EDQUOT else "no space left"
        return NoSpace(
            f"{what} while writing {path}",
            hint="free some space and run the same command again: finished shards are kept",
            where=where,
        )
    if error.errno == errno.EFBIG:
        return NoSpace(
            f"{path} cannot grow: the file system, or ulimit -f, allows no larger file",
            hint="a smaller --shard-size makes smaller files",
            where=where,
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return DestinationError(
            f"{path} cannot be written: {error.strerror}", hint="choose a folder that you may write", where=where
        )
    return DestinationError(f"{path} cannot be written: {error.strerror or error}", where=where)


def free_space(folder: str) -> tuple[int, int]:
    """(bytes, inodes) free for this user at `folder` or its nearest parent that exists."""
    path = os.path.abspath(folder)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    stat = os.statvfs(path)
    inodes = stat.f_favail if stat.f_files else 1 << 62  # btrfs and others report none at all
    return stat.f_bavail * stat.f_frsize, inodes
