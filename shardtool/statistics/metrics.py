"""Shard columns -> the figures of `shardtool/stats/1`, each beside what a uniform shuffle would give. Touches no disk.

    ShardColumns, in manifest order --StatsAccumulator--> Stats --document()--> JSON

Definitions and measured examples: docs/internals/shuffle-quality.md. Memory: 128 KiB for all sizes, about 40 bytes a
shard, 16 bytes a (shard, label) pair that occurs, and the ranks while order is judged: 8 bytes a sample, with several
splits 25.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardtool.model import PartTotals
from shardtool.statistics.deviation import (
    Deviation,
    Histogram,
    Split,
    add_histograms,
    by_split,
    deviation,
    expected_kinds,
    histogram,
    over_sizes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardtool.model import BinaryArray, Int32Array, Int64Array

Float64Array: TypeAlias = NDArray[np.float64]

SCHEMA = "shardtool/stats/1"
NUM_BLOCKS = 64  # equal stretches of the source; a shard of 1,000 shuffled samples then shows a distance near 0.1
_MANTISSA_BITS = 8  # sizes are counted in 256 steps an octave: quantiles are right within 0.2 %
_PAIRS = 1 << 20  # pairs whose distance is held at once


@dataclass(frozen=True)
class ShardColumns:
    """What is counted of one shard. Arrays are in the shard's order.

    Args:
        index: 0-based place in the manifest.
        split: split name; order and labels are judged inside a split.
        file_bytes: all bytes of the shard's files.
        payload_bytes: bytes of its parts alone.
        sample_bytes: payload bytes of each sample, int64[n].
        part_names: names that `part_ids` point into.
        part_ids: int[num_parts], one row a part present, in any order.
        part_sizes: bytes of those parts, int64[num_parts].
        labels: int32[n], -1 where a sample has none; None where the data set has no labels.
        keys: binary[n]; needed to rank the samples and to name the largest one.
    """

    index: int
    split: str
    file_bytes: int
    payload_bytes: int
    sample_bytes: Int64Array
    part_names: Sequence[str] = ()
    part_ids: NDArray[Any] | None = None
    part_sizes: Int64Array | None = None
    labels: Int32Array | None = None
    keys: BinaryArray | None = None


@dataclass(frozen=True)
class Spread:
    """Range of a figure over the shards."""

    min: float
    median: float
    max: float


@dataclass(frozen=True)
class SampleSizes:
    """Payload bytes of the samples; min, max and mean are exact, quantiles within 0.2 %.

    `log2_counts[i]` samples have 2^(log2_first + i) <= bytes < 2^(log2_first + i + 1); empty samples are in `zero`.
    """

    min: int
    p50: int
    p95: int
    p99: int
    max: int
    mean: float
    zero: int
    log2_first: int
    log2_counts: tuple[int, ...]
    largest_shard: int  # -1 without samples
    largest_key: bytes | None


@dataclass(frozen=True)
class Labels:
    """Samples a label, and how many labels a shard holds (median) beside the expectation of a uniform shuffle."""

    counts: dict[str, int]
    unlabelled: int
    per_shard: float
    per_shard_expected: float


@dataclass(frozen=True)
class Shuffle:
    """How far the order is from a uniform shuffle; None where it cannot be told.

    `neighbour_p01` is the first percentile of `neighbour_distance` under a uniform shuffle, whose mean is 1.
    """

    neighbour_distance: float | None
    neighbour_p01: float | None
    source_block_tv: Deviation | None
    label_tv: Deviation | None

    @property
    def is_order_random(self) -> bool:
        """True unless the distance falls short of 1 by twice as much as in 1 of 100 uniform shuffles (4.7 sigma)."""
        if self.neighbour_distance is None or self.neighbour_p01 is None:
            return True
        return 1 - self.neighbour_distance <= 2 * (1 - self.neighbour_p01)


@dataclass(frozen=True, eq=False)
class Stats:
    """The figures of a data set. `fill` is relative to `shard_size`: the wanted one, or the largest shard's."""

    samples: int
    shards: int
    bytes: int
    payload_bytes: int
    shard_size: int
    is_size_given: bool
    fill: Spread
    samples_per_shard: Spread
    sample_bytes: SampleSizes
    parts: dict[str, PartTotals]
    labels: Labels | None
    shuffle: Shuffle
    shard_bytes: Int64Array  # int64[shards], manifest order
    shard_samples: Int64Array  # int64[shards]

    @property
    def overhead_bytes(self) -> int:
        """Container bytes that are not payload; negative where compression gains more than the container costs."""
        return self.bytes - self.payload_bytes

    def document(self) -> dict[str, Any]:
        """The JSON document `shardtool/stats/1`."""
        totals = {name: getattr(self, name) for name in ("samples", "shards", "bytes", "payload_bytes")}
        parts = {
            name: {"samples": part.samples, "bytes": part.num_bytes, "min": part.smallest, "max": part.largest}
            for name, part in self.parts.items()
        }
        return {
            "schema": SCHEMA,
            **totals,
            "overhead_bytes": self.overhead_bytes,
            "shard_size": self.shard_size if self.is_size_given else None,
            "fill": _plain(self.fill),
            "samples_per_shard": _plain(self.samples_per_shard),
            "sample_bytes": _plain(self.sample_bytes),
            "parts": parts,
            "labels": _plain(self.labels),
            "shuffle": _plain(self.shuffle),
        }


