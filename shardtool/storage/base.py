"""What a place that holds data sets offers: a local folder, or a prefix of an object store. Both behave alike.

Paths are relative to the place, with `/` between names, never with `..`. What is missing raises FileNotFoundError, what
is refused PermissionError, whatever the store; trouble of a remote store that outlasts all retries raises RemoteError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardtool.hashing import FileDigest
    from shardtool.model import FileRecord


PIECE_BYTES = 128 << 10  # passed on at once: digest and write find it in the CPU's cache, with many threads, too
Take: TypeAlias = "Callable[[memoryview, int], None]"  # (some bytes, their place); it must not keep the view


@dataclass(frozen=True)
class Stat:
    """A file or object of a place."""

    path: str  # below the place
    num_bytes: int
    version: str  # changes with the content: the ETag of an object, mtime_ns and inode of a file


@dataclass(frozen=True)
class Stretch:
    """What came of reading a stretch of a file."""

    num_bytes: int  # that there were
    version: str = ""  # of the file, as `Stat` has it; "" where it was not told
    file_bytes: int | None = None  # of the whole file; None where it was not told


class NewFile(Protocol):
    """A file being written. Nothing is visible under its final name before `publish`."""

    path: str
    digest: FileDigest

    @property
    def position(self) -> int:
        """Bytes written so far."""

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`; NoSpace or DestinationError where that fails."""

    def record(self) -> FileRecord:
        """Path, size and digest of what was written."""

    def publish(self, *, durable: bool) -> None:
        """Give the file its final name, complete; `durable`: it outlasts a loss of power."""

    def abort(self) -> None:
        """Remove what was written; harmless after `publish`."""


class Place(Protocol):
    """A folder of files, or a prefix of objects."""

    url: str  # as people write it: `out`, `s3://bucket/prefix`
    is_local: bool

    def shown(self, path: str) -> str:
        """Where `path` lies, for messages and commands."""

    def stat(self, path: str) -> Stat:
        """Size and version of one file."""

    def read(self, path: str) -> bytes:
        """A whole small file."""

    def read_into(self, path: str, offset: int, view: memoryview, *, version: str = "") -> int:
        """Fill `view` with the bytes of the file from `offset` on; fewer only at its end. How many there were.

        With `version`, SourceChanged where the file is another one by now.
        """

    def buffer_bytes(self, num_bytes: int) -> int:
        """Memory that `read_through` needs to bring so many bytes."""

    def read_through(
        self, path: str, offset: int, num_bytes: int, take: Take, buffer: memoryview, *, version: str = ""
    ) -> Stretch:
        """As `read_into`, but bytes are given to `take` while they are in the CPU's cache.

        Args:
            path, offset, version: as `read_into`.
            num_bytes: that are wanted.
            take: called with (some bytes, how many come before them); it must not keep the view. After a break the
                same bytes may come again.
            buffer: of the size that `buffer_bytes` tells.
        """

    def list(self, prefix: str = "") -> Iterator[Stat]:
        """All files whose path begins with `prefix` (a folder with its slash, or ""), in any order.

        None where nothing is; what is being written has no final name and is not told.
        """

    def create(self, path: str, tag: str) -> NewFile:
        """Begin to write a file; `tag` tells plan and shard, or the kind of file."""

    def put(self, path: str, data: bytes, *, tag: str, durable: bool) -> FileRecord:
        """Write a small file atomically."""

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files; those that are gone already are no trouble."""

    def sync(self, paths: Iterable[str]) -> None:
        """Make the names of published files outlast a loss of power; nothing to do where publishing did it."""

    def sweep(self, tag: str, paths: Iterable[str]) -> None:
        """Remove what killed attempts with this tag left of `paths`; nothing that has a final name."""

    def num_unfinished(self) -> int:
        """Files that are being written, or were when a run was killed; as far as we wrote them."""

    def sweep_all(self) -> None:
        """Remove what killed attempts of any tag left; only what we wrote."""
