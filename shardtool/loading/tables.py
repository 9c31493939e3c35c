"""The index of one shard as numpy columns, for reading samples by number.

In: a mapped `ShardIndex`. Out: `ShardTable`, with the wanted parts alone. A batch of the default order touches each
shard for a handful of samples, so a column costs one short numpy call a shard, and no object a part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardtool import columns
from shardtool.formats import ROWS

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from shardtool.index_file import ShardIndex
    from shardtool.model import Int32Array, Int64Array, UInt64Array

__all__ = ["FILE", "FRAMES", "PARTS", "ShardTable"]

FILE = "file"  # a part is a run of bytes of the file
FRAMES = "frames"  # of what the file decompresses to
PARTS = "parts"  # found by the reader of the format


@dataclass(frozen=True, eq=False)
class ShardTable:
    """Where samples and parts of one shard lie. Memory: 12 bytes a part, or 36 of some parts; the rest is mapped."""

    part_start: Int64Array  # int64[num_samples + 1]
    offset: UInt64Array  # uint64[num_parts]
    size: UInt64Array  # uint64[num_parts]
    digest: UInt64Array  # uint64[num_parts], xxh3_64
    code: Int32Array  # int32[num_parts], row in names
    names: NDArray[np.object_]  # text
    source: str  # FILE, FRAMES or PARTS: what offsets point into
    _index_rows: Int64Array | None  # of the parts, where some were left out
    _key_start: Int64Array  # int64[num_samples + 1]
    _key_data: memoryview

    @classmethod
    def of(cls, index: ShardIndex, wanted: Collection[str] | None = None) -> ShardTable:
        """The table of an index, of the parts of these names; None takes all."""
        encoded = index.part_names.dictionary_encode()
        code = encoded.indices.to_numpy()
        names = [shown(name) for name in columns.to_list(encoded.dictionary)]
        starts, data = columns.buffers_of(index.keys)
        part_start, rows = index.part_start, None
        chosen: slice | Int64Array = slice(None)
        if wanted is not None and not set(names) <= set(wanted):
            is_wanted = np.array([name in wanted for name in names], bool)[code]
            part_start = np.concatenate([[0], np.cumsum(is_wanted)])[part_start]
            chosen = rows = np.flatnonzero(is_wanted)
        return cls(
            part_start=part_start,
            offset=index.part_offset[chosen],
            size=index.part_bytes[chosen],
            digest=index.part_xxh3_64[chosen],
            code=code[chosen],
            names=np.array(names, object),
            source=PARTS if index.addressing == ROWS else FRAMES if "frames" in index.meta else FILE,
            _index_rows=rows,
            _key_start=starts,
            _key_data=data.data,
        )

    @property
    def num_parts(self) -> int:
        """Parts of the shard, as far as they are wanted."""
        return len(self.code)

    def keys(self, rows: Int64Array) -> list[str]:
        """Keys of samples; bytes that are not UTF-8 as surrogates, the way `os.fsdecode` does it."""
        data = self._key_data
        starts, ends = self._key_start[rows].tolist(), self._key_start[rows + 1].tolist()
        return [str(data[start:end], "utf-8", "surrogateescape") for start, end in zip(starts, ends, strict=True)]

    def index_row(self, part: int) -> int:
        """Row of a part in the part columns of the index."""
        return part if self._index_rows is None else int(self._index_rows[part])


def shown(name: bytes) -> str:
    """A part name as text."""
    return name.decode("utf-8", "backslashreplace")
