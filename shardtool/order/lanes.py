"""Lanes, and the pieces inside one lane: arithmetic between a place in a lane and a place in the run of shards.

A lane is a contiguous range of the run (all samples, shard after shard, in run order). Two kinds of pieces cut it:
ranges of a fixed number of samples, rotated and permuted every epoch, and what the lane holds of each shard.
In: counts and permutations. Out: frozen tables with vectorised maps and their inverses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.model import Int64Array
    from shardtool.order.permute import Permutation

__all__ = ["FixedPieces", "LaneLayout", "Pieces", "ShardPieces", "grouped", "lane_slots"]


def lane_slots(radices: tuple[int, ...]) -> Int64Array:
    """int64[lanes]: the slot of each lane in the run: its mixed-radix digits reversed.

    Lanes that agree modulo the first radices, those of one node, get neighbouring slots.
    """
    lanes = int(np.prod(radices, dtype=np.int64))
    rest, slots = np.arange(lanes, dtype=np.int64), np.zeros(lanes, np.int64)
    for radix in radices:
        slots = slots * radix + rest % radix
        rest //= radix
    return slots


@dataclass(frozen=True, eq=False)
class LaneLayout:
    """Which stream positions of an epoch belong to which lane, and where each lane lies in the run."""

    num_samples: int
    unit: int
    radices: tuple[int, ...]

    @cached_property
    def num_lanes(self) -> int:
        """Lanes, used or empty."""
        return int(np.prod(self.radices, dtype=np.int64))

    @cached_property
    def lengths(self) -> Int64Array:
        """int64[lanes]: samples of each lane; they differ by at most one unit."""
        return self.filled(self.num_samples)

    @cached_property
    def _lane_of_slot(self) -> Int64Array:
        return np.argsort(lane_slots(self.radices))

    @cached_property
    def _edges(self) -> Int64Array:
        return _edges_of(self.lengths[self._lane_of_slot])

    @cached_property
    def starts(self) -> Int64Array:
        """int64[lanes]: offset of each lane in the run."""
        starts = np.empty(self.num_lanes, np.int64)
        starts[self._lane_of_slot] = self._edges[:-1]
        return starts

    def filled(self, place: int) -> Int64Array:
        """int64[lanes]: samples of each lane among the first `place` positions of an epoch."""
        chunk, rest = divmod(place, self.unit)
        lane = np.arange(self.num_lanes, dtype=np.int64)
        out: Int64Array = (chunk - lane + self.num_lanes - 1) // self.num_lanes * self.unit
        out[chunk % self.num_lanes] += rest
        return out

    def split(self, places: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(lane, index in the lane) of positions of an epoch, int64[n] each."""
        if self.unit == 1:
            index, lane = np.divmod(places, self.num_lanes)
            return lane, index
        chunk, rest = np.divmod(places, self.unit)
        index, lane = np.divmod(chunk, self.num_lanes)
        index = index * self.unit + rest
        return lane, index

    def join(self, lane: Int64Array | int, index: Int64Array) -> Int64Array:
        """int64[n]: positions of an epoch, from lanes and indices in them; the inverse of `split`."""
        chunk = index // self.unit
        return index + (chunk * (self.num_lanes - 1) + lane) * self.unit

    def lane_at(self, run: Int64Array) -> Int64Array:
        """int64[n]: the lane that owns each offset in the run."""
        return self._lane_of_slot[np.searchsorted(self._edges, run, side="right") - 1]


