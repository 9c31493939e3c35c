"""Which pieces come next: of each lane, the window being read and the one behind it, told once.

    ahead = PiecesAhead(order, mean_bytes=110_000)
    shards, rows, counts = ahead.next_pieces(batch.positions)      for SampleReader.hint

Pure arithmetic. A piece is what one big sequential read takes (8 MiB by default), while its samples are used here and
there over many batches: reading it ahead turns those into reads of memory. Bound: two windows a lane of the rank, or
one, or none, whichever stays below `limit_bytes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.model import Int64Array
    from shardtool.order.order import Order

__all__ = ["PiecesAhead"]

LIMIT_BYTES = 1 << 30


class PiecesAhead:
    """Tells the pieces that a reader will need soon, each once.

    Args:
        order: the reading order.
        mean_bytes: bytes of a sample in its shard.
        num_lanes: lanes that this reader reads at a time: those of the rank.
        limit_bytes: told and not yet read, at most.
    """

    def __init__(self, order: Order, mean_bytes: float, num_lanes: int, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self._order, self._num_lanes = order, max(1, num_lanes)
        params = order.params
        self._epoch = -1
        self._told = np.zeros(params.lanes, np.int64)  # of each lane, the first window not told
        self._due = np.zeros(params.lanes, np.int64)  # the index in each lane at which to tell again
        self._quiet_until = 0  # position before which no lane is due
        lane_samples = order.num_samples / params.lanes
        shard_samples = order.num_samples / max(1, len(order.counts))
        piece = shard_samples if params.piece == "shard" else int(params.piece)
        window_bytes = min(lane_samples, piece * params.window) * mean_bytes * self._num_lanes
        fits = int(limit_bytes // max(1.0, window_bytes))
        self.num_windows = min(fits, 2) if params.mode in ("plw", "shard") else 0  # of each lane, told at a time

    def next_pieces(self, positions: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """(shards, first rows, counts) of pieces not told before, int64[n] each, from a batch of stream positions."""
        is_quiet = not self.num_windows or not positions.size or int(positions.max()) < self._quiet_until
        parts = [] if is_quiet else [part for part in self._new_pieces(positions) if part[0].size]
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
        shards, rows, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
        return shards, rows, counts

    def _new_pieces(self, positions: Int64Array) -> Iterator[tuple[Int64Array, Int64Array, Int64Array]]:
        # Positions ascend and lanes take turns, so the last ones are those farthest along their lanes.
        last = positions[-self._num_lanes * self._order.params.unit :]
        epochs, places = np.divmod(last, self._order.num_samples)
        lanes, index = self._order.layout.split(places)
        is_due = (index >= self._due[lanes]) | (epochs != self._epoch)
        for epoch, lane, at in zip(epochs[is_due].tolist(), lanes[is_due].tolist(), index[is_due], strict=True):
            yield from self._tell(epoch, lane, at)
        self._quiet_until = self._next_due(epochs, lanes)

    def _next_due(self, epochs: Int64Array, lanes: Int64Array) -> int:
        """The position before which none of these lanes is due; 0 where they are not all that are read."""
        if np.count_nonzero(np.bincount(lanes)) < self._num_lanes or (epochs != self._epoch).any():
            return 0
        places = self._order.layout.join(lanes, self._due[lanes])
        return self._epoch * self._order.num_samples + min(int(places.min()), self._order.num_samples)

    def _tell(self, epoch: int, lane: int, at: Int64Array) -> Iterator[tuple[Int64Array, Int64Array, Int64Array]]:
        if epoch != self._epoch:
            self._epoch = epoch
            self._told[:], self._due[:] = 0, 0
        pieces = self._order.pieces(epoch, lane)
        window = int(pieces.window_of(at.reshape(1))[0])
        self._due[lane] = sum(pieces.window_extent(window))  # the index that begins the next one
        for coming in range(max(window, int(self._told[lane])), window + self.num_windows):
            yield self._rows(epoch, lane, coming)
        self._told[lane] = window + self.num_windows

    def _rows(self, epoch: int, lane: int, window: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        order, size = self._order, self._order.params.window
        _, offsets, lengths = order.pieces(epoch, lane).piece_ranges(window * size, (window + 1) * size)
        run = order.run(epoch)
        _, begins, counts = run.split(offsets + order.layout.starts[lane], lengths)
        shards, rows = run.locate(begins)
        return shards, rows, counts
