"""The index of one shard, `index/00017.arrow`: where each sample and part lies, with digests. Mapped, never loaded.

Schema metadata `shardtool` holds a JSON object: format, the shard's path, bytes and xxh3_128, and the xxh3_64 of every
16 MiB block. Byte layout: docs/formats/index.md.
"""

from __future__ import annotations

import io
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardtool import columns
from shardtool.errors import CorruptShard
from shardtool.formats import BYTES, CELLS
from shardtool.hashing import BLOCK_BYTES
from shardtool.storage.regular import special_kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.formats import Format, WrittenShard
    from shardtool.model import BinaryArray, FileRecord, Int32Array, Int64Array, ShardRows, UInt64Array

SCHEMA = "shardtool/index-file/1"
NO_FILE = b""  # `source` of a part that no file held: a class number, a joined row
_META = b"shardtool"
_PART = pa.struct(
    [
        pa.field("name", pa.binary(), nullable=False),
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("bytes", pa.uint64(), nullable=False),
        pa.field("xxh3_64", pa.uint64(), nullable=False),
        pa.field("source", pa.binary()),
    ]
)
_PARTS = pa.list_(pa.field("item", _PART, nullable=False))


@dataclass(frozen=True)
class ShardIndex:
    """The columns of an index file."""

    meta: dict[str, Any]
    keys: BinaryArray  # binary[num_samples]
    offset: UInt64Array  # first byte of each sample in the shard file, uint64[num_samples]
    num_bytes: UInt64Array  # the sample's whole extent, uint64[num_samples]
    labels: Int32Array | None
    part_start: Int64Array  # int64[num_samples + 1]
    part_names: BinaryArray  # binary[num_parts]
    part_offset: UInt64Array  # first payload byte
    part_bytes: UInt64Array
    part_xxh3_64: UInt64Array
    part_source: BinaryArray  # binary[num_parts], null where it equals key.name, NO_FILE where there was none

    @property
    def num_samples(self) -> int:
        """Samples of the shard."""
        return len(self.offset)

    @property
    def num_parts(self) -> int:
        """Parts of the shard."""
        return len(self.part_offset)

    @property
    def block_digests(self) -> list[int]:
        """xxh3_64 of each 16 MiB block of the shard file."""
        return [int(digest, 16) for digest in self.meta["blocks"]]

    @property
    def addressing(self) -> str:
        """What `offset`, `num_bytes` and `part_offset` mean: BYTES, CELLS or ROWS of shardtool.formats."""
        return str(self.meta.get("addressing", BYTES))

    @property
    def raw_bytes(self) -> int:
        """Bytes that offsets point into: of the shard file, or of what it decompresses to."""
        return int(self.meta.get("raw_bytes", self.meta["shard"]["bytes"]))

    def owners(self) -> Int64Array:
        """int64[num_parts]: the sample of each part."""
        return np.repeat(np.arange(self.num_samples), np.diff(self.part_start))

    def key(self, sample: int) -> bytes:
        """Key of one sample."""
        value: bytes = self.keys[sample].as_py()
        return value


def encode_index(
    rows: ShardRows, written: WrittenShard, shard_format: Format, record: FileRecord, blocks: list[int]
) -> bytes:
    """The index file of a shard just written."""
    return encode_columns(
        keys=rows.keys,
        offset=written.sample_offset,
        num_bytes=written.sample_bytes,
        labels=rows.labels,
        part_start=rows.part_start,
        names=rows.names,
        part_offset=written.part_offset,
        part_bytes=rows.sizes,
        part_xxh3_64=written.part_xxh3_64,
        source=columns.where(rows.data, NO_FILE, rows.source),
        meta=index_meta(shard_format.name, shard_format.layout, record, blocks)
        | ({} if shard_format.addressing == BYTES else {"addressing": shard_format.addressing})
        | ({"settings": settings} if (settings := shard_format.settings.document()) else {})
        | written.meta
        | ({"raw_bytes": written.raw_bytes} if written.raw_bytes else {}),
    )


