"""Compressed shards: independent zstd frames of 1 MiB of raw bytes each, and a seek table at the end.

`zstd -d`, `tar --zstd` and every streaming reader take it for one stream; whoever has the table, or the index, reads a
sample by decompressing one frame or two. Frames are compressed each on its own with fixed parameters, so that the same
raw bytes give the same file wherever it is written (with one version of libzstd).

Source: RFC 8878; facebook/zstd:contrib/seekable_format/zstd_seekable_compression_format.md.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import xxhash
import zstandard

from shardtool.errors import CorruptShard
from shardtool.formats.compression import codec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardtool.formats import WrittenShard
    from shardtool.formats.records import Out

FRAME_BYTES = 1 << 20  # raw; 256 KiB compresses 2-4 % worse, 4 MiB 1 % better and costs four times as much a sample
KEPT_FRAMES = 16
_SKIPPABLE, _SEEKABLE = 0x184D2A5E, 0x8F92EAB1
_HEAD, _ENTRY, _FOOT = struct.Struct("<II"), struct.Struct("<II"), struct.Struct("<IBI")


class PlainSink:
    """Passes the bytes of a shard on as they are."""

    def __init__(self, out: Out) -> None:
        self.write = out.write

    def end(self) -> None:
        """Nothing is left to write."""

    def stamp(self, written: WrittenShard) -> WrittenShard:
        """`written` itself."""
        return written


class FrameSink:
    """Compresses what is written to it, frame after frame."""

    def __init__(self, out: Out, level: int) -> None:
        self._out = out
        self._encoder = zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)
        self._frame, self._filled = memoryview(bytearray(FRAME_BYTES)), 0
        self._digest, self._raw_bytes = xxhash.xxh3_128(), 0
        self._sizes: list[tuple[int, int]] = []  # compressed and raw bytes of each frame

    def write(self, data: bytes | memoryview) -> None:
        """Append raw bytes."""
        view = memoryview(data)
        self._digest.update(view)
        self._raw_bytes += len(view)
        while len(view):
            piece = view[: FRAME_BYTES - self._filled]
            self._frame[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            view = view[len(piece) :]
            if self._filled == FRAME_BYTES:
                self._flush()

    def _flush(self) -> None:
        encoded = self._encoder.compress(self._frame[: self._filled])
        self._out.write(encoded)
        self._sizes.append((len(encoded), self._filled))
        self._filled = 0

    def end(self) -> None:
        """Write what is left, and the seek table."""
        if self._filled:
            self._flush()
        entries = b"".join(_ENTRY.pack(*sizes) for sizes in self._sizes)
        self._out.write(_HEAD.pack(_SKIPPABLE, len(entries) + _FOOT.size) + entries)
        self._out.write(_FOOT.pack(len(self._sizes), 0, _SEEKABLE))

    def stamp(self, written: WrittenShard) -> WrittenShard:
        """`written` with what a reader needs to find raw bytes."""
        offsets = [0]
        for size, _ in self._sizes:
            offsets.append(offsets[-1] + size)
        return Frames(tuple(offsets), FRAME_BYTES, self._raw_bytes).stamp(written, self._digest.hexdigest())


@contextmanager
def compressed(out: Out, compress: str) -> Iterator[PlainSink | FrameSink]:
    """A sink that writes to `out` what the settings ask for; the end is written when the block ends well."""
    codec, level = codec_of(compress)
    sink = PlainSink(out) if codec == "none" else FrameSink(out, level)
    yield sink
    sink.end()


@dataclass(frozen=True)
class Frames:
    """Where the frames of a shard lie."""

    offsets: tuple[int, ...]  # first byte of each in the file, and the end of the last
    frame_bytes: int  # raw bytes of each but the last
    raw_bytes: int

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> Frames:
        """As the metadata of an index tell.

        Raises:
            CorruptShard: they make no sense.
        """
        stated: Any = meta.get("frames")
        frame_bytes: Any = meta.get("frame_bytes")
        raw_bytes: Any = meta.get("raw_bytes")
        offsets: Any = tuple(stated) if isinstance(stated, list) else (None,)
        numbers = (*offsets, frame_bytes, raw_bytes)
        if not all(isinstance(number, int) and number >= 0 for number in numbers) or not 0 < frame_bytes <= 1 << 27:
            raise CorruptShard("the index has a table of frames that makes no sense")
        if list(offsets) != sorted(offsets) or len(offsets) != -(-raw_bytes // frame_bytes) + 1:
            raise CorruptShard("the index has a table of frames that does not fit its shard")
        return cls(offsets, frame_bytes, raw_bytes)

    def meta(self) -> dict[str, Any]:
        """What the metadata of an index tell, `raw_bytes` among it."""
        return {"frame_bytes": self.frame_bytes, "frames": list(self.offsets), "raw_bytes": self.raw_bytes}

    def stamp(self, written: WrittenShard, raw_xxh3_128: str) -> WrittenShard:
        """`written` with what a reader needs to find raw bytes."""
        meta = {**written.meta, **self.meta()}
        return replace(written, meta=meta, raw_bytes=self.raw_bytes, raw_xxh3_128=raw_xxh3_128)

    @property
    def num_frames(self) -> int:
        """Frames of the shard."""
        return len(self.offsets) - 1

    def raw_size(self, frame: int) -> int:
        """Raw bytes of one frame."""
        return min(self.frame_bytes, self.raw_bytes - frame * self.frame_bytes)

    def extent(self, first: int, last: int) -> tuple[int, int]:
        """Bytes [begin, end) of the file that hold frames [first, last)."""
        return self.offsets[first], self.offsets[last]

    def decode(self, frame: int, data: bytes | memoryview) -> bytes:
        """The raw bytes of one frame from its bytes in the file; nothing larger than promised is allocated.

        Raises:
            CorruptShard: it is damaged.
        """
        size = self.raw_size(frame)
        try:
            if zstandard.frame_content_size(data) != size:
                raise CorruptShard(f"frame {frame:,} does not hold {size:,} bytes")
            return zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
        except zstandard.ZstdError as error:
            raise CorruptShard(f"frame {frame:,} cannot be decompressed: {error}") from error


class FrameCache:
    """The frames used last, decompressed: at most 16 of 1 MiB."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._tables: dict[int, Frames] = {}

    def table(self, shard: int, meta: dict[str, Any]) -> Frames:
        """The frames of a shard, by the metadata of its index; raises CorruptShard."""
        found = self._tables.get(shard)
        if found is None:
            found = self._tables[shard] = Frames.from_meta(meta)
        return found

    def read(self, shard: int, frames: Frames, offset: int, size: int, read_file: Callable[[int, int], bytes]) -> bytes:
        """Raw bytes [offset, offset + size) of a shard, which lies at `read_file(offset, size)`; fewer at its end.

        Raises:
            CorruptShard: a frame is damaged.
        """
        first, last = offset // frames.frame_bytes, -(-(offset + size) // frames.frame_bytes)
        wanted = range(first, min(last, frames.num_frames))
        pieces = [piece for run in _runs(wanted) for piece in self._frames(shard, frames, run, read_file)]
        begin = offset - first * frames.frame_bytes
        return b"".join(pieces)[begin : begin + size] if len(pieces) != 1 else pieces[0][begin : begin + size]

    def clear(self) -> None:
        """Let go of all of them."""
        self._kept.clear()
        self._tables.clear()

    def _frames(
        self, shard: int, frames: Frames, wanted: range, read_file: Callable[[int, int], bytes]
    ) -> Iterator[bytes]:
        """At most `KEPT_FRAMES` neighbours; those that are missing by one read, from the first to the last of them."""
        missing = [frame for frame in wanted if (shard, frame) not in self._kept]
        begin, end = frames.extent(missing[0], missing[-1] + 1) if missing else (0, 0)
        data = memoryview(read_file(begin, end - begin) if missing else b"")
        here = {frame: self._kept.pop((shard, frame)) for frame in wanted if frame not in missing}
        for frame in wanted:
            found = here.get(frame)
            if found is None:
                low, high = frames.extent(frame, frame + 1)
                found = frames.decode(frame, data[low - begin : high - begin])
            self._kept[shard, frame] = found
            if len(self._kept) > KEPT_FRAMES:
                self._kept.popitem(last=False)
            yield found


