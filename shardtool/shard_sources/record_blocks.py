"""Records of a file, block by block: all of a file that is mapped, or what a window of an object holds whole.

    kind, bytes -> Block: a view, the byte of the file where it begins, the cells of each record in it

Memory of an object: its table of records, one block of 8 MiB or one larger record, and the windows on their way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.errors import CorruptShard
from shardtool.shard_sources.records import (
    PARSERS,
    RECORD_HEAD,
    WORD,
    head_bytes,
    record_bytes,
    row_cells,
    table_of,
    tfrecord_cells,
)
from shardtool.storage.files import RemoteStream, place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.shard_sources.records import Cell
    from shardtool.storage.base import Stat
    from shardtool.storage.files import Stream

BLOCK_BYTES = 8 << 20


class Block(NamedTuple):
    """Some records that follow one another."""

    base: int  # byte of the file where the view begins
    view: memoryview
    records: Iterable[list[Cell]]  # offsets are those in the view; to be taken once


def whole_block(view: memoryview, path: str, kind: str) -> Block:
    """All records of a file that is in memory."""
    return Block(0, view, PARSERS[kind](view, path))


def remote_blocks(url: str, kind: str, known: Stat) -> Iterator[Block]:
    """The records of an object, which is read once from its beginning to its end.

    Args:
        url: of the object.
        kind: `tfrecord`, `mds` or `litdata`.
        known: its size and version.

    Raises:
        CorruptShard, UnknownFormat: as the parsers of a whole file.
        SourceChanged: it is another object by now.
    """
    place, name = place_of(url)
    with RemoteStream(place, name, known=known) as stream:
        yield from _framed(stream, url) if kind == "tfrecord" else _tabled(stream, url, kind)


def _framed(stream: Stream, path: str) -> Iterator[Block]:
    """Blocks of whole TFRecords. A length is believed when its checksum is right and the file is long enough."""
    base, data = 0, bytearray()
    while base < stream.num_bytes:
        _fill(stream, data, min(BLOCK_BYTES, stream.num_bytes - base))
        end = _whole_records(memoryview(data), base, stream.num_bytes, path)
        if end > len(data):  # one record, larger than a block
            _fill(stream, data, end)
        view = memoryview(bytes(data[:end]))
        yield Block(base, view, tfrecord_cells(view, path, base))
        del data[:end]
        base += end


def _whole_records(view: memoryview, base: int, num_bytes: int, path: str) -> int:
    """Bytes of the records that are whole in `view`, or of the first one where none is."""
    end, is_last = 0, base + len(view) == num_bytes
    while end < len(view) and (is_last or len(view) - end >= RECORD_HEAD):
        try:
            size = record_bytes(view[end : end + RECORD_HEAD], num_bytes - base - end, path, base + end)
        except CorruptShard:
            if end:
                break  # those before it first
            raise
        if end and end + size > len(view):
            break
        end += size
    return end


def _tabled(stream: Stream, path: str, kind: str) -> Iterator[Block]:
    """Blocks of the records that the table at the beginning of the file names."""
    data = bytearray()
    _fill(stream, data, min(2 * WORD, stream.num_bytes))
    _fill(stream, data, head_bytes(memoryview(data), stream.num_bytes, path))
    table = table_of(memoryview(data), stream.num_bytes, path, kind)
    del data[: int(table.offsets[0])]
    first, last = 0, len(table.offsets) - 1
    while first < last:
        base = int(table.offsets[first])
        stop = int(np.searchsorted(table.offsets, base + BLOCK_BYTES, side="right")) - 1
        stop = min(max(stop, first + 1), last)
        size = int(table.offsets[stop]) - base
        _fill(stream, data, size)
        view = memoryview(bytes(data[:size]))
        yield Block(base, view, row_cells(view, table, table.offsets[first : stop + 1] - base, path, base))
        del data[:size]
        first = stop


def _fill(stream: Stream, data: bytearray, num_bytes: int) -> None:
    """Read on until `data` has so many bytes; the stream has them."""
    have = len(data)
    if have >= num_bytes:
        return
    data.extend(bytes(num_bytes - have))
    view = memoryview(data)
    while have < num_bytes:
        count = stream.readinto(view[have:])
        assert count
        have += count
