"""Which shards a node needs, in the order in which its ranks first read them. Pure: an assignment in, numbers out.

The union over the ranks of a node of what `assign` gives each of them, so that a run over the staged shards never
needs another one. `interleave` puts the first shard of every rank before the second of any.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from shardtool.assignment.assign import coverage
from shardtool.assignment.placement import data_rank
from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardtool.assignment.assignment import Assignment
    from shardtool.model import Int64Array

__all__ = ["Share", "interleave", "join_ranges", "node_share", "parse_ranges", "socket_of"]


@dataclass(frozen=True)
class Share:
    """Shards by their place in the manifest."""

    by_rank: tuple[tuple[int, ...], ...]  # of each local rank, by first use
    others: tuple[int, ...] = ()  # wanted too, by no rank in particular

    @property
    def shards(self) -> tuple[int, ...]:
        """All of them, in the order to fetch."""
        return tuple(dict.fromkeys((*interleave(self.by_rank), *self.others)))

    def first(self, count: int) -> tuple[int, ...]:
        """The first `count` shards of each rank; of all, where no rank is known."""
        if not self.by_rank:
            return self.others[:count]
        return interleave([shards[:count] for shards in self.by_rank])

    def of_ranks(self, ranks: Iterable[int]) -> Share:
        """The share of some of the local ranks."""
        return Share(tuple(self.by_rank[rank] for rank in ranks), self.others)


def node_share(found: Assignment, node: int, epochs: range) -> Share:
    """What a node's ranks read in these epochs, from where the run begins.

    Args:
        found: who reads what; it knows the number of nodes.
        node: 0-based.
        epochs: of the run, counted from 0.
    """
    ranks = range(found.deal.world_size // found.num_nodes)
    return Share(
        tuple(tuple(_first_uses(found, data_rank(rank, node, found.num_nodes), epochs).tolist()) for rank in ranks)
    )


def _first_uses(found: Assignment, rank: int, epochs: range) -> Int64Array:
    """int64[n]: places of the shards that a data rank reads, by first use."""
    size, seen = found.order.num_samples, np.zeros(0, np.int64)
    for epoch in epochs:
        begin = max(found.position, epoch * size)
        if begin >= (epoch + 1) * size:
            continue
        for segments in coverage(found.order, found.deal, rank, begin):
            seen = _unique([seen, segments.shard])
        seen = _unique([seen, _repeated(found, rank, epoch)])
    return found.shards.places[seen]


def _unique(parts: list[Int64Array]) -> Int64Array:
    joined = np.concatenate(parts)
    _, first = np.unique(joined, return_index=True)
    return joined[np.sort(first)]


def _repeated(found: Assignment, rank: int, epoch: int) -> Int64Array:
    """Shards of the samples that `pad` makes the rank read again at the end of an epoch."""
    deal, size = found.deal, found.order.num_samples
    if deal.policy != "pad":
        return np.zeros(0, np.int64)
    end = max((span.stop for span in deal.spans(epoch, with_padding=True)), default=0)
    places = np.arange(size, max(end, size), dtype=np.int64)
    mine = places[places // deal.unit % deal.world_size == rank] % size
    return found.order.locate(epoch * size + mine)[0]


def interleave(by_rank: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The first of each, then the second of each, each number once."""
    return tuple(dict.fromkeys(shard for turn in zip_longest(*by_rank) for shard in turn if shard is not None))


def socket_of(local_rank: int, local_ranks: int, num_targets: int) -> int:
    """The target whose socket a local rank runs on: ranks are dealt to sockets in contiguous runs."""
    return local_rank * num_targets // local_ranks


def parse_ranges(text: str, count: int) -> tuple[int, ...]:
    """The numbers that `0-9,12,20-` means, of `count` shards; a range may be open, its end is included.

    Raises:
        UsageProblem: anything else, or a shard that does not exist.
    """
    found: list[int] = []
    for piece in text.split(","):
        first, dash, last = (word.strip() for word in piece.partition("-"))
        last = last if dash else first
        if not (first or last) or not all(word.isdecimal() for word in (first, last) if word):
            raise UsageProblem(f"{piece!r} is no range of shards", hint="write it like 0-99,120,200-")
        low, high = int(first or 0), int(last or count - 1)
        if low > high or high >= count:
            raise UsageProblem(f"there are no shards {piece.strip()} among {count}", hint=f"shards are 0-{count - 1}")
        found += range(low, high + 1)
    return tuple(dict.fromkeys(found))


def join_ranges(numbers: Iterable[int]) -> str:
    """`0-9,12`: the inverse of `parse_ranges`, ascending."""
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in _runs(sorted(set(numbers))))


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for place in range(1, len(numbers) + 1):
        if place == len(numbers) or numbers[place] != numbers[place - 1] + 1:
            yield numbers[start], numbers[place - 1]
            start = place
