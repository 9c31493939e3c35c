"""`pack_shard(job, k) -> Receipt`: a planned shard becomes files; the same bytes wherever and however often it runs.

The last steps (fsync, rename, receipt) happen in a thread, so that a worker packs shard k + 1 while the device takes k.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool import columns
from shardtool.errors import SourceChanged, SourceError
from shardtool.formats import Settings, get_format
from shardtool.index_file import encode_index
from shardtool.model import PartTotals, Receipt
from shardtool.names import index_path
from shardtool.packing.receipts import write_receipt
from shardtool.planning.plan_file import read_rows
from shardtool.plugins import resolve
from shardtool.samples import member_names
from shardtool.sources.medium import MEDIUM
from shardtool.sources.opening import open_reader
from shardtool.sources.reader import FRESH_SECONDS
from shardtool.storage import open_place
from shardtool.storage.retries import new_retries
from shardtool.storage.shard_file import ShardFile

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import Protocol

    from shardtool.model import ShardRows, ShardSpec
    from shardtool.planning.plan_file import StoredPlan

    class Executor(Protocol):
        """Calls `pack_shard` in many places."""

        def run(self, job: PackJob, shards: Sequence[int]) -> Generator[Receipt, None, None]:
            """Receipts in any order; a shard may be packed more than once."""


STAGED = {"bin": "shardtool.tokens.shard:draft_shard"}  # formats whose shards are made of part files
MAX_ATTEMPTS = 8  # at one shard while its files keep changing


@dataclass(frozen=True)
class PackJob:
    """All that a worker needs besides the stored plan; small enough to send anywhere."""

    out: str
    plan_id: str
    format: str
    roots: tuple[str, ...]
    specs: tuple[ShardSpec, ...]
    on_changed: str = "error"
    on_error: str = "error"
    durable: bool = True
    settings: Settings = field(default_factory=Settings)
    fresh_until: float = 0.0  # time.monotonic() of this machine up to which the plan's guards were seen just now


def job_for(out: str, stored: StoredPlan, *, on_changed: str, on_error: str, durable: bool) -> PackJob:
    """The job that packs the plan stored in `out`."""
    fresh_until = stored.scanned_at + FRESH_SECONDS if stored.scanned_at else 0.0
    return PackJob(
        out,
        stored.plan_id,
        stored.options.format,
        stored.roots,
        stored.shards,
        on_changed,
        on_error,
        durable,
        stored.settings,
        fresh_until,
    )


def pack_shard(job: PackJob, shard: int) -> Future[Receipt]:
    """Write shard k, its index and its receipt; the future is done when all three are.

    Raises:
        SourceChanged, SourceError: a file is not as planned, and the policy is `error`.
        NoSpace, DestinationError: the shard cannot be written; nothing of it stays.
    """
    tag = f"{job.plan_id[:8]}-{shard}"
    _sweep(job, shard, tag)
    try:
        return _pack_shard(job, shard, tag)
    except BaseException:
        _sweep(job, shard, tag)  # wherever it was interrupted
        raise


def _pack_shard(job: PackJob, shard: int, tag: str) -> Future[Receipt]:
    if job.format in STAGED:
        draft: Draft = resolve(STAGED[job.format])(job, shard, tag)
        receipt = draft.receipt
    else:
        planned = read_rows(job.out, shard)
        draft, rows, failed = _write_what_can_be_read(job, shard, planned, tag)
        lost = planned.data.null_count - rows.data.null_count  # files; what was generated is no entry
        receipt = replace(draft.receipt, failed=failed, failed_entries=lost)
    if not job.durable:
        _publish(job, draft, receipt, tag)
        done: Future[Receipt] = Future()
        done.set_result(receipt)
        return done
    return _background().submit(_publish, job, draft, receipt, tag)


def _sweep(job: PackJob, shard: int, tag: str) -> None:
    open_place(job.out).sweep(tag, (job.specs[shard].path, index_path(shard, len(job.specs))))


@dataclass
class Draft:
    """Files that are written, and have no final name yet."""

    shard: ShardFile
    index: ShardFile
    receipt: Receipt
    notes: tuple[ShardFile, ...] = ()  # about the shard, in no receipt

    @property
    def files(self) -> tuple[ShardFile, ...]:
        """In the order in which they get their names."""
        return (*self.notes, self.shard, self.index)


def _write_what_can_be_read(
    job: PackJob, shard: int, rows: ShardRows, tag: str
) -> tuple[Draft, ShardRows, tuple[tuple[str, str], ...]]:
    """(the shard, its rows, keys and reasons of what was left out); tried again as long as other files change."""
    failed: tuple[tuple[str, str], ...] = ()
    attempt = 1
    while True:
        try:
            return _write(job, shard, rows, tag), rows, failed
        except SourceError as error:
            if attempt == MAX_ATTEMPTS:
                raise
            rows, more = _without_failures(job, rows, error)
            failed += more
            attempt += 1


def _write(job: PackJob, shard: int, rows: ShardRows, tag: str) -> Draft:
    spec, shard_format = job.specs[shard], get_format(job.format, job.settings)
    members = member_names(rows)
    reader = open_reader(job.roots, rows, members, job.fresh_until)
    file, index = None, None
    try:
        file = ShardFile(job.out, spec.path, tag)
        written = shard_format.write(rows, members, reader, file)
        records = file.records()
        encoded = encode_index(rows, written, shard_format, records[0], file.digest.blocks())
        index = ShardFile(job.out, index_path(shard, len(job.specs)), tag)
        index.write(encoded)
    except BaseException:
        for begun in (file, index):
            if begun is not None:
                begun.abort()
        raise
    finally:
        reader.close()
    payload = int(rows.sizes.sum())
    receipt = Receipt(
        job.plan_id,
        shard,
        spec.split,
        records,
        index.record(),
        rows.num_samples,
        payload,
        part_totals(rows),
        raw_bytes=written.raw_bytes,
        raw_xxh3_128=written.raw_xxh3_128,
        waited=MEDIUM.is_cold,
        retries=new_retries(),
    )
    return Draft(file, index, receipt)


def _publish(job: PackJob, draft: Draft, receipt: Receipt, tag: str) -> Receipt:
    try:
        for file in draft.files:
            file.publish(durable=job.durable)
        if job.durable:
            open_place(job.out).sync(record.path for record in (*receipt.files, receipt.index))
        write_receipt(job.out, receipt, len(job.specs), tag=tag, durable=job.durable)
    finally:
        for file in draft.files:
            file.abort()
    return receipt


@cache
def _background() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="publish")


def _policy(job: PackJob, error: SourceError) -> str:
    return job.on_changed if isinstance(error, SourceChanged) else job.on_error


def _without_failures(
    job: PackJob, rows: ShardRows, error: SourceError
) -> tuple[ShardRows, tuple[tuple[str, str], ...]]:
    """(rows without the samples that cannot be read, their keys and reasons), where the policies allow it."""
    if _policy(job, error) == "error":
        raise error
    reader = open_reader(job.roots, rows, member_names(rows))
    try:
        found = reader.failures()
    finally:
        reader.close()
    owners = rows.owners()
    reasons: dict[int, str] = {}
    for part, failure in found:
        if _policy(job, failure) == "error":
            raise failure
        reasons.setdefault(int(owners[part]), failure.message)
    if not reasons:
        return rows, ()  # it was a passing trouble
    if len(reasons) == rows.num_samples:
        raise SourceError(
            f"not one of the {rows.num_samples:,} samples of a shard can be read; the first: {error.message}",
            hint="is the source still there? put it right and run the same command again",
            where=error.where,
        ) from error
    keys = columns.to_list(rows.keys)
    failed = tuple((keys[s].decode("utf-8", "backslashreplace"), reason) for s, reason in sorted(reasons.items()))
    return drop_samples(rows, sorted(reasons)), failed


def drop_samples(rows: ShardRows, samples: Sequence[int]) -> ShardRows:
    """`rows` without the given samples."""
    keep = np.ones(rows.num_samples, bool)
    keep[list(samples)] = False
    parts = np.repeat(keep, np.diff(rows.part_start))
    counts = np.diff(rows.part_start)[keep]
    kept, kept_parts = np.flatnonzero(keep), np.flatnonzero(parts)
    return replace(
        rows,
        keys=columns.take(rows.keys, kept),
        labels=None if rows.labels is None else rows.labels[keep],
        part_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        names=columns.take(rows.names, kept_parts),
        source=columns.take(rows.source, kept_parts),
        roots=rows.roots[parts],
        sizes=rows.sizes[parts],
        mtimes_ns=rows.mtimes_ns[parts],
        data=columns.take(rows.data, kept_parts),
        versions=None if rows.versions is None else columns.take(rows.versions, kept_parts),
        offsets=None if rows.offsets is None else rows.offsets[parts],
    )


def part_totals(rows: ShardRows) -> dict[str, PartTotals]:
    """{part name: samples, bytes, smallest, largest} of a shard."""
    encoded = rows.names.dictionary_encode()
    codes = encoded.indices.to_numpy()
    found = {}
    for number, name in enumerate(columns.to_list(encoded.dictionary)):
        sizes: Any = rows.sizes[codes == number]
        text = name.decode("utf-8", "backslashreplace")
        found[text] = PartTotals(len(sizes), int(sizes.sum()), int(sizes.min()), int(sizes.max()))
    return found
