"""From a manifest to who reads what: the shards of one split, their reading order, and how it is dealt to ranks.

    found = assign(manifest, Wish(world_size=64, elastic=(64, 96, 128)))
    for segments in found.coverage(rank): ...                      exactly the rank's samples of this epoch
    for chunk in found.sequence(rank, found.position, 1024): ...   one by one, in reading order

In: a manifest, what was asked for, perhaps the state of a run. Out: an `Assignment`, whose shards are numbered by their
place in the manifest. No file is read here, and memory does not grow with the samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.assignment.assign import check_feasible, coverage, rank_counts, sequence
from shardtool.errors import UsageProblem
from shardtool.order.deal import Deal
from shardtool.order.order import Order
from shardtool.order.params import MAX_LANES, MAX_POSITION, OrderParams, check_ranks, choose_params, lane_radices
from shardtool.order.state import dump_state, load_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardtool.assignment.assign import Chunk, Segments
    from shardtool.manifest import Manifest
    from shardtool.model import Int64Array
    from shardtool.order.deal import Policy
    from shardtool.order.params import Mode, Piece

__all__ = ["Assignment", "SplitShards", "Wish", "assign", "choose_order", "split_shards", "usual_nodes"]

RANKS_PER_NODE = 8  # accelerators of most nodes; only a guess where --num-nodes is not given
DEFAULT_SPLIT = "train"
MAX_WORKERS = 1024  # loader workers of a rank; nodes have some hundred cores
MAX_EXPANDED = 1 << 30  # positions listed at once, or an epoch if that is more: a list of some 30 GB


@dataclass(frozen=True, eq=False)
class SplitShards:
    """The shards of one split: for reading, a data set of its own. Arrays are int64[num_shards]."""

    name: str
    places: Int64Array  # of each shard in the manifest
    counts: Int64Array  # samples
    num_bytes: Int64Array  # of the shard files as packed: the order must not change where they are decompressed
    others: tuple[str, ...] = ()  # splits that were not taken, though none was asked for

    @property
    def num_samples(self) -> int:
        """Samples of one epoch."""
        return int(self.counts.sum())

    @property
    def mean_bytes(self) -> float:
        """Bytes of shard files a sample."""
        return int(self.num_bytes.sum()) / max(1, self.num_samples)


@dataclass(frozen=True)
class Wish:
    """What was asked for; None and 0 mean that nothing was.

    Args:
        world_size: data-parallel ranks.
        elastic: every world size the run may ever have; the order follows from these. `world_size` alone by default.
        num_nodes: by default world_size / 8, or fewer ranks a node where 8 do not divide.
        loader_workers: of each rank.
        batch_size: samples of a step over all ranks; one a rank by default.
        position: of the global stream, where reading begins; `epoch` is the same in whole epochs.
        lanes: and piece and window, instead of the chosen ones.
        streams_shards: each loader worker gets lanes of its own, so that it can read whole stretches of shards.
    """

    split: str = ""
    world_size: int = 1
    elastic: tuple[int, ...] = ()
    num_nodes: int = 0
    loader_workers: int = 0
    batch_size: int = 0
    policy: Policy | None = None
    mode: Mode | None = None
    seed: int | None = None
    lanes: int | None = None
    piece: Piece | None = None
    window: int | None = None
    epoch: int | None = None
    position: int | None = None
    streams_shards: bool = False

    @property
    def readers(self) -> int:
        """Loader workers of all ranks."""
        return self.world_size * max(1, self.loader_workers)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The world sizes that the order must suit."""
        times = max(1, self.loader_workers) if self.streams_shards else 1
        return tuple(size * times for size in self.elastic or (self.world_size,))


