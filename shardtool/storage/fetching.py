"""A few threads that fetch ahead. Daemons: what is on its way keeps no process from its end."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Fetcher:
    """Calls in the order given, `num_threads` at a time; threads start with the first call, and belong to a process."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._lock = Lock()
        self._begin()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """The result of `call`, once a thread has come to it; cancelled where `close` comes first."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call())
            except BaseException as error:  # told to whoever waits
                future.set_exception(error)

        with self._lock:
            self._tasks.put(_Task(run, future.cancel))
            if self._num_started < self._num_threads:
                self._num_started += 1
                threading.Thread(target=_work, args=(self._tasks,), daemon=True, name="shardtool-fetch").start()
        return future

    def close(self) -> None:
        """Cancel what no thread has come to; threads end after the call they are at. A later call starts others."""
        with self._lock:
            tasks, num_started = self._tasks, self._num_started
            self._begin()
        while True:
            try:
                task = tasks.get_nowait()
            except Empty:
                break
            assert task is not None
            task.cancel()
        for _ in range(num_started):
            tasks.put(None)

    def _begin(self) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._num_started = 0


class _Task(NamedTuple):
    """A call that waits for a thread."""

    run: Callable[[], None]
    cancel: Callable[[], bool]


def _work(tasks: SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        task.run()
