"""Shards behind a network for random reads from several threads: told ranges are fetched ahead and held in memory.

    files = open_files(dataset)       ShardFiles for a folder, RemoteShardFiles for the rest

A shard that lies in the cache folder of the data set is read there as any local one.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import CancelledError
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import UsageProblem
from shardtool.loading.files import ShardFiles
from shardtool.reading.remote import RemoteDataset
from shardtool.storage.fetching import Fetcher

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future

    from shardtool.reading.reading import Dataset

__all__ = ["RemoteShardFiles", "open_files"]

HELD_BYTES = 1 << 30  # of ranges told ahead; those told first go first
FETCH_THREADS = 8
FETCH_BYTES = 8 << 20  # of one request


class _Held(NamedTuple):
    """A range of a shard that is on its way, or there."""

    begin: int
    end: int
    data: Future[bytes]


class RemoteShardFiles(ShardFiles):
    """The shard files of a data set on an object store.

    Args:
        dataset: opened; it makes the requests.
        held_bytes: memory for ranges that were told ahead.
    """

    def __init__(self, dataset: RemoteDataset, *, held_bytes: int = HELD_BYTES) -> None:
        super().__init__(dataset)
        self._remote, self._limit = dataset, held_bytes
        self._fetcher = Fetcher(FETCH_THREADS)
        self._held: OrderedDict[tuple[int, int], _Held] = OrderedDict()
        self._of_shard: dict[int, list[_Held]] = {}
        self._num_held = 0
        self._held_lock = Lock()

    def read(self, shard: int, offset: int, size: int) -> bytes:
        """`size` bytes of shard k of the manifest from byte `offset` on. Safe between threads.

        Raises:
            CorruptShard: the object is gone, or ends before.
            RemoteError: the store fails, after all retries.
        """
        if (data := self._from_held(shard, offset, size)) is not None:
            return data
        if self._is_local(shard):
            return super().read(shard, offset, size)
        return self._remote.read_file(shard, offset, size)

    def view(self, shard: int, offset: int, size: int) -> memoryview:
        """As `ShardFiles.view` where the shard lies in the cache folder; else of bytes that were fetched."""
        if self._is_local(shard):
            return super().view(shard, offset, size)
        return memoryview(self.read(shard, offset, size))

    def will_need(self, shard: int, offset: int, size: int) -> None:
        """Fetch a range ahead; returns at once."""
        if self._is_local(shard):
            super().will_need(shard, offset, size)
            return
        for begin in range(offset, offset + size, FETCH_BYTES):
            self._fetch(shard, begin, min(begin + FETCH_BYTES, offset + size))

    def preload(self, shards: Iterable[int], *, available_bytes: int | None = None, warm: bool = True) -> int:
        """Keep shards in the page cache, where the cache folder holds them all; see `ShardFiles.preload`.

        Raises:
            UsageProblem: one of them is on the store alone.
        """
        wanted = list(shards)
        absent = [shard for shard in wanted if not self._is_local(shard)]
        if absent:
            raise UsageProblem(
                f"{len(absent):,} of {len(wanted):,} shards are on the store alone: no page cache can hold them",
                hint="bring them here first: shardtool stage SRC DST, and name DST by cache=",
            )
        return super().preload(wanted, available_bytes=available_bytes, warm=warm)

    def close(self) -> None:
        """Close files and maps, give up what is on its way; reads that wait for it ask for their bytes themselves."""
        self._fetcher.close()
        with self._held_lock:
            self._held.clear()
            self._of_shard.clear()
            self._num_held = 0
        super().close()

    def _from_held(self, shard: int, offset: int, size: int) -> bytes | None:
        """The bytes out of ranges that were told ahead; None where they do not hold all of them."""
        pieces: list[bytes] = []
        end = offset + size
        for held in self._of_shard.get(shard, ()):
            if held.begin <= offset < held.end:
                try:
                    data = held.data.result()
                except CancelledError:  # dropped for others, or closed meanwhile
                    return None
                except BaseException:
                    self._forget(shard, held)
                    raise
                piece = data[offset - held.begin : end - held.begin]
                if offset + len(piece) == end and not pieces:
                    return piece
                pieces.append(piece)
                offset += len(piece)
        return b"".join(pieces) if offset == end and pieces else None

    def _is_local(self, shard: int) -> bool:
        return shard in self._maps or shard in self._files or bool(self._remote.local_path(shard))

    def _fetch(self, shard: int, begin: int, end: int) -> None:
        with self._held_lock:
            if (shard, begin) in self._held or end - begin > self._limit:
                return
            while self._num_held + end - begin > self._limit:
                self._drop(*next(iter(self._held)))
            data = self._fetcher.submit(lambda: self._remote.read_file(shard, begin, end - begin))
            held = self._held[shard, begin] = _Held(begin, end, data)
            self._of_shard[shard] = sorted([*self._of_shard.get(shard, ()), held], key=lambda held: held.begin)
            self._num_held += end - begin

    def _forget(self, shard: int, held: _Held) -> None:
        with self._held_lock:
            if self._held.get((shard, held.begin)) is held:
                self._drop(shard, held.begin)

    def _drop(self, shard: int, begin: int) -> None:
        gone = self._held.pop((shard, begin))
        gone.data.cancel()
        self._of_shard[shard] = [held for held in self._of_shard[shard] if held is not gone]
        self._num_held -= gone.end - gone.begin


def open_files(dataset: Dataset) -> ShardFiles:
    """The shard files of an opened data set."""
    return RemoteShardFiles(dataset) if isinstance(dataset, RemoteDataset) else ShardFiles(dataset)
