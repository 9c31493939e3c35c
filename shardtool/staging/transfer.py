"""Copies shards with threads, in order: index first, then the missing blocks, several shards at a time at the seams.

    shards --thread--> index fetched and checked -> missing blocks --threads--> fetched, verified, written -> published

Memory: one block a thread; a piece of one where the source hands on bytes as they come.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from shardtool.errors import CorruptShard
from shardtool.hashing import BLOCK_BYTES, digest_chunks
from shardtool.index_file import read_index_meta
from shardtool.staging.arriving import TRIES, Arrival, is_sound, source_errors
from shardtool.staging.digests import num_blocks, of_blocks, of_whole
from shardtool.staging.unpacking import unpack
from shardtool.storage.local import put_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardtool.manifest import ManifestShard
    from shardtool.model import FileRecord
    from shardtool.staging.arriving import Route
    from shardtool.staging.digests import Digests

TAG = "stage"
GRACE_S = 3.0  # that an interrupted copy gives the blocks on their way


class Advance(Protocol):
    """Told what was done."""

    def __call__(self, shards: int = 0, nbytes: int = 0, samples: int = 0) -> None:
        """Add to what is done."""


class Copier:
    """Copies shards; for the process that holds the lock of the folder.

    Args:
        route: from where to where, and how.
        advance: told of every block and shard, by one thread at a time.
    """

    def __init__(self, route: Route, advance: Advance) -> None:
        self._route, self._advance = route, advance
        self._changed = threading.Condition()
        self._blocks: deque[tuple[_Shard, Arrival, int]] = deque()
        self._shards: Iterator[ManifestShard] = iter(())
        self._buffer_bytes = 0
        self._running = 0  # tasks that threads are at
        self._open: set[Arrival] = set()
        self._error: BaseException | None = None

    def copy(self, shards: Sequence[ManifestShard]) -> None:
        """Bring these, in this order.

        Raises:
            CorruptShard: bytes that never had their digest.
            SourceChanged: the source was written to meanwhile.
            RemoteError: the source failed after all retries.
            NoSpace: the target is full.
        """
        self._shards = iter(shards)
        self._buffer_bytes = buffer_bytes(self._route, shards)
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._route.options.jobs)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:  # interrupted
            self._fail(error)
            deadline = time.monotonic() + GRACE_S
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
            raise
        finally:
            if not any(thread.is_alive() for thread in threads):  # else they still write: the system closes
                for arrival in self._open:
                    arrival.close()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        buffer = memoryview(bytearray(self._buffer_bytes))
        try:
            while (task := self._next()) is not None:
                task(buffer)
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _next(self) -> Callable[[memoryview], None] | None:
        """A block to fetch, else a shard to open; waits while others may still find blocks."""
        with self._changed:
            while self._error is None:
                if self._blocks:
                    self._running += 1
                    return self._fetch_task(*self._blocks.popleft())
                shard = next(self._shards, None)
                if shard is not None:
                    self._running += 1
                    return self._open_task(shard)
                if self._running == 0:
                    return None
                self._changed.wait()
            return None

    def _open_task(self, record: ManifestShard) -> Callable[[memoryview], None]:
        def run(_: memoryview) -> None:
            """Fetch the index, take over what is there, queue the rest."""
            shard = _Shard(record)
            is_packed = bool(self._route.options.decompress) and record.packed is not None
            is_copy = record.index is not None and (is_packed or record.packed is None)
            digests = _block_digests(self._route, record) if is_copy else None
            if record.index is not None and not is_copy:
                _bring_index(self._route, record)
            for place, file in enumerate(record.files):
                if place == 0 and is_packed and digests is not None:
                    self._open_packed(shard, digests)
                else:
                    self._open_file(shard, file, digests if place == 0 and digests else of_whole(file))

        return run

    def _open_packed(self, shard: _Shard, digests: Digests) -> None:
        """Fetch the compressed file, unless the raw one is here."""
        route, raw, packed = self._route, shard.record.files[0], shard.record.packed
        assert packed is not None
        if route.table.holds(raw) or is_sound(route.target.final(raw.path), raw, None):
            route.vouch(raw)
            route.count(reused=raw.num_bytes)
            self._arrived(shard, raw.num_bytes)
        else:
            self._begin(shard, Arrival(route, packed, digests))

    def _open_file(self, shard: _Shard, record: FileRecord, digests: Digests | None) -> None:
        route = self._route
        if route.table.holds(record) or is_sound(route.target.final(record.path), record, digests):
            route.vouch(record)
            route.count(reused=record.num_bytes)
            self._arrived(shard, record.num_bytes)
            return
        self._begin(shard, Arrival(route, record, digests))

    def _begin(self, shard: _Shard, arrival: Arrival) -> None:
        record = arrival.record
        with self._changed:
            self._open.add(arrival)
        missing = sorted(arrival.missing)
        self._tell(0, record.num_bytes - sum(arrival.extent(block)[1] for block in missing))
        if missing:
            self._queue(shard, arrival)
        else:
            self._publish(shard, arrival)

    def _queue(self, shard: _Shard, arrival: Arrival) -> None:
        with self._changed:
            self._blocks.extend((shard, arrival, block) for block in sorted(arrival.missing))
            self._changed.notify_all()

    def _fetch_task(self, shard: _Shard, arrival: Arrival, block: int) -> Callable[[memoryview], None]:
        def run(buffer: memoryview) -> None:
            count = arrival.fetch(block, buffer)
            with self._changed:
                arrival.missing.discard(block)
                is_last = not arrival.missing
                self._advance(nbytes=count)
            if is_last:
                self._publish(shard, arrival)

        return run

    def _publish(self, shard: _Shard, arrival: Arrival) -> None:
        missing = 0
        if arrival.record is shard.record.packed:
            unpack(arrival, shard.record)
            missing = shard.record.files[0].num_bytes - arrival.record.num_bytes
        elif not arrival.publish():
            self._tell(0, -arrival.record.num_bytes)
            self._queue(shard, arrival)
            return
        with self._changed:
            self._open.discard(arrival)
        self._arrived(shard, missing)

    def _arrived(self, shard: _Shard, num_bytes: int) -> None:
        """One more file of the shard is there."""
        with self._changed:
            shard.files_left -= 1
            is_whole = shard.files_left == 0
            self._advance(int(is_whole), num_bytes, shard.record.num_samples if is_whole else 0)

    def _tell(self, shards: int, num_bytes: int) -> None:
        with self._changed:
            self._advance(shards, num_bytes)


def buffer_bytes(route: Route, shards: Sequence[ManifestShard]) -> int:
    """Memory that a thread needs: the largest block, or what is copied of it at a time."""
    files = [file for shard in shards for file in (*shard.files, *shard.packed_files)]
    size = min(BLOCK_BYTES, max((file.num_bytes for file in files), default=0))
    return route.place.buffer_bytes(size)


class _Shard:
    """A shard and how many of its files are still to come."""

    def __init__(self, record: ManifestShard) -> None:
        self.record, self.files_left = record, len(record.files)


def _block_digests(route: Route, shard: ManifestShard) -> Digests:
    """Of the blocks of the shard's first file; its index, which has them, is brought first.

    Raises:
        CorruptShard: the index has not its digest, or is of another file.
    """
    record, file = shard.index, shard.packed_files[0]
    assert record is not None
    _bring_index(route, shard)
    if (whole := of_whole(file)) is not None:
        return whole
    meta = read_index_meta(route.target.final(record.path))
    stated, digests = meta["shard"], [int(digest, 16) for digest in meta["blocks"]]
    is_its = (stated["path"], stated["xxh3_128"]) == (file.path, file.xxh3_128)
    if not is_its or len(digests) != num_blocks(file):
        shown = route.place.shown(record.path)
        raise CorruptShard(
            f"{shown} is not the index of {file.path} as the manifest has it",
            hint=f"shardtool verify {route.place.url} tells what is wrong there, shardtool index builds it again",
            where={"path": shown},
        )
    return of_blocks(digests)


def _bring_index(route: Route, shard: ManifestShard) -> None:
    record = shard.index
    if record is not None and not route.table.holds(record):
        if not is_sound(route.target.final(record.path), record, None):
            bring_small(route, record)
        route.vouch(record)


def bring_small(route: Route, record: FileRecord) -> None:
    """Fetch a small file whole, compare it with its digest, and give it its name.

    Raises:
        CorruptShard: it never had its digest.
    """
    found = ""
    for _ in range(TRIES):
        with source_errors(route.place, record.path):
            data = route.place.read(record.path)
        found = digest_chunks([data])
        if (len(data), found) == (record.num_bytes, record.xxh3_128):
            put_file(route.target.path, record.path, data, tag=TAG, durable=route.options.durable)
            return
    shown = route.place.shown(record.path)
    raise CorruptShard(
        f"{shown} should have digest {record.xxh3_128}, found {found}, {TRIES} times",
        hint=f"it is damaged at the source: shardtool verify {route.place.url} tells how to repair it",
        where={"path": shown, "expected": record.xxh3_128, "found": found},
    )
