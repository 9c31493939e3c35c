"""`shardtool pack` as a process group of its own, to be killed from outside; and who of it is still alive."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

HOME = Path(__file__).parent.parent
TIMEOUT_S = 60.0


class Process(NamedTuple):
    """One line of /proc."""

    pid: int
    parent: int
    group: int
    state: str

    @property
    def command(self) -> bytes:
        """Its command line; empty where it is gone."""
        try:
            return Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return b""


@dataclass
class Run:
    """A `shardtool` command that runs in its own process group."""

    process: subprocess.Popen[bytes]

    @property
    def group(self) -> int:
        """Its process group."""
        return self.process.pid

    @property
    def is_over(self) -> bool:
        """Whether the command has ended."""
        return self.process.poll() is not None

    def alive(self) -> list[Process]:
        """Processes of the group that still run."""
        return [process for process in processes() if process.group == self.group and process.state not in "ZX"]

    def workers(self) -> list[Process]:
        """Worker processes: children of the fork server."""
        servers = {process.pid for process in self.alive() if b"forkserver" in process.command}
        return [process for process in self.alive() if process.parent in servers]

    def signal(self, number: int, *, group: bool = True) -> None:
        """Send a signal to the whole group, as a terminal does, or to the command alone."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.group, number)

    def end(self) -> tuple[int, str]:
        """(exit code, stderr) once the command and all it started are gone."""
        _, err = self.process.communicate(timeout=TIMEOUT_S)
        until(lambda: not self.alive())
        return self.process.returncode, err.decode()


def start(*args: str | Path) -> Run:
    """Start `shardtool ARGS`."""
    return Run(
        subprocess.Popen(
            [sys.executable, "-m", "shardtool", *(os.fspath(arg) for arg in args)],
            env={**os.environ, "PYTHONPATH": os.fspath(HOME)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    )


def error_of(err: str) -> dict[str, Any]:
    """The error document of a run with --json."""
    document: dict[str, Any] = json.loads(err.splitlines()[-1])
    return document


def until(is_so: Callable[[], object]) -> None:
    """Wait for an event in another process."""
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.0005)


def processes() -> list[Process]:
    """All processes that are visible."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found.append(Process(int(name), int(fields[1]), int(fields[2]), fields[0]))
    return found
