"""Samples out of longer reads: which of them one window takes, and how their parts become samples again. No IO."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardtool import columns
from shardtool.formats import BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.index_file import ShardIndex

WINDOW_BYTES = 1 << 20  # of one sequential read; stays in the cache while its parts are sliced out
BLOCK_SAMPLES = 1 << 13  # in lists at a time: a megabyte or two


class Sample(NamedTuple):
    """One sample, whole."""

    key: bytes
    label: int | None
    parts: dict[str, bytes]  # in the order of the shard; names as in the manifest


@dataclass(frozen=True, eq=False)
class Block:
    """What an index says of some thousand samples, as lists: `first`, `first` + 1 and so on. `block_of` makes one."""

    first: int
    first_part: int
    keys: list[bytes]
    labels: Sequence[int | None]
    bounds: list[int]  # n + 1; parts of the samples, counted from first_part
    names: list[str]  # of each part

    def samples(self, first: int, last: int, payloads: list[bytes]) -> Iterator[Sample]:
        """Samples [first, last) of the block from the payloads of all their parts, in the order of the index."""
        low, high = first - self.first, last - self.first
        bounds, names, base = self.bounds[low : high + 1], self.names, self.bounds[low]
        parts = [dict(zip(names[a:b], payloads[a - base : b - base], strict=True)) for a, b in pairwise(bounds)]
        return map(Sample, self.keys[low:high], self.labels[low:high], parts)


def block_of(index: ShardIndex, first: int, last: int) -> Block:
    """The block of samples [first, last)."""
    low, high = int(index.part_start[first]), int(index.part_start[last])
    return Block(
        first=first,
        first_part=low,
        keys=columns.to_list(index.keys.slice(first, last - first)),
        labels=[None] * (last - first) if index.labels is None else index.labels[first:last].tolist(),
        bounds=(index.part_start[first : last + 1] - low).tolist(),
        names=_shown(index.part_names.slice(low, high - low)),
    )


def blocks(index: ShardIndex, start: int, stop: int) -> Iterator[Block]:
    """Samples [start, stop) in blocks of some thousand: arrow takes 0.2 ms for one, however small."""
    for first in range(start, stop, BLOCK_SAMPLES):
        yield block_of(index, first, min(first + BLOCK_SAMPLES, stop))


def windows(index: ShardIndex, start: int, stop: int, window_bytes: int = WINDOW_BYTES) -> Iterator[tuple[int, int]]:
    """(first, end) of runs of samples that lie in at most `window_bytes`, or of one sample that is larger."""
    if index.addressing != BYTES:
        yield from _payload_windows(index, start, stop, window_bytes)
        return
    ends = index.offset[start:stop] + index.num_bytes[start:stop]
    first = start
    while first < stop:
        limit = int(index.offset[first]) + window_bytes
        last = start + int(np.searchsorted(ends, np.uint64(limit), side="right"))
        last = max(last, first + 1)
        yield first, last
        first = last


def _payload_windows(index: ShardIndex, start: int, stop: int, window_bytes: int) -> Iterator[tuple[int, int]]:
    """As `windows`, by the bytes of the parts, where samples are no runs of bytes."""
    parts = index.part_start[start : stop + 1]
    sizes = index.part_bytes[int(parts[0]) : int(parts[-1])]
    ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])[parts - parts[0]]
    first = start
    while first < stop:
        last = start + int(np.searchsorted(ends, ends[first - start] + window_bytes, side="right")) - 1
        last = min(max(last, first + 1), stop)
        yield first, last
        first = last


def _shown(names: Any) -> list[str]:
    """Part names as text."""
    encoded = names.dictionary_encode()
    shown = [name.decode("utf-8", "backslashreplace") for name in columns.to_list(encoded.dictionary)]
    return [shown[code] for code in encoded.indices.to_numpy().tolist()]
