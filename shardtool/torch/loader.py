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
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shardtool.loading.cursor import Batch, Cursor, Turn
    from shardtool.loading.telemetry import Telemetry

__all__ = ["ResumableLoader"]


class ResumableLoader(DataLoader[Any]):
    """A DataLoader whose state is the batches it yielded. Iterating gives the rest of the epoch, then the next epoch.

    Satisfies `torch.distributed.checkpoint.stateful.Stateful`. A loop that is broken off goes on where it stopped.

    Args:
        dataset: a `ShardDataset` with `batch_sampler=ShardBatchSampler(...)`, or a `ShardStream`.
        telemetry: writes waits, rates and bytes of this rank, and tokens where samples are sequences of them.
        count_tokens: says how many tokens a batch holds, as the loader yields it, where they are something else.
        options: those of torch's DataLoader.

    Raises:
        UsageProblem: neither of the two.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        telemetry: Telemetry | None = None,
        count_tokens: Callable[[Any], int] | None = None,
        **options: Any,
    ) -> None:
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
        self._workers_order, self._count_tokens = source.cursor.order, count_tokens
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
        if self._workers_order is not turn.order:
            self._iterator, self._workers_order = None, turn.order  # workers that persist hold the old order
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
        self._iterator = None  # of workers that persist

    def reweigh(self, weights: Sequence[int]) -> None:
        """Read a mixture with other weights from the position on; between two passes, or before a loop is broken off.

        Raises:
            UsageProblem: no mixture, or weights that make no sense.
        """
        self.source.reweigh(weights)

    def _counted(self, batches: Iterator[Any], turn: Turn) -> Iterator[Any]:
        began = time.perf_counter()
        for step, batch in enumerate(batches):
            self._check_pass(turn)
            waited_s = time.perf_counter() - began
            self.source.advance()
            if self._telemetry is not None:
                self._measure(self._telemetry, waited_s, turn.batch(step), batch)
            yield batch
            began = time.perf_counter()
        self.source.seek(turn.position_after(turn.num_steps))
        if self._telemetry is not None:
            self._telemetry.flush(self.position, turn.epoch)

    def _check_pass(self, turn: Turn) -> None:
        """Refuse to go on with batches that were drawn before the weights changed, or a state was loaded."""
        if self.cursor.order is not turn.order:
            raise UsageProblem(
                "the order changed while a loop was under way: its batches are drawn ahead in the old one",
                hint="break off the loop after reweigh() or load_state_dict(), and begin another",
            )

    def _measure(self, telemetry: Telemetry, waited_s: float, drawn: Batch, batch: Any) -> None:
        reader = self.source.dataset.reader
        telemetry.waited(waited_s)
        numbers = reader.numbers(drawn.shards, drawn.rows)
        count = self._count_tokens
        tokens = int(reader.tokens(numbers).sum()) if count is None else count(batch)
        telemetry.add(samples=len(numbers), num_bytes=int(reader.sizes(numbers).sum()), tokens=tokens)
        telemetry.tick(self.position, self.cursor.epoch)
