"""Tar shards without a manifest: is their structure sound. No digest is known of them, so payload cannot be checked,
save that of compressed ones, whose frames end in checksums.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from shardtool.errors import FormatError, NoSpace
from shardtool.indexing.bare_shards import find_shards
from shardtool.indexing.raw_copy import read_shard
from shardtool.storage.files import file_size
from shardtool.verification.repeats import find_repeats
from shardtool.verification.shard import MAX_FAULTS, Fault
from shardtool.verification.verify import VerifyResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.model import UInt64Array
    from shardtool.packing.build import Say
    from shardtool.workers import WorkerPool

CHECK_BARE = "shardtool.verification.bare:check_bare"


@dataclass
class BareReport:
    """What one bare shard holds, and what is wrong with it."""

    faults: list[Fault] = field(default_factory=list)
    num_samples: int = 0
    num_parts: int = 0
    num_bytes: int = 0
    key_hashes: UInt64Array = field(default_factory=lambda: np.zeros(0, np.uint64))
    skipped: dict[str, int] = field(default_factory=dict)


def verify_bare(places: Sequence[str], pool: WorkerPool, say: Say) -> VerifyResult:
    """Check the shards at `places`: every header, both ends, samples in one piece, no key twice.

    Raises:
        SourceNotFound: a place without shards.
    """
    began = time.monotonic()
    paths = find_shards(places)
    reports: dict[int, BareReport] = {}
    with say.progress(len(paths), 0, 0) as progress:
        for shard, report in pool.run(CHECK_BARE, range(len(paths)), context=paths, describe=lambda k: paths[k]):
            reports[shard] = report
            progress.advance(1, 0, report.num_samples)
    ordered = [reports[shard] for shard in range(len(paths))]
    faults = [fault for report in ordered for fault in report.faults]
    faults += list(_duplicates(paths, ordered))
    skipped: dict[str, int] = {}
    for report in ordered:
        for reason, count in report.skipped.items():
            skipped[reason] = skipped.get(reason, 0) + count
    return VerifyResult(
        path=" ".join(places),
        dataset_id="",
        is_deep=False,
        reader="",
        num_shards=len(paths),
        num_samples=sum(report.num_samples for report in ordered),
        num_parts=sum(report.num_parts for report in ordered),
        num_bytes=sum(report.num_bytes for report in ordered),
        faults=tuple(faults),
        seconds=time.monotonic() - began,
        skipped=skipped,
    )


def check_bare(paths: list[str], shard: int) -> BareReport:
    """One shard by itself: the task of a worker."""
    path, report = paths[shard], BareReport()
    try:
        report.num_bytes = file_size(path)
        bare = read_shard(path)
    except FormatError as error:
        offset = error.where.get("offset")
        report.faults.append(Fault("structure", error.message, path, shard, offset, _bytes(error.where.get("key"))))
        return report
    except NoSpace:
        raise  # not of the shard, but of the temporary folder
    except FileNotFoundError:
        report.faults.append(Fault("missing", f"{path}: is missing", path, shard))
        return report
    except OSError as error:
        report.faults.append(Fault("unreadable", f"{path}: cannot be read: {error.strerror or error}", path, shard))
        return report
    report.num_samples, report.num_parts = len(bare.keys), len(bare.part_names)
    report.skipped = bare.skipped()
    report.key_hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, bare.keys), np.uint64, len(bare.keys))
    for finding in bare.problems[:MAX_FAULTS]:
        message = f"{path}: {finding.message}"
        report.faults.append(Fault(finding.kind, message, path, shard, finding.offset, finding.key))
    if len(bare.problems) > MAX_FAULTS:
        more = f"{path}: and {len(bare.problems) - MAX_FAULTS:,} more members that readers would merge or lose"
        report.faults.append(Fault("structure", more, path, shard))
    return report


def _bytes(key: str | None) -> bytes | None:
    return None if key is None else key.encode("utf-8", "backslashreplace")


def _duplicates(paths: list[str], reports: list[BareReport]) -> Iterator[Fault]:
    """Keys in two shards; those of one shard are found there."""
    first, again = find_repeats([report.key_hashes for report in reports])
    differs = first[:, 0] != again[:, 0]
    first, again = first[differs], again[differs]
    for (one, sample), (two, other) in zip(first[:MAX_FAULTS].tolist(), again[:MAX_FAULTS].tolist(), strict=True):
        there, here = read_shard(paths[one]), read_shard(paths[two])
        key, offset = here.keys[other], int(here.offset[other])
        if there.keys[sample] == key:
            shown = key.decode("utf-8", "backslashreplace")
            message = f"{paths[two]}: key {shown!r} at byte {offset:,} is also in {paths[one]}"
            yield Fault("duplicate_key", message, paths[two], two, offset, key)
    if len(again) > MAX_FAULTS:
        yield Fault("duplicate_key", f"and {len(again) - MAX_FAULTS:,} other keys occur more than once")
