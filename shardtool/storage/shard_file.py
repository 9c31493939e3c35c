"""The files of a shard being written: one that holds the payload, and those of the same stem that its format adds."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from shardtool.storage import open_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.model import FileRecord

PIECE_BYTES = 512 << 10  # of a large buffer, digested and written at once


class ShardFile:
    """A file being written to a place, with its digests. Nothing is visible under `path` before `publish`.

    Args:
        root: the place, a folder or URL.
        path: below the place.
        tag: tells plan and shard, or the kind of file.
    """

    def __init__(self, root: str, path: str, tag: str) -> None:
        self.root, self.path, self.tag = root, path, tag
        self.siblings: list[ShardFile] = []
        self._file = open_place(root).create(path, tag)
        self.digest = self._file.digest
        self.write = self._file.write  # bound here: a shard is written in many calls

    @property
    def position(self) -> int:
        """Bytes written so far."""
        return self.digest.num_bytes

    def sibling(self, suffix: str) -> ShardFile:
        """Another file of the same shard, of the same stem; published after this one, aborted with it."""
        file = ShardFile(self.root, os.path.splitext(self.path)[0] + suffix, self.tag)
        self.siblings.append(file)
        return file

    def record(self) -> FileRecord:
        """Path, size and digest of what was written."""
        return self._file.record()

    def records(self) -> tuple[FileRecord, ...]:
        """Of this file and its siblings."""
        return (self.record(), *(file.record() for file in self.siblings))

    def publish(self, *, durable: bool) -> None:
        """Give the file its final name, then its siblings; with `durable` the bytes are safe before."""
        self._file.publish(durable=durable)
        for file in self.siblings:
            file.publish(durable=durable)

    def abort(self) -> None:
        """Remove what was written; harmless after `publish`."""
        for file in self.siblings:
            file.abort()
        self._file.abort()


class Sink:
    """A ShardFile as pyarrow wants it.

    Args:
        after_piece: called whenever a piece was written.
    """

    closed = False

    def __init__(self, file: ShardFile, after_piece: Callable[[], None] | None = None) -> None:
        self._file = file
        self._after_piece = after_piece

    def write(self, data: Any) -> int:
        """Append, in pieces that the digests leave in the CPU's cache for the write."""
        view = memoryview(data)
        for begin in range(0, len(view), PIECE_BYTES):
            self._file.write(view[begin : begin + PIECE_BYTES])
            if self._after_piece is not None:
                self._after_piece()
        return len(view)

    def tell(self) -> int:
        """Bytes so far."""
        return self._file.position

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The ShardFile is closed by whoever made it."""
