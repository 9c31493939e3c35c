"""A disk that stops at the n-th change: what a process that dies there leaves behind, tried at every n.

Every call that changes a file or folder is counted; from the chosen one on all of them raise, cleaning up included.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHANGES = ("write", "rename", "unlink", "rmdir", "mkdir", "fsync")


class Crash(BaseException):
    """The process is gone; no `except Exception` notices."""


@dataclass
class Disk:
    """Counts changes, and refuses them from number `last` on.

    Args:
        last: changes that are still made; None counts only.
        loses_power: what was written and not synced when the crash came is empty afterwards.
    """

    last: int | None = None
    loses_power: bool = False
    changes: int = 0
    open_fds: dict[int, str] = field(default_factory=dict)
    dirty: set[str] = field(default_factory=set)

    def change(self, *, again: bool = False) -> None:
        """Make one, or die; the second and later writes to a file are no place of their own to die at."""
        if self.last is not None and self.changes >= self.last:
            raise Crash
        self.changes += not again

    def settle(self) -> None:
        """What the system does when the process is gone."""
        for fd in self.open_fds:
            with suppress(OSError):
                os.close(fd)
        for path in self.dirty if self.loses_power else ():
            with suppress(FileNotFoundError):
                os.truncate(path, 0)


@contextmanager
def crashing(disk: Disk) -> Iterator[None]:
    """Run the body on `disk`; a Crash ends it."""
    system: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in (*CHANGES, "open", "close")}

    def open_(path: Any, flags: int, *args: Any, **kinds: Any) -> int:
        if flags & os.O_CREAT:
            disk.change()
        fd: int = system["open"](path, flags, *args, **kinds)
        if flags & os.O_CREAT:
            disk.open_fds[fd] = os.fspath(path)
        return fd

    def close(fd: int) -> None:
        disk.open_fds.pop(fd, None)
        system["close"](fd)

    def write(fd: int, data: Any) -> Any:
        disk.change(again=disk.open_fds[fd] in disk.dirty)
        disk.dirty.add(disk.open_fds[fd])
        return system["write"](fd, data)

    def fsync(fd: int) -> None:
        disk.change()
        disk.dirty.discard(disk.open_fds.get(fd, ""))

    def rename(old: str, new: str) -> None:
        disk.change()
        system["rename"](old, new)
        disk.dirty.discard(new)
        if old in disk.dirty:
            disk.dirty.remove(old)
            disk.dirty.add(new)

    def other(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kinds: Any) -> Any:
            disk.change()
            return system[name](*args, **kinds)

        return call

    calls = {name: other(name) for name in CHANGES}
    calls |= {"open": open_, "close": close, "write": write, "fsync": fsync, "rename": rename}
    with ExitStack() as stack:
        for name, call in calls.items():
            stack.enter_context(patch.object(os, name, call))
        with suppress(Crash):
            yield
    disk.settle()
