"""Assignments for programs: one JSON document, Parquet of the exact order, lists of shards; all streamed.

Text is yielded in pieces and rows are written in groups, so that memory holds 65,536 rows at most beside the indexes in
use. In: an `Assignment` and where each sample lies in its shard. Out: pieces of text, or one file a rank.
"""

from __future__ import annotations

import json
import os
import shlex
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from shardtool.assignment.assign import Segments, byte_ranges
from shardtool.errors import DestinationExists
from shardtool.formats import BYTES
from shardtool.order.state import consumed_at
from shardtool.storage import is_remote
from shardtool.storage.files import absolute
from shardtool.storage.local import LocalFile, temp_name, write_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from shardtool.assignment.assign import Chunk
    from shardtool.assignment.assignment import Assignment
    from shardtool.assignment.placement import Replication
    from shardtool.assignment.summary import Summary
    from shardtool.model import Int64Array
    from shardtool.reading.reading import Dataset

__all__ = [
    "SCHEMA",
    "Extents",
    "assign_pieces",
    "check_empty",
    "extents_of",
    "head_document",
    "order_document",
    "rank_file",
    "reader_rows",
    "reader_urls",
    "write_parquet",
    "write_text",
]

SCHEMA = "shardtool/assign/1"
Extents: TypeAlias = "Callable[[int], tuple[Int64Array, Int64Array]]"  # shard -> offset and bytes of its samples
_DIGITS = 5
_TAG = "assign"


def extents_of(dataset: Dataset) -> Extents | None:
    """Where the samples of each shard lie, from the indexes; None where a sample is no range of bytes."""
    if not dataset.num_shards or dataset.index(0).addressing != BYTES:
        return None

    def extents(shard: int) -> tuple[Int64Array, Int64Array]:
        index = dataset.index(shard)
        return index.offset.view(np.int64), index.num_bytes.view(np.int64)

    return extents


def consumed_samples(found: Assignment) -> int | None:
    """What a trainer counts as consumed at the position; None where its steps are not all of one size."""
    if found.deal.policy not in ("carry", "drop"):
        return None
    return consumed_at(found.position, found.order.num_samples, found.deal.batch_size, found.deal.policy)


def order_document(found: Assignment) -> dict[str, Any]:
    """The parameters of the order, as docs/formats/order.md names them."""
    params = found.order.params
    return {
        "mode": params.mode,
        "version": 1,
        "seed": params.seed,
        "lanes": params.lanes,
        "radices": list(params.radices),
        "unit": params.unit,
        "piece": params.piece,
        "window": params.window,
        "locality": params.locality,
    }


def head_document(found: Assignment, summary: Summary) -> dict[str, Any]:
    """All of the JSON document but `ranks`."""
    return {
        "schema": SCHEMA,
        "dataset_id": found.dataset_id,
        "split": found.shards.name,
        "samples": found.order.num_samples,
        "world_size": found.deal.world_size,
        "num_nodes": found.num_nodes,
        "loader_workers": found.wish.loader_workers,
        "batch_size": found.deal.batch_size,
        "epoch": found.epoch,
        "position": found.position,
        "consumed_samples": consumed_samples(found),
        "policy": found.deal.policy,
        "steps": summary.num_steps,
        "order": order_document(found),
        "state": found.state(),
        "replication": [_copies_document(copies) for copies in (summary.node, *summary.elastic)],
        "mixing": _mixing_document(found, summary),
        "fits_disk": summary.fits_disk,
        "advice": list(summary.advice),
    }


def _mixing_document(found: Assignment, summary: Summary) -> dict[str, Any]:
    document = {"packed_shuffled": found.is_packed_shuffled, "batch_size": summary.mixing_batch}
    document |= asdict(summary.mixing)
    return document if summary.is_met_judged else {**document, "met_again": None}


def _copies_document(copies: Replication) -> dict[str, Any]:
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(copies).items()}


