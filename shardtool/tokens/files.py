"""One file or object with documents in it, and the ways to its bytes: from front to end, a stretch, whole, by columns.

What lies in a bucket is read by requests for ranges, each on condition that the object is still the one that was
listed. Memory: four windows of 8 MiB of a stream, 16 MiB of small objects or one larger one, 8 MiB of a column.
"""

from __future__ import annotations

import gzip
import io
import os
import tempfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import IO, TYPE_CHECKING, Any, cast

import pyarrow as pa
import zstandard

from shardtool.errors import ShardtoolError, SourceChanged, SourceError
from shardtool.storage import REMOTE_SCHEME, is_remote, open_place
from shardtool.storage.base import Stat
from shardtool.storage.files import RangedFile, RemoteStream, copy_stream
from shardtool.storage.local import write_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardtool.storage.base import Place

HELD_BYTES = 16 << 20  # of small objects on their way or waiting
COLUMN_BYTES = 8 << 20  # of a column of Parquet, a request
BUFFER_BYTES = 128 << 10  # between windows and whoever reads lines
DAMAGE = (OSError, EOFError, zlib.error, zstandard.ZstdError, pa.ArrowException)


@dataclass(frozen=True)
class InputFile:
    """One file or object with documents in it."""

    root: str  # a folder, or s3://bucket/prefix without a slash at its end
    path: bytes  # below the root
    size: int
    mtime_ns: int
    kind: str
    compression: str = ""
    version: str = ""  # the ETag of an object, or what else tells that the content is another
    split: str = ""  # of a shard of token ids

    @property
    def full_path(self) -> str:
        """Where it lies."""
        path = os.fsdecode(self.path)
        if self.is_remote:  # whatever slashes are in its key
            return f"{self.root}{'' if self.root == REMOTE_SCHEME else '/'}{path}"
        return os.path.join(self.root, path)

    @property
    def is_remote(self) -> bool:
        """Whether it is an object of a store."""
        return is_remote(self.root)

    @property
    def guard(self) -> str | int:
        """What changes with the content: the ETag, or the time of a file."""
        return self.version or self.mtime_ns

    @property
    def listed(self) -> Stat:
        """As a place tells it."""
        return Stat(os.fsdecode(self.path), self.size, self.version)

    def place(self) -> tuple[Place, str]:
        """(the place that holds an object, its name there), whatever slashes and dots are in it."""
        from shardtool.storage.s3.address import split_url

        bucket, key = split_url(self.full_path)
        return open_place(f"{REMOTE_SCHEME}{bucket}"), key


def check_guards(files: Iterable[InputFile]) -> None:
    """Refuse files that are not those that were listed; an object is asked for on that condition.

    Called before they are read, and once they are: what is written to a file meanwhile is read with the rest of it.

    Raises:
        SourceChanged: it is another one.
        SourceError: it cannot be looked at.
    """
    for file in files:
        if not file.is_remote:
            _check_guard(file)


def _check_guard(file: InputFile) -> None:
    try:
        stat = os.stat(file.full_path)
    except OSError as error:
        raise SourceError(
            f"{file.full_path} cannot be read: {error.strerror}",
            hint="put it right and run the same command again",
            where={"path": file.full_path},
        ) from error
    if (stat.st_size, stat.st_mtime_ns) != (file.size, file.mtime_ns):
        sizes = f"{file.size:,} bytes then, {stat.st_size:,} now"
        raise SourceChanged(
            f"{file.full_path} changed since it was listed: "
            + (sizes if stat.st_size != file.size else "its size is the same, its time is another"),
            hint="let whoever writes it finish, then run the same command again",
            where={"path": file.full_path},
        )


@contextmanager
def damage_named(file: InputFile) -> Iterator[None]:
    """Turn what decoders and the system say about a file into an error that names it.

    Raises:
        SourceError: it is damaged.
    """
    try:
        yield
    except ShardtoolError:
        raise  # of a store: it is gone, changed, or does not answer
    except DAMAGE as error:
        raise SourceError(
            f"{file.full_path} is damaged: {error}",
            hint="copy it again, or leave it out",
            where={"path": file.full_path},
        ) from error


@contextmanager
def opened(file: InputFile, begin: int = 0, end: int = -1) -> Iterator[IO[bytes]]:
    """The bytes of a file as it lies there, from `begin` on; of an object, those up to `end` are fetched ahead."""
    if not file.is_remote:
        with open(file.full_path, "rb") as raw:
            raw.seek(begin)
            yield raw
        return
    with RemoteStream(*file.place(), known=file.listed, begin=begin, end=end) as stream:
        yield io.BufferedReader(stream, BUFFER_BYTES)


