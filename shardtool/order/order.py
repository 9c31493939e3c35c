"""The reading order: which sample stands at each position of the endless global stream, and the way back.

    order = Order(counts, OrderParams(seed=7, lanes=384, piece=80))
    shards, rows = order.locate(np.arange(position, position + 1024))

Position G is one integer: epoch, place = divmod(G, num_samples). Everything is computed from G, the sample counts of
the shards and the parameters; nothing is drawn, stored or carried along. Specified in docs/formats/order.md.
Memory: 24 bytes a shard, 8 more for the way back, caches of at most 16 and 64 MiB (twice that where both directions are
used), and the windows that are read, 2 bytes a sample: 128 MiB where one process reads thousands of lanes of tiny
samples, a few MiB of all that for one rank of many.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shardtool.errors import UsageProblem
from shardtool.order.frames import Frame, fits_frame
from shardtool.order.lanes import FixedPieces, LaneLayout, Pieces, ShardPieces, grouped
from shardtool.order.params import MAX_POSITION
from shardtool.order.permute import TABLE_LIMIT, Permutation, Purpose, derive_key

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from shardtool.model import Int64Array
    from shardtool.order.params import OrderParams

__all__ = ["Order", "Run"]

FRAMES = 2  # a batch may lie on the border of two windows
_WINDOW_CACHE = 1 << 22  # elements of 4 bytes, 8 where both directions are used
_PIECE_CACHE = 1 << 24
_SHARD_PIECE_COST = 8  # three columns of 8 bytes and a permutation
ENTRY_COST = 256  # of a cached object beside its elements, in elements of 4 bytes; measured about 1 KB


@dataclass(frozen=True, eq=False)
class Run:
    """All shards in a row: the line of samples that lanes are cut from."""

    shards: Int64Array  # int64[num_shards], shard at each place of the row
    edges: Int64Array  # int64[num_shards + 1], offset at which each begins

    @cached_property
    def _places(self) -> Int64Array:
        places = np.empty(len(self.shards), np.int64)
        places[self.shards] = np.arange(len(self.shards), dtype=np.int64)
        return places

    def locate(self, offsets: Int64Array, *, is_scattered: bool = False) -> tuple[Int64Array, Int64Array]:
        """(shard, row) at each offset, int64[n]. O(log num_shards) each."""
        if not is_scattered:
            place = np.searchsorted(self.edges, offsets, side="right") - 1
        else:  # scattered searches miss every cache: sorting first is 4 times faster at a million shards
            by_offset = np.argsort(offsets)
            place = np.empty_like(by_offset)
            place[by_offset] = np.searchsorted(self.edges, offsets[by_offset], side="right") - 1
        return self.shards[place], offsets - self.edges[place]

    def offsets(self, shards: Int64Array, rows: Int64Array) -> Int64Array:
        """int64[n]: the inverse of `locate`."""
        return self.edges[self._places[shards]] + rows

    def cuts(self, start: int, stop: int) -> Int64Array:
        """int64[n + 1]: the edges of what each shard has between two offsets, start and stop among them."""
        first = np.searchsorted(self.edges, start, side="right")
        last = np.searchsorted(self.edges, stop, side="left")
        edges: Int64Array = np.concatenate([[start], self.edges[first:last], [stop]])
        return edges[np.flatnonzero(np.diff(edges, prepend=-1))]  # an empty shard has none

    def split(self, starts: Int64Array, lengths: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Ranges of the row cut at shard boundaries: (number of the range, offset, length), no length 0."""
        first = np.searchsorted(self.edges, starts, side="right") - 1
        last = np.searchsorted(self.edges, starts + lengths, side="left")
        times = np.where(lengths > 0, last - first, 0)
        number = np.repeat(np.arange(len(starts), dtype=np.int64), times)
        nth = np.arange(len(number), dtype=np.int64) - np.repeat(np.cumsum(times) - times, times)
        place = first[number] + nth
        begin = np.maximum(self.edges[place], starts[number])
        end = np.minimum(self.edges[place + 1], (starts + lengths)[number])
        kept = end > begin
        return number[kept], begin[kept], (end - begin)[kept]


