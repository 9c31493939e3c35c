"""What a reading order is made of, and how its numbers follow from the shard table alone.

In: sample counts and bytes of the shards, and the world sizes a run may ever have. Out: frozen `OrderParams`.
Nothing here depends on the medium, so staging a data set never changes its order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.model import Int64Array

__all__ = ["Choice", "Locality", "Mode", "OrderParams", "Piece", "check_ranks", "choose_params", "lane_radices"]

Mode: TypeAlias = Literal["plw", "shard", "none", "full"]
Locality: TypeAlias = Literal["fixed", "redraw"]
Piece: TypeAlias = int | Literal["shard"]

PIECE_BYTES = 8 << 20  # one sequential read; object stores need this much to reach full speed
MAX_PIECE = 512  # samples; keeps a window's table small where samples are tiny
WINDOW = 16  # pieces
LANES_PER_RANK = 8  # at a fixed number of samples in flight, lanes mix better than windows
MIN_WINDOWS_PER_LANE = 4
MAX_LANES = 4096  # unless one world size alone needs more
MAX_SEED = (1 << 64) - 1
MAX_POSITION = 1 << 62  # of the stream: positions are int64, and an epoch more must fit
MAX_RANKS = 1 << 20  # ten times the largest clusters; work and output grow with them


@dataclass(frozen=True)
class OrderParams:
    """Parameters of a reading order; the same for a whole run, whatever its world size.

    Raises:
        UsageProblem: a value out of range, or one that the mode does not have.
    """

    mode: Mode = "plw"
    seed: int = 0  # 0 .. 2^64 - 1
    lanes: int = 1
    radices: tuple[int, ...] = ()  # their product is `lanes`; () means the prime factors, ascending
    unit: int = 1  # samples that stay together on one lane and rank
    piece: Piece = 64  # samples, or "shard"
    window: int = WINDOW  # pieces
    locality: Locality = "fixed"  # redraw: another sequence of shards each epoch

    def __post_init__(self) -> None:
        for name, allowed in (("mode", get_args(Mode)), ("locality", get_args(Locality))):
            if getattr(self, name) not in allowed:
                raise UsageProblem(f"{name} is {getattr(self, name)!r}", hint=f"take one of {', '.join(allowed)}")
        if not 0 <= self.seed <= MAX_SEED:
            raise UsageProblem(f"seed {self.seed} is not between 0 and 2^64 - 1")
        numbers = {"lanes": self.lanes, "unit": self.unit, "window": self.window}
        if self.piece != "shard":
            numbers["piece"] = self.piece
        for name, value in numbers.items():
            if not isinstance(value, int) or value < 1:
                raise UsageProblem(f"{name} is {value!r}", hint=f"{name} is an integer from 1 up")
        if self.mode in ("none", "full") and self.lanes != 1:
            raise UsageProblem(f"order {self.mode} has one lane, not {self.lanes}", hint="leave lanes out")
        if not self.radices:
            object.__setattr__(self, "radices", tuple(_prime_factors(self.lanes)))
        if math.prod(self.radices) != self.lanes or min(self.radices, default=2) < 2:
            raise UsageProblem(f"radices {self.radices} do not multiply to {self.lanes} lanes")

    @property
    def shuffles_shards(self) -> bool:
        """True where the shards are laid out in permuted order."""
        return self.mode in ("plw", "shard")

    @property
    def has_windows(self) -> bool:
        """True where samples are permuted inside windows."""
        return self.mode == "plw"

    @property
    def has_fixed_pieces(self) -> bool:
        """True where a piece is a number of samples, False where it is what a lane holds of a shard."""
        return self.mode == "plw" and self.piece != "shard"


@dataclass(frozen=True)
class Choice:
    """Parameters that were chosen, and the world sizes that do not divide their lanes (they read more shards)."""

    params: OrderParams
    undivided: tuple[int, ...]


def check_ranks(*world_sizes: int) -> None:
    """Refuse numbers of ranks, or of readers, that no run has.

    Raises:
        UsageProblem: one above 2^20.
    """
    most = max(world_sizes, default=0)
    if most > MAX_RANKS:
        raise UsageProblem(
            f"{most:,} ranks are more than any run has: at most {MAX_RANKS:,}",
            hint="a world size counts data-parallel ranks, one or a few a device; samples are counted by --batch-size",
        )


def choose_params(
    counts: Int64Array,
    shard_bytes: Int64Array,
    world_sizes: Sequence[int],
    *,
    mode: Mode = "plw",
    seed: int = 0,
    unit: int = 1,
    piece: Piece | None = None,
    node_counts: Sequence[int] = (),
) -> Choice:
    """The parameters for these shards and for every world size that the run may have.

    Args:
        counts: samples of each shard, int64[num_shards].
        shard_bytes: bytes of each shard, int64[num_shards].
        world_sizes: data-parallel ranks, the most likely first.
        mode: `plw`, `shard`, `none` or `full`.
        seed: 0 .. 2^64 - 1.
        unit: samples that stay together on one lane and rank.
        piece: samples, or "shard"; None takes the samples that fill 8 MiB, at most 512.
        node_counts: numbers of nodes those ranks will run on; their common factors lay neighbouring lanes out.

    Raises:
        UsageProblem: no samples, or a world size below 1.
    """
    num_samples = int(counts.sum())
    sizes = list(dict.fromkeys(world_sizes))
    if num_samples < 1:
        raise UsageProblem("the data set has no samples to put in order")
    if not sizes or min(sizes) < 1:
        raise UsageProblem(f"world sizes {list(world_sizes)}: each must be 1 or more")
    if mode in ("none", "full"):
        params = OrderParams(mode=mode, seed=seed, unit=unit, piece=1, window=1)
    else:
        per_rank = LANES_PER_RANK if mode == "plw" else 1
        lanes = _shrink_lanes(sizes, per_rank, num_samples // unit)
        params = OrderParams(
            mode=mode,
            seed=seed,
            lanes=lanes,
            radices=lane_radices(lanes, node_counts or sizes),
            unit=unit,
            piece=_choose_piece(mode, piece, num_samples, int(shard_bytes.sum()), lanes),
            window=WINDOW if mode == "plw" else 1,
        )
    return Choice(params, tuple(size for size in sizes if params.lanes % size))


def lane_radices(lanes: int, node_counts: Sequence[int]) -> tuple[int, ...]:
    """Prime factors of `lanes`, those common to all node counts first, so that a node's lanes are neighbours."""
    common = _prime_factors(math.gcd(lanes, *node_counts))
    return (*common, *_prime_factors(lanes // math.prod(common)))


def _choose_base(sizes: list[int]) -> int:
    """The least common multiple of as many sizes as stay within MAX_LANES; the first is always in."""
    base = sizes[0]
    for size in sizes[1:]:
        if math.lcm(base, size) <= max(MAX_LANES, sizes[0]):
            base = math.lcm(base, size)
    return base


def _shrink_lanes(sizes: list[int], per_rank: int, num_units: int) -> int:
    """The most lanes up to `per_rank` a rank whose length still lets pieces and windows mix."""
    base = _choose_base(sizes)
    multiples = range(-(-per_rank * max(sizes) // base) * base, 0, -base)
    divisors = [divisor for divisor in range(base, 0, -1) if base % divisor == 0]
    divisors.sort(key=lambda divisor: divisor % sizes[0] != 0)  # stable: the first world size keeps its lanes longest
    longest = num_units // (MIN_WINDOWS_PER_LANE * WINDOW)
    return next((lanes for lanes in (*multiples, *divisors) if lanes <= longest), 1)


def _choose_piece(mode: Mode, piece: Piece | None, num_samples: int, num_bytes: int, lanes: int) -> Piece:
    if mode == "shard":
        return "shard"
    if piece is not None:
        return piece
    by_bytes = PIECE_BYTES * num_samples // max(1, num_bytes)
    by_lane = num_samples // lanes // (MIN_WINDOWS_PER_LANE * WINDOW)
    return max(1, min(by_bytes, by_lane, MAX_PIECE))


def _prime_factors(number: int) -> list[int]:
    factors, divisor = [], 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors + [number] * (number > 1)
