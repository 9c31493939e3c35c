"""A disk smaller than the node's share: which shards to keep, by when they are read next. Pure.

The reading order is known, so the best choice is, too: keep what is read soonest, let go what is read latest
(L. A. Belady, A study of replacement algorithms for a virtual-storage computer, IBM Systems Journal 5, 1966).
Positions are those of the run's stream; they are counted in `quantum`s, so that tables stay small.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.assignment.placement import data_rank

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from shardtool.assignment.assignment import Assignment

QUANTA = 2048  # of all epochs together
SIMULATED = 400_000  # shards x quanta that are looked at to tell what a budget costs: about a second


@dataclass(frozen=True)
class Uses:
    """When each shard is read: ascending quanta."""

    by_shard: Mapping[int, tuple[int, ...]]
    quantum: int = 1  # positions
    epoch: int = 1 << 62  # positions of one epoch

    def until(self, num_quanta: int) -> Uses:
        """The first so many quanta that read anything."""
        quanta = sorted({use for uses in self.by_shard.values() for use in uses})[:num_quanta]
        end = quanta[-1] + 1 if quanta else 0
        by_shard = {shard: uses[: bisect_left(uses, end)] for shard, uses in self.by_shard.items()}
        return replace(self, by_shard={shard: uses for shard, uses in by_shard.items() if uses})

    def next_use(self, shard: int, position: int) -> int | None:
        """The first quantum from `position` on that reads the shard; None where none does."""
        uses = self.by_shard.get(shard, ())
        place = bisect_left(uses, position // self.quantum)
        return uses[place] if place < len(uses) else None


@dataclass(frozen=True)
class Step:
    """What to do now, in this order."""

    evict: tuple[int, ...] = ()
    fetch: tuple[int, ...] = ()


def uses_of(found: Assignment, node: int, local_ranks: Iterable[int], epochs: range) -> Uses:
    """When the ranks of a node read which shard, of these epochs. O(samples that they read)."""
    size = found.order.num_samples
    quantum = max(1, size * max(1, len(epochs)) // QUANTA)
    seen: dict[int, set[int]] = {}
    for rank in local_ranks:
        first = max(found.position, epochs.start * size)
        data = data_rank(rank, node, found.num_nodes)
        for chunk in found.sequence(data, first, max(0, epochs.stop * size - first)):
            pairs = np.unique(np.stack([chunk.shard, chunk.position // quantum]), axis=1)
            for shard, use in zip(*pairs.tolist(), strict=True):
                seen.setdefault(shard, set()).add(use)
    return Uses({shard: tuple(sorted(quanta)) for shard, quanta in seen.items()}, quantum, size)


def next_step(
    uses: Uses,
    sizes: Mapping[int, int],
    present: Collection[int],
    position: int,
    budget: int,
    held: Collection[int] = (),
) -> Step:
    """What makes the window hold the shards that are read soonest from `position` on.

    Args:
        uses: when shards are read.
        sizes: bytes of each shard.
        present: shards that are here, or that take room because they are begun.
        position: samples of the stream consumed.
        budget: bytes.
        held: present shards that must stay.
    """
    upcoming = {shard: use for shard in sizes if (use := uses.next_use(shard, position)) is not None}
    kept = _soonest(upcoming, sizes, budget)
    room = budget - sum(sizes[shard] for shard in present)
    never = 1 << 62
    leaving = sorted(
        (shard for shard in present if shard not in kept and shard not in held),
        key=lambda shard: (upcoming.get(shard, never), shard),
    )
    step: dict[str, list[int]] = {"evict": [], "fetch": []}
    for shard in kept:
        if shard in present:
            continue
        while room < sizes[shard] and leaving:
            step["evict"].append(leaving.pop())
            room += sizes[step["evict"][-1]]
        if room < sizes[shard]:
            break
        step["fetch"].append(shard)
        room -= sizes[shard]
    return Step(tuple(step["evict"]), tuple(step["fetch"]))


def _soonest(upcoming: Mapping[int, int], sizes: Mapping[int, int], budget: int) -> dict[int, None]:
    """The shards that are read soonest and fit together, in that order."""
    kept: dict[int, None] = {}
    for shard in sorted(upcoming, key=lambda shard: (upcoming[shard], shard)):
        budget -= sizes[shard]
        if budget < 0:
            break
        kept[shard] = None
    return kept


@dataclass
class Simulation:
    """What a budget costs over a whole run."""

    fetches: int = 0
    misses: int = 0  # uses of a shard that could not be here in time
    _present: set[int] = field(default_factory=set)


def simulate(uses: Uses, sizes: Mapping[int, int], budget: int) -> Simulation:
    """The run from its first to its last use, as if copies took no time."""
    found = Simulation()
    by_quantum: dict[int, list[int]] = {}
    for shard, quanta in uses.by_shard.items():
        for quantum in quanta:
            by_quantum.setdefault(quantum, []).append(shard)
    for quantum in sorted(by_quantum):
        step = next_step(uses, sizes, found._present, quantum * uses.quantum, budget)
        found._present = (found._present - set(step.evict)) | set(step.fetch)
        found.fetches += len(step.fetch)
        found.misses += sum(shard not in found._present for shard in by_quantum[quantum])
    return found


def times_fetched(uses: Uses, sizes: Mapping[int, int], budget: int) -> tuple[float, float]:
    """What a budget costs, from as much of the run as can be looked at quickly.

    Returns:
        (fetches of a shard for each epoch that reads it, 1.0 is the least; share of reads that find it not here).
    """
    part = uses.until(max(8, SIMULATED // max(1, len(sizes))))
    needed = sum(len({use * uses.quantum // uses.epoch for use in quanta}) for quanta in part.by_shard.values())
    num_reads = sum(map(len, part.by_shard.values()))
    found = simulate(part, sizes, budget)
    return (found.fetches + found.misses) / max(1, needed), found.misses / max(1, num_reads)
