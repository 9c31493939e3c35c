"""Where the shuffled order is cut into shards: pure arithmetic on encoded sample sizes.

A shard is [bounds[k], bounds[k + 1]) of the order. The number of shards is the least for which contiguous cuts fit the
capacity; then the cuts move as near to equal bytes as the capacity allows. All sizes are bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import PlanError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.model import Int64Array


def cut_by_bytes(sizes: Int64Array, capacity: int, *, num_shards: int = 0) -> Int64Array:
    """int64[S + 1]: bounds of balanced shards of at most `capacity` bytes each.

    A sample larger than `capacity` counts as exactly `capacity`: it fills a shard of its own.

    Args:
        sizes: encoded bytes of each sample in order, int64[n], n >= 1.
        num_shards: wanted number; 0 takes the least that fits.

    Raises:
        PlanError: `num_shards` is below the least or above the number of samples.
    """
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.clip(sizes, 1, capacity, out=ends[1:])
    np.cumsum(ends, out=ends)
    least = _greedy(ends, capacity)
    wanted = num_shards or len(least) - 1
    if wanted < len(least) - 1:
        raise PlanError(
            f"{len(sizes):,} samples do not fit {wanted:,} shards of at most {capacity:,} bytes: "
            f"{len(least) - 1:,} are needed",
            hint=f"--shards {len(least) - 1}, or a larger --shard-size",
        )
    if wanted > len(sizes):
        raise PlanError(
            f"{wanted:,} shards for {len(sizes):,} samples would leave empty ones",
            hint=f"--shards {len(sizes)} or fewer",
        )
    return _balance(ends, capacity, wanted)


def cut_by_count(num_samples: int, samples_per_shard: int) -> Int64Array:
    """int64[S + 1]: `samples_per_shard` in every shard but the last, which has the rest."""
    return np.append(np.arange(0, num_samples, samples_per_shard), num_samples).astype(np.int64)


def cut_evenly(sizes: Int64Array, num_shards: int) -> Int64Array:
    """int64[num_shards + 1]: shards of nearly equal bytes, with no limit on them; each has a sample."""
    return cut_by_bytes(sizes, max(int(np.sum(np.maximum(sizes, 1))), 1), num_shards=num_shards)


def _greedy(ends: Int64Array, capacity: int) -> list[int]:
    """Bounds of shards filled one after another: no contiguous cut needs fewer."""
    bounds, last = [0], len(ends) - 1
    while bounds[-1] < last:
        bounds.append(_reach(ends, bounds[-1], capacity))
    return bounds


def _reach(ends: Int64Array, start: int, capacity: int) -> int:
    """The furthest stop for which samples [start, stop) fit."""
    return int(np.searchsorted(ends, ends[start] + capacity, side="right")) - 1


def _balance(ends: Int64Array, capacity: int, num_shards: int) -> Int64Array:
    """Each cut as near to its share of the bytes as the cuts before it and the samples after it allow."""
    num_samples, total = len(ends) - 1, int(ends[-1])
    earliest = _latest_starts(ends, capacity, num_shards)
    bounds = np.zeros(num_shards + 1, np.int64)
    bounds[-1] = num_samples
    for k in range(1, num_shards):
        share = total * k / num_shards
        cut = int(np.searchsorted(ends, share))
        if cut > 0 and share - ends[cut - 1] <= ends[min(cut, num_samples)] - share:
            cut -= 1
        previous = int(bounds[k - 1])
        low = max(int(earliest[k]), previous + 1)
        high = min(_reach(ends, previous, capacity), num_samples - (num_shards - k))
        bounds[k] = min(max(cut, low), high)
    return bounds


def _latest_starts(ends: Int64Array, capacity: int, num_shards: int) -> Int64Array:
    """int64[num_shards + 1]: the earliest bound k from which the shards k.. can still hold all that follows."""
    earliest = np.zeros(num_shards + 1, np.int64)
    earliest[-1] = len(ends) - 1
    for k in range(num_shards - 1, -1, -1):
        stop = earliest[k + 1]
        earliest[k] = np.searchsorted(ends, ends[stop] - capacity, side="left")
    return earliest


def apportion(count: int, shares: list[float]) -> list[int]:
    """Whole numbers that add up to `count`, as near to `shares` as possible: largest remainder, ties to the first."""
    total = sum(shares)
    exact = [count * share / total for share in shares]
    whole = [int(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (whole[i] - exact[i], i))
    for i in by_remainder[: count - sum(whole)]:
        whole[i] += 1
    return whole


def stratified_positions(labels: NDArray[np.int32], num_labels: int, tag: int = 0) -> NDArray[np.float64]:
    """float64[n]: a place in [0, 1) for each sample such that any interval holds the class mix of the whole.

    Sample i of the n_c of its class goes to (i + phase) / n_c; the phase differs from class to class, so that rare
    classes do not meet in one place. An interval of length x holds floor or ceil of x * n_c of class c.

    Args:
        labels: class of each sample in shuffled order, int32[n], >= 0.
        tag: another tag gives other phases.
    """
    counts = np.bincount(labels, minlength=num_labels)
    order = np.argsort(labels, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)])[:-1]
    rank = np.empty(len(labels), np.int64)
    rank[order] = np.arange(len(labels)) - starts[labels[order]]
    golden = 0.6180339887498949
    phase = np.modf((np.arange(num_labels) + 1 + tag) * golden)[0]
    positions: NDArray[np.float64] = (rank + phase[labels]) / counts[labels]
    return positions


def cut_stratified(
    positions: NDArray[np.float64], sizes: Int64Array, capacity: int, num_shards: int = 0, *, step: int = 1
) -> Int64Array:
    """int64[n]: the shard of each sample, every shard with the class mix of the whole within one sample a class.

    Shards are equal intervals of `positions`, a few more than the least where one would not fit; where a quarter more
    is not enough, or one would be empty, they are the least number of intervals that hold nearly equal bytes instead.
    The limit comes before the mix of classes, that before the balance. No shard is empty.

    Args:
        num_shards: 0 takes the least that fits.
        step: the number of shards is a multiple of this; 0 means that exactly `num_shards` are wanted.

    Raises:
        PlanError: the samples do not fit so many shards, or leave some empty.
    """
    order = np.argsort(positions, kind="stable")
    least = len(cut_by_bytes(sizes[order], capacity)) - 1
    first = num_shards if not step else -(-max(num_shards, least) // step) * step
    most = max(first, least * 5 // 4) if step else first
    count = first
    while least <= count <= min(most, len(sizes)):
        shard = np.minimum((positions * count).astype(np.int64), count - 1)
        counts = np.bincount(shard, minlength=count)
        loads = np.bincount(shard, weights=sizes, minlength=count)
        over = loads[(loads > capacity) & (counts > 1)]
        if len(over) == 0 and counts.all():
            return shard
        excess = float(over.max(initial=capacity)) / capacity - 1
        count += max(step, 1) * max(1, int(count * excess / 4 / max(step, 1)))
    bounds = cut_by_bytes(sizes[order], capacity, num_shards=first)
    shard = np.empty(len(sizes), np.int64)
    shard[order] = np.repeat(np.arange(first), np.diff(bounds))
    return shard
