"""Samples that lie in shards already: data sets, archives, tables. `convert` packs from them.

    sources --find--> files by kind --look--> Members (places of parts) ----------> EntryTable
                                    --unpack (workers)--> spool, Members of it --^

What lies in a file as runs of bytes stays there and is read by offset (tar, and every data set of ours whose parts are
bytes of its shards). What must be decoded (gzip, zip, Parquet, JSON lines, CSV) is unpacked once, by workers, into the
spool: payloads joined in files beside the plan, removed when the data set is published. Without a spool folder nothing
is written and only sizes are taken: a dry run.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardtool.errors import GroupError, ShardtoolError
from shardtool.shard_sources.find import find_sources
from shardtool.shard_sources.look import LOOKERS, look
from shardtool.shard_sources.members import scan_result
from shardtool.shard_sources.spool import SpoolJob, unpack
from shardtool.storage import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardtool.model import ScanResult
    from shardtool.shard_sources.find import SourceFile
    from shardtool.shard_sources.members import Members
    from shardtool.sources.junk import NameRules
    from shardtool.workers import WorkerPool

LOOK, UNPACK = "shardtool.shard_sources.look:look", "shardtool.shard_sources.spool:unpack"


def scan_shards(
    sources: Sequence[str],
    rules: NameRules,
    pool: WorkerPool | None,
    *,
    spool: str = "",
    key_column: str = "",
    on_error: str = "error",
) -> ScanResult:
    """Every part in the shards, archives and tables that `sources` name, in their order.

    Args:
        sources: data sets, shards, archives, tables; folders of them, globs and brace ranges.
        rules: what to leave out by name.
        pool: looks into files and unpacks them side by side.
        spool: folder for what must be decoded; "" only measures it.
        key_column: column of tables that holds the key; "" takes `key` or `__key__`, else numbers the rows.
        on_error: `error` or `skip`: what a file that is damaged means.

    Raises:
        SourceNotFound, UsageProblem: a source that is not there, or nothing that can be read so.
        GroupError: no part at all.
        ShardtoolError: a damaged file, unless skipped.
    """
    files = find_sources(sources)
    job = SpoolJob(spool, key_column)
    found: list[Members | ShardtoolError] = []
    direct = [number for number, file in enumerate(files) if file.kind in LOOKERS]
    streams = [number for number, file in enumerate(files) if file.kind not in LOOKERS]
    results = _run(LOOK, look, files, direct, job, pool) | _run(UNPACK, unpack, files, streams, job, pool)
    found = [results[number] for number in range(len(files))]
    members = []
    losses: dict[str, None] = {}
    for result in found:
        if isinstance(result, ShardtoolError):
            if on_error != "skip":
                raise result
            losses[f"{result.message}: skipped"] = None
        else:
            members.append(result)
    losses |= dict.fromkeys(loss for file in files for loss in file.losses)
    scanned = scan_result(members, rules, tuple(map(_absolute, sources)), list(losses))
    if scanned.seen == 0:
        raise GroupError(f"{', '.join(sources)}: not a single part is in there", where={"path": sources[0]})
    return scanned


def _run(
    task: str,
    function: Callable[[SpoolJob, tuple[int, SourceFile]], Members | ShardtoolError],
    files: Sequence[SourceFile],
    numbers: Sequence[int],
    job: SpoolJob,
    pool: WorkerPool | None,
) -> dict[int, Members | ShardtoolError]:
    tasks = [(number, files[number]) for number in numbers]
    if pool is None or len(tasks) < 2:
        return {task[0]: function(job, task) for task in tasks}
    return {task[0]: result for task, result in pool.run(task, tasks, context=job, describe=lambda t: t[1].path)}


def _absolute(source: str) -> str:
    return source if is_remote(source) else os.path.abspath(source)
