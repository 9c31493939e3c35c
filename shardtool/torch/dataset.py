"""The map-style data set: samples by number, a batch at a time."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from torch.utils.data import Dataset

from shardtool.assignment.placement import node_shards
from shardtool.loading.ahead import PiecesAhead
from shardtool.loading.cursor import start_cursor
from shardtool.loading.reader import SampleReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from shardtool.loading.cursor import Cursor, Turn
    from shardtool.model import Int64Array
    from shardtool.order.order import Order

__all__ = ["Repeated", "ShardDataset", "validity_of"]


class Repeated(int):
    """A sample number that `pad` draws a second time."""


class ShardDataset(Dataset[Any]):
    """A map-style data set over one split of a packed data set.

    Samples are dictionaries {"__key__": key, part: bytes or decoded}. A batch is read with few preads, grouped by
    shard; torch's own samplers work over it, at the price of scattered reads: `ShardBatchSampler` keeps them close.

    Args:
        path: folder or URL of the data set.
        split: its name; "" takes the only one, or `train`.
        parts: part names to read; None reads all.
        decode: True decodes json, txt, cls, npy and tokens (arrays of ids); or a list of those kinds.
        transform: called with each sample in the loader worker, once it was read; what it returns is the sample.
        io: `pread`, `threads:N` for N reads at a time, or `map` for parts as views of mapped shards, without a copy.
        valid: name of an entry that is False for samples which policy `pad` repeats; "" adds none.
        check: compare every part with its digest.
        cache: a folder that `shardtool stage` fills with some or all of it: what is there is read there.
        preload: keep the whole split in the page cache, shared by all processes of the node; see `preload`.

    Raises:
        SourceNotFound: no data set there.
        UsageProblem: no such split, a value out of range, or too little memory to preload.
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
        valid: str = "",
        check: bool = False,
        cache: str = "",
        preload: bool = False,
    ) -> None:
        self.reader = SampleReader(
            path,
            split=split,
            parts=parts,
            decode=decode,
            transform=transform,
            io=io,
            valid=valid,
            check=check,
            cache=cache,
        )
        if preload:
            self.preload()

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Samples by number, in the order given; what a DataLoader calls with a batch."""
        return self.reader.read(numbers, validity_of(numbers))

    def preload(self, shards: Int64Array | None = None, *, available_bytes: int | None = None) -> int:
        """Keep shards in the page cache: mapped, and read now. Returns their bytes.

        Args:
            shards: of the split, 0-based, such as `node_shards` gives; None takes all.
            available_bytes: memory they may fill; None asks the system.

        Raises:
            UsageProblem: they do not fit.
        """
        return self.reader.preload(shards, available_bytes=available_bytes)

    def start_cursor(self, **options: Any) -> Cursor:
        """A position in this data set; options as `loading.cursor.start_cursor` explains them."""
        return start_cursor(self.reader.shards, self.reader.fingerprint, **options)

    def node_shards(self, cursor: Cursor, num_nodes: int, node: int) -> Int64Array | None:
        """int64[n]: the shards of the split that a node reads in the epoch of a cursor."""
        return node_shards(cast("Order", cursor.order), num_nodes, node, cursor.epoch)

    def pieces_ahead(self, turn: Turn) -> PiecesAhead | None:
        """What tells the pieces that the steps of a rank need next."""
        order = cast("Order", turn.order)
        lanes = order.params.lanes
        return PiecesAhead(order, self.reader.shards.mean_bytes, lanes // gcd(lanes, turn.deal.world_size))


def validity_of(numbers: Sequence[int]) -> NDArray[np.bool_] | None:
    """bool[n]: False for numbers that `pad` repeats; None where it repeats none."""
    if any(type(number) is Repeated for number in numbers):
        return np.array([type(number) is not Repeated for number in numbers])
    return None
