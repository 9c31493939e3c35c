"""Is a data set whole, and with `is_deep`, is it undamaged: manifest, files, indexes, and every byte.

    manifest + folder --here--> faults;  each shard --workers--> ShardReport;  all reports --here--> duplicates, totals

Damage never raises; it comes back as faults, each with shard, offset and key where they are known. Memory: 8 bytes a
sample, for the search for keys that occur twice.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.emitted import read_emitted
from shardtool.errors import FormatError, ShardtoolError, SourceNotFound, UsageProblem
from shardtool.indexing.cache import load_index
from shardtool.manifest import (
    LABELS,
    MANIFEST,
    Manifest,
    compose,
    dataset_identity,
    encode_manifest,
    load_manifest,
    merge_parts,
)
from shardtool.names import DATA, INDEX
from shardtool.packing.receipts import digest_of, parts_document, read_receipts, valid_receipts
from shardtool.planning.plan_file import PLAN_JSON, load_plan
from shardtool.sources.junk import junk_reason
from shardtool.staging.folder import STAGED, staged_shards
from shardtool.storage import open_place
from shardtool.storage.files import Sizes, absolute, exists
from shardtool.storage.local import is_temp_name
from shardtool.verification.repeats import find_repeats
from shardtool.verification.shard import MAX_FAULTS, Fault, VerifyJob

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.index_file import ShardIndex
    from shardtool.model import FileRecord
    from shardtool.packing.build import Say
    from shardtool.verification.shard import ShardReport
    from shardtool.workers import WorkerPool

SCHEMA = "shardtool/verify/1"
CHECK = "shardtool.verification.shard:check_shard"
READ_BACK = "shardtool.verification.reader:read_back"
PRELOAD = ("shardtool.verification.shard",)


@dataclass(frozen=True)
class VerifyResult:
    """What was looked at, and all that is wrong."""

    path: str
    dataset_id: str  # "" for shards without a manifest
    is_deep: bool
    reader: str
    num_shards: int
    num_samples: int
    num_parts: int
    num_bytes: int  # of all shard files that could be looked at
    faults: tuple[Fault, ...]
    seconds: float
    has_plan: bool = False  # so that damaged shards can be packed again
    skipped: dict[str, int] | None = None  # members of bare shards that are part of no sample, by reason

    @property
    def is_ok(self) -> bool:
        """True where nothing is wrong."""
        return not self.faults

    def document(self) -> dict[str, Any]:
        """`shardtool/verify/1`."""
        from shardtool.statistics.metrics import key_document

        problems = []
        for fault in self.faults:
            place: dict[str, Any] = {"kind": fault.kind, "shard": fault.shard, "path": fault.path or None}
            place |= {"offset": fault.offset, "key": None, **(key_document(fault.key) if fault.key is not None else {})}
            problems.append({**place, "message": fault.message})
        return {
            "schema": SCHEMA,
            "ok": self.is_ok,
            "deep": self.is_deep,
            "reader": self.reader or None,
            "dataset_id": self.dataset_id or None,
            "shards": self.num_shards,
            "samples": self.num_samples,
            "parts": self.num_parts,
            "bytes": self.num_bytes,
            "problems": problems,
            "seconds": round(self.seconds, 3),
        }


def verify(out: str, pool: WorkerPool, say: Say, *, is_deep: bool = False, reader: str = "") -> VerifyResult:
    """Check the data set in the folder `out`.

    Args:
        out: its folder.
        pool: checks shards side by side.
        say: shows how far it is.
        is_deep: read every byte and compare digests and headers, not only sizes and indexes.
        reader: `webdataset` reads all shards once more through that package and compares keys and bytes.

    Raises:
        SourceNotFound: there is no data set.
        UsageProblem: `reader` reads no such shards.
    """
    began = time.monotonic()
    result = VerifyResult(out, "", is_deep, reader, 0, 0, 0, 0, (), 0.0, _has_plan(out))
    try:
        manifest = load_manifest(out)
    except FormatError as error:
        fault = _manifest_fault(error.message)
        return replace(result, faults=(fault,), seconds=time.monotonic() - began)
    except SourceNotFound:
        if not _is_all_packed(out):
            raise
        fault = _manifest_fault("missing, though every shard is packed")
        return replace(result, faults=(fault,), seconds=time.monotonic() - began)
    if reader and manifest.format != "tar":
        raise UsageProblem(
            f"{out} holds {manifest.format} shards, and {reader} reads tar", hint="leave --reader out: --deep reads all"
        )
    faults = _stated_faults(out, manifest)
    faults += [*_label_faults(out, manifest), *_side_faults(out, manifest), *_folder_faults(out, manifest)]
    job = VerifyJob(absolute(out), manifest.shards, is_deep)
    try:
        shards = staged_shards(out, manifest)
    except FormatError as error:
        faults.append(Fault("staged", error.message, STAGED))
        seconds = time.monotonic() - began
        return replace(result, dataset_id=manifest.dataset_id, faults=tuple(faults), seconds=seconds)
    reports = _check_shards(job, shards, pool, say)
    faults += [fault for report in reports for fault in report.faults]
    faults += _duplicate_faults(job, reports)
    if len(reports) == len(manifest.shards) and all(report.key_hashes is not None for report in reports):
        faults += _total_faults(manifest, reports)
    if reader:
        faults += _read_back(job, reports, pool)
    return replace(
        result,
        dataset_id=manifest.dataset_id,
        num_shards=len(reports),
        num_samples=sum(report.num_samples for report in reports),
        num_parts=sum(report.num_parts for report in reports),
        num_bytes=sum(report.num_bytes for report in reports),
        faults=tuple(_without_renamed(faults)),
        seconds=time.monotonic() - began,
    )


def workers_needed(manifest_bytes: int, num_shards: int, wanted: int, *, is_deep: bool) -> int:
    """Processes worth starting: none where the work takes less time than their start."""
    is_small = manifest_bytes < 64 << 20 if is_deep else num_shards < 64
    return 0 if is_small else min(wanted, num_shards)


def _has_plan(out: str) -> bool:
    return exists(open_place(out), PLAN_JSON)


def _is_all_packed(out: str) -> bool:
    """Whether receipts prove every shard of the stored plan, so that only the manifest is lost."""
    stored = load_plan(out)
    if stored is None:
        return False
    total = len(stored.shards)
    return len(valid_receipts(out, read_receipts(out), stored.plan_id, total)) == total


def _check_shards(job: VerifyJob, shards: Sequence[int], pool: WorkerPool, say: Say) -> list[ShardReport]:
    reports: list[ShardReport | None] = [None] * len(job.shards)
    total_bytes = sum(job.shards[shard].num_bytes for shard in shards) if job.is_deep else 0
    total_samples = sum(job.shards[shard].num_samples for shard in shards)
    with say.progress(len(shards), total_bytes, total_samples) as progress:
        for shard, report in pool.run(CHECK, shards, context=job, describe=lambda shard: job.shards[shard].path):
            reports[shard] = report
            progress.advance(1, report.num_bytes if job.is_deep else 0, report.num_samples)
    return [report for report in reports if report is not None]


def _read_back(job: VerifyJob, reports: list[ShardReport], pool: WorkerPool) -> list[Fault]:
    """Through the webdataset package: the shards in which nothing else was found."""
    sound = [report.shard for report in reports if not report.faults]
    found = dict(pool.run(READ_BACK, sound, context=job, describe=lambda shard: job.shards[shard].path))
    return [fault for shard in sorted(found) for fault in found[shard]]


def _stated_faults(out: str, manifest: Manifest) -> list[Fault]:
    """Where the manifest contradicts itself, or else the plan."""
    try:
        return [*_manifest_faults(out, manifest)] or [*_plan_faults(out, manifest)]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return [_manifest_fault(f"malformed: {type(error).__name__}: {error}")]


def _manifest_faults(out: str, manifest: Manifest) -> Iterator[Fault]:
    """What the manifest says of itself, beside its shards."""
    document = json.loads(open_place(out).read(MANIFEST))
    identity = dataset_identity(manifest.labels, manifest.shards)
    if identity != manifest.dataset_id:
        yield _manifest_fault(f"dataset_id {manifest.dataset_id} is not that of its shards ({identity})")
    wanted = {
        "samples": manifest.num_samples,
        "shards": len(manifest.shards),
        "bytes": manifest.num_bytes,
        "payload_bytes": manifest.payload_bytes,
    }
    for name, value in wanted.items():
        stated = document.get("totals", {}).get(name)
        if stated != value:
            yield _manifest_fault(f"totals: {name} {stated}, its shards have {value}")
    if document.get("splits") != manifest.splits():
        yield _manifest_fault("splits: not the sums of its shards")
    ledger = manifest.ledger
    if ledger and ledger["seen"] != ledger["packed"] + sum(ledger["ignored"].values()) + ledger["failed"]:
        yield _manifest_fault("ledger: seen is not packed + ignored + failed")
    paths = [record.path for record in _records(manifest)]
    for path in sorted({path for path in paths if paths.count(path) > 1} if len(set(paths)) < len(paths) else ()):
        yield _manifest_fault(f"{path} is listed twice")


def _plan_faults(out: str, manifest: Manifest) -> Iterator[Fault]:
    """The manifest against the plan and the receipts, where both are still there: they give it byte for byte."""
    try:
        stored = load_plan(out)
    except FormatError:
        return  # of another version, or damaged: it is not needed to read the data set
    receipts = read_receipts(out) if stored is not None else {}
    if stored is None or set(receipts) != set(range(len(stored.shards))):
        return
    composed = compose(stored, [receipts[shard] for shard in sorted(receipts)], manifest.labels)
    wanted = encode_manifest(replace(composed, created_by=manifest.created_by, side_files=manifest.side_files))
    found = open_place(out).read(MANIFEST)
    if found != wanted:
        lines = zip(found.split(b"\n"), wanted.split(b"\n"), strict=False)
        line = next((number for number, pair in enumerate(lines, 1) if pair[0] != pair[1]), 0)
        yield _manifest_fault(f"line {line}: not what the stored plan and the receipts give")


def _manifest_fault(message: str) -> Fault:
    return Fault("manifest", f"{MANIFEST}: {message}", MANIFEST)


def _side_faults(out: str, manifest: Manifest) -> Iterator[Fault]:
    """Files that the format's own readers need beside the shards."""
    for record in manifest.side_files:
        if message := _record_fault(out, record):
            yield Fault("side_file", f"{record.path}: {message}", record.path)


