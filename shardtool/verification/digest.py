"""One pass over a shard file: xxh3_128 of the whole, xxh3_64 of every block and part, each byte read once.

A piece of 1 MiB is read into a buffer that is used again, and all digests take it while it is in the cache; whoever
wants to look at other bytes of it, headers say, is handed the piece. By `read`, never by a map: a device that fails
says so with an error that can be reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from shardtool.errors import CorruptShard
from shardtool.hashing import FileDigest
from shardtool.storage.files import open_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.formats.frames import Frames
    from shardtool.model import Int64Array, UInt64Array
    from shardtool.storage.files import Stream

_EMPTY = np.uint64(xxhash.xxh3_64_intdigest(b""))
PIECE_BYTES = 1 << 20  # a multiple of 512: a tar header never straddles two pieces


@dataclass(frozen=True)
class ShardDigests:
    """Digests of a file and of its parts."""

    file: FileDigest
    parts: UInt64Array  # xxh3_64, uint64[num_parts]; 0 for a part that goes beyond the end of the file


def digest_shard(
    path: str, offsets: Int64Array, sizes: Int64Array, look: Callable[[int, memoryview], None] | None = None
) -> ShardDigests:
    """Digests of the file or object `path` and of the parts at `offsets`, int64[num_parts], ascending and apart.

    Args:
        path: the shard file.
        offsets: first byte of each part.
        sizes: bytes of each part.
        look: called with (byte of the file, piece) for each piece, in order; the piece is overwritten afterwards.

    Raises:
        OSError: the file cannot be read.
    """
    walk = _Walk(offsets, sizes)
    buffer = memoryview(bytearray(PIECE_BYTES))
    base = 0
    with open_stream(path) as file:
        while size := _fill(file, buffer):
            piece = buffer[:size]
            walk.file.update(piece)
            walk.take(base, piece)
            if look is not None:
                look(base, piece)
            base += size
    return ShardDigests(walk.file, walk.digests)


@dataclass(frozen=True)
class FrameDigests(ShardDigests):
    """Of a compressed shard, and of what it decompresses to; parts lie in that."""

    raw_xxh3_128: str
    bad_frames: list[int]  # that cannot be decompressed; taken as zeros


def digest_frames(
    path: str,
    frames: Frames,
    offsets: Int64Array,
    sizes: Int64Array,
    look: Callable[[int, memoryview], None] | None = None,
) -> FrameDigests:
    """As `digest_shard`, for a compressed shard: offsets and pieces are those of what it decompresses to.

    Raises:
        OSError: the file cannot be read.
    """
    walk, whole = _Walk(offsets, sizes), xxhash.xxh3_128()
    bad: list[int] = []
    with open_stream(path) as file:
        for frame in range(frames.num_frames):
            data = bytearray(frames.offsets[frame + 1] - frames.offsets[frame])
            data = data[: _fill(file, memoryview(data))]
            walk.file.update(bytes(data))
            raw = _decoded(frames, frame, bytes(data), bad)
            whole.update(raw)
            base, piece = frame * frames.frame_bytes, memoryview(raw)
            walk.take(base, piece)
            if look is not None:
                look(base, piece)
        buffer = memoryview(bytearray(PIECE_BYTES))
        while size := _fill(file, buffer):  # the seek table
            walk.file.update(buffer[:size])
    return FrameDigests(walk.file, walk.digests, whole.hexdigest(), bad)


def _decoded(frames: Frames, frame: int, data: bytes, bad: list[int]) -> bytes:
    try:
        return frames.decode(frame, data)
    except CorruptShard:
        bad.append(frame)
        return bytes(frames.raw_size(frame))


def distinct_parts(offsets: Int64Array, sizes: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
    """(offsets, sizes, row of each part in them): each place once, ascending, as `digest_shard` wants them.

    Links to other samples share a place; an empty part may begin where the next one does, and comes first.
    """
    order = np.lexsort((sizes, offsets))
    first, size = offsets[order], sizes[order]
    is_new = np.ones(len(order), bool)
    is_new[1:] = (first[1:] != first[:-1]) | (size[1:] != size[:-1])
    rows = np.empty(len(order), np.int64)
    rows[order] = np.cumsum(is_new) - 1
    return first[is_new], size[is_new], rows


def _fill(file: Stream, buffer: memoryview) -> int:
    """Bytes read: all that `buffer` holds, fewer at the end of the file only."""
    size = file.readinto(buffer)
    while 0 < size < len(buffer) and (more := file.readinto(buffer[size:])):
        size += more
    return size


class _Walk:
    """The parts seen so far. At most one of them is open: it began in an earlier piece and goes on."""

    def __init__(self, offsets: Int64Array, sizes: Int64Array) -> None:
        self.file = FileDigest()
        self.digests = np.where(sizes == 0, _EMPTY, np.uint64(0))  # an empty part may lie at the very end
        self._offsets, self._ends = offsets, offsets + sizes
        self._next = 0
        self._open: Any = None

    def take(self, base: int, piece: memoryview) -> None:
        first, limit = self._next, base + len(piece)
        if self._open is not None:
            end = int(self._ends[first])
            self._open.update(piece[: min(end, limit) - base])
            if end > limit:
                return
            self.digests[first] = self._open.intdigest()
            self._open, first = None, first + 1
        begun = int(np.searchsorted(self._offsets, limit, side="left"))
        whole = max(min(int(np.searchsorted(self._ends, limit, side="right")), begun), first)
        if whole > first:
            starts, ends = ((column[first:whole] - base).tolist() for column in (self._offsets, self._ends))
            digest = xxhash.xxh3_64_intdigest
            self.digests[first:whole] = [digest(piece[a:b]) for a, b in zip(starts, ends, strict=True)]
        if begun > whole:
            self._open = xxhash.xxh3_64(piece[int(self._offsets[whole]) - base :])
        self._next = whole
