"""Where a rank stands in the stream, and what it reads next: the whole state of a loader, in one integer.

    cursor = start_cursor(shards, fingerprint, global_batch=1024, rank=3, world_size=64)
    turn = cursor.turn()                    the steps from here to the end of the epoch
    turn.batch(0)                           (shards, rows, is_valid) of this rank
    cursor.advance()                        one batch was used
    cursor.state_dict()                     the same on every rank

Only batches that were used count, so that neither prefetching nor loader workers show in the state. The epoch follows
from the position; nobody sets it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from shardtool.assignment.assign import check_feasible
from shardtool.assignment.assignment import choose_order
from shardtool.errors import UsageProblem
from shardtool.order.deal import Deal, Dealt
from shardtool.order.order import Order
from shardtool.order.state import dump_state, load_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.assignment.assignment import SplitShards
    from shardtool.model import Int64Array
    from shardtool.order.deal import Policy
    from shardtool.order.mixed import MixedOrder
    from shardtool.order.params import Mode, OrderParams

__all__ = ["Batch", "Cursor", "Turn", "start_cursor"]

BLOCK = 1 << 13  # samples located at a time; a call costs what 500 of them do


class Batch(NamedTuple):
    """A rank's part of one step; arrays of one length, in reading order."""

    positions: Int64Array  # of the stream
    shards: Int64Array  # of the split, 0-based
    rows: Int64Array
    is_valid: NDArray[Any]  # False: a sample that `pad` repeats