def measure(
    shards: Iterable[ShardColumns],
    *,
    shard_size: int | None = None,
    ranks: Int64Array | None = None,
    label_names: Sequence[str] = (),
) -> Stats:
    """The figures of a data set whose shards come one at a time, in manifest order.

    Args:
        shard_size: wanted bytes of a shard file; None where the cut was by count.
        ranks: source position of each sample, int64[num_samples] over all shards; None takes byte order of the keys,
            and leaves the order unjudged where a shard comes without keys.
        label_names: names of the labels; a label without one is named by its number.
    """
    total = StatsAccumulator()
    for shard in shards:
        total.add(shard)
    return total.finish(shard_size=shard_size, ranks=ranks, label_names=label_names)


class StatsAccumulator:
    """Takes shards in manifest order, one at a time, and keeps no column of them but keys that were handed in."""

    def __init__(self) -> None:
        self._shards: list[tuple[int, str, int, int]] = []  # index, split, file bytes, samples
        self._payload_bytes = 0
        self._sizes = _SizeCounter()
        self._parts: dict[str, PartTotals] = {}
        self._labels: list[Histogram | None] = []
        self._unlabelled = 0
        self._keys: list[BinaryArray] = []

    def add(self, shard: ShardColumns) -> None:
        """Count one shard.

        Raises:
            ValueError: columns of unequal length.
        """
        num_samples = len(shard.sample_bytes)
        for column in (shard.labels, shard.keys):
            if column is not None and len(column) != num_samples:
                raise ValueError(f"shard {shard.index}: columns of {num_samples} and {len(column)} samples")
        self._shards.append((shard.index, shard.split, shard.file_bytes, num_samples))
        self._payload_bytes += shard.payload_bytes
        self._sizes.add(shard)
        self._add_parts(shard)
        self._add_labels(shard)
        if shard.keys is not None:
            self._keys.append(shard.keys)

    def finish(
        self, *, shard_size: int | None = None, ranks: Int64Array | None = None, label_names: Sequence[str] = ()
    ) -> Stats:
        """The figures of all shards so far; arguments as for `measure`."""
        file_bytes = np.array([row[2] for row in self._shards], np.int64)
        samples = np.array([row[3] for row in self._shards], np.int64)
        wanted = shard_size or int(file_bytes.max(initial=0))
        labels = by_split([row[1] for row in self._shards], self._labels)
        return Stats(
            samples=int(samples.sum()),
            shards=len(samples),
            bytes=int(file_bytes.sum()),
            payload_bytes=self._payload_bytes,
            shard_size=wanted,
            is_size_given=bool(shard_size),
            fill=_spread(file_bytes / max(wanted, 1)),
            samples_per_shard=_spread(samples),
            sample_bytes=self._sizes.finish(),
            parts=dict(sorted(self._parts.items())),
            labels=self._finish_labels(labels, label_names),
            shuffle=self._finish_shuffle(samples, self._ranks(ranks, int(samples.sum())), labels),
            shard_bytes=file_bytes,
            shard_samples=samples,
        )

    def _add_parts(self, shard: ShardColumns) -> None:
        if shard.part_ids is None or shard.part_sizes is None:
            return
        for number, name in enumerate(shard.part_names):
            sizes = shard.part_sizes[shard.part_ids == number]
            if len(sizes):
                found = PartTotals(len(sizes), int(sizes.sum()), int(sizes.min()), int(sizes.max()))
                before = self._parts.get(name)
                self._parts[name] = found if before is None else _add_totals(before, found)

    def _add_labels(self, shard: ShardColumns) -> None:
        known = None if shard.labels is None else shard.labels[shard.labels >= 0]
        self._labels.append(None if known is None else histogram(known))
        self._unlabelled += 0 if known is None else len(shard.sample_bytes) - len(known)

    def _ranks(self, ranks: Int64Array | None, num_samples: int) -> Int64Array | None:
        if ranks is None and len(self._keys) == len(self._shards):
            ranks = source_ranks(self._keys)
        if ranks is not None and len(ranks) != num_samples:
            raise ValueError(f"{len(ranks)} source ranks for {num_samples} samples")
        return ranks

    def _finish_labels(self, splits: list[Split], label_names: Sequence[str]) -> Labels | None:
        if not splits:
            return None
        total = add_histograms([split.whole for split in splits])
        numbers = total.values.tolist()
        names = (label_names[value] if value < len(label_names) else str(value) for value in numbers)
        return Labels(
            counts=dict(zip(names, total.counts.tolist(), strict=True)),
            unlabelled=self._unlabelled,
            per_shard=float(np.median([len(part.values) for split in splits for part in split.parts])),
            per_shard_expected=float(np.median(over_sizes(splits, expected_kinds))),
        )

    def _finish_shuffle(self, samples: Int64Array, ranks: Int64Array | None, labels: list[Split]) -> Shuffle:
        numbers, splits = [row[0] for row in self._shards], [row[1] for row in self._shards]
        label_tv = deviation(labels, numbers)
        if ranks is None:
            return Shuffle(None, None, None, label_tv)
        distance, num_pairs, blocks = _judge_order(samples, splits, ranks)
        p01 = max(0.0, 1 - 2.326 * (0.4 / num_pairs) ** 0.5) if num_pairs else None  # see neighbour_distance
        return Shuffle(distance, p01, deviation(by_split(splits, blocks), numbers), label_tv)


