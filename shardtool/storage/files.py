"""Files named by a path or URL, opened for reading: from front to end, at places, or copied to where a map can reach.

`data/train-00000-of-00001.tar` and `s3://bucket/out/data/train-00000-of-00001.tar` are read alike. An object is read
in windows of 8 MiB, a few of them on their way while one is used; every window is of the version seen at the start.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections import deque
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

from shardtool.errors import SourceChanged
from shardtool.storage import REMOTE_SCHEME, is_remote, open_place
from shardtool.storage.fetching import Fetcher
from shardtool.storage.regular import check_regular, opener

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from shardtool.storage.base import Place, Stat

WINDOW_BYTES = 8 << 20  # of a request: large enough that its latency does not matter
WINDOWS_AHEAD = 3  # memory: four windows a stream
TAIL_BYTES = 64 << 10  # of the first request behind the end of a stretch; each further one is twice as large
MANY_THREADS = 32  # for many small objects


class Stream(Protocol):
    """A file that is read from front to end, and at places."""

    num_bytes: int

    def readinto(self, view: memoryview, /) -> int:
        """The next bytes; 0 at the end only."""

    def pread(self, size: int, offset: int) -> bytes:
        """Bytes from `offset` on; fewer than `size` only at the end."""

    def close(self) -> None:
        """Let go of the file."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


def absolute(url: str) -> str:
    """The same place for any working directory."""
    return open_place(url).url if is_remote(url) else os.path.abspath(url)


def split_file(path: str) -> tuple[Place, str]:
    """(the place that holds a file, its name there)."""
    if is_remote(path):
        folder, _, name = path.rpartition("/")
        return open_place(folder), name
    folder, name = os.path.split(path)
    return open_place(folder), name


def place_of(path: str) -> tuple[Place, str]:
    """(a place that reaches a file, its name there), whatever slashes and dots the key of an object has."""
    if not is_remote(path):
        return split_file(path)
    from shardtool.storage.s3.address import split_url

    bucket, key = split_url(path)
    return open_place(f"{REMOTE_SCHEME}{bucket}"), key


def file_size(path: str) -> int:
    """Bytes of a file or object.

    Raises:
        FileNotFoundError: it does not exist.
    """
    if not is_remote(path):
        return os.stat(path).st_size
    place, name = place_of(path)
    return place.stat(name).num_bytes


def exists(place: Place, path: str) -> bool:
    """Whether a file is there."""
    if place.is_local:
        return os.path.exists(place.shown(path))
    try:
        place.stat(path)
    except FileNotFoundError:
        return False
    return True