def _label_faults(out: str, manifest: Manifest) -> Iterator[Fault]:
    if manifest.labels is not None and (message := _record_fault(out, manifest.labels)):
        yield Fault("labels", f"{LABELS}: {message}", LABELS)


def _record_fault(out: str, record: FileRecord) -> str:
    """What is wrong with a small file; "" where nothing is."""
    place = open_place(out)
    if not exists(place, record.path):
        return "missing"
    if digest_of(place.shown(record.path)) != record.xxh3_128:
        return "its digest is not that of the manifest"
    size = place.stat(record.path).num_bytes
    return "" if size == record.num_bytes else f"{size:,} bytes where the manifest has {record.num_bytes:,}"


def _records(manifest: Manifest) -> Iterator[FileRecord]:
    for shard in manifest.shards:
        yield from shard.files
        if shard.index is not None:
            yield shard.index
        if shard.packed is not None:
            yield shard.packed  # may lie here, too
    yield from manifest.side_files


def _folder_faults(out: str, manifest: Manifest) -> Iterator[Fault]:
    """Files in `data/` and `index/` that the manifest does not name: temps, renamed shards, strangers."""
    known = {record.path for record in _records(manifest)}
    emitted, found = read_emitted(out), Sizes(open_place(out))
    sizes: dict[int, list[FileRecord]] = {}
    for record in _records(manifest):
        if found.of(record.path) is None:
            sizes.setdefault(record.num_bytes, []).append(record)
    for path in sorted(_files(out, known)):
        name = os.path.basename(path)
        if is_temp_name(name):
            yield Fault("partial", f"{path}: a partial file that an interrupted run left", path)
        elif path not in known and path not in emitted:
            yield _stranger(out, path, sizes)


