"""Worker processes: tasks in, results out in order of completion, and a dead worker's tasks run again.

    with WorkerPool(4, preload=("shardtool.packing.pack",)) as pool:
        pool.warm()                                   # the fork server imports while we go on
        pool.begin()                                  # and so do the workers, as soon as tasks are foreseen
        for task, result in pool.run("shardtool.packing.pack:pack_one", range(128), context=job):
            ...

A task function is named, not passed: `module:function`, called as `function(context, task)` in a worker. It may return
a `concurrent.futures.Future`: the worker goes on with its next task and the result counts once the future is done
(an fsync in the background). Workers start from a fork server that has imported `preload`, never run the user's
`__main__`, ignore Ctrl-C, leave on SIGTERM by SystemExit inside the task, and die at once when their parent does.
"""

from __future__ import annotations

import pickle
import reprlib
import signal
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection as mp_connection
from threading import Thread
from typing import TYPE_CHECKING, Any

from shardtool.errors import ExecutorError, WorkerLost
from shardtool.plugins import resolve
from shardtool.worker import begin_message, start_process, start_server, task_message

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess

__all__ = ["WorkerPool", "resolve"]

POLL_S = 1.0  # upper bound of every wait for a message
_HINTS: dict[int, str] = {  # by signal
    signal.SIGKILL: "out of memory? fewer --workers need less of it",
    signal.SIGBUS: "a mapped file was cut short while it was read (or its disk failed): pack when nothing writes there",
}


class WorkerPool:
    """A few worker processes, started when the first task needs them.

    Args:
        num_workers: processes at most; 0 runs every task in this process, with the same results.
        preload: modules that the fork server imports once, beside numpy, pyarrow and xxhash.
        retries: how often a task is tried again after its worker died.
        grace_s: seconds between SIGTERM and SIGKILL when workers are stopped early.
    """

    def __init__(
        self, num_workers: int, preload: Sequence[str] = (), *, retries: int = 3, grace_s: float = 5.0
    ) -> None:
        self.num_workers = num_workers
        self.preload = tuple(preload)
        self.retries = retries
        self.grace_s = grace_s
        self._workers: list[_Worker] = []
        self._context: BaseContext | None = None
        self._starting: deque[Future[_Worker]] = deque()
        self._is_running = False
        self.start_wait_s = 0.0  # seconds for which tasks waited and no worker was there

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.terminate()

    def warm(self) -> None:
        """Start the fork server and return at once; it imports `preload` meanwhile. Costs about 2 ms."""
        if self.num_workers > 0:
            self._context = start_server(self.preload)

    def begin(self, num_workers: int | None = None) -> None:
        """Start workers in the background, all of them or up to `num_workers`, and return at once."""
        wanted = self.num_workers if num_workers is None else min(num_workers, self.num_workers)
        missing = wanted - len(self._workers) - len(self._starting)
        if missing <= 0:
            return
        if self._context is None:
            self.warm()
        assert self._context is not None
        begun: list[Future[_Worker]] = [Future() for _ in range(missing)]
        self._starting.extend(begun)
        Thread(target=_start, args=(self._context, begun), daemon=True).start()

    @property
    def is_up(self) -> bool:
        """Whether a worker has started, or failed to: `run` would not wait for the first."""
        return bool(self._workers) or any(starting.done() for starting in self._starting)

    def run(
        self,
        function: str,
        tasks: Iterable[Any],
        *,
        context: Any = None,
        window: int = 2,
        describe: Callable[[Any], str] = reprlib.repr,
    ) -> Generator[tuple[Any, Any], None, None]:
        """(task, result) of each task, in order of completion.

        Closing the iterator early, or an error in it, stops the workers: SIGTERM, then SIGKILL after `grace_s`.

        Args:
            function: `module:function`, called with (context, task).
            tasks: consumed as workers have room. A deque may be appended to while the run goes on.
            context: sent once to each worker.
            window: tasks a worker holds at once, so that it never waits for its next one; futures not yet done count.
            describe: names a task in the message of WorkerLost.

        Raises:
            WorkerLost: a task's worker died `retries` + 1 times.
            Exception: what a task raised, of its own class, with the worker's traceback as a note.
        """
        take = _taker(tasks)
        if self.num_workers <= 0:
            yield from _run_here(partial(resolve(function), context), take, window)
            return
        if self._is_running:
            raise ExecutorError("a worker pool does one run at a time: exhaust or close the first")
        run = _Run(take, begin_message(function, context), window, describe)
        self._is_running, is_done = True, False
        try:
            while self._fill(run):
                for worker in self._ready():
                    yield from self._receive(worker, run)
            is_done = True
        finally:
            self._is_running = False
            if not is_done:
                self.terminate()

    def close(self) -> None:
        """End the workers; they have nothing left to do."""
        self._await_started()
        for worker in self._workers:
            worker.send(b"")
        self._join(self.grace_s)
        self.terminate()

    def terminate(self) -> None:
        """Stop the workers: SIGTERM, a chance to clean up, SIGKILL after `grace_s`."""
        self._await_started()
        try:
            for worker in self._workers:
                worker.process.terminate()
            self._join(self.grace_s)
        finally:
            for worker in self._workers:
                worker.process.kill()
            self._join(self.grace_s)
            for worker in self._workers:
                worker.connection.close()
            self._workers.clear()

    def _await_started(self) -> None:
        """Take the workers that are still starting, so that none is left behind."""
        while self._starting:
            with suppress(WorkerLost):
                self._workers.append(self._starting[0].result())
            self._starting.popleft()

    def _join(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))

    def _fill(self, run: _Run) -> bool:
        """Hand out tasks while a worker has room, the idlest first; True while any is unfinished."""
        while self._has_room(run.window) and (task_id := run.next_id()) is not None:
            worker = self._pick()
            if worker.begun is not run:
                worker.begun = run
                worker.send(run.beginning)
            worker.unfinished.append(task_id)
            worker.send(task_message(task_id, run.tasks[task_id]))
        return bool(run.tasks)

    def _has_room(self, window: int) -> bool:
        return len(self._workers) < self.num_workers or any(len(w.unfinished) < window for w in self._workers)

    def _pick(self) -> _Worker:
        """The idlest worker, or a new one where all are busy and one more is allowed."""
        idlest = min(self._workers, key=lambda worker: len(worker.unfinished), default=None)
        if idlest is not None and (not idlest.unfinished or len(self._workers) >= self.num_workers):
            return idlest
        self.begin(len(self._workers) + 1)
        began = time.monotonic()
        try:
            self._workers.append(self._starting[0].result())  # it stays there until it is ours, come what may
        finally:
            if self._starting[0].done():
                self._starting.popleft()
            if len(self._workers) < 2:
                self.start_wait_s += time.monotonic() - began
        return self._workers[-1]

    def _ready(self) -> list[_Worker]:
        handles: dict[Any, _Worker] = {}
        for worker in self._workers:
            handles[worker.connection] = handles[worker.process.sentinel] = worker
        ready = mp_connection.wait(list(handles), POLL_S)
        return list(dict.fromkeys(handles[handle] for handle in ready))

    def _receive(self, worker: _Worker, run: _Run) -> Iterator[tuple[Any, Any]]:
        try:
            if not worker.connection.poll():
                if not worker.process.is_alive():
                    self._bury(worker, run)
                return
            task_id, is_good, value = pickle.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            self._bury(worker, run)
            return
        worker.unfinished.remove(task_id)
        task = run.finish(task_id)
        if not is_good:
            raise value
        self._fill(run)
        yield task, value

    def _bury(self, worker: _Worker, run: _Run) -> None:
        """Take a dead worker's tasks back; the oldest of them is the suspect."""
        self._workers.remove(worker)
        worker.process.kill()
        worker.process.join(self.grace_s)
        worker.connection.close()
        if worker.unfinished:
            suspect = worker.unfinished[0]
            if run.blame(suspect) > self.retries:
                raise _lost(run.describe(run.tasks[suspect]), worker.process.exitcode, self.retries + 1)
        run.again.extendleft(reversed(worker.unfinished))


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    connection: Connection
    unfinished: deque[int] = field(default_factory=deque)  # in the order sent; the first one is being run
    begun: _Run | None = None

    def send(self, message: bytes) -> None:
        with suppress(OSError):  # it died: the sentinel tells, and its tasks are taken back then
            self.connection.send_bytes(message)


