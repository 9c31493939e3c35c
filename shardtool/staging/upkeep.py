"""What lies in a folder of stage, read from the files alone; and what may be removed from it."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardtool.errors import DestinationError, FormatError, SourceNotFound, UsageProblem
from shardtool.hashing import BLOCK_BYTES
from shardtool.manifest import LABELS, MANIFEST, load_manifest
from shardtool.staging.election import files_of
from shardtool.staging.folder import STAGED, VerifiedTable, find_targets, read_staged
from shardtool.staging.journal import count_marks
from shardtool.staging.lock import CopierLock, is_held
from shardtool.storage.local import write_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.manifest import Manifest
    from shardtool.staging.folder import Staged, Target

SCHEMA = "shardtool/stage-status/1"


@dataclass(frozen=True)
class FolderStatus:
    """One staged data set. Bytes are those of shard files."""

    path: str
    dataset_id: str  # "" where nothing but leftovers is here
    source: str
    is_running: bool
    is_window: bool
    wanted_shards: int
    ready_shards: int
    wanted_bytes: int
    ready_bytes: int
    partial_bytes: int  # of blocks that are here, of shards that are not complete
    leftover_bytes: int  # disk that parts and journals take

    @property
    def is_complete(self) -> bool:
        """Whether all that is meant to be here is."""
        return bool(self.dataset_id) and (self.is_window or self.ready_shards == self.wanted_shards)

    def document(self) -> dict[str, Any]:
        """One entry of `folders`."""
        return {
            "path": self.path,
            "dataset_id": self.dataset_id or None,
            "source": self.source or None,
            "is_running": self.is_running,
            "is_window": self.is_window,
            "is_complete": self.is_complete,
            "shards": self.wanted_shards,
            "ready_shards": self.ready_shards,
            "bytes": self.wanted_bytes,
            "ready_bytes": self.ready_bytes,
            "partial_bytes": self.partial_bytes,
            "leftover_bytes": self.leftover_bytes,
        }


def status_document(folders: list[FolderStatus], removed_bytes: int | None = None) -> dict[str, Any]:
    """`shardtool/stage-status/1`; `removed_bytes` where something was cleaned."""
    return {
        "schema": SCHEMA,
        "folders": [folder.document() for folder in folders],
        "removed_bytes": removed_bytes,
    }


def look(place: str) -> list[FolderStatus]:
    """Staged data sets at `place`, a folder of stage or its parent.

    Raises:
        DestinationError: it is no folder.
    """
    return [_status(target) for target in find_targets(place)]


def _status(target: Target) -> FolderStatus:
    staged, manifest = _declared(target)
    shards = [manifest.shards[shard] for shard in staged.shards] if staged and manifest else []
    table = VerifiedTable(target)
    ready = [shard for shard in shards if all(map(table.holds, files_of(shard)))]
    files = list(_leftovers(target))
    return FolderStatus(
        path=target.path,
        dataset_id=staged.dataset_id if staged and manifest else "",
        source=staged.source if staged else "",
        is_running=is_held(target.lock),
        is_window=bool(staged and staged.is_window),
        wanted_shards=len(shards),
        ready_shards=len(ready),
        wanted_bytes=sum(shard.num_bytes for shard in shards),
        ready_bytes=sum(shard.num_bytes for shard in ready),
        partial_bytes=BLOCK_BYTES * sum(count_marks(path) for path in files if path.endswith(".blocks")),
        leftover_bytes=sum(_disk_bytes(path) for path in files),
    )


def _declared(target: Target) -> tuple[Staged | None, Manifest | None]:
    """staged.json and the manifest, where both are readable and belong together."""
    try:
        staged, manifest = read_staged(target.path), load_manifest(target.path)
    except (FormatError, SourceNotFound):
        return None, None
    if staged is None or staged.dataset_id != manifest.dataset_id:
        return None, None
    if staged.shards and max(staged.shards) >= len(manifest.shards):
        return None, None
    return staged, manifest


def _leftovers(target: Target) -> Iterator[str]:
    """Parts and journals."""
    for folder, _, names in os.walk(target.parts):
        for name in names:
            if name.endswith((".part", ".blocks")):
                yield os.path.join(folder, name)


def _disk_bytes(path: str) -> int:
    try:
        return os.stat(path).st_blocks * 512
    except FileNotFoundError:
        return 0


def clean(place: str, drop: tuple[str, ...] = ()) -> int:
    """Remove what copies that ended left behind, and whole versions named in `drop`; the bytes that were freed.

    A folder in which a copy is running is left alone. Only files that stage wrote are removed.

    Raises:
        UsageProblem: there is no version of that name.
        DestinationError: a version to be dropped is being copied.
    """
    targets = find_targets(place)
    names = {os.path.basename(target.path.rstrip("/")): target for target in targets}
    for name in drop:
        if name not in names:
            raise UsageProblem(
                f"there is no staged data set {name} in {place}", hint=f"there are: {', '.join(names) or 'none'}"
            )
    freed = 0
    for target in targets:
        with _locked(target) as is_ours:
            if is_ours:
                freed += sum(_remove(path) for path in _leftovers(target))
    for name in drop:
        freed += _drop(names[name])
    return freed


@contextmanager
def _locked(target: Target) -> Iterator[bool]:
    lock = CopierLock(target.lock)
    is_ours = lock.try_take()
    try:
        yield is_ours
    finally:
        lock.release()


def _remove(path: str) -> int:
    count = _disk_bytes(path)
    with write_errors(path), suppress(FileNotFoundError):
        os.unlink(path)
    return count


def _drop(target: Target) -> int:
    """Remove a whole version: what its table vouches for, and what is stage's own."""
    with _locked(target) as is_ours:
        if not is_ours:
            raise DestinationError(
                f"{target.path} is being copied into",
                hint="stop that copy first",
                where={"path": target.path},
            )
        table = VerifiedTable(target)
        own = [MANIFEST, LABELS, STAGED]
        freed = sum(_remove(target.final(path)) for path in [*table.vouched(), *own])
        freed += sum(_remove(os.path.join(target.state, name)) for name in _state_files(target))
    _remove_empty(target.path)
    return freed


def _state_files(target: Target) -> list[str]:
    return [entry.name for entry in os.scandir(target.state) if entry.is_file(follow_symlinks=False)]


def _remove_empty(path: str) -> None:
    """Remove a folder and those in it, as far as they are empty."""
    for folder, _, _ in os.walk(path, topdown=False):
        with suppress(OSError):
            os.rmdir(folder)