def _files(out: str, known: set[str]) -> Iterator[str]:
    """Paths below `out` that could be shards or indexes, junk of operating systems aside."""
    place = open_place(out)
    if not place.is_local:
        yield from (stat.path for top in (DATA, INDEX) for stat in place.list(f"{top}/"))
        return
    for top in (DATA, INDEX):
        for folder, folders, names in os.walk(os.path.join(out, top)):
            folders[:] = [name for name in folders if junk_reason(os.fsencode(name)) is None]
            for name in names:
                if junk_reason(os.fsencode(name)) is None:
                    yield os.path.relpath(os.path.join(folder, name), out)
    suffixes = {os.path.splitext(path)[1] for path in known}
    for folder in {os.path.dirname(path) for path in known if path.split("/")[0] not in (DATA, INDEX)}:
        for name in os.listdir(os.path.join(out, folder)) if os.path.isdir(os.path.join(out, folder)) else ():
            if os.path.splitext(name)[1] in suffixes or is_temp_name(name):
                yield os.path.join(folder, name)


def _stranger(out: str, path: str, missing: dict[int, list[FileRecord]]) -> Fault:
    place = open_place(out)
    is_file = not place.is_local or os.path.isfile(place.shown(path))
    candidates = missing.get(place.stat(path).num_bytes, []) if is_file and missing else []
    digest = digest_of(place.shown(path)) if candidates else ""
    for record in candidates:
        if record.xxh3_128 == digest:
            return Fault("renamed", f"{path}: this is {record.path} under another name", path)
    return Fault("stranger", f"{path}: is not in the manifest", path)


