"""The map-style data set: samples by number, a batch at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from shardtool.loading.reader import SampleReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from shardtool.model import Int64Array

__all__ = ["Repeated", "ShardDataset"]


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
        decode: True decodes json, txt, cls and npy; or a list of those kinds.
        transform: called with each sample in the loader worker; what it returns is the sample.
        io: `pread`, or `threads:N` for N reads at a time.
        valid: name of an entry that is False for samples which policy `pad` repeats; "" adds none.
        check: compare every part with its digest.
        cache: a folder that `shardtool stage` fills with some or all of it: what is there is read there.
        preload: keep the whole split in the page cache, shared by all processes of the node; see `preload`.

    Raises:
        SourceNotFound: no data set there.
        UsageProblem: no such split, a value out of range, or too little memory to preload.
        UnknownFormat: shards of tokens.
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
        return self.reader.read(numbers, _validity(numbers))

    def preload(self, shards: Int64Array | None = None, *, available_bytes: int | None = None) -> int:
        """Keep shards in the page cache: mapped, and read now. Returns their bytes.

        Args:
            shards: of the split, 0-based, such as `node_shards` gives; None takes all.
            available_bytes: memory they may fill; None asks the system.

        Raises:
            UsageProblem: they do not fit.
        """
        return self.reader.preload(shards, available_bytes=available_bytes)


def _validity(numbers: Sequence[int]) -> NDArray[np.bool_] | None:
    if any(type(number) is Repeated for number in numbers):
        return np.array([type(number) is not Repeated for number in numbers])
    return None
