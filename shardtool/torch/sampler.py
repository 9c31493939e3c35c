"""Batches of sample numbers of one rank, for torch's `DataLoader(batch_sampler=)`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch.utils.data import Sampler

from shardtool.torch.dataset import Repeated
from shardtool.torch.position import Positioned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.loading.ahead import PiecesAhead
    from shardtool.loading.cursor import Batch
    from shardtool.loading.mixed import MixedAhead

__all__ = ["ShardBatchSampler"]


class ShardBatchSampler(Positioned, Sampler[list[int]]):
    """Batches of sample numbers of one rank, for `DataLoader(batch_sampler=)`. Iterating gives the rest of an epoch.

    The epoch follows from the position: after a whole pass the next one is the next epoch, nobody sets it.

    Args:
        dataset: the data set, or a mixture of several.
        global_batch: samples of a step over all ranks.
        rank: data rank; None asks torch.distributed, and is 0 without it. Where the launcher tells nodes it is
            local_rank * num_nodes + node, so that a node reads what `shardtool stage` brings there.
        world_size: data-parallel ranks, likewise.
        policy: what becomes of the tail of an epoch: `carry`, `drop`, `pad` or `uneven`.
        mode: order: `plw`, `shard`, `none` or `full`.
        seed: 0 .. 2^64 - 1.
        elastic: every world size that the run may ever have, so that the order suits them all.
        params: the order in full, in the place of mode, seed and elastic.
        position: of the stream, where reading begins.
        hints: tell the kernel which pieces come next.

    Raises:
        UsageProblem: a value out of range, or a configuration in which a rank would starve.
    """

    _drawn: _Draws | None = None

    def __iter__(self) -> _Draws:
        """The rest of the epoch. A pass that was broken off begins anew at `position`."""
        if self._drawn is not None and self._drawn.is_done and not self._is_told:
            self.cursor.seek(self._drawn.end)
        self._drawn = _Draws(self)
        return self._drawn

    def seek(self, position: int) -> None:
        """Go on at a position of the stream; it may be any, say step x global batch."""
        super().seek(position)
        self._drawn = None

    def state_dict(self) -> dict[str, int | str]:
        """The state after the batches used so far, the same on every rank.

        torchdata's StatefulDataLoader gets the batches drawn: it takes a snapshot with each and keeps that of the batch
        yielded. It asks the sampler as well as the iterator, and there is no other sign of it than who calls.

        Raises:
            UsageProblem: batches were drawn, but nothing told how many of them were used.
        """
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if self._drawn is not None and caller.startswith("torchdata."):
            return self._drawn.state_dict()
        return super().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state stands."""
        super().load_state_dict(state)
        self._drawn = None

    def draw(self, batch: Batch, ahead: PiecesAhead | MixedAhead | None) -> list[int]:
        """Sample numbers of a step."""
        if ahead is not None:
            self.dataset.reader.hint(*ahead.next_pieces(batch.positions))
        numbers: list[int] = self.numbers(batch).tolist()
        if batch.is_valid.all():
            return numbers
        return [
            number if valid else Repeated(number)
            for number, valid in zip(numbers, batch.is_valid.tolist(), strict=True)
        ]

    def _is_begun(self) -> bool:
        return self._drawn is not None and self._drawn.step > 0


class _Draws:
    """One pass over a sampler. Its state counts what was drawn, which is what torchdata's StatefulDataLoader saves."""

    def __init__(self, sampler: ShardBatchSampler) -> None:
        self._sampler, self.step = sampler, 0
        self._start()

    def _start(self) -> None:
        self._turn, self.step = self._sampler.cursor.turn(), 0
        self._batches = self._turn.batches(range(self._turn.num_steps))
        self._ahead = self._sampler.pieces_ahead(self._turn)

    @property
    def is_done(self) -> bool:
        """True when the epoch is drawn to its end."""
        return self.step >= self._turn.num_steps

    @property
    def end(self) -> int:
        """Position where the epoch ends."""
        return self._turn.position_after(self._turn.num_steps)

    def __iter__(self) -> _Draws:
        return self

    def __next__(self) -> list[int]:
        while not self.is_done:
            numbers = self._sampler.draw(next(self._batches), self._ahead)
            self.step += 1
            if numbers:  # the last step of an `uneven` epoch may have nothing for this rank
                return numbers
        raise StopIteration

    def state_dict(self) -> dict[str, int | str]:
        """The state after the batches drawn."""
        return {**self._sampler.cursor.state_dict(), "position": self._turn.position_after(self.step)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Draw on from a state."""
        self._sampler.cursor.load_state_dict(state)
        self._start()
