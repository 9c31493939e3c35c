"""Samples as records one after the other: what TFRecord, MDS and litData shards have in common.

A format says where everything lies (`Records`) and which container bytes lie between the payloads (`Glue`). Payload is
read to its place in a slab, the container bytes of many samples are made in one numpy pass and copied between
(`scatter`), checksums last, one write sends all of it. `write_simple` does the same a sample at a time; the tests hold
one against the other. Memory: a slab of 1 MiB, and some 500 bytes for each of GLUE_SAMPLES samples.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
import xxhash

from shardtool.formats import ShardLayout
from shardtool.formats.crc32c import crc32c_many, extend, masked
from shardtool.formats.scatter import Bytes, copy_runs, windows, words

if TYPE_CHECKING:
    from shardtool.formats.contents import ContentCheck
    from shardtool.model import Int64Array, ShardRows, UInt64Array
    from shardtool.sources.reader import PartReader

SLAB_BYTES = 1 << 20
GLUE_SAMPLES = 2048  # at least, whose container bytes are made in one pass: the calls of numpy cost more than the bytes
CHECKSUM_BYTES = 4
MAX_VARINT = 5
_MORE = np.array([0, *(sum(0x80 << 8 * place for place in range(size)) for size in range(MAX_VARINT))], np.int64)


class Out(Protocol):
    """What takes the bytes of a shard in order: a file, or what compresses on the way to one."""

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`."""


class Glue(Protocol):
    """A function that gives container bytes."""

    def __call__(self, first: int, last: int) -> Bytes:
        """Those of samples [first, last) side by side, as if no payload lay between; zeros for checksums of payload."""


@dataclass(frozen=True)
class Seams:
    """Where everything would lie if all payloads were empty: byte of the container bytes of the shard, without head."""

    sample: Int64Array  # int64[num_samples + 1]: first byte of each sample, and the end of the last
    part: Int64Array  # int64[num_parts]: where its payload goes
    payload: Int64Array  # int64[num_parts + 1]: payload bytes before each part

    @classmethod
    def of(cls, rows: ShardRows, start: Int64Array, part_offset: Int64Array) -> Seams:
        """Of samples that begin at `start` and parts at `part_offset`, with their payloads."""
        payload = np.concatenate([[0], np.cumsum(rows.sizes)]).astype(np.int64)
        return cls(start - payload[rows.part_start] - start[0], part_offset - payload[:-1] - start[0], payload)


@dataclass(frozen=True)
class Records:
    """Where everything lies in a shard, and what lies between the payloads."""

    head: bytes  # before the first sample
    start: Int64Array  # int64[num_samples + 1]: first byte of each sample, and the end of the last
    part_offset: Int64Array  # int64[num_parts], ascending
    seams: Seams
    glue: Glue
    checked_from: int = -1  # a sample ends in the masked CRC-32C of all its bytes after so many; -1: it does not
    contents: ContentCheck | None = None

    def layout(self) -> ShardLayout:
        """As other modules want it."""
        return ShardLayout(self.start[:-1], np.diff(self.start), self.part_offset, int(self.start[-1]))


def write_records(rows: ShardRows, records: Records, read: PartReader, out: Out) -> UInt64Array:
    """Write a shard through a slab; the xxh3_64 of each part, uint64[num_parts]."""
    digests = np.zeros(rows.num_parts, np.uint64)
    slab, glue = _slab(), _GlueAhead(rows, records)
    array = np.frombuffer(slab, np.uint8)
    out.write(records.head)
    start, first = records.start, 0
    while first < rows.num_samples:
        last = int(np.searchsorted(start, start[first] + SLAB_BYTES, side="right")) - 1
        if last <= first:
            _write_large(rows, records, first, read, out, slab, digests)
            first += 1
            continue
        base, low, high = int(start[first]), int(rows.part_start[first]), int(rows.part_start[last])
        places = records.part_offset[low:high] - base
        digests[low:high] = read.fill(low, high, places.tolist(), slab)
        if records.contents is not None:
            records.contents.look(low, places, array)
        glue.put(first, last, array)
        if records.checked_from >= 0:
            _seal(array, start[first : last + 1] - base, records.checked_from)
        out.write(slab[: int(start[last]) - base])
        first = last
    return digests