def source_ranks(keys: BinaryArray | Sequence[BinaryArray]) -> Int64Array:
    """Place of each key when all are sorted by bytes, int64[num_samples]; equal keys in the order given.

    Args:
        keys: a pyarrow binary array, or one a shard, in the data set's order.
    """
    chunks = [keys] if isinstance(keys, pa.Array | pa.ChunkedArray) else list(keys)
    flat = [part for chunk in chunks for part in (chunk.chunks if isinstance(chunk, pa.ChunkedArray) else [chunk])]
    table = pa.chunked_array([part.cast(pa.large_binary()) for part in flat], pa.large_binary())
    order = pc.sort_indices(table).to_numpy()
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order), dtype=np.int64)
    return ranks


def neighbour_distance(ranks: Int64Array) -> float | None:
    """Mean |source distance| of consecutive samples / ((N + 1) / 3): 1 for a uniform shuffle, 0 for source order.

    (N + 1) / 3 is the exact mean for a uniform permutation of N; the ratio then has a standard deviation of
    sqrt(0.4 / N). None below two samples.

    Args:
        ranks: a permutation of 0..N-1, int64[N]: source position of each sample, in the data set's order.
    """
    if len(ranks) < 2:
        return None
    total = 0
    for start in range(0, len(ranks) - 1, _PAIRS):
        total += int(np.abs(np.diff(ranks[start : start + _PAIRS + 1])).sum())
    return total / (len(ranks) - 1) / ((len(ranks) + 1) / 3)


def key_document(key: bytes) -> dict[str, str]:
    """A key for JSON: `key`, escaped where it is not UTF-8, and then `key_b64` with its exact bytes beside it."""
    try:
        return {"key": key.decode("utf-8")}
    except UnicodeDecodeError:
        return {"key": key.decode("utf-8", "backslashreplace"), "key_b64": base64.b64encode(key).decode("ascii")}


