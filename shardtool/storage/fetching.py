"""A few threads that fetch ahead. Daemons: what is on its way keeps no process from its end."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Fetcher:
    """Calls in the order given, `num_threads` at a time; threads start with the first call, and belong to a process."""

    def __init__(self, num_threads: int) -> None:
        self._free = num_threads  # threads that may still be started
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._num_started = 0

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """The result of `call`, once a thread has come to it."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call())
            except BaseException as error:  # told to whoever waits
                future.set_exception(error)

        self._tasks.put(run)
        if self._free:
            self._free -= 1
            self._num_started += 1
            threading.Thread(target=self._work, daemon=True, name="shardtool-fetch").start()
        return future

    def close(self) -> None:
        """No more calls are begun; threads end after the one that they are at."""
        while True:
            try:
                self._tasks.get_nowait()
            except Empty:
                break
        self._free = 0
        for _ in range(self._num_started):
            self._tasks.put(None)
        self._num_started = 0

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
