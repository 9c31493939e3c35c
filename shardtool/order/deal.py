"""Dealing the stream to ranks: which positions form a step, who gets them, and what becomes of an epoch's tail.

    deal = Deal(num_samples, world_size=64, batch_size=1024)
    positions, is_valid, _ = deal.batch(step, rank)

A rank owns the places of an epoch where (place // unit) % world_size == rank. Policies for the tail:
`carry` fills the batch that straddles two epochs from both and deals it by ordinal, so that it stays even;
`drop` leaves the incomplete batch out; `pad` repeats the epoch's first samples and marks them; `uneven` adds nothing.
In: integers. Out: positions of the stream. State is one integer, `position_after(step)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from shardtool.errors import UsageProblem
from shardtool.order.params import MAX_POSITION, check_ranks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.model import Int64Array

__all__ = ["Deal", "Dealt", "Place", "Policy", "Span"]

Policy: TypeAlias = Literal["carry", "drop", "pad", "uneven"]


class Span(NamedTuple):
    """Places first..stop-1 of one epoch that are dealt by one rule: rank = ((place + shift) // unit) % world_size."""

    first: int
    stop: int
    shift: int


class Dealt(NamedTuple):
    """What one rank reads, in reading order; arrays of one length."""

    positions: Int64Array  # of the stream
    is_valid: NDArray[np.bool_]  # False: a sample that `pad` repeats
    steps: Int64Array  # batches of the whole run before it, counted from `start`


class Place(NamedTuple):
    """Who reads a position, and when."""

    step: int  # batches of the whole run before it, counted from `start`
    rank: int
    slot: int  # 0-based place in the rank's part of the batch


@dataclass(frozen=True)
class Deal:
    """How the positions from `start` on are dealt to the ranks of one run.

    Args:
        num_samples: samples of one epoch.
        world_size: data-parallel ranks; model-parallel peers share a rank.
        batch_size: samples of one step over all ranks; 0 takes one unit a rank.
        unit: samples that stay together on one rank.
        policy: what becomes of the tail of an epoch.
        start: stream position at which the run began or was resumed; step 0 begins there.

    Raises:
        UsageProblem: a value out of range, or a batch too small to feed every rank.
    """

    num_samples: int
    world_size: int
    batch_size: int = 0
    unit: int = 1
    policy: Policy = "carry"
    start: int = 0

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            raise UsageProblem(f"policy is {self.policy!r}", hint=f"take one of {', '.join(get_args(Policy))}")
        if min(self.num_samples, self.world_size, self.unit) < 1 or min(self.batch_size, self.start) < 0:
            raise UsageProblem("num_samples, world_size and unit are 1 or more, batch_size and start 0 or more")
        check_ranks(self.world_size)
        if max(self.start, self.batch_size) > MAX_POSITION:
            raise UsageProblem(
                f"a batch of {self.batch_size:,} at position {self.start:,}: neither goes beyond 2^62",
                hint="positions count the samples of a run; an epoch has all of a data set",
            )
        if self.batch_size == 0:
            object.__setattr__(self, "batch_size", self.round_size)
        if self.batch_size < self.round_size:
            raise UsageProblem(
                f"a batch of {self.batch_size} leaves ranks of {self.world_size} without samples",
                hint=f"give a global batch of {self.round_size} or more",
            )
        if self.policy == "pad" and self.batch_size % self.round_size:
            raise UsageProblem(
                f"a batch of {self.batch_size} cannot be padded evenly over {self.world_size} ranks",
                hint=f"give a global batch that is a multiple of {self.round_size}, or take another --policy",
            )

    @property
    def round_size(self) -> int:
        """Samples that give every rank one unit."""
        return self.world_size * self.unit

    def num_steps(self, epoch: int) -> int:
        """Steps that begin in an epoch: batches, of which the last may be short unless the policy is `carry`."""
        if self.policy == "carry":
            return self._carried_steps(epoch + 1) - self._carried_steps(epoch)
        first, end = self._bounds(epoch)
        return -(-(end - first) // self.batch_size)

    def batch(self, step: int, rank: int) -> Dealt:
        """One rank's part of a step.

        Parts of a step differ by at most one unit; only the last one of an `uneven` epoch may be empty.

        Raises:
            UsageProblem: `drop` leaves no batch in an epoch.
        """
        first, size = self._batch_range(step)
        if self.policy == "carry":
            return self.positions(rank, first, first + size)
        epoch, place = divmod(first, self.num_samples)
        return self._at(epoch, _members(Span(place, place + size, 0), self, rank))

    def positions(self, rank: int, first: int, stop: int) -> Dealt:
        """What a rank reads of the stream's positions first..stop-1.

        What `pad` repeats follows the last position of its epoch. O(stop - first) memory.
        """
        parts = [Dealt(np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0, np.int64))]
        for epoch in range(first // self.num_samples, -(-stop // self.num_samples)):
            base = epoch * self.num_samples
            is_whole = stop >= base + self.num_samples
            for span in self.spans(epoch, with_padding=is_whole):
                end = span.stop if is_whole else min(span.stop, stop - base)
                cut = Span(max(span.first, first - base), end, span.shift)
                parts.append(self._at(epoch, _members(cut, self, rank)))
        return Dealt(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def spans(self, epoch: int, *, with_padding: bool = False) -> list[Span]:
        """The places of an epoch that the run reads, in order; padded places lie at num_samples and above."""
        if self.policy == "carry":
            return self._carried_spans(epoch)
        first, end = self._bounds(epoch)
        end = end if with_padding else min(end, self.num_samples)
        return [Span(first, end, 0)] if end > first else []

    def count(self, rank: int, epoch: int, first: int = 0, *, with_padding: bool = False) -> int:
        """Samples that a rank reads of an epoch from place `first` on. O(1)."""
        spans = self.spans(epoch, with_padding=with_padding)
        return sum(_count(Span(max(first, span.first), span.stop, span.shift), self, rank) for span in spans)

    def place(self, position: int) -> Place | None:
        """Step, rank and slot that read a position; None where it is dropped, or lies before `start`."""
        epoch, place = divmod(position, self.num_samples)
        span = next((span for span in self.spans(epoch) if span.first <= place < span.stop), None)
        if span is None or position < self.start:
            return None
        if self.policy == "carry":
            step, first = self._carried_batch(position)
        else:
            step = self._steps_before(epoch) + (place - self._bounds(epoch)[0]) // self.batch_size
            first = position - (place - self._bounds(epoch)[0]) % self.batch_size
        begin = first - epoch * self.num_samples  # negative where the batch began in the epoch before
        rank = (place + span.shift) // self.unit % self.world_size
        return Place(step, rank, _count(Span(begin, place, span.shift), self, rank))

    def position_after(self, step: int) -> int:
        """Position of the stream after a step: the whole state of the data side of a run."""
        first, size = self._batch_range(step)
        if self.policy == "carry":
            return first + size
        epoch, place = divmod(first, self.num_samples)
        is_last = place + size >= self._bounds(epoch)[1]
        return (epoch + 1) * self.num_samples if is_last else first + size

    def _bounds(self, epoch: int) -> tuple[int, int]:
        """First place and end of what policies other than `carry` read of an epoch, padding included."""
        first = min(max(self.start - epoch * self.num_samples, 0), self.num_samples)
        size = self.num_samples - first
        if self.policy == "drop":
            size -= size % self.batch_size
        elif self.policy == "pad":
            size += -size % self.round_size
        return first, first + size

    def _steps_before(self, epoch: int) -> int:
        first_epoch = self.start // self.num_samples
        if epoch <= first_epoch:
            return 0
        return self.num_steps(first_epoch) + (epoch - first_epoch - 1) * self.num_steps(first_epoch + 1)

    def _batch_range(self, step: int) -> tuple[int, int]:
        """(first position, places with padding) of a step."""
        if self.policy == "carry":
            return self.start + step * self.batch_size, self.batch_size
        epoch = self.start // self.num_samples
        here, later = self.num_steps(epoch), self.num_steps(epoch + 1)
        if step >= here:
            if later == 0:
                raise UsageProblem(
                    f"a batch of {self.batch_size} is dropped whole: an epoch has {self.num_samples} samples",
                    hint="take a smaller batch, or --policy carry",
                )
            skipped, step = divmod(step - here, later)
            epoch += 1 + skipped
        first, end = self._bounds(epoch)
        begin = first + step * self.batch_size
        return epoch * self.num_samples + begin, min(self.batch_size, end - begin)

    def _carried_batch(self, position: int) -> tuple[int, int]:
        step = (position - self.start) // self.batch_size
        return step, self.start + step * self.batch_size

    def _carried_steps(self, epoch: int) -> int:
        """Steps that begin before an epoch does."""
        return max(0, -(-(epoch * self.num_samples - self.start) // self.batch_size))

    def _carried_spans(self, epoch: int) -> list[Span]:
        begin, end = epoch * self.num_samples, (epoch + 1) * self.num_samples
        if self.start >= end:
            return []
        first, spans = max(begin, self.start), []
        _, head = self._carried_batch(first)
        if head < begin:  # this batch began in the epoch before
            first = min(end, head + self.batch_size)
            spans.append(Span(0, first - begin, begin - head))
        _, tail = self._carried_batch(end)
        tail = end if tail < first or tail == end else tail
        if tail > first:
            spans.append(Span(first - begin, tail - begin, 0))
        if end > tail:
            spans.append(Span(tail - begin, self.num_samples, begin - tail))
        return spans

    def _at(self, epoch: int, places: Int64Array) -> Dealt:
        """Places of an epoch; a padded place repeats the sample that many places after the first."""
        base = epoch * self.num_samples
        if self.policy == "carry":
            steps = (base + places - self.start) // self.batch_size
        else:
            steps = self._steps_before(epoch) + (places - self._bounds(epoch)[0]) // self.batch_size
        return Dealt(base + places % self.num_samples, places < self.num_samples, steps)


def _members(span: Span, deal: Deal, rank: int) -> Int64Array:
    """int64[n]: the places of a span that a rank owns, ascending."""
    low, high = span.first + span.shift, span.stop + span.shift
    if high <= low:
        return np.empty(0, np.int64)
    begin = low - low % deal.round_size + rank * deal.unit
    chunks = np.arange(begin, high, deal.round_size, dtype=np.int64)
    if deal.unit > 1:
        chunks = (chunks[:, None] + np.arange(deal.unit, dtype=np.int64)).reshape(-1)
    return chunks[(chunks >= low) & (chunks < high)] - span.shift


def _count(span: Span, deal: Deal, rank: int) -> int:
    """How many places of a span a rank owns."""
    low, high = span.first + span.shift, span.stop + span.shift
    return _below(high, deal, rank) - _below(low, deal, rank) if high > low else 0


def _below(end: int, deal: Deal, rank: int) -> int:
    rounds, rest = divmod(end, deal.round_size)
    return rounds * deal.unit + min(max(rest - rank * deal.unit, 0), deal.unit)
