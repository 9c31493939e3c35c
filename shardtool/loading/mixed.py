"""Several data sets read as one: `MixedReader` counts their samples through, `MixedCursor` says which come next.

    reader = MixedReader([reader_a, reader_b])           the interface of SampleReader
    cursor = start_mixed_cursor(reader, weights=(7, 1), num_samples=10_000, global_batch=256, rank=3, world_size=8)
    cursor.reweigh((3, 1))                               from the next step on

Memory: that of the readers; nothing grows with the stream.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.assignment.assignment import choose_order
from shardtool.errors import UsageProblem
from shardtool.loading.ahead import LIMIT_BYTES, PiecesAhead
from shardtool.loading.available import available_memory
from shardtool.loading.cursor import Cursor
from shardtool.order.deal import Deal
from shardtool.order.mixed import MixedOrder, dump_mixture, load_mixture
from shardtool.order.mixture import Mixture, Phase
from shardtool.order.order import Order

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.loading.reader import Fetch, SampleReader
    from shardtool.model import Int64Array
    from shardtool.order.deal import Policy
    from shardtool.order.params import Mode

__all__ = ["MixedAhead", "MixedCursor", "MixedReader", "mixed_order", "natural_weights", "start_mixed_cursor"]


class MixedFetch:
    """A batch under way, of several data sets. `samples` waits for it."""

    def __init__(self, size: int, parts: list[tuple[Fetch, Int64Array]]) -> None:
        self._size, self._parts = size, parts

    def samples(self) -> list[Any]:
        """The samples, in the order that was asked for."""
        found: list[Any] = [None] * self._size
        for fetch, places in self._parts:
            for place, sample in zip(places.tolist(), fetch.samples(), strict=True):
                found[place] = sample
        return found


class MixedReader:
    """Samples of several data sets by number: those of the first, then those of the second, and so on.

    Args:
        readers: one for each data set.

    Raises:
        UsageProblem: there are none.
    """

    def __init__(self, readers: Sequence[SampleReader]) -> None:
        if not readers:
            raise UsageProblem("a mixture of no data set", hint="give one or more")
        self.readers = tuple(readers)
        self.fingerprints = tuple(reader.fingerprint for reader in readers)
        counts = np.concatenate([reader.shards.counts for reader in readers])
        self._edges = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._first_samples = np.cumsum([0, *(len(reader) for reader in readers)]).astype(np.int64)
        self._first_shards = np.cumsum([0, *(len(reader.shards.counts) for reader in readers)]).astype(np.int64)

    def __len__(self) -> int:
        return int(self._first_samples[-1])

    def read(self, numbers: Sequence[int] | Int64Array, is_valid: NDArray[np.bool_] | None = None) -> list[Any]:
        """Samples by number, in the order given; errors as those of `SampleReader.read`."""
        return self.start(numbers, is_valid).samples()

    def start(
        self, numbers: Sequence[int] | Int64Array, is_valid: NDArray[np.bool_] | None = None, *, ahead: bool = False
    ) -> MixedFetch:
        """Begin to read a batch in the background, with `ahead` even where `io` is `pread`."""
        wanted = np.asarray(numbers, np.int64)
        if wanted.size and (int(wanted.min()) < 0 or int(wanted.max()) >= len(self)):
            bad = int(wanted[(wanted < 0) | (wanted >= len(self))][0])
            raise IndexError(f"there is no sample {bad} among {len(self)}")
        parts = [
            (self.readers[source].start(own, None if is_valid is None else is_valid[places], ahead=ahead), places)
            for source, places, own in self._by_source(wanted, self._first_samples)
        ]
        return MixedFetch(len(wanted), parts)

    def numbers(self, shards: Int64Array, rows: Int64Array) -> Int64Array:
        """int64[n]: sample numbers of rows of shards, as a `MixedOrder` gives them."""
        return self._edges[shards] + rows

    def sizes(self, numbers: Int64Array) -> Int64Array:
        """int64[n]: bytes of each sample in its shard."""
        out = np.empty_like(numbers)
        for source, places, own in self._by_source(numbers, self._first_samples):
            out[places] = self.readers[source].sizes(own)
        return out

    def tokens(self, numbers: Int64Array) -> Int64Array:
        """int64[n]: token ids of each sample; 0 for those of data sets that hold none."""
        out = np.empty_like(numbers)
        for source, places, own in self._by_source(numbers, self._first_samples):
            out[places] = self.readers[source].tokens(own)
        return out

    def hint(self, shards: Int64Array, rows: Int64Array, counts: Int64Array) -> None:
        """Tell what will be read soon; see `SampleReader.hint`."""
        for source, places, own in self._by_source(shards, self._first_shards):
            self.readers[source].hint(own, rows[places], counts[places])

    def preload(self, shards: Int64Array | None = None, *, available_bytes: int | None = None) -> int:
        """Keep shards, all by default, in the page cache; returns their bytes.

        Raises:
            UsageProblem: they do not fit.
        """
        chosen = np.arange(self._first_shards[-1]) if shards is None else shards
        left = available_memory() if available_bytes is None else available_bytes
        total = 0
        for source, _, own in self._by_source(chosen, self._first_shards):
            total += self.readers[source].preload(own, available_bytes=left - total)
        return total

    def close(self) -> None:
        """Close all files; reading again opens them."""
        for reader in self.readers:
            reader.close()

    def _by_source(self, numbers: Int64Array, firsts: Int64Array) -> Iterator[tuple[int, Int64Array, Int64Array]]:
        """(source, places in `numbers`, numbers inside the source) for each source that has any."""
        sources = np.searchsorted(firsts, numbers, side="right") - 1
        for source in np.unique(sources).tolist():
            places = np.flatnonzero(sources == source)
            yield source, places, numbers[places] - firsts[source]


class MixedAhead:
    """Which pieces of the data sets come next; see `PiecesAhead`. For one rank: several share every lane."""

    def __init__(self, order: MixedOrder, reader: MixedReader) -> None:
        self._order = order
        self._sources = [
            PiecesAhead(own, each.shards.mean_bytes, own.params.lanes, limit_bytes=LIMIT_BYTES // len(reader.readers))
            for own, each in zip(order.sources, reader.readers, strict=True)
        ]

    def next_pieces(self, positions: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """(shards, first rows, counts) of pieces not told before, int64[n] each."""
        parts = [np.empty((3, 0), np.int64)]
        for source, _, own in self._order.split(positions):
            shards, rows, counts = self._sources[source].next_pieces(own)
            parts.append(np.stack([shards + self._order.first_shards[source], rows, counts]))
        shards, rows, counts = np.concatenate(parts, axis=1)
        return shards, rows, counts


class MixedCursor(Cursor):
    """A `Cursor` over a `MixedOrder`. `start_mixed_cursor` makes one.

    Args:
        order: the mixed order.
        deal: how it is dealt; reading begins at its `start`.
        rank: data rank.
        fingerprints: of each data set and split.
    """

    order: MixedOrder

    def __init__(self, order: MixedOrder, deal: Deal, rank: int, fingerprints: tuple[str, ...]) -> None:
        super().__init__(order, deal, rank, " ".join(fingerprints))
        self._fingerprints = fingerprints

    @property
    def weights(self) -> tuple[int, ...]:
        """Those in force at the position."""
        return self.order.weights_at(self.position)

    def source_positions(self) -> list[int]:
        """Samples of each data set used so far."""
        found: list[int] = self.order.mixture.source_positions(self.position).tolist()
        return found

    def reweigh(self, weights: Sequence[int]) -> None:
        """Read with other weights from the position on, which the state records.

        Raises:
            UsageProblem: not one weight of 0 or more for each data set, or none above 0.
        """
        self.order = self.order.reweighed(self.position, weights)

    def state_dict(self) -> dict[str, int | str]:
        """The state, the same on every rank: integers and strings, always the same keys."""
        return dump_mixture(self.order, fingerprints=self._fingerprints, policy=self.policy, position=self.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state stands. Its weights, orders and length of an epoch win.

        Raises:
            PlanMismatch: other data sets, or another policy inside an epoch.
        """
        found = load_mixture(state, self.order, fingerprints=self._fingerprints, policy=self.policy)
        for note in found.notes:
            warnings.warn(note, stacklevel=2)
        samples = found.order.num_samples
        self._go_on(found.order, replace(self._deal, num_samples=samples, policy=found.policy, start=found.position))


