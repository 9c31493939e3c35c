"""How far shards are from the split they are drawn from, beside what drawing at random would give. Pure numpy.

A split's classes (labels, blocks of the source) are counted a shard; the distance is total variation, its expectation
exact (hypergeometric: a shard is drawn without replacement), its 99th percentile simulated with a fixed seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardtool.model import Int64Array

Float64Array: TypeAlias = NDArray[np.float64]

_SIMULATED_CELLS = 500_000  # draws x classes simulated for one p99: tens of milliseconds
_ROUNDING = 1e-9  # a shard that equals its split exactly must not seem further away
_GRID = 9  # shard sizes at which an expectation is computed; between them it is interpolated


@dataclass(frozen=True)
class Deviation:
    """Total variation (0..1) between each shard and its split, beside what a uniform shuffle gives.

    `expected` and `p99` are medians over the shards of each shard's own expectation and 99th percentile, which depend
    on its sample count; `above_p99` counts the shards beyond their own p99: 1 in 100 under a uniform shuffle.
    """

    median: float
    expected: float
    p99: float
    max: float
    worst_shard: int
    worst_tv: float
    above_p99: int
    above_twice_p99: int
    shards: int

    @property
    def is_random(self) -> bool:
        """True where a uniform shuffle looks like this; no shuffle of 3,000 tried was said not to.

        The typical shard is within its p99, few shards are beyond their own, and none is beyond twice that.
        """
        few_above = self.above_p99 <= 2 + 0.04 * self.shards and not self.above_twice_p99
        return self.median <= self.p99 + _ROUNDING and few_above


@dataclass(frozen=True)
class Histogram:
    """The classes that occur, ascending, and how often: int64[k] each."""

    values: Int64Array
    counts: Int64Array


@dataclass(frozen=True)
class Split:
    """The shards of a split that counted something, by row, beside the sum over them."""

    rows: list[int]
    parts: list[Histogram]
    whole: Histogram


def histogram(values: NDArray[Any]) -> Histogram:
    """How often each of `values` occurs."""
    found, counts = np.unique(values, return_counts=True)
    return Histogram(found.astype(np.int64), counts.astype(np.int64))


def add_histograms(parts: Sequence[Histogram]) -> Histogram:
    """Sum of histograms; folded in groups so that as many rows as occur in 256 shards are held at once."""
    total = Histogram(np.empty(0, np.int64), np.empty(0, np.int64))
    for start in range(0, len(parts), 256):
        group = [total, *parts[start : start + 256]]
        values, places = np.unique(np.concatenate([part.values for part in group]), return_inverse=True)
        counts = np.zeros(len(values), np.int64)
        np.add.at(counts, places, np.concatenate([part.counts for part in group]))
        total = Histogram(values, counts)
    return total


def by_split(splits: Sequence[str], parts: Sequence[Histogram | None]) -> list[Split]:
    """The histograms of a shard each, brought together by split; shards without one are left out."""
    groups: dict[str, list[tuple[int, Histogram]]] = {}
    for row, (split, part) in enumerate(zip(splits, parts, strict=True)):
        if part is not None and len(part.values):
            groups.setdefault(split, []).append((row, part))
    return [
        Split([row for row, _ in group], [part for _, part in group], add_histograms([part for _, part in group]))
        for group in groups.values()
    ]


def deviation(splits: list[Split], numbers: Sequence[int]) -> Deviation | None:
    """Distances of all shards from their splits; `numbers` are the shards' places in the manifest."""
    if not splits:
        return None
    rows = [row for split in splits for row in split.rows]
    tv = np.concatenate([_total_variations(split) for split in splits])
    expected, p99 = over_sizes(splits, expected_tv), over_sizes(splits, simulated_p99)
    worst = int(np.argmax(tv - expected))
    return Deviation(
        median=float(np.median(tv)),
        expected=float(np.median(expected)),
        p99=float(np.median(p99)),
        max=float(tv.max()),
        worst_shard=numbers[rows[worst]],
        worst_tv=float(tv[worst]),
        above_p99=int(np.count_nonzero(tv > p99 + _ROUNDING)),
        above_twice_p99=int(np.count_nonzero(tv > 2 * p99 + _ROUNDING)),
        shards=len(rows),
    )


def _total_variations(split: Split) -> Float64Array:
    """Half the sum of |share of the shard - share of the split| over all classes, 0..1, float64[shards]."""
    found, whole = [], split.whole
    for part in split.parts:
        of_split = whole.counts[np.searchsorted(whole.values, part.values)] / whole.counts.sum()
        present = np.abs(part.counts / part.counts.sum() - of_split).sum()
        found.append((present + 1 - of_split.sum()) / 2)  # classes the shard lacks differ by their whole share
    return np.clip(np.array(found, np.float64), 0.0, 1.0)


