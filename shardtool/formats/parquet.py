"""Parquet shards: a row a sample, a column a part, row groups cut by bytes, a page index; media as they are.

Byte layout: docs/formats/parquet.md. What a column holds and how cells are read: formats/columnar.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardtool.errors import CorruptShard
from shardtool.formats import ROWS, Settings, WrittenShard
from shardtool.formats.cells import UNREADABLE, Cells, RowParts, cells_of, check_size, logical_digest, places_of
from shardtool.formats.columnar import CellFiller, Layout, cell_bytes, check_cells, group_bounds, row_bytes
from shardtool.formats.compression import codec_of
from shardtool.formats.parquet_pages import MAX_PAGE_BYTES, PAGE_VALUES, PageWriter, Specimen, pages_of
from shardtool.storage import is_remote
from shardtool.storage.files import arrow_file, file_size
from shardtool.storage.shard_file import Sink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.formats import OpenShards, ShardLayout, StructureCheck
    from shardtool.model import Int64Array, Manifest, SampleTable, ShardRows
    from shardtool.sources.reader import PartReader
    from shardtool.storage.shard_file import ShardFile

GROUP_BYTES = 8 << 20  # cells of a row group; measured: 16 MiB 20 % slower, 1 MiB 25 %
GROUP_ROWS = 1 << 16
PAGE_BYTES = 1 << 20
PAGE_COST = 256  # header, entries of both page indexes: measured 40 to 110
PAGE_ROWS = 20_000  # a page ends there, too
CHUNK_COST = 512  # of a column in a row group: first page, its entries, its place in the footer; measured 250
LEVEL_BYTES = 0.5  # a value and column: definition levels take 2 bits, or runs
FOOTER_COST = 2048  # magic, version, created_by, lengths
UNPACKED = ("image", "audio", "video", "path")  # kinds of columns that are never compressed


@dataclass(frozen=True)
class ParquetFormat:
    """Parquet files that pyarrow, Hugging Face datasets, DuckDB and the rest read."""

    settings: Settings = field(default_factory=Settings)
    name: str = "parquet"
    suffix: str = ".parquet"
    layout: str = f"parquet/1 pyarrow/{pa.__version__}"  # pyarrow encodes: another version may write other bytes
    addressing: str = ROWS
    is_exact: bool = False
    has_schema: bool = True

    @cached_property
    def columns(self) -> Layout:
        """The columns of every shard."""
        return Layout.of(self.settings)

    def check(self, table: SampleTable) -> None:
        """Refuse what no column can hold, as far as names and sizes tell.

        Raises:
            BadKey, PlanError: as `columnar.check_cells`.
        """
        check_cells(table, self.settings.columns)

    def sizes(self, table: SampleTable) -> Int64Array:
        """int64[num_samples]: an upper bound of each sample's share of the file, before compression.

        Cells with their lengths, levels, and a share of what pages and row groups cost; see docs/formats/parquet.md.
        """
        cells = cell_bytes(table, self.settings.columns)
        leaves = len(self.columns.leaves)
        by_byte = PAGE_COST / PAGE_BYTES + 2 * self._group_cost / GROUP_BYTES
        by_row = leaves * (LEVEL_BYTES + PAGE_COST / PAGE_ROWS) + self._group_cost / GROUP_ROWS
        sizes: Int64Array = cells + np.ceil(cells * by_byte + by_row).astype(np.int64)
        return sizes

    def shard_overhead(self, num_samples: int) -> int:
        """Footer, first row group and their like; the same for any number of samples."""
        schema = self.columns.schema
        names = sum(len(path) + 64 for path, _ in self.columns.leaves)
        return (
            FOOTER_COST
            + 2 * len(schema.serialize())
            + len(schema.metadata[b"huggingface"])
            + names
            + 2 * self._group_cost
        )

    @property
    def _group_cost(self) -> int:
        """Bytes that a row group costs, whatever is in it."""
        return sum(CHUNK_COST + len(path) for path, _ in self.columns.leaves)

    def layout_of(self, rows: ShardRows, members: list[bytes]) -> ShardLayout | None:
        """None: the places are rows; `read_back` tells them of a shard that is there."""
        return None

    def structure(self, rows: ShardRows, part_offset: Int64Array) -> StructureCheck | None:
        """None: the digests of file, blocks and parts are the check."""
        return None

    def ends(self, rows: ShardRows, members: list[bytes]) -> tuple[bytes, bytes]:
        """The magic at both ends."""
        return b"PAR1", b"PAR1"

    def side_files(self, manifest: Manifest) -> Iterator[tuple[str, bytes]]:
        """None: the shards stand alone."""
        yield from ()

    def write(self, rows: ShardRows, members: list[bytes], read: PartReader, out: ShardFile) -> WrittenShard:
        """Write a shard, a row group at a time."""
        filler, bounds = CellFiller(self.columns, rows, read), self.bounds(rows)
        saved = 0
        if self._has_single_pages(rows, bounds):
            writer = PageWriter(Sink(out), _empty_file(self.settings))
            for low, high in pairwise(bounds):
                writer.write(pages_of(self.columns, filler, low, high))
            writer.close()
        else:
            saved = self._write_by_pyarrow(filler, bounds, out)
        groups, group_rows = places_of(bounds)
        is_packed = self.settings.compress != "none"
        return WrittenShard(
            groups,
            group_rows,
            filler.codes.astype(np.int64),
            filler.digests,
            raw_bytes=out.position + saved if is_packed else 0,
            raw_xxh3_128=logical_digest(rows, filler.digests) if is_packed else "",
        )

    def _write_by_pyarrow(self, filler: CellFiller, bounds: list[int], out: ShardFile) -> int:
        """Any shard, three copies of each payload; what compression saved."""
        footers: list[Any] = []
        with (
            pa.PythonFile(Sink(out), mode="w") as sink,
            pq.ParquetWriter(
                sink, self.columns.schema, metadata_collector=footers, **_properties(self.settings, self.columns)
            ) as writer,
        ):
            for low, high in pairwise(bounds):
                writer.write_table(pa.Table.from_batches([filler.batch(low, high)]), row_group_size=high - low)
        return _saved_bytes(footers[0])

    def _has_single_pages(self, rows: ShardRows, bounds: list[int]) -> bool:
        """Whether each column of each row group is one uncompressed page: then we write the pages."""
        largest = int(row_bytes(rows, self.columns).max())
        is_single = int(np.diff(bounds).max()) <= PAGE_VALUES and largest < MAX_PAGE_BYTES
        return is_single and self.settings.compress == "none" and writes_like_pyarrow(self.settings)

    def bounds(self, rows: ShardRows) -> list[int]:
        """First samples of the row groups, and the number of samples; follows from names and sizes."""
        return group_bounds(row_bytes(rows, self.columns), GROUP_BYTES, GROUP_ROWS)

    def open_cells(self, path: str) -> ParquetCells:
        """The shard at `path`.

        Raises:
            CorruptShard: pyarrow cannot make sense of it.
        """
        return ParquetCells(path, self.columns)


def _properties(settings: Settings, layout: Layout) -> dict[str, Any]:
    """How pyarrow is to write."""
    codec, level = codec_of(settings.compress)
    packed = {path for path, kind in layout.leaves if codec != "none" and kind not in UNPACKED}
    return {
        "compression": {path: codec if path in packed else "none" for path, _ in layout.leaves},
        "compression_level": dict.fromkeys(packed, level) or None,
        "use_dictionary": False,  # files seldom repeat, and zstd sees what does
        "write_statistics": [path for path, kind in layout.leaves if kind == "int64"],
        "write_page_index": True,
        "data_page_size": PAGE_BYTES,
        "version": "2.6",
    }


def _file_of(settings: Settings, batches: list[Any]) -> bytes:
    """What pyarrow makes of record batches."""
    sink, layout = pa.BufferOutputStream(), Layout.of(settings)
    with pq.ParquetWriter(sink, layout.schema, **_properties(settings, layout)) as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_batches([batch]))
    data: bytes = sink.getvalue().to_pybytes()
    return data


@cache
def _empty_file(settings: Settings) -> bytes:
    """A file of no rows."""
    return _file_of(settings, [])


@cache
def writes_like_pyarrow(settings: Settings) -> bool:
    """Whether our pages and footers are those of the pyarrow that is installed, tried with a specimen of two groups."""
    layout = Layout.of(settings)
    specimen, sink = Specimen(layout), pa.BufferOutputStream()
    keys, columns = specimen.fill(0, specimen.num_rows)
    batch = pa.record_batch([keys, *(column.array for column in columns)], schema=layout.schema)
    writer = PageWriter(sink, _empty_file(settings))
    for _ in range(2):
        writer.write(pages_of(layout, specimen, 0, specimen.num_rows))
    writer.close()
    ours: bytes = sink.getvalue().to_pybytes()
    return ours == _file_of(settings, [batch, batch])


def _saved_bytes(footer: Any) -> int:
    """What compression saved."""
    chunks = (
        footer.row_group(group).column(column)
        for group in range(footer.num_row_groups)
        for column in range(footer.num_columns)
    )
    return sum(chunk.total_uncompressed_size - chunk.total_compressed_size for chunk in chunks)


def open_parts(dataset: OpenShards, shard: int) -> RowParts:
    """A reader of the parts of shard k, which reads whole column chunks and keeps the last of them."""
    path = check_size(dataset, shard)
    index = dataset.index(shard)
    layout = Layout.of(Settings.from_document(index.meta.get("settings", {})))
    source = ParquetCells(path, layout)
    return RowParts(index, source.load, source.close)


class ParquetCells:
    """The columns of one Parquet file, a row group at a time."""

    def __init__(self, path: str, layout: Layout) -> None:
        self._path, self._layout = path, layout
        try:
            source = arrow_file(path) if is_remote(path) else pa.OSFile(os.fsencode(path), "rb")
            self._file = pq.ParquetFile(source, pre_buffer=is_remote(path))
        except UNREADABLE as error:
            raise self._damaged(error) from error

    def num_groups(self) -> int:
        """Row groups of the file."""
        return int(self._file.num_row_groups)

    def load(self, group: int, column: int) -> Cells:
        """The cells of one column of a row group; column -1 is the key.

        Raises:
            CorruptShard: pyarrow cannot make sense of it.
        """
        kind = "string" if column < 0 else self._layout.columns[column].kind
        name = self._layout.key_name if column < 0 else self._layout.columns[column].name.decode()
        try:
            leaf = f"{name}.bytes" if kind in UNPACKED else name
            table = self._file.read_row_group(group, columns=[leaf], use_threads=False)
            return cells_of(table.column(name).combine_chunks(), kind)
        except UNREADABLE as error:
            raise self._damaged(error) from error

    def num_bytes(self) -> int:
        """Of the file."""
        return file_size(self._path)

    def raw_bytes(self) -> int:
        """Of the file before compression."""
        return self.num_bytes() + _saved_bytes(self._file.metadata)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _damaged(self, error: Exception) -> CorruptShard:
        return CorruptShard(
            f"{self._path} cannot be read as Parquet: {str(error).splitlines()[0]}",
            hint=f"shardtool verify --deep on {os.path.dirname(os.path.dirname(self._path))} tells what is damaged",
            where={"path": self._path},
        )
