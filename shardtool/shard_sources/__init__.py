"""Samples that lie in shards already: data sets, archives, tables. `convert` packs from them.

    sources --find--> files by kind --look--> Members (places of parts) ----------> EntryTable
                                    --unpack (workers)--> spool, Members of it --^

What lies in a file or object as runs of bytes stays there and is read by offset (tar, records, and every data set of
ours whose parts are bytes of its shards). What must be decoded (gzip, zip, Parquet, JSON lines, CSV) is unpacked once,
by workers, into the spool: payloads joined in files beside the plan, removed when the data set is published. Without a
spool folder nothing is written and only sizes are taken: a dry run, which tells what the spool would take.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from shardtool.errors import FormatError, GroupError, ShardtoolError, SourceError, UsageProblem
from shardtool.model import Problem, Tally
from shardtool.shard_sources.find import DATASET, find_sources
from shardtool.shard_sources.look import LOOKERS, look
from shardtool.shard_sources.members import Members, scan_result
from shardtool.shard_sources.room import check_room
from shardtool.shard_sources.small import small_samples
from shardtool.shard_sources.spool import SpoolJob, unpack
from shardtool.sources.found import MAX_EXAMPLES
from shardtool.storage import is_remote
from shardtool.units import format_bytes, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardtool.model import ScanResult
    from shardtool.shard_sources.find import SourceFile
    from shardtool.sources.junk import NameRules
    from shardtool.workers import WorkerPool

Result: TypeAlias = Members | ShardtoolError | None  # None: it must be decoded
LOOK_THREADS = 16
OF_THE_FILE = (SourceError, FormatError, GroupError, UsageProblem)  # what `skip` passes over; a full disk it does not
LOOK, UNPACK = "shardtool.shard_sources.look:look", "shardtool.shard_sources.spool:unpack"


def scan_shards(
    sources: Sequence[str],
    rules: NameRules,
    pool: WorkerPool | None,
    *,
    spool: str = "",
    key_column: str = "",
    on_error: str = "error",
    in_order: bool = False,
) -> ScanResult:
    """Every part in the shards, archives and tables that `sources` name, in their order.

    Args:
        sources: data sets, shards, archives, tables; folders of them, globs and brace ranges.
        rules: what to leave out by name.
        pool: looks into files and unpacks them side by side.
        spool: folder for what must be decoded; "" only measures it.
        key_column: column of tables that holds the key; "" takes `key` or `__key__`, else numbers the rows.
        on_error: `error` or `skip`: what a file that is damaged means; one that is skipped is a `failed` entry.
        in_order: samples will keep the order in which they lie there.

    Raises:
        SourceNotFound, UsageProblem: a source that is not there, or nothing that can be read so.
        GroupError: no part at all.
        ShardtoolError: a damaged file, unless skipped; a store or disk that fails, always.
        NoSpace: what must be decoded cannot fit into the spool; nothing of it was fetched.
    """
    files = find_sources(sources)
    job = SpoolJob(spool, key_column)
    at_once = [number for number, file in enumerate(files) if file.kind == DATASET and is_remote(file.path)]
    others = sorted({number for number, file in enumerate(files) if file.kind in LOOKERS}.difference(at_once))
    results = _side_by_side(files, at_once, job) | _run(LOOK, look, files, others, job, pool)
    undecoded = [number for number in range(len(files)) if results.get(number) is None]
    if undecoded and spool:
        check_room(spool, [files[number] for number in undecoded])
    results |= _run(UNPACK, unpack, files, undecoded, job, pool)
    members = []
    failed = Tally()
    for number, file in enumerate(files):
        result = results[number]
        assert result is not None
        if not isinstance(result, ShardtoolError):
            members.append(result)
        elif on_error == "skip" and isinstance(result, OF_THE_FILE):
            reason = "unreadable" if isinstance(result, SourceError) else "damaged"
            failed.add(reason, os.fsencode(file.path), result.message)
        else:
            raise result
    losses = dict.fromkeys(loss for file in files for loss in file.losses)
    scanned = scan_result(members, rules, tuple(map(_absolute, sources)), list(losses))
    if scanned.seen == 0:
        why = f": {failed.entries[0][2]}" if failed.entries else ""
        raise GroupError(f"{', '.join(sources)}: not a single part is in there{why}", where={"path": sources[0]})
    notices = (*_left_out(failed), *(() if spool else _spooled(results, undecoded)))
    notices += () if in_order else small_samples(members)
    return replace(scanned, failed=failed, problems=notices)


def _left_out(failed: Tally) -> tuple[Problem, ...]:
    """A notice of the files that are left out whole, as each counts as one entry, however many samples it held."""
    if not failed.entries:
        return ()
    messages = tuple(detail for _, _, detail in failed.entries[:MAX_EXAMPLES])
    message = f"{plural(failed.total(), 'source file')} left out whole, with every sample in there"
    return (Problem("damaged", failed.total(), messages, message, "listed in failed.jsonl", is_fatal=False),)


def _spooled(results: Mapping[int, Result], undecoded: Sequence[int]) -> tuple[Problem, ...]:
    """A notice of what would be unpacked, from a dry run that measured it."""
    sizes = [int(found.sizes.sum()) for number in undecoded if isinstance(found := results[number], Members)]
    if not sizes:
        return ()
    message = (
        f"{plural(len(sizes), 'source file')} must be decoded: {format_bytes(sum(sizes))} are unpacked to the local "
        "disk first, and removed at the end"
    )
    return (Problem("spool", len(sizes), (), message, is_fatal=False),)


def _run(
    task: str,
    function: Callable[[SpoolJob, tuple[int, SourceFile]], Result],
    files: Sequence[SourceFile],
    numbers: Sequence[int],
    job: SpoolJob,
    pool: WorkerPool | None,
) -> dict[int, Result]:
    tasks, found = deque((number, files[number]) for number in numbers), dict[int, Result]()
    is_alone = pool is None or len(tasks) < 2
    if pool is not None and not is_alone:
        pool.begin()
    while tasks and (is_alone or (task == LOOK and _is_quick(tasks[0][1], pool))):
        number, file = tasks.popleft()
        found[number] = function(job, (number, file))
    if pool is not None and tasks:
        found |= {done[0]: result for done, result in pool.run(task, tasks, context=job, describe=lambda t: t[1].path)}
    return found


def _side_by_side(files: Sequence[SourceFile], numbers: Sequence[int], job: SpoolJob) -> dict[int, Result]:
    """Looks at files of which each takes little but a request or two."""
    if not numbers:
        return {}
    with ThreadPoolExecutor(min(LOOK_THREADS, len(numbers)), thread_name_prefix="look") as threads:
        results = threads.map(lambda number: look(job, (number, files[number])), numbers)
        return dict(zip(numbers, results, strict=True))


def _is_quick(file: SourceFile, pool: WorkerPool | None) -> bool:
    """Whether a file is looked at here while the workers start: its index is read, which takes some milliseconds."""
    return pool is not None and not pool.is_up and file.kind == DATASET


def _absolute(source: str) -> str:
    return source if is_remote(source) else os.path.abspath(source)
