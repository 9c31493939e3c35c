"""The sequences of a shard being written: a row each, in unnamed files until its `.idx` and its index are written.

Both are column after column, and sequences come row by row: kept in memory they would take some 200 bytes each.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from shardtool.columns import MAX_BINARY_BYTES, buffers_of, from_offsets
from shardtool.errors import PlanError
from shardtool.formats.bin import DTYPE, LAYOUT, PART
from shardtool.formats.bin_index import DTYPES, encode_idx
from shardtool.index_file import index_meta, parts_array, put_columns
from shardtool.model import PartTotals
from shardtool.storage.pages import Column
from shardtool.storage.shard_file import Sink
from shardtool.tokens.runs import FOLDER

if TYPE_CHECKING:
    from shardtool.model import BinaryArray, Int64Array, UInt64Array
    from shardtool.storage.shard_file import ShardFile

_COLUMNS = {
    "key_end": "<i4",
    "key": "u1",
    "tokens": "<i4",
    "offset": "<i8",
    "bytes": "<i8",
    "xxh3_64": "<u8",
    "part_end": "<i4",
    "name_end": "<i4",
    "name": "u1",
}


class SequenceTable:
    """Takes sequences in the order of the shard.

    Args:
        work: the folder below which runs lie; what is held lies there, too.
        dtype: of the ids.
    """

    def __init__(self, work: str, dtype: str) -> None:
        self.dtype = dtype
        self._itemsize = np.dtype(DTYPES[dtype]).itemsize
        folder = os.path.join(work, FOLDER)
        self._columns = {name: Column(folder, kind) for name, kind in _COLUMNS.items()}
        for name in ("key_end", "part_end", "name_end"):
            self._columns[name].append([0])
        self.count = self.num_bytes = self._key_bytes = 0
        self._range = ((1 << 63) - 1, 0)  # of bytes a sequence

    def add(self, keys: BinaryArray, tokens: Int64Array, digests: UInt64Array) -> None:
        """Take the next sequences.

        Raises:
            PlanError: keys of more than 2 GiB, which no index holds.
            NoSpace: there is no room for them.
        """
        if not len(tokens):
            return
        sizes = tokens.astype(np.int64) * self._itemsize
        offsets, data = buffers_of(keys)
        numbers = np.arange(self.count + 1, self.count + len(tokens) + 1)
        ends = np.cumsum(sizes)
        values = {
            "key_end": offsets[1:] + (self._key_bytes - offsets[0]),
            "key": data[offsets[0] : offsets[-1]],
            "tokens": tokens,
            "offset": self.num_bytes + ends - sizes,
            "bytes": sizes,
            "xxh3_64": digests,
            "part_end": numbers,
            "name_end": numbers * len(PART),
            "name": np.frombuffer(PART * len(tokens), np.uint8),
        }
        self._key_bytes += int(offsets[-1] - offsets[0])
        if max(self._key_bytes, int(numbers[-1]) * len(PART)) > MAX_BINARY_BYTES:
            raise PlanError("a shard has so many sequences that its index cannot hold their keys", hint="more --shards")
        for name, column in values.items():
            self._columns[name].append(column)
        self.count += len(tokens)
        self.num_bytes += int(ends[-1])
        self._range = (min(self._range[0], int(sizes.min())), max(self._range[1], int(sizes.max())))

    @property
    def totals(self) -> dict[str, PartTotals]:
        """What the receipt says of the parts."""
        return {PART.decode(): PartTotals(self.count, self.num_bytes, *self._range)}

    def put_idx(self, file: ShardFile) -> None:
        """Write the `.idx`.

        Raises:
            SampleTooLarge: more sequences than readers can number.
        """
        tokens = self._columns["tokens"]
        for piece in encode_idx(tokens.values, self.dtype):
            file.write(piece)
            tokens.forget()

    def put_index(self, file: ShardFile, shard: ShardFile) -> None:
        """Write the index file of `shard`, which is complete."""
        values = {name: column.values for name, column in self._columns.items()}
        parts = parts_array(
            values["part_end"],
            from_offsets(values["name_end"], values["name"]),
            values["offset"],
            values["bytes"],
            values["xxh3_64"],
            from_offsets(
                np.zeros(self.count + 1, np.int32), np.zeros(0, np.uint8)
            ),  # NO_FILE: no file holds a document
        )
        keys = from_offsets(values["key_end"], values["key"])
        meta = {**index_meta("bin", LAYOUT, shard.record(), shard.digest.blocks()), DTYPE: self.dtype}
        put_columns(Sink(file, self._forget), keys, values["offset"], values["bytes"], None, parts, meta)

    def _forget(self) -> None:
        for column in self._columns.values():
            column.forget()

    def close(self) -> None:
        """Give the room back."""
        for column in self._columns.values():
            column.close()
