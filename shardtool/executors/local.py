"""Packing on this machine: worker processes over the mapped plan, whole shards each."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardtool.workers import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from shardtool.model import Receipt
    from shardtool.pack import PackJob

PACK = "shardtool.pack:pack_shard"
WINDOW = 3  # shards a worker holds: one published, one packed, one waiting
PRELOAD = ("shardtool.pack", "shardtool.formats.tar")


class LocalExecutor:
    """Runs `pack_shard` in the processes of a pool."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    def run(self, job: PackJob, shards: Sequence[int]) -> Generator[Receipt, None, None]:
        """Receipts in order of completion; the shard of a dead worker is packed again."""
        pool = self._pool if len(shards) > 1 else WorkerPool(0)  # one shard is packed sooner than a worker starts
        for _, receipt in pool.run(
            PACK, shards, context=job, window=WINDOW, describe=lambda shard: job.specs[shard].path
        ):
            yield receipt


def num_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_for(wanted: int) -> int:
    """Processes meant by `--workers`; 0 is `auto`: as many as there are CPUs."""
    return wanted or num_cpus()