def _without_renamed(faults: Sequence[Fault]) -> Iterator[Fault]:
    """A renamed file is one fault, not two: its absence goes without saying."""
    renamed = [fault.message for fault in faults if fault.kind == "renamed"]
    for fault in faults:
        is_absent = fault.kind == "missing" or fault.message.endswith(": missing")
        if not (is_absent and any(f" is {fault.path} under another name" in message for message in renamed)):
            yield fault


def _duplicate_faults(job: VerifyJob, reports: list[ShardReport]) -> Iterator[Fault]:
    """Keys that occur in more than one shard. Equal hashes are looked up: two keys may share one."""
    nothing = np.zeros(0, np.uint64)
    first, again = find_repeats([nothing if report.key_hashes is None else report.key_hashes for report in reports])
    found = 0
    for one, two in zip(first[: 50 * MAX_FAULTS].tolist(), again[: 50 * MAX_FAULTS].tolist(), strict=True):
        fault = _duplicate(job, *one, *two)
        found += fault is not None
        if fault is not None and found <= MAX_FAULTS:
            yield fault
    if found > MAX_FAULTS:
        more = f"{found - MAX_FAULTS:,}" + (" or more" if len(again) > 50 * MAX_FAULTS else "")
        yield Fault("duplicate_key", f"and {more} other keys occur more than once")


def _duplicate(job: VerifyJob, shard: int, sample: int, other_shard: int, other_sample: int) -> Fault | None:
    first, again = _index(job, shard), _index(job, other_shard)
    key, offset = again.key(other_sample), int(again.offset[other_sample])
    if first.key(sample) != key:
        return None
    there = f"{job.shards[shard].path} at byte {int(first.offset[sample]):,}"
    path = job.shards[other_shard].path
    message = f"{path} at byte {offset:,}: key {key.decode('utf-8', 'backslashreplace')!r} is also in {there}"
    return Fault("duplicate_key", message, path, other_shard, offset, key)


def _index(job: VerifyJob, shard: int) -> ShardIndex:
    record = job.shards[shard].index
    if record is None:
        raise ShardtoolError(f"shard {shard} has no index")
    return load_index(job.out, record)


def _total_faults(manifest: Manifest, reports: list[ShardReport]) -> Iterator[Fault]:
    found = parts_document(merge_parts([report.parts for report in reports]))
    stated = parts_document(manifest.parts)
    for name in sorted({*found, *stated}):
        if found.get(name) != stated.get(name):
            yield Fault("totals", f"{MANIFEST}: part {name!r}: {stated.get(name)}, its shards have {found.get(name)}")
