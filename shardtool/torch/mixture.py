"""Several data sets in one stream, in fixed proportions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from torch.utils.data import Dataset

from shardtool.errors import UsageProblem
from shardtool.loading.mixed import MixedAhead, MixedCursor, MixedReader, natural_weights, start_mixed_cursor
from shardtool.order.mixture import whole_weights
from shardtool.torch.dataset import validity_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.loading.cursor import Cursor, Turn
    from shardtool.model import Int64Array
    from shardtool.order.mixed import MixedOrder
    from shardtool.order.params import OrderParams
    from shardtool.torch.dataset import ShardDataset

__all__ = ["ShardMixture"]


class ShardMixture(Dataset[Any]):
    """Data sets read as one, in fixed proportions; takes the place of a `ShardDataset` in sampler and stream.

    Of `sum(weights)` samples in a row each data set gives its weight. It is read along an endless stream of its own,
    every sample once before one of them comes again. One position tells where all of them stand. Weights may change
    during a run: `reweigh(weights)` of the loader, sampler or stream.

    Args:
        datasets: each with its own parts, decoders and transform.
        weights: whole numbers, one for each data set; 0 leaves it out until the weights change. By default the
            numbers of samples, as near as a sum of 1,000 allows.
        seed: of the places of the data sets in the stream, 0 .. 2^64 - 1.
        epoch_samples: samples of one pass of a loop; as many as the data sets have together by default.

    Raises:
        UsageProblem: no data set, or weights that make no sense.
    """

    def __init__(
        self,
        datasets: Sequence[ShardDataset],
        weights: Sequence[int] | None = None,
        *,
        seed: int = 0,
        epoch_samples: int = 0,
    ) -> None:
        self.reader = MixedReader([dataset.reader for dataset in datasets])
        sizes = [len(dataset) for dataset in datasets]
        self.weights = whole_weights(natural_weights(sizes) if weights is None else weights)
        self._seed, self._epoch_samples = seed, epoch_samples or sum(sizes)

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Samples by number: those of the first data set, then those of the second, and so on."""
        return self.reader.read(numbers, validity_of(numbers))

    def preload(self, shards: Int64Array | None = None, *, available_bytes: int | None = None) -> int:
        """Keep shards, all by default, in the page cache; returns their bytes. See `ShardDataset.preload`."""
        return self.reader.preload(shards, available_bytes=available_bytes)

    def start_cursor(self, *, params: OrderParams | None = None, **options: Any) -> MixedCursor:
        """A position in the mixture; options as `loading.cursor.start_cursor` explains them.

        Raises:
            UsageProblem: `params`, which one order has and not several.
        """
        if params is not None:
            raise UsageProblem("params= is the order of one data set", hint="give mode=, seed= and elastic=")
        return start_mixed_cursor(
            self.reader,
            weights=self.weights,
            num_samples=self._epoch_samples,
            mixture_seed=self._seed,
            **options,
        )

    def node_shards(self, cursor: Cursor, num_nodes: int, node: int) -> None:
        """None, which means all: a node reads every shard of a mixture."""

    def pieces_ahead(self, turn: Turn) -> MixedAhead | None:
        """What tells the pieces that come next; None with several ranks, each of which needs little of every piece."""
        if turn.deal.world_size > 1:
            return None
        return MixedAhead(cast("MixedOrder", turn.order), self.reader)
