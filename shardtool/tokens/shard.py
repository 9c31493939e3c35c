"""`draft_shard(job, k)`: the runs are merged to one `.bin/.idx` pair with its index; called where `pack_shard` is.

Its documents come a slab at a time, and what is told of its sequences lies in unnamed files until the index is written.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from shardtool import columns
from shardtool.errors import FormatError
from shardtool.formats.bin_index import DTYPES
from shardtool.model import Receipt
from shardtool.names import index_path
from shardtool.storage.shard_file import ShardFile
from shardtool.tokens.packing import best_fit
from shardtool.tokens.provenance import ProvenanceWriter
from shardtool.tokens.runs import cut, digests_of, open_run, work_folder
from shardtool.tokens.sequences import SequenceTable
from shardtool.tokens.slabs import joined, read_slabs, sliced
from shardtool.tokens.store import load_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from shardtool.model import BinaryArray, Int64Array
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
        FormatError: it would not be what was planned.
        NoSpace, DestinationError: the shard cannot be written; nothing of it stays.
    """
    from shardtool.packing.pack import Draft

    plan, runs = _opened(job.out, job.plan_id)
    spec, chosen = job.specs[shard], plan.shards[shard]
    begun: list[ShardFile] = []
    rows = SequenceTable(work_folder(job.out), plan.dtype)
    try:
        file = ShardFile(job.out, spec.path, tag)
        begun.append(file)
        provenance = ProvenanceWriter(job.out, shard, len(job.specs), tag)
        begun.append(provenance.file)
        target = _Target(plan, chosen, spec.split, file, provenance, rows)
        _writer(plan)(target, read_slabs(plan, runs, chosen))
        rows.put_idx(file.sibling(".idx"))
        provenance.finish()
        _check_planned(job, shard, chosen, file, rows)
        index = ShardFile(job.out, index_path(shard, len(job.specs)), tag)
        begun.append(index)
        rows.put_index(index, file)
    except BaseException:
        for one in begun:
            one.abort()
        raise
    finally:
        rows.close()
    receipt = Receipt(
        job.plan_id, shard, spec.split, file.records(), index.record(), rows.count, rows.num_bytes, rows.totals
    )
    return Draft(file, index, receipt, (provenance.file,))


def _check_planned(job: PackJob, shard: int, chosen: TokenShard, file: ShardFile, rows: SequenceTable) -> None:
    """Refuse a shard that is not what was planned: nothing that is planned for one may be in none."""
    spec = job.specs[shard]
    wanted = spec.stop - spec.start, spec.num_bytes
    written = rows.count, sum(record.num_bytes for record in file.records())
    if written == wanted and rows.count == chosen.sequences:
        return
    raise FormatError(
        f"{spec.path} got {written[0]:,} sequences and {written[1]:,} bytes, planned are {wanted[0]:,} and "
        f"{wanted[1]:,}: the stored plan or the part files are damaged",
        hint="run the same command with --overwrite to plan and pack again",
        where={"path": job.out, "shard": shard},
    )


class _Target(NamedTuple):
    """A shard to be written: what goes in, and where to."""

    plan: ShardPlan
    shard: TokenShard
    split: str
    out: ShardFile
    provenance: ProvenanceWriter
    rows: SequenceTable


def _writer(plan: ShardPlan) -> Callable[[_Target, Iterator[Slab]], None]:
    if not plan.context:
        return _write_documents
    return _write_stream if plan.packing == "concat" else _write_blocks


def _ids(slab: Slab, plan: ShardPlan) -> NDArray[Any]:
    """The ids of a slab."""
    return np.frombuffer(b"".join(slab.pieces()), DTYPES[plan.dtype])


def _write_documents(to: _Target, slabs: Iterator[Slab]) -> None:
    for slab in slabs:
        for piece in slab.pieces():
            to.out.write(piece)
        count = len(slab.tokens)
        numbers = np.arange(to.rows.count, to.rows.count + count)
        zeros = np.zeros(count, np.int64)
        to.provenance.add(slab.keys, numbers, zeros, zeros, slab.tokens, slab.text_bytes)
        to.rows.add(slab.keys, slab.tokens, slab.digests)


def sequence_keys(split: str, first: int, count: int) -> BinaryArray:
    """Keys of packed sequences: `train/000000017`."""
    return columns.binary([b"%s/%09d" % (split.encode(), number) for number in range(first, first + count)])


def _write_stream(to: _Target, slabs: Iterator[Slab]) -> None:
    """Sequences of the documents one after the other; both ends of the shard may cut a document."""
    plan, shard = to.plan, to.shard
    sink = _Sequences(to)
    position = -shard.skip
    for slab in slabs:
        ids = _ids(slab, plan)
        starts = position + np.cumsum(slab.tokens) - slab.tokens
        _note_stream(to.provenance, slab, starts, plan.context, shard.tokens)
        low, high = max(-position, 0), min(len(ids), shard.tokens - position)
        sink.take(ids[low:high])
        position += len(ids)
    sink.finish()


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

    def __init__(self, to: _Target) -> None:
        self.plan, self.shard, self.split, self.out, self.rows = to.plan, to.shard, to.split, to.out, to.rows
        self.rest = np.zeros(0, DTYPES[to.plan.dtype])

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
        count = len(starts)
        digests = digests_of(cut(data, starts, np.full(count, size)))
        self.out.write(data)
        keys = sequence_keys(self.split, self.shard.first_sequence + self.rows.count, count)
        self.rows.add(keys, np.full(count, self.plan.context), digests)

    def finish(self) -> None:
        """Pad the last sequence."""
        if len(self.rest):
            missing = self.plan.context - len(self.rest)
            pad = np.full(missing, self.plan.pad, self.rest.dtype)
            self._write(np.concatenate([self.rest, pad]))


def _write_blocks(to: _Target, slabs: Iterator[Slab]) -> None:
    """Best fit, block by block; room that is left in a sequence is padded."""
    plan, shard = to.plan, to.shard
    sink = _Sequences(to)
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
        to.provenance.add(
            block.keys.take(pa.array(document)),
            pieces.sequence + sequence,
            place,
            pieces.start,
            pieces.length,
            block.text_bytes[document],
        )
        sequence += pieces.num_sequences
    sink.finish()


def _blocks(plan: ShardPlan, shard: TokenShard, slabs: Iterator[Slab]) -> Iterator[Slab]:
    """The documents of a shard in the blocks that the plan packed; blocks do not follow the bounds of slabs."""
    sizes = list(shard.blocks)
    held: Slab | None = None
    for slab in slabs:
        held = joined([slab] if held is None else [held, slab])
        while sizes and len(held.tokens) >= sizes[0]:
            yield sliced(held, 0, sizes[0])
            held = sliced(held, sizes.pop(0), len(held.tokens))
    if held is not None and len(held.tokens):
        yield held  # of a damaged plan: `_check_planned` will tell
