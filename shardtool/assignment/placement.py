"""Which shards a node needs, how often that copies the data set, and how well an order mixes.

A node's share follows from its lanes, so it is the same in every epoch unless locality is `redraw`. Data ranks are
numbered local_rank * num_nodes + node; then node = (place // unit) % num_nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.model import Int64Array
    from shardtool.order.deal import Deal
    from shardtool.order.order import Order

__all__ = ["Mixing", "Replication", "data_rank", "measure_mixing", "node_shards", "replication", "stray_shards"]


@dataclass(frozen=True)
class Replication:
    """What one world size makes every node hold."""

    world_size: int
    num_nodes: int
    shard_copies: float  # shards over all nodes / shards of the data set
    byte_copies: float
    max_shards: int  # of the fullest node
    max_bytes: int
    is_exact: bool  # False: the nodes do not divide the lanes, and a node may need less than this

    def fits(self, disk_bytes: int) -> bool:
        """True where the fullest node's share is no larger than a disk."""
        return self.max_bytes <= disk_bytes


@dataclass(frozen=True)
class Mixing:
    """How an order mixes, from sampled steps of rank 0; 1.0 is what a full random permutation would give."""

    same_shard: float  # P(two samples of a rank's part come from one shard)
    same_shard_ideal: float
    met_again: float  # P(two samples of a rank's part share a global batch in the next epoch) / the ideal
    live_shards: int  # shards that rank 0 touches in the sampled run of steps


def data_rank(local_rank: int, node: int, num_nodes: int) -> int:
    """The data rank of a process: neighbouring ranks lie on different nodes, so that a node's lanes are neighbours."""
    return local_rank * num_nodes + node


def node_shards(order: Order, num_nodes: int, node: int, epoch: int = 0) -> Int64Array:
    """int64[n]: the shards with samples that a node needs to read its places of an epoch, ascending.

    Exact where num_nodes divides the lanes; otherwise a superset: every shard of every lane that the node shares.
    """
    if not 0 <= node < num_nodes:
        raise UsageProblem(f"there is no node {node} among {num_nodes}", hint="nodes count from 0")
    layout = order.layout
    lanes = np.arange(node % gcd(layout.num_lanes, num_nodes), layout.num_lanes, gcd(layout.num_lanes, num_nodes))
    run = order.run(epoch)
    _, offsets, _ = run.split(layout.starts[lanes], layout.lengths[lanes])
    return np.unique(run.locate(offsets)[0])


def stray_shards(order: Order, deal: Deal, num_nodes: int, node: int, epoch: int) -> Int64Array:
    """int64[n]: shards outside a node's share that it still reads in an epoch.

    There are some where a batch straddles two epochs (`carry`), and where the first samples are repeated (`pad`): at
    most one batch of samples over all nodes at each border.
    """
    spans = [span for span in deal.spans(epoch, with_padding=True) if span.shift % deal.round_size]
    places = [np.arange(span.first, span.stop, dtype=np.int64) for span in spans]
    dealt = [(place + span.shift) // deal.unit % deal.world_size for place, span in zip(places, spans, strict=True)]
    if deal.policy == "pad":
        end = max((span.stop for span in deal.spans(epoch, with_padding=True)), default=0)
        places.append(np.arange(order.num_samples, max(end, order.num_samples), dtype=np.int64))
        dealt.append(places[-1] // deal.unit % deal.world_size)
    if not places:
        return np.empty(0, np.int64)
    mine = np.concatenate(places)[np.concatenate(dealt) % num_nodes == node] % order.num_samples
    shards, _ = order.locate(epoch * order.num_samples + mine)
    return np.setdiff1d(shards, node_shards(order, num_nodes, node, epoch))


def replication(
    order: Order, shard_bytes: Int64Array, world_sizes: Sequence[int], *, ranks_per_node: int = 1, epoch: int = 0
) -> list[Replication]:
    """What each world size costs in copies of the data set.

    Args:
        order: the reading order.
        shard_bytes: bytes of each shard, int64[num_shards].
        world_sizes: data-parallel ranks.
        ranks_per_node: of them on one node; a smaller world runs on one node.
        epoch: matters for locality `redraw` only.

    Raises:
        UsageProblem: ranks_per_node does not divide a world size.
    """
    return [_replicate(order, shard_bytes, size, min(size, ranks_per_node), epoch) for size in world_sizes]


def _replicate(order: Order, shard_bytes: Int64Array, world_size: int, ranks_per_node: int, epoch: int) -> Replication:
    if ranks_per_node < 1 or world_size % ranks_per_node:
        raise UsageProblem(
            f"{world_size} ranks do not fill nodes of {ranks_per_node}", hint="give the data ranks of one node"
        )
    num_nodes = world_size // ranks_per_node
    kinds = gcd(order.params.lanes, num_nodes)  # nodes that agree modulo this need the same shards
    shares = []
    for node in range(kinds):
        shards = node_shards(order, num_nodes, node, epoch)
        shares.append((len(shards), int(shard_bytes[shards].sum())))
    used = order.counts > 0
    times = num_nodes // kinds
    return Replication(
        world_size=world_size,
        num_nodes=num_nodes,
        shard_copies=times * sum(count for count, _ in shares) / int(used.sum()),
        byte_copies=times * sum(size for _, size in shares) / max(1, int(shard_bytes[used].sum())),
        max_shards=max(count for count, _ in shares),
        max_bytes=max(size for _, size in shares),
        is_exact=kinds == num_nodes,
    )


def measure_mixing(order: Order, deal: Deal, *, step: int = 0, num_steps: int = 32) -> Mixing:
    """How well rank 0's parts of `num_steps` steps from `step` on are mixed. O(samples of these steps).

    A rank's part of one sample has no pairs; it counts as mixed.
    """
    parts = [deal.batch(step + number, 0).positions for number in range(num_steps)]
    located = [order.locate(part)[0] for part in parts]
    share = order.counts / order.num_samples
    return Mixing(
        same_shard=_pair_rate(located),
        same_shard_ideal=float((share * (order.counts - 1) / max(1, order.num_samples - 1)).sum()),
        met_again=_met_again(order, deal, parts),
        live_shards=len(np.unique(np.concatenate(located))),
    )


def _met_again(order: Order, deal: Deal, parts: list[Int64Array]) -> float:
    batches = []
    for part in parts:
        epochs = part // order.num_samples
        here = part[epochs == epochs[0]] if part.size else part
        if here.size:
            later = order.positions(int(epochs[0]) + 1, *order.locate(here))
            batches.append(later % order.num_samples // deal.batch_size)
    ideal = (min(deal.batch_size, order.num_samples) - 1) / max(1, order.num_samples - 1)
    return _pair_rate(batches) / ideal if ideal > 0 else 1.0


def _pair_rate(groups: list[Int64Array]) -> float:
    """Share of the pairs inside each group that have equal values."""
    equal = pairs = 0
    for group in groups:
        _, counts = np.unique(group, return_counts=True)
        equal += int((counts * (counts - 1)).sum())
        pairs += group.size * (group.size - 1)
    return equal / pairs if pairs else 0.0