class _SizeCounter:
    """Counts sizes in 2^8 steps an octave; sizes below 512 are counted exactly."""

    def __init__(self) -> None:
        self._buckets = np.zeros(57 << _MANTISSA_BITS, np.int64)
        self._total_bytes, self._min, self._max = 0, -1, -1
        self._largest: tuple[int, bytes | None] = (-1, None)

    def add(self, shard: ShardColumns) -> None:
        sizes = shard.sample_bytes
        if not len(sizes):
            return
        self._total_bytes += int(sizes.sum())
        low, row = int(sizes.min()), int(sizes.argmax())
        self._min = low if self._min < 0 else min(self._min, low)
        if int(sizes[row]) > self._max:
            self._max = int(sizes[row])
            self._largest = (shard.index, None if shard.keys is None else shard.keys[row].as_py())
        exponents = np.frexp(np.maximum(sizes, 1).astype(np.float64))[1].astype(np.int64) - 1
        shifts = np.maximum(exponents - _MANTISSA_BITS, 0)
        self._buckets += np.bincount((shifts << _MANTISSA_BITS) + (sizes >> shifts), minlength=len(self._buckets))

    def finish(self) -> SampleSizes:
        total = int(self._buckets.sum())
        quantiles = [self._quantile(share, total) for share in (0.5, 0.95, 0.99)] if total else [0, 0, 0]
        filled = np.flatnonzero(self._buckets).tolist()
        octaves = np.zeros(64, np.int64)
        for bucket in filled:
            octaves[max(_bucket_start(bucket).bit_length() - 1, 0)] += int(self._buckets[bucket]) if bucket else 0
        used = np.flatnonzero(octaves)
        first, stop = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        return SampleSizes(
            min=max(self._min, 0),
            p50=quantiles[0],
            p95=quantiles[1],
            p99=quantiles[2],
            max=max(self._max, 0),
            mean=self._total_bytes / total if total else 0.0,
            zero=int(self._buckets[0]),
            log2_first=first,
            log2_counts=tuple(octaves[first:stop].tolist()),
            largest_shard=self._largest[0],
            largest_key=self._largest[1],
        )

    def _quantile(self, share: float, total: int) -> int:
        """Nearest rank: the least size that `share` of the samples do not exceed."""
        rank = max(1, int(np.ceil(share * total)))
        bucket = int(np.searchsorted(np.cumsum(self._buckets), rank))
        middle = (_bucket_start(bucket) + _bucket_start(bucket + 1) - 1) // 2
        return min(max(middle, self._min), self._max)


def _bucket_start(bucket: int) -> int:
    """Least size counted in a bucket of `_SizeCounter`."""
    shift = max(bucket // (1 << _MANTISSA_BITS) - 1, 0)
    return (bucket - (shift << _MANTISSA_BITS)) << shift


def _judge_order(
    samples: Int64Array, splits: Sequence[str], ranks: Int64Array
) -> tuple[float | None, int, list[Histogram | None]]:
    """(neighbour distance, pairs it is the mean of, source blocks of each shard). Splits are judged apart."""
    stops = np.cumsum(samples)
    blocks: list[Histogram | None] = [None] * len(samples)
    weighted, num_pairs = 0.0, 0
    for split in dict.fromkeys(splits):
        places = [place for place, name in enumerate(splits) if name == split]
        pieces = [ranks[stops[place] - samples[place] : stops[place]] for place in places]
        local = ranks if len(places) == len(splits) else _dense(np.concatenate(pieces), len(ranks))
        distance = neighbour_distance(local)
        if distance is not None:
            weighted, num_pairs = weighted + distance * (len(local) - 1), num_pairs + len(local) - 1
        starts = np.cumsum([0, *(len(piece) for piece in pieces)])
        for place, start, stop in zip(places, starts[:-1], starts[1:], strict=True):
            blocks[place] = histogram(local[start:stop] * NUM_BLOCKS // max(len(local), 1))
    return (weighted / num_pairs if num_pairs else None), num_pairs, blocks


def _dense(ranks: Int64Array, bound: int) -> Int64Array:
    """Distinct `ranks` below `bound` renumbered 0..n-1 in their order: positions in the split's own source."""
    present = np.zeros(bound, np.bool_)
    present[ranks] = True
    return (np.cumsum(present) - 1)[ranks]


def _spread(values: NDArray[Any]) -> Spread:
    if not len(values):
        return Spread(0.0, 0.0, 0.0)
    return Spread(float(values.min()), float(np.median(values)), float(values.max()))


def _add_totals(left: PartTotals, right: PartTotals) -> PartTotals:
    return PartTotals(
        left.samples + right.samples,
        left.num_bytes + right.num_bytes,
        min(left.smallest, right.smallest),
        max(left.largest, right.largest),
    )


def _plain(value: Any) -> Any:
    """`value` for JSON: dataclasses as objects, keys by `key_document`, six decimals, more than any figure merits."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return key_document(value)
    return round(value, 6) if isinstance(value, float) else value
