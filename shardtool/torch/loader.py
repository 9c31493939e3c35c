"""A DataLoader whose position is the number of batches it yielded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, default_collate

from shardtool.errors import UsageProblem
from shardtool.torch.position import Positioned
from shardtool.torch.stream import ShardStream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.loading.cursor import Batch, Cursor, Turn
    from shardtool.loading.telemetry import Telemetry

__all__ = ["ResumableLoader"]


class ResumableLoader(DataLoader[Any]):
    """A DataLoader whose state is the batches it yielded. Iterating gives the rest of the epoch, then the next epoch.

    Satisfies `torch.distributed.checkpoint.stateful.Stateful`. A loop that is broken off goes on where it stopped.

    Args:
        dataset: a `ShardDataset` with `batch_sampler=ShardBatchSampler(...)`, or a `ShardStream`.
        telemetry: writes waits, rates and bytes of this rank.
        options: those of torch's DataLoader.

    Raises:
        UsageProblem: neither of the two.
    """

    def __init__(self, dataset: Any, *, telemetry: Telemetry | None = None, **options: Any) -> None:
        source = dataset if isinstance(dataset, ShardStream) else options.get("batch_sampler")
        if not isinstance(source, Positioned):
            raise UsageProblem(
                "a ResumableLoader reads a ShardStream, or a ShardDataset with a ShardBatchSampler",
                hint="ResumableLoader(dataset, batch_sampler=ShardBatchSampler(dataset, global_batch=...))",
            )
        if source is dataset:
            options |= {"batch_size": None, "collate_fn": options.get("collate_fn") or default_collate}
        if options.get("generator") is None:  # torch would draw from the global generator, and so change the training
            options["generator"] = torch.Generator().manual_seed(source.cursor.order.params.seed % (1 << 63))
        self.source, self._telemetry, self._steps_of_pass = source, telemetry, -1
        super().__init__(dataset, **options)

    @property
    def cursor(self) -> Cursor:
        """Position, order and deal of this rank."""
        return self.source.cursor

    @property
    def position(self) -> int:
        """Samples of the global stream in the batches yielded, over all ranks."""
        return self.source.position

    def __len__(self) -> int:
        """Batches of the pass under way, or of the next one."""
        return len(self.source) if self._steps_of_pass < 0 else self._steps_of_pass

    def __iter__(self) -> Any:
        """The rest of the epoch that the position lies in."""
        turn = self.cursor.turn()
        self.source.seek(turn.start)
        if isinstance(self.source, ShardStream):
            self.source.publish()
        self._steps_of_pass = turn.num_steps
        try:
            yield from self._counted(super().__iter__(), turn)
        finally:
            self._steps_of_pass = -1

    def state_dict(self) -> dict[str, int | str]:
        """The state after the batches yielded: the same on every rank, and for any number of workers."""
        return self.cursor.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state stands; world size, batch size and workers may be others.

        Raises:
            PlanMismatch: the state of another data set, or of another policy inside an epoch.
        """
        self.source.load_state_dict(state)
        self._iterator = None  # workers that persist hold the old order

    def _counted(self, batches: Iterator[Any], turn: Turn) -> Iterator[Any]:
        began = time.perf_counter()
        for step, batch in enumerate(batches):
            waited_s = time.perf_counter() - began
            self.source.advance()
            if self._telemetry is not None:
                self._measure(self._telemetry, waited_s, turn.batch(step))
            yield batch
            began = time.perf_counter()
        self.source.seek(turn.position_after(turn.num_steps))
        if self._telemetry is not None:
            self._telemetry.flush(self.position, turn.epoch)

    def _measure(self, telemetry: Telemetry, waited_s: float, batch: Batch) -> None:
        reader = self.source.dataset.reader
        telemetry.waited(waited_s)
        sizes = reader.sizes(reader.numbers(batch.shards, batch.rows))
        telemetry.add(samples=len(sizes), num_bytes=int(sizes.sum()))
        telemetry.tick(self.position, self.cursor.epoch)