class _GlueAhead:
    """Container bytes of samples that follow each other, made for more of them than fill a slab."""

    def __init__(self, rows: ShardRows, records: Records) -> None:
        self._rows, self._records = rows, records
        self._first, self._end = 0, 0  # samples at hand
        self._values: Bytes = np.zeros(0, np.uint8)

    def put(self, first: int, last: int, array: Bytes) -> None:
        """Put those of samples [first, last) between their payloads in the slab, which begins with sample `first`."""
        records, seams = self._records, self._records.seams
        if last > self._end:
            self._first, self._end = first, min(max(last, first + GLUE_SAMPLES), self._rows.num_samples)
            self._values = records.glue(self._first, self._end)
        low, high = self._rows.part_start[[first, last]].tolist()
        edges = np.concatenate([seams.sample[[first]], seams.part[low:high], seams.sample[[last]]])
        starts = edges[:-1]
        places = starts + (seams.payload[low : high + 1] + int(records.start[0] - records.start[first]))
        copy_runs(array, places, self._values, starts - seams.sample[self._first], np.diff(edges))


def write_simple(rows: ShardRows, records: Records, read: PartReader, out: Out) -> UInt64Array:
    """The same bytes as `write_records`, a sample at a time: the oracle of the slab."""
    digests = np.zeros(rows.num_parts, np.uint64)
    buffer = memoryview(bytearray(SLAB_BYTES))
    out.write(records.head)
    for sample in range(rows.num_samples):
        _write_large(rows, records, sample, read, out, buffer, digests)
    return digests


