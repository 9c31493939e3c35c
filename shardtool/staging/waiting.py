"""For programs that read while data is still being staged: wait for a shard, hold one, say how far reading is.

path = wait("/nvme/out-3f9c2a71aabb", 17, timeout=600)
with lease(path) as file:      # a shard that is held is not evicted
    ...
reached("/nvme/out-3f9c2a71aabb", position)  # with a budget: what was read by then may go
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from shardtool.errors import StageTimeout, UsageProblem
from shardtool.manifest import load_manifest
from shardtool.staging.election import Watch, pauses
from shardtool.staging.folder import Target
from shardtool.staging.lock import is_held
from shardtool.storage.local import put_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.manifest import ManifestShard

__all__ = ["lease", "reached", "reached_position", "wait"]

_POSITION = "position"


def wait(folder: str, shard: int | str, timeout: float = 3600.0) -> str:
    """The path of a shard's file, once every byte of it is there and verified.

    Args:
        folder: of the staged data set, such as `/nvme/out-3f9c2a71aabb`.
        shard: its place in the manifest, or its path there.
        timeout: seconds.

    Raises:
        StageTimeout: it did not come; says whether a copy is running.
        UsageProblem: there is no such shard.
        SourceNotFound: nothing was staged there.
    """
    target, deadline = Target(folder), time.monotonic() + timeout
    record = _shard(folder, shard)
    watch = Watch(target, [record])
    for pause in pauses():
        if watch.is_done():
            return target.final(record.path)
        if time.monotonic() >= deadline:
            break
        pause()
    state = "a copy is running" if is_held(target.lock) else "no copy is running"
    raise StageTimeout(
        f"{target.final(record.path)} is not there after {timeout:g} s; {state}",
        hint=f"shardtool stage --status {folder} tells how far it is; shardtool stage SRC DST goes on with it",
        where={"path": target.final(record.path)},
    )


def _shard(folder: str, shard: int | str) -> ManifestShard:
    shards = load_manifest(folder).shards
    for place, record in enumerate(shards):
        if shard in (place, record.path):
            return record
    raise UsageProblem(f"{folder} has no shard {shard}", hint=f"it has {len(shards)}, counted from 0")


@contextmanager
def lease(path: str) -> Iterator[BinaryIO]:
    """A shard's file, open for reading and not evicted while it is held; gone with the process, however it ends.

    Raises:
        FileNotFoundError: it is not there, or was evicted just now: `wait` for it again.
    """
    with open(path, "rb") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_SH)
        if os.stat(path).st_ino != os.fstat(file.fileno()).st_ino:
            raise FileNotFoundError(path)
        yield file


def reached(folder: str, position: int) -> None:
    """Say that the run has consumed `position` samples of its stream; with a budget, later shards may come now.

    One process of a node calls it, as often as it likes; it writes a small file.
    """
    tag = f"stage-{threading.get_native_id()}"  # threads of a process write side by side
    put_file(Target(folder).state, _POSITION, b"%d\n" % position, tag=tag, durable=False)


def reached_position(target: Target) -> int:
    """What `reached` last said; 0 where nothing was said."""
    try:
        with open(os.path.join(target.state, _POSITION), "rb") as file:
            return int(file.read())
    except (FileNotFoundError, ValueError):
        return 0
