"""A shard of columns read again, when its index is lost: which samples it holds, and the digests of their parts.

In: the planned rows and the open shard. Out: what writing it gave, or an error that says where it differs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np
import xxhash

from shardtool import columns
from shardtool.errors import CorruptShard
from shardtool.formats import CELLS, Format, WrittenShard
from shardtool.formats.cells import logical_digest, places_of

if TYPE_CHECKING:
    from shardtool.formats.cells import Cells
    from shardtool.formats.columnar import Layout
    from shardtool.model import ShardRows


class CellSource(Protocol):
    """An open shard of columns."""

    def num_groups(self) -> int:
        """Row groups, or record batches."""

    def load(self, group: int, column: int) -> Cells:
        """The cells of one column of a group; column -1 is the key."""

    def num_bytes(self) -> int:
        """Of the file."""

    def raw_bytes(self) -> int:
        """Of the shard before compression."""

    def close(self) -> None:
        """Let go of the file."""


class ColumnFormat(Format, Protocol):
    """A format whose shards are columns."""

    @property
    def columns(self) -> Layout:
        """The columns of every shard."""

    def bounds(self, rows: ShardRows) -> list[int]:
        """First samples of the groups, and the number of samples."""

    def open_cells(self, path: str) -> CellSource:
        """The shard at `path`."""


def keys_in(source: CellSource) -> list[bytes]:
    """The keys of a shard, in order.

    Raises:
        CorruptShard: they cannot be read.
    """
    keys = []
    for group in range(source.num_groups()):
        cells = source.load(group, -1)
        keys += [cells.value(row) for row in range(cells.num_rows)]
    return keys


def written_again(shard_format: ColumnFormat, source: CellSource, rows: ShardRows, path: str) -> WrittenShard:
    """What `write` gave for these rows.

    Args:
        rows: the samples that the shard holds, as `keys_in` told.
        path: for messages.

    Raises:
        CorruptShard: the shard does not hold them as planned.
    """
    bounds, codes = shard_format.bounds(rows), shard_format.columns.codes(rows.names)
    if keys_in(source) != columns.to_list(rows.keys) or source.num_groups() != len(bounds) - 1:
        raise _differs(path, "its keys or groups are not those of the plan")
    digests, owners = np.zeros(rows.num_parts, np.uint64), rows.owners()
    for group, (low, high) in enumerate(pairwise(bounds)):
        first, last = int(rows.part_start[low]), int(rows.part_start[high])
        for column in range(len(shard_format.columns.columns)):
            cells = source.load(group, column)
            chosen = first + np.flatnonzero(codes[first:last] == column)
            values = [cells.value(row) for row in (owners[chosen] - low).tolist() if row < cells.num_rows]
            if list(map(len, values)) != rows.sizes[chosen].tolist():
                raise _differs(path, f"cells of column {column} are not as large as planned")
            digests[chosen] = np.fromiter(map(xxhash.xxh3_64_intdigest, values), np.uint64, len(values))
    groups, group_rows = places_of(bounds)
    is_packed = shard_format.settings.compress != "none"
    layout = shard_format.layout_of(rows, []) if shard_format.addressing == CELLS else None
    if layout is not None and layout.num_bytes != source.num_bytes():
        raise _differs(path, f"it has {source.num_bytes():,} bytes, and {layout.num_bytes:,} follow from the plan")
    return WrittenShard(
        groups,
        group_rows,
        codes.astype(np.int64) if layout is None else layout.part_offset,
        digests,
        raw_bytes=source.raw_bytes() if is_packed else 0,
        raw_xxh3_128=logical_digest(rows, digests) if is_packed else "",
    )


def _differs(path: str, what: str) -> CorruptShard:
    return CorruptShard(
        f"{path} is damaged: {what}",
        hint="shardtool pack OUT --deep rewrites only the damaged shards from their source",
        where={"path": path},
    )
