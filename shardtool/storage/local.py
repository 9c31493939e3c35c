"""Local files that have their final name only when complete: temp, write, fsync, rename, fsync folder."""

from __future__ import annotations

import errno
import os
import re
import zlib
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from shardtool.errors import AccessDenied, DestinationError, NoSpace, ShardtoolError, SourceChanged
from shardtool.hashing import FileDigest
from shardtool.model import FileRecord
from shardtool.names import DATA, HIDDEN, INDEX
from shardtool.storage import is_remote
from shardtool.storage.base import PIECE_BYTES, Stat, Stretch
from shardtool.storage.regular import open_regular, opener

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.storage.base import Take

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


class LocalFile:
    """A file being written, with its digests. Nothing is visible under `root/path` before `publish`."""

    def __init__(self, root: str, path: str, tag: str) -> None:
        assert not is_remote(root), f"{root} is no folder"
        self.path = path
        self.final = os.path.join(root, path)
        self.temp = temp_name(self.final, tag)
        self.digest = FileDigest()
        self._is_published = False
        with write_errors(self.final):
            self._fd = create(self.temp, os.O_WRONLY | os.O_TRUNC)

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

    def record(self) -> FileRecord:
        """Path, size and digest of what was written."""
        return FileRecord(self.path, self.position, self.digest.hexdigest())

    def publish(self, *, durable: bool) -> None:
        """Give the file its final name; with `durable` its bytes are on the device before."""
        with write_errors(self.final):
            if durable:
                os.fsync(self._fd)
            self._close()
            os.rename(self.temp, self.final)
        self._is_published = True

    def abort(self) -> None:
        """Remove what was written; harmless after `publish`."""
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