@dataclass(frozen=True, eq=False)
class Order:
    """One reading order over one data set.

    Args:
        counts: samples of each shard, int64[num_shards]; shards may be empty, the data set may not.
        params: see `OrderParams`; `choose_params` finds them.

    Raises:
        UsageProblem: no samples, or negative counts.
    """

    counts: Int64Array
    params: OrderParams

    def __post_init__(self) -> None:
        counts = np.array(self.counts, np.int64).reshape(-1)
        if counts.size and counts.min() < 0:
            raise UsageProblem(f"shard {int(counts.argmin())} has {int(counts.min())} samples")
        if counts.sum() < 1:
            raise UsageProblem("the data set has no samples to put in order")
        counts.flags.writeable = False
        object.__setattr__(self, "counts", counts)

    @cached_property
    def num_samples(self) -> int:
        """Samples of one epoch."""
        return int(self.counts.sum())

    @cached_property
    def _windows(self) -> _Cache:
        return _Cache(_WINDOW_CACHE)

    @cached_property
    def _lanes(self) -> _Cache:
        return _Cache(_PIECE_CACHE)

    @cached_property
    def _frames(self) -> _Cache:
        return _Cache(FRAMES * (1 + ENTRY_COST))

    @cached_property
    def _runs(self) -> _Cache:
        return _Cache(1)

    def __reduce__(self) -> tuple[Any, ...]:
        """Only what defines the order travels to loader workers, not the caches."""
        return Order, (self.counts, self.params)

    @cached_property
    def layout(self) -> LaneLayout:
        """Where the lanes lie."""
        return LaneLayout(self.num_samples, self.params.unit, self.params.radices)

    def run(self, epoch: int) -> Run:
        """The shards of an epoch in run order; the same for all epochs unless locality is `redraw`."""
        drawn = epoch if self.params.locality == "redraw" else 0
        run: Run = self._runs.get(drawn if self.params.shuffles_shards else 0, lambda: self._make_run(drawn), 1)
        return run

    def locate(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(shard, row) of the sample at each position of the stream, int64[n] each; `row` counts from 0 in its shard.

        Over 2 million positions a second and core where they come in runs of a few thousand.
        """
        epochs, places = np.divmod(np.asarray(positions, np.int64), self.num_samples)
        shards, rows = np.empty_like(places), np.empty_like(places)
        for epoch, chosen in grouped(epochs):
            offsets = self.run_offsets(epoch, places[chosen])
            shards[chosen], rows[chosen] = self.run(epoch).locate(
                offsets, is_scattered=self.params.mode in ("plw", "full")
            )
        return shards, rows

    def at(self, position: int) -> tuple[int, int]:
        """(shard, row) of the sample at one position."""
        shards, rows = self.locate(np.array([position], np.int64))
        return int(shards[0]), int(rows[0])

    def positions(self, epoch: int, shards: Int64Array, rows: Int64Array) -> Int64Array:
        """int64[n]: the position in the stream at which an epoch reads each (shard, row); the inverse of `locate`.

        Raises:
            UsageProblem: a shard or row that does not exist, or an epoch beyond position 2^62.
        """
        if not 0 <= epoch * self.num_samples <= MAX_POSITION:
            raise UsageProblem(f"epoch {epoch:,} lies beyond position 2^62", hint="epochs count from 0")
        shards, rows = np.asarray(shards, np.int64), np.asarray(rows, np.int64)
        known = (shards >= 0) & (shards < len(self.counts)) & (rows >= 0)
        known[known] = rows[known] < self.counts[shards[known]]
        if not known.all():
            bad = int(np.flatnonzero(~known)[0])
            raise UsageProblem(f"there is no sample {int(rows[bad])} in shard {int(shards[bad])}")
        return epoch * self.num_samples + self._places(epoch, self.run(epoch).offsets(shards, rows))

    def where(self, epoch: int, shard: int, row: int) -> int:
        """The position in the stream at which an epoch reads one sample."""
        return int(self.positions(epoch, np.array([shard], np.int64), np.array([row], np.int64))[0])

    def run_offsets(self, epoch: int, places: Int64Array) -> Int64Array:
        """int64[n]: offsets in `run(epoch)` of places (0..num_samples-1) of an epoch."""
        if self.params.mode == "none":
            return places
        if self.params.mode == "full":
            return self._full(epoch).forward(places)
        lanes, index = self.layout.split(places)
        out = np.empty_like(index)
        if fits_frame(self.params, min(self.layout.num_lanes, places.size)):
            for window, rows in grouped(index // (self.params.window * int(self.params.piece))):
                out[rows] = self._frame(epoch, window).offsets(lanes[rows], index[rows])
            return out
        for lane, rows in grouped(lanes):
            pieces = self.pieces(epoch, lane)
            shuffled = self._shuffle(pieces, epoch, lane, index[rows], is_inverse=False)
            out[rows] = pieces.to_lane(shuffled) + self.layout.starts[lane]
        return out

    def pieces(self, epoch: int, lane: int) -> Pieces:
        """How an epoch cuts and permutes one lane that is not empty."""
        make = self._fixed_pieces if self.params.has_fixed_pieces else self._shard_pieces
        length = int(self.layout.lengths[lane])
        cost = _SHARD_PIECE_COST * (len(self.counts) // self.layout.num_lanes)
        if self.params.piece != "shard":
            cost = length // self.params.piece
        pieces: Pieces = self._lanes.get((epoch, lane), lambda: make(epoch, lane, length), 1 + cost)
        return pieces

    def _places(self, epoch: int, offsets: Int64Array) -> Int64Array:
        if self.params.mode == "none":
            return offsets
        if self.params.mode == "full":
            return self._full(epoch).inverse(offsets)
        lanes = self.layout.lane_at(offsets)
        out = np.empty_like(offsets)
        for lane, rows in grouped(lanes):
            pieces = self.pieces(epoch, lane)
            index = pieces.from_lane(offsets[rows] - self.layout.starts[lane])
            out[rows] = self.layout.join(lane, self._shuffle(pieces, epoch, lane, index, is_inverse=True))
        return out

    def _shuffle(self, pieces: Pieces, epoch: int, lane: int, index: Int64Array, *, is_inverse: bool) -> Int64Array:
        """Permute samples inside their windows; a window maps to itself, so both directions group alike."""
        if not self.params.has_windows:
            return index
        out = np.empty_like(index)
        for window, rows in grouped(pieces.window_of(index)):
            first, length = pieces.window_extent(window)
            order = self._window(epoch, lane, window, length)
            inside = index[rows] - first
            out[rows] = first + (order.inverse(inside) if is_inverse else order.forward(inside))
        return out

    def _frame(self, epoch: int, window: int) -> Frame:
        def make() -> Frame:
            return Frame(
                self.layout, self.params, epoch, window, lambda lane: cast("FixedPieces", self.pieces(epoch, lane))
            )

        frame: Frame = self._frames.get((epoch, window), make, 1)
        return frame

    def _window(self, epoch: int, lane: int, window: int, length: int) -> Permutation:
        key = derive_key(self.params.seed, Purpose.WINDOW, epoch, lane, window)
        order: Permutation = self._windows.get((epoch, lane, window), lambda: Permutation(length, key), _cost(length))
        return order

    def _full(self, epoch: int) -> Permutation:
        key = derive_key(self.params.seed, Purpose.FULL, epoch)
        size = self.num_samples
        order: Permutation = self._windows.get(epoch, lambda: Permutation(size, key), _cost(size))
        return order

    def _make_run(self, epoch: int) -> Run:
        shards = np.arange(len(self.counts), dtype=np.int64)
        if self.params.shuffles_shards:
            shards = Permutation(len(shards), derive_key(self.params.seed, Purpose.SHARDS, epoch)).forward(shards)
        edges = np.zeros(len(shards) + 1, np.int64)
        np.cumsum(self.counts[shards], out=edges[1:])
        return Run(shards, edges)

    def _fixed_pieces(self, epoch: int, lane: int, length: int) -> FixedPieces:
        piece = int(self.params.piece)
        order = Permutation(length // piece, derive_key(self.params.seed, Purpose.PIECES, epoch, lane))
        rotation = derive_key(self.params.seed, Purpose.ROTATION, epoch, lane) % length
        return FixedPieces(length, piece, self.params.window, order, rotation)

    def _shard_pieces(self, epoch: int, lane: int, length: int) -> ShardPieces:
        start = int(self.layout.starts[lane])
        edges = self.run(epoch).cuts(start, start + length) - start
        key = derive_key(self.params.seed, Purpose.PIECES, epoch, lane)
        order = Permutation(len(edges) - 1, key) if self.params.shuffles_shards else None
        return ShardPieces(edges, order, self.params.window)


class _Cache:
    """The things used last, as many as their costs sum up to `limit`; at least one. Safe between threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._items: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], Any], cost: int) -> Any:
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                return self._items[key][0]
            item = make()
            self._items[key] = item, cost + ENTRY_COST
            self._total += cost + ENTRY_COST
            while self._total > self._limit and len(self._items) > 1:
                self._total -= self._items.popitem(last=False)[1][1]
            return item


def _cost(length: int) -> int:
    return length if length <= TABLE_LIMIT else 1
