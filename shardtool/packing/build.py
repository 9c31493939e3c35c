"""`pack SRC OUT`: scan, group, plan, pack, index in one run that may be killed anywhere and goes on when repeated."""

from __future__ import annotations

import json
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from shardtool.errors import (
    DestinationExists,
    FormatError,
    ShardtoolError,
    SourceError,
    SourceNotFound,
    UsageProblem,
)
from shardtool.manifest import MANIFEST, load_manifest, publish
from shardtool.packing.compare import check_same_options, compare_plans, source_differs
from shardtool.packing.destination import (
    FAILED,
    IGNORED,
    bytes_of,
    check_space,
    in_turn,
    locked,
    our_files,
    remove_dataset,
    remove_leftovers,
    remove_spool,
    spool_folder,
    state_of,
)
from shardtool.packing.pack import job_for
from shardtool.packing.packed_source import refuse_datasets
from shardtool.packing.prepare import prepare
from shardtool.packing.receipts import drop_receipts, fold_receipts, has_loose, read_receipts, valid_receipts
from shardtool.planning.plan import PlanOptions
from shardtool.planning.plan_file import load_plan, write_plan
from shardtool.scan import check_overlap
from shardtool.storage import open_place
from shardtool.storage.files import absolute
from shardtool.storage.retries import new_retries
from shardtool.units import format_range, plural

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from shardtool.manifest import Manifest
    from shardtool.model import Receipt, Tally
    from shardtool.packing.pack import Executor
    from shardtool.packing.prepare import Prepared
    from shardtool.planning.plan_file import StoredPlan
    from shardtool.workers import WorkerPool


class Progress(Protocol):
    """What moves while shards are packed."""

    def advance(self, shards: int, nbytes: int, samples: int) -> None:
        """So much more is done."""


class Say(Protocol):
    """Where a run tells what it does."""

    def step(self, verb: str, text: str) -> None:
        """One line a step."""

    def warn(self, text: str) -> None:
        """What it costs and what to type."""

    def progress(self, total_shards: int, total_bytes: int, total_samples: int) -> AbstractContextManager[Progress]:
        """A bar, or what stands for it."""


@dataclass(frozen=True)
class PackRequest:
    """What one `pack` run is asked to do."""

    sources: tuple[str, ...]  # empty: go on from the plan stored in `out`
    out: str
    options: PlanOptions = field(default_factory=PlanOptions)
    null: bool = False
    list_cache: str = ""  # file that keeps the list of objects
    trust_parts: bool = False
    on_changed: str = "error"
    on_error: str = "error"
    max_errors: int = 0
    durable: bool = True
    overwrite: bool = False
    rescan: bool = False
    update: bool = False
    deep: bool = False
    part: tuple[int, int] | None = None


@dataclass(frozen=True)
class PackResult:
    """How a run ended. `manifest` is None where other parts are still missing."""

    stored: StoredPlan
    manifest: Manifest | None
    num_packed: int  # shards written by this run
    num_resumed: int  # shards that were there already
    num_missing: int
    failed: tuple[tuple[str, str], ...]
    seconds: dict[str, float]  # of each phase: plan, pack, publish
    num_retries: int = 0  # requests to stores that were sent again

    @property
    def failed_entries(self) -> int:
        """Files that were not packed though they were wanted."""
        ledger = self.manifest.ledger if self.manifest else self.stored.ledger.document()
        return int(ledger["failed"])

    def document(self, out: str) -> dict[str, Any]:
        """`shardtool/pack/1`."""
        manifest, stored = self.manifest, self.stored
        if manifest is None:
            totals: dict[str, Any] = {
                "dataset_id": None,
                "samples": stored.num_samples,
                "shards": len(stored.shards),
                "bytes": sum(spec.num_bytes for spec in stored.shards),
                "payload_bytes": sum(spec.payload_bytes for spec in stored.shards),
                "splits": {},
                "ledger": stored.ledger.document(),
            }
        else:
            totals = {
                "dataset_id": manifest.dataset_id,
                "samples": manifest.num_samples,
                "shards": len(manifest.shards),
                "bytes": manifest.num_bytes,
                "payload_bytes": manifest.payload_bytes,
                "splits": manifest.splits(),
                "ledger": manifest.ledger,
            }
        return {
            "schema": "shardtool/pack/1",
            "output": out,
            "format": stored.options.format,
            "plan_id": stored.plan_id,
            **totals,
            "missing_shards": self.num_missing,
            "resumed_shards": self.num_resumed,
            "retries": self.num_retries,
            "seconds": round(sum(self.seconds.values()), 3),
            "phase_seconds": {phase: round(seconds, 3) for phase, seconds in self.seconds.items()},
        }