def over_sizes(splits: list[Split], figure: Callable[[Int64Array, int], float]) -> Float64Array:
    """`figure(classes of the split, samples of the shard)` for each shard: at 9 sizes a split, linear in 1/sqrt(n)."""
    found: list[Float64Array] = []
    for split in splits:
        sizes = np.array([part.counts.sum() for part in split.parts])
        grid = np.unique(sizes)
        if len(grid) > _GRID:
            grid = np.unique(np.quantile(sizes, np.linspace(0, 1, _GRID), method="nearest"))
        values = [figure(split.whole.counts, int(size)) for size in grid]
        found.append(np.interp(-1 / np.sqrt(sizes), -1 / np.sqrt(grid), values))
    return np.concatenate(found)


def expected_tv(counts: Int64Array, num_drawn: int) -> float:
    """Mean total variation between `num_drawn` samples drawn from a population, and the population itself; exact.

    Half the sum over classes of E|X/n - p| with X hypergeometric (drawn without replacement: a shard holds no sample
    twice), by de Moivre's closed form of the mean absolute deviation; Johnson, Biometrika 44 (1957) 532. For a shard
    that is a small share of the data set this is the multinomial's value.

    Args:
        counts: members of each class, int64[num_classes].
        num_drawn: samples of the shard, 1..sum(counts).
    """
    total, size = int(counts.sum()), counts.astype(np.float64)
    top = np.floor(counts * (num_drawn / total)) + 1
    rest = total - size
    possible = (top <= np.minimum(size, num_drawn)) & (num_drawn - top <= rest)
    size, top, rest = size[possible], top[possible], rest[possible]
    logs = _log_choose(size, top) + _log_choose(rest, num_drawn - top)
    logs -= _log_choose(np.float64(total), np.float64(num_drawn))
    deviations = 2 * top * np.exp(logs) * (rest - num_drawn + top) / total
    return float(deviations.sum()) / num_drawn / 2


def simulated_p99(counts: Int64Array, num_drawn: int) -> float:
    """99th percentile of the total variation of `num_drawn` samples drawn from a population; deterministic.

    2,000 simulated shards; with many classes fewer, and mean + 2.326 standard deviations of them (a sum over many
    classes is close to normal). For the terminal only: the generator's stream may differ between numpy versions.
    """
    counts = counts[counts > 0]
    total, draws = int(counts.sum()), int(np.clip(_SIMULATED_CELLS // max(len(counts), 1), 50, 2000))
    rng, rows = np.random.default_rng(0), max(1, _SIMULATED_CELLS // max(len(counts), 1))
    found: list[Float64Array] = []
    for start in range(0, draws, rows):  # at most max(500,000, num_classes) cells at a time
        size = min(rows, draws - start)
        if total < 10**9:  # numpy's limit for drawing without replacement
            drawn = rng.multivariate_hypergeometric(counts, num_drawn, size=size, method="marginals")
        else:
            drawn = rng.multinomial(num_drawn, counts / total, size=size)
        found.append(np.abs(drawn / num_drawn - counts / total).sum(axis=1) / 2)
    tv = np.concatenate(found)
    return float(np.quantile(tv, 0.99)) if draws >= 1000 else float(tv.mean() + 2.326 * tv.std())


def expected_kinds(counts: Int64Array, num_drawn: int) -> float:
    """Mean number of classes met by `num_drawn` samples drawn without replacement."""
    rest = float(counts.sum()) - counts
    missed = rest[rest >= num_drawn]
    chance = np.exp(_log_choose(missed, num_drawn) - _log_choose(np.float64(counts.sum()), np.float64(num_drawn)))
    return float(len(counts) - chance.sum())


def _log_choose(total: Any, chosen: Any) -> Any:
    return _log_factorial(total) - _log_factorial(chosen) - _log_factorial(total - chosen)


def _log_factorial(number: Any) -> Any:
    """ln(n!) elementwise: Stirling's series at n + 9, divided back; error below 1e-13, or 1e-15 of the value."""
    at = np.asarray(number, np.float64) + 9
    series = 1 / (12 * at) - 1 / (360 * at**3) + 1 / (1260 * at**5) - 1 / (1680 * at**7) + 1 / (1188 * at**9)
    value = (at + 0.5) * np.log(at) - at + 0.5 * np.log(2 * np.pi) + series
    for step in range(9):
        value = value - np.log(at - step)
    return value
