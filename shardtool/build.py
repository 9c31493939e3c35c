"""`pack SRC OUT`: scan, group, plan, pack, index in one run that may be killed anywhere and goes on when repeated."""

from __future__ import annotations

import json
import os
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from shardtool.compare import compare_plans
from shardtool.destination import FAILED, IGNORED, check_space, locked, remove_dataset, remove_leftovers, state_of
from shardtool.errors import DestinationExists, PlanMismatch, ShardtoolError, SourceError, UsageProblem
from shardtool.manifest import MANIFEST, load_manifest, publish
from shardtool.pack import job_for
from shardtool.plan import PlanOptions
from shardtool.plan_file import load_plan, write_plan
from shardtool.prepare import prepare
from shardtool.receipts import drop_receipts, is_valid, read_receipts
from shardtool.scan import check_overlap
from shardtool.storage.local import put_file, sync_folder
from shardtool.units import format_range, plural

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from shardtool.compare import Changes
    from shardtool.manifest import Manifest
    from shardtool.model import Receipt, Tally
    from shardtool.pack import Executor
    from shardtool.plan_file import StoredPlan
    from shardtool.prepare import Prepared
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
    seconds: float

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
            "seconds": round(self.seconds, 3),
        }


def build(request: PackRequest, pool: WorkerPool | None, executor: Executor, say: Say) -> PackResult:
    """Run `request`; what earlier runs finished is kept.

    Raises:
        DestinationExists, PlanMismatch: the output holds something else.
        ShardtoolError: as the steps say.
    """
    began = time.monotonic()
    check_overlap(request.sources, request.out)
    state = state_of(request.out)
    with locked(request.out, request.part):
        if request.overwrite and state != "new":
            remove_dataset(request.out)
            state = "new"
        stored = load_plan(request.out) if state != "new" else None
        if state == "finished" and stored is None and request.sources:
            raise _plan_is_gone(request.out)
        stored = _settle_plan(request, stored, state, pool, say)
        return _pack(request, stored, executor, say, began)


def _settle_plan(
    request: PackRequest, stored: StoredPlan | None, state: str, pool: WorkerPool | None, say: Say
) -> StoredPlan:
    """The plan to execute: the stored one, or a new one that is stored now."""
    if stored is None:
        if not request.sources:
            raise UsageProblem(
                f"{request.out} has no stored plan to go on with", hint=f"shardtool pack SRC {request.out}"
            )
        prepared = _prepare(request, pool)
        return store_plan(request, prepared, say)
    if not request.sources:
        return stored
    _check_same_options(request, stored)
    if state == "unfinished" and not request.rescan:
        say.step("resume", f"{request.out} goes on from its stored plan (--rescan looks at the source again)")
        return stored
    prepared = _prepare(request, pool)
    return _apply_changes(request, stored, prepared, state, say)


def _prepare(request: PackRequest, pool: WorkerPool | None) -> Prepared:
    return prepare(
        request.sources,
        request.options,
        pool,
        on_error=request.on_error,
        null=request.null,
        trust_parts=request.trust_parts,
    )


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
    for notice in prepared.notices:
        say.warn(notice)
    check_space(request.out, plan.shards, len(plan.samples.part_entry))
    for path, tally in ((IGNORED, prepared.ignored), (FAILED, prepared.failed)):
        put_file(request.out, path, _tally_lines(tally), tag="plan", durable=request.durable)
    return write_plan(request.out, plan, prepared.ledger, durable=request.durable)


def _tally_lines(tally: Tally) -> bytes:
    lines = []
    for reason, path, detail in tally.entries:
        entry = {"reason": reason, "path": path.decode("utf-8", "backslashreplace")}
        if detail:
            entry["detail"] = detail
        lines.append(json.dumps(entry, ensure_ascii=False))
    return "".join(f"{line}\n" for line in lines).encode()


def _check_same_options(request: PackRequest, stored: StoredPlan) -> None:
    """Options and sources equal those of the stored plan.

    Raises:
        PlanMismatch: naming each difference.
    """
    new, old = request.options.document(), stored.options.document()
    differences = [
        f"{name.replace('_', '-')} {_show(old[name])}, now {_show(new[name])}" for name in new if new[name] != old[name]
    ]
    roots = tuple(os.path.abspath(source) for source in request.sources)
    if roots != stored.roots:
        differences.append(f"source {', '.join(stored.roots)}, now {', '.join(roots)}")
    if differences:
        raise PlanMismatch(
            f"{request.out} holds a data set made with other options:  {';  '.join(differences)}",
            hint="write to a new folder, or replace it with --overwrite",
            where={"path": request.out},
        )


def _show(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return str(value) if value not in ("", None) else "none"


def _apply_changes(request: PackRequest, stored: StoredPlan, prepared: Prepared, state: str, say: Say) -> StoredPlan:
    """The stored plan where the source is the same; else an error that counts, or, with --update, the new guards."""
    changes = compare_plans(request.out, stored, prepared.plan)
    if not changes.any:
        if changes.touched and state == "unfinished":
            return write_plan(request.out, prepared.plan, prepared.ledger, durable=request.durable)
        return stored
    if changes.only_contents and (request.update or state == "unfinished"):
        say.step("update", f"{plural(changes.rewritten, 'file')} changed in {plural(len(changes.shards), 'shard')}")
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(request.out, MANIFEST))
        total = len(stored.shards)
        drop_receipts(request.out, changes.shards, read_receipts(request.out), total, durable=request.durable)
        return write_plan(request.out, prepared.plan, prepared.ledger, durable=request.durable)
    raise _source_differs(request, changes)