def index_meta(shard_format: str, layout: str, record: FileRecord, blocks: list[int]) -> dict[str, Any]:
    """The JSON object in the schema metadata of an index."""
    return {
        "schema": SCHEMA,
        "format": shard_format,
        "layout": layout,
        "shard": {"path": record.path, "bytes": record.num_bytes, "xxh3_128": record.xxh3_128},
        "block_bytes": BLOCK_BYTES,
        "blocks": [f"{digest:016x}" for digest in blocks],
    }


def encode_columns(
    *,
    keys: BinaryArray,
    offset: Int64Array,
    num_bytes: Int64Array,
    labels: Int32Array | None,
    part_start: Int64Array,
    names: BinaryArray,
    part_offset: Int64Array,
    part_bytes: Int64Array,
    part_xxh3_64: UInt64Array,
    source: BinaryArray,
    meta: dict[str, Any],
) -> bytes:
    """An index file from its columns."""
    parts = parts_array(part_start, names, part_offset, part_bytes, part_xxh3_64, source)
    sink = io.BytesIO()  # what it holds is handed on as it is, without a copy
    put_columns(sink, keys, offset, num_bytes, labels, parts, meta)
    return sink.getvalue()


def parts_array(
    part_start: Any, names: BinaryArray, offset: Any, num_bytes: Any, xxh3_64: UInt64Array, source: BinaryArray
) -> Any:
    """The column `parts`; numbers of 64 bits are not copied."""
    parts = pa.StructArray.from_arrays(
        [names, _unsigned(offset), _unsigned(num_bytes), pa.array(xxh3_64), source], fields=list(_PART)
    )
    return pa.ListArray.from_arrays(pa.array(part_start.astype(np.int32, copy=False)), parts, type=_PARTS)


def put_columns(
    sink: Any,
    keys: BinaryArray,
    offset: Any,
    num_bytes: Any,
    labels: Int32Array | None,
    parts: Any,
    meta: dict[str, Any],
) -> None:
    """Write an index file, column after column.

    Args:
        sink: a file, as pyarrow wants it.
        parts: of `parts_array`.
    """
    fields = [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("bytes", pa.uint64(), nullable=False),
        *([] if labels is None else [pa.field("label", pa.int32())]),
        pa.field("parts", _PARTS, nullable=False),
    ]
    schema = pa.schema(fields, metadata={_META: json.dumps(meta, separators=(",", ":")).encode()})
    arrays = [keys, _unsigned(offset), _unsigned(num_bytes), *([] if labels is None else [pa.array(labels)]), parts]
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))


def _unsigned(values: Any) -> Any:
    """uint64 array of int64 that are not negative; not copied."""
    return pa.array(np.ascontiguousarray(values, np.int64).view(np.uint64))


def open_index(path: str) -> ShardIndex:
    """Map an index file; its columns are views into the map.

    Raises:
        CorruptShard: it is gone, not an index, or cut short.
    """
    with _as_corrupt(path), _mapped(path) as source:
        return _decode(source)


def decode_index(data: Any, path: str) -> ShardIndex:
    """The index in a buffer of arrow; its columns are views into it.

    Args:
        data: the whole file.
        path: where it comes from, for messages.

    Raises:
        CorruptShard: not an index, or cut short.
    """
    with _as_corrupt(path), pa.BufferReader(data) as source:
        return _decode(source)


def _mapped(path: str) -> Any:
    if kind := special_kind(os.stat(path).st_mode):
        raise ValueError(f"it is {kind}, not a file")
    return pa.memory_map(os.fsencode(path))


def _decode(source: Any) -> ShardIndex:
    reader = pa.ipc.open_file(source)
    meta = _checked_meta(json.loads(reader.schema.metadata[_META]))
    if reader.num_record_batches != 1:
        raise ValueError(f"{reader.num_record_batches} record batches")
    batch = reader.get_batch(0)
    batch.validate(full=True)  # offsets into a map are followed unchecked: a damaged one would end the process
    index = _from_batch(batch, meta)
    if problem := extent_fault(index):
        raise ValueError(problem)
    return index


