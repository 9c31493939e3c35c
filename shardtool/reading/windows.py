"""Samples out of longer reads: which of them one window takes, and how their parts become samples again. No IO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardtool import columns
from shardtool.formats import BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.index_file import ShardIndex

WINDOW_BYTES = 1 << 20  # of one sequential read; stays in the cache while its parts are sliced out


class Sample(NamedTuple):
    """One sample, whole."""

    key: bytes
    label: int | None
    parts: dict[str, bytes]  # in the order of the shard; names as in the manifest


def joined(index: ShardIndex, first: int, last: int, payloads: list[bytes]) -> Iterator[Sample]:
    """Samples [first, last) from the payloads of all their parts, in the order of the index."""
    low, high = int(index.part_start[first]), int(index.part_start[last])
    names = shown_names(index.part_names.slice(low, high - low))
    keys = columns.to_list(index.keys.slice(first, last - first))
    labels = [None] * len(keys) if index.labels is None else index.labels[first:last].tolist()
    bounds = (index.part_start[first : last + 1] - low).tolist()
    for key, label, a, b in zip(keys, labels, bounds[:-1], bounds[1:], strict=True):
        yield Sample(key, label, dict(zip(names[a:b], payloads[a:b], strict=True)))


def windows(index: ShardIndex, start: int, stop: int, window_bytes: int = WINDOW_BYTES) -> Iterator[tuple[int, int]]:
    """(first, end) of runs of samples that lie in at most `window_bytes`, or of one sample that is larger."""
    if index.addressing != BYTES:
        yield from _payload_windows(index, start, stop, window_bytes)
        return
    ends = index.offset + index.num_bytes
    while start < stop:
        limit = int(index.offset[start]) + window_bytes
        last = int(np.searchsorted(ends, np.uint64(limit), side="right"))
        last = min(max(last, start + 1), stop)
        yield start, last
        start = last


def _payload_windows(index: ShardIndex, start: int, stop: int, window_bytes: int) -> Iterator[tuple[int, int]]:
    """As `windows`, by the bytes of the parts, where samples are no runs of bytes."""
    ends = np.concatenate([[0], np.cumsum(index.part_bytes, dtype=np.int64)])[index.part_start]
    while start < stop:
        last = int(np.searchsorted(ends, ends[start] + window_bytes, side="right")) - 1
        last = min(max(last, start + 1), stop)
        yield start, last
        start = last


def shown_names(names: Any) -> list[str]:
    """Part names as text."""
    encoded = names.dictionary_encode()
    shown = [name.decode("utf-8", "backslashreplace") for name in columns.to_list(encoded.dictionary)]
    return [shown[code] for code in encoded.indices.to_numpy().tolist()]
