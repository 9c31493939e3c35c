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
from shardtool.tokens.plan import bucket_edges
from shardtool.tokens.runs import bytes_of, cut, digests_of, itemsize_of, piece_bounds, sorted_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.model import BinaryArray, Int64Array, UInt64Array
    from shardtool.tokens.plan import TokenShard
    from shardtool.tokens.runs import Run
    from shardtool.tokens.store import ShardPlan

SLAB_BYTES = 4 << 20  # of ids gathered at a time, so that they are joined and written while they are in the cache
MAX_SLAB_BYTES = 16 << 20
READ_BYTES = 256 << 10  # wanted from each run for a slab: the more runs, the larger the slabs


@dataclass
class Slab:
    """Consecutive documents of a shard, in final order."""

    keys: BinaryArray
    tokens: Int64Array
    digests: UInt64Array  # of their ids as the runs have them
    text_bytes: Int64Array
    data: Sequence[bytes | memoryview]  # their ids, in pieces of whole documents


def read_slabs(plan: ShardPlan, runs: list[Run], shard: TokenShard) -> Iterator[Slab]:
    """The documents of a shard, a slab at a time."""
    yield from (_sorted_slabs if plan.is_sorted else _source_slabs)(plan, runs, shard)


def _sorted_slabs(plan: ShardPlan, runs: list[Run], shard: TokenShard) -> Iterator[Slab]:
    first, last = np.uint64(shard.first), np.uint64(shard.last)
    spans = [
        (run, int(np.searchsorted(run.hash, first)), int(np.searchsorted(run.hash, last, side="right"))) for run in runs
    ]
    spans = [span for span in spans if span[1] < span[2]]
    num_bytes = sum(run.num_bytes(a, b) for run, a, b in spans)
    edges = bucket_edges(shard.first, shard.last, max(1, -(-num_bytes // _slab_bytes(len(spans)))))
    bounds = [np.append(a + np.searchsorted(run.hash[a:b], edges), b) for run, a, b in spans]
    memory = _Memory()
    for number in range(len(edges)):
        chosen = [
            (run, int(bound[number]), int(bound[number + 1])) for (run, _, _), bound in zip(spans, bounds, strict=True)
        ]
        yield from _slab(plan, shard.split, chosen, memory)


def _slab_bytes(num_runs: int) -> int:
    return min(max(SLAB_BYTES, num_runs * READ_BYTES), MAX_SLAB_BYTES)


def _source_slabs(plan: ShardPlan, runs: list[Run], shard: TokenShard) -> Iterator[Slab]:
    base, memory = 0, _Memory()
    for run in runs:
        count = len(run.hash)
        first, last = max(shard.first - base, 0), min(shard.last + 1 - base, count)
        base += count
        while first < last:
            limit = int(run.offset[first]) + SLAB_BYTES
            stop = min(max(int(np.searchsorted(run.offset, np.uint64(limit))), first + 1), last)
            yield from _slab(plan, shard.split, [(run, first, stop)], memory)
            first = stop


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


def _slab(plan: ShardPlan, split: int, spans: list[tuple[Run, int, int]], memory: _Memory) -> Iterator[Slab]:
    """A slab of the documents [first, last) of runs that are of a split; none where there are none."""
    itemsize = itemsize_of(plan.dtype)
    spans = [span for span in spans if span[1] < span[2]]
    wanted = [run.num_bytes(first, last) // run.itemsize * itemsize for run, first, last in spans]
    room = memory.take(sum(wanted))
    parts, start = [], 0
    for (run, first, last), size in zip(spans, wanted, strict=True):
        part = _part(plan, run, first, last, split, room[start : start + size])
        if part is not None:
            part.starts += start
            parts.append(part)
        start += size
    if parts:
        yield _merged(parts, room.data, itemsize, is_sorted=plan.is_sorted)


def _part(plan: ShardPlan, run: Run, first: int, last: int, split: int, room: NDArray[np.uint8]) -> _Documents | None:
    """Documents [first, last) of a run that are of a split, their ids read to `room`; None where there are none."""
    hashes = run.hash[first:last]
    rows = np.flatnonzero(plan.selection.splits_of(hashes, run.split[first:last]) == split)
    if len(rows) == 0:
        return None
    tokens = run.tokens[first:last].astype(np.int64)
    starts = (np.cumsum(tokens) - tokens)[rows] * itemsize_of(plan.dtype)
    part = _Documents(
        run.keys.slice(first, last - first).take(pa.array(rows)),
        hashes[rows],
        tokens[rows],
        run.xxh3_64[first:last][rows],
        run.text_bytes[first:last][rows].astype(np.int64),
        starts,
    )
    if run.info.dtype == plan.dtype:
        run.read(first, room.data)
    else:
        part.digests = _converted(run, first, plan.dtype, part, room)
    return part


def _converted(run: Run, first: int, dtype: str, part: _Documents, room: NDArray[np.uint8]) -> UInt64Array:
    """Fill `room` with the ids of a run in another type; the digests of its documents in that."""
    target = room.view(DTYPES[dtype])
    ids = np.empty(len(target), DTYPES[run.info.dtype])
    run.read(first, bytes_of(ids))
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
    sizes = tokens * itemsize
    pieces = [b"".join(cut(data, starts[a:b], sizes[a:b])) for a, b in pairwise(piece_bounds(sizes))]
    return Slab(keys, tokens, digests, text_bytes, pieces)


def joined(one: Slab, two: Slab) -> Slab:
    """Two slabs as one."""
    return Slab(
        pa.concat_arrays([one.keys, two.keys]),
        np.concatenate([one.tokens, two.tokens]),
        np.concatenate([one.digests, two.digests]),
        np.concatenate([one.text_bytes, two.text_bytes]),
        [*one.data, *two.data],
    )


def sliced(slab: Slab, first: int, last: int) -> Slab:
    """Documents [first, last) of a slab."""
    data = memoryview(b"".join(slab.data))
    ends = np.append(0, np.cumsum(slab.tokens))
    itemsize = len(data) // max(int(ends[-1]), 1)
    return Slab(
        slab.keys.slice(first, last - first),
        slab.tokens[first:last],
        slab.digests[first:last],
        slab.text_bytes[first:last],
        [data[int(ends[first]) * itemsize : int(ends[last]) * itemsize]],
    )