@contextmanager
def _as_corrupt(path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, AttributeError, KeyError, TypeError, ValueError) as error:
        raise _no_index(path, error) from error


def _no_index(path: str, error: Exception) -> CorruptShard:
    return CorruptShard(
        f"{path} is no index of ours, or it is damaged: {error}",
        hint="shardtool index OUT builds it again from the shard",
        where={"path": path},
    )


def read_index_meta(path: str) -> dict[str, Any]:
    """The JSON object in the metadata of an index file; its rows are not looked at.

    Raises:
        CorruptShard: it is gone, not an index, or cut short.
    """
    try:
        with _mapped(path) as source:
            return _checked_meta(json.loads(pa.ipc.open_file(source).schema.metadata[_META]))
    except (pa.ArrowException, AttributeError, KeyError, TypeError, ValueError) as error:
        raise _no_index(path, error) from error


def _checked_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """`meta` itself, where all that readers take from it is there."""
    if meta["schema"] != SCHEMA:
        raise ValueError(f"schema {meta['schema']!r}")
    shard = meta["shard"]
    texts = (meta["format"], meta["layout"], shard["path"], shard["xxh3_128"], *meta["blocks"])
    if not all(isinstance(text, str) for text in texts) or not isinstance(shard["bytes"], int):
        raise TypeError("its metadata are not what they should be")
    return meta


def extent_fault(index: ShardIndex) -> str:
    """Why samples do not lie one after the other inside the shard, with their parts in it; "" if they do."""
    if index.keys.null_count or index.part_names.null_count:
        return "a key or part name is null"
    num_bytes = index.raw_bytes
    extents = {
        BYTES: ((index.offset, index.num_bytes), (index.part_offset, index.part_bytes)),
        CELLS: ((index.part_offset, index.part_bytes),),
    }
    for first, size in extents.get(index.addressing, ()):
        if len(first) and (int(first.max()) > num_bytes or (size > np.uint64(num_bytes) - first).any()):
            return "an extent goes beyond the end of the shard"
    if index.addressing == BYTES and (index.offset[:-1] + index.num_bytes[:-1] > index.offset[1:]).any():
        return "its samples do not lie one after the other"
    if len(index.part_start) != index.num_samples + 1 or (np.diff(index.part_start) < 0).any():
        return "its lists of parts are not in order"
    return ""


def sample_sizes(index: ShardIndex) -> Int64Array:
    """int64[num_samples]: bytes of each sample, with headers where it is a run of bytes, else those of its parts."""
    if index.addressing == BYTES:
        return index.num_bytes.astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(index.part_bytes.astype(np.int64))])
    sizes: Int64Array = np.diff(ends[index.part_start])
    return sizes


def _from_batch(batch: Any, meta: dict[str, Any]) -> ShardIndex:
    parts = batch.column("parts")
    fields = parts.values
    names = batch.schema.names
    return ShardIndex(
        meta=meta,
        keys=batch.column("key"),
        offset=batch.column("offset").to_numpy(),
        num_bytes=batch.column("bytes").to_numpy(),
        labels=batch.column("label").to_numpy(zero_copy_only=False) if "label" in names else None,
        part_start=parts.offsets.to_numpy().astype(np.int64),
        part_names=fields.field("name"),
        part_offset=fields.field("offset").to_numpy(),
        part_bytes=fields.field("bytes").to_numpy(),
        part_xxh3_64=fields.field("xxh3_64").to_numpy(),
        part_source=fields.field("source"),
    )


def part_table(index: ShardIndex) -> list[tuple[bytes, Int64Array]]:
    """(part name, rows of that part) for each name of the shard, by name."""
    names = np.array(columns.to_list(index.part_names), object)
    found = sorted(set(names.tolist()))
    return [(name, np.flatnonzero(names == name)) for name in found]