def _runs(wanted: range) -> Iterator[range]:
    """At most `KEPT_FRAMES` at a time."""
    for first in range(wanted.start, wanted.stop, KEPT_FRAMES):
        yield range(first, min(first + KEPT_FRAMES, wanted.stop))


def ends_of(raw_bytes: int) -> tuple[bytes, bytes]:
    """(first, last bytes) of a compressed shard as far as its raw bytes tell them."""
    count = -(-raw_bytes // FRAME_BYTES)
    return zstandard.FRAME_HEADER, _FOOT.pack(count, 0, _SEEKABLE)


def most_bytes(raw_bytes: int) -> int:
    """Bytes that no shard of so many raw bytes exceeds, whatever is in it: bound of libzstd, and the seek table."""
    return raw_bytes + (raw_bytes >> 8) + (raw_bytes // FRAME_BYTES + 1) * (64 + _ENTRY.size) + 64


def frames_of_file(num_bytes: int, pread: Callable[[int, int], bytes]) -> Frames | None:
    """The frames of a shard by the seek table at its end; None where there is none that we could have written.

    Args:
        num_bytes: of the file.
        pread: called with (size, offset), gives bytes of it.
    """
    foot = pread(_FOOT.size, max(num_bytes - _FOOT.size, 0))
    if len(foot) < _FOOT.size:
        return None
    count, descriptor, magic = _FOOT.unpack(foot)
    begin = num_bytes - _FOOT.size - count * _ENTRY.size - _HEAD.size
    if magic != _SEEKABLE or descriptor or begin < 0:
        return None
    table = pread(num_bytes - _FOOT.size - begin, begin)
    sizes = list(_ENTRY.iter_unpack(table[_HEAD.size :]))
    offsets = [0]
    for packed, _ in sizes:
        offsets.append(offsets[-1] + packed)
    raw_bytes = sum(raw for _, raw in sizes)
    is_ours = all(raw == FRAME_BYTES for _, raw in sizes[:-1]) and offsets[-1] == begin
    if not is_ours or table[: _HEAD.size] != _HEAD.pack(_SKIPPABLE, count * _ENTRY.size + _FOOT.size):
        return None
    return Frames(tuple(offsets), FRAME_BYTES, raw_bytes)
