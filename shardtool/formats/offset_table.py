"""Shards that begin with a table of offsets and hold rows of equal columns: what MDS and litData have in common.

    u32 n | u32 offset[n + 1] | config | n samples;  a sample = u32 size of each column | the columns

All integers are little-endian, offsets count from the beginning of the file. Columns are the part names of the whole
plan, in byte order, with two more: `__key__`, and `__missing__` where some sample lacks a part: a JSON array of the
names of the parts that it lacks, whose columns are empty.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardtool import columns
from shardtool.errors import BadKey
from shardtool.formats.records import Pieces, Records, Seams
from shardtool.formats.tfrecord import refuse_names
from shardtool.keys import is_utf8
from shardtool.samples import has_part, keys_of

if TYPE_CHECKING:
    from shardtool.formats import Column, Settings
    from shardtool.formats.scatter import Bytes
    from shardtool.model import Int64Array, Manifest, ManifestShard, SampleTable, ShardRows

KEY, MISSING = b"__key__", b"__missing__"
WORD = 4  # bytes of an offset or a size


def column_names(settings: Settings) -> list[bytes]:
    """All columns in the order of the file."""
    special = [KEY] if all(column.is_required for column in settings.columns) else [KEY, MISSING]
    return sorted([*special, *(column.name for column in settings.columns)])


def check_names(table: SampleTable, settings: Settings, what: str) -> None:
    """Keys and part names must be UTF-8.

    Raises:
        BadKey: some are not, or a part has the name of a column that is added.
    """
    refuse_names([column.name for column in settings.columns], (KEY, MISSING), f"{what} columns")
    bad = [key for key in keys_of(table, np.arange(table.num_samples)) if not is_utf8(key)]
    if bad:
        shown = "".join(f"\n  {key.decode('utf-8', 'backslashreplace')}" for key in bad[:5])
        raise BadKey(
            f"{len(bad):,} keys are not UTF-8, which {what} needs for its column of keys{shown}",
            hint="--escape-names writes such bytes as %XX",
        )


def row_sizes(table: SampleTable, settings: Settings) -> Int64Array:
    """int64[num_samples]: bytes of each sample with its offset, exact."""
    missing = np.zeros(table.num_samples, np.int64)
    optional = [column for column in settings.columns if not column.is_required]
    if optional:
        count = np.zeros(table.num_samples, np.int64)
        for column in optional:
            lacks = ~has_part(table, column.name)
            missing += np.where(lacks, len(_quoted(column.name)), 0)
            count += lacks
        missing += 2 + np.maximum(count - 1, 0)  # brackets and commas
    columns_bytes = WORD * len(column_names(settings))
    return WORD + columns_bytes + table.key_bytes + table.payload_bytes() + missing


def _quoted(name: bytes) -> bytes:
    return json.dumps(name.decode(), ensure_ascii=False).encode()


def missing_text(names: list[bytes]) -> bytes:
    """`__missing__` of a sample that lacks `names`."""
    return b"[" + b",".join(map(_quoted, names)) + b"]"


def records_of(rows: ShardRows, settings: Settings, config: bytes) -> Records:
    """Where everything lies; follows from names and sizes alone."""
    names = column_names(settings)
    owners, code = rows.owners(), _codes(rows, names)
    sizes = np.zeros((len(names), rows.num_samples), np.int64)
    sizes[code, owners] = rows.sizes
    payload = sizes.copy()
    key_start, keys = columns.buffers_of(rows.keys)
    sizes[names.index(KEY)] = np.diff(key_start)
    pattern, texts = _patterns(owners, code, rows.num_samples, settings, names)
    text_sizes, joined = np.array([len(text) for text in texts], np.int64), np.frombuffer(b"".join(texts), np.uint8)
    text_start = np.cumsum(text_sizes) - text_sizes
    if MISSING in names:
        sizes[names.index(MISSING)] = text_sizes[pattern]
    head_bytes = WORD * (rows.num_samples + 2) + len(config)
    ends = np.cumsum(sizes.sum(axis=0) + WORD * len(names))
    start = np.concatenate([[0], ends]).astype(np.int64) + head_bytes
    begins = start[:-1] + WORD * len(names) + np.cumsum(sizes, axis=0) - sizes
    part_offset = begins[code, owners]
    seams, glued = Seams.of(rows, start, part_offset), sizes - payload
    at = seams.sample[:-1] + WORD * len(names) + np.cumsum(glued, axis=0) - glued

    def glue(first: int, last: int) -> Bytes:
        pieces, some = Pieces(seams, first, last), slice(first, last)
        table = np.ascontiguousarray(sizes[:, some].T, "<u4").view(np.uint8)
        pieces.fixed(seams.sample[some], table.reshape(last - first, -1))
        column = names.index(KEY)
        pieces.ragged(at[column, some], sizes[column, some], keys, key_start[some])
        if MISSING in names:
            column = names.index(MISSING)
            pieces.ragged(at[column, some], sizes[column, some], joined, text_start[pattern[some]])
        return pieces.values

    head = np.concatenate([[rows.num_samples], start]).astype("<u4").tobytes() + config
    return Records(head, start, part_offset, seams, glue)


def _codes(rows: ShardRows, names: list[bytes]) -> Int64Array:
    """int64[num_parts]: column of each part."""
    encoded = rows.names.dictionary_encode()
    places = [names.index(name) for name in columns.to_list(encoded.dictionary)]
    codes: Int64Array = np.array(places, np.int64)[encoded.indices.to_numpy()]
    return codes


def _patterns(
    owners: Int64Array, code: Int64Array, num_samples: int, settings: Settings, names: list[bytes]
) -> tuple[Int64Array, list[bytes]]:
    """(pattern of each sample, text of each pattern): which optional columns a sample lacks."""
    optional = [names.index(column.name) for column in settings.columns if not column.is_required]
    if not optional:
        return np.zeros(num_samples, np.int64), [b"[]"]
    lacks = np.ones((len(names), num_samples), bool)
    lacks[code, owners] = False
    packed = np.packbits(lacks[optional], axis=0)
    width = len(packed)
    rows_ = pa.py_buffer(np.ascontiguousarray(packed.T))
    encoded = pa.Array.from_buffers(pa.binary(width), num_samples, [None, rows_]).dictionary_encode()
    found = np.frombuffer(b"".join(encoded.dictionary.to_pylist()), np.uint8).reshape(-1, width)
    flags = np.unpackbits(found, axis=1, count=len(optional)).astype(bool)
    texts = [missing_text([names[optional[place]] for place in np.flatnonzero(row)]) for row in flags]
    return encoded.indices.to_numpy().astype(np.int64), texts


def shards_by_split(manifest: Manifest) -> dict[str, list[ManifestShard]]:
    """{split: its shards}, in the order of the manifest."""
    found: dict[str, list[ManifestShard]] = {}
    for shard in manifest.shards:
        found.setdefault(shard.split, []).append(shard)
    return found


def below_split(path: str) -> str:
    """Path of a shard below the folder of its split, `data/train`."""
    return path.split("/", 2)[2]


def json_file(document: Any) -> bytes:
    """An index file of a loader: keys sorted, one line."""
    return (json.dumps(document, sort_keys=True) + "\n").encode()


def kind_of(column: Column) -> str:
    """Kind of a column as readers get it: numbers that some samples lack are texts, since none is an empty text."""
    return "string" if column.kind == "int64" and not column.is_required else column.kind


def reader_kinds(settings: Settings) -> dict[bytes, str]:
    """{part name: kind}."""
    return {column.name: kind_of(column) for column in settings.columns}
