"""Token shards: `X.bin` is ids one after the other, `X.idx` beside it says where each sequence begins.

A sample is a sequence, its one part is called `tokens`. `pack --format bin` writes shards through
`shardtool.tokens`; what is here writes the same bytes a sample at a time, and says where everything lies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.errors import PlanError
from shardtool.formats import BYTES, Settings, ShardLayout, WrittenShard
from shardtool.formats.bin_index import DTYPES, encode_idx, idx_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.model import Int64Array, Manifest, SampleTable, ShardRows
    from shardtool.sources.reader import PartReader
    from shardtool.storage.shard_file import ShardFile

PART = b"tokens"
LAYOUT = "bin/1"
DTYPE = "dtype"  # key in the metadata of an index


@dataclass(frozen=True)
class BinFormat:
    """`.bin/.idx` pairs.

    Args:
        dtype: of the ids; what is read back says it itself.
    """

    settings: Settings = field(default_factory=Settings)
    dtype: str = "uint16"
    name: str = "bin"
    suffix: str = ".bin"
    layout: str = LAYOUT
    addressing: str = BYTES
    is_exact: bool = True
    has_schema: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of one id."""
        return np.dtype(DTYPES[self.dtype]).itemsize

    def check(self, table: SampleTable) -> None:
        """Refuse samples that are anything but one part called `tokens`, of whole ids.

        Raises:
            PlanError: naming the part.
        """
        others = sorted(set(table.part_names) - {PART})
        if others or (table.entries.sizes[table.part_entry] % self.itemsize).any():
            shown = b", ".join(others).decode("utf-8", "backslashreplace") or "tokens that are no whole number of ids"
            raise PlanError(f"a .bin holds token ids, not {shown}", hint="--format tar or parquet packs any bytes")

    def sizes(self, table: SampleTable) -> Int64Array:
        """int64[num_samples]: bytes of each sequence in both files."""
        return table.payload_bytes() + idx_bytes(1, 1) - idx_bytes(0, 0)

    def shard_overhead(self, num_samples: int) -> int:
        """Bytes of an `.idx` without sequences."""
        return idx_bytes(0, 0)

    def write(self, rows: ShardRows, members: list[bytes], read: PartReader, out: ShardFile) -> WrittenShard:
        """Write a shard a sequence at a time; the oracle of `shardtool.tokens.shard`."""
        import xxhash

        digests = np.zeros(rows.num_parts, np.uint64)
        buffer = memoryview(bytearray(1 << 20))
        for part in range(rows.num_parts):
            state = xxhash.xxh3_64()
            for piece in read.stream(part, buffer):
                state.update(piece)
                out.write(piece)
            digests[part] = state.intdigest()
        index = out.sibling(".idx")
        for encoded in encode_idx(rows.sizes // self.itemsize, self.dtype):
            index.write(encoded)
        return written_shard(rows.sizes, digests, self.dtype)

    def layout_of(self, rows: ShardRows, members: list[bytes]) -> ShardLayout:
        """Where every sequence lies: one after the other from byte 0 on."""
        starts = np.cumsum(rows.sizes) - rows.sizes
        return ShardLayout(starts, rows.sizes, starts, int(rows.sizes.sum()))

    def structure(self, rows: ShardRows, part_offset: Int64Array) -> None:
        """None: every byte of a `.bin` is payload, and its `.idx` has a digest of its own."""

    def ends(self, rows: ShardRows, members: list[bytes]) -> tuple[bytes, bytes]:
        """Nothing is known of the first and last bytes: all of them are payload."""
        return b"", b""

    def side_files(self, manifest: Manifest) -> Iterator[tuple[str, bytes]]:
        """None: the `.idx` is a file of its shard."""
        return iter(())


def written_shard(sizes: Int64Array, digests: Any, dtype: str) -> WrittenShard:
    """Where the sequences of a shard lie, from their bytes."""
    starts = np.cumsum(sizes) - sizes
    return WrittenShard(starts, sizes, starts, digests, {DTYPE: dtype})