@dataclass(frozen=True, eq=False)
class Turn:
    """The steps of one rank from a position to the end of its epoch. Steps count from 0 at `deal.start`."""

    order: Order | MixedOrder
    deal: Deal
    rank: int
    num_steps: int

    @property
    def start(self) -> int:
        """Position of the stream where step 0 begins."""
        return self.deal.start

    @property
    def epoch(self) -> int:
        """The epoch that all these steps begin in."""
        return self.deal.start // self.deal.num_samples

    def batch(self, step: int) -> Batch:
        """This rank's part of a step."""
        return next(self.batches(range(step, step + 1)))

    def batches(self, steps: range) -> Iterator[Batch]:
        """This rank's parts of several steps, computed some thousand samples at a time."""
        share = max(1, self.deal.batch_size // self.deal.world_size)
        size = max(1, BLOCK // share)
        for first in range(0, len(steps), size):
            yield from self._block(steps[first : first + size])

    def _block(self, steps: range) -> Iterator[Batch]:
        begin, end = self.position_after(steps[0]), self.position_after(steps[-1] + 1)
        dealt = self.deal.positions(self.rank, begin, end)
        if steps.step > 1:
            dealt = Dealt(*(column[(dealt.steps - steps.start) % steps.step == 0] for column in dealt))
        shards, rows = self.order.locate(dealt.positions)
        edges = np.searchsorted(dealt.steps, np.append(steps, steps[-1] + 1)).tolist()
        for low, high in pairwise(edges):
            yield Batch(dealt.positions[low:high], shards[low:high], rows[low:high], dealt.is_valid[low:high])

    def position_after(self, num_steps: int) -> int:
        """Position of the stream after the first `num_steps` steps."""
        return self.deal.position_after(num_steps - 1) if num_steps else self.deal.start


class Cursor:
    """Position, order and deal of one rank. `start_cursor` makes one.

    Args:
        order: the reading order.
        deal: how it is dealt; reading begins at its `start`.
        rank: data rank.
        fingerprint: of the data set and split, from `assignment.fingerprint_of`.
        asked: order parameters that the caller named, if any; a state with others is noted.

    Raises:
        UsageProblem: a configuration in which a rank would starve.
    """

    order: Order | MixedOrder

    def __init__(
        self,
        order: Order | MixedOrder,
        deal: Deal,
        rank: int,
        fingerprint: str,
        asked: OrderParams | None = None,
    ) -> None:
        if not 0 <= rank < deal.world_size:
            raise UsageProblem(f"there is no rank {rank} among {deal.world_size}", hint="ranks count from 0")
        check_feasible(order, deal)
        self.order, self.rank, self.fingerprint = order, rank, fingerprint
        self._deal, self._asked = deal, asked
        self._used = 0  # steps since self._deal.start

    @property
    def position(self) -> int:
        """Samples of the global stream used, over all ranks, since the start of training."""
        return self._deal.position_after(self._used - 1) if self._used else self._deal.start

    @property
    def epoch(self) -> int:
        """The epoch that the next step begins in."""
        return self.position // self.order.num_samples

    @property
    def world_size(self) -> int:
        """Data-parallel ranks."""
        return self._deal.world_size

    @property
    def policy(self) -> Policy:
        """What becomes of the tail of an epoch."""
        return self._deal.policy

    def turn(self, position: int | None = None) -> Turn:
        """The steps from a position, by default the current one, to the end of its epoch.

        Where `drop` leaves no whole batch of an epoch, those of the next one.
        """
        deal = replace(self._deal, start=self.position if position is None else position)
        epoch = deal.start // deal.num_samples
        if deal.num_steps(epoch) == 0:
            epoch += 1
            deal = replace(deal, start=epoch * deal.num_samples)
        return Turn(self.order, deal, self.rank, deal.num_steps(epoch))

    def advance(self, num_batches: int = 1) -> None:
        """Count batches as used."""
        self._used += num_batches

    def seek(self, position: int) -> None:
        """Go on at a position of the stream.

        Raises:
            UsageProblem: it is negative.
        """
        self._deal, self._used = replace(self._deal, start=position), 0

    def state_dict(self) -> dict[str, int | str]:
        """The state, the same on every rank: integers and short strings, always the same keys."""
        return dump_state(
            self.order.params,
            fingerprint=self.fingerprint,
            num_samples=self.order.num_samples,
            policy=self.policy,
            position=self.position,
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state stands; world size, batch and workers may be others. The state's order wins.

        Raises:
            PlanMismatch: the state of another data set, or of another policy inside an epoch.
        """
        samples = self.order.num_samples
        found = load_state(
            state, fingerprint=self.fingerprint, num_samples=samples, params=self._asked, policy=self.policy
        )
        for note in found.notes:
            warnings.warn(note, stacklevel=2)
        order = (
            self.order if found.params == self.order.params else Order(cast("Order", self.order).counts, found.params)
        )
        self._go_on(order, replace(self._deal, unit=found.params.unit, policy=found.policy, start=found.position))

    def _go_on(self, order: Order | MixedOrder, deal: Deal) -> None:
        """Read in another order, from another start on.

        Raises:
            UsageProblem: a configuration in which a rank would starve.
        """
        check_feasible(order, deal)
        self.order, self._deal, self._used = order, deal, 0


def start_cursor(
    shards: SplitShards,
    fingerprint: str,
    *,
    global_batch: int,
    rank: int = 0,
    world_size: int = 1,
    policy: Policy = "carry",
    mode: Mode = "plw",
    seed: int = 0,
    elastic: Sequence[int] = (),
    params: OrderParams | None = None,
    position: int = 0,
) -> Cursor:
    """A cursor at a position of the stream.

    Args:
        shards: of one split.
        fingerprint: of the data set and split, from `assignment.fingerprint_of`.
        global_batch: samples of a step over all ranks.
        rank: data rank.
        world_size: data-parallel ranks.
        policy: what becomes of the tail of an epoch: `carry`, `drop`, `pad` or `uneven`.
        mode: order: `plw`, `shard`, `none` or `full`.
        seed: 0 .. 2^64 - 1.
        elastic: every world size that the run may ever have, for an order that suits them all; `world_size` by default.
        params: the order in full, in the place of mode, seed and elastic.
        position: of the stream, where reading begins.

    Raises:
        UsageProblem: a value out of range, or a configuration in which a rank would starve.
    """
    chosen = params or choose_order(shards, tuple(elastic) or (world_size,), mode=mode, seed=seed)
    order = Order(shards.counts, chosen)
    deal = Deal(order.num_samples, world_size, global_batch, chosen.unit, policy, position)
    return Cursor(order, deal, rank, fingerprint, params)