def build(request: PackRequest, pool: WorkerPool | None, executor: Executor, say: Say) -> PackResult:
    """Run `request`; what earlier runs finished is kept.

    Raises:
        DestinationExists, PlanMismatch: the output holds something else.
        ShardtoolError: as the steps say.
    """
    laps = _Laps(pool)
    _check_request(request)
    state = state_of(request.out)
    with locked(request.out, request.part):
        if _is_staged(request):
            from shardtool.tokens.build import remove_parts, settle_tokens

            with in_turn(request.out, "plan"):
                stored = settle_tokens(request, state, pool, say)
        elif request.overwrite and state != "new":
            stored = _replace(request, pool, say)
        else:
            with in_turn(request.out, "plan"):
                stored = _settle_plan(request, state, pool, say)
        laps.end("plan")
        result = _pack(request, stored, executor, say, laps)
        if _is_staged(request) and result.manifest is not None:
            remove_parts(request.out)
        return result


def _is_staged(request: PackRequest) -> bool:
    """Whether documents have to be tokenized before anything can be planned."""
    if request.sources:
        return request.options.tokens is not None
    stored = load_plan(request.out)
    return stored is not None and stored.options.tokens is not None


def _check_request(request: PackRequest) -> None:
    check_overlap(request.sources, request.out)
    if request.overwrite and request.part is not None:
        raise UsageProblem(
            "--overwrite and --part exclude one another: a part would remove what the others made",
            hint="write to a new folder",
        )
    if request.overwrite and not request.sources:
        raise UsageProblem(
            f"--overwrite packs anew, and {request.out} alone names no source",
            hint=f"shardtool pack SRC {request.out} --overwrite",
        )


def _replace(request: PackRequest, pool: WorkerPool | None, say: Say) -> StoredPlan:
    """A new plan in the place of the old data set, which goes only once the new one is known to be possible."""
    prepared = _prepare(request, pool)
    reclaimed = bytes_of(request.out, our_files(request.out))
    check_space(request.out, prepared.plan.shards, len(prepared.plan.samples.part_entry), reclaimed=reclaimed)
    remove_dataset(request.out, durable=request.durable)
    return store_plan(request, prepared, say)


def _settle_plan(request: PackRequest, state: str, pool: WorkerPool | None, say: Say) -> StoredPlan:
    """The plan to execute: the stored one, or a new one that is stored now."""
    stored = load_plan(request.out)
    if stored is None:
        if state == "finished":
            raise _plan_is_gone(request.out)
        if not request.sources:
            raise UsageProblem(
                f"{request.out} has no stored plan to go on with", hint=f"shardtool pack SRC {request.out}"
            )
        prepared = _prepare(request, pool)
        return store_plan(request, prepared, say)
    if not request.sources:
        return stored
    check_same_options(request.out, stored, request.options, request.sources)
    if state == "new":
        return stored  # another part has just stored it
    if state == "unfinished" and not (request.rescan or request.update):
        say.step("resume", f"{request.out} goes on from its stored plan (--rescan looks at the source again)")
        return stored
    prepared = _prepare(request, pool)
    return _apply_changes(request, stored, prepared, state, say)


def _prepare(request: PackRequest, pool: WorkerPool | None) -> Prepared:
    refuse_datasets(request.sources, request.out, request.options)
    prepared = prepare(
        request.sources,
        request.options,
        pool,
        on_error=request.on_error,
        null=request.null,
        trust_parts=request.trust_parts,
        list_cache=request.list_cache,
        spool=spool_folder(request.out) if request.options.source == "shards" else "",
    )
    num_shards = len(prepared.plan.shards)
    if pool is not None and num_shards > 1:
        pool.begin(num_shards)  # while the plan is stored
    return prepared