@dataclass(frozen=True, eq=False)
class FixedPieces:
    """A lane cut into pieces of `piece` samples; a shorter last piece stays last, the rotation moves it about."""

    length: int  # samples of the lane
    piece: int
    window: int  # pieces
    order: Permutation  # of the full pieces
    rotation: int  # 0 .. length - 1

    def window_of(self, index: Int64Array) -> Int64Array:
        """int64[n]: the window of each index in the lane."""
        return index // (self.window * self.piece)

    def window_extent(self, window: int) -> tuple[int, int]:
        """(first index, samples) of a window."""
        first = window * self.window * self.piece
        return first, min(self.window * self.piece, self.length - first)

    def to_lane(self, index: Int64Array) -> Int64Array:
        """int64[n]: offsets in the lane as it lies in the run."""
        return self._move(index, is_inverse=False)

    def from_lane(self, offset: Int64Array) -> Int64Array:
        """int64[n]: the inverse of `to_lane`."""
        return self._move(offset, is_inverse=True)

    def begins(self, first: int, stop: int) -> Int64Array:
        """int64[n]: where pieces first..stop-1 begin, as many as there are, before the lane is wrapped at its end."""
        number = np.arange(first, min(stop, -(-self.length // self.piece)), dtype=np.int64)
        is_full = number < self.order.num_elements
        number[is_full] = self.order.forward(number[is_full])
        return number * self.piece + self.rotation

    def piece_ranges(self, first: int, stop: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """(number, offset in the lane, length) of pieces first..stop-1; two where the lane's end cuts one."""
        number = np.arange(first, min(stop, -(-self.length // self.piece)), dtype=np.int64)
        starts = self.to_lane(number * self.piece)
        lengths = np.minimum(self.piece, self.length - number * self.piece)
        over = np.maximum(starts + lengths - self.length, 0)
        cut = np.flatnonzero(over)
        starts = np.insert(starts, cut + 1, 0)
        return np.insert(number, cut + 1, number[cut]), starts, np.insert(lengths - over, cut + 1, over[cut])

    def _move(self, places: Int64Array, *, is_inverse: bool) -> Int64Array:
        if is_inverse:
            places = (places - self.rotation) % self.length
        slot = places // self.piece
        inside = places - slot * self.piece
        tail = slot >= self.order.num_elements
        if tail.any():
            full = ~tail
            slot[full] = self._permute(slot[full], is_inverse)
        else:
            slot = self._permute(slot, is_inverse)
        out = slot * self.piece + inside
        return out if is_inverse else (out + self.rotation) % self.length

    def _permute(self, slot: Int64Array, is_inverse: bool) -> Int64Array:
        return self.order.inverse(slot) if is_inverse else self.order.forward(slot)


@dataclass(frozen=True, eq=False)
class ShardPieces:
    """A lane cut at shard boundaries; `edges` are those cuts, int64[pieces + 1], from 0 to the lane's length."""

    edges: Int64Array
    order: Permutation | None  # of the pieces; None keeps them as they lie
    window: int  # pieces

    @cached_property
    def slots(self) -> Int64Array:
        """int64[pieces]: the piece, counted as it lies in the run, that is read as number k."""
        plain = np.arange(len(self.edges) - 1, dtype=np.int64)
        return plain if self.order is None else self.order.forward(plain)

    @cached_property
    def begins(self) -> Int64Array:
        """int64[pieces + 1]: the index in the lane at which piece number k begins."""
        return _edges_of(np.diff(self.edges)[self.slots])

    @cached_property
    def _number_of_slot(self) -> Int64Array:
        return np.argsort(self.slots)

    def window_of(self, index: Int64Array) -> Int64Array:
        """int64[n]: the window of each index in the lane."""
        return (np.searchsorted(self.begins, index, side="right") - 1) // self.window

    def window_extent(self, window: int) -> tuple[int, int]:
        """(first index, samples) of a window."""
        last = min((window + 1) * self.window, len(self.begins) - 1)
        first = int(self.begins[window * self.window])
        return first, int(self.begins[last]) - first

    def to_lane(self, index: Int64Array) -> Int64Array:
        """int64[n]: offsets in the lane as it lies in the run."""
        number = np.searchsorted(self.begins, index, side="right") - 1
        return index - self.begins[number] + self.edges[self.slots[number]]

    def from_lane(self, offset: Int64Array) -> Int64Array:
        """int64[n]: the inverse of `to_lane`."""
        slot = np.searchsorted(self.edges, offset, side="right") - 1
        return offset - self.edges[slot] + self.begins[self._number_of_slot[slot]]

    def piece_ranges(self, first: int, stop: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """(number, offset in the lane, length) of pieces first..stop-1 in reading order."""
        slots = self.slots[first:stop]
        return (
            np.arange(first, first + len(slots), dtype=np.int64),
            self.edges[slots],
            self.edges[slots + 1] - self.edges[slots],
        )


Pieces: TypeAlias = FixedPieces | ShardPieces


def _edges_of(lengths: Int64Array) -> Int64Array:
    edges = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=edges[1:])
    return edges


def grouped(keys: Int64Array) -> Iterator[tuple[int, Int64Array | slice]]:
    """(key, rows that have it) for each distinct key of int64[n]; rows are a slice where keys already ascend."""
    if keys.size == 0:
        return
    steps = np.diff(keys)
    order = None
    if (steps < 0).any():
        # 16-bit keys sort by radix, several times faster than by comparison.
        small = keys.astype(np.int16) if keys.min() >= 0 and keys.max() < 1 << 15 else keys
        order = np.argsort(small, kind="stable")
        steps = np.diff(keys[order])
    bounds = [0, *(np.flatnonzero(steps) + 1).tolist(), keys.size]
    for begin, end in pairwise(bounds):
        rows = slice(begin, end) if order is None else order[begin:end]
        yield int(keys[rows][0]), rows
