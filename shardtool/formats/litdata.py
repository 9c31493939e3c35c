"""litData chunks: `data/train/chunk-0-17.bin` and an index.json in each split's folder.

    u32 n | u32 offset[n + 1] | n items;  an item = u32 size of each leaf | the leaves

The layout of litdata up to 0.2.75, which later versions read as well; those write Arrow inside of it. Leaves are `str`
and `bytes`: a number arrives as text, because the package would store it as eight bytes, other ones than were packed.

Source: Lightning-AI/litData:src/litdata/streaming/{writer,item_loader,serializers}.py; torch pytree specification.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.errors import UsageProblem
from shardtool.formats import BYTES, Settings, ShardLayout, WrittenShard
from shardtool.formats.contents import ContentCheck
from shardtool.formats.offset_table import (
    KEY,
    MISSING,
    WORD,
    below_split,
    check_names,
    column_names,
    json_file,
    reader_kinds,
    records_of,
    row_sizes,
    shards_by_split,
)
from shardtool.formats.records import RecordCheck, Records, write_records
from shardtool.names import DATA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.formats import StructureCheck
    from shardtool.model import Int64Array, Manifest, SampleTable, ShardRows
    from shardtool.sources.reader import PartReader
    from shardtool.storage.shard_file import ShardFile

_LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


@dataclass(frozen=True)
class LitDataFormat:
    """Chunks of dictionaries for litdata's StreamingDataset."""

    settings: Settings = field(default_factory=Settings)
    name: str = "litdata"
    suffix: str = ".bin"
    layout: str = "litdata/1"
    addressing: str = BYTES
    is_exact: bool = True
    has_schema: bool = True

    def check(self, table: SampleTable) -> None:
        """Refuse names that are not UTF-8, and compression.

        Raises:
            UsageProblem: compression was asked for.
            BadKey: such names.
        """
        if self.settings.compress != "none":
            raise UsageProblem(
                "litData chunks are not compressed: its readers would decompress whole chunks to disk first",
                hint="leave --compress out, or --format mds --compress zstd",
            )
        check_names(table, self.settings, "litData")

    def sizes(self, table: SampleTable) -> Int64Array:
        """int64[num_samples]: bytes of each item and its offset, exact."""
        return row_sizes(table, self.settings)

    def shard_overhead(self, num_samples: int) -> int:
        """Number of items and end offset."""
        return 2 * WORD

    def write(self, rows: ShardRows, members: list[bytes], read: PartReader, out: ShardFile) -> WrittenShard:
        """Write a chunk through a slab."""
        records = replace(self._records(rows), contents=ContentCheck(rows, _kinds(self.settings)))
        digests = write_records(rows, records, read, out)
        return WrittenShard(records.start[:-1], np.diff(records.start), records.part_offset, digests)

    def layout_of(self, rows: ShardRows, members: list[bytes]) -> ShardLayout:
        """Offsets of a chunk, before a byte of it is read."""
        return self._records(rows).layout()

    def structure(self, rows: ShardRows, part_offset: Int64Array) -> StructureCheck:
        """Table of offsets, and every byte that is not payload."""
        return RecordCheck(rows, self._records(rows))

    def ends(self, rows: ShardRows, members: list[bytes]) -> tuple[bytes, bytes]:
        """The table of offsets; the end is payload."""
        return self._records(rows).head, b""

    def side_files(self, manifest: Manifest) -> Iterator[tuple[str, bytes]]:
        """An index.json for each split."""
        config = _config(self.settings)
        for split, shards in shards_by_split(manifest).items():
            chunks = [
                {
                    "chunk_bytes": shard.num_bytes,
                    "chunk_size": shard.num_samples,
                    "dim": None,
                    "filename": below_split(shard.path),
                }
                for shard in shards
            ]
            document = {"chunks": chunks, "config": config, "updated_at": "0"}  # a time would be another one each run
            yield f"{DATA}/{split}/index.json", json_file(document)

    def _records(self, rows: ShardRows) -> Records:
        return records_of(rows, self.settings, b"")


def _kinds(settings: Settings) -> dict[bytes, str]:
    """{part name: kind} as litData knows it: numbers are texts."""
    return {
        name: "string" if kind in ("string", "int64") else "binary" for name, kind in reader_kinds(settings).items()
    }


def _config(settings: Settings) -> dict[str, Any]:
    names = column_names(settings)
    leaves = {KEY: "string", MISSING: "string", **_kinds(settings)}
    spec = {
        "type": "builtins.dict",
        "context": json.dumps([name.decode() for name in names]),
        "children_spec": [_LEAF] * len(names),
    }
    return {
        "chunk_bytes": None,
        "chunk_size": None,
        "compression": None,
        "data_format": ["bytes" if leaves[name] == "binary" else "str" for name in names],
        "data_spec": json.dumps([1, spec]),
        "encryption": None,
        "item_loader": "PyTreeLoader",
    }
