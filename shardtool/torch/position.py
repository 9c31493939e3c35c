"""What sampler and stream share: where this rank stands, what comes next, and who tells that batches were used."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch.distributed

from shardtool.errors import UsageProblem
from shardtool.loading.mixed import MixedCursor
from shardtool.staging.nodes import data_rank_here

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardtool.loading.ahead import PiecesAhead
    from shardtool.loading.cursor import Batch, Turn
    from shardtool.loading.mixed import MixedAhead
    from shardtool.model import Int64Array
    from shardtool.order.deal import Policy
    from shardtool.order.params import Mode, OrderParams
    from shardtool.torch.dataset import ShardDataset
    from shardtool.torch.mixture import ShardMixture

__all__ = ["Positioned"]


class Positioned:
    """A cursor over a data set; options as `ShardBatchSampler` explains them."""

    def __init__(
        self,
        dataset: ShardDataset | ShardMixture,
        *,
        global_batch: int,
        rank: int | None = None,
        world_size: int | None = None,
        policy: Policy = "carry",
        mode: Mode = "plw",
        seed: int = 0,
        elastic: Sequence[int] = (),
        params: OrderParams | None = None,
        position: int = 0,
        hints: bool = True,
    ) -> None:
        rank, world_size = _ranks(rank, world_size)
        self.dataset, self._hints = dataset, hints
        self.cursor = dataset.start_cursor(
            global_batch=global_batch,
            rank=rank,
            world_size=world_size,
            policy=policy,
            mode=mode,
            seed=seed,
            elastic=elastic,
            params=params,
            position=position,
        )
        self._is_told = False

    @property
    def position(self) -> int:
        """Samples of the global stream used, over all ranks, since the start of training."""
        return self.cursor.position

    def __len__(self) -> int:
        """Batches from the position to the end of its epoch."""
        return self.cursor.turn().num_steps

    def advance(self, num_batches: int = 1) -> None:
        """Count batches as used; `ResumableLoader` does it by itself."""
        self.cursor.advance(num_batches)
        self._is_told = True

    def seek(self, position: int) -> None:
        """Go on at a position of the stream; it may be any, say step x global batch."""
        self.cursor.seek(position)
        self._is_told = False

    def state_dict(self) -> dict[str, int | str]:
        """The state after the batches used so far, the same on every rank.

        Raises:
            UsageProblem: batches were drawn, but nothing told how many of them were used.
        """
        if self._is_begun() and not self._is_told:
            raise UsageProblem(
                "the position is not known: a DataLoader draws batches ahead of those it yields",
                hint="use ResumableLoader, or call advance() after each batch",
            )
        return self.cursor.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state stands; world size, batch size and workers may be others.

        Raises:
            PlanMismatch: the state of another data set, or of another policy inside an epoch.
        """
        self.cursor.load_state_dict(state)
        self._is_told = False

    def reweigh(self, weights: Sequence[int]) -> None:
        """Read a mixture with other weights from the position on, which the state records.

        A `DataLoader` draws ahead: call it between two passes, or break off the loop.

        Raises:
            UsageProblem: no mixture, or weights that make no sense.
        """
        if not isinstance(self.cursor, MixedCursor):
            raise UsageProblem("there is one data set: nothing has weights", hint="ShardMixture takes several")
        self.cursor.reweigh(weights)
        self.seek(self.position)

    def preload(self, num_nodes: int = 1, node: int = 0) -> int:
        """Keep a node's share of the shards in the page cache; returns its bytes.

        Data ranks are numbered local_rank * num_nodes + node.
        """
        return self.dataset.preload(self.dataset.node_shards(self.cursor, num_nodes, node))

    def _is_begun(self) -> bool:
        raise NotImplementedError

    def numbers(self, batch: Batch) -> Int64Array:
        """int64[n]: sample numbers of a batch."""
        return self.dataset.reader.numbers(batch.shards, batch.rows)

    def pieces_ahead(self, turn: Turn) -> PiecesAhead | MixedAhead | None:
        """What tells the pieces that come next; None where nobody wants to know."""
        return self.dataset.pieces_ahead(turn) if self._hints else None


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(data rank, world size): as given; or by torch.distributed and what the launcher says of nodes; or one of one."""
    if (rank is None) != (world_size is None):
        raise UsageProblem("rank and world_size go together", hint="give both, or none to ask torch.distributed")
    if rank is not None and world_size is not None:
        return rank, world_size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        world_size = torch.distributed.get_world_size()
        return data_rank_here(os.environ, torch.distributed.get_rank(), world_size), world_size
    return 0, 1
