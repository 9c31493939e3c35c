"""Parts of shards that hold them as cells: read a column of a group at a time, and given as they were packed.

In: an index whose addressing is ROWS, and a function that loads the cells of one column of one group. Memory: the cells
loaded last, at most CACHE_BYTES of them or one column.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from shardtool import columns
from shardtool.errors import CorruptShard
from shardtool.storage.files import file_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.formats import OpenShards
    from shardtool.index_file import ShardIndex
    from shardtool.model import Int64Array, ShardRows, UInt64Array

CACHE_BYTES = 64 << 20
UNREADABLE = (pa.ArrowException, OSError, KeyError, ValueError, IndexError, TypeError)  # what pyarrow says of damage


@dataclass(frozen=True, eq=False)
class Cells:
    """The values of one column of one group, as the bytes that were packed."""

    offsets: memoryview  # of int: value r is data[offsets[r]:offsets[r + 1]]
    data: memoryview

    @property
    def num_rows(self) -> int:
        """Rows of the group."""
        return len(self.offsets) - 1

    @property
    def num_bytes(self) -> int:
        """Memory they take."""
        return self.data.nbytes + self.offsets.nbytes

    def value(self, row: int) -> bytes:
        """One of them."""
        return bytes(self.data[self.offsets[row] : self.offsets[row + 1]])


def cells_of(array: Any, kind: str) -> Cells:
    """The cells of an Arrow array; a struct is a medium, and numbers are decimal again.

    Raises:
        ValueError: it is of another type, or its offsets run backwards.
    """
    if pa.types.is_struct(array.type):
        array = array.field("bytes")
    if kind == "int64":
        array = array.cast(pa.int64()).cast(pa.string())
    if not (pa.types.is_binary(array.type) or pa.types.is_string(array.type)):
        raise ValueError(f"a column of {kind} is {array.type}")
    array.validate()
    buffers = array.buffers()
    offsets: Any = np.frombuffer(buffers[1], np.int32)[array.offset : array.offset + len(array) + 1]
    if len(offsets) == 0:
        raise ValueError("no rows")
    if (np.diff(offsets) < 0).any() or offsets[0] < 0:
        raise ValueError("its offsets run backwards")
    return Cells(memoryview(offsets), memoryview(buffers[2] if buffers[2] is not None else b""))


class RowParts:
    """The parts of one open shard. Safe between threads.

    Args:
        index: of the shard.
        load: (group, column) -> its cells.
        close: lets go of the shard.
    """

    def __init__(self, index: ShardIndex, load: Callable[[int, int], Cells], close: Callable[[], None]) -> None:
        self._index, self._load, self._close = index, load, close
        self._cells: OrderedDict[tuple[int, int], Cells] = OrderedDict()
        self._num_bytes = 0
        self._lock = RLock()

    def read_parts(self, low: int, high: int) -> list[bytes]:
        """Bytes of the parts [low, high) of the index, as they were packed.

        Raises:
            CorruptShard: the shard has no such row, or cannot be read.
        """
        index = self._index
        columns_ = index.part_offset[low:high].tolist()
        first = int(np.searchsorted(index.part_start, low, side="right")) - 1
        found, sample, end = [], first, int(index.part_start[first + 1])
        group, row = int(index.offset[first]), int(index.num_bytes[first])
        with self._lock:
            for part, column in zip(range(low, high), columns_, strict=True):
                while part >= end:
                    sample += 1
                    end = int(index.part_start[sample + 1])
                    group, row = int(index.offset[sample]), int(index.num_bytes[sample])
                found.append(self._value(group, column, row))
        return found

    def close(self) -> None:
        """Let go of the shard and its cells."""
        with self._lock:
            self._cells.clear()
            self._num_bytes = 0
            self._close()

    def _value(self, group: int, column: int, row: int) -> bytes:
        cells = self._cells.get((group, column))
        if cells is None:
            cells = self._keep(group, column)
        else:
            self._cells.move_to_end((group, column))
        if row >= cells.num_rows:
            raise CorruptShard(
                f"{self._index.meta['shard']['path']} has {cells.num_rows:,} rows in group {group:,}, no row {row:,}",
                hint="shardtool verify --deep tells what is damaged",
            )
        return cells.value(row)

    def _keep(self, group: int, column: int) -> Cells:
        cells = self._cells[group, column] = self._load(group, column)
        self._num_bytes += cells.num_bytes
        while self._num_bytes > CACHE_BYTES and len(self._cells) > 1:
            self._num_bytes -= self._cells.popitem(last=False)[1].num_bytes
        return cells


def places_of(bounds: list[int]) -> tuple[Int64Array, Int64Array]:
    """(group, row in it) of each sample, int64[num_samples] both."""
    starts, stops = np.array(bounds[:-1], np.int64), np.array(bounds[1:], np.int64)
    lengths = stops - starts
    groups = np.repeat(np.arange(len(lengths)), lengths)
    return groups, np.arange(bounds[-1]) - starts[groups]


def check_size(dataset: OpenShards, shard: int) -> str:
    """Path of shard k, which has the size that the manifest states.

    Raises:
        CorruptShard: it is gone, or cut short; a reader that maps such a file would end the process.
    """
    path, wanted = dataset.shard_path(shard), dataset.manifest.shards[shard].files[0].num_bytes
    try:
        size = file_size(path)
    except OSError as error:
        raise CorruptShard(
            f"{path} is in the manifest, but it cannot be opened: {error.strerror or error}",
            hint=f"shardtool verify {dataset.path} lists all that is missing",
            where={"path": path, "shard": shard},
        ) from error
    if size != wanted:
        raise CorruptShard(
            f"{path} has {size:,} bytes; it should have {wanted:,}",
            hint=f"shardtool verify {dataset.path} --deep tells what is lost and how to repair it",
            where={"path": path, "shard": shard, "offset": min(size, wanted)},
        )
    return path


def logical_digest(rows: ShardRows, digests: UInt64Array) -> str:
    """xxh3_128 of keys, part names, sizes and digests in order: what a shard holds, however it is encoded."""
    state = xxhash.xxh3_128()
    for array in (rows.keys, rows.names):
        for chunk in columns.canonical(array):
            state.update(chunk)
    for numbers in (rows.part_start, rows.sizes, digests):
        state.update(np.ascontiguousarray(numbers).tobytes())
    digest: str = state.hexdigest()
    return digest
