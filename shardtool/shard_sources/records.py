"""Records that other tools wrote: TFRecord with tf.Example, MDS shards, litData chunks. Where the values of each lie.

    buffer -> one list of cells a record;  a cell = name, offset, size, or the text of a number

Values that are bytes or text stay where they are; numbers become decimal text, as loaders of tar shards expect them.
Untrusted input: every length is checked against the buffer before it is followed, nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import struct
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardtool.errors import CorruptShard, UnknownFormat
from shardtool.formats.crc32c import crc32c, masked
from shardtool.storage.files import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEYS = (b"__key__", b"key")
MISSING = b"__missing__"  # names of the parts that a sample of ours lacks, in formats that know no null
WORD = 4
RECORD_HEAD = 12  # of a TFRecord: its length and the checksum of that


class Cell(NamedTuple):
    """One value of a record."""

    name: bytes
    offset: int  # in the buffer; -1 where `text` stands for it
    size: int
    text: bytes = b""  # a number, as decimal text


def _damaged(path: str, offset: int, what: str) -> CorruptShard:
    return CorruptShard(
        f"{path}: byte {offset:,}: {what}",
        hint="copy it again from where it came; --on-error skip leaves the whole file out",
        where={"path": path, "offset": offset},
    )


# TFRecord: u64 length | u32 masked crc of it | data | u32 masked crc of data; data is a tf.Example


def tfrecord_cells(buffer: memoryview, path: str, base: int = 0) -> Iterator[list[Cell]]:
    """The features of each tf.Example; every checksum is compared. `base`: byte of the file where the buffer begins."""
    position = 0
    while position < len(buffer):
        begin = position + RECORD_HEAD
        end = position + record_bytes(buffer[position:begin], len(buffer) - position, path, base + position) - WORD
        if struct.unpack("<I", buffer[end : end + WORD])[0] != int(masked(crc32c(buffer[begin:end]))):
            raise _damaged(path, base + position, "the checksum of a record is not that of its bytes")
        try:
            yield _example(buffer, begin, end)
        except (IndexError, ValueError, struct.error) as error:
            raise _damaged(path, base + begin, f"a record is no tf.Example: {error}") from error
        position = end + WORD


def record_bytes(head: memoryview, num_left: int, path: str, position: int) -> int:
    """Bytes of the record that begins with `head`, of RECORD_HEAD bytes, framing included.

    Raises:
        CorruptShard: its checksum is wrong, or it is longer than the `num_left` bytes of the file from there on.
    """
    told = bytes(head)
    if len(told) < RECORD_HEAD or struct.unpack("<I", told[8:])[0] != int(masked(crc32c(told[:8]))):
        raise _damaged(path, position, "no TFRecord length with its checksum")
    size = int(struct.unpack("<Q", told[:8])[0])
    if RECORD_HEAD + size + WORD > num_left:
        raise _damaged(path, position, f"a record of {size:,} bytes goes beyond the end of the file")
    return RECORD_HEAD + size + WORD


def _example(buffer: memoryview, begin: int, end: int) -> list[Cell]:
    cells: list[Cell] = []
    for field, first, last in _fields(buffer, begin, end):
        if field == 1:
            for number, start, stop in _fields(buffer, first, last):
                if number == 1:
                    cells += _entry(buffer, start, stop)
    return cells


def _entry(buffer: memoryview, begin: int, end: int) -> list[Cell]:
    """The values of one feature, from its map entry."""
    name, cells = b"", []
    for field, first, last in _fields(buffer, begin, end):
        if field == 1:
            name = bytes(buffer[first:last])
        elif field == 2:
            for kind, start, stop in _fields(buffer, first, last):
                cells += _list(buffer, kind, start, stop)
    if len(cells) == 1:
        return [cells[0]._replace(name=name)]
    return [cell._replace(name=name + b".%d" % number) for number, cell in enumerate(cells)]


def _list(buffer: memoryview, kind: int, begin: int, end: int) -> list[Cell]:
    """Values of a BytesList (1), FloatList (2) or Int64List (3); numbers of one list are one text, joined by blanks."""
    if kind == 1:
        return [Cell(b"", first, last - first) for _, first, last in _fields(buffer, begin, end)]
    texts: list[bytes] = []
    for _, first, last in _fields(buffer, begin, end):
        if kind == 2:
            texts += [repr(float(value)).encode() for value in np.frombuffer(buffer[first:last], "<f4")]
        else:
            texts += [b"%d" % value for value in _varints(buffer, first, last)]
    return [Cell(b"", -1, 0, b" ".join(texts))]


def _fields(buffer: memoryview, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(field number, first byte, end) of each field of a message; of numbers too, as the bytes that hold them."""
    while begin < end:
        tag, begin = _varint(buffer, begin, end)
        wire = tag & 7
        if wire == 2:
            size, begin = _varint(buffer, begin, end)
            stop = begin + size
        elif wire == 0:
            stop = _varint(buffer, begin, end)[1]
        elif wire in (1, 5):
            stop = begin + (8 if wire == 1 else 4)
        else:
            raise ValueError(f"wire type {wire}")
        if stop > end:
            raise ValueError("a field goes beyond its message")
        yield tag >> 3, begin, stop
        begin = stop


