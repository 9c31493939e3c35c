"""Parquet files of large samples, byte for byte as pyarrow writes them, without its three copies of every payload.

In row groups of at most PAGE_VALUES samples each column is one page, so that where everything lies follows from names
and sizes: parts are read to their place in the page. Schema, version and key-value metadata are taken from an empty
file that pyarrow writes; pyarrow is the oracle of the rest in the tests, and of a specimen in every process, since
other versions of it write other metadata. Memory: a row group.

Source: apache/parquet-format:src/main/thrift/parquet.thrift, Encodings.md; apache/arrow:cpp/src/arrow/util/
rle_encoding_internal.h (which runs of levels are packed).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.formats.columnar import CHECKED, FEATURES, FilledColumn
from shardtool.formats.scatter import Bytes, copy_runs, windows
from shardtool.formats.thrift import (
    BINARY,
    FALSE,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    binary,
    integer,
    integers,
    list_,
    struct,
    varint,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.formats.columnar import CellFiller, Layout
    from shardtool.model import Int64Array

MAGIC = b"PAR1"
PAGE_VALUES = 1024  # of one column, that pyarrow encodes before it asks whether a page is full
MAX_PAGE_BYTES = (1 << 31) - 1
LENGTH_BYTES = 4  # before each value of a page
_NO_GROUPS = b"\x16\x00\x19\x0c"  # fields 3 and 4 of a footer: no rows, an empty list of row groups
_PLAIN, _RLE = 0, 3  # encodings
_INT64, _BYTE_ARRAY = 2, 6  # physical types
_MAX_PACKED = 63  # groups of eight levels in one run


class Out(Protocol):
    """What takes the bytes of a file in order."""

    def write(self, data: Any) -> int:
        """Append `data`."""

    def tell(self) -> int:
        """Bytes so far."""


@dataclass(frozen=True)
class Statistics:
    """Of an int64 column: values are eight bytes, little-endian."""

    null_count: int
    smallest: bytes = b""  # both empty where all are null
    largest: bytes = b""


@dataclass(frozen=True)
class Page:
    """The one page of a column in a row group."""

    path: tuple[str, ...]
    levels: Bytes  # definition level of each row
    max_level: int
    values: memoryview  # PLAIN
    value_bytes: int  # of the values without their lengths; -1 for numbers
    statistics: Statistics | None = None

    @property
    def num_rows(self) -> int:
        """Rows of the group."""
        return len(self.levels)


@dataclass(frozen=True)
class Chunk:
    """A page that was written."""

    page: Page
    offset: int
    num_bytes: int  # with its header

    def metadata(self) -> bytes:
        """ColumnMetaData."""
        page, stats = self.page, self.page.statistics
        plain = struct((1, I32, integer(0)), (2, I32, integer(_PLAIN)), (3, I32, integer(1)))
        unencoded = [(1, I64, integer(page.value_bytes))] if page.value_bytes >= 0 else []
        histogram = np.bincount(page.levels, minlength=page.max_level + 1).tolist()
        return struct(
            (1, I32, integer(_BYTE_ARRAY if page.value_bytes >= 0 else _INT64)),
            (2, LIST, integers(I32, (_RLE, _PLAIN))),
            (3, LIST, list_(BINARY, [binary(name.encode()) for name in page.path])),
            (4, I32, integer(0)),
            (5, I64, integer(page.num_rows)),
            (6, I64, integer(self.num_bytes)),
            (7, I64, integer(self.num_bytes)),
            (9, I64, integer(self.offset)),
            *([(12, STRUCT, _statistics(stats))] if stats else []),
            (13, LIST, list_(STRUCT, [plain])),
            (16, STRUCT, struct(*unencoded, (2, LIST, integers(I64, ())), (3, LIST, integers(I64, histogram)))),
        )

    def offset_index(self) -> bytes:
        """OffsetIndex."""
        place = struct((1, I64, integer(self.offset)), (2, I32, integer(self.num_bytes)), (3, I64, integer(0)))
        size = self.page.value_bytes
        return struct((1, LIST, list_(STRUCT, [place])), *([(2, LIST, integers(I64, (size,)))] if size >= 0 else []))

    def column_index(self) -> bytes:
        """ColumnIndex; b"" for a column without statistics."""
        stats, page = self.page.statistics, self.page
        if stats is None:
            return b""
        is_null = not stats.smallest
        histogram = np.bincount(page.levels, minlength=page.max_level + 1).tolist()
        return struct(
            (1, LIST, list_(TRUE, [bytes([TRUE if is_null else FALSE])])),
            (2, LIST, list_(BINARY, [binary(stats.smallest)])),
            (3, LIST, list_(BINARY, [binary(stats.largest)])),
            (4, I32, integer(0 if is_null else 1)),
            (5, LIST, integers(I64, (stats.null_count,))),
            (7, LIST, integers(I64, histogram)),
        )


def _statistics(stats: Statistics) -> bytes:
    low, high = binary(stats.smallest), binary(stats.largest)
    if not stats.smallest:
        return struct((3, I64, integer(stats.null_count)))
    return struct(
        (1, BINARY, high),
        (2, BINARY, low),
        (3, I64, integer(stats.null_count)),
        (5, BINARY, high),
        (6, BINARY, low),
        (7, TRUE, b""),
        (8, TRUE, b""),
    )


class PageWriter:
    """Writes a file, a row group at a time.

    Args:
        sink: where to.
        empty: the bytes of a file of the same schema without rows, as pyarrow writes it.
    """

    def __init__(self, sink: Out, empty: bytes) -> None:
        self._sink, self._groups = sink, list[list[Chunk]]()
        footer = empty[len(MAGIC) : -len(MAGIC) - LENGTH_BYTES]
        self._before, _, self._after = footer.partition(_NO_GROUPS)
        sink.write(MAGIC)

    def write(self, pages: Sequence[Page]) -> None:
        """Append a row group."""
        chunks = []
        for page in pages:
            offset = self._sink.tell()
            levels = encode_levels(page.levels, page.max_level)
            num_bytes = len(levels) + len(page.values)
            head = struct(
                (1, I32, integer(0)),
                (2, I32, integer(num_bytes)),
                (3, I32, integer(num_bytes)),
                (5, STRUCT, _data_page(page.num_rows)),
            )
            self._sink.write(head + levels)
            self._sink.write(page.values)
            empty = Page(page.path, page.levels, page.max_level, memoryview(b""), page.value_bytes, page.statistics)
            chunks.append(Chunk(empty, offset, len(head) + num_bytes))
        self._groups.append(chunks)

    def close(self) -> None:
        """Append indexes and footer."""
        column_indexes = [[self._append(chunk.column_index()) for chunk in chunks] for chunks in self._groups]
        offset_indexes = [[self._append(chunk.offset_index()) for chunk in chunks] for chunks in self._groups]
        groups = [
            _row_group(chunks, of_columns, of_offsets)
            for chunks, of_columns, of_offsets in zip(self._groups, column_indexes, offset_indexes, strict=True)
        ]
        num_rows = sum(chunks[0].page.num_rows for chunks in self._groups)
        footer = (
            self._before + b"\x16" + integer(num_rows) + b"\x19" + list_(STRUCT, groups) + self._after
        )  # of fields 3 and 4, as in _NO_GROUPS
        self._sink.write(footer + len(footer).to_bytes(LENGTH_BYTES, "little") + MAGIC)

    def _append(self, data: bytes) -> tuple[int, int]:
        """(where it is now, its size)."""
        offset = self._sink.tell()
        if data:
            self._sink.write(data)
        return offset, len(data)


class Specimen:
    """A few samples of the columns of a layout, every second part missing; stands for a `CellFiller`."""

    num_rows = 11

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def fill(self, _low: int, _high: int, lead: int = 0) -> tuple[Any, list[FilledColumn]]:
        """(keys, columns)."""
        rows = np.arange(0, self.num_rows, 2)
        sizes, found = np.ones(len(rows), np.int64), []
        for column in self._layout.columns:
            cell = b"7" if column.kind in CHECKED else bytes(lead) + b"7"
            found.append(FilledColumn(column, self.num_rows, rows, sizes, pa.py_buffer(bytearray(cell * len(rows)))))
        return pa.array([str(number) for number in range(self.num_rows)]), found


def _data_page(num_rows: int) -> bytes:
    return struct(
        (1, I32, integer(num_rows)), (2, I32, integer(_PLAIN)), (3, I32, integer(_RLE)), (4, I32, integer(_RLE))
    )


def _row_group(chunks: list[Chunk], of_columns: list[tuple[int, int]], of_offsets: list[tuple[int, int]]) -> bytes:
    columns = []
    for chunk, (column_at, column_size), (at, size) in zip(chunks, of_columns, of_offsets, strict=True):
        has_index = [(6, I64, integer(column_at)), (7, I32, integer(column_size))] if column_size else []
        columns.append(
            struct(
                (2, I64, integer(0)),
                (3, STRUCT, chunk.metadata()),
                (4, I64, integer(at)),
                (5, I32, integer(size)),
                *has_index,
            )
        )
    num_bytes = sum(chunk.num_bytes for chunk in chunks)
    return struct(
        (1, LIST, list_(STRUCT, columns)),
        (2, I64, integer(num_bytes)),
        (3, I64, integer(chunks[0].page.num_rows)),
        (5, I64, integer(chunks[0].offset)),
        (6, I64, integer(num_bytes)),
    )


def encode_levels(levels: Bytes, max_level: int) -> bytes:
    """Definition levels of a page with their size before them; max_level is 1 or 2, so that a level has as many bits.

    Eight or more equal levels are a run, others are packed in groups of eight, as arrow's RleEncoder decides: a run
    begins only where a group of eight does.
    """
    found, packed = bytearray(), bytearray()
    values, at, count = levels.tolist(), 0, len(levels)
    ends = [*(np.flatnonzero(np.diff(levels)) + 1).tolist(), count]  # of runs of equal levels
    run = 0
    while at < count:
        while ends[run] <= at:
            run += 1
        is_last = ends[run] == count and not packed  # and then a run, however short
        if is_last or ends[run] - at >= 8:
            _flush(found, packed, max_level)
            found += varint((ends[run] - at) << 1) + bytes([values[at]])
            at = ends[run]
            continue
        packed += bytes(values[at : at + 8]).ljust(8, b"\0")
        at += 8
        if len(packed) == 8 * _MAX_PACKED:
            _flush(found, packed, max_level)
    _flush(found, packed, max_level)
    return len(found).to_bytes(LENGTH_BYTES, "little") + bytes(found)


def _flush(found: bytearray, packed: bytearray, max_level: int) -> None:
    if packed:
        bits = np.frombuffer(packed, np.uint8)[:, None] >> np.arange(max_level, dtype=np.uint8) & 1
        found += (
            bytes([len(packed) // 8 << 1 | 1]) + np.packbits(bits.astype(np.uint8).ravel(), bitorder="little").tobytes()
        )
        packed.clear()


def pages_of(layout: Layout, filler: CellFiller | Specimen, low: int, high: int) -> list[Page]:
    """The pages of samples [low, high); valid until those of the next group are made.

    Raises:
        SourceError, PlanError, BadKey: as `CellFiller.fill`.
    """
    keys, columns = filler.fill(low, high, lead=LENGTH_BYTES)
    found = [_texts_page((layout.key_name,), np.ones(high - low, np.uint8), keys)]
    for column in columns:
        found += _pages(column, high - low)
    return found


def _pages(filled: FilledColumn, num_rows: int) -> list[Page]:
    name, kind = filled.column.name.decode(), filled.column.kind
    levels = np.zeros(num_rows, np.uint8)
    levels[filled.rows] = 1
    if kind == "int64":
        return [_numbers_page(name, levels, filled.array)]
    if kind == "string":
        return [_texts_page((name,), levels, filled.array)]
    values = np.frombuffer(filled.data, np.uint8)
    ends = np.cumsum(filled.sizes + LENGTH_BYTES)
    windows(values, LENGTH_BYTES)[ends - filled.sizes - LENGTH_BYTES] = _lengths(filled.sizes)
    value_bytes = int(filled.sizes.sum())
    if kind not in FEATURES:
        return [Page((name,), levels, 1, values.data, value_bytes)]
    nothing = Page((name, "path"), levels, 2, memoryview(b""), 0)
    return [Page((name, "bytes"), levels * np.uint8(2), 2, values.data, value_bytes), nothing]


def _lengths(sizes: Int64Array) -> Any:
    return sizes.astype("<u4").view(f"V{LENGTH_BYTES}")


def _texts_page(path: tuple[str, ...], levels: Bytes, array: Any) -> Page:
    """Of an Arrow array of strings that begins with its buffers."""
    sizes = pc.binary_length(array).drop_null().to_numpy().astype(np.int64)
    places = np.cumsum(sizes + LENGTH_BYTES) - sizes
    total = int(sizes.sum())
    values = np.empty(total + LENGTH_BYTES * len(sizes), np.uint8)
    windows(values, LENGTH_BYTES)[places - LENGTH_BYTES] = _lengths(sizes)
    data = array.buffers()[2]
    source = np.frombuffer(data, np.uint8) if total else np.zeros(0, np.uint8)
    copy_runs(values, places, source, np.cumsum(sizes) - sizes, sizes)
    return Page(path, levels, 1, values.data, total)


def _numbers_page(name: str, levels: Bytes, array: Any) -> Page:
    numbers = array.drop_null().to_numpy().astype("<i8")
    if len(numbers) == 0:
        return Page((name,), levels, 1, memoryview(b""), -1, Statistics(array.null_count))
    low, high = (value.tobytes() for value in (numbers.min(), numbers.max()))
    return Page((name,), levels, 1, memoryview(numbers.tobytes()), -1, Statistics(array.null_count, low, high))
