"""Many small objects, many at once, in the order asked for, in bounded memory.

    for got in get_many(client, gets, window_bytes=64 << 20, threads=128):
        got.data or got.error

Latency is hidden by requests in flight, memory bounded by their bytes: an object counts from when it is asked for until
the one after it is taken.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardtool.storage.s3.address import object_url
from shardtool.storage.s3.answers import changed
from shardtool.storage.s3.download import object_bytes
from shardtool.storage.s3.exchange import if_match

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.storage.s3.client import S3Client
    from shardtool.storage.s3.exchange import Key


@dataclass(frozen=True)
class Get:
    """An object, or a range of one, of known size."""

    bucket: str
    key: Key
    num_bytes: int
    offset: int | None = None  # None: the whole object, which must have num_bytes
    version: str = ""  # the ETag that it must have; "" takes any


@dataclass
class Got:
    """The bytes of a Get, or why there are none."""

    get: Get
    data: bytearray | None = None
    error: Exception | None = None
    _is_done: bool = field(default=False, repr=False)


def get_one(client: S3Client, get: Get) -> bytearray:
    """The bytes of one object or range, exactly `num_bytes`.

    Raises:
        SourceChanged: another version, or another size than the listing told.
        SourceNotFound, AccessDenied, RemoteError: as S3Client.request.
    """
    data = bytearray(get.num_bytes)
    headers = if_match(get.version)
    if get.offset is not None:
        if not get.num_bytes:
            return data
        headers["range"] = f"bytes={get.offset}-{get.offset + get.num_bytes - 1}"
    response = client.request("GET", get.bucket, get.key, headers=headers, into=memoryview(data), allow=(416,))
    size = object_bytes(response) if get.offset is None else get.num_bytes
    is_beyond = response.status == 416  # what came is an error document, of whatever length
    if is_beyond or response.num_bytes != get.num_bytes or size not in (None, get.num_bytes):
        told = f"{size} bytes" if response.num_bytes == get.num_bytes and not is_beyond else "it ends before"
        raise changed(object_url(get.bucket, get.key), f"(expected {get.num_bytes} bytes, {told})")
    return data


def get_many(client: S3Client, gets: Iterable[Get], *, window_bytes: int, threads: int) -> Iterator[Got]:
    """The result of each Get, in their order. Errors are results, too: one bad object stops no other.

    Args:
        gets: drawn as there is room, by the threads, one at a time.
        window_bytes: of objects in flight or waiting for their turn; a single larger one goes alone.
        threads: requests in flight at most.
    """
    run = _Run(client, iter(gets), window_bytes)
    try:
        run.start(threads)
        yield from run.results()
    finally:
        run.stop()


class _Run:
    """Threads that fetch, and the queue that puts their results in order."""

    def __init__(self, client: S3Client, gets: Iterator[Get], window_bytes: int) -> None:
        self._client = client
        self._gets = gets
        self._window = window_bytes
        lock = threading.Lock()
        self._room = threading.Condition(lock)
        self._ready = threading.Condition(lock)
        self._queue: deque[Got] = deque()  # asked for and not taken yet, in order
        self._held = 0  # their bytes
        self._error: BaseException | None = None
        self._next: Get | None = None
        with lock:
            self._advance()

    def start(self, threads: int) -> None:
        """Begin to fetch. Daemons: a fetch that hangs keeps no process from its end."""
        for _ in range(threads):
            if self._next is None:
                return
            threading.Thread(target=self._work, daemon=True, name="s3-get").start()

    def results(self) -> Iterator[Got]:
        """Results in order, each as soon as it and all before it are there."""
        while True:
            with self._ready:
                while not self._can_give():
                    self._ready.wait()
                if not self._queue:
                    if self._error is not None:
                        raise self._error
                    return
                got = self._queue[0]
            yield got
            with self._room:
                self._queue.popleft()
                self._held -= got.get.num_bytes
                self._room.notify()

    def stop(self) -> None:
        """No further requests; those in flight end by themselves."""
        with self._room:
            self._next = None
            self._room.notify_all()

    def _work(self) -> None:
        while (got := self._take()) is not None:
            try:
                got.data = get_one(self._client, got.get)
            except Exception as error:
                got.error = error
            with self._ready:
                got._is_done = True
                if self._queue and self._queue[0] is got:
                    self._ready.notify()

    def _take(self) -> Got | None:
        with self._room:
            while self._next is not None and not self._has_room(self._next):
                self._room.wait()
            if self._next is None:
                self._room.notify()  # pass it on: the others wait for the same
                return None
            got = Got(self._next)
            self._queue.append(got)
            self._held += got.get.num_bytes
            self._advance()
            if self._next is None or self._has_room(self._next):
                self._room.notify()
            return got

    def _has_room(self, get: Get) -> bool:
        return not self._queue or self._held + get.num_bytes <= self._window

    def _can_give(self) -> bool:
        return self._queue[0]._is_done if self._queue else self._next is None

    def _advance(self) -> None:
        """Draw the next Get, under the lock; what goes wrong there is told to whoever takes the results."""
        try:
            self._next = next(self._gets, None)
        except BaseException as error:
            self._error, self._next = error, None
        if self._next is None:
            self._ready.notify()
