"""What the worker processes of test_workers.py are asked to do; `context` is a folder for marks, or a number."""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from shardtool.errors import DuplicateKey


class Stubborn(Exception):
    """An error that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("stubborn")
        self.lock = threading.Lock()


def times(context: int, task: int) -> int:
    return context * task


def pid(_: Any, task: Any) -> int:
    return os.getpid()


def variable(_: Any, name: str) -> str | None:
    return os.environ.get(name)


def big(context: int, task: int) -> bytes:
    return bytes([task]) * context


def mark(folder: str, name: str) -> None:
    with (Path(folder) / name).open("ab") as out:
        out.write(b"x")


def die_until(context: tuple[str, int], task: int) -> int:
    """Task 3 kills its worker `context[1]` times; every task leaves a mark for each try."""
    folder, deaths = context
    mark(folder, f"try-{task}")
    if task == 3 and (Path(folder) / "try-3").stat().st_size <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def read_what_is_gone(_: Any, path: str) -> int:
    """The last byte of a mapped file, cut short after it was mapped."""
    faulthandler.disable()
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        os.truncate(path, 0)
        return mapped[-1]


def leave(_: Any, code: int) -> None:
    os._exit(code)


def fail(_: Any, kind: str) -> None:
    if kind == "ours":
        raise DuplicateKey("twice", hint="rename", where={"key": "a"})
    if kind == "system":
        raise FileNotFoundError(2, "No such file", "/x")
    if kind == "stubborn":
        raise Stubborn
    raise ValueError(kind)


def wait_and_clean_up(folder: str, task: int) -> None:
    mark(folder, f"pid-{os.getpid()}")
    try:
        mark(folder, f"begun-{task}")
        time.sleep(60)
    finally:
        mark(folder, f"cleaned-{task}")


def wait_unless_zero(folder: str, task: int) -> None:
    if task:
        wait_and_clean_up(folder, task)


def refuse_to_leave(folder: str, task: int) -> None:
    mark(folder, f"pid-{os.getpid()}")
    mark(folder, f"begun-{task}")
    while True:
        try:
            time.sleep(60)
        except SystemExit:
            mark(folder, "asked")


def later(folder: str, task: int) -> Future[int]:
    """Done in a thread, once the marks of both tasks are there."""
    future: Future[int] = Future()

    def finish() -> None:
        mark(folder, f"begun-{task}")
        while not all((Path(folder) / f"begun-{number}").exists() for number in (1, 2)):
            time.sleep(0.005)
        future.set_result(task * 10)

    threading.Thread(target=finish).start()
    return future


def later_fails(_: Any, task: int) -> Future[int]:
    future: Future[int] = Future()
    future.set_exception(OSError(28, "No space left on device"))
    return future


def argv(_: Any, task: int) -> tuple[list[str], bool]:
    return sys.path[:1], "numpy" in sys.modules


def folder(_: Any, task: int) -> str:
    return os.getcwd()
