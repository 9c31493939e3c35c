"""One worker process: how it is started, and what it does until it is told to leave.

Started by multiprocessing's fork server (spawn where there is none), without the user's `__main__`. Messages to it:
eight bytes of task id, then a pickle; id 0 begins a run (function name, context); an empty message ends the process.
Messages from it: pickles of (task id, is_good, result or exception).
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from concurrent.futures import Future
from concurrent.futures import _base as futures_base
from concurrent.futures import thread as futures_thread
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardtool.errors import ExecutorError, ShardtoolError, WorkerLost
from shardtool.plugins import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess
    from types import FrameType

PRELOAD = ("numpy", "numpy.ma", "pyarrow", "xxhash", "shardtool.errors")  # pyarrow asks numpy.ma about every array

_ID_BYTES = 8
_STOPPING = (signal.SIGINT, signal.SIGTERM)
_SOON_S = 0.005
_LOCKING = frozenset(str(module.__file__) for module in (threading, futures_base, futures_thread))
_START_LOCK = threading.Lock()


def begin_message(function: str, context: Any) -> bytes:
    """Binds the tasks that follow to `function` and `context`."""
    return bytes(_ID_BYTES) + pickle.dumps((function, context), 5)


def task_message(task_id: int, task: Any) -> bytes:
    """One task; ids begin at 1."""
    return task_id.to_bytes(_ID_BYTES, "little") + pickle.dumps(task, 5)


def start_server(preload: Sequence[str]) -> BaseContext:
    """A context whose fork server is starting and importing `preload`; spawn where there is none. Does not block."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver, resource_tracker

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, *preload])
    try:
        with _START_LOCK, _hidden_main(), _child_environment():
            resource_tracker.ensure_running()  # first: it unblocks SIGINT here
            with _signals_blocked():
                forkserver.ensure_running()
    except OSError:  # no place for its socket, such as a TMPDIR of more than 100 characters
        return multiprocessing.get_context("spawn")
    return context


def start_process(context: BaseContext) -> tuple[BaseProcess, Connection]:
    """A running worker and the parent's end of its connection; waits until the fork server has imported its modules.

    Raises:
        WorkerLost: the system cannot start one.
    """
    ours, theirs = multiprocessing.Pipe()
    try:
        is_spawned = context.get_start_method() == "spawn"
        with _START_LOCK:
            given = (theirs, dict(os.environ))
            process: BaseProcess = context.Process(target=_main, args=given, daemon=True)  # type: ignore[attr-defined]
            with _hidden_main(), _child_environment(), _signals_blocked() if is_spawned else nullcontext():
                process.start()
    except (EOFError, OSError) as error:
        raise WorkerLost(f"no worker process could be started: {error!r}", hint="try --workers 0") from error
    finally:
        theirs.close()
    return process, ours


@contextmanager
def _hidden_main() -> Iterator[None]:
    """Let multiprocessing see a main module that it never imports again (multiprocessing.spawn: `*.__main__`)."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    main.__spec__ = ModuleSpec("shardtool.__main__", None)
    try:
        yield
    finally:
        main.__spec__ = spec


@contextmanager
def _child_environment() -> Iterator[None]:
    """Children find this package, but not a module of the user's working folder that is named like a library."""
    home = Path(__file__).parent.parent
    wanted = {"PYTHONSAFEPATH": "1", "OPENBLAS_NUM_THREADS": "1"}
    if home.name not in ("site-packages", "dist-packages"):
        wanted["PYTHONPATH"] = os.pathsep.join(filter(None, (str(home), os.environ.get("PYTHONPATH"))))
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Children inherit the mask, so that no signal to the process group ends them before they can answer it.

    The fork server keeps it: were it to die of a SIGTERM, its workers would count as dead before they cleaned up.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _main(connection: Connection, environment: dict[str, str]) -> None:
    os.environ.clear()  # that of the fork server is as old as the first pool of its parent
    os.environ.update(environment)
    gc.freeze()  # what the fork server imported is never garbage; its pages stay shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, inbox), daemon=True).start()
    reply = _Reply(connection)
    call: Callable[[Any], Any] = partial(_raise, ExecutorError("a task came before its function"))
    while message := inbox.get():
        task_id = int.from_bytes(message[:_ID_BYTES], "little")
        if task_id == 0:
            call = _bind(message[_ID_BYTES:])
        else:
            _perform(call, task_id, message[_ID_BYTES:], reply)


def _leave(_number: int, frame: FrameType | None) -> None:
    """SystemExit in the task, once; a moment later where it could leave a lock of the library taken for ever."""
    while frame is not None:
        if frame.f_code.co_filename in _LOCKING:
            signal.setitimer(signal.ITIMER_REAL, _SOON_S)
            return
        frame = frame.f_back
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


def _listen(connection: Connection, inbox: queue.SimpleQueue[bytes]) -> None:
    """Take messages as they come, so that the parent never blocks; its death ends this process, whatever it does."""
    try:
        while True:
            inbox.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(1)


def _bind(beginning: bytes) -> Callable[[Any], Any]:
    try:
        function, context = pickle.loads(beginning)
        return partial(resolve(function), context)
    except Exception as error:
        return partial(_raise, error)


def _raise(error: Exception, _task: object) -> None:
    raise error


def _perform(call: Callable[[Any], Any], task_id: int, task: bytes, reply: _Reply) -> None:
    try:
        result = call(pickle.loads(task))
    except Exception as error:
        reply.failure(task_id, error)
        return
    if isinstance(result, Future):
        result.add_done_callback(partial(reply.settled, task_id))
    else:
        reply.success(task_id, result)


class _Reply:
    """The way back to the parent, for the task's thread and for futures."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def success(self, task_id: int, result: Any) -> None:
        try:
            message = pickle.dumps((task_id, True, result), 5)
        except Exception as error:
            self.failure(task_id, error)
            return
        self._send(message)

    def failure(self, task_id: int, error: BaseException) -> None:
        self._send(pickle.dumps((task_id, False, _portable(error)), 5))

    def settled(self, task_id: int, future: Future[Any]) -> None:
        error = future.exception()
        if error is None:
            self.success(task_id, future.result())
        else:
            self.failure(task_id, error)

    def _send(self, message: bytes) -> None:
        with self._lock:
            self._connection.send_bytes(message)


def _portable(error: BaseException) -> Exception:
    """`error` as it can travel: itself with the traceback as a note, or an ExecutorError that carries the text."""
    text = "".join(traceback.format_exception(error))
    if isinstance(error, ShardtoolError):
        return error
    error.add_note(f"in a worker process:\n{text}")
    try:
        copy = pickle.loads(pickle.dumps(error, 5))
    except Exception:
        copy = None
    return copy if isinstance(copy, Exception) else ExecutorError(f"{type(error).__name__} in a worker:\n{text}")
