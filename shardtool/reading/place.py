"""When and by whom one sample is read: step, rank, loader worker and slot, in one epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from shardtool.assignment.assignment import Assignment
    from shardtool.order.deal import Deal

__all__ = ["Reading", "position_of", "readings_of", "reason_unread"]


class Reading(NamedTuple):
    """One time that a sample is read."""

    step: int  # of the run, counted from where it began or was resumed
    rank: int
    slot: int  # 0-based place in the rank's part of the batch
    is_valid: bool  # False: `pad` repeats it here


def position_of(found: Assignment, shard: int, row: int, epoch: int) -> int:
    """The position of the stream at which an epoch reads a sample; `shard` is the place in the manifest.

    Raises:
        UsageProblem: the shard is not one of the split.
    """
    local = np.flatnonzero(found.shards.places == shard)
    if not local.size:
        raise UsageProblem(f"shard {shard} is not in split {found.shards.name}")
    return found.order.where(epoch, int(local[0]), row)


def readings_of(deal: Deal, position: int) -> list[Reading]:
    """Every time that the sample at a position is read in its epoch: none where it is dropped, two where repeated."""
    place = deal.place(position)
    first = [] if place is None else [Reading(*place, True)]
    return [*first, *_repeats(deal, position)]


def reason_unread(deal: Deal, position: int) -> str:
    """Why nobody reads a position."""
    if position < deal.start:
        return f"position {position:,} was read before position {deal.start:,}, where this run begins"
    return f"policy {deal.policy} leaves it out, with all that does not fill a batch of {deal.batch_size:,}"


def _repeats(deal: Deal, position: int) -> list[Reading]:
    """Where `pad` repeats it: places num_samples and above, all of them in the last step of the epoch."""
    epoch, place = divmod(position, deal.num_samples)
    spans = deal.spans(epoch, with_padding=True) if deal.policy == "pad" else []
    end = spans[-1].stop if spans else 0
    last = deal.place((epoch + 1) * deal.num_samples - 1)
    found = []
    for again in range(deal.num_samples + place, end, deal.num_samples):
        rank = again // deal.unit % deal.world_size
        if last is None:
            continue
        dealt = deal.batch(last.step, rank)
        slots = np.flatnonzero(~dealt.is_valid & (dealt.positions == position))
        turn = (again - deal.num_samples - place) // deal.num_samples
        found += [Reading(last.step, rank, int(slot), False) for slot in slots[turn : turn + 1]]
    return found
