"""What a run would move, and about how long that takes: `stage --dry-run`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardtool.hashing import BLOCK_BYTES
from shardtool.staging.arriving import source_errors
from shardtool.staging.digests import num_blocks
from shardtool.staging.election import files_of
from shardtool.staging.errands import errands_of
from shardtool.staging.folder import VerifiedTable
from shardtool.staging.journal import count_marks
from shardtool.staging.request import StagePlan
from shardtool.storage.local import free_space

if TYPE_CHECKING:
    from shardtool.manifest import ManifestShard
    from shardtool.model import FileRecord
    from shardtool.staging.errands import Errand
    from shardtool.staging.request import StageRequest
    from shardtool.storage.base import Place


def estimate(place: Place, request: StageRequest) -> StagePlan:
    """The plan of a run; one block of the source is read to see how fast it is."""
    errands = errands_of(place, request)
    missing = [(errand, record) for errand in errands for record in _missing(errand)]
    requests, num_bytes, marked_bytes = 1, 0, 0
    for errand, record in missing:
        files = errand.fetched_files(record)
        requests += 1 + sum(map(num_blocks, files))  # index, blocks
        num_bytes += sum(file.num_bytes for file in files)
        for file in files:
            marked = count_marks(errand.target.journal(file.path))
            requests -= marked
            marked_bytes += min(file.num_bytes, marked * BLOCK_BYTES)
    num_bytes -= marked_bytes
    return StagePlan(
        paths=tuple(errand.target.path for errand in errands),
        dataset_id=errands[0].manifest.dataset_id,
        num_shards=sum(len(errand.share.shards) for errand in errands),
        num_bytes=sum(errand.num_bytes for errand in errands),
        missing_bytes=num_bytes,
        here_bytes=sum(errand.num_bytes for errand in errands)
        - sum(record.num_bytes for _, record in missing)
        + marked_bytes,
        requests=requests if missing else 1,
        free_bytes=min(free_space(errand.target.path)[0] for errand in errands),
        seconds=_seconds(place, missing[0][0].fetched_files(missing[0][1])[0], num_bytes, request) if missing else 0.0,
    )


def _missing(errand: Errand) -> list[ManifestShard]:
    table = VerifiedTable(errand.target)
    return [record for record in errand.records() if not all(map(table.holds, files_of(record)))]


def _seconds(place: Place, file: FileRecord, num_bytes: int, request: StageRequest) -> float:
    """One block's time for all of them, side by side where the source is remote."""
    size = min(BLOCK_BYTES, file.num_bytes)
    view = memoryview(bytearray(size))
    began = time.monotonic()
    with source_errors(place, file.path):
        place.read_into(file.path, 0, view)
    took = time.monotonic() - began
    seconds = took * num_bytes / max(size, 1) / (1 if place.is_local else request.jobs)
    return max(seconds, num_bytes / request.bytes_per_s if request.bytes_per_s else 0.0)