@dataclass(frozen=True, eq=False)
class Assignment:
    """Who reads what of one split, from `position` on."""

    dataset_id: str
    fingerprint: str  # of the split, for saved states
    shards: SplitShards
    order: Order
    deal: Deal  # begins at `position`
    num_nodes: int
    wish: Wish
    is_packed_shuffled: bool
    is_restored: bool = False  # the order is that of a saved state
    notes: tuple[str, ...] = ()  # about the state

    @property
    def position(self) -> int:
        """Samples of the global stream before the first step."""
        return self.deal.start

    @property
    def epoch(self) -> int:
        """The epoch that `position` lies in."""
        return self.deal.start // self.order.num_samples

    @property
    def num_left(self) -> int:
        """Positions from `position` to the end of its epoch."""
        return self.order.num_samples - self.position % self.order.num_samples

    @cached_property
    def rank_samples(self) -> Int64Array:
        """int64[world_size]: samples each rank reads of the rest of the epoch, repeated ones left out."""
        return rank_counts(self.deal, self.epoch)

    @cached_property
    def rank_repeats(self) -> Int64Array:
        """int64[world_size]: samples that `pad` makes each rank read again."""
        return rank_counts(self.deal, self.epoch, with_padding=True) - self.rank_samples

    def node_of(self, rank: int) -> int:
        """The node of a data rank; data ranks are numbered local_rank * num_nodes + node."""
        return rank % self.num_nodes

    def coverage(self, rank: int, worker: int = 0, num_workers: int = 1) -> Iterator[Segments]:
        """Exactly the samples that a rank, or one loader worker of it, reads of the rest of the epoch."""
        found = coverage(self.order, self.deal, rank, self.position, worker=worker, num_workers=num_workers)
        return self._placed(found)

    def stream(self, rank: int, worker: int) -> Iterator[Segments]:
        """What a loader worker reads that streams shards, in order; the workers of a rank share the rank's samples.

        Raises:
            UsageProblem: the lanes cannot be dealt to the workers of all ranks.
        """
        readers = self.wish.readers
        if self.order.params.mode != "shard" or self.order.params.lanes % readers:
            raise UsageProblem(
                f"{readers} readers cannot stream shards: {self.order.params.mode} order with "
                f"{self.order.params.lanes} lanes",
                hint=f"take --order shard --lanes {readers}, without --state",
            )
        deal = Deal(self.order.num_samples, readers, 0, self.order.params.unit, "uneven", self.position)
        check_feasible(self.order, deal)
        return self._placed(coverage(self.order, deal, worker * self.deal.world_size + rank, self.position))

    def sequence(self, rank: int, first: int, count: int) -> Iterator[Chunk]:
        """The samples a rank reads among `count` positions of the stream from `first` on, in reading order.

        Raises:
            UsageProblem: `first` lies before the position where the run begins, or they are too many.
        """
        most = max(MAX_EXPANDED, self.order.num_samples)
        if count > most:
            raise UsageProblem(
                f"{count:,} positions are too long a list: at most {most:,}",
                hint=f"list a part of them, --expand {first}:1024; any other can be listed by itself",
            )
        if first + count > MAX_POSITION:
            raise UsageProblem(f"{count:,} positions from {first:,} on go beyond 2^62", hint="--expand FROM:COUNT")
        if first < self.position:
            raise UsageProblem(
                f"position {first:,} lies before {self.position:,}, where reading begins",
                hint=f"--position {first}",
            )
        found = sequence(self.order, self.deal, rank, first, count)
        return (replace(chunk, shard=self.shards.places[chunk.shard]) for chunk in found)

    def _placed(self, parts: Iterator[Segments]) -> Iterator[Segments]:
        """Shards by their place in the manifest; none without rows."""
        return (replace(part, shard=self.shards.places[part.shard]) for part in parts if len(part))

    def state(self) -> dict[str, int | str]:
        """The state of a run that stands at `position`; what `--state` reads."""
        return dump_state(
            self.order.params,
            fingerprint=self.fingerprint,
            num_samples=self.order.num_samples,
            policy=self.deal.policy,
            position=self.position,
        )


def fingerprint_of(manifest: Manifest, split: str) -> str:
    """What a saved state belongs to: the dataset_id, and the split where the data set has several."""
    return manifest.dataset_id if len(manifest.splits()) == 1 else f"{manifest.dataset_id}/{split}"


def assign(manifest: Manifest, wish: Wish, state: Mapping[str, Any] | None = None) -> Assignment:
    """Who reads what of a data set.

    Args:
        manifest: of the data set.
        wish: what was asked for.
        state: of a run, to go on from; its order wins over the wish, with a note.

    Raises:
        UsageProblem: no such split, options out of range, or a configuration in which a rank would starve.
        PlanMismatch: the state belongs to another data set, or asks for another policy inside an epoch.
    """
    shards = split_shards(manifest, wish.split)
    if wish.loader_workers > MAX_WORKERS:
        raise UsageProblem(
            f"{wish.loader_workers:,} loader workers of a rank are more than any node runs: at most {MAX_WORKERS:,}",
            hint="--loader-workers counts the processes of one rank, 4 to 16 as a rule",
        )
    num_nodes = _num_nodes(wish)
    params, policy, position, notes = _start(manifest, shards, wish, state)
    order = Order(shards.counts, params)
    start = _position(wish, position, order.num_samples)
    deal = Deal(order.num_samples, wish.world_size, wish.batch_size, params.unit, policy, start)
    check_feasible(order, deal)
    is_shuffled = bool(manifest.membership.get("shuffled"))
    return Assignment(
        manifest.dataset_id,
        fingerprint_of(manifest, shards.name),
        shards,
        order,
        deal,
        num_nodes,
        wish,
        is_shuffled,
        state is not None,
        tuple(notes),
    )


def split_shards(manifest: Manifest, name: str = "") -> SplitShards:
    """The shards of a split; without a name the only one, or `train`.

    Raises:
        UsageProblem: no such split, several and no name, or one without samples.
    """
    names = list(manifest.splits())
    known = ", ".join(names)
    if name and name not in names:
        raise UsageProblem(f"there is no split {name!r}", hint=f"the data set has: {known}")
    if not name and len(names) > 1 and DEFAULT_SPLIT not in names:
        raise UsageProblem(f"the data set has {len(names)} splits", hint=f"say which: --split {names[0]} ({known})")
    if not names:
        raise UsageProblem("the data set has no shards", hint="pack something into it")
    taken = name or (names[0] if len(names) == 1 else DEFAULT_SPLIT)
    rows = [(place, shard) for place, shard in enumerate(manifest.shards) if shard.split == taken]
    return SplitShards(
        taken,
        np.array([place for place, _ in rows], np.int64),
        np.array([shard.num_samples for _, shard in rows], np.int64),
        np.array([sum(file.num_bytes for file in shard.packed_files) for _, shard in rows], np.int64),
        () if name else tuple(other for other in names if other != taken),
    )