def _source_differs(request: PackRequest, changes: Changes) -> PlanMismatch:
    choices = ["write to a new folder", "replace it with --overwrite"]
    if changes.only_contents:
        choices.append("or repack only the shards that hold them with --update")
    shown = "".join(f"\n  {path}" for path in changes.examples)
    return PlanMismatch(
        f"the source of {request.out} is not what was packed:  {changes.sentence()}{shown}",
        hint=", ".join(choices),
        where={"path": request.out},
    )


def _plan_is_gone(out: str) -> DestinationExists:
    return DestinationExists(
        f"{out} is finished, but its stored plan is gone, so it cannot be compared with the source",
        hint="write to a new folder, or replace it with --overwrite",
        where={"path": out},
    )


def _pack(request: PackRequest, stored: StoredPlan, executor: Executor, say: Say, began: float) -> PackResult:
    """Pack the shards that have no valid receipt, then publish where all have one."""
    out = request.out
    known = read_receipts(out)
    valid = {
        shard: receipt
        for shard, receipt in known.items()
        if shard < len(stored.shards) and is_valid(out, receipt, stored.plan_id, deep=request.deep)
    }
    settled = {shard for shard, receipt in valid.items() if not receipt.failed}
    if os.path.exists(os.path.join(out, MANIFEST)) and len(settled) == len(stored.shards):
        return PackResult(stored, load_manifest(out), 0, len(settled), 0, (), time.monotonic() - began)
    todo = [shard for shard in _shards_of(request, stored) if shard not in settled]
    if todo:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(out, MANIFEST))
        drop_receipts(out, set(todo) & set(known), known, len(stored.shards), durable=request.durable)
        num_settled = len(settled)
        if num_settled:
            say.step("resume", f"{plural(num_settled, 'shard')} of {len(stored.shards):,} are there already")
        _run(request, stored, todo, executor, say)
    receipts = read_receipts(out)
    done = [receipts[shard] for shard in range(len(stored.shards)) if shard in receipts]
    done = [receipt for receipt in done if is_valid(out, receipt, stored.plan_id)]
    failed = tuple(pair for receipt in done for pair in receipt.failed)
    missing = len(stored.shards) - len(done)
    manifest = None
    if not missing:
        _add_failed(request, failed)
        manifest = publish(out, stored, done, durable=request.durable)
        remove_leftovers(out)
        if request.durable:
            sync_folder(out)
    elif request.part is None:
        raise ShardtoolError(f"{plural(missing, 'shard')} of {out} have no valid receipt after packing")
    return PackResult(stored, manifest, len(todo), len(settled), missing, failed, time.monotonic() - began)


def _shards_of(request: PackRequest, stored: StoredPlan) -> list[int]:
    """Shards of this part, the largest first; all of them without --part."""
    if request.part is None:
        return list(range(len(stored.shards)))
    number, count = request.part
    by_size = sorted(range(len(stored.shards)), key=lambda shard: (-stored.shards[shard].num_bytes, shard))
    return by_size[number::count]


def _run(request: PackRequest, stored: StoredPlan, todo: list[int], executor: Executor, say: Say) -> None:
    job = job_for(
        os.path.abspath(request.out),
        stored,
        on_changed=request.on_changed,
        on_error=request.on_error,
        durable=request.durable,
    )
    total_bytes = sum(stored.shards[shard].num_bytes for shard in todo)
    total_samples = sum(stored.shards[shard].num_samples for shard in todo)
    num_failed = 0
    with say.progress(len(todo), total_bytes, total_samples) as progress, closing(executor.run(job, todo)) as receipts:
        for receipt in receipts:
            progress.advance(1, receipt.files[0].num_bytes, receipt.num_samples)
            num_failed += len(receipt.failed)
            _check_errors(request, num_failed, receipt)


def _check_errors(request: PackRequest, num_failed: int, receipt: Receipt) -> None:
    if request.max_errors and num_failed > request.max_errors:
        key, reason = receipt.failed[0]
        raise SourceError(
            f"more than {request.max_errors:,} samples failed; the last: {key}: {reason}",
            hint="put the source right and run the same command again: finished shards are kept",
        )


def _add_failed(request: PackRequest, failed: tuple[tuple[str, str], ...]) -> None:
    """failed.jsonl: what the scan could not take, then the samples that packing left out."""
    path = os.path.join(request.out, FAILED)
    lines: list[str] = []
    with suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
        lines = [line for line in file if '"key": ' not in line]
    lines += [json.dumps({"reason": reason, "key": key}, ensure_ascii=False) + "\n" for key, reason in failed]
    put_file(request.out, FAILED, "".join(lines).encode(), tag="failed", durable=request.durable)
