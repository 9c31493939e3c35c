"""The documents of a shard in final order, a slab of 4 to 16 MiB at a time, read from the runs.

The final order is cut into ranges; of each range every run is read once, from front to back, and the documents are
gathered from what was read.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardtool.formats.bin_index import DTYPES, check_ids
from shardtool.tokens.plan import bounds_of, bucket_edges
from shardtool.tokens.runs import bytes_of, cut, digests_of, itemsize_of, piece_bounds, sorted_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.model import BinaryArray, Int64Array, UInt64Array
    from shardtool.tokens.plan import TokenShard
    from shardtool.tokens.runs import Run, RunRows
    from shardtool.tokens.store import ShardPlan

SLAB_BYTES = 4 << 20  # of ids gathered at a time, so that they are joined and written while they are in the cache
MAX_SLAB_BYTES = 16 << 20
SLAB_DOCUMENTS = 1 << 15  # where they are short
TABLE_ROWS = 1 << 16  # of all tables of runs together, held at a time
LEAST_TABLE_ROWS = 1 << 10  # of each
READ_BYTES = 256 << 10  # wanted from each run for a slab: the more runs, the larger the slabs


@dataclass
class Slab:
    """Consecutive documents of a shard, in final order."""

    keys: BinaryArray
    tokens: Int64Array
    digests: UInt64Array  # of their ids as the runs have them
    text_bytes: Int64Array
    data: memoryview  # their ids, anywhere in it; valid until the next slab is read
    starts: Int64Array  # where in it
    sizes: Int64Array  # in bytes

    def pieces(self) -> Iterator[bytes]:
        """The ids, documents one after the other, about a MiB at a time."""
        for first, last in pairwise(piece_bounds(self.sizes)):
            yield b"".join(cut(self.data, self.starts[first:last], self.sizes[first:last]))


def read_slabs(plan: ShardPlan, runs: list[Run], shard: TokenShard) -> Iterator[Slab]:
    """The documents of a shard, a slab at a time."""
    yield from (_sorted_slabs if plan.is_sorted else _source_slabs)(plan, runs, shard)


def _sorted_slabs(plan: ShardPlan, runs: list[Run], shard: TokenShard) -> Iterator[Slab]:
    spans = [span for span in (_span(run, shard) for run in runs) if span is not None]
    by_bytes = -(-sum(size for *_, size in spans) // _slab_bytes(len(spans)))
    by_documents = sum(last - first for _, first, last, _ in spans) // SLAB_DOCUMENTS
    edges = bucket_edges(shard.first, shard.last, max(1, by_bytes, by_documents))
    bounds = [bounds_of(run, edges, first, last) for run, first, last, _ in spans]
    memory, tables = _Memory(), [_Table(run, TABLE_ROWS // max(len(spans), 1)) for run, *_ in spans]
    for number in range(len(edges)):
        chosen = [
            (table, int(bound[number]), int(bound[number + 1])) for table, bound in zip(tables, bounds, strict=True)
        ]
        yield from _slab(plan, shard.split, chosen, memory)


def _span(run: Run, shard: TokenShard) -> tuple[Run, int, int, int] | None:
    """(run, first, last, bytes) of the documents of a run among which those of a shard are; None without any."""
    first = int(np.searchsorted(run.hash, np.uint64(shard.first)))
    last = int(np.searchsorted(run.hash, np.uint64(shard.last), side="right"))
    num_bytes = run.start_of(last) - run.start_of(first)
    run.forget()
    return (run, first, last, num_bytes) if first < last else None


def _slab_bytes(num_runs: int) -> int:
    return min(max(SLAB_BYTES, num_runs * READ_BYTES), MAX_SLAB_BYTES)


def _source_slabs(plan: ShardPlan, runs: list[Run], shard: TokenShard) -> Iterator[Slab]:
    base, memory = 0, _Memory()
    for run in runs:
        count, table = len(run.hash), _Table(run, SLAB_DOCUMENTS)
        first, last = max(shard.first - base, 0), min(shard.last + 1 - base, count)
        base += count
        while first < last:
            limit = run.start_of(first) + SLAB_BYTES
            stop = min(max(int(np.searchsorted(run.offset, np.uint64(limit))), first + 1), first + SLAB_DOCUMENTS, last)
            yield from _slab(plan, shard.split, [(table, first, stop)], memory)
            first = stop


class _Table:
    """The table of a run, read from front to back, some rows at a time."""

    def __init__(self, run: Run, num_rows: int) -> None:
        self.run = run
        self._num_rows = max(num_rows, LEAST_TABLE_ROWS)
        self._first = self._last = 0
        self._held: RunRows | None = None

    def rows(self, first: int, last: int) -> RunRows:
        """Documents [first, last)."""
        if self._held is None or first < self._first or last > self._last:
            self._first, self._last = first, min(max(last, first + self._num_rows), len(self.run.hash))
            self._held = self.run.rows(self._first, self._last)
        return self._held.sliced(first - self._first, last - self._first)


class _Memory:
    """Bytes that are used again for the next slab."""

    def __init__(self) -> None:
        self._held = np.empty(0, np.uint8)

    def take(self, size: int) -> NDArray[np.uint8]:
        """`size` bytes; those taken before are overwritten."""
        if size > len(self._held):
            self._held = np.empty(size + size // 4, np.uint8)
        return self._held[:size]


@dataclass
class _Documents:
    """Documents of one run that are of a split."""

    keys: BinaryArray
    hashes: UInt64Array
    tokens: Int64Array
    digests: UInt64Array
    text_bytes: Int64Array
    starts: Int64Array  # of their ids in the memory of the slab

    def take(self, rows: Int64Array) -> _Documents:
        """Some of them."""
        columns = (self.hashes[rows], self.tokens[rows], self.digests[rows], self.text_bytes[rows], self.starts[rows])
        return _Documents(self.keys.take(pa.array(rows)), *columns)


def _slab(plan: ShardPlan, split: int, spans: list[tuple[_Table, int, int]], memory: _Memory) -> Iterator[Slab]:
    """A slab of the documents [first, last) of runs that are of a split; none where there are none."""
    itemsize = itemsize_of(plan.dtype)
    found = [(table.run, table.rows(first, last)) for table, first, last in spans if first < last]
    wanted = [int(rows.tokens.sum(dtype=np.int64)) * itemsize for _, rows in found]
    room = memory.take(sum(wanted))
    parts, start = [], 0
    for (run, rows), size in zip(found, wanted, strict=True):
        part = _part(plan, run, rows, split, room[start : start + size])
        if part is not None:
            part.starts += start
            parts.append(part)
        start += size
    if parts:
        yield _merged(parts, room.data, itemsize, is_sorted=plan.is_sorted)


def _part(plan: ShardPlan, run: Run, found: RunRows, split: int, room: NDArray[np.uint8]) -> _Documents | None:
    """Those documents of a run that are of a split, the ids of all read to `room`; None where there are none."""
    rows = np.flatnonzero(plan.selection.splits_of(found.hash, found.split) == split)
    if len(rows) == 0:
        return None
    tokens = found.tokens.astype(np.int64)
    starts = (np.cumsum(tokens) - tokens) * itemsize_of(plan.dtype)
    part = _Documents(found.keys, found.hash, tokens, found.xxh3_64, found.text_bytes.astype(np.int64), starts)
    if len(rows) < len(tokens):
        part = part.take(rows)
    if run.info.dtype == plan.dtype:
        run.read(int(found.offset[0]), room.data)
    else:
        part.digests = _converted(run, int(found.offset[0]), plan.dtype, part, room)
    return part


def _converted(run: Run, start: int, dtype: str, part: _Documents, room: NDArray[np.uint8]) -> UInt64Array:
    """Fill `room` with the ids of a run from byte `start` on in another type; the digests of its documents in that."""
    target = room.view(DTYPES[dtype])
    ids = np.empty(len(target), DTYPES[run.info.dtype])
    run.read(start, bytes_of(ids))
    check_ids(int(ids.min(initial=0)), int(ids.max(initial=0)), dtype)
    np.copyto(target, ids, casting="unsafe")
    return digests_of(cut(room.data, part.starts, part.tokens * target.itemsize))


def _merged(parts: list[_Documents], data: memoryview, itemsize: int, *, is_sorted: bool) -> Slab:
    """The documents of several runs in final order, their ids gathered from `data`."""
    keys = pa.concat_arrays([part.keys for part in parts])
    tokens, digests, text_bytes, starts = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("tokens", "digests", "text_bytes", "starts")
    )
    if is_sorted and len(parts) > 1:  # each run is sorted
        order = sorted_order(np.concatenate([part.hashes for part in parts]), keys)
        keys = keys.take(pa.array(order))
        tokens, digests, text_bytes, starts = (column[order] for column in (tokens, digests, text_bytes, starts))
    return Slab(keys, tokens, digests, text_bytes, data, starts, tokens * itemsize)


def joined(slabs: Sequence[Slab]) -> Slab:
    """Some slabs as one that stays valid."""
    tokens, digests, text_bytes, sizes = (
        np.concatenate([getattr(slab, name) for slab in slabs]) for name in ("tokens", "digests", "text_bytes", "sizes")
    )
    data = memoryview(b"".join(piece for slab in slabs for piece in slab.pieces()))
    keys = pa.concat_arrays([slab.keys for slab in slabs])
    return Slab(keys, tokens, digests, text_bytes, data, np.cumsum(sizes) - sizes, sizes)


def sliced(slab: Slab, first: int, last: int) -> Slab:
    """Documents [first, last) of a slab."""
    rows = slice(first, last)
    keys = slab.keys.slice(first, last - first)
    columns = (slab.tokens[rows], slab.digests[rows], slab.text_bytes[rows])
    return Slab(keys, *columns, slab.data, slab.starts[rows], slab.sizes[rows])
