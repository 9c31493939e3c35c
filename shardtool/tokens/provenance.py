"""`.shardtool/provenance/00017.parquet`: which document each run of tokens of a shard came from.

A row a run: sequence of the shard, first token in it, key of the document, first token in that, tokens, and bytes of
the document's text. Row groups of a fixed number of rows are written as they fill, so memory does not grow with the
shard, and bytes do not follow from how the rows came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardtool.names import HIDDEN, MIN_DIGITS
from shardtool.storage.shard_file import ShardFile, Sink

if TYPE_CHECKING:
    from shardtool.model import BinaryArray, Int64Array

FOLDER = f"{HIDDEN}/provenance"
_SCHEMA = pa.schema(
    [
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("at", pa.int64(), nullable=False),
        pa.field("document", pa.binary(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("text_bytes", pa.int64(), nullable=False),
    ]
)
GROUP_ROWS = 1 << 16


def provenance_path(shard: int, total: int) -> str:
    """Where the provenance of shard k lies, below the data set's folder."""
    digits = max(MIN_DIGITS, len(str(total - 1)))
    return f"{FOLDER}/{shard:0{digits}d}.parquet"


class ProvenanceWriter:
    """Writes the provenance of one shard; `finish` ends it, publishing is the caller's."""

    def __init__(self, out: str, shard: int, total: int, tag: str) -> None:
        self.file = ShardFile(out, provenance_path(shard, total), tag)
        self._writer = pq.ParquetWriter(  # next to no value comes twice: dictionaries would be larger, and dear
            Sink(self.file), _SCHEMA, compression="zstd", use_dictionary=False, store_schema=False
        )
        self._held: list[Any] = []
        self._rows = 0

    def add(
        self,
        documents: BinaryArray,
        sequence: Int64Array,
        at: Int64Array,
        start: Int64Array,
        tokens: Int64Array,
        text_bytes: Int64Array,
    ) -> None:
        """Take rows, in the order of the shard."""
        arrays = [pa.array(sequence), pa.array(at), documents.cast(pa.binary())]
        arrays += [pa.array(start), pa.array(tokens), pa.array(text_bytes)]
        self._held.append(pa.record_batch(arrays, schema=_SCHEMA))
        self._rows += len(sequence)
        if self._rows >= GROUP_ROWS:
            self._write_groups()

    def _write_groups(self) -> None:
        """Write the row groups that are full, each as one chunk: pages end where chunks do. Keep the rest."""
        held, first = pa.Table.from_batches(self._held, _SCHEMA), 0
        while first + GROUP_ROWS <= self._rows:
            self._write(held.slice(first, GROUP_ROWS))
            first += GROUP_ROWS
        self._held, self._rows = held.slice(first).to_batches(), self._rows - first

    def _write(self, rows: Any) -> None:
        self._writer.write_table(rows.combine_chunks(), row_group_size=GROUP_ROWS)

    def finish(self) -> None:
        """Write what is held, and the footer."""
        if self._rows:
            self._write(pa.Table.from_batches(self._held, _SCHEMA))
        self._writer.close()
