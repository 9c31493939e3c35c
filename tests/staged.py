"""What the tests of stage share: a small data set of several blocks a shard, a source that counts, a run of stage."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from helpers import Said, pack

from shardtool.assignment.assignment import Wish
from shardtool.hashing import BLOCK_BYTES
from shardtool.staging.request import StageRequest
from shardtool.staging.stage import stage
from shardtool.storage import open_place
from shardtool.storage.base import Stretch

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from shardtool.staging.request import StageResult
    from shardtool.storage.base import Place, Stat, Take


class CountingPlace:
    """A local source that writes down every read, and may be told to spoil some.

    Args:
        folder: the data set.
        spoil: called with (path, offset, view) after each ranged read; may alter the view.
    """

    is_local = False

    def __init__(self, folder: Path, spoil: Callable[[str, int, memoryview], None] | None = None) -> None:
        self.inner: Place = open_place(os.fspath(folder))
        self.url = os.fspath(folder)
        self.reads: Counter[tuple[str, int]] = Counter()
        self.small: Counter[str] = Counter()
        self.stats: Counter[str] = Counter()
        self._spoil, self._lock = spoil, threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def stat(self, path: str) -> Stat:
        with self._lock:
            self.stats[path] += 1
        return self.inner.stat(path)

    def read(self, path: str) -> bytes:
        with self._lock:
            self.small[path] += 1
        return self.inner.read(path)

    def read_into(self, path: str, offset: int, view: memoryview, *, version: str = "") -> int:
        with self._lock:
            self.reads[path, offset] += 1
        count = self.inner.read_into(path, offset, view, version=version)
        if self._spoil is not None:
            self._spoil(path, offset, view)
        return count

    def buffer_bytes(self, num_bytes: int) -> int:
        return num_bytes

    def read_through(
        self, path: str, offset: int, num_bytes: int, take: Take, buffer: memoryview, *, version: str = ""
    ) -> Stretch:
        before = self.inner.stat(path)
        count = self.read_into(path, offset, buffer[:num_bytes], version=version)
        take(buffer[:count], 0)
        return Stretch(count, before.version, before.num_bytes)


class Telling(Said):
    """What a run of stage says; its progress is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = self.samples = 0

    def progress(
        self, total_shards: int, total_bytes: int, total_samples: int, verb: str = "copy"
    ) -> AbstractContextManager[Telling]:
        return super().progress(total_shards, total_bytes, total_samples)  # type: ignore[return-value]

    def advance(self, shards: int = 0, nbytes: int = 0, samples: int = 0) -> None:
        self.shards += shards
        self.num_bytes += nbytes
        self.samples += samples


def small_data_set(root: Path, *, shards: int = 4, samples: int = 48, size: int = 9000, **options: Any) -> Path:
    """`root/out`: shards of some 100 KB."""
    tree = root / "tree"
    tree.mkdir(parents=True)
    for number in range(samples):
        (tree / f"{number:04d}.bin").write_bytes(number.to_bytes(4, "big") * (size // 4))
    pack(tree, root / "out", shards=shards, **options)
    return root / "out"


def large_data_set(root: Path, *, shards: int = 2, blocks: int = 3) -> Path:
    """`root/out`: shards of `blocks` blocks, the last one short."""
    tree = root / "tree"
    tree.mkdir(parents=True)
    size = (blocks * BLOCK_BYTES - BLOCK_BYTES // 2) // 4
    for number in range(4 * shards):
        (tree / f"{number:04d}.bin").write_bytes(os.urandom(1 << 16) * (size >> 16))
    pack(tree, root / "out", shards=shards)
    return root / "out"


def run_stage(source: Any, target: Path, *, say: Telling | None = None, **options: Any) -> StageResult:
    """Stage in this process; `options` are those of the request, `select` is all by default."""
    place = open_place(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else source
    request = StageRequest(
        source=place.url,
        **{
            "targets": (os.fspath(target),),
            "select": "all",
            "durable": False,
            "jobs": 4,
            "wish": Wish(num_nodes=1),
            **options,
        },
    )
    return stage(place, request, say or Telling())


def only(folder: Path) -> Path:
    """The one staged data set in a folder."""
    (found,) = (path for path in folder.iterdir() if (path / ".stage").is_dir())
    return found


def shard_bytes(folder: Path) -> dict[str, bytes]:
    """All files in `data/`."""
    return {path.name: path.read_bytes() for path in sorted((folder / "data").rglob("*")) if path.is_file()}


def staged_shards_of(folder: Path) -> list[str]:
    """Names of the shards that are there."""
    return sorted(shard_bytes(folder))


def num_blocks_of(out: Path) -> int:
    """Blocks of all shards of a data set."""
    document = json.loads((out / "manifest.json").read_text())
    return sum(-(-file["bytes"] // BLOCK_BYTES) for shard in document["shards"] for file in shard["files"])
