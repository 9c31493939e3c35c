"""Arrow shards: an IPC file a shard, a row a sample, record batches cut by bytes. Streams: formats/arrow_stream.py.

Uncompressed and without numbers, every part is a run of bytes of the file, and where it lies follows from names and
sizes; else a part is a row. Byte layout: docs/formats/arrow.md. How cells are read: formats/columnar.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from shardtool.errors import CorruptShard
from shardtool.formats import CELLS, ROWS, Settings, ShardLayout, WrittenShard
from shardtool.formats.cells import UNREADABLE, Cells, RowParts, cells_of, check_size, logical_digest, places_of
from shardtool.formats.columnar import (
    FEATURES,
    CellFiller,
    Layout,
    cell_bytes,
    check_cells,
    group_bounds,
    key_bytes_of,
    row_bytes,
)
from shardtool.formats.compression import codec_of
from shardtool.storage.files import arrow_file, file_size
from shardtool.storage.shard_file import Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardtool.formats import OpenShards, StructureCheck
    from shardtool.model import Int64Array, Manifest, SampleTable, ShardRows
    from shardtool.sources.reader import PartReader
    from shardtool.storage.shard_file import ShardFile

BATCH_BYTES = 4 << 20  # cells of a record batch
BATCH_ROWS = 1 << 14
ALIGNMENT = 8  # of every buffer in the file
LEAF_COST = 48  # of a column in a record batch: first offset, a byte of validity, and the padding of each buffer


@dataclass(frozen=True)
class Container:
    """What holds schema and record batches."""

    head: bytes  # before the schema
    end: bytes  # of the shard
    block_bytes: int  # that a record batch takes in the footer
    writer: Callable[..., Any]
    batches: Callable[[Any], Any]  # of an open file: has num_record_batches and get_batch(number)


FILE = Container(  # 24: apache/arrow:format/File.fbs, Block
    head=b"ARROW1\0\0", end=b"ARROW1", block_bytes=24, writer=pa.ipc.new_file, batches=pa.ipc.open_file
)


@dataclass(frozen=True)
class ArrowFormat:
    """Arrow IPC files that pyarrow, Polars, DuckDB and `datasets.load_dataset` read."""

    settings: Settings = field(default_factory=Settings)
    name: str = "arrow"
    suffix: str = ".arrow"
    layout: str = f"arrow/1 pyarrow/{pa.__version__}"  # pyarrow writes the metadata: another version may write others
    is_exact: bool = False
    has_schema: bool = True
    container: ClassVar[Container] = FILE

    @property
    def addressing(self) -> str:
        """CELLS where a cell holds the bytes of its part, else ROWS."""
        is_plain = all(column.kind != "int64" for column in self.settings.columns)
        return CELLS if is_plain and self.settings.compress == "none" else ROWS

    @cached_property
    def columns(self) -> Layout:
        """The columns of every shard."""
        return Layout.of(self.settings)

    @cached_property
    def costs(self) -> FileCosts:
        """What the file takes besides cells."""
        return measure_costs(self.columns, self.container)

    def check(self, table: SampleTable) -> None:
        """Refuse what no column can hold, as far as names and sizes tell.

        Raises:
            BadKey, PlanError: as `columnar.check_cells`.
        """
        check_cells(table, self.settings.columns)

    def sizes(self, table: SampleTable) -> Int64Array:
        """int64[num_samples]: an upper bound of each sample's share of the file, before compression."""
        cells = cell_bytes(table, self.settings.columns)
        by_byte = 2 * self._batch_cost / BATCH_BYTES
        by_row = self._row_cost() + self._batch_cost / BATCH_ROWS
        sizes: Int64Array = cells + np.ceil(cells * by_byte + by_row).astype(np.int64)
        return sizes

    def shard_overhead(self, num_samples: int) -> int:
        """Schema, footer, first record batch; the same for any number of samples."""
        return self.costs.file_bytes + 2 * self._batch_cost

    @property
    def _batch_cost(self) -> int:
        """Bytes that a record batch costs, whatever is in it: metadata, first offsets, padding of every buffer."""
        return self.costs.batch_bytes + self.container.block_bytes + LEAF_COST * len(self.columns.leaves)

    def _row_cost(self) -> float:
        """Bytes a row costs, whatever is in it: validity, and the offset or zero of parts that are not there."""
        columns = self.settings.columns
        media = sum(column.kind in FEATURES for column in columns)
        absent = sum((8 if column.kind == "int64" else 4) for column in columns if not column.is_required)
        return absent + media * (4 + 3 / 8) + len(columns) / 8

    def layout_of(self, rows: ShardRows, members: list[bytes]) -> ShardLayout | None:
        """Where everything lies; None where cells are not the bytes of their parts."""
        if self.addressing == ROWS:
            return None
        groups, group_rows = places_of(self.bounds(rows))
        offsets, num_bytes = self._offsets(rows)
        return ShardLayout(groups, group_rows, offsets, num_bytes)

    def structure(self, rows: ShardRows, part_offset: Int64Array) -> StructureCheck | None:
        """None: the digests of file, blocks and parts are the check."""
        return None

    def ends(self, rows: ShardRows, members: list[bytes]) -> tuple[bytes, bytes]:
        """The magic at both ends."""
        return self.container.head, self.container.end

    def side_files(self, manifest: Manifest) -> Iterator[tuple[str, bytes]]:
        """None: the shards stand alone."""
        yield from ()

    def write(self, rows: ShardRows, members: list[bytes], read: PartReader, out: ShardFile) -> WrittenShard:
        """Write a shard, a record batch at a time."""
        filler, bounds = CellFiller(self.columns, rows, read), self.bounds(rows)
        raw_bytes = 0
        with (
            pa.PythonFile(Sink(out), mode="w") as sink,
            self.container.writer(sink, self.columns.schema, options=self._options()) as writer,
        ):
            for low, high in pairwise(bounds):
                batch = filler.batch(low, high)
                writer.write_batch(batch)
                raw_bytes += pa.ipc.get_record_batch_size(batch)
        groups, group_rows = places_of(bounds)
        raw_bytes += self.costs.file_bytes + self.container.block_bytes * (len(bounds) - 1)
        codes, is_packed = filler.codes.astype(np.int64), self.settings.compress != "none"
        if self.addressing == CELLS:
            codes, num_bytes = self._offsets(rows)
            assert out.position == num_bytes, f"{out.position} bytes where the layout has {num_bytes}"
        return WrittenShard(
            groups,
            group_rows,
            codes,
            filler.digests,
            raw_bytes=raw_bytes if is_packed else 0,
            raw_xxh3_128=logical_digest(rows, filler.digests) if is_packed else "",
        )

    def bounds(self, rows: ShardRows) -> list[int]:
        """First samples of the record batches, and the number of samples; follows from names and sizes."""
        return group_bounds(row_bytes(rows, self.columns), BATCH_BYTES, BATCH_ROWS)

    def open_cells(self, path: str) -> ArrowCells:
        """The shard at `path`.

        Raises:
            CorruptShard: pyarrow cannot make sense of it.
        """
        return ArrowCells(path, self.columns, self.container)

    def _options(self) -> Any:
        codec, level = codec_of(self.settings.compress)
        return pa.ipc.IpcWriteOptions(
            compression=None if codec == "none" else pa.Codec(codec, compression_level=level), use_threads=False
        )

    def _offsets(self, rows: ShardRows) -> tuple[Int64Array, int]:
        """(first byte of each part, int64[num_parts]; bytes of the file), of a file that is not compressed."""
        bounds, codes = self.bounds(rows), self.columns.codes(rows.names)
        key_bytes, places = key_bytes_of(rows), np.zeros(rows.num_parts, np.int64)
        place = self.costs.head_bytes
        for low, high in pairwise(bounds):
            first, last = int(rows.part_start[low]), int(rows.part_start[high])
            num_rows, place = high - low, place + self.costs.batch_bytes
            place += _padded(4 * (num_rows + 1)) + _padded(int(key_bytes[low:high].sum()))
            for code, column in enumerate(self.settings.columns):
                chosen = first + np.flatnonzero(codes[first:last] == code)
                validity = _padded(-(-num_rows // 8)) if len(chosen) < num_rows else 0
                is_medium = column.kind in FEATURES
                place += validity * (2 if is_medium else 1) + _padded(4 * (num_rows + 1))
                ends = np.cumsum(rows.sizes[chosen])
                places[chosen] = place + ends - rows.sizes[chosen]
                place += _padded(int(ends[-1]) if len(ends) else 0)
                if is_medium:
                    place += _padded(-(-num_rows // 8)) + _padded(4 * (num_rows + 1))
        return places, place + self.costs.tail_bytes + self.container.block_bytes * (len(bounds) - 1)


@dataclass(frozen=True)
class FileCosts:
    """Bytes of a file that are no cells; they follow from the schema."""

    head_bytes: int  # magic and schema
    batch_bytes: int  # metadata of a record batch
    tail_bytes: int  # end of stream, footer, magic; without the entries of record batches

    @property
    def file_bytes(self) -> int:
        """Of a file without record batches."""
        return self.head_bytes + self.tail_bytes


def measure_costs(layout: Layout, container: Container) -> FileCosts:
    """What pyarrow writes around the cells of these columns: metadata hold counts of fixed width, and no values."""
    sink, schema = pa.BufferOutputStream(), layout.schema
    batch = pa.record_batch([pa.nulls(1, kind) for kind in schema.types], schema=schema)
    with container.writer(sink, schema) as writer:
        writer.write_batch(batch)
    head, message = len(container.head) + len(schema.serialize()), batch.serialize()
    metadata_bytes = len(message) - pa.ipc.read_message(message).body.size
    return FileCosts(head, metadata_bytes, len(sink.getvalue()) - head - len(message) - container.block_bytes)


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def open_parts(dataset: OpenShards, shard: int, container: Container = FILE) -> RowParts:
    """A reader of the parts of shard k, out of a map of it."""
    index = dataset.index(shard)
    layout = Layout.of(Settings.from_document(index.meta.get("settings", {})))
    source = ArrowCells(check_size(dataset, shard), layout, container)
    return RowParts(index, source.load, source.close)


class ArrowCells:
    """The columns of one shard, a record batch at a time. The file is mapped: its size was checked before."""

    def __init__(self, path: str, layout: Layout, container: Container) -> None:
        self._path, self._layout, self._container = path, layout, container
        self._last: tuple[int, Any] = (-1, None)
        try:
            self._source = arrow_file(path)
            self._file = container.batches(self._source)
        except UNREADABLE as error:
            raise self._damaged(error) from error

    def num_groups(self) -> int:
        """Record batches of the file."""
        return int(self._file.num_record_batches)

    def load(self, group: int, column: int) -> Cells:
        """The cells of one column of a record batch; column -1 is the key.

        Raises:
            CorruptShard: pyarrow cannot make sense of it.
        """
        kind = "string" if column < 0 else self._layout.columns[column].kind
        try:
            if self._last[0] != group:
                self._last = (group, self._file.get_batch(group))
            return cells_of(self._last[1].column(column + 1), kind)
        except UNREADABLE as error:
            raise self._damaged(error) from error

    def num_bytes(self) -> int:
        """Of the file."""
        return file_size(self._path)

    def raw_bytes(self) -> int:
        """Of the file before compression."""
        num_batches = self.num_groups()
        sizes = (pa.ipc.get_record_batch_size(self._file.get_batch(number)) for number in range(num_batches))
        costs = measure_costs(self._layout, self._container)
        return int(sum(sizes)) + costs.file_bytes + self._container.block_bytes * num_batches

    def close(self) -> None:
        """Let go of the map."""
        self._last = (-1, None)
        self._source.close()

    def _damaged(self, error: Exception) -> CorruptShard:
        return CorruptShard(
            f"{self._path} cannot be read as Arrow: {str(error).splitlines()[0]}",
            hint=f"shardtool verify --deep on {os.path.dirname(os.path.dirname(self._path))} tells what is damaged",
            where={"path": self._path},
        )