def assign_pieces(
    head: dict[str, Any],
    found: Assignment,
    ranks: Iterable[int],
    extents: Extents | None,
    expand: tuple[int, int] | None = None,
) -> Iterator[str]:
    """The JSON document in pieces of text: the head, then rank after rank, one segment a line.

    Args:
        head: from `head_document`.
        found: the assignment.
        ranks: those to tell of.
        extents: from `extents_of`.
        expand: (from, count): positions of the stream whose samples are listed one by one.
    """
    yield json.dumps(head, ensure_ascii=False)[:-1] + ', "ranks": ['
    before = "\n"
    for rank in ranks:
        yield before + json.dumps(_rank_head(found, rank))[:-1] + ', "segments": '
        yield from _listed(_segment_rows(part, extents) for part in found.coverage(rank))
        yield from _worker_pieces(found, rank, extents)
        if expand is not None:
            yield from _sequence_pieces(found.sequence(rank, *expand))
        yield "}"
        before = ",\n"
    yield "]}\n"


def _rank_head(found: Assignment, rank: int) -> dict[str, Any]:
    head = {"rank": rank, "node": found.node_of(rank), "samples": int(found.rank_samples[rank])}
    repeats = int(found.rank_repeats[rank])
    return {**head, "repeated": repeats} if repeats else head


def _worker_pieces(found: Assignment, rank: int, extents: Extents | None) -> Iterator[str]:
    """Where a rank has several loader workers: what each of them reads."""
    num_workers = found.wish.loader_workers
    if num_workers < 2:
        return
    before = ', "workers": ['
    for worker in range(num_workers):
        yield f'{before}{{"worker": {worker}, "segments": '
        yield from _listed(_segment_rows(part, extents) for part in found.coverage(rank, worker, num_workers))
        yield "}"
        before = ", "
    yield "]"


def _sequence_pieces(chunks: Iterator[Chunk]) -> Iterator[str]:
    repeated: list[int] = []  # places of the sequence; `pad` repeats less than a batch

    def rows() -> Iterator[list[str]]:
        done = 0
        for chunk in chunks:
            repeated.extend((done + np.flatnonzero(~chunk.is_valid)).tolist())
            done += len(chunk.shard)
            yield [f"[{shard},{row}]" for shard, row in zip(chunk.shard.tolist(), chunk.row.tolist(), strict=True)]

    yield ', "sequence": '
    yield from _listed(rows())
    if repeated:
        yield f', "repeated_at": {json.dumps(repeated)}'