def _varint(buffer: memoryview, begin: int, end: int) -> tuple[int, int]:
    value, shift = 0, 0
    while begin < end and shift < 70:
        byte = buffer[begin]
        value |= (byte & 127) << shift
        begin, shift = begin + 1, shift + 7
        if byte < 128:
            return value, begin
    raise ValueError("a number without an end")


def _varints(buffer: memoryview, begin: int, end: int) -> Iterator[int]:
    while begin < end:
        value, begin = _varint(buffer, begin, end)
        yield value - (1 << 64) if value >= 1 << 63 else value


# MDS and litData: u32 n | u32 offset[n + 1] | ... ; a record = u32 size of each column without a fixed one | columns

_NUMBERS = {
    "int": "<q",
    "int8": "<b",
    "int16": "<h",
    "int32": "<i",
    "int64": "<q",
    "uint8": "<B",
    "uint16": "<H",
    "uint32": "<I",
    "uint64": "<Q",
    "float16": "<e",
    "float32": "<f",
    "float64": "<d",
    "float": "<d",
    "bool": "<?",
}
_UNSAFE = ("pkl", "pickle")


class Table(NamedTuple):
    """The head of an MDS shard or litData chunk: where records begin, and how a record is laid out."""

    offsets: Any  # int64[n + 1] bytes of the file; the last is where the records end
    names: list[bytes]  # of the columns
    kinds: list[str]  # as `_kind`
    fixed: list[int | None]  # bytes of a column; None where each record tells


def table_cells(buffer: memoryview, path: str, kind: str) -> Iterator[list[Cell]]:
    """The columns of each record of a whole `mds` shard or `litdata` chunk."""
    table = table_of(buffer, len(buffer), path, kind)
    return row_cells(buffer, table, table.offsets, path)


def head_bytes(start: memoryview, num_bytes: int, path: str) -> int:
    """Bytes of the head of a shard, from its first 8 bytes; at most those of the file."""
    if len(start) < 2 * WORD:
        raise _damaged(path, 0, f"{len(start)} bytes hold no table of records")
    return min(int(struct.unpack("<I", start[WORD : 2 * WORD])[0]), num_bytes)


def table_of(head: memoryview, num_bytes: int, path: str, kind: str) -> Table:
    """The table at the beginning of a shard.

    Args:
        head: that many bytes of it as `head_bytes` says, or more.
        num_bytes: of the whole shard.
        path: of the shard, for messages; beside a litData chunk lies the index.json that names its columns.
        kind: `mds` or `litdata`.

    Raises:
        CorruptShard: no table, or one that leads out of the shard.
        UnknownFormat: values that are programs, or no values but Arrow.
    """
    offsets = _offsets(head, num_bytes, path)
    return _mds_table(head, offsets, path) if kind == "mds" else _litdata_table(offsets, path)


def _mds_table(head: memoryview, offsets: Any, path: str) -> Table:
    config = _config(head, WORD * (len(offsets) + 1), int(offsets[0]), path)
    names = [str(name).encode() for name in config["column_names"]]
    kinds = [_kind(encoding, path) for encoding in config["column_encodings"]]
    return Table(offsets, names, kinds, config["column_sizes"])


def _litdata_table(offsets: Any, path: str) -> Table:
    """Columns are the leaves of each item."""
    if len(offsets) > 2 and int(offsets[0]) == int(offsets[-1]):
        raise UnknownFormat(
            f"{path} holds Arrow inside of a litData chunk, as litdata 0.2.76 and later write it",
            hint="write it again with litdata below 0.2.76, or export the samples to files",
            where={"path": path},
        )
    config = _litdata_config(path)
    kinds = [_kind(kind, path) for kind in config["data_format"]]
    return Table(offsets, _leaves(config, len(kinds)), kinds, [None] * len(kinds))


def _kind(encoding: str, path: str) -> str:
    """Format of `struct` for a number, "" for bytes that are taken as they are."""
    name = encoding.partition(":")[0]
    if name in _UNSAFE:
        raise UnknownFormat(
            f"{path} holds pickled values, which are programs, not data",
            hint="export them with the tool that wrote them",
            where={"path": path},
        )
    return _NUMBERS.get(name, "")