def natural_weights(sizes: Sequence[int], total: int = 1000) -> list[int]:
    """Whole numbers in proportion to sizes, 1 or more where there is a sample, that sum to about `total`."""
    everything = max(1, sum(sizes))
    return [max(1, round(total * size / everything)) if size else 0 for size in sizes]


def mixed_order(
    reader: MixedReader,
    *,
    weights: Sequence[int],
    num_samples: int,
    mixture_seed: int = 0,
    mode: Mode = "plw",
    seed: int = 0,
    elastic: Sequence[int],
) -> MixedOrder:
    """The reading order of a mixture, each data set in its own; arguments as for `start_mixed_cursor`.

    Raises:
        UsageProblem: a value out of range.
    """
    sources = tuple(
        Order(each.shards.counts, choose_order(each.shards, tuple(elastic), mode=mode, seed=seed))
        for each in reader.readers
    )
    return MixedOrder(sources, Mixture((Phase(0, tuple(weights)),), mixture_seed), num_samples)


def start_mixed_cursor(
    reader: MixedReader,
    *,
    weights: Sequence[int],
    num_samples: int,
    mixture_seed: int = 0,
    global_batch: int,
    rank: int = 0,
    world_size: int = 1,
    policy: Policy = "carry",
    mode: Mode = "plw",
    seed: int = 0,
    elastic: Sequence[int] = (),
    position: int = 0,
) -> MixedCursor:
    """A cursor over a mixture; arguments as for `start_cursor`, and:

    Args:
        reader: of the data sets.
        weights: how many of `sum(weights)` samples in a row come from each.
        num_samples: of the mixed stream, in one epoch.
        mixture_seed: which of them stand where; `seed` is that of the order of each data set.

    Raises:
        UsageProblem: a value out of range.
    """
    order = mixed_order(
        reader,
        weights=weights,
        num_samples=num_samples,
        mixture_seed=mixture_seed,
        mode=mode,
        seed=seed,
        elastic=tuple(elastic) or (world_size,),
    )
    deal = Deal(num_samples, world_size, global_batch, order.params.unit, policy, position)
    return MixedCursor(order, deal, rank, reader.fingerprints)
