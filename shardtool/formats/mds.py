"""MDS shards, version 2, for mosaicml-streaming: `data/train/shard.00017.mds` and an index.json in each split's folder.

    u32 n | u32 offset[n + 1] | config, JSON | n samples;  a sample = u32 size of each column | the columns

Source: mosaicml/streaming:streaming/base/format/mds/{encodings,reader,writer}.py, release 0.13. Compressed shards are
frames of zstd with a seek table at the end, which that package decompresses as one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.formats import BYTES, Settings, ShardLayout, WrittenShard
from shardtool.formats.contents import ContentCheck
from shardtool.formats.frames import compressed, ends_of
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
    from shardtool.model import Int64Array, Manifest, ManifestShard, SampleTable, ShardRows
    from shardtool.sources.reader import PartReader
    from shardtool.storage.shard_file import ShardFile

ENCODINGS = {"binary": "bytes", "string": "str", "int64": "str_int"}  # str_int: digits in the file, an int to readers
HASH = "xxh3_128"


@dataclass(frozen=True)
class MdsFormat:
    """Mosaic data shards."""

    settings: Settings = field(default_factory=Settings)
    name: str = "mds"
    layout: str = "mds/1"
    addressing: str = BYTES
    is_exact: bool = True
    has_schema: bool = True

    @property
    def suffix(self) -> str:
        """`.mds`, or `.mds.zstd`, as the package names them."""
        return ".mds" if self.settings.compress == "none" else ".mds.zstd"

    def check(self, table: SampleTable) -> None:
        """Refuse names that are not UTF-8; raises BadKey."""
        check_names(table, self.settings, "MDS")

    def sizes(self, table: SampleTable) -> Int64Array:
        """int64[num_samples]: bytes of each sample and its offset, exact."""
        return row_sizes(table, self.settings)

    def shard_overhead(self, num_samples: int) -> int:
        """Number of samples, end offset and config."""
        return 2 * WORD + len(config_of(self.settings))

    def write(self, rows: ShardRows, members: list[bytes], read: PartReader, out: ShardFile) -> WrittenShard:
        """Write a shard through a slab, compressed on the way where the settings say so."""
        records = replace(self._records(rows), contents=ContentCheck(rows, reader_kinds(self.settings)))
        with compressed(out, self.settings.compress) as sink:
            digests = write_records(rows, records, read, sink)
        return sink.stamp(
            WrittenShard(records.start[:-1], np.diff(records.start), records.part_offset, digests),
        )

    def layout_of(self, rows: ShardRows, members: list[bytes]) -> ShardLayout:
        """Offsets of a shard, before a byte of it is read."""
        return self._records(rows).layout()

    def structure(self, rows: ShardRows, part_offset: Int64Array) -> StructureCheck:
        """Table of offsets, config, and every byte that is not payload."""
        return RecordCheck(rows, self._records(rows))

    def ends(self, rows: ShardRows, members: list[bytes]) -> tuple[bytes, bytes]:
        """Table of offsets and config, the end is payload; of compressed shards what they all have."""
        records = self._records(rows)
        return (records.head, b"") if self.settings.compress == "none" else ends_of(int(records.start[-1]))

    def side_files(self, manifest: Manifest) -> Iterator[tuple[str, bytes]]:
        """An index.json for each split."""
        config = _config(self.settings)
        for split, shards in shards_by_split(manifest).items():
            entries = [_entry(shard, config) for shard in shards]
            yield f"{DATA}/{split}/index.json", json_file({"version": 2, "shards": entries})

    def _records(self, rows: ShardRows) -> Records:
        return records_of(rows, self.settings, config_of(self.settings))


def _config(settings: Settings) -> dict[str, Any]:
    names = column_names(settings)
    encodings = {KEY: "str", MISSING: "json"}
    encodings |= {name: ENCODINGS.get(kind, "bytes") for name, kind in reader_kinds(settings).items()}
    return {
        "column_encodings": [encodings[name] for name in names],
        "column_names": [name.decode() for name in names],
        "column_sizes": [None] * len(names),
        "compression": None if settings.compress == "none" else settings.compress,
        "format": "mds",
        "hashes": [HASH],
        "size_limit": None,
        "version": 2,
    }


def config_of(settings: Settings) -> bytes:
    """The JSON object in the head of each shard."""
    return json.dumps(_config(settings), sort_keys=True).encode()


def _entry(shard: ManifestShard, config: dict[str, Any]) -> dict[str, Any]:
    """One shard in index.json."""
    record = shard.files[0]
    stored = _file(below_split(record.path), record.num_bytes, record.xxh3_128)
    entry = {**config, "samples": shard.num_samples, "raw_data": stored, "zip_data": None}
    if shard.raw_bytes:
        raw = _file(stored["basename"].removesuffix(".zstd"), shard.raw_bytes, shard.raw_xxh3_128)
        entry |= {"raw_data": raw, "zip_data": stored}
    return entry


def _file(basename: str, num_bytes: int, digest: str) -> dict[str, Any]:
    return {"basename": basename, "bytes": num_bytes, "hashes": {HASH: digest}}
