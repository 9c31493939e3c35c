"""Who reads what: the samples of one rank as ranges of shards, or one by one in reading order.

    for segments in coverage(order, deal, rank, position): ...      each sample once, few rows
    for chunk in sequence(order, deal, rank, position, count): ...  the exact order

Pure arithmetic on an `Order` and a `Deal`; results are streamed in chunks, so memory does not grow with the samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, cast

import numpy as np

from shardtool.errors import UsageProblem
from shardtool.order.deal import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from shardtool.model import Int64Array
    from shardtool.order.deal import Deal
    from shardtool.order.lanes import Pieces, ShardPieces
    from shardtool.order.mixed import MixedOrder
    from shardtool.order.order import Order

__all__ = ["Chunk", "Segments", "byte_ranges", "check_feasible", "coverage", "rank_counts", "sequence"]

_CHUNK = 1 << 16  # samples, or rows, computed at a time


@dataclass(frozen=True, eq=False)
class Segments:
    """Rows first, first + step, ... (`count` of them) of shards; int64[n] each."""

    shard: Int64Array
    first: Int64Array
    count: Int64Array
    step: Int64Array

    def __len__(self) -> int:
        return len(self.shard)

    @property
    def num_samples(self) -> int:
        """Samples that all rows hold together."""
        return int(self.count.sum())


@dataclass(frozen=True, eq=False)
class Chunk:
    """Samples of one rank in reading order; arrays of one length."""

    position: Int64Array  # of the stream; of the sample repeated, where is_valid is False
    shard: Int64Array
    row: Int64Array  # 0-based in its shard
    step: Int64Array
    is_valid: NDArray[np.bool_]


def coverage(
    order: Order, deal: Deal, rank: int, position: int, *, worker: int = 0, num_workers: int = 1
) -> Iterator[Segments]:
    """What a rank reads from a position to the end of that epoch: exactly its samples, each once, by first use.

    Rows of one yield are ordered by the window that reads them first. What `pad` repeats is left out. With S shards
    and L lanes in the rank's part, N samples to go and pieces of p samples, rows number at most
        S (order none), S + L (order shard); `unit` times that where world_size does not divide the lanes
        N / p + S + 2 L where world_size divides the lanes; window * p more for each lane at each end that cuts
        windows: a position inside an epoch, a tail that is dropped or carried
        N otherwise: order full, a world size that does not divide the lanes, or one loader worker of several
    and, under `carry`, the rank's samples of a step that straddles two epochs.

    Args:
        order: the reading order.
        deal: how it is dealt to ranks.
        rank: data rank, 0 .. world_size - 1.
        position: of the stream.
        worker: only what this loader worker reads (the steps where step % num_workers == worker).
        num_workers: loader workers of the rank.

    Raises:
        UsageProblem: order and deal do not fit one another, or there is no such rank.
    """
    _check_rank(order, deal, rank)
    epoch, place = divmod(position, order.num_samples)
    for span in _spans(deal, epoch, place):
        is_by_place = span.shift == 0 and num_workers == 1
        if is_by_place and order.params.mode in ("none", "shard"):
            yield from _strided(order, deal, rank, epoch, span)
        elif is_by_place and order.params.mode == "plw" and order.params.lanes % deal.world_size == 0:
            yield from _by_piece(order, deal, rank, epoch, span)
        else:
            yield from _by_sample(order, deal, rank, epoch, span, worker, num_workers)


def sequence(
    order: Order, deal: Deal, rank: int, position: int, count: int, *, worker: int = 0, num_workers: int = 1
) -> Iterator[Chunk]:
    """The samples that a rank reads among `count` positions of the stream from `position` on, in reading order.

    Includes what `pad` repeats, after the last position of its epoch. Chunks hold about 65,536 samples.

    Raises:
        UsageProblem: order and deal do not fit one another, or there is no such rank.
    """
    _check_rank(order, deal, rank)
    size = _CHUNK * deal.world_size
    for first in range(position, position + count, size):
        dealt = deal.positions(rank, first, min(first + size, position + count))
        chosen = dealt.steps % num_workers == worker
        positions = dealt.positions[chosen]
        if positions.size:
            shards, rows = order.locate(positions)
            yield Chunk(positions, shards, rows, dealt.steps[chosen], dealt.is_valid[chosen])


def rank_counts(deal: Deal, epoch: int, first: int = 0, *, with_padding: bool = False) -> Int64Array:
    """int64[world_size]: samples that each rank reads of an epoch from place `first` on."""
    counts = (deal.count(rank, epoch, first, with_padding=with_padding) for rank in range(deal.world_size))
    return np.fromiter(counts, np.int64, deal.world_size)


def byte_ranges(
    segments: Segments, extents: Callable[[int], tuple[Int64Array, Int64Array]]
) -> tuple[Int64Array, Int64Array]:
    """(offset, bytes) of each row in its shard file: from its first sample to the end of its last, int64[n] each.

    Args:
        segments: rows.
        extents: for a shard, offset and bytes of each of its samples; called once a shard.
    """
    offsets, sizes = np.empty_like(segments.shard), np.empty_like(segments.shard)
    if len(segments.shard) == 0:
        return offsets, sizes
    last = segments.first + (segments.count - 1) * segments.step
    by_shard = np.argsort(segments.shard, kind="stable")
    shards, begins = np.unique(segments.shard[by_shard], return_index=True)
    for shard, rows in zip(shards.tolist(), np.split(by_shard, begins[1:]), strict=True):
        offset, size = extents(shard)
        offsets[rows] = offset[segments.first[rows]]
        sizes[rows] = offset[last[rows]] + size[last[rows]] - offsets[rows]
    return offsets, sizes


def check_feasible(order: Order | MixedOrder, deal: Deal, *, num_workers: int = 0) -> tuple[str, ...]:
    """Sentences about what this configuration costs; an error where a rank would starve.

    Args:
        order: the reading order.
        deal: how it is dealt to ranks.
        num_workers: loader workers of a rank.

    Raises:
        UsageProblem: an epoch in which some or all ranks get nothing; says what to change.
    """
    _check_rank(order, deal, 0)
    num_samples, units = deal.num_samples, -(-deal.num_samples // deal.unit)
    if deal.policy == "drop" and num_samples < deal.batch_size:
        raise UsageProblem(
            f"an epoch of {num_samples} samples is dropped whole: a batch takes {deal.batch_size}",
            hint=f"take a global batch of at most {num_samples}, or --policy carry or pad",
        )
    if deal.policy == "uneven" and units < deal.world_size:
        raise UsageProblem(
            f"{deal.world_size - units} of {deal.world_size} ranks get no sample: an epoch has {num_samples}",
            hint=f"use at most {units} ranks, or --policy pad or carry",
        )
    notes = []
    if order.params.lanes % deal.world_size and order.params.mode in ("plw", "shard"):
        shared = gcd(order.params.lanes, deal.world_size)
        notes.append(
            f"{deal.world_size} ranks do not divide {order.params.lanes} lanes: "
            f"each lane is shared by {deal.world_size // shared} ranks, all of them read its shards"
        )
    if deal.batch_size % deal.round_size:
        notes.append(f"a batch of {deal.batch_size} gives ranks parts that differ by up to {deal.unit}")
    if deal.batch_size > num_samples:
        notes.append(f"a batch of {deal.batch_size} is longer than an epoch: it holds samples more than once")
    if deal.num_steps(deal.start // num_samples + 1) < num_workers:
        notes.append(f"an epoch has fewer steps than a rank has loader workers ({num_workers}): some idle")
    return tuple(notes)


def _check_rank(order: Order | MixedOrder, deal: Deal, rank: int) -> None:
    if (order.num_samples, order.params.unit) != (deal.num_samples, deal.unit):
        raise UsageProblem(
            f"the order has {order.num_samples} samples in units of {order.params.unit}, "
            f"the deal {deal.num_samples} in units of {deal.unit}"
        )
    if not 0 <= rank < deal.world_size:
        raise UsageProblem(f"there is no rank {rank} among {deal.world_size}", hint="ranks count from 0")


def _spans(deal: Deal, epoch: int, place: int) -> list[Span]:
    """The spans of an epoch from a place on; neighbours that deal alike are one."""
    found: list[Span] = []
    for span in deal.spans(epoch):
        first, shift = max(place, span.first), span.shift % deal.round_size
        if first < span.stop and found and found[-1].shift == shift:
            found[-1] = Span(found[-1].first, span.stop, shift)
        elif first < span.stop:
            found.append(Span(first, span.stop, shift))
    return found


def _by_sample(
    order: Order, deal: Deal, rank: int, epoch: int, span: Span, worker: int, num_workers: int
) -> Iterator[Segments]:
    size, base = _CHUNK * deal.world_size, epoch * order.num_samples
    for first in range(span.first, span.stop, size):
        dealt = deal.positions(rank, base + first, base + min(first + size, span.stop))
        chosen = dealt.is_valid & (dealt.steps % num_workers == worker)
        if chosen.any():
            yield _merged(order, epoch, dealt.positions[chosen] - base)


def _merged(order: Order, epoch: int, places: Int64Array) -> Segments:
    """Segments of single places of an epoch; neighbours in a shard become one row."""
    offsets = np.sort(order.run_offsets(epoch, places))
    starts = np.flatnonzero(np.diff(offsets, prepend=-2) != 1)
    return _cut(order, epoch, offsets[starts], np.diff(starts, append=len(offsets)))


def _cut(order: Order, epoch: int, offsets: Int64Array, lengths: Int64Array) -> Segments:
    """Segments of ranges of the run."""
    run = order.run(epoch)
    _, begins, counts = run.split(offsets, lengths)
    shards, rows = run.locate(begins)
    return Segments(shards, rows, counts, np.ones_like(counts))


def _strided(order: Order, deal: Deal, rank: int, epoch: int, span: Span) -> Iterator[Segments]:
    """Orders that keep samples in place: a rank owns every n-th unit of a shard, one row for each sample of a unit."""
    layout, unit = order.layout, order.params.unit
    shared = gcd(layout.num_lanes, deal.world_size)
    turns = deal.world_size // shared  # ranks that share a lane
    low, high = layout.filled(span.first), layout.filled(span.stop)
    parts = []
    for lane in range(rank % shared, layout.num_lanes, shared):
        if low[lane] == high[lane]:
            continue
        turn = (rank - lane) // shared * pow(layout.num_lanes // shared, -1, turns) % turns if turns > 1 else 0
        for inside in range(unit if turns > 1 else 1):
            progression = (turn * unit + inside, turns * unit if turns > 1 else 1)
            parts.append(_lane_progression(order, epoch, lane, (int(low[lane]), int(high[lane])), progression))
    if parts:
        place, offset, count, step = (np.concatenate(column) for column in zip(*parts, strict=True))
        used = np.argsort(place, kind="stable")
        if len(used) == 0:
            return
        shards, rows = order.run(epoch).locate(offset[used])
        yield Segments(shards, rows, count[used], step[used])


def _lane_progression(
    order: Order, epoch: int, lane: int, bounds: tuple[int, int], progression: tuple[int, int]
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """(place, offset in the run, count, step) a piece, of the indices start, start + step, ... of a lane in bounds."""
    pieces = cast("ShardPieces", order.pieces(epoch, lane))
    start, step = progression
    begin = np.maximum(pieces.begins[:-1], bounds[0])
    end = np.minimum(pieces.begins[1:], bounds[1])
    first = begin + (start - begin) % step
    kept = first < end
    first, end = first[kept], end[kept]
    count = -((first - end) // step)
    offset = pieces.to_lane(first) + order.layout.starts[lane]
    return order.layout.join(lane, first), offset, count, np.where(count > 1, step, 1)


def _by_piece(order: Order, deal: Deal, rank: int, epoch: int, span: Span) -> Iterator[Segments]:
    """Lanes of one rank each: pieces by window; the cut windows at both ends sample by sample."""
    layout = order.layout
    low, high = layout.filled(span.first), layout.filled(span.stop)
    lanes = [lane for lane in range(rank, layout.num_lanes, deal.world_size) if low[lane] < high[lane]]
    whole = {}  # lane -> its windows that lie in the span
    tails = []
    for lane in lanes:
        whole[lane], heads, tail = _windows_inside(order.pieces(epoch, lane), int(low[lane]), int(high[lane]))
        tails.append((lane, tail))
        if len(heads):
            yield _merged(order, epoch, layout.join(lane, np.arange(heads.start, heads.stop, dtype=np.int64)))
    yield from _whole_windows(order, epoch, whole)
    for lane, tail in tails:
        if len(tail):
            yield _merged(order, epoch, layout.join(lane, np.arange(tail.start, tail.stop, dtype=np.int64)))


def _windows_inside(pieces: Pieces, low: int, high: int) -> tuple[range, range, range]:
    """(whole windows, indices before them, indices after them) of the indices low..high-1 of a lane."""
    first, last = pieces.window_of(np.array([low, high - 1], np.int64)).tolist()
    begin, length = pieces.window_extent(first)
    head_end = low if begin == low else begin + length
    first += begin != low
    begin, length = pieces.window_extent(last)
    tail_begin = high if begin + length == high else begin
    last -= begin + length != high
    if head_end > tail_begin:  # both ends cut the same window
        return range(0), range(low, high), range(0)
    return range(first, last + 1), range(low, head_end), range(tail_begin, high)


def _whole_windows(order: Order, epoch: int, whole: dict[int, range]) -> Iterator[Segments]:
    used = {lane: windows for lane, windows in whole.items() if len(windows)}
    if not used:
        return
    window = order.params.window
    block = max(1, _CHUNK // (window * len(used)))
    for begin in range(min(w.start for w in used.values()), max(w.stop for w in used.values()), block):
        parts = []
        for lane, windows in used.items():
            first, stop = max(windows.start, begin), min(windows.stop, begin + block)
            number, offset, length = order.pieces(epoch, lane).piece_ranges(first * window, stop * window)
            parts.append((number // window, offset + order.layout.starts[lane], length))
        numbers, offsets, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
        by_window = np.argsort(numbers, kind="stable")
        yield _cut(order, epoch, offsets[by_window], lengths[by_window])