def store_plan(request: PackRequest, prepared: Prepared, say: Say) -> StoredPlan:
    """Store the plan and the lists of what is left out; the output must be locked, and hold no plan.

    Raises:
        NoSpace: the data set cannot fit.
    """
    plan = prepared.plan
    sizes = [spec.num_bytes for spec in plan.shards]
    say.step(
        "plan",
        f"{plural(plan.samples.num_samples, 'sample')} -> {plural(len(sizes), 'shard')} of "
        f"{format_range(min(sizes), max(sizes))}   seed {plan.options.seed}   "
        f"overhead {100 * (plan.num_bytes - plan.payload_bytes) / max(plan.num_bytes, 1):.1f} %",
    )
    if prepared.choice:
        say.step("zstd", "   ".join(prepared.choice.why))
    for notice in prepared.notices:
        say.warn(notice)
    check_space(request.out, plan.shards, len(plan.samples.part_entry))
    return _write(request, prepared)


def _write(request: PackRequest, prepared: Prepared) -> StoredPlan:
    """The lists of what is left out, then the plan, which makes them count."""
    for path, tally in ((IGNORED, prepared.ignored), (FAILED, prepared.failed)):
        open_place(request.out).put(path, tally_lines(tally), tag="plan", durable=request.durable)
    stored = write_plan(request.out, prepared.plan, prepared.ledger, durable=request.durable)
    return replace(stored, scanned_at=prepared.scanned_at)


def tally_lines(tally: Tally) -> bytes:
    """ignored.jsonl or failed.jsonl: an entry a line."""
    lines = []
    for reason, path, detail in tally.entries:
        entry = {"reason": reason, "path": path.decode("utf-8", "backslashreplace")}
        if detail:
            entry["detail"] = detail
        lines.append(json.dumps(entry, ensure_ascii=False))
    return "".join(f"{line}\n" for line in lines).encode()


def _apply_changes(request: PackRequest, stored: StoredPlan, prepared: Prepared, state: str, say: Say) -> StoredPlan:
    """The stored plan where the source is the same; else an error that counts, or, with --update, the new guards."""
    changes = compare_plans(request.out, stored, prepared.plan)
    if changes.damaged:
        say.step("plan", f"the stored rows of {plural(changes.damaged, 'shard')} are damaged: contents are compared")
    if not changes.any:
        if changes.touched or changes.damaged:  # so that their contents need not be compared again
            return write_plan(request.out, prepared.plan, stored.ledger, durable=request.durable)
        return stored
    if changes.only_contents and (request.update or state == "unfinished"):
        say.step("update", f"{plural(changes.rewritten, 'file')} changed in {plural(len(changes.shards), 'shard')}")
        open_place(request.out).remove([MANIFEST])
        total = len(stored.shards)
        drop_receipts(request.out, changes.shards, read_receipts(request.out), total, durable=request.durable)
        return _write(request, prepared)
    if state == "finished":
        remove_spool(request.out)
    raise source_differs(request.out, changes)


def _plan_is_gone(out: str) -> DestinationExists:
    return DestinationExists(
        f"{out} is finished, but its stored plan is gone, so it cannot be compared with the source",
        hint="write to a new folder, or replace it with --overwrite",
        where={"path": out},
    )


def _pack(request: PackRequest, stored: StoredPlan, executor: Executor, say: Say, laps: _Laps) -> PackResult:
    """Pack the shards that have no valid receipt, then publish where all have one."""
    out = request.out
    known = read_receipts(out)
    valid = valid_receipts(out, known, stored.plan_id, len(stored.shards), deep=request.deep)
    settled = {shard for shard, receipt in valid.items() if not receipt.failed}
    if len(settled) == len(stored.shards):
        with suppress(SourceNotFound, FormatError):  # no manifest yet, or a damaged one
            known_manifest = load_manifest(out)
            _tidy(request, list(valid.values()))
            return PackResult(stored, known_manifest, 0, len(settled), 0, (), laps.seconds)
    todo = [shard for shard in _shards_of(request, stored) if shard not in settled]
    retries = 0
    if todo:
        open_place(out).remove([MANIFEST])
        drop_receipts(out, set(todo) & set(known), known, len(stored.shards), durable=request.durable)
        num_settled = len(settled)
        if num_settled:
            say.step("resume", f"{plural(num_settled, 'shard')} of {len(stored.shards):,} are there already")
        retries = _run(request, stored, todo, executor, say)
        if retries:
            say.step("retry", f"{plural(retries, 'request')} had to be sent again, and succeeded")
    laps.end("pack")
    with in_turn(out, "publish"):
        manifest, failed, missing = _publish(request, stored)
    laps.end("publish")
    return PackResult(stored, manifest, len(todo), len(settled), missing, failed, laps.seconds, retries)


