"""With a budget smaller than the share: shards come and go as readers say how far they are.

position (from `reached`) -> window.next_step -> evict, copy -> wait for the position to move
"""

from __future__ import annotations

import fcntl
import os
import select
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.assignment.assignment import assign
from shardtool.errors import UsageProblem
from shardtool.staging.arriving import source_errors
from shardtool.staging.election import files_of, pauses
from shardtool.staging.transfer import Copier
from shardtool.staging.waiting import reached, reached_position
from shardtool.staging.window import next_step, uses_of

if TYPE_CHECKING:
    from shardtool.manifest import ManifestShard
    from shardtool.staging.arriving import Route
    from shardtool.staging.errands import Errand
    from shardtool.staging.request import StageRequest
    from shardtool.staging.transfer import Advance
    from shardtool.staging.window import Uses

IDLE_S = 12 * 3600.0  # a copy in the background that hears of no progress for so long ends


@dataclass
class Rolled:
    """How it ended."""

    evicted: int = 0
    is_complete: bool = False  # all that the epochs read was here at its time


def roll(route: Route, errand: Errand, request: StageRequest, advance: Advance, *, stays: bool) -> Rolled:
    """Keep the window filled; with `stays` until the epochs are over or the launcher is gone, else once.

    Raises:
        UsageProblem: the reading order is not known.
    """
    uses, start = known_uses(errand, request)
    reached(errand.target.path, start)
    window = _Window(route, errand, uses, request.budget)
    done, launcher = Rolled(), Launcher(request.launcher)
    position, moved = -1, time.monotonic()
    for pause in pauses():
        now = max(start, reached_position(errand.target))
        if now != position:
            position, moved = now, time.monotonic()
            window.fill(position, advance, done)
        done.is_complete = window.has_all_from(position)
        is_over = launcher.is_gone() or time.monotonic() - moved > IDLE_S
        if done.is_complete or not stays or is_over:
            break
        pause()
    return done


def known_uses(errand: Errand, request: StageRequest) -> tuple[Uses, int]:
    """(when the shards are read, where the run begins)."""
    if request.select != "share" or len(request.targets) > 1:
        raise UsageProblem(
            "--budget needs to know when a shard is read: it goes with a node's share on one target",
            hint="leave out --all, --shards and --numa, or --budget",
        )
    found = assign(errand.manifest, request.wish, request.state)
    ranks = range(found.deal.world_size // found.num_nodes)
    return uses_of(found, request.node, ranks, range(*request.epochs)), found.position


class _Window:
    """The shards that are here now."""

    def __init__(self, route: Route, errand: Errand, uses: Uses, budget: int) -> None:
        self._route, self._uses, self._budget = route, uses, budget
        self._shards = {shard: errand.manifest.shards[shard] for shard in errand.share.shards}
        self._sizes = {shard: record.num_bytes for shard, record in self._shards.items()}
        self._told: set[int] = set()

    def _present(self) -> set[int]:
        holds = self._route.table.holds
        return {shard for shard, record in self._shards.items() if all(map(holds, files_of(record)))}

    def has_all_from(self, position: int) -> bool:
        """Whether nothing that is still to be read is missing."""
        present = self._present()
        return all(shard in present or self._uses.next_use(shard, position) is None for shard in self._shards)

    def fill(self, position: int, advance: Advance, done: Rolled) -> None:
        """Evict and copy what this position asks for."""
        held: set[int] = set()
        present = self._present()
        while True:
            step = next_step(self._uses, self._sizes, present, position, self._budget, held)
            stuck = {shard for shard in step.evict if not evict(self._route, self._shards[shard])}
            done.evicted += len(step.evict) - len(stuck)
            present -= set(step.evict) - stuck
            if not stuck:
                break
            held |= stuck
        for shard in step.fetch:
            Copier(self._route, self._once(shard, advance)).copy([self._shards[shard]])

    def _once(self, shard: int, advance: Advance) -> Advance:
        """Count each shard the first time it comes."""
        is_new = shard not in self._told
        self._told.add(shard)

        def tell(shards: int = 0, nbytes: int = 0, samples: int = 0) -> None:
            if is_new:
                advance(shards, nbytes, samples)

        return tell


def evict(route: Route, record: ManifestShard) -> bool:
    """Remove a shard's files, where stage copied them, nobody holds them, and the source still has them."""
    if not all(map(route.table.holds, record.files)):
        return False
    for file in record.packed_files if route.options.decompress else record.files:
        with source_errors(route.place, file.path):
            if route.place.stat(file.path).num_bytes != file.num_bytes:
                return False
    if not _unlink_free([route.target.final(file.path) for file in record.files]):
        return False
    route.table.drop([file.path for file in record.files])
    return True


def _unlink_free(paths: list[str]) -> bool:
    """Remove files unless a reader has a lease on one of them."""
    fds = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]
    try:
        for fd in fds:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in paths:
            os.unlink(path)
    except BlockingIOError:
        return False
    finally:
        for fd in fds:
            os.close(fd)
    return True


class Launcher:
    """The process that a copy in the background works for.

    Args:
        pid: of it; 0 or 1 for none.
    """

    def __init__(self, pid: int) -> None:
        self._fd = -1
        if pid > 1 and hasattr(os, "pidfd_open"):
            with suppress(OSError):
                self._fd = os.pidfd_open(pid)

    def is_gone(self) -> bool:
        """Whether it has ended; False where that cannot be known."""
        if self._fd < 0:
            return False
        return bool(select.select([self._fd], [], [], 0)[0])