def choose_order(
    shards: SplitShards,
    sizes: Sequence[int],
    *,
    mode: Mode = "plw",
    seed: int = 0,
    lanes: int | None = None,
    piece: Piece | None = None,
    window: int | None = None,
) -> OrderParams:
    """The order of a run: it follows from the shards, the world sizes and the seed, never from the nodes at hand.

    Args:
        shards: of one split.
        sizes: every world size the run may ever have, the most likely first.
        mode: `plw`, `shard`, `none` or `full`.
        seed: 0 .. 2^64 - 1.
        lanes: and piece and window, instead of the chosen ones.

    Raises:
        UsageProblem: no samples, or a value out of range.
    """
    check_ranks(*sizes)
    nodes = [usual_nodes(size) for size in sizes if size > 0]
    params = choose_params(
        shards.counts, shards.num_bytes, sizes, mode=mode, seed=seed, piece=piece, node_counts=nodes
    ).params
    if lanes is None and mode == "shard" and params.lanes % sizes[0] and sizes[0] <= shards.num_samples:
        lanes = sizes[0]  # pieces and windows ask for long lanes; whole shards do not
    if lanes is not None:
        if lanes > max(shards.num_samples, MAX_LANES):
            raise UsageProblem(
                f"{lanes:,} lanes for {shards.num_samples:,} samples: most of them would be empty",
                hint="leave lanes out",
            )
        params = replace(params, lanes=lanes, radices=lane_radices(lanes, nodes))
    return params if window is None else replace(params, window=window)


def usual_nodes(world_size: int) -> int:
    """Nodes that so many ranks probably run on: 8 ranks each, or as many as divide."""
    if world_size <= RANKS_PER_NODE:
        return 1
    return world_size // math.gcd(world_size, RANKS_PER_NODE)


def _num_nodes(wish: Wish) -> int:
    if wish.world_size < 1 or wish.num_nodes < 0:
        raise UsageProblem(f"{wish.world_size} ranks on {wish.num_nodes} nodes", hint="both are 1 or more")
    check_ranks(wish.world_size)
    if wish.num_nodes > wish.world_size:
        raise UsageProblem(
            f"{wish.num_nodes:,} nodes for {wish.world_size:,} ranks: most would have none",
            hint=f"give at most one node a rank: --num-nodes {wish.world_size}",
        )
    nodes = wish.num_nodes or usual_nodes(wish.world_size)
    if wish.world_size % nodes:
        fitting = max(count for count in range(1, nodes + 1) if wish.world_size % count == 0)
        raise UsageProblem(
            f"{wish.world_size} ranks do not fill {nodes} nodes evenly",
            hint=f"give nodes of equally many ranks: --num-nodes {fitting}, or --world-size {nodes}",
        )
    return nodes


def _start(
    manifest: Manifest, shards: SplitShards, wish: Wish, state: Mapping[str, Any] | None
) -> tuple[OrderParams, Policy, int, list[str]]:
    """(order, policy, position, notes) of a new run, or of the one that the state is of."""
    if state is None:
        return _chosen(shards, wish), wish.policy or "carry", 0, []
    fingerprint = fingerprint_of(manifest, shards.name)
    restored = load_state(state, fingerprint=fingerprint, num_samples=shards.num_samples, policy=wish.policy)
    asked = {name: getattr(wish, name) for name in ("mode", "seed", "lanes", "piece", "window")}
    differing = {name: value for name, value in asked.items() if value not in (None, getattr(restored.params, name))}
    notes = [
        f"the state was made with {name} {getattr(restored.params, name)}, and that is used, not {value}"
        for name, value in differing.items()
    ]
    return restored.params, restored.policy, restored.position, [*restored.notes, *notes]


def _chosen(shards: SplitShards, wish: Wish) -> OrderParams:
    mode: Mode = wish.mode or "plw"
    return choose_order(
        shards,
        wish.sizes,
        mode=mode,
        seed=wish.seed or 0,
        lanes=wish.lanes,
        piece=wish.piece,
        window=wish.window,
    )


def _position(wish: Wish, position: int, num_samples: int) -> int:
    if wish.position is None:
        return position if wish.epoch is None else wish.epoch * num_samples
    if wish.epoch is not None and wish.position // num_samples != wish.epoch:
        raise UsageProblem(
            f"position {wish.position:,} lies in epoch {wish.position // num_samples}, not in epoch {wish.epoch}",
            hint="positions count samples of the whole run: leave --epoch out",
        )
    return wish.position
