"""Whole batches of one rank, read by the loader workers themselves."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from shardtool.errors import UsageProblem
from shardtool.torch.position import Positioned

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.loading.cursor import Turn
    from shardtool.loading.mixed import MixedFetch
    from shardtool.loading.reader import Fetch
    from shardtool.torch.dataset import ShardDataset
    from shardtool.torch.mixture import ShardMixture

__all__ = ["ShardStream"]

MAX_WORKERS = 256  # loader workers that a stream tells apart


class ShardStream(Positioned, IterableDataset[Any]):
    """Whole batches of one rank, read by the loader workers themselves: batch k by worker k mod M, in order.

    For `ResumableLoader(stream, num_workers=M)` or `DataLoader(stream, batch_size=None)`. Yields lists of samples.
    Workers hold no epoch: each pass begins at the position in shared memory, also in workers that persist.

    Args:
        dataset: the data set, or a mixture of several.
        read_ahead: batches read in the background, beside the one in use. Memory: so many batches a worker.
        options: those of `ShardBatchSampler`.

    Raises:
        UsageProblem: a value out of range, or a configuration in which a rank would starve.
    """

    def __init__(self, dataset: ShardDataset | ShardMixture, *, read_ahead: int = 0, **options: Any) -> None:
        super().__init__(dataset, **options)
        if read_ahead < 0:
            raise UsageProblem(f"read_ahead is {read_ahead}", hint="it counts batches, from 0 up")
        self._read_ahead = read_ahead
        self._version = 1  # of the position; a worker that was started has the one it was started with
        # [version, position] for workers that persist, then the version at which each worker last began
        self._shared = torch.zeros(2 + MAX_WORKERS, dtype=torch.int64).share_memory_()

    def __iter__(self) -> Iterator[list[Any]]:
        """This worker's batches of the rest of the epoch.

        Raises:
            UsageProblem: a second pass from the same position, because nothing told that batches were used.
        """
        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        turn = self.cursor.turn(self._claim(worker))
        return self._batches(turn, range(worker, turn.num_steps, num_workers))

    def advance(self, num_batches: int = 1) -> None:
        """Count batches as used; `ResumableLoader` does it by itself."""
        super().advance(num_batches)
        self._version += 1

    def seek(self, position: int) -> None:
        """Go on at a position of the stream; it may be any, say step x global batch."""
        super().seek(position)
        self._version += 1

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state stands."""
        super().load_state_dict(state)
        self._version += 1

    def publish(self) -> None:
        """Let workers that persist see the position. Only between two passes: a slow worker may still be beginning."""
        self._shared[1] = self.cursor.position
        self._shared[0] = self._version

    def _claim(self, worker: int) -> int:
        """The position to begin at, noted as begun."""
        published, position = self._shared[:2].tolist()
        if published > self._version:
            self._version = published
        else:
            position = self.cursor.position
        mark = 2 + worker % MAX_WORKERS
        if int(self._shared[mark]) == self._version:
            raise UsageProblem(
                f"a second pass would repeat the batches from position {position:,}: "
                "a plain DataLoader does not tell the stream what was used",
                hint="use ResumableLoader, or call advance() after each batch, or seek()",
            )
        self._shared[mark] = self._version
        return int(position)

    def _batches(self, turn: Turn, steps: range) -> Iterator[list[Any]]:
        reader, ahead = self.dataset.reader, self.pieces_ahead(turn)
        pending: deque[Fetch | MixedFetch] = deque()
        for batch in turn.batches(steps):
            if not batch.positions.size:
                continue
            if ahead is not None:
                reader.hint(*ahead.next_pieces(batch.positions))
            pending.append(reader.start(self.numbers(batch), batch.is_valid, ahead=self._read_ahead > 0))
            if len(pending) > self._read_ahead:
                yield pending.popleft().samples()
        while pending:
            yield pending.popleft().samples()

    def _is_begun(self) -> bool:
        return bool((self._shared[2:] == self._version).any())
