"""Packed data sets in Grain: a source of samples by number, and their reading order as a sampler or a MapDataset.

    source = ShardSource("out", decode=True)
    loader = grain.DataLoader(data_source=source, sampler=ShardSampler(source, seed=7),
                              shard_options=grain.sharding.ShardOptions(rank, world_size))
    dataset = ordered(source, seed=7).repeat()[rank::world_size].batch(16)
    dataset = mixed([source, other], weights=(3, 1), seed=7)    likewise, of several data sets

Grain's index is the position in the global stream, so what it saves is one integer that any world size can go on from.
Positions are dealt to ranks by number, position % world_size. Needs `pip install 'shardtool[grain]'`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, SupportsIndex

try:
    import grain
except ImportError as error:
    raise ImportError("shardtool.grain needs grain: pip install 'shardtool[grain]'") from error

import numpy as np

from shardtool.assignment.assignment import choose_order
from shardtool.errors import UsageProblem
from shardtool.loading.mixed import MixedReader, mixed_order, natural_weights
from shardtool.loading.reader import SampleReader
from shardtool.order.mixture import whole_weights
from shardtool.order.order import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardtool.model import Int64Array
    from shardtool.order.mixed import MixedOrder
    from shardtool.order.params import Mode, OrderParams

__all__ = ["MixedSource", "OrderedMapDataset", "ShardSampler", "ShardSource", "mixed", "ordered"]

BLOCK = 1 << 12  # positions located at a time


class _Source:
    """Random access to the samples of a reader; batches are read with few preads."""

    reader: SampleReader | MixedReader

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, number: SupportsIndex) -> Any:
        return self.reader.read([number.__index__()])[0]

    def _getitems(self, numbers: Sequence[int]) -> list[Any]:
        """What Grain calls for a batch."""
        return self.reader.read(numbers)


class ShardSource(_Source):
    """Random access to the samples of one split; batches are read with few preads.

    Args:
        path: folder or URL of the data set.
        split: its name; "" takes the only one, or `train`.
        parts: part names to read; None reads all.
        decode: True decodes json, txt, cls, npy and tokens (arrays of ids); or a list of those kinds.
        transform: called with each sample; what it returns is the sample.
        io: `pread`, `threads:N` for N reads at a time, or `map` for parts as views of mapped shards, without a copy.
        check: compare every part with its digest.
        cache: a folder that `shardtool stage` fills with some or all of it: what is there is read there.
    """

    def __init__(
        self,
        path: str,
        *,
        split: str = "",
        parts: Iterable[str] | None = None,
        decode: bool | Iterable[str] = False,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        io: str = "pread",
        check: bool = False,
        cache: str = "",
    ) -> None:
        self.reader: SampleReader = SampleReader(
            path, split=split, parts=parts, decode=decode, transform=transform, io=io, check=check, cache=cache
        )

    def __repr__(self) -> str:  # Grain compares it when a checkpoint is restored
        return f"ShardSource(dataset_id={self.reader.dataset_id!r}, split={self.reader.shards.name!r})"


class MixedSource(_Source):
    """Several sources as one: the samples of the first, then those of the second, and so on. `mixed` makes one."""

    def __init__(self, sources: Sequence[ShardSource]) -> None:
        self.reader: MixedReader = MixedReader([source.reader for source in sources])
        self._sources = tuple(sources)

    def __repr__(self) -> str:
        return f"MixedSource({list(self._sources)!r})"


class _Numbers:
    """Sample numbers by position of the stream, a block at a time."""

    def __init__(self, source: ShardSource | MixedSource, order: Order | MixedOrder) -> None:
        self._source, self._order = source, order
        self._known = -1, np.empty(0, np.int64)

    def at(self, position: int) -> int:
        wanted, place = divmod(position, BLOCK)
        block, numbers = self._known  # one assignment, one look: Grain reads in threads
        if block != wanted:
            numbers = self.of(np.arange(wanted * BLOCK, (wanted + 1) * BLOCK, dtype=np.int64))
            self._known = wanted, numbers
        return int(numbers[place])

    def of(self, positions: Int64Array) -> Int64Array:
        return self._source.reader.numbers(*self._order.locate(positions))


class ShardSampler:
    """The reading order for `grain.DataLoader(sampler=)`: index -> record at that position of the global stream.

    Args:
        source: the samples.
        mode: order: `plw`, `shard`, `none` or `full`.
        seed: 0 .. 2^64 - 1; also of the random generator that each record carries.
        elastic: every world size that the run may ever have, the most likely first.
        params: the order in full, in the place of mode, seed and elastic.
        num_epochs: epochs, after which the stream ends; None never ends it.

    Raises:
        UsageProblem: a value out of range.
    """

    def __init__(
        self,
        source: ShardSource,
        *,
        mode: Mode = "plw",
        seed: int = 0,
        elastic: Sequence[int] = (1,),
        params: OrderParams | None = None,
        num_epochs: int | None = None,
    ) -> None:
        if num_epochs is not None and num_epochs < 1:
            raise UsageProblem(f"num_epochs is {num_epochs}", hint="take 1 or more, or None for a stream without end")
        self.order = _order_of(source, mode, seed, elastic, params)
        self._numbers, self._num_epochs = _Numbers(source, self.order), num_epochs
        self._source = source

    def __len__(self) -> int:
        return sys.maxsize if self._num_epochs is None else self._num_epochs * self.order.num_samples

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        if not 0 <= index < len(self):
            raise IndexError(f"there is no position {index} among {len(self)}")
        key = np.array([self.order.params.seed, index], np.uint64)  # a list of large integers would become floats
        rng = np.random.Generator(np.random.Philox(key=key))
        return grain.RecordMetadata(index=index, record_key=self._numbers.at(index), rng=rng)

    def __repr__(self) -> str:  # Grain compares it when a checkpoint is restored
        return f"ShardSampler({self._source!r}, {self.order.params!r}, num_epochs={self._num_epochs})"


class OrderedMapDataset(grain.MapDataset[Any]):
    """Samples by position; an index beyond the length is the next epoch, in its own order.

    `ordered` makes one, and `mixed` one of several data sets.
    """

    def __init__(self, source: ShardSource | MixedSource, order: Order | MixedOrder) -> None:
        super().__init__(grain.MapDataset.source(source))
        self.order, self._numbers = order, _Numbers(source, order)

    def __len__(self) -> int:
        return self.order.num_samples

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        return self._parent[self._numbers.at(index)]

    def _getitems(self, indices: Sequence[int]) -> Any:
        """What Grain calls for a batch."""
        return self._parent._getitems(self._numbers.of(np.asarray(indices, np.int64)).tolist())


def ordered(
    source: ShardSource,
    *,
    mode: Mode = "plw",
    seed: int = 0,
    elastic: Sequence[int] = (1,),
    params: OrderParams | None = None,
) -> OrderedMapDataset:
    """A `grain.MapDataset` in reading order; arguments as for `ShardSampler`. `.repeat()` goes on with other epochs."""
    return OrderedMapDataset(source, _order_of(source, mode, seed, elastic, params))


def mixed(
    sources: Sequence[ShardSource],
    weights: Sequence[int] | None = None,
    *,
    mode: Mode = "plw",
    seed: int = 0,
    elastic: Sequence[int] = (1,),
    mixture_seed: int = 0,
    epoch_samples: int = 0,
) -> OrderedMapDataset:
    """A `grain.MapDataset` of several data sets in fixed proportions, the stream of `shardtool.torch.ShardMixture`.

    Of `sum(weights)` samples in a row each data set gives its weight, every sample of it once before one comes again.
    Grain saves the index alone: go on with the same data sets, weights and seeds.

    Args:
        sources: each with its own parts, decoders and transform.
        weights: whole numbers, one for each data set. By default the numbers of samples, as near as a sum of 1,000
            allows.
        mode: order of each data set: `plw`, `shard`, `none` or `full`.
        seed: of the order of each data set, 0 .. 2^64 - 1.
        elastic: every world size that the run may ever have, the most likely first.
        mixture_seed: of the places of the data sets in the stream.
        epoch_samples: the length; as many as the data sets have together by default.

    Raises:
        UsageProblem: no data set, or weights that make no sense.
    """
    source = MixedSource(sources)
    sizes = [len(each) for each in sources]
    order = mixed_order(
        source.reader,
        weights=whole_weights(natural_weights(sizes) if weights is None else weights),
        num_samples=epoch_samples or sum(sizes),
        mixture_seed=mixture_seed,
        mode=mode,
        seed=seed,
        elastic=elastic,
    )
    return OrderedMapDataset(source, order)


def _order_of(source: ShardSource, mode: Mode, seed: int, elastic: Sequence[int], params: OrderParams | None) -> Order:
    shards = source.reader.shards
    return Order(shards.counts, params or choose_order(shards, tuple(elastic), mode=mode, seed=seed))