class _Laps:
    """Seconds of each phase of a run; those that it waited for the first worker to start are a phase of their own."""

    def __init__(self, pool: WorkerPool | None) -> None:
        self.seconds: dict[str, float] = {}
        self._began, self._pool, self._waited = time.monotonic(), pool, 0.0

    def end(self, phase: str) -> None:
        now, waited = time.monotonic(), self._pool.start_wait_s if self._pool is not None else 0.0
        self.seconds[phase] = now - self._began - (waited - self._waited)
        self.seconds["start"] = waited
        self._began, self._waited = now, waited


def _tidy(request: PackRequest, receipts: list[Receipt]) -> None:
    """What a run that was killed after it wrote the manifest did not get to."""
    with in_turn(request.out, "publish"):
        if has_loose(request.out):
            in_order = sorted(receipts, key=lambda receipt: receipt.shard)
            fold_receipts(request.out, in_order, durable=request.durable)
        remove_leftovers(request.out)


def _publish(request: PackRequest, stored: StoredPlan) -> tuple[Manifest | None, tuple[tuple[str, str], ...], int]:
    """(manifest, samples left out, shards missing): published where no shard is missing."""
    out = request.out
    receipts = valid_receipts(out, read_receipts(out), stored.plan_id, len(stored.shards))
    done = [receipt for _, receipt in sorted(receipts.items())]
    failed = tuple(pair for receipt in done for pair in receipt.failed)
    missing = len(stored.shards) - len(done)
    if missing and request.part is None:
        raise ShardtoolError(f"{plural(missing, 'shard')} of {out} have no valid receipt after packing")
    if missing:
        return None, failed, missing
    add_failed(out, failed, durable=request.durable)
    manifest = publish(out, stored, done, durable=request.durable)
    remove_leftovers(out)
    if request.durable:
        open_place(out).sync([MANIFEST])
    return manifest, failed, 0


def _shards_of(request: PackRequest, stored: StoredPlan) -> list[int]:
    """Shards of this part, the largest first; all of them without --part."""
    if request.part is None:
        return list(range(len(stored.shards)))
    number, count = request.part
    by_size = sorted(range(len(stored.shards)), key=lambda shard: (-stored.shards[shard].num_bytes, shard))
    return by_size[number::count]


def _run(request: PackRequest, stored: StoredPlan, todo: list[int], executor: Executor, say: Say) -> int:
    """Pack these shards; how many requests to stores were sent again."""
    job = job_for(
        absolute(request.out),
        stored,
        on_changed=request.on_changed,
        on_error=request.on_error,
        durable=request.durable,
    )
    total_bytes = sum(stored.shards[shard].num_bytes for shard in todo)
    total_samples = sum(stored.shards[shard].num_samples for shard in todo)
    num_failed = num_retries = 0
    with say.progress(len(todo), total_bytes, total_samples) as progress, closing(executor.run(job, todo)) as receipts:
        for receipt in receipts:
            progress.advance(1, receipt.files[0].num_bytes, receipt.num_samples)
            num_failed += len(receipt.failed)
            num_retries += receipt.retries
            _check_errors(request, num_failed, receipt)
    return num_retries + new_retries()


def _check_errors(request: PackRequest, num_failed: int, receipt: Receipt) -> None:
    if request.max_errors and num_failed > request.max_errors:
        key, reason = receipt.failed[0]
        raise SourceError(
            f"more than {request.max_errors:,} samples failed; the last: {key}: {reason}",
            hint="put the source right and run the same command again: finished shards are kept",
        )


def add_failed(out: str, failed: tuple[tuple[str, str], ...], *, durable: bool) -> None:
    """failed.jsonl of `out`: what the scan could not take, then the samples that packing left out."""
    place, lines = open_place(out), list[str]()
    with suppress(FileNotFoundError):
        lines = [line for line in place.read(FAILED).decode().splitlines(keepends=True) if '"key": ' not in line]
    lines += [json.dumps({"reason": reason, "key": key}, ensure_ascii=False) + "\n" for key, reason in failed]
    place.put(FAILED, "".join(lines).encode(), tag="failed", durable=durable)
