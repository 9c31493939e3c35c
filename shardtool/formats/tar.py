"""Tar shards: plain ustar, one member a part, the parts of a sample side by side, two zero blocks at the end.

Members are laid out in a slab: payload is read to its place, headers follow in one numpy pass, one write sends both.
`write_simple` does the same a member at a time; the tests hold one against the other.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from shardtool.errors import BadKey
from shardtool.formats import BYTES, Settings, ShardLayout, WrittenShard
from shardtool.formats.frames import compressed, ends_of
from shardtool.formats.tar_header import (
    BLOCK,
    MAX_USTAR_SIZE,
    NAME_BYTES,
    TRAILER_BYTES,
    extension,
    extension_bytes,
    headers,
    padded,
    split_name,
)
from shardtool.keys import is_utf8
from shardtool.samples import keys_of, member_names_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.formats import StructureCheck
    from shardtool.formats.records import Out
    from shardtool.model import Int64Array, Manifest, SampleTable, ShardRows, UInt64Array
    from shardtool.sources.reader import PartReader
    from shardtool.storage.shard_file import ShardFile

SLAB_BYTES = 1 << 20  # measured: 256 KiB 5 % slower, 4 MiB 37 %, a whole shard 2x


@dataclass(frozen=True)
class TarLayout:
    """Where everything lies in a shard; follows from names and sizes alone."""

    extension: Int64Array  # bytes of pax header before each member, int64[num_parts]
    member_start: Int64Array  # int64[num_parts + 1], the last is where the trailer begins
    part_offset: Int64Array  # payload, int64[num_parts]
    sample_offset: Int64Array  # int64[num_samples]
    sample_bytes: Int64Array  # int64[num_samples]


@dataclass(frozen=True)
class TarFormat:
    """WebDataset-style tar shards."""

    settings: Settings = field(default_factory=Settings)
    name: str = "tar"
    layout: str = "tar/1"
    addressing: str = BYTES
    is_exact: bool = True
    has_schema: bool = False

    @property
    def suffix(self) -> str:
        """`.tar`, or `.tar.zst`."""
        return ".tar" if self.settings.compress == "none" else ".tar.zst"

    def check(self, table: SampleTable) -> None:
        """Names that neither ustar nor pax can hold are refused.

        Raises:
            BadKey: naming five of them.
        """
        found = unportable_names(table)
        if found:
            shown = "\n".join(f"  {name.decode('utf-8', 'backslashreplace')}" for name in found[:5])
            raise BadKey(
                f"{len(found):,} names are neither UTF-8 nor short enough for a plain tar header\n{shown}",
                hint="--escape-names writes such bytes as %XX",
            )

    def sizes(self, table: SampleTable) -> Int64Array:
        """int64[num_samples]: bytes of each sample in a tar, exact."""
        sizes = table.entries.sizes[table.part_entry]
        lengths = np.array([len(name) for name in table.part_names] + [0], np.int64)
        name_bytes = np.repeat(table.key_bytes, table.parts_per_sample()) + 1 + lengths[table.part_name]
        members = BLOCK + padded(sizes)
        rare = np.flatnonzero((name_bytes > NAME_BYTES) | (sizes >= MAX_USTAR_SIZE))
        if len(rare):
            members[rare] += _extensions(table, rare)
        total = table.sum_over_parts(members)
        for part in table.generated:
            cost = np.array([BLOCK + padded(len(value)) for value in part.values] + [0], np.int64)
            total = total + cost[part.codes] + _generated_extensions(table, part.name, part.codes >= 0)
        return total

    def shard_overhead(self, num_samples: int) -> int:
        """Bytes of the end-of-archive blocks; the same for any number of samples."""
        return TRAILER_BYTES

    def layout_of(self, rows: ShardRows, members: list[bytes]) -> ShardLayout:
        """Offsets of a shard, before a byte of it is read."""
        layout = layout_of(rows, members)
        num_bytes = int(layout.member_start[-1]) + TRAILER_BYTES
        return ShardLayout(layout.sample_offset, layout.sample_bytes, layout.part_offset, num_bytes)

    def structure(self, rows: ShardRows, part_offset: Int64Array) -> StructureCheck:
        """Every header against the one that would be written today."""
        from shardtool.formats.tar_check import HeaderCheck

        return HeaderCheck(rows, part_offset)

    def ends(self, rows: ShardRows, members: list[bytes]) -> tuple[bytes, bytes]:
        """The first block, and the end-of-archive blocks; of compressed shards what they all have."""
        if self.settings.compress != "none":
            return ends_of(int(layout_of(rows, members).member_start[-1]) + TRAILER_BYTES)
        size = rows.sizes[:1]
        first = extension(members[0], int(size[0])) or headers(members[:1], size).tobytes()
        return first[:BLOCK], bytes(TRAILER_BYTES)

    def side_files(self, manifest: Manifest) -> Iterator[tuple[str, bytes]]:
        """None: the shards stand alone."""
        yield from ()

    def write(self, rows: ShardRows, members: list[bytes], read: PartReader, out: ShardFile) -> WrittenShard:
        """Write a shard through a slab.

        Args:
            members: key + b"." + part name, list[num_parts].
        """
        layout = layout_of(rows, members)
        digests = np.zeros(rows.num_parts, np.uint64)
        with compressed(out, self.settings.compress) as sink:
            _write_members(rows, members, layout, read, sink, _slab(), digests)
            sink.write(bytes(TRAILER_BYTES))
        return sink.stamp(WrittenShard(layout.sample_offset, layout.sample_bytes, layout.part_offset, digests))


@cache
def _slab() -> memoryview:
    """The slab of this process; private memory, kept from shard to shard."""
    return memoryview(mmap.mmap(-1, SLAB_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def layout_of(rows: ShardRows, members: list[bytes]) -> TarLayout:
    """Offsets of a shard, before a byte of it is read."""
    extra = np.zeros(rows.num_parts, np.int64)
    lengths = np.fromiter(map(len, members), np.int64, rows.num_parts)
    for part in np.flatnonzero((lengths > NAME_BYTES) | (rows.sizes >= MAX_USTAR_SIZE)).tolist():
        extra[part] = extension_bytes(members[part], int(rows.sizes[part]))
    starts = np.concatenate([[0], np.cumsum(extra + BLOCK + padded(rows.sizes))]).astype(np.int64)
    bounds = starts[rows.part_start]
    return TarLayout(extra, starts, starts[:-1] + extra + BLOCK, bounds[:-1], np.diff(bounds))


def _write_members(
    rows: ShardRows,
    members: list[bytes],
    layout: TarLayout,
    read: PartReader,
    out: Out,
    slab: memoryview,
    digests: UInt64Array,
) -> None:
    blocks = np.frombuffer(slab, np.uint8).reshape(-1, BLOCK)
    first, starts = 0, layout.member_start
    while first < rows.num_parts:
        last = int(np.searchsorted(starts, starts[first] + SLAB_BYTES, side="right")) - 1
        if last <= first:
            digests[first] = _write_large(rows, members, first, read, out, slab)
            first += 1
            continue
        base = starts[first]
        sizes, payload = rows.sizes[first:last], layout.part_offset[first:last] - base
        ragged = (sizes & (BLOCK - 1)) != 0
        blocks[((payload + sizes) >> 9)[ragged]] = 0  # the rest of a payload's last block
        digests[first:last] = read.fill(first, last, payload.tolist(), slab)
        blocks[(payload >> 9) - 1] = headers(members[first:last], sizes)
        for part in np.flatnonzero(layout.extension[first:last]).tolist():
            start = int(starts[first + part] - base)
            record = extension(members[first + part], int(sizes[part]))
            slab[start : start + len(record)] = record
        out.write(slab[: int(starts[last] - base)])
        first = last


def _write_large(rows: ShardRows, members: list[bytes], part: int, read: PartReader, out: Out, slab: memoryview) -> int:
    """A member larger than the slab, in pieces; its xxh3_64."""
    size = int(rows.sizes[part])
    out.write(extension(members[part], size) + headers([members[part]], rows.sizes[part : part + 1]).tobytes())
    state = xxhash.xxh3_64()
    for piece in read.stream(part, slab):
        state.update(piece)
        out.write(piece)
    out.write(bytes(int(padded(size)) - size))
    return state.intdigest()


def write_simple(rows: ShardRows, members: list[bytes], read: PartReader, out: ShardFile) -> WrittenShard:
    """The same bytes as `TarFormat.write`, a member at a time: the oracle of the slab."""
    layout = layout_of(rows, members)
    digests = np.zeros(rows.num_parts, np.uint64)
    buffer = memoryview(bytearray(SLAB_BYTES))
    for part in range(rows.num_parts):
        digests[part] = _write_large(rows, members, part, read, out, buffer)
    out.write(bytes(TRAILER_BYTES))
    return WrittenShard(layout.sample_offset, layout.sample_bytes, layout.part_offset, digests)


def unportable_names(table: SampleTable) -> list[bytes]:
    """Member names that neither ustar nor pax can hold: longer than ustar allows, and not UTF-8."""
    lengths = np.array([len(name) for name in table.part_names] + [0], np.int64)
    name_bytes = np.repeat(table.key_bytes, table.parts_per_sample()) + 1 + lengths[table.part_name]
    names = member_names_of(table, np.flatnonzero(name_bytes > NAME_BYTES))
    for part in table.generated:
        long_ones = np.flatnonzero((part.codes >= 0) & (table.key_bytes + 1 + len(part.name) > NAME_BYTES))
        names += [key + b"." + part.name for key in keys_of(table, long_ones)]
    return [name for name in names if split_name(name) is None and not is_utf8(name)]


def _extensions(table: SampleTable, parts: Int64Array) -> Int64Array:
    sizes = table.entries.sizes[table.part_entry[parts]].tolist()
    return np.array(
        [extension_bytes(name, size) for name, size in zip(member_names_of(table, parts), sizes, strict=True)],
        np.int64,
    )


def _generated_extensions(table: SampleTable, name: bytes, has_part: Any) -> Int64Array:
    extra = np.zeros(table.num_samples, np.int64)
    rare = np.flatnonzero(has_part & (table.key_bytes + 1 + len(name) > NAME_BYTES))
    extra[rare] = [extension_bytes(key + b"." + name, 0) for key in keys_of(table, rare)]
    return extra
