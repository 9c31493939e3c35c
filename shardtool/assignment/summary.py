"""What an assignment costs: samples, shards and bytes of ranks and nodes, copies at other world sizes, mixing, advice.

In: an `Assignment` and perhaps the bytes of a disk. Out: numbers, and sentences that end with what to type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.assignment.assignment import usual_nodes
from shardtool.assignment.placement import Mixing, Replication, measure_mixing, node_shards, replication
from shardtool.order.deal import Deal
from shardtool.units import format_bytes, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.assignment.assignment import Assignment

__all__ = ["Share", "Summary", "share_of", "summarize"]

_MIXING_STEPS, _MIXING_SAMPLES = 32, 1 << 16  # of rank 0, looked at
_USUAL_PART = 16  # samples of a step a rank
_LEAST_MEETINGS = 10
_NOTABLE_COPIES = 1.25
_SMALL_SHARD_BYTES = 1 << 20
_NOTABLE_SAME_SHARD = 0.25  # of the way from a random order to one shard after another


@dataclass(frozen=True)
class Share:
    """Shards that a rank opens, the one with the fewest and the one with the most."""

    fewest: int
    most: int


@dataclass(frozen=True)
class Summary:
    """What an assignment costs."""

    num_steps: int  # of the epoch, from the position on
    rank_shards: Share
    node: Replication  # of the world size asked for
    elastic: tuple[Replication, ...]  # of the other world sizes
    mixing: Mixing
    mixing_batch: int  # samples of a step over all ranks, at which the mixing was judged
    is_met_judged: bool  # False: too few pairs were looked at to tell how often they meet again
    fits_disk: bool | None  # whether the fullest node's share fits; None where no disk was given
    advice: tuple[str, ...]


def summarize(found: Assignment, disk_bytes: int | None = None) -> Summary:
    """The costs of an assignment; O(shards), and up to 65,536 samples to judge the mixing."""
    deal = found.deal
    node = _replicate(found, deal.world_size, found.num_nodes)
    others = [size for size in found.wish.elastic if size != deal.world_size]
    elastic = tuple(_replicate(found, size, _nodes_of(found, size)) for size in dict.fromkeys(others))
    mixing, batch, is_met_judged = _mix(found)
    return Summary(
        num_steps=deal.num_steps(found.epoch),
        rank_shards=share_of(found, range(min(deal.world_size, found.order.params.lanes))),
        node=node,
        elastic=elastic,
        mixing=mixing,
        mixing_batch=batch,
        is_met_judged=is_met_judged,
        fits_disk=None if disk_bytes is None else node.fits(disk_bytes),
        advice=tuple(_advise(found, node, elastic, mixing, disk_bytes)),
    )


def _mix(found: Assignment) -> tuple[Mixing, int, bool]:
    """How the order mixes, the batch size it was judged at, and whether enough pairs were seen to tell who meets again.

    The batch is a usual one where a rank's part has no pairs, or more samples than are looked at.
    """
    deal = found.deal
    if not 2 * deal.round_size <= deal.batch_size <= _MIXING_SAMPLES * deal.world_size:
        deal = Deal(deal.num_samples, deal.world_size, _USUAL_PART * deal.round_size, deal.unit, "carry", deal.start)
    part = deal.batch_size // deal.world_size
    steps = min(_MIXING_STEPS, _MIXING_SAMPLES // part, deal.num_steps(found.epoch))
    pairs = max(1, steps) * part * (part - 1) // 2
    expected = pairs * min(deal.batch_size, deal.num_samples) / deal.num_samples  # that a random order brings together
    return measure_mixing(found.order, deal, num_steps=max(1, steps)), deal.batch_size, expected >= _LEAST_MEETINGS


def share_of(found: Assignment, ranks: Sequence[int]) -> Share:
    """Shards that these ranks open; ranks that agree modulo their common lanes open the same."""
    kinds = math.gcd(found.order.params.lanes, found.deal.world_size)
    counts = [
        len(node_shards(found.order, found.deal.world_size, kind, found.epoch))
        for kind in dict.fromkeys(rank % kinds for rank in ranks)
    ]
    return Share(min(counts), max(counts))


def _nodes_of(found: Assignment, world_size: int) -> int:
    """Nodes of another world size: as many ranks a node as now, where that divides."""
    per_node = found.deal.world_size // found.num_nodes
    if world_size <= per_node:
        return 1
    return world_size // per_node if world_size % per_node == 0 else usual_nodes(world_size)


def _replicate(found: Assignment, world_size: int, num_nodes: int) -> Replication:
    per_node = world_size // num_nodes
    sizes = found.shards.num_bytes
    return replication(found.order, sizes, [world_size], ranks_per_node=per_node, epoch=found.epoch)[0]


def _advise(
    found: Assignment,
    node: Replication,
    elastic: Sequence[Replication],
    mixing: Mixing,
    disk_bytes: int | None,
) -> Iterator[str]:
    yield from _shard_advice(found)
    yield from _mixing_advice(found, mixing)
    yield from _lane_advice(found, node)
    for other in elastic:
        if found.order.params.mode in ("plw", "shard") and other.byte_copies > _NOTABLE_COPIES:
            yield (
                f"{other.world_size} ranks would copy the data {other.byte_copies:.2f} times to their "
                f"{plural(other.num_nodes, 'node')}: lanes that they divide cost nothing: "
                f"--lanes {math.lcm(found.order.params.lanes, other.world_size)}"
            )
    yield from _step_advice(found)
    if disk_bytes is not None and not node.fits(disk_bytes):
        yield _disk_advice(found, node, disk_bytes)


def _shard_advice(found: Assignment) -> Iterator[str]:
    shards, readers = int((found.shards.counts > 0).sum()), found.wish.readers
    if shards >= readers:
        return
    size = int(found.shards.num_bytes.sum()) // readers
    cure = f"--shards-multiple-of {readers}"
    if size >= _SMALL_SHARD_BYTES:
        cure = f"--shard-size {(1 << (size >> 20).bit_length() - 1)}MiB, or {cure}"
    workers = f" x {found.wish.loader_workers} workers" if found.wish.loader_workers > 1 else ""
    yield (
        f"{plural(shards, 'shard')} {'is' if shards == 1 else 'are'} few for {found.deal.world_size} ranks{workers}:"
        " nodes share some, and"
        f" {readers} or more shuffle better. Pack again with: {cure}"
    )


def _mixing_advice(found: Assignment, mixing: Mixing) -> Iterator[str]:
    mode, ideal = found.order.params.mode, mixing.same_shard_ideal
    if found.is_packed_shuffled or mode == "full":
        return
    if mode == "none" or mixing.same_shard - ideal > _NOTABLE_SAME_SHARD * (1 - ideal):
        yield (
            "the samples were packed in the order of their source, and this order reads stretches of it: batches are"
            " alike. Pack again with: --shuffle global, or read at random with: --order full"
        )


def _lane_advice(found: Assignment, node: Replication) -> Iterator[str]:
    params, size = found.order.params, found.deal.world_size
    if params.mode in ("none", "full"):
        if node.num_nodes > 1:
            yield (
                f"order {params.mode} makes every node read every shard, {node.byte_copies:.2f} copies in all: a node"
                " keeps a share of its own with: --order plw"
            )
        return
    if params.lanes % size == 0:
        return
    shared = size // math.gcd(params.lanes, size)
    if found.is_restored or size in (found.wish.elastic or (size,)):
        cure = f"--lanes {math.lcm(params.lanes, size)}"
    else:
        cure = "--elastic " + ",".join(map(str, (*found.wish.elastic, size)))
    when = " in a new run" if found.is_restored or found.position else ""
    yield (
        f"{size} ranks do not divide {plural(params.lanes, 'lane')}: {shared} ranks share each, all of them open its"
        f" shards. Avoid it{when} with: {cure}"
    )


def _step_advice(found: Assignment) -> Iterator[str]:
    deal, workers = found.deal, found.wish.loader_workers
    rest = deal.batch_size % deal.round_size
    if rest:
        low = deal.batch_size // deal.world_size
        yield (
            f"a batch of {deal.batch_size:,} gives ranks {low:,} or {low + 1:,} samples: weigh them when averaging, or"
            f" take: --batch-size {deal.batch_size - rest}"
        )
    if deal.batch_size > deal.num_samples:
        yield (
            f"a batch of {deal.batch_size:,} is longer than an epoch of {deal.num_samples:,}: it holds samples"
            f" twice. At most: --batch-size {deal.num_samples - deal.num_samples % deal.round_size or deal.round_size}"
        )
    steps = deal.num_steps(found.epoch + 1)
    if steps < workers:
        yield (
            f"an epoch has {plural(steps, 'step')}, and a rank {workers} loader workers: some idle. Enough are:"
            f" --loader-workers {max(1, steps)}"
        )


def _disk_advice(found: Assignment, node: Replication, disk_bytes: int) -> str:
    total = int(found.shards.num_bytes.sum())
    wanted = -(-total // disk_bytes)
    lack = f"a node's share of {format_bytes(node.max_bytes)} does not fit a disk of {format_bytes(disk_bytes)}"
    if wanted > node.num_nodes and found.deal.world_size % wanted == 0:
        return f"{lack}: the rest is read from where it is, or take: --num-nodes {wanted}"
    return f"{lack}: the rest is read from where it is; {wanted} nodes or more hold it all: --world-size, --num-nodes"