class LocalPlace:
    """A folder of files."""

    is_local = True

    def __init__(self, folder: str) -> None:
        self.url = folder

    def shown(self, path: str) -> str:
        """The path of a file as the system takes it, and as people read it."""
        return os.path.join(self.url, path)

    def stat(self, path: str) -> Stat:
        """Size and version of one file."""
        with _missing(self.shown(path)):
            return _stat_of(path, os.stat(self.shown(path)))

    def read(self, path: str) -> bytes:
        """A whole small file."""
        with _missing(self.shown(path)), open(self.shown(path), "rb", opener=opener) as file:
            return file.read()

    def read_into(self, path: str, offset: int, view: memoryview, *, version: str = "") -> int:
        """Fill `view` with the bytes of the file from `offset` on; fewer only at its end. How many there were.

        Raises:
            SourceChanged: the file is not of this `version`.
        """
        with self._opened(path, version) as (fd, _):
            done = 0
            while done < len(view) and (count := os.preadv(fd, [view[done:]], offset + done)):
                done += count
            return done

    @contextmanager
    def _opened(self, path: str, version: str) -> Iterator[tuple[int, Stat]]:
        """A descriptor of a file, which must be of this version, and what it is."""
        with _missing(self.shown(path)):
            fd = open_regular(self.shown(path))
        try:
            found = _stat_of(path, os.fstat(fd))
            if version and found.version != version:
                raise SourceChanged(
                    f"{self.shown(path)} is not the file that it was",
                    hint="run the command again when nothing writes there",
                    where={"path": self.shown(path)},
                )
            yield fd, found
        finally:
            os.close(fd)

    def buffer_bytes(self, num_bytes: int) -> int:
        """Memory that `read_through` needs to bring so many bytes."""
        return min(num_bytes, PIECE_BYTES)

    def read_through(
        self, path: str, offset: int, num_bytes: int, take: Take, buffer: memoryview, *, version: str = ""
    ) -> Stretch:
        """As `read_into`, but bytes are given to `take` piece by piece; see Place."""
        with self._opened(path, version) as (fd, found):
            done = 0
            while done < num_bytes and (count := os.preadv(fd, [buffer[: num_bytes - done]], offset + done)):
                take(buffer[:count], done)
                done += count
            return Stretch(done, found.version, found.num_bytes)

    def list(self, prefix: str = "") -> Iterator[Stat]:
        """All files whose path begins with `prefix`, in any order; none where the folder does not exist."""
        for folder, _, names in os.walk(os.path.join(self.url, os.path.dirname(prefix))):
            below = os.path.relpath(folder, self.url)
            for name in names:
                path = name if below == "." else f"{below}/{name}"
                if path.startswith(prefix) and not is_temp_name(name):
                    with suppress(FileNotFoundError):  # gone meanwhile
                        yield _stat_of(path, os.stat(os.path.join(folder, name), follow_symlinks=False))

    def create(self, path: str, tag: str) -> LocalFile:
        """Begin to write a file; `tag` tells plan and shard, or the kind of file."""
        return LocalFile(self.url, path, tag)

    def put(self, path: str, data: bytes, *, tag: str, durable: bool) -> FileRecord:
        """Write a small file atomically."""
        return put_file(self.url, path, data, tag=tag, durable=durable)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files; those that are gone already are no trouble."""
        for path in paths:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(self.shown(path))

    def sync(self, paths: Iterable[str]) -> None:
        """Make the names of files durable."""
        for folder in {os.path.dirname(self.shown(path)) for path in paths}:
            sync_folder(folder)

    def sweep(self, tag: str, paths: Iterable[str]) -> None:
        """Remove what killed attempts with this tag left beside `paths`."""
        for folder in {os.path.dirname(self.shown(path)) for path in paths}:
            sweep_temps(folder, tag)

    def num_unfinished(self) -> int:
        """Temp files of ours."""
        return sum(1 for _ in self._temps())

    def sweep_all(self) -> None:
        """Remove what killed attempts of any tag left, in the folder itself and in those that are ours."""
        for name in self._temps():
            with suppress(OSError):
                os.unlink(name)

    def _temps(self) -> Iterator[str]:
        for top in ("", DATA, INDEX, HIDDEN):
            for folder, _, names in os.walk(os.path.join(self.url, top)):
                yield from (os.path.join(folder, name) for name in names if is_temp_name(name))
                if not top:
                    break


def _stat_of(path: str, found: os.stat_result) -> Stat:
    return Stat(path, found.st_size, f"{found.st_mtime_ns}-{found.st_ino}")


@contextmanager
def _missing(path: str) -> Iterator[None]:
    """A file where a folder should be means that the file below it is missing."""
    try:
        yield
    except NotADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error


def put_file(root: str, path: str, data: bytes, *, tag: str, durable: bool) -> FileRecord:
    """Write a small file atomically; the folder entry is durable too when asked for."""
    file = LocalFile(root, path, tag)
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


def create(path: str, flags: int) -> int:
    """A descriptor of a file, which is made where it is not there, as its folder is."""
    try:
        return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o666)


@contextmanager
def write_errors(path: str) -> Iterator[None]:
    """Turn what the system says about writing `path` into our errors."""
    try:
        yield
    except ShardtoolError:
        raise  # said already
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
            f"{path} cannot be written: {error.strerror or error}",
            hint="choose a folder that you may write",
            where=where,
        )
    hint = "choose a folder that does not exist yet, on a file system that takes new files"
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        hint = "a file is where a folder should be: choose another name"
    return DestinationError(f"{path} cannot be written: {error.strerror or error}", hint=hint, where=where)


def free_space(folder: str) -> tuple[int, int]:
    """(bytes, inodes) free for this user at `folder` or its nearest parent that exists."""
    path = os.path.abspath(folder)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    stat = os.statvfs(path)
    inodes = stat.f_favail if stat.f_files else 1 << 62  # btrfs and others report none at all
    return stat.f_bavail * stat.f_frsize, inodes


@contextmanager
def new_file(path: str, tag: str, *, durable: bool) -> Iterator[IO[bytes]]:
    """A file that is called `path` when the body ends well, and is gone when it does not; without a digest.

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
