"""`index`: publish what is packed, and make again what was lost of indexes, receipts, labels and the manifest.

With a stored plan everything comes back bit for bit. With a manifest alone, lost indexes are read from the shards. What
has neither is indexed by `index_bare`. Shards are never written.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shardtool.errors import DamageFound, FormatError, Incomplete, ShardtoolError, SourceNotFound
from shardtool.formats.frames import most_bytes
from shardtool.hashing import digest_chunks
from shardtool.indexing.rebuild_shard import BareJob, BareResult, PlannedJob, is_index_whole
from shardtool.manifest import LABELS, MANIFEST, compose, encode_labels, encode_manifest, load_manifest, publish
from shardtool.model import FileRecord
from shardtool.packing.build import add_failed
from shardtool.packing.destination import locked, remove_leftovers
from shardtool.packing.receipts import digest_of, read_receipts
from shardtool.planning.plan_file import load_plan
from shardtool.staging.folder import read_staged, staged_shards
from shardtool.storage import is_remote, open_place
from shardtool.storage.files import Sizes, absolute, exists, file_size
from shardtool.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.manifest import Manifest
    from shardtool.model import Receipt
    from shardtool.packing.build import Say
    from shardtool.planning.plan_file import StoredPlan
    from shardtool.staging.folder import Staged
    from shardtool.workers import WorkerPool

SCHEMA = "shardtool/index/1"
PLANNED, BARE = "shardtool.indexing.rebuild_shard:rebuild_planned", "shardtool.indexing.rebuild_shard:index_bare"
PRELOAD = ("shardtool.indexing.rebuild_shard",)
MAX_SHOWN = 5


@dataclass(frozen=True)
class RebuildResult:
    """A data set with all that belongs to it, and what had to be made for that."""

    out: str
    manifest: Manifest
    num_indexes: int = 0  # made again
    num_receipts: int = 0
    is_manifest_new: bool = False
    are_labels_new: bool = False
    skipped: dict[str, int] = field(default_factory=dict)  # members of foreign shards that are part of no sample
    seconds: float = 0.0

    @property
    def is_unchanged(self) -> bool:
        """True where everything was there already."""
        return not (self.num_indexes or self.num_receipts or self.is_manifest_new or self.are_labels_new)

    def document(self) -> dict[str, Any]:
        """`shardtool/index/1`."""
        manifest = self.manifest
        return {
            "schema": SCHEMA,
            "output": self.out,
            "dataset_id": manifest.dataset_id,
            "plan_id": manifest.plan_id or None,
            "samples": manifest.num_samples,
            "shards": len(manifest.shards),
            "bytes": manifest.num_bytes,
            "payload_bytes": manifest.payload_bytes,
            "splits": manifest.splits(),
            "ledger": manifest.ledger,
            "made": {
                "indexes": self.num_indexes,
                "receipts": self.num_receipts,
                "labels": self.are_labels_new,
                "manifest": self.is_manifest_new,
            },
            "seconds": round(self.seconds, 3),
        }


def rebuild(out: str, pool: WorkerPool, say: Say) -> RebuildResult | None:
    """Complete the data set in the folder `out`; None where it holds neither a plan nor a manifest of ours.

    Raises:
        Incomplete: shards are missing, or something is lost that cannot be made again, or has to be staged again.
        CorruptShard, DamageFound: a shard is not what was packed.
    """
    began = time.monotonic()
    staged = None if is_remote(out) else read_staged(out)
    stored = load_plan(out) if staged is None else None
    if staged is not None:
        result = _from_staged(out, staged)
    elif stored is not None:
        with locked(out, None):
            result = _from_plan(out, stored, pool, say)
    elif exists(open_place(out), MANIFEST):
        result = _from_manifest(out, load_manifest(out), pool, say)
    else:
        return None
    return replace(result, seconds=time.monotonic() - began)


def _from_staged(out: str, staged: Staged) -> RebuildResult:
    """Nothing to do, where all that was staged is there: a share, or one without its manifest, is no data set anew."""
    manifest = _readable_manifest(out)
    shards = [manifest.shards[shard] for shard in staged_shards(out, manifest)] if manifest is not None else []
    is_whole = all(os.path.exists(os.path.join(out, shard.path)) and is_index_whole(out, shard) for shard in shards)
    if manifest is not None and is_whole:
        return RebuildResult(out, manifest, 0)
    parent = os.path.dirname(os.path.abspath(out))
    words = f"{staged.source} {parent}" + (" --decompress" if staged.is_decompressed else "")
    raise Incomplete(
        f"{out} was staged, and something of it is lost: it is not built again here",
        hint=f"shardtool stage {words}, with --all or the share that it had, brings what is missing and keeps the rest",
        where={"path": out},
    )


def _from_plan(out: str, stored: StoredPlan, pool: WorkerPool, say: Say) -> RebuildResult:
    """Everything from the plan, the receipts and the shards."""
    receipts = {
        shard: receipt
        for shard, receipt in read_receipts(out).items()
        if shard < len(stored.shards) and receipt.plan_id == stored.plan_id
    }
    sizes = Sizes(open_place(out))
    missing = [k for k in range(len(stored.shards)) if not _is_there(sizes, stored, k, receipts.get(k))]
    if missing:
        raise _missing(out, stored, missing)
    before = _readable_manifest(out)
    todo = [s for s in range(len(stored.shards)) if s not in receipts or not is_index_whole(out, receipts[s])]
    had_receipt = set(receipts)
    lost_indexes = sum(not exists(open_place(out), _index_of(stored, shard)) for shard in todo)
    _rebuild_planned(out, stored, todo, receipts, before, pool, say)
    done = [receipts[shard] for shard in range(len(stored.shards))]
    labels = _expected_labels(stored)
    wanted = compose(stored, done, labels)
    has_labels = labels is None or _digest(out, LABELS) == labels.xxh3_128
    is_same = before is not None and _bytes(out) == encode_manifest(
        replace(wanted, created_by=before.created_by, side_files=before.side_files)
    )
    num_indexes = max(lost_indexes, sum(shard in had_receipt for shard in todo))
    num_receipts = sum(shard not in had_receipt for shard in todo)
    manifest = before
    if manifest is None or not is_same or not has_labels or todo:
        add_failed(out, tuple(pair for receipt in done for pair in receipt.failed), durable=True)
        manifest = publish(out, stored, done, durable=True)
        remove_leftovers(out)
    return RebuildResult(out, manifest, num_indexes, num_receipts, not is_same, not has_labels)


def _is_there(sizes: Sizes, stored: StoredPlan, shard: int, receipt: Receipt | None) -> bool:
    """Whether the shard file is there with the size that its receipt, or without one its plan, allows."""
    spec = stored.shards[shard]
    size = sizes.of(spec.path)
    if size is None:
        return False
    limit = spec.num_bytes if stored.settings.compress == "none" else most_bytes(spec.num_bytes)
    return size == receipt.files[0].num_bytes if receipt else 0 < size <= limit


def _missing(out: str, stored: StoredPlan, missing: list[int]) -> Incomplete:
    paths = [stored.shards[shard].path for shard in missing]
    shown = "".join(f"\n  {path}" for path in paths[:MAX_SHOWN])
    rest = f"\n  and {len(paths) - MAX_SHOWN:,} more" if len(paths) > MAX_SHOWN else ""
    return Incomplete(
        f"{len(paths):,} of {plural(len(stored.shards), 'shard')} of {out} are missing or cut short{shown}{rest}",
        hint=f"shardtool pack {out} packs them and publishes; parts on other machines: let them end, then repeat",
        where={"path": out, "shard": missing[0]},
    )


def _rebuild_planned(
    out: str,
    stored: StoredPlan,
    todo: list[int],
    receipts: dict[int, Receipt],
    before: Manifest | None,
    pool: WorkerPool,
    say: Say,
) -> None:
    """Make the indexes and receipts of the shards `todo`; enters them in `receipts`."""
    known = {shard: record.files[0].xxh3_128 for shard, record in enumerate(before.shards)} if before else {}
    known |= {shard: receipt.files[0].xxh3_128 for shard, receipt in receipts.items()}
    job = PlannedJob(
        absolute(out), stored.plan_id, stored.options.format, stored.shards, known, settings=stored.settings
    )
    unproved = []
    total_bytes = sum(stored.shards[shard].num_bytes for shard in todo)
    with say.progress(len(todo), total_bytes, 0) as progress:
        for shard, (receipt, is_known) in pool.run(
            PLANNED, todo, context=job, describe=lambda shard: stored.shards[shard].path
        ):
            old = receipts.get(shard)
            receipts[shard] = replace(receipt, failed=old.failed, failed_entries=old.failed_entries) if old else receipt
            progress.advance(1, receipt.files[0].num_bytes, receipt.num_samples)
            unproved += [] if is_known else [shard]
    if unproved:
        say.warn(
            f"no digest was left of {plural(len(unproved), 'shard')}: names and sizes are as planned, contents are "
            "taken as they are; to be sure, pack the source to a new folder and compare: shardtool diff"
        )


def _index_of(stored: StoredPlan, shard: int) -> str:
    from shardtool.names import index_path

    return index_path(shard, len(stored.shards))


def _expected_labels(stored: StoredPlan) -> FileRecord | None:
    if not stored.label_names:
        return None
    data = encode_labels(stored.label_names)
    return FileRecord(LABELS, len(data), digest_chunks([data]))


def _readable_manifest(out: str) -> Manifest | None:
    try:
        return load_manifest(out)
    except (FormatError, SourceNotFound):
        return None


def _bytes(out: str) -> bytes:
    return open_place(out).read(MANIFEST)


def _digest(out: str, path: str) -> str:
    try:
        return digest_of(open_place(out).shown(path))
    except OSError:
        return ""


def _from_manifest(out: str, manifest: Manifest, pool: WorkerPool, say: Say) -> RebuildResult:
    """Lost indexes from the shards that the manifest names."""
    if manifest.labels is not None and _digest(out, manifest.labels.path) != manifest.labels.xxh3_128:
        raise Incomplete(
            f"{out}/{manifest.labels.path} is lost or altered, and without a stored plan it cannot be made again",
            hint="copy it again from where the data set came",
            where={"path": manifest.labels.path},
        )
    todo = [shard for shard, record in enumerate(manifest.shards) if not is_index_whole(out, record)]
    gone = [manifest.shards[s].path for s in todo if not exists(open_place(out), manifest.shards[s].path)]
    if gone:
        raise DamageFound(
            f"{gone[0]} is missing" + (f", and {len(gone) - 1:,} more" if len(gone) > 1 else ""),
            hint="copy the missing shards again from where they came",
            where={"path": gone[0]},
        )
    shards = list(manifest.shards)
    with index_spool(out) as spool:
        job = BareJob(
            out=absolute(out),
            paths=tuple(os.path.join(absolute(out), shard.path) for shard in manifest.shards),
            places=tuple(shard.path for shard in manifest.shards),
            known={number: shard.files[0].xxh3_128 for number, shard in enumerate(manifest.shards)},
            has_labels=manifest.labels is not None,
            spool=spool,
        )
        for result in run_bare(job, todo, pool, say):
            put_in_place(job, result)
            shards[result.shard] = replace(shards[result.shard], index=result.index)
    wanted = replace(manifest, shards=tuple(shards))
    if wanted != manifest:
        say.warn(
            "the rebuilt indexes lack what only the plan knew, such as original paths; the manifest names them now"
        )
        open_place(out).put(MANIFEST, encode_manifest(wanted), tag="manifest", durable=True)
    return RebuildResult(out, wanted, len(todo), is_manifest_new=wanted != manifest)


def run_bare(job: BareJob, shards: list[int], pool: WorkerPool, say: Say) -> list[BareResult]:
    """The given shards indexed, in order; nothing has its final name yet.

    Raises:
        ShardtoolError: the first trouble, telling of the others; what was written is removed.
    """
    results: list[BareResult] = []
    errors: dict[int, ShardtoolError] = {}
    sizes = {shard: file_size(job.paths[shard]) for shard in shards}
    try:
        with say.progress(len(shards), sum(sizes.values()), 0) as progress:
            for shard, result in pool.run(BARE, shards, context=job, describe=lambda shard: job.paths[shard]):
                if isinstance(result, BareResult):
                    results.append(result)
                    progress.advance(1, sizes[shard], result.num_samples)
                else:
                    errors[shard] = result
        if errors:
            raise _joined(errors)
    except BaseException:
        discard(job, results)
        raise
    return sorted(results, key=lambda result: result.shard)


def _joined(errors: dict[int, ShardtoolError]) -> ShardtoolError:
    first = errors[min(errors)]
    others = [errors[shard].message for shard in sorted(errors)[1:]]
    if others:
        shown = "".join(f"\n{message}" for message in others[: MAX_SHOWN - 1])
        rest = f"\nand {len(others) - MAX_SHOWN + 1:,} more shards" if len(others) >= MAX_SHOWN else ""
        return type(first)(f"{first.message}{shown}{rest}", hint=first.hint, where=first.where)
    return first


@contextmanager
def index_spool(out: str) -> Iterator[str]:
    """A local folder for indexes on their way to a store, where nothing can be renamed; "" for a folder."""
    if not is_remote(out):
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="shardtool-") as folder:
        yield folder


def put_in_place(job: BareJob, result: BareResult) -> None:
    """Give an index its final name."""
    temp = os.path.join(job.spool or job.out, result.temp)
    if not job.spool:
        os.rename(temp, os.path.join(job.out, result.index.path))
        return
    with open(temp, "rb") as file:
        open_place(job.out).put(result.index.path, file.read(), tag="index", durable=True)


def discard(job: BareJob, results: list[BareResult]) -> None:
    """Remove indexes that got no final name, and their folder if it is empty then."""
    for result in results:
        with suppress(OSError):
            os.unlink(os.path.join(job.spool or job.out, result.temp))
            os.rmdir(os.path.join(job.spool or job.out, os.path.dirname(result.temp)))
