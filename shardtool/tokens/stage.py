"""Stage 1: workers read tasks, tokenize and write sorted runs; a receipt a task. Killed, it goes on from its receipts.

Memory of a worker: one batch of about 1 MiB of text, and one run of about `run_bytes` ids, held once.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from shardtool.errors import SampleTooLarge, ShardtoolError, SourceError, UsageProblem
from shardtool.formats.bin_index import MAX_SEQUENCE_TOKENS, check_ids
from shardtool.storage.local import put_file, sweep_temps
from shardtool.storage.retries import new_retries, note_retries
from shardtool.tokens.documents import Batch, read_documents
from shardtool.tokens.files import check_guards
from shardtool.tokens.runs import FOLDER, IdBuffer, RunBuilder, RunInfo, run_paths
from shardtool.tokens.tokenizer import encode, framed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardtool.model import Int64Array
    from shardtool.packing.build import Say
    from shardtool.token_options import TokenOptions
    from shardtool.tokens.inputs import Task
    from shardtool.tokens.tokenizer import TokenizerSpec
    from shardtool.workers import WorkerPool

SCHEMA = "shardtool/token-part/1"
RUN_TASK = "shardtool.tokens.stage:run_task"
RUNS = 256  # wanted of a source, at most: the fewer, the more of each is read at a time when they are merged
LEAST_RUN_BYTES, MOST_RUN_BYTES = 32 << 20, 96 << 20  # of ids
RUN_DOCUMENTS = 1 << 20
BATCH_BYTES = 16 << 20  # of ids that a run may go beyond `run_bytes` and stay in the memory set apart for it
PIECE = b"+"  # between the key of a long document and the number of its piece


@dataclass(frozen=True)
class StageJob:
    """All that a worker needs beside its task."""

    work: str  # the folder below which runs and receipts are written
    options: TokenOptions
    spec: TokenizerSpec
    dtype: str  # of the runs; auto is the narrowest for each
    seed: int
    sort: bool
    splits: bool  # keys are hashed for splits or duplicates, too
    on_error: str
    durable: bool
    run_bytes: int = LEAST_RUN_BYTES
    kept_splits: tuple[str, ...] = ()  # documents stay in the split of their file, which is one of these

    def settings(self) -> list[Any]:
        """What of the job can change a run."""
        names = ("text_field", "ids_field", "eod_pos", "empty", "max_doc_tokens", "on_long", "dedup")
        chosen = [getattr(self.options, name) for name in names]
        decided = [self.dtype, self.seed, self.sort, self.splits, self.on_error, self.kept_splits]
        return [self.spec.identity(), chosen, *decided]


@dataclass(frozen=True)
class PartReceipt:
    """Proof that a task is done."""

    identity: str
    task: int
    runs: tuple[RunInfo, ...]
    seen: int = 0
    pieces: int = 0  # more sequences than documents, as long ones were cut
    ignored: dict[str, int] = field(default_factory=dict)
    failed: tuple[tuple[str, str], ...] = ()
    retries: int = 0  # requests to a store that were sent again meanwhile; not stored


def _receipt_path(task: int) -> str:
    return f"{FOLDER}/{task:06d}.json"


def run_stage(job: StageJob, tasks: Sequence[Task], pool: WorkerPool, say: Say) -> list[PartReceipt]:
    """The receipts of all tasks, in their order; tasks that have a valid one are not done again.

    Raises:
        SourceError: a document cannot be read, and the policy is `error`.
    """
    done = {task.number: receipt for task in tasks if (receipt := _valid_receipt(job, task)) is not None}
    todo = [task for task in tasks if task.number not in done]
    if done and todo:
        say.step("resume", f"{len(done):,} of {len(tasks):,} slices of the source are tokenized already")
    num_bytes = sum(task_bytes(task) for task in todo)
    with say.progress(len(todo), num_bytes, 0) as progress:
        for task, receipt in pool.run(RUN_TASK, todo, context=job, describe=lambda t: t.files[0].full_path):
            done[task.number] = receipt
            note_retries(receipt.retries)
            progress.advance(1, task_bytes(task), 0)
    return [done[task.number] for task in tasks]


def run_bytes(source_bytes: int) -> int:
    """Bytes of ids after which a run is written, by the size of all sources together."""
    return min(max(source_bytes // RUNS, LEAST_RUN_BYTES), MOST_RUN_BYTES)


def task_bytes(task: Task) -> int:
    """Bytes of the source that a task reads, for progress."""
    if len(task.files) == 1 and task.files[0].kind == "lines" and task.span[1] >= 0:
        return task.span[1] - task.span[0]
    return sum(file.size for file in task.files)


def _valid_receipt(job: StageJob, task: Task) -> PartReceipt | None:
    try:
        with open(os.path.join(job.work, _receipt_path(task.number)), "rb") as file:
            document = json.loads(file.read())
        receipt = PartReceipt(
            identity=document["identity"],
            task=document["task"],
            runs=tuple(RunInfo(**run) for run in document["runs"]),
            seen=document["seen"],
            pieces=document["pieces"],
            ignored=document["ignored"],
            failed=tuple((key, reason) for key, reason in document["failed"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if receipt.identity != task.identity(job.settings()):
        return None
    is_there = all(
        os.path.isfile(os.path.join(job.work, path)) for run in receipt.runs for path in run_paths(run.name)
    ) and all(os.stat(os.path.join(job.work, run_paths(run.name)[0])).st_size == run.num_bytes for run in receipt.runs)
    return receipt if is_there else None


def run_task(job: StageJob, task: Task) -> PartReceipt:
    """Read a task, write its runs, then its receipt.

    Raises:
        SourceChanged: a file is not the one that was listed, or no longer once its documents are read.
        SourceError: a document cannot be read, and the policy is `error`.
    """
    tag = f"part-{task.number}"
    sweep_temps(os.path.join(job.work, FOLDER), tag)
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(job.work, _receipt_path(task.number)))
    work = _Work(job, task, tag)
    wants_ids = job.spec.is_none
    try:
        for batch in read_documents(task, job.options.text_field, job.options.ids_field, wants_ids=wants_ids):
            work.take(batch)
    except ShardtoolError:
        check_guards(task.files)  # half of one content and half of another looks like damage
        raise
    check_guards(task.files)
    receipt = work.finish()
    document = {"schema": SCHEMA, **asdict(receipt)}
    del document["retries"]
    data = json.dumps(document).encode()
    put_file(job.work, _receipt_path(task.number), data, tag=tag, durable=job.durable)
    return replace(receipt, retries=new_retries())


@cache
def _id_buffer() -> IdBuffer:
    """That of this process, which does one task at a time."""
    return IdBuffer(MOST_RUN_BYTES + BATCH_BYTES)


class _Work:
    """One task being done."""

    def __init__(self, job: StageJob, task: Task, tag: str) -> None:
        self.job, self.task, self.tag = job, task, tag
        self.receipt = PartReceipt(task.identity(job.settings()), task.number, ())
        self.runs: list[RunInfo] = []
        self.failed: list[tuple[str, str]] = []
        self.ignored: dict[str, int] = {}
        self.seen = self.pieces = 0
        self.wide = job.dtype if job.dtype != "auto" else "int32"
        self.builder = self._new_run()

    def _new_run(self) -> RunBuilder:
        job = self.job
        split = job.kept_splits.index(self.task.files[0].split) if job.kept_splits else None
        return RunBuilder(job.dtype, job.seed, sort=job.sort, splits=job.splits, split=split, ids=_id_buffer())

    def take(self, batch: Batch) -> None:
        """Tokenize a batch and add it to the run."""
        job, options = self.job, self.job.options
        self.seen += len(batch.keys) + len(batch.failures)
        self._fail(batch)
        if not batch.keys:
            return
        if batch.ids is None:
            values, lengths = encode(job.spec, batch.texts, job.dtype)
            text_bytes = np.fromiter(map(len, batch.texts), np.int64, len(batch.texts))
            self.builder.note_range(0, job.spec.largest_id)
        else:
            assert batch.lengths is not None
            values, lengths = batch.ids, batch.lengths
            self._check_range(batch, values, lengths)
            text_bytes = lengths * values.itemsize
        keys = batch.keys
        ids, total = framed(values, lengths, job.spec, options.eod_pos, self.wide)
        content = self._content(batch, ids, total)
        if (lengths == 0).any():
            keys, total, text_bytes, content = self._without_empty(keys, lengths, total, text_bytes, content)
        limit = options.max_doc_tokens or MAX_SEQUENCE_TOKENS
        if len(total) and int(total.max()) > limit:
            keys, total, text_bytes, content = self._cut_long(keys, total, text_bytes, content, limit)
        self.builder.add(keys, ids, total, text_bytes, content)
        if self.builder.num_bytes >= job.run_bytes or len(self.builder.keys) >= RUN_DOCUMENTS:
            self._flush()

    def _fail(self, batch: Batch) -> None:
        if batch.failures and self.job.on_error == "error":
            key, reason = batch.failures[0]
            raise SourceError(
                f"document {_shown(key)}: {reason}",
                hint="--on-error skip leaves such documents out and lists them",
                where={"path": self.task.files[0].full_path, "key": _shown(key)},
            )
        self.failed += [(_shown(key), reason) for key, reason in batch.failures]

    def _check_range(self, batch: Batch, values: NDArray[Any], lengths: Int64Array) -> None:
        if len(values) == 0:
            return
        low, high = _extremes(values)
        frame = [token for token in (self.job.spec.eod, self.job.spec.bos) if token is not None]
        self.builder.note_range(low, max([high, *frame]))
        try:
            check_ids(low, high, self.wide)
        except UsageProblem as error:
            wrong = int(np.flatnonzero((values == low) if low < 0 else (values == high))[0])
            key = batch.keys[int(np.searchsorted(np.cumsum(lengths), wrong, side="right"))]
            raise SourceError(f"document {_shown(key)}: {error.message}", hint=error.hint) from error

    def _content(self, batch: Batch, ids: NDArray[Any], lengths: Int64Array) -> list[bytes]:
        if self.job.options.dedup == "none":
            return []
        if batch.ids is None:
            return [xxhash.xxh3_128_digest(text) for text in batch.texts]
        data: memoryview = ids.data.cast("B")
        ends = np.cumsum(lengths) * ids.itemsize
        spans = zip((ends - lengths * ids.itemsize).tolist(), ends.tolist(), strict=True)
        return [xxhash.xxh3_128_digest(data[start:stop]) for start, stop in spans]

    def _without_empty(
        self, keys: list[bytes], lengths: Int64Array, total: Int64Array, text_bytes: Int64Array, content: list[bytes]
    ) -> tuple[list[bytes], Int64Array, Int64Array, list[bytes]]:
        policy = self.job.options.empty
        if policy == "keep":
            return keys, total, text_bytes, content
        if policy == "error":
            key = keys[int(np.flatnonzero(lengths == 0)[0])]
            raise SourceError(f"document {_shown(key)} is empty", hint="--empty drop leaves it out, keep keeps it")
        full = np.flatnonzero(lengths).tolist()
        self.ignored["empty"] = self.ignored.get("empty", 0) + len(keys) - len(full)
        content = [content[row] for row in full] if content else []
        return [keys[row] for row in full], total[full], text_bytes[full], content

    def _cut_long(
        self, keys: list[bytes], total: Int64Array, text_bytes: Int64Array, content: list[bytes], limit: int
    ) -> tuple[list[bytes], Int64Array, Int64Array, list[bytes]]:
        """Long documents as several sequences, `KEY`, `KEY+1`, …; the ids stay where they are."""
        if self.job.options.on_long == "error":
            row = int(total.argmax())
            raise SampleTooLarge(
                f"document {_shown(keys[row])} has {int(total[row]):,} tokens, at most {limit:,} are allowed",
                hint="--on-long split cuts it, or raise --max-doc-tokens",
            )
        counts = np.maximum(-(-total // limit), 1)
        owners = np.repeat(np.arange(len(keys)), counts)
        numbers = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        lengths = np.minimum(total[owners] - numbers * limit, limit)
        pairs = zip(owners.tolist(), numbers.tolist(), strict=True)
        cut = [keys[owner] + (PIECE + b"%d" % number if number else b"") for owner, number in pairs]
        if content:
            numbered = zip(owners.tolist(), numbers.tolist(), strict=True)
            content = [content[owner] if not n else _next(content[owner], n) for owner, n in numbered]
        self.pieces += len(cut) - len(keys)
        return cut, lengths, np.where(numbers == 0, text_bytes[owners], 0), content

    def _flush(self) -> None:
        if not self.builder.keys:
            return
        name = f"{self.task.number:06d}-{len(self.runs):03d}"
        self.runs.append(self.builder.write(self.job.work, name, self.tag, durable=self.job.durable))
        self.builder = self._new_run()

    def finish(self) -> PartReceipt:
        """The receipt, once all is written."""
        self._flush()
        return replace(
            self.receipt,
            runs=tuple(self.runs),
            seen=self.seen,
            pieces=self.pieces,
            ignored=self.ignored,
            failed=tuple(self.failed),
        )


def _extremes(values: NDArray[Any]) -> tuple[int, int]:
    """(0, largest id), found in one pass; where an id is negative, the smallest and the largest."""
    if values.dtype.kind == "i":
        high = int(values.view(values.dtype.str.replace("i", "u")).max())  # as which a negative id is a large one
        if high <= np.iinfo(values.dtype).max:
            return 0, high
        return int(values.min()), int(values.max())
    return 0, int(values.max())


def _next(content: bytes, number: int) -> bytes:
    """Content of a later piece of a document: equal where document and number are."""
    return xxhash.xxh3_128_digest(content + number.to_bytes(8, "little"))


def _shown(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
