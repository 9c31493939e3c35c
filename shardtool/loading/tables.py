"""The index of one shard as flat integers, for reading single samples: no numpy call and no object a sample.

In: a mapped `ShardIndex`. Out: `ShardTable`, whose columns are memoryviews: an item of them costs 40 ns, one of a numpy
array three times that, and a batch of the default order touches each shard for a handful of samples only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool import columns
from shardtool.formats import ROWS

if TYPE_CHECKING:
    from shardtool.index_file import ShardIndex

__all__ = ["FILE", "FRAMES", "PARTS", "ShardTable"]

FILE = "file"  # a part is a run of bytes of the file
FRAMES = "frames"  # of what the file decompresses to
PARTS = "parts"  # found by the reader of the format


@dataclass(frozen=True, eq=False)
class ShardTable:
    """Where samples and parts of one shard lie. Memory: 12 bytes a part, the rest is mapped."""

    part_start: memoryview  # int64[num_samples + 1]
    offset: memoryview  # uint64[num_parts]
    size: memoryview  # uint64[num_parts]
    digest: memoryview  # uint64[num_parts], xxh3_64
    code: memoryview  # int32[num_parts], row in names
    names: tuple[str, ...]
    source: str  # FILE, FRAMES or PARTS: what offsets point into
    _key_start: memoryview  # int32[num_samples + 1]
    _key_data: memoryview

    @classmethod
    def of(cls, index: ShardIndex) -> ShardTable:
        """The table of an index."""
        encoded = index.part_names.dictionary_encode()
        starts, data = columns.buffers_of(index.keys)
        return cls(
            part_start=_view(index.part_start, np.int64),
            offset=_view(index.part_offset, np.uint64),
            size=_view(index.part_bytes, np.uint64),
            digest=_view(index.part_xxh3_64, np.uint64),
            code=_view(encoded.indices.to_numpy(), np.int32),
            names=tuple(shown(name) for name in columns.to_list(encoded.dictionary)),
            source=PARTS if index.addressing == ROWS else FRAMES if "frames" in index.meta else FILE,
            _key_start=_view(starts, np.int64),
            _key_data=_view(data, np.uint8),
        )

    @property
    def num_parts(self) -> int:
        """Parts of the shard."""
        return len(self.code)

    def key(self, row: int) -> str:
        """Key of a sample; bytes that are not UTF-8 as surrogates, the way `os.fsdecode` does it."""
        return str(self._key_data[self._key_start[row] : self._key_start[row + 1]], "utf-8", "surrogateescape")


def shown(name: bytes) -> str:
    """A part name as text."""
    return name.decode("utf-8", "backslashreplace")


def _view(array: Any, kind: Any) -> memoryview:
    data: Any = np.ascontiguousarray(array, kind)
    return memoryview(data)
