"""TFRecord shards: one tf.Example a sample, its key and parts as bytes features, every record with its checksums.

    u64 size | u32 masked CRC-32C of these 8 bytes | Example | u32 masked CRC-32C of the Example

    Example{1: Features{1: {1: "__key__", 2: Feature{1: BytesList{1: key}}}, 1: {1: "jpg", ...}, ...}}

Sources: tensorflow/core/lib/io/record_writer.h, tensorflow/core/example/{example,feature}.proto, protobuf encoding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool import columns
from shardtool.errors import BadKey, SampleTooLarge, UsageProblem
from shardtool.formats import BYTES, Settings, ShardLayout, WrittenShard
from shardtool.formats.crc32c import crc32c_rows, masked
from shardtool.formats.records import (
    CHECKSUM_BYTES,
    Pieces,
    RecordCheck,
    Records,
    Seams,
    varint_sizes,
    varint_words,
    varints,
    write_records,
)
from shardtool.formats.scatter import windows, words
from shardtool.samples import keys_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.formats import StructureCheck
    from shardtool.formats.scatter import Bytes
    from shardtool.model import Int64Array, Manifest, SampleTable, ShardRows
    from shardtool.sources.reader import PartReader
    from shardtool.storage.shard_file import ShardFile

KEY = b"__key__"
LENGTH_BYTES = 12  # size and its checksum
MAX_EXAMPLE_BYTES = (1 << 31) - 1  # protocol buffers hold no more
_LENGTHS_BYTES = 4 * 8  # at most, of the four lengths before a value and their tags, a word each
_FIRST, _SECOND = 0x0A, 0x12  # tags of fields 1 and 2, length delimited


class _Nest(NamedTuple):
    """Lengths of one feature from the inside out, int64[n] each."""

    value: Int64Array
    list_: Int64Array
    feature: Int64Array
    entry: Int64Array
    total: Int64Array  # with its own tag and length: what it adds to the Features


def _nest(name_bytes: Int64Array, value_bytes: Int64Array) -> _Nest:
    list_ = _field(value_bytes)
    feature = _field(list_)
    entry = _field(name_bytes) + _field(feature)
    return _Nest(value_bytes, list_, feature, entry, _field(entry))


def _field(length: Int64Array) -> Int64Array:
    """Bytes of a field of `length` bytes with its tag and length."""
    return 1 + varint_sizes(length) + length


@dataclass(frozen=True)
class TFRecordFormat:
    """TFRecord files of tf.Example protocol buffers."""

    settings: Settings = field(default_factory=Settings)
    name: str = "tfrecord"
    suffix: str = ".tfrecord"
    layout: str = "tfrecord/1"
    addressing: str = BYTES
    is_exact: bool = True
    has_schema: bool = False

    def check(self, table: SampleTable) -> None:
        """Part names must be UTF-8 and not the name of the key; an Example is smaller than 2 GiB.

        Raises:
            UsageProblem: compression was asked for.
            BadKey: such part names.
            SampleTooLarge: naming five samples.
        """
        if self.settings.compress != "none":
            raise UsageProblem(
                "TFRecord shards are not compressed: readers could not seek in them",
                hint="leave --compress out, or --format tar --compress zstd",
            )
        refuse_names([*table.part_names, *(part.name for part in table.generated)], (KEY,), "TFRecord features")
        large = np.flatnonzero(self.sizes(table) > MAX_EXAMPLE_BYTES)
        if len(large):
            keys = ", ".join(key.decode("utf-8", "backslashreplace") for key in keys_of(table, large[:5]))
            raise SampleTooLarge(
                f"{len(large):,} samples are larger than 2 GiB, more than a tf.Example holds: {keys}",
                hint="--format tar holds parts of any size, or leave them out with --exclude",
            )

    def sizes(self, table: SampleTable) -> Int64Array:
        """int64[num_samples]: bytes of each record, exact."""
        lengths = np.array([len(name) for name in table.part_names] + [0], np.int64)
        parts = _nest(lengths[table.part_name], table.entries.sizes[table.part_entry]).total
        features = table.sum_over_parts(parts)
        key_bytes = table.key_bytes.astype(np.int64)
        features = features + _nest(np.full(len(key_bytes), len(KEY), np.int64), key_bytes).total
        for part in table.generated:
            sizes = np.array([len(value) for value in part.values], np.int64)
            costs = np.append(_nest(np.full(len(sizes), len(part.name), np.int64), sizes).total, 0)
            features = features + costs[part.codes]
        return LENGTH_BYTES + _field(features) + CHECKSUM_BYTES

    def shard_overhead(self, num_samples: int) -> int:
        """None: records alone."""
        return 0

    def write(self, rows: ShardRows, members: list[bytes], read: PartReader, out: ShardFile) -> WrittenShard:
        """Write a shard through a slab."""
        records = records_of(rows)
        digests = write_records(rows, records, read, out)
        return WrittenShard(records.start[:-1], np.diff(records.start), records.part_offset, digests)

    def layout_of(self, rows: ShardRows, members: list[bytes]) -> ShardLayout:
        """Offsets of a shard, before a byte of it is read."""
        return records_of(rows).layout()

    def structure(self, rows: ShardRows, part_offset: Int64Array) -> StructureCheck:
        """Every byte that is not payload, and both checksums of every record."""
        return RecordCheck(rows, records_of(rows))

    def ends(self, rows: ShardRows, members: list[bytes]) -> tuple[bytes, bytes]:
        """The head of the first record, up to its key; the end is a checksum, which only the payload tells."""
        return records_of(rows).glue(0, 1).tobytes()[: LENGTH_BYTES + len(KEY)], b""

    def side_files(self, manifest: Manifest) -> Iterator[tuple[str, bytes]]:
        """None: the shards stand alone."""
        yield from ()


def records_of(rows: ShardRows) -> Records:
    """Where everything lies; follows from names and sizes alone."""
    names, key_bytes = _names(rows), np.diff(columns.offsets_of(rows.keys))
    parts = _nest(names.sizes[names.code], rows.sizes)
    key = _nest(np.full(rows.num_samples, len(KEY), np.int64), key_bytes)
    part_ends = np.concatenate([[0], np.cumsum(parts.total)])
    features = key.total + np.diff(part_ends[rows.part_start])
    example = _field(features)
    start = np.concatenate([[0], np.cumsum(LENGTH_BYTES + example + CHECKSUM_BYTES)]).astype(np.int64)
    first_part = start[:-1] + LENGTH_BYTES + 1 + varint_sizes(features) + key.total
    owners = rows.owners()
    part_begin = first_part[owners] + part_ends[:-1] - part_ends[rows.part_start[owners]]
    part_offset = part_begin + parts.total - rows.sizes
    seams = Seams.of(rows, start, part_offset)
    begin = seams.part - (part_offset - part_begin)

    key_start, keys = columns.buffers_of(rows.keys)

    def glue(first: int, last: int) -> Bytes:
        pieces, at = Pieces(seams, first, last), seams.sample[first:last]
        pieces.fixed(at, _lengths(example[first:last]))
        sizes, words_ = _tagged(features[first:last])
        pieces.word(at + LENGTH_BYTES, words_)  # before what follows it
        at = at + LENGTH_BYTES + sizes
        number = np.zeros(last - first, np.int64)
        heads, begins, sizes = _heads(_Nest(*(column[first:last] for column in key)), number, _KEY_NAME)
        pieces.ragged(at, sizes, heads, begins)
        pieces.ragged(at + sizes, key_bytes[first:last], keys, key_start[first:last])
        some = slice(int(rows.part_start[first]), int(rows.part_start[last]))
        heads, begins, sizes = _heads(_Nest(*(column[some] for column in parts)), names.code[some], names)
        pieces.ragged(begin[some], sizes, heads, begins)
        return pieces.values

    return Records(b"", start, part_offset, seams, glue, checked_from=LENGTH_BYTES)


class _Names(NamedTuple):
    """Part names of a shard, each with its tag and length before it and the tag of the Feature behind it."""

    code: Int64Array  # int64[num_parts]: row in the others
    sizes: Int64Array  # of the names alone
    block: Bytes  # uint8[num_names, widest], zeros behind
    block_sizes: Int64Array


def _joined(code: Int64Array, names: list[bytes]) -> _Names:
    sizes = np.array([len(name) for name in names], np.int64)
    blocks = [bytes([_FIRST]) + _varint(len(name)) + name + bytes([_SECOND]) for name in names]
    block_sizes = np.array([len(block) for block in blocks], np.int64)
    widest = int(block_sizes.max()) if len(blocks) else 0
    block = np.frombuffer(b"".join(block.ljust(widest, b"\0") for block in blocks), np.uint8)
    return _Names(code, sizes, block.reshape(len(blocks), widest), block_sizes)


def _varint(value: int) -> bytes:
    return varints(np.array([value], np.int64))[1].tobytes()


def _names(rows: ShardRows) -> _Names:
    encoded = rows.names.dictionary_encode()
    return _joined(encoded.indices.to_numpy().astype(np.int64), columns.to_list(encoded.dictionary))


_KEY_NAME = _joined(np.zeros(0, np.int64), [KEY])


def _lengths(example: Int64Array) -> Bytes:
    """uint8[n, 12]: size of each Example and its checksum."""
    lengths = example.astype("<u8")[:, None].view(np.uint8)
    sums = masked(crc32c_rows(lengths)).astype("<u4")[:, None].view(np.uint8)
    return np.concatenate([lengths, sums], axis=1)


def _tagged(length: Int64Array) -> tuple[Int64Array, Int64Array]:
    """(bytes of each, words of which so many count): a tag of field 1 and a length."""
    sizes, found = varint_words(length)
    return sizes + 1, found << 8 | _FIRST


def _heads(nest: _Nest, code: Int64Array, names: _Names) -> tuple[Bytes, Int64Array, Int64Array]:
    """One map entry each, up to its value: (bytes with gaps, where each begins, its size).

    Tag and length of the entry, block of the name, length of the Feature, tags and lengths of list and value. A line a
    row: each field is put down as wide as fields can be, and the next one covers what was too much.
    """
    count, widest = len(code), names.block.shape[1]
    sizes, found = (column.reshape(4, count) for column in varint_words(np.concatenate(nest[3::-1])))
    sizes[[0, 2, 3]] += 1
    found[[0, 2, 3]] = found[[0, 2, 3]] << 8 | _FIRST
    begins = np.arange(count) * (widest + _LENGTHS_BYTES)
    line: Bytes = np.empty(count * (widest + _LENGTHS_BYTES), np.uint8)
    put, at = words(line), begins + sizes[0]
    put[begins] = found[0]
    if widest:
        windows(line, widest)[at] = names.block.view(f"V{widest}")[code, 0]
    at += names.block_sizes[code]
    for number in (1, 2, 3):
        put[at] = found[number]
        at += sizes[number]
    return line, begins, at - begins


def refuse_names(names: list[bytes], reserved: tuple[bytes, ...], what: str) -> None:
    """Refuse part names that are not UTF-8, or that stand for something else.

    Raises:
        BadKey: all of them in one error.
    """
    bad = []
    for name in dict.fromkeys(names):
        try:
            name.decode("utf-8")
        except UnicodeDecodeError:
            bad.append(name)
        if name in reserved:
            bad.append(name)
    if bad:
        shown = ", ".join(name.decode("utf-8", "backslashreplace") for name in bad[:5])
        raise BadKey(
            f"{len(bad):,} part names cannot be {what}: {shown}; they must be UTF-8, and not"
            f" {' or '.join(name.decode() for name in reserved)}",
            hint="--alias NAME=EXT renames a part, --exclude leaves such files out, --escape-names writes %XX",
        )