def _segment_rows(part: Segments, extents: Extents | None) -> list[str]:
    columns = [part.shard, part.first, part.count, part.step]
    text = '{{"shard":{},"first":{},"count":{},"step":{},"offset":null,"bytes":null}}'
    if extents is not None:
        columns += byte_ranges(part, extents)
        text = '{{"shard":{},"first":{},"count":{},"step":{},"offset":{},"bytes":{}}}'
    return [text.format(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _listed(parts: Iterable[list[str]]) -> Iterator[str]:
    before = "["
    for rows in parts:
        if rows:
            yield before + "\n" + ",\n".join(rows)
            before = ","
    yield "]" if before == "," else "[]"


def reader_urls(found: Assignment, rank: int, worker: int, extents: Extents, dataset: Dataset) -> Iterator[str]:
    """What a loader worker gives to webdataset, in order: paths of whole shards, `pipe:` commands for parts of one.

    Raises:
        UsageProblem: the lanes cannot be dealt to the readers.
    """
    for part in found.stream(rank, worker):
        offsets, sizes = byte_ranges(part, extents)
        rows = zip(part.shard.tolist(), part.count.tolist(), offsets.tolist(), sizes.tolist(), strict=True)
        for shard, count, offset, size in rows:
            path = absolute(dataset.shard_path(shard))
            is_whole = count == dataset.manifest.shards[shard].num_samples
            read = f"aws s3 cp {shlex.quote(path)} - | tail -c +{offset + 1}"
            if not is_remote(path):
                read = f"tail -c +{offset + 1} {shlex.quote(path)}"
            yield path if is_whole else f"pipe:{read} | head -c {size}"


def reader_rows(found: Assignment, rank: int, dataset: Dataset) -> Iterator[str]:
    """What a rank reads as rows of tables, a JSON object a line, by first use.

    `file` is the path below the data set's folder, `first`, `count` and `step` are rows in it, and `row` is where
    `first` lies when the files of the split are read one after the other, as Hugging Face `datasets` does.
    """
    shards = found.shards
    begins = dict(zip(shards.places.tolist(), (np.cumsum(shards.counts) - shards.counts).tolist(), strict=True))
    for part in found.coverage(rank):
        columns = (part.shard.tolist(), part.first.tolist(), part.count.tolist(), part.step.tolist())
        for shard, first, count, step in zip(*columns, strict=True):
            row = {"file": dataset.manifest.shards[shard].path, "first": first, "count": count, "step": step}
            yield json.dumps({**row, "row": begins[shard] + first}, separators=(",", ":"))


def check_empty(folder: str) -> None:
    """Refuse a folder that holds something.

    Raises:
        DestinationExists: it does, or it is a file.
    """
    if os.path.isdir(folder) and not os.listdir(folder):
        return
    if os.path.lexists(folder):
        raise DestinationExists(
            f"{folder} is there, and not an empty folder", hint="give -o a new folder", where={"path": folder}
        )


def rank_file(rank: int, world_size: int, suffix: str, worker: int | None = None) -> str:
    """`rank-00003.json`, `rank-00003-worker-01.urls`."""
    digits = max(_DIGITS, len(str(world_size - 1)))
    return f"rank-{rank:0{digits}d}" + ("" if worker is None else f"-worker-{worker:02d}") + suffix


def write_text(folder: str, name: str, pieces: Iterable[str]) -> None:
    """A file of text that has its name only when complete."""
    file = LocalFile(folder, name, _TAG)
    try:
        for piece in pieces:
            file.write(os.fsencode(piece))
        file.publish(durable=False)
    finally:
        file.abort()


def write_parquet(folder: str, name: str, found: Assignment, chunks: Iterable[Chunk], extents: Extents | None) -> None:
    """The samples of a rank, one a row in reading order, a row group a chunk.

    Columns: position, step, worker, shard, sample, offset, bytes (both null where a sample is no range of bytes),
    is_valid (false for a sample that `pad` repeats).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ("position", "step", "worker", "shard", "sample", "offset", "bytes")
    schema = pa.schema([*((column, pa.int64()) for column in names), ("is_valid", pa.bool_())])
    head = {"schema": SCHEMA, "dataset_id": found.dataset_id, "split": found.shards.name, "state": found.state()}
    schema = schema.with_metadata({"shardtool": json.dumps(head)})
    final = os.path.join(folder, name)
    temp = temp_name(final, _TAG)
    with write_errors(final):
        os.makedirs(folder, exist_ok=True)
        try:
            with pq.ParquetWriter(temp, schema) as writer:
                for chunk in chunks:
                    writer.write_table(pa.table(_parquet_columns(found, chunk, extents), schema=schema))
            os.rename(temp, final)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temp)


def _parquet_columns(found: Assignment, chunk: Chunk, extents: Extents | None) -> Sequence[Any]:
    import pyarrow as pa

    workers = chunk.step % max(1, found.wish.loader_workers)
    places: Sequence[Any] = [pa.nulls(len(chunk.shard), pa.int64())] * 2
    if extents is not None:
        ones = np.ones_like(chunk.shard)
        places = [pa.array(column) for column in byte_ranges(Segments(chunk.shard, chunk.row, ones, ones), extents)]
    columns = [pa.array(column) for column in (chunk.position, chunk.step, workers, chunk.shard, chunk.row)]
    return [*columns, *places, pa.array(chunk.is_valid)]