@contextmanager
def decompressed(file: InputFile) -> Iterator[IO[bytes]]:
    """The bytes of a file behind its compression, if any."""
    with opened(file) as raw, _unpacked(raw, file.compression) as stream:
        yield stream


@contextmanager
def _unpacked(raw: IO[bytes], compression: str) -> Iterator[IO[bytes]]:
    if compression == "gzip":
        with gzip.GzipFile(fileobj=raw) as stream:
            yield cast("IO[bytes]", io.BufferedReader(stream, 1 << 20))
    elif compression == "zstd":
        yield cast("IO[bytes]", io.BufferedReader(_ZstdFrames(raw), 1 << 20))
    else:
        yield raw


class _ZstdFrames(io.RawIOBase):
    """What zstd frames decompress to; unlike the library's own stream it tells when the last one is cut short."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._frame: Any = None
        self._held = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._held:
            data = self._frame.unused_data if self._frame is not None and self._frame.eof else b""
            data = data or self._raw.read(1 << 17)
            if not data:
                if self._frame is not None and not self._frame.eof:
                    raise EOFError("it ends inside a frame")
                return 0
            if self._frame is None or self._frame.eof:
                self._frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
            self._held = self._frame.decompress(data)
        count = min(len(buffer), len(self._held))
        buffer[:count], self._held = self._held[:count], self._held[count:]
        return count


def contents(files: Sequence[InputFile]) -> Iterator[tuple[InputFile, bytes]]:
    """Each file and all its bytes, decompressed, in the order given; objects many at once."""
    for _, some in groupby(files, key=lambda file: file.is_remote):
        group = list(some)
        yield from _objects(group) if group[0].is_remote else _files(group)


def _files(files: Iterable[InputFile]) -> Iterator[tuple[InputFile, bytes]]:
    for file in files:
        with damage_named(file), decompressed(file) as stream:
            data = stream.read()
        yield file, data


def _objects(files: Sequence[InputFile]) -> Iterator[tuple[InputFile, bytes]]:
    from shardtool.sources.s3_reader import REQUESTS
    from shardtool.storage.s3.address import split_url
    from shardtool.storage.s3.client import client_for
    from shardtool.storage.s3.many import Get, get_many
    from shardtool.storage.s3.settings import S3Settings

    client = client_for(S3Settings.from_environ())
    gets = (Get(*split_url(file.full_path), file.size, None, file.version) for file in files)
    for file, got in zip(files, get_many(client, gets, window_bytes=HELD_BYTES, threads=REQUESTS), strict=True):
        if got.error is not None:
            raise got.error
        with damage_named(file), _unpacked(io.BytesIO(got.data or b""), file.compression) as stream:
            data = stream.read()
        yield file, data


def first_bytes(file: InputFile, size: int) -> bytes:
    """The first bytes of a file as it lies there, at most `size` of them."""
    if file.is_remote:
        data = bytearray(min(size, file.size))
        read_into(file, 0, data)
        return bytes(data)
    with open(file.full_path, "rb") as raw:
        return raw.read(size)


def read_into(file: InputFile, begin: int, buffer: Any) -> None:
    """Fill a buffer with the bytes of an object from `begin` on, that it has."""
    with RangedFile(*file.place(), file.listed) as ranges:
        ranges.seek(begin)
        ranges.readinto(buffer)


def column_source(file: InputFile) -> tuple[Any, dict[str, Any]]:
    """What `ParquetFile` takes: `COLUMN_BYTES` are read at a time, or asked for.

    A file is not mapped: it may be cut short meanwhile, and that would end the process.
    """
    source = ranged(file) if file.is_remote else pa.OSFile(os.fsencode(file.full_path))
    return source, {"buffer_size": COLUMN_BYTES}


def ranged(file: InputFile) -> Any:
    """A pyarrow file to seek in: a map of a file, or an object of which every read is a request."""
    if file.is_remote:
        return pa.PythonFile(RangedFile(*file.place(), file.listed), mode="r")
    return pa.memory_map(os.fsencode(file.full_path))


@contextmanager
def on_disk(file: InputFile) -> Iterator[IO[bytes]]:
    """A file of the system that can be mapped: itself, or a copy without a name, gone once it is closed, or we are.

    Raises:
        NoSpace: the copy has no room in the folder for temporary files ($TMPDIR).
    """
    if not file.is_remote:
        with open(file.full_path, "rb") as own:
            yield own
        return
    with RemoteStream(*file.place(), known=file.listed) as stream, tempfile.TemporaryFile() as copy:
        with write_errors(f"a copy of {file.full_path} in {tempfile.gettempdir()}"):
            copy_stream(stream, copy)
            copy.flush()
        yield copy