def _offsets(head: memoryview, num_bytes: int, path: str) -> Any:
    """int64[n + 1]: where records begin; the last is where the file ends."""
    count = struct.unpack("<I", head[:WORD])[0] if len(head) >= WORD else 0
    if not count or WORD * (count + 2) > len(head):
        raise _damaged(path, 0, f"a table of {count:,} records does not fit into {len(head):,} bytes")
    offsets = np.frombuffer(head, "<u4", count + 1, WORD).astype(np.int64)
    if (np.diff(offsets) < 0).any() or int(offsets[-1]) > num_bytes or int(offsets[0]) < WORD * (count + 2):
        raise _damaged(path, WORD, "its table of offsets is not in order")
    return offsets


def _config(buffer: memoryview, begin: int, end: int, path: str) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads(bytes(buffer[begin:end]))
        if len(config["column_names"]) == len(config["column_encodings"]) == len(config["column_sizes"]):
            return config
    except (ValueError, KeyError, TypeError):
        pass
    raise _damaged(path, begin, "no description of columns, as MDS shards have it")


def _litdata_config(path: str) -> dict[str, Any]:
    place, name = place_of(path)
    try:
        config: dict[str, Any] = json.loads(place.read(os.path.join(os.path.dirname(name), "index.json")))["config"]
        config["data_format"][0]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UnknownFormat(
            f"{path} has no index.json of litData beside it, which names the columns: {error}",
            hint="name a folder that litdata wrote",
            where={"path": path},
        ) from error
    return config


def _leaves(config: dict[str, Any], count: int) -> list[bytes]:
    """Names of the leaves: keys of a flat dictionary, else numbers."""
    try:
        spec = json.loads(config["data_spec"])[1]
        if spec["type"] == "builtins.dict":
            names = json.loads(spec["context"])
            if len(names) == count:
                return [str(name).encode() for name in names]
    except (ValueError, KeyError, TypeError, IndexError):
        pass
    return [b"%d" % number for number in range(count)]


def row_cells(buffer: memoryview, table: Table, offsets: Any, path: str, base: int = 0) -> Iterator[list[Cell]]:
    """The columns of the records that begin at `offsets` of a buffer, int64[n + 1]; the last is where they end.

    `base` is the byte of the file where the buffer begins.
    """
    names, kinds, fixed = table.names, table.kinds, table.fixed
    varying = sum(size is None for size in fixed)
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        if begin + WORD * varying > end:
            raise _damaged(path, base + begin, "a record is shorter than the sizes of its columns")
        told = iter(struct.unpack(f"<{varying}I", buffer[begin : begin + WORD * varying]))
        place, cells = begin + WORD * varying, []
        for name, kind, size in zip(names, kinds, fixed, strict=True):
            num_bytes = next(told) if size is None else int(size)
            if place + num_bytes > end:
                raise _damaged(path, base + begin, "the columns of a record go beyond its end")
            text = _number(buffer, place, num_bytes, kind) if kind else b""
            cells.append(Cell(name, -1 if text else place, num_bytes, text))
            place += num_bytes
        yield _present(buffer, cells, path, base)


def _number(buffer: memoryview, place: int, size: int, kind: str) -> bytes:
    """Decimal text of a number; b"" where its bytes are of another size, and are taken as they are."""
    if struct.calcsize(kind) != size:
        return b""
    value = struct.unpack(kind, buffer[place : place + size])[0]
    return repr(value).lower().encode() if isinstance(value, float | bool) else b"%d" % value


def _present(buffer: memoryview, cells: list[Cell], path: str, base: int) -> list[Cell]:
    """Cells without the parts that `__missing__` names, and without it."""
    listed = [cell for cell in cells if cell.name == MISSING and cell.offset >= 0]
    if not listed:
        return cells
    cell = listed[0]
    try:
        missing = json.loads(bytes(buffer[cell.offset : cell.offset + cell.size]) or b"[]")
        names = {str(name).encode() for name in missing}
    except (ValueError, TypeError) as error:
        raise _damaged(path, base + cell.offset, f"no list of the parts that a sample lacks: {error}") from error
    return [other for other in cells if other.name not in names and other.name != MISSING]


PARSERS: dict[str, Callable[[memoryview, str], Iterator[list[Cell]]]] = {
    "tfrecord": tfrecord_cells,
    "mds": partial(table_cells, kind="mds"),
    "litdata": partial(table_cells, kind="litdata"),
}
