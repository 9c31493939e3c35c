"""One window of many lanes at once: where its samples lie in the run, by tables with a row a lane.

The stream takes one lane after the other, so that all lanes of a reader stand in the same window. With their tables in
one array a batch is located by a dozen calls, however many lanes it is spread over: one rank that goes on with the
lanes of 64 has hundreds. In: the pieces of single lanes. Out: offsets in the run, those that `Order` gives lane by
lane. Memory: 2 bytes a sample of the window and 8 a piece, of the lanes asked for; rows are forgotten before samples
take more than 64 MiB.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from shardtool.order.permute import Purpose, derive_keys, hash_orders

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from shardtool.model import Int64Array
    from shardtool.order.lanes import FixedPieces, LaneLayout
    from shardtool.order.params import OrderParams

__all__ = ["Frame", "fits_frame"]

MAX_WIDTH = 1 << 16  # samples of a window, numbered in 16 bits
MAX_SAMPLES = 1 << 25  # of all rows: 64 MiB
_SORTED = 1 << 16  # hashes put in order at a time

Scalar = TypeVar("Scalar", bound=np.generic)


def fits_frame(params: OrderParams, num_lanes: int) -> bool:
    """Whether the windows of so many lanes fit into one frame."""
    if not params.has_fixed_pieces:
        return False
    width = params.window * int(params.piece)
    return width <= MAX_WIDTH and width * num_lanes <= MAX_SAMPLES


class Frame:
    """Window number `window` of the lanes of an epoch; a row is made when its lane is first asked for.

    Args:
        layout: where the lanes lie.
        params: with fixed pieces.
        epoch: of the order.
        window: 0-based.
        pieces_of: the pieces of a lane in that epoch.
    """

    def __init__(
        self,
        layout: LaneLayout,
        params: OrderParams,
        epoch: int,
        window: int,
        pieces_of: Callable[[int], FixedPieces],
    ) -> None:
        self._layout, self._params, self._epoch, self._window = layout, params, epoch, window
        self._pieces_of, self._lock = pieces_of, Lock()
        self._piece = int(params.piece)
        self._first = window * params.window * self._piece
        self._width = min(params.window * self._piece, int(layout.lengths.max()) - self._first)
        self._row_of = np.empty(layout.num_lanes, np.int32)
        self._forget()

    def offsets(self, lanes: Int64Array, index: Int64Array) -> Int64Array:
        """int64[n]: offsets in the run of places in lanes (int64[n] each), all of them in this window.

        Safe between threads.
        """
        with self._lock:
            rows = self._rows(lanes)
            slots = self._samples.reshape(-1).take(rows * self._width + (index - self._first)).astype(np.int64)
            pieces = slots // self._piece
            slots -= pieces * self._piece
            slots += self._begins.reshape(-1).take(rows * self._params.window + pieces)
            lengths = self._lengths[rows]
            np.subtract(slots, lengths, out=slots, where=slots >= lengths)  # the rotation goes round the lane
            slots += self._starts[rows]
        return slots

    def _rows(self, lanes: Int64Array) -> Int64Array:
        rows = self._row_of[lanes]
        if rows.min() < 0:
            missing = np.unique(lanes[rows < 0])
            if (self._used + missing.size) * self._width > MAX_SAMPLES:
                self._forget()
                missing = np.unique(lanes)
            self._add(missing)
            rows = self._row_of[lanes]
        return rows.astype(np.int64)

    def _forget(self) -> None:
        self._used = 0
        self._row_of.fill(-1)
        self._samples = np.empty((0, self._width), np.uint16)  # place in the window, as it lies in its pieces
        self._begins = np.empty((0, self._params.window), np.int64)  # of each piece in its lane, beyond the rotation
        self._lengths = np.empty(0, np.int64)
        self._starts = np.empty(0, np.int64)

    def _add(self, lanes: Int64Array) -> None:
        used, stop = self._used, self._used + lanes.size
        if stop > len(self._lengths):
            room = max(stop, min(2 * used, MAX_SAMPLES // self._width))
            self._samples, self._begins = _grown(self._samples, room), _grown(self._begins, room)
            self._lengths, self._starts = _grown(self._lengths, room), _grown(self._starts, room)
        self._lengths[used:stop] = self._layout.lengths[lanes]
        self._starts[used:stop] = self._layout.starts[lanes]
        self._shuffle(lanes, self._samples[used:stop], self._lengths[used:stop])
        number = self._window * self._params.window
        for row, lane in enumerate(lanes.tolist(), used):
            begins = self._pieces_of(lane).begins(number, number + self._params.window)
            self._begins[row, : begins.size] = begins
        self._row_of[lanes] = np.arange(used, stop, dtype=np.int32)
        self._used = stop

    def _shuffle(self, lanes: Int64Array, samples: NDArray[np.uint16], lengths: Int64Array) -> None:
        """Fill the rows of `samples`."""
        keys = derive_keys(self._params.seed, Purpose.WINDOW, self._epoch, lanes, self._window)
        sizes = np.minimum(lengths - self._first, self._width)
        for size in np.unique(sizes).tolist():  # at the end of lanes some are a unit shorter
            rows, at_a_time = np.flatnonzero(sizes == size), max(1, _SORTED // size)
            for begin in range(0, rows.size, at_a_time):
                some = rows[begin : begin + at_a_time]
                samples[some, :size] = hash_orders(size, keys[some])


def _grown(array: NDArray[Scalar], num_rows: int) -> NDArray[Scalar]:
    out = np.empty((num_rows, *array.shape[1:]), array.dtype)
    out[: len(array)] = array
    return out
