"""Packing on this machine: worker processes over the mapped plan, whole shards each."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardtool.workers import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from shardtool.model import Receipt
    from shardtool.packing.pack import PackJob

PACK = "shardtool.packing.pack:pack_shard"
WINDOW = 3  # shards a worker holds: one published, one packed, one waiting
PRELOAD = ("shardtool.packing.pack", "shardtool.formats.tar", "shardtool.sources.tree", "shardtool.grouping.runs")


class LocalExecutor:
    """Runs `pack_shard` in the processes of a pool.

    Args:
        pool: its processes.
        may_grow: take twice as many once a shard waited for the device: then more reads are under way.
    """

    def __init__(self, pool: WorkerPool, *, may_grow: bool = False) -> None:
        self._pool, self._may_grow = pool, may_grow

    def run(self, job: PackJob, shards: Sequence[int]) -> Generator[Receipt, None, None]:
        """Receipts in order of completion; the shard of a dead worker is packed again."""
        pool = self._pool if len(shards) > 1 else WorkerPool(0)  # one shard is packed sooner than a worker starts
        for _, receipt in pool.run(
            PACK, shards, context=job, window=WINDOW, describe=lambda shard: job.specs[shard].path
        ):
            if receipt.waited and self._may_grow:
                pool.num_workers, self._may_grow = 2 * pool.num_workers, False
            yield receipt


def num_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_for(wanted: int) -> int:
    """Processes meant by `--workers`; 0 is `auto`: as many as there are CPUs."""
    return wanted or num_cpus()
