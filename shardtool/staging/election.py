"""Who copies: the first process that takes the lock of the folder. The others wait, and take over when it frees.

Waiting ends when the shards that the waiter wants are there, whoever brought them. What is there is read from the
table of verified files and from the files themselves, never from what a process once said of itself.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardtool.staging.folder import VerifiedTable
from shardtool.staging.lock import CopierLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardtool.manifest import ManifestShard
    from shardtool.model import FileRecord
    from shardtool.staging.folder import Target
    from shardtool.staging.transfer import Advance

POLL_S = 0.02, 0.5  # the first wait, and the longest


@contextmanager
def elected(target: Target, shards: Sequence[ManifestShard], advance: Advance) -> Iterator[bool]:
    """True for the one process that may copy now; False once another process has brought these shards."""
    lock, watch = CopierLock(target.lock), Watch(target, shards, advance)
    for pause in pauses():
        if lock.try_take():
            break
        if watch.is_done():
            yield False
            return
        pause()
    watch.take_back()  # the copier counts for itself what it finds
    try:
        yield True
    finally:
        lock.release()


class Watch:
    """Follows how shards arrive in a folder.

    Args:
        target: the folder.
        shards: that are waited for.
        advance: told of each that is there.
    """

    def __init__(self, target: Target, shards: Sequence[ManifestShard], advance: Advance | None = None) -> None:
        self._target, self._advance = target, advance
        self._table = VerifiedTable(target)
        self._left = list(shards)
        self._told = [0, 0, 0]

    def is_done(self) -> bool:
        """Whether all are there."""
        self._table.refresh()
        left = []
        for shard in self._left:
            if all(map(self._table.holds, files_of(shard))):
                self._tell(1, shard.num_bytes, shard.num_samples)
            else:
                left.append(shard)
        self._left = left
        return not left

    def take_back(self) -> None:
        """Untell what was told."""
        self._tell(*(-count for count in self._told))

    def _tell(self, shards: int, num_bytes: int, samples: int) -> None:
        for place, count in enumerate((shards, num_bytes, samples)):
            self._told[place] += count
        if self._advance is not None and shards:
            self._advance(shards, num_bytes, samples)


def files_of(shard: ManifestShard) -> list[FileRecord]:
    """All files of a shard, its index among them."""
    return [*shard.files, *([shard.index] if shard.index is not None else [])]


def pauses() -> Iterator[Callable[[], None]]:
    """Ever longer waits, to be called; the first is short."""
    seconds, longest = POLL_S
    while True:

        def pause(seconds: float = seconds) -> None:
            time.sleep(seconds)

        yield pause
        seconds = min(seconds * 1.3, longest)
