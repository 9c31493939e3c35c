"""How long a plan would take to pack: a few of its files are read, spread over it, for a quarter of a second at most.

    seconds = (files x seconds to open one + 2 x bytes x seconds to read one) / workers + start-up

Writing is counted as dear as reading. An estimate: caches and a second storage make it wrong in either direction.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.formats import MEDIA_FORMATS
from shardtool.shard_sources import objects
from shardtool.shard_sources.runs import BATCH_BYTES
from shardtool.sources import s3_reader
from shardtool.sources.opening import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.planning.plan import Plan

BUDGET_S = 0.25
MAX_FILES = 256
MAX_FILE_BYTES = 4 << 20  # read of one file at most
SMALL_BYTES = 64 << 10  # below it the calls cost more than the bytes
USUAL_S_A_BYTE = 1e-9  # 1 GB/s, where no larger file was read
START_UP_S = 0.5  # fork server, imports, plan and manifest
WORKER_BYTES = 90 << 20  # a worker with numpy and pyarrow
GROUP_BYTES, COLUMN_COPIES = 8 << 20, 3  # of a row group; as read, as pages, as written
PART_BYTES = 400  # rows, members, locators and index of one part while its shard is packed


@dataclass(frozen=True)
class Speed:
    """What reading a few files took."""

    files: int
    num_bytes: int
    per_file_s: float
    per_byte_s: float

    @property
    def files_per_s(self) -> float:
        """Files of their mean size read in a second, by one process."""
        return self.files / max(self.files * self.per_file_s + self.num_bytes * self.per_byte_s, 1e-9)

    def seconds(self, num_files: int, num_bytes: int, num_workers: int) -> float:
        """Estimated time to pack so much."""
        work = num_files * self.per_file_s + 2 * num_bytes * self.per_byte_s
        return work / max(num_workers, 1) + START_UP_S


def read_some(plan: Plan, clock: Callable[[], float] = time.perf_counter) -> Speed | None:
    """The speed of reading some files of `plan`; None where it has none that can be read."""
    table, began = plan.samples, clock()
    parts = len(table.part_entry)
    rows = table.part_entry[np.unique(np.linspace(0, max(parts - 1, 0), min(parts, MAX_FILES)).astype(np.int64))]
    folders = table.entries.folder_of(rows).tolist()
    found: list[tuple[int, float, float]] = []
    for row, folder in zip(rows.tolist(), folders, strict=True):
        root = table.entries.roots[int(table.entries.dir_root[folder])]
        with suppress(OSError):
            found.append(_read(os.path.join(os.fsencode(root), table.entries.path(row)), clock))
        if clock() - began > BUDGET_S:
            break
    return _speed(found) if found else None


def _speed(found: list[tuple[int, float, float]]) -> Speed:
    """Small files cost what they cost, whatever their size; the larger ones tell what a byte costs."""
    large = [(size, reading_s) for size, _, reading_s in found if size >= SMALL_BYTES]
    per_file = median(opening_s + (reading_s if size < SMALL_BYTES else 0.0) for size, opening_s, reading_s in found)
    large_bytes = sum(size for size, _ in large)
    per_byte = sum(reading_s for _, reading_s in large) / large_bytes if large else USUAL_S_A_BYTE
    return Speed(len(found), sum(size for size, _, _ in found), per_file, per_byte)


def _read(path: bytes, clock: Callable[[], float]) -> tuple[int, float, float]:
    """(bytes read, seconds to open and close, seconds to read)."""
    began = clock()
    with open(path, "rb", buffering=0) as file:
        opened = clock()
        got = len(file.read(MAX_FILE_BYTES))
        done = clock()
    return got, clock() - done + opened - began, done - opened


def worker_bytes(plan: Plan) -> int:
    """Memory of one worker: it holds a slab and the rows of one shard, never a shard.

    In columns it holds a group of rows, as read and as encoded: at least one sample. From a store it holds what is on
    its way, and of shards there a batch.
    """
    starts: Any = plan.samples.part_start
    counts = np.diff(starts) + len(plan.samples.generated)
    most = max((int(counts[plan.samples_of(shard)].sum()) for shard in range(len(plan.shards))), default=0)
    group = 0
    if plan.options.format in MEDIA_FORMATS:
        largest = int(plan.samples.payload_bytes().max(initial=0))
        group = COLUMN_COPIES * max(GROUP_BYTES, largest)
    return WORKER_BYTES + PART_BYTES * most + group + _fetched_bytes(plan.samples.entries.roots)


def _fetched_bytes(roots: tuple[str, ...]) -> int:
    """Memory of a worker for what comes from a store."""
    if kind_of(roots) == "s3":
        return s3_reader.WINDOW_BYTES
    return objects.WINDOW_BYTES + BATCH_BYTES if any(map(objects.Object.of, roots)) else 0


def peak_bytes() -> int:
    """Memory that this process has taken at most so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