@dataclass(eq=False)
class _Run:
    """The tasks of one run that are not finished."""

    take: Callable[[], tuple[Any] | None]
    beginning: bytes
    window: int
    describe: Callable[[Any], str]
    tasks: dict[int, Any] = field(default_factory=dict)
    deaths: dict[int, int] = field(default_factory=dict)
    again: deque[int] = field(default_factory=deque)
    last_id: int = 0

    def next_id(self) -> int | None:
        if self.again:
            return self.again.popleft()
        taken = self.take()
        if taken is None:
            return None
        self.last_id += 1
        self.tasks[self.last_id] = taken[0]
        return self.last_id

    def finish(self, task_id: int) -> Any:
        self.deaths.pop(task_id, None)
        return self.tasks.pop(task_id)

    def blame(self, task_id: int) -> int:
        self.deaths[task_id] = self.deaths.get(task_id, 0) + 1
        return self.deaths[task_id]


def _start(context: BaseContext, begun: Sequence[Future[_Worker]]) -> None:
    """Start a worker for each of `begun`, one after the other."""
    for future in begun:
        try:
            future.set_result(_Worker(*start_process(context)))
        except BaseException as error:
            future.set_exception(error)


def _taker(tasks: Iterable[Any]) -> Callable[[], tuple[Any] | None]:
    if isinstance(tasks, deque):
        return lambda: (tasks.popleft(),) if tasks else None
    iterator = iter(tasks)

    def take() -> tuple[Any] | None:
        for task in iterator:
            return (task,)
        return None

    return take


def _run_here(
    call: Callable[[Any], Any], take: Callable[[], tuple[Any] | None], window: int
) -> Iterator[tuple[Any, Any]]:
    waiting: deque[tuple[Any, Future[Any]]] = deque()
    try:
        while (taken := take()) is not None:
            result = call(taken[0])
            if not isinstance(result, Future):
                yield taken[0], result
                continue
            waiting.append((taken[0], result))
            while len(waiting) >= window:
                yield _settled(waiting)
        while waiting:
            yield _settled(waiting)
    finally:
        for _, future in waiting:
            future.exception()  # what is under way ends before anything begins anew


def _settled(waiting: deque[tuple[Any, Future[Any]]]) -> tuple[Any, Any]:
    task, future = waiting.popleft()
    return task, future.result()


def _lost(task: str, exitcode: int | None, times: int) -> WorkerLost:
    if exitcode is not None and exitcode < 0:
        end = f"was killed by {signal.Signals(-exitcode).name}"
    else:
        end = f"ended with exit code {exitcode}"
    hint = _HINTS.get(-(exitcode or 0), "see --debug")
    return WorkerLost(f"a worker process {end} while working on {task}, {times} times", hint=hint)
