"""Which requests bring the parts of one output shard: batches of parts, near ones of an object by one range. No IO.

    sizes --batch_bounds--> batches in output order --runs_of--> ranges of objects

A batch is all that is held at once, so that within it parts may come in the order of their objects. A request costs
some 0.2 ms of CPU, as much as 256 KiB of payload, and a place among those in flight: bytes between two parts are read
for nothing where they are fewer than MAX_GAP.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from shardtool.model import Int64Array

BATCH_BYTES = 64 << 20
RUN_BYTES = 8 << 20  # of one request; a larger part comes in pieces of this size
MAX_GAP = 64 << 10


class Run(NamedTuple):
    """A range of an object, and the parts that lie in it."""

    root: int
    begin: int
    end: int
    parts: list[int]


def batch_bounds(sizes: Int64Array, *, batch_bytes: int = BATCH_BYTES, large_bytes: int = RUN_BYTES) -> list[int]:
    """First part of each batch and, last, the number of parts; a part above `large_bytes` is a batch of its own."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    large = np.flatnonzero(sizes > large_bytes)
    stops = np.unique(np.concatenate([[0], large, large + 1, [len(sizes)]])).tolist()
    bounds = []
    for begin, end in pairwise(stops):
        while begin < end:
            bounds.append(begin)
            cut = int(np.searchsorted(ends, ends[begin] + batch_bytes, side="right")) - 1
            begin = min(max(cut, begin + 1), end)
    return [*bounds, len(sizes)]


def runs_of(parts: Int64Array, roots: Any, offsets: Int64Array, sizes: Int64Array) -> list[Run]:
    """Ranges that hold the given parts, in the order of their objects.

    Args:
        parts: numbers of parts that are not empty, int64[n]; none above RUN_BYTES.
        roots, offsets, sizes: where each part of the shard lies.
    """
    if len(parts) == 0:
        return []
    order = parts[np.lexsort((offsets[parts], roots[parts]))]
    root, begin = roots[order], offsets[order].astype(np.int64)
    end = begin + sizes[order]
    rank = np.concatenate([[0], np.cumsum(root[1:] != root[:-1])])
    shift = rank * (int(end.max()) + MAX_GAP + 1)  # one line for all objects, far enough apart
    reached = np.maximum.accumulate(end + shift)
    cuts = np.flatnonzero(begin[1:] + shift[1:] - reached[:-1] > MAX_GAP) + 1
    edges = [0, *cuts.tolist(), len(order)]
    begins, ends, numbers = begin.tolist(), end.tolist(), order.tolist()
    return [
        run
        for first, last in pairwise(edges)
        for run in _pieces(int(root[first]), begins[first:last], ends[first:last], numbers[first:last])
    ]


def _pieces(root: int, begins: list[int], ends: list[int], parts: list[int]) -> Iterator[Run]:
    """One run, or several where it would be longer than RUN_BYTES."""
    first, stop = 0, ends[0]
    for at in range(1, len(parts)):
        if max(stop, ends[at]) - begins[first] > RUN_BYTES:
            yield Run(root, begins[first], stop, parts[first:at])
            first, stop = at, ends[at]
        stop = max(stop, ends[at])
    yield Run(root, begins[first], stop, parts[first:])