@cache
def _slab() -> memoryview:
    """The slab of this process; private memory, kept from shard to shard."""
    return memoryview(mmap.mmap(-1, SLAB_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def _seal(array: Bytes, start: Int64Array, checked_from: int) -> None:
    """Put the checksum of each sample into its last four bytes."""
    begin = start[:-1] + checked_from
    end = start[1:] - CHECKSUM_BYTES
    sums = masked(crc32c_many(array, begin, end - begin)).astype("<u4")
    windows(array, CHECKSUM_BYTES)[end] = sums.view(f"V{CHECKSUM_BYTES}")


def _write_large(
    rows: ShardRows,
    records: Records,
    sample: int,
    read: PartReader,
    out: Out,
    buffer: memoryview,
    digests: UInt64Array,
) -> None:
    """One sample in pieces: container bytes, then payload in bites of the buffer, part after part."""
    data, seams = records.glue(sample, sample + 1).tobytes(), records.seams
    sink = _Checked(out, records.checked_from)
    done = 0
    for part in range(int(rows.part_start[sample]), int(rows.part_start[sample + 1])):
        until = int(seams.part[part] - seams.sample[sample])
        sink.write(data[done:until])
        done = until
        state = xxhash.xxh3_64()
        pieces = read.stream(part, buffer)
        for piece in records.contents.pieces(part, pieces) if records.contents is not None else pieces:
            state.update(piece)
            sink.write(piece)
        digests[part] = state.intdigest()
    sink.write(data[done : len(data) - (CHECKSUM_BYTES if records.checked_from >= 0 else 0)])
    sink.end()


class _Checked:
    """Passes the bytes of one sample on, and keeps their checksum where the format has one."""

    def __init__(self, out: Out, checked_from: int) -> None:
        self._out, self._skip, self._is_checked, self._crc = out, checked_from, checked_from >= 0, 0

    def write(self, data: bytes | memoryview) -> None:
        self._out.write(data)
        if self._is_checked:
            self._crc = extend(self._crc, memoryview(data)[self._skip :])
            self._skip = max(self._skip - len(data), 0)

    def end(self) -> None:
        if self._is_checked:
            self._out.write(int(masked(self._crc)).to_bytes(CHECKSUM_BYTES, "little"))


class RecordCheck:
    """Compares the container bytes that pass by with those that names and sizes call for, and checks checksums.

    Args:
        rows: names and sizes.
        records: where they must lie.
    """

    def __init__(self, rows: ShardRows, records: Records) -> None:
        self._rows, self._records = rows, records
        self._bad: set[int] = set()  # samples
        self._crc, self._tail = 0, b""  # of the sample that goes on in the next piece

    def look(self, base: int, piece: memoryview) -> None:
        """Take the piece of the shard that begins at byte `base`."""
        records, end = self._records, base + len(piece)
        if base < len(records.head) and piece[: len(records.head) - base] != records.head[base:end]:
            self._bad.add(0)
        start = records.start
        first = max(int(np.searchsorted(start, base, side="right")) - 1, 0)
        last = min(int(np.searchsorted(start, end, side="left")), len(start) - 1)
        if last <= first or end <= int(start[0]):
            return
        array = np.frombuffer(piece, np.uint8)
        positions, values = self._places(first, last), records.glue(first, last)
        is_here = (positions >= base) & (positions < end)
        if records.checked_from >= 0:
            ends = records.seams.sample[first + 1 : last + 1] - records.seams.sample[first]
            is_here[ends[:, None] - np.arange(1, CHECKSUM_BYTES + 1)] = False
        places = positions[is_here]
        wrong = places[array[places - base] != values[is_here]]
        self._bad |= set((np.searchsorted(start, wrong, side="right") - 1).tolist())
        if records.checked_from >= 0:
            self._check_sums(array, base, first, last)

    def _places(self, first: int, last: int) -> Int64Array:
        """int64[n]: byte of the shard of each container byte of samples [first, last)."""
        seams, start = self._records.seams, int(self._records.start[0])
        low, high = self._rows.part_start[[first, last]].tolist()
        begin, end = seams.sample[[first, last]].tolist()
        lengths = np.diff(np.concatenate([[begin], seams.part[low:high], [end]]))
        places: Int64Array = np.arange(begin, end) + np.repeat(seams.payload[low : high + 1], lengths) + start
        return places

    def _check_sums(self, array: Bytes, base: int, first: int, last: int) -> None:
        start, end = self._records.start, base + len(array)
        begins = start[first:last] + self._records.checked_from
        ends = start[first + 1 : last + 1] - CHECKSUM_BYTES
        is_whole = (start[first:last] >= base) & (start[first + 1 : last + 1] <= end)
        whole = first + np.flatnonzero(is_whole)
        if len(whole):
            sums = masked(crc32c_many(array, begins[is_whole] - base, (ends - begins)[is_whole])).astype("<u4")
            found = array[(ends[is_whole] - base)[:, None] + np.arange(CHECKSUM_BYTES)].view("<u4")[:, 0]
            self._bad |= set(whole[found != sums].tolist())
        for sample in (first + np.flatnonzero(~is_whole)).tolist():
            self._go_on(array, base, sample, int(begins[sample - first]), int(ends[sample - first]))

    def _go_on(self, array: Bytes, base: int, sample: int, begin: int, end: int) -> None:
        """A sample of which this piece holds a part: checksum so far, and as much of the stored one as is there."""
        view, limit = array.data, base + len(array)
        if int(self._records.start[sample]) >= base:
            self._crc, self._tail = 0, b""
        self._crc = extend(self._crc, view[max(begin - base, 0) : max(min(end, limit) - base, 0)])
        self._tail += bytes(view[max(end - base, 0) : max(end + CHECKSUM_BYTES - base, 0)])
        if len(self._tail) == CHECKSUM_BYTES and self._tail != int(masked(self._crc)).to_bytes(4, "little"):
            self._bad.add(sample)

    def bad_parts(self, path: str) -> list[int]:
        """The first part of each sample whose container bytes are not what they should be."""
        return [int(self._rows.part_start[sample]) for sample in sorted(self._bad)]


class Pieces:
    """Container bytes being put together: fields of one width, or of as many widths as there are samples.

    Args:
        seams: where each belongs.
        first, last: samples.
    """

    def __init__(self, seams: Seams, first: int, last: int) -> None:
        self._origin, end = seams.sample[[first, last]].tolist()
        self.values: Bytes = np.zeros(end - self._origin, np.uint8)

    def fixed(self, starts: Int64Array, fields: Bytes) -> None:
        """Rows of uint8[n, width] at `starts`, int64[n]."""
        width = fields.shape[1]
        windows(self.values, width)[starts - self._origin] = np.ascontiguousarray(fields).view(f"V{width}")[:, 0]

    def ragged(self, starts: Int64Array, sizes: Int64Array, values: Bytes, begins: Int64Array) -> None:
        """At `starts` the bytes of `values` from `begins` on, `sizes` of them; int64[n] each."""
        copy_runs(self.values, starts - self._origin, values, begins, sizes)

    def word(self, starts: Int64Array, values: Int64Array) -> None:
        """Words of eight bytes, little-endian; whoever puts less there puts what follows later."""
        words(self.values)[starts - self._origin] = values


def varint_sizes(values: Int64Array) -> Int64Array:
    """int64[n]: bytes of each value as a protocol buffer varint; values are below 2**35."""
    sizes, largest = np.ones(len(values), np.int64), int(values.max(initial=0))
    for bits in (7, 14, 21, 28):
        if largest >> bits:
            sizes += values >> bits > 0
    return sizes


def varint_words(values: Int64Array) -> tuple[Int64Array, Int64Array]:
    """(bytes of each, int64[n] of which so many count, the lowest): values below 2**35 as protocol buffer varints."""
    sizes = varint_sizes(values)
    spread = values & 0x7F
    for place in range(1, int(sizes.max(initial=1))):  # each seven bits move up to a byte of their own
        spread |= (values & 0x7F << 7 * place) << place
    spread |= _MORE[sizes]
    return sizes, spread


def varints(values: Int64Array) -> tuple[Int64Array, Bytes]:
    """(bytes of each, all of them joined), as `varint_words`."""
    sizes, spread = varint_words(values)
    groups = spread.astype("<i8")[:, None].view(np.uint8)[:, :MAX_VARINT]
    return sizes, groups[np.arange(MAX_VARINT) < sizes[:, None]]
