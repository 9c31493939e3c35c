"""`draft_shard(job, k)`: the runs are merged to one `.bin/.idx` pair with its index; called where `pack_shard` is.

Its documents come a slab at a time; columns of the shard's sequences stay in memory until the index is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from shardtool import columns
from shardtool.formats.bin import PART, BinFormat, written_shard
from shardtool.formats.bin_index import DTYPES, encode_idx
from shardtool.index_file import NO_FILE, encode_index
from shardtool.model import PartTotals, Receipt, ShardRows
from shardtool.names import index_path
from shardtool.storage.shard_file import ShardFile
from shardtool.tokens.packing import best_fit
from shardtool.tokens.provenance import ProvenanceWriter
from shardtool.tokens.runs import cut, digests_of, open_run, work_folder
from shardtool.tokens.slabs import joined, read_slabs, sliced
from shardtool.tokens.store import load_shards

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.formats import Format
    from shardtool.model import BinaryArray, Int64Array, UInt64Array
    from shardtool.packing.pack import Draft, PackJob
    from shardtool.tokens.plan import TokenShard
    from shardtool.tokens.runs import Run
    from shardtool.tokens.slabs import Slab
    from shardtool.tokens.store import ShardPlan


@lru_cache(maxsize=2)
def _opened(out: str, _plan_id: str) -> tuple[ShardPlan, list[Run]]:
    plan = load_shards(out)
    work = work_folder(out)
    return plan, [open_run(work, info) for info in plan.runs]


def draft_shard(job: PackJob, shard: int, tag: str) -> Draft:
    """Write the files of shard k, none of which has its final name yet.

    Raises:
        CorruptShard: a run is gone or damaged.
        NoSpace, DestinationError: the shard cannot be written; nothing of it stays.
    """
    from shardtool.packing.pack import Draft

    plan, runs = _opened(job.out, job.plan_id)
    spec, chosen = job.specs[shard], plan.shards[shard]
    begun: list[ShardFile] = []
    try:
        file = ShardFile(job.out, spec.path, tag)
        begun.append(file)
        provenance = ProvenanceWriter(job.out, shard, len(job.specs), tag)
        begun.append(provenance.file)
        slabs = read_slabs(plan, runs, chosen)
        writer = _writer(plan)
        rows = writer(plan, chosen, spec.split, slabs, file, provenance)
        index_file = file.sibling(".idx")
        for piece in encode_idx(rows.lengths, plan.dtype):
            index_file.write(piece)
        provenance.finish()
        encoded, receipt = _index(job, shard, plan, rows, file)
        index = ShardFile(job.out, index_path(shard, len(job.specs)), tag)
        begun.append(index)
        index.write(encoded)
    except BaseException:
        for one in begun:
            one.abort()
        raise
    return Draft(file, index, receipt(index.record()), (provenance.file,))


@dataclass
class Rows:
    """What was written: sequences in order."""

    keys: BinaryArray
    lengths: Int64Array  # tokens
    digests: UInt64Array


def _writer(plan: ShardPlan) -> Any:
    if not plan.context:
        return _write_documents
    return _write_stream if plan.packing == "concat" else _write_blocks


def _index(job: PackJob, shard: int, plan: ShardPlan, rows: Rows, file: ShardFile) -> tuple[bytes, Any]:
    """(the index file, a function from its record to the receipt)."""
    count = len(rows.lengths)
    sizes = rows.lengths * np.dtype(DTYPES[plan.dtype]).itemsize
    shard_rows = ShardRows(
        keys=rows.keys,
        labels=None,
        part_start=np.arange(count + 1),
        names=pa.DictionaryArray.from_arrays(np.zeros(count, np.int8), pa.array([PART], pa.binary())).cast(pa.binary()),
        source=pa.array([NO_FILE], pa.binary()).take(pa.array(np.zeros(count, np.int8))),
        roots=np.zeros(count, np.uint32),
        sizes=sizes,
        mtimes_ns=np.zeros(count, np.int64),
        data=columns.nulls(count),
    )
    written = written_shard(sizes, rows.digests, plan.dtype)
    records = file.records()
    shard_format = cast("Format", BinFormat(job.settings, plan.dtype))
    encoded = encode_index(shard_rows, written, shard_format, records[0], file.digest.blocks())
    payload = int(sizes.sum())
    totals = {PART.decode(): PartTotals(count, payload, int(sizes.min()), int(sizes.max()))}
    split = job.specs[shard].split
    return encoded, lambda record: Receipt(job.plan_id, shard, split, records, record, count, payload, totals)


def _ids(slab: Slab, plan: ShardPlan) -> NDArray[Any]:
    """The ids of a slab."""
    return np.frombuffer(b"".join(slab.data), DTYPES[plan.dtype])


def _write_documents(
    plan: ShardPlan,
    _shard: TokenShard,
    _split: str,
    slabs: Iterator[Slab],
    out: ShardFile,
    provenance: ProvenanceWriter,
) -> Rows:
    keys, lengths, digests = [], [], []
    sequence = 0
    for slab in slabs:
        for piece in slab.data:
            out.write(piece)
        keys.append(slab.keys)
        lengths.append(slab.tokens)
        digests.append(slab.digests)
        count = len(slab.tokens)
        numbers = np.arange(sequence, sequence + count)
        zeros = np.zeros(count, np.int64)
        provenance.add(slab.keys, numbers, zeros, zeros, slab.tokens, slab.text_bytes)
        sequence += count
    return Rows(pa.concat_arrays(keys), np.concatenate(lengths), np.concatenate(digests))


def sequence_keys(split: str, first: int, count: int) -> BinaryArray:
    """Keys of packed sequences: `train/000000017`."""
    return columns.binary([b"%s/%09d" % (split.encode(), number) for number in range(first, first + count)])


def _write_stream(
    plan: ShardPlan, shard: TokenShard, split: str, slabs: Iterator[Slab], out: ShardFile, provenance: ProvenanceWriter
) -> Rows:
    """Sequences of the documents one after the other; both ends of the shard may cut a document."""
    sink = _Sequences(plan, shard, split, out)
    position = -shard.skip
    for slab in slabs:
        ids = _ids(slab, plan)
        starts = position + np.cumsum(slab.tokens) - slab.tokens
        _note_stream(provenance, slab, starts, plan.context, shard.tokens)
        low, high = max(-position, 0), min(len(ids), shard.tokens - position)
        sink.take(ids[low:high])
        position += len(ids)
    return sink.finish()


def _note_stream(provenance: ProvenanceWriter, slab: Slab, starts: Int64Array, context: int, total: int) -> None:
    """A row of provenance for each run of a document in a sequence."""
    first = np.maximum(starts, 0)
    last = np.minimum(starts + slab.tokens, total)
    rows = np.flatnonzero(last > first)
    first, last = first[rows], last[rows]
    counts = (last - 1) // context - first // context + 1
    owners = np.repeat(np.arange(len(rows)), counts)
    sequence = first[owners] // context + np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = np.maximum(first[owners], sequence * context)
    end = np.minimum(last[owners], (sequence + 1) * context)
    document = rows[owners]
    provenance.add(
        slab.keys.take(pa.array(document)),
        sequence,
        begin - sequence * context,
        begin - starts[document],
        end - begin,
        slab.text_bytes[document],
    )


class _Sequences:
    """Cuts a stream of ids into sequences of S, hashes and writes them; pads the last one."""

    def __init__(self, plan: ShardPlan, shard: TokenShard, split: str, out: ShardFile) -> None:
        self.plan, self.shard, self.split, self.out = plan, shard, split, out
        self.rest = np.zeros(0, DTYPES[plan.dtype])
        self.written = 0
        self.digests: list[Any] = []

    def take(self, ids: NDArray[Any]) -> None:
        """Write whole sequences; keep what is left."""
        ids = np.concatenate([self.rest, ids]) if len(self.rest) else ids
        whole = len(ids) - len(ids) % self.plan.context
        self._write(ids[:whole])
        self.rest = ids[whole:].copy()

    def _write(self, ids: NDArray[Any]) -> None:
        if not len(ids):
            return
        data = ids.data.cast("B")
        size = self.plan.context * ids.itemsize
        starts = np.arange(0, ids.nbytes, size)
        self.digests.append(digests_of(cut(data, starts, np.full(len(starts), size))))
        self.out.write(data)
        self.written += len(ids)

    def finish(self) -> Rows:
        """Pad, and say what was written."""
        if len(self.rest):
            missing = self.plan.context - len(self.rest)
            pad = np.full(missing, self.plan.pad, self.rest.dtype)
            self._write(np.concatenate([self.rest, pad]))
        count = self.written // self.plan.context
        assert count == self.shard.sequences, (count, self.shard.sequences)
        keys = sequence_keys(self.split, self.shard.first_sequence, count)
        return Rows(keys, np.full(count, self.plan.context, np.int64), np.concatenate(self.digests))


def _write_blocks(
    plan: ShardPlan, shard: TokenShard, split: str, slabs: Iterator[Slab], out: ShardFile, provenance: ProvenanceWriter
) -> Rows:
    """Best fit, block by block; room that is left in a sequence is padded."""
    sink = _Sequences(plan, shard, split, out)
    sequence = 0
    for block in _blocks(plan, shard, slabs):
        ids = _ids(block, plan)
        starts = np.cumsum(block.tokens) - block.tokens
        pieces = best_fit(block.tokens, plan.context)
        sums = np.bincount(pieces.sequence, pieces.length, pieces.num_sequences).astype(np.int64)
        packed = np.full(pieces.num_sequences * plan.context, plan.pad if (sums < plan.context).any() else 0, ids.dtype)
        before = np.cumsum(pieces.length) - pieces.length
        is_first = np.append(True, pieces.sequence[1:] != pieces.sequence[:-1])
        place = before - np.repeat(before[is_first], np.bincount(pieces.sequence))
        sources = (starts[pieces.document] + pieces.start).tolist()
        targets = (pieces.sequence * plan.context + place).tolist()
        for source, target, length in zip(sources, targets, pieces.length.tolist(), strict=True):
            packed[target : target + length] = ids[source : source + length]
        sink.take(packed)
        document = pieces.document
        provenance.add(
            block.keys.take(pa.array(document)),
            pieces.sequence + sequence,
            place,
            pieces.start,
            pieces.length,
            block.text_bytes[document],
        )
        sequence += pieces.num_sequences
    return sink.finish()


def _blocks(plan: ShardPlan, shard: TokenShard, slabs: Iterator[Slab]) -> Iterator[Slab]:
    """The documents of a shard in the blocks that the plan packed; blocks do not follow the bounds of slabs."""
    sizes = list(shard.blocks)
    held: Slab | None = None
    for slab in slabs:
        held = slab if held is None else joined(held, slab)
        while sizes and len(held.tokens) >= sizes[0]:
            yield sliced(held, 0, sizes[0])
            held = sliced(held, sizes.pop(0), len(held.tokens))
    assert held is None or not len(held.tokens), "blocks of the plan and documents differ"
