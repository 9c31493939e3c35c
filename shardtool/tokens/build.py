"""`pack --format bin` up to its plan: find inputs, stage 1, stage 2 decided, stored; and what a rerun does about each.

From the stored plan on, everything is as with other formats: `shardtool.packing.build` packs, resumes and publishes.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardtool.errors import DestinationExists, PlanMismatch, UsageProblem
from shardtool.formats.bin_index import CODE_OF, check_ids, dtype_for
from shardtool.model import Tally
from shardtool.packing.build import tally_lines
from shardtool.packing.compare import Changes, check_same_options, source_differs
from shardtool.packing.destination import FAILED, IGNORED, check_space, remove_dataset
from shardtool.packing.receipts import read_receipts, valid_receipts
from shardtool.planning.plan import ALGORITHM
from shardtool.planning.plan_file import PLAN_JSON, Ledger, StoredPlan, encode_plan, load_plan
from shardtool.storage import is_remote, open_place
from shardtool.tokens.inputs import Inputs, cut_tasks, find_inputs
from shardtool.tokens.pairs import kept_dtype, kept_facts, kept_splits
from shardtool.tokens.plan import TokenPlan, make_token_plan
from shardtool.tokens.runs import FOLDER as PARTS
from shardtool.tokens.runs import run_paths, work_folder
from shardtool.tokens.stage import PartReceipt, StageJob, run_bytes, run_stage
from shardtool.tokens.store import load_inputs, load_shards, store_inputs, store_shards
from shardtool.tokens.tokenizer import TokenizerSpec, resolve_tokenizer
from shardtool.units import format_range, plural
from shardtool.workers import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.packing.build import PackRequest, Say
    from shardtool.planning.plan import PlanOptions
    from shardtool.tokens.files import InputFile

_PART_NAME = re.compile(r"(\.tmp-part-[0-9]+-.*)?[0-9]{6,}(-[0-9]{3,})?\.(bin|arrow|json)")
PACKED_ALGORITHM = "xxh3-document/1"  # sequences made of documents in the order of their hashes
_OTHER = {
    "stratify": "--stratify", "split_by": "--split-by", "split_group": "--split-group", "label_from": "--label-from",
    "join": "--join", "require": "--require", "alias": "--alias", "no_ext": "--no-ext",
}  # fmt: skip


@dataclass(frozen=True)
class Decided:
    """A plan of token data that is not stored yet."""

    inputs: Inputs
    job: StageJob
    receipts: tuple[PartReceipt, ...]
    plan: TokenPlan

    @property
    def ledger(self) -> Ledger:
        """Documents seen, ignored and failed; files that were left out count too."""
        ignored = dict(self.inputs.ignored.counts)
        for receipt in self.receipts:
            for reason, count in receipt.ignored.items():
                ignored[reason] = ignored.get(reason, 0) + count
        if self.plan.duplicates:
            ignored["duplicate"] = self.plan.duplicates
        failed = self.inputs.failed.total() + sum(len(receipt.failed) for receipt in self.receipts)
        seen = sum(receipt.seen for receipt in self.receipts)
        seen += self.inputs.ignored.total() + self.inputs.failed.total()
        return Ledger(seen, ignored, failed)


def settle_tokens(request: PackRequest, state: str, pool: WorkerPool | None, say: Say) -> StoredPlan:
    """The stored plan of token data to execute, made now where there is none.

    Raises:
        PlanMismatch: the output was made from other options, or the source has changed.
        SourceError: the source cannot be read, or holds no text.
    """
    out, stored = request.out, load_plan(request.out)
    if request.overwrite and state != "new":
        decided = decide(request, request.options, pool, say)
        remove_dataset(out, durable=request.durable)
        return _store(request, decided, say)
    if stored is None:
        if state == "finished":
            raise DestinationExists(
                f"{out} is finished, but its stored plan is gone, so it cannot be compared with the source",
                hint="write to a new folder, or replace it with --overwrite",
                where={"path": out},
            )
        return _store(request, decide(request, request.options, pool, say), say)
    if request.sources:
        check_same_options(out, stored, request.options, request.sources)
        if state == "finished" or request.rescan or request.update:
            stored = _compare(request, stored, pool, say)
        elif state == "unfinished":
            say.step("resume", f"{out} goes on from its stored plan (--rescan looks at the source again)")
    _restage(request, stored, pool, say)
    return stored


def check_options(options: PlanOptions) -> None:
    """Refuse options that mean nothing for documents.

    Raises:
        UsageProblem: naming them.
    """
    given = [flag for name, flag in _OTHER.items() if getattr(options, name)]
    if given:
        raise UsageProblem(
            f"{', '.join(given)}: not with --format bin, whose samples are documents", hint="leave it out"
        )
    if options.compress != "none":
        raise UsageProblem("--compress: trainers map a .bin, it cannot be compressed", hint="leave --compress out")
    tokens = options.tokens
    assert tokens is not None
    if tokens.shard_tokens and options.shard_size:
        raise UsageProblem("--shard-tokens and --shard-size exclude one another", hint="choose one")


def _pool(pool: WorkerPool | None) -> WorkerPool:
    return pool or WorkerPool(0)


def decide(request: PackRequest, options: PlanOptions, pool: WorkerPool | None, say: Say) -> Decided:
    """Stage 1, and the decision of stage 2; nothing but part files is written."""
    check_options(options)
    inputs = inputs_of(request, options, pool, say)
    return decide_for(request, options, inputs, pool, say)


def inputs_of(request: PackRequest, options: PlanOptions, pool: WorkerPool | None, say: Say) -> Inputs:
    """The files with documents that a request names."""
    inputs = find_inputs(
        request.sources,
        options,
        pool,
        on_error=request.on_error,
        null=request.null,
        list_cache=request.list_cache,
    )
    for notice in inputs.notices:
        say.warn(notice)
    return inputs


def decide_for(
    request: PackRequest, options: PlanOptions, inputs: Inputs, pool: WorkerPool | None, say: Say
) -> Decided:
    """As `decide`, for inputs that are found already."""
    job = stage_job(request, options, inputs.files)
    tasks = cut_tasks(inputs.files)
    say.step("read", f"{plural(len(inputs.files), 'file')} in {plural(len(tasks), 'slice')}")
    receipts = run_stage(job, tasks, _pool(pool), say)
    runs = [run for receipt in receipts for run in receipt.runs]
    kept = kept_dtype(inputs.files)
    plan = make_token_plan(job.work, runs, options, job.spec, dtype=kept, splits=job.kept_splits)
    return Decided(inputs, job, tuple(receipts), plan)


def stage_job(request: PackRequest, options: PlanOptions, files: Sequence[InputFile]) -> StageJob:
    """What workers of stage 1 need for these files."""
    assert options.tokens is not None
    spec = resolve_tokenizer(options.tokens)
    _check_context(options.tokens, spec)
    return StageJob(
        work=work_folder(request.out),
        options=options.tokens,
        spec=spec,
        dtype=kept_dtype(files) or _run_dtype(options.tokens.dtype, spec),
        seed=options.seed,
        sort=options.shuffle == "global",
        splits=bool(options.split) or options.tokens.dedup != "none",
        on_error=request.on_error,
        durable=request.durable,
        run_bytes=run_bytes(sum(file.size for file in files)),
        kept_splits=() if options.split else kept_splits(files),
    )


def _run_dtype(rule: str, spec: TokenizerSpec) -> str:
    if rule in CODE_OF:
        check_ids(0, spec.largest_id, rule)
        return rule
    if spec.vocab_size:
        return dtype_for(spec.vocab_size - 1, rule, vocab_size=spec.vocab_size)
    return "auto"


def _check_context(tokens: Any, spec: TokenizerSpec) -> None:
    if tokens.context and spec.pad is None:
        raise UsageProblem(
            f"--context {tokens.context:,} needs an id to pad the last sequence with, and there is no end of document",
            hint="--pad ID, or --eod ID",
        )
    if tokens.context and tokens.empty == "keep":
        raise UsageProblem("--empty keep: a sequence of fixed length holds no empty document", hint="leave it out")


def _store(request: PackRequest, decided: Decided, say: Say) -> StoredPlan:
    plan, out, durable = decided.plan, request.out, request.durable
    sizes = [spec.num_bytes for spec in plan.specs]
    say.step(
        "plan",
        f"{plural(plan.documents, 'document')}, {plan.num_tokens:,} tokens -> {plural(len(sizes), 'shard')} of "
        f"{format_range(min(sizes), max(sizes))}   {plan.dtype}   seed {request.options.seed}",
    )
    for notice in plan.notices:
        say.warn(notice)
    check_space(out, plan.specs, plan.documents)
    ledger = decided.ledger
    for path, tally in ((IGNORED, decided.inputs.ignored), (FAILED, _failed(decided))):
        open_place(out).put(path, tally_lines(tally), tag="plan", durable=durable)
    runs = [run for receipt in decided.receipts for run in receipt.runs]
    assert request.options.tokens is not None
    store_inputs(out, decided.inputs.files, durable=durable)
    store_shards(
        out,
        plan,
        runs,
        request.options.tokens,
        decided.job.spec,
        is_sorted=decided.job.sort,
        durable=durable,
    )
    stored = StoredPlan(
        plan_id=plan.plan_id,
        options=request.options,
        roots=decided.inputs.roots,
        shards=plan.specs,
        ledger=ledger,
        membership=_membership(request.options, decided),
    )
    open_place(out).put(PLAN_JSON, encode_plan(stored), tag="plan", durable=durable)
    return stored


def _failed(decided: Decided) -> Tally:
    tally = Tally()
    tally.merge(decided.inputs.failed)
    for receipt in decided.receipts:
        for key, reason in receipt.failed:
            tally.add("document", key.encode("utf-8", "backslashreplace"), reason)
    return tally


def _membership(options: PlanOptions, decided: Decided) -> dict[str, Any]:
    """How documents were dealt to shards, and what their tokens are, for the manifest."""
    plan, spec, tokens = decided.plan, decided.job.spec, options.tokens
    assert tokens is not None
    is_shuffled = options.shuffle == "global"
    algorithm = PACKED_ALGORITHM if tokens.context else ALGORITHM
    return {
        "shuffled": is_shuffled,
        "algorithm": algorithm if is_shuffled else "source-order/1",
        "seed": options.seed,
        "stratified": False,
        "tokens": {
            "count": plan.num_tokens,
            "documents": plan.documents,
            "dtype": plan.dtype,
            "tokenizer": os.path.basename(spec.name),
            "tokenizer_xxh3_128": spec.xxh3_128,
            "vocab_size": spec.vocab_size or None,
            "eod": spec.eod,
            "eod_pos": tokens.eod_pos,
            "bos": spec.bos,
            "pad": spec.pad if tokens.context else None,
            "context": tokens.context or None,
            **kept_facts(decided.inputs.files),
        },
    }


def _compare(request: PackRequest, stored: StoredPlan, pool: WorkerPool | None, say: Say) -> StoredPlan:
    """The stored plan where the source is the same; else an error that counts."""
    check_options(stored.options)
    inputs = inputs_of(request, stored.options, pool, say)
    old = {file.path: file for file in load_inputs(request.out)}
    new = {file.path: file for file in inputs.files}
    changes = Changes(added=len(new.keys() - old.keys()), removed=len(old.keys() - new.keys()))
    both = old.keys() & new.keys()
    changes.resized = sum(old[path].size != new[path].size for path in both)
    touched = [path for path in both if old[path].guard != new[path].guard]
    if changes.any:
        raise source_differs(request.out, changes)
    if not touched:
        return stored
    say.step("read", f"{plural(len(touched), 'file')} have another time or ETag: their documents are read again")
    decided = decide_for(request, stored.options, inputs, pool, say)
    if decided.plan.plan_id == stored.plan_id:
        store_inputs(request.out, inputs.files, durable=request.durable)
        return stored
    changes.rewritten = len(touched)
    changes.examples += [os.fsdecode(path) for path in sorted(touched)[:5]]
    changes.other = True  # a document that grew or shrank moves others: no shard can be mended alone
    raise source_differs(request.out, changes)


def _restage(request: PackRequest, stored: StoredPlan, pool: WorkerPool | None, say: Say) -> None:
    """Make part files again where shards are missing and the parts they are made of are gone.

    Raises:
        SourceChanged: the source is no longer what was planned.
    """
    out = request.out
    valid = valid_receipts(out, read_receipts(out), stored.plan_id, len(stored.shards), deep=request.deep)
    if len(valid) == len(stored.shards):
        return
    runs, work = load_shards(out).runs, work_folder(out)
    if all(os.path.isfile(os.path.join(work, path)) for run in runs for path in run_paths(run.name)):
        return
    files = load_inputs(out)
    job = stage_job(request, stored.options, files)
    say.step("read", "part files are gone; the documents are read again")
    found = run_stage(job, cut_tasks(files), _pool(pool), say)
    if [run for receipt in found for run in receipt.runs] != list(runs):
        raise PlanMismatch(
            f"the source of {out} no longer gives the tokens that were planned",
            hint="write to a new folder, or replace it with --overwrite",
            where={"path": out},
        )


def remove_parts(out: str) -> None:
    """Remove the part files of a data set that is published."""
    work = work_folder(out)
    folder = os.path.join(work, PARTS)
    with suppress(FileNotFoundError):
        for name in os.listdir(folder):
            if _PART_NAME.fullmatch(name):
                os.unlink(os.path.join(folder, name))
    with suppress(OSError):  # what is not ours stays
        os.rmdir(folder)
        if is_remote(out):
            os.rmdir(os.path.dirname(folder))
            os.rmdir(work)
