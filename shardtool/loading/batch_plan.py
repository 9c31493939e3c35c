"""Which bytes a batch takes, and where in them its parts lie. Columns in, lists out; no byte of a sample is read.

    plan = plan_batch(places, rows, spots, table_of, RunLimits())
    plan.runs           [(shard, begin, size)], one read each
    plan.keys, plan.counts, plan.names, plan.run_of, plan.cuts      how samples are cut out of them

Everything is computed for the whole batch at once, for a numpy call costs as much as three samples would by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from shardtool.loading.tables import FILE, FRAMES, PARTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.loading.tables import ShardTable
    from shardtool.model import Int64Array

__all__ = ["BatchPlan", "Run", "RunLimits", "plan_batch"]

MAX_GAP = 8 << 10  # bytes read for nothing rather than another call; a call costs what 8 KiB of copying do
MAX_RUN = 8 << 20  # bytes of one read
ALONE_BYTES = 32 << 10  # a part of so many is read into bytes of its own; cutting it out of a longer read would copy it

_TRUE = np.ones(1, bool)

Run: TypeAlias = tuple[int, int, int]
"""Shard (its place in the manifest), first byte, bytes; of source PARTS: shard, first part of the plan, parts."""


class RunLimits(NamedTuple):
    """What is read along with its neighbour: parts with at most `gap` bytes between them, all below `alone` bytes."""

    gap: int = MAX_GAP
    alone: int = ALONE_BYTES


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """Reads of a batch, and its samples in the order in which they are read."""

    spots: list[int]  # place in the batch of each sample
    keys: list[str]
    counts: list[int]  # parts of each sample
    names: list[str]  # of each part, sample after sample
    shards: Int64Array  # of each part, its place in the manifest
    rows: Int64Array  # of each part, in the table of its shard
    run_of: list[int]  # of each part, ascending
    cuts: list[slice] | list[int]  # of each part, what to take of its run
    runs: list[Run]
    source: str  # FILE, FRAMES or PARTS
    is_in_batch_order: bool  # spots are 0, 1, 2 ...


def plan_batch(
    places: Int64Array,
    rows: Int64Array,
    spots: Int64Array,
    table_of: Callable[[int], ShardTable],
    limits: RunLimits,
    *,
    in_batch_order: bool = False,
) -> BatchPlan:
    """The plan of a batch whose samples are given in the order of the shards.

    Args:
        places: int64[n], shard of each sample, its place in the manifest; equal ones are neighbours.
        rows: int64[n], row in the shard.
        spots: int64[n], place in the batch.
        table_of: tables by place.
        limits: what is read along with its neighbour.
        in_batch_order: read the samples as they come in the batch, where they lie in files as they are.
    """
    cuts = [0, *(np.flatnonzero(places[1:] != places[:-1]) + 1).tolist(), len(places)] if len(places) else [0]
    groups = [(low, high, table_of(int(places[low]))) for low, high in pairwise(cuts)]
    keys = [key for low, high, table in groups for key in table.keys(rows[low:high])]
    firsts = _joined([table.part_start[rows[low:high]] for low, high, table in groups])
    counts = _joined([table.part_start[rows[low:high] + 1] for low, high, table in groups]) - firsts
    bounds = np.concatenate([[0], np.cumsum(counts)])
    part_rows = _ranges(firsts, counts)
    chosen = [(part_rows[low:high], groups[at][2]) for at, (low, high) in enumerate(pairwise(bounds[cuts].tolist()))]
    names = np.concatenate([table.names[table.code[own]] for own, table in chosen]) if chosen else np.empty(0, object)
    offsets = _joined([table.offset[own] for own, table in chosen])
    sizes = _joined([table.size[own] for own, table in chosen])
    part_places = np.repeat(places, counts)
    sources = {table.source for _, table in chosen}
    source = PARTS if PARTS in sources else FRAMES if FRAMES in sources else FILE
    in_batch_order = in_batch_order and source == FILE
    if in_batch_order:
        order = np.argsort(spots)
        parts = _ranges(bounds[order], counts[order])
        keys = [keys[at] for at in order.tolist()]
        spots, counts, names, part_places, part_rows = (
            spots[order],
            counts[order],
            names[parts],
            part_places[parts],
            part_rows[parts],
        )
        offsets, sizes = offsets[parts], sizes[parts]
    if source == FRAMES:
        limits = limits._replace(alone=MAX_RUN)  # what is decompressed is copied anyway
    elif source == PARTS:  # a part is found by its place in the plan
        offsets, sizes = np.arange(len(part_rows)), np.ones(len(part_rows), np.int64)
        limits = RunLimits(0, 2)
    run_of, runs, starts = _runs(part_places, offsets, sizes, limits)
    begins, ends = starts.tolist(), (starts + sizes).tolist()
    return BatchPlan(
        spots=spots.tolist(),
        keys=keys,
        counts=counts.tolist(),
        names=names.tolist(),
        shards=part_places,
        rows=part_rows,
        run_of=run_of.tolist(),
        cuts=begins if source == PARTS else list(map(slice, begins, ends)),
        runs=runs,
        source=source,
        is_in_batch_order=in_batch_order,
    )


def _runs(
    places: Int64Array, offsets: Int64Array, sizes: Int64Array, limits: RunLimits
) -> tuple[Int64Array, list[Run], Int64Array]:
    """(run of each part, runs, first byte of each part inside its run)."""
    if not len(offsets):
        return offsets, [], offsets
    ends, is_small, block = offsets + sizes, sizes < limits.alone, offsets // MAX_RUN
    is_joined = (offsets[1:] >= offsets[:-1]) & (offsets[1:] <= ends[:-1] + limits.gap)
    is_joined &= is_small[1:] & is_small[:-1]
    is_joined &= (places[1:] == places[:-1]) & (block[1:] == block[:-1])
    is_head = np.concatenate([_TRUE, ~is_joined])
    heads, run_of = np.flatnonzero(is_head), np.cumsum(is_head) - 1
    begins = offsets[heads]
    run_bytes = np.maximum.reduceat(ends, heads) - begins
    runs = list(zip(places[heads].tolist(), begins.tolist(), run_bytes.tolist(), strict=True))
    return run_of, runs, offsets - begins[run_of]


def _ranges(firsts: Int64Array, counts: Int64Array) -> Int64Array:
    """int64[sum(counts)]: firsts[i] .. firsts[i] + counts[i] - 1, one range after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(firsts - (ends - counts), counts) + np.arange(total)


def _joined(columns: list[Any]) -> Int64Array:
    return np.concatenate(columns).astype(np.int64, copy=False) if columns else np.empty(0, np.int64)