def read_many(place: Place, paths: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """(path, contents) of small files, those left out that are gone; side by side where each takes a request."""

    def read(path: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return place.read(path)
        return None

    if place.is_local or len(paths) < 2:
        yield from ((path, data) for path in paths if (data := read(path)) is not None)
        return
    with ThreadPoolExecutor(min(MANY_THREADS, len(paths))) as pool:
        for path, data in zip(paths, pool.map(read, paths), strict=True):
            if data is not None:
                yield path, data


class Sizes:
    """Sizes of the files of a place: asked one by one of a folder, known from one listing of an object store."""

    def __init__(self, place: Place, prefix: str = "") -> None:
        self._place = place
        self._known = None if place.is_local else {stat.path: stat.num_bytes for stat in place.list(prefix)}

    def of(self, path: str) -> int | None:
        """Bytes of a file; None where there is none."""
        if self._known is not None:
            return self._known.get(path)
        try:
            return os.stat(self._place.shown(path)).st_size
        except OSError:
            return None


def open_stream(path: str) -> Stream:
    """A file or object, to be read from front to end.

    Raises:
        OSError: it does not exist, or may not be read.
    """
    return RemoteStream(*place_of(path)) if is_remote(path) else LocalStream(path)


def arrow_file(path: str) -> Any:
    """A pyarrow file to seek in: a map of a file, or an object of which every read is a request."""
    import pyarrow as pa

    if is_remote(path):
        return pa.PythonFile(RangedFile(*place_of(path)), mode="r")
    check_regular(path)
    return pa.memory_map(os.fsencode(path))


@contextmanager
def local_copy(path: str) -> Iterator[str]:
    """A path of the system for a file that must be mapped or read by others: itself, or a copy that goes at the end."""
    if not is_remote(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="shardtool-") as folder, open_stream(path) as stream:
        name = os.path.join(folder, path.rpartition("/")[2])
        with open(name, "wb") as file:
            copy_stream(stream, file)
        yield name


def copy_stream(stream: Stream, file: IO[bytes]) -> None:
    """Write all that is left of a stream to a buffered file, in pieces of 1 MiB."""
    buffer = memoryview(bytearray(1 << 20))
    while count := stream.readinto(buffer):
        file.write(buffer[:count])


class LocalStream:
    """A file of the system."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb", buffering=0, opener=opener)  # noqa: SIM115 - closed by `close`
        self._fd = self._file.fileno()
        self.readinto = self._file.readinto
        self.num_bytes = os.fstat(self._fd).st_size
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pread(self, size: int, offset: int) -> bytes:
        """Bytes from `offset` on; fewer than `size` only at the end."""
        return os.pread(self._fd, size, offset)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class RemoteStream(io.RawIOBase):
    """An object; windows are fetched by a few threads of its own once it is read from the front.

    Args:
        place, name: where it lies.
        known: its size and version, as a listing told; looked up where None.
        begin: the byte that reading begins at.
        end: up to which byte windows are fetched ahead, -1 for all; what lies behind comes as it is asked for.
    """

    def __init__(self, place: Place, name: str, *, known: Stat | None = None, begin: int = 0, end: int = -1) -> None:
        super().__init__()
        found = known or place.stat(name)
        self.num_bytes, self._version = found.num_bytes, found.version
        self._place, self._name = place, name
        self._fetcher = Fetcher(WINDOWS_AHEAD)
        self._coming: deque[Future[memoryview]] = deque()
        self._window = memoryview(b"")
        self._asked = begin  # bytes that windows were asked for
        self._end = self.num_bytes if end < 0 else min(end, self.num_bytes)
        self._tail_bytes = TAIL_BYTES

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: object) -> int:
        """The next bytes; 0 at the end only.

        Raises:
            SourceChanged: the object was replaced since it was opened, or listed.
            ValueError: the stream is closed.
        """
        if not self._window:
            self._ask()
            if not self._coming:
                return 0
            try:
                self._window = self._coming.popleft().result()
            except CancelledError as error:
                raise ValueError(f"{self._place.shown(self._name)} was closed while it was read") from error
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        count = min(len(view), len(self._window))
        view[:count] = self._window[:count]
        self._window = self._window[count:]
        return count

    def pread(self, size: int, offset: int) -> bytes:
        """Bytes from `offset` on; fewer than `size` only at the end."""
        return bytes(self._fetch(offset, min(size, max(self.num_bytes - offset, 0))))

    def close(self) -> None:
        """Give up what is on its way."""
        self._fetcher.close()
        super().close()

    def _ask(self) -> None:
        while len(self._coming) < WINDOWS_AHEAD and self._asked < self._end:
            self._submit(min(WINDOW_BYTES, self._end - self._asked))
        if not self._coming and self._asked < self.num_bytes:
            self._submit(min(self._tail_bytes, self.num_bytes - self._asked))
            self._tail_bytes = min(2 * self._tail_bytes, WINDOW_BYTES)

    def _submit(self, size: int) -> None:
        self._coming.append(self._fetcher.submit(partial(self._fetch, self._asked, size)))
        self._asked += size

    def _fetch(self, offset: int, size: int) -> memoryview:
        view = memoryview(bytearray(size))
        _fill(self._place, self._name, offset, view, self._version)
        return view


def _fill(place: Place, name: str, offset: int, view: memoryview, version: str) -> None:
    """All of `view`, bytes that the object had when its size was told.

    Raises:
        SourceChanged: it is another one, or ends before.
    """
    done = place.read_into(name, offset, view, version=version) if len(view) else 0
    if done < len(view):
        raise SourceChanged(
            f"{place.shown(name)} ends at byte {offset + done:,}, and had more when it was listed",
            hint="run the command again when nothing writes there",
            where={"url": place.shown(name)},
        )


class RangedFile(io.RawIOBase):
    """An object as a file that can be sought in, for libraries that read columns and footers by themselves.

    Every read is one request, so that they should be few and large: pyarrow's `pre_buffer` sees to that, or a buffer.

    Args:
        place, name: where it lies.
        known: its size and version, as a listing told; looked up where None.
    """

    def __init__(self, place: Place, name: str, known: Stat | None = None) -> None:
        super().__init__()
        found = known or place.stat(name)
        self._place, self._name, self._version = place, name, found.version
        self._size, self._at = found.num_bytes, 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte; the next read begins there."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def size(self) -> int:
        """Bytes of the object."""
        return self._size

    def readinto(self, buffer: object) -> int:
        """Fill a buffer by one request; fewer bytes only at the end."""
        view = memoryview(buffer)[: max(self._size - self._at, 0)]  # type: ignore[arg-type]
        _fill(self._place, self._name, self._at, view.cast("B"), self._version)
        self._at += len(view)
        return len(view)
