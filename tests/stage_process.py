"""Stage in a process of its own, to be killed: `python stage_process.py SOURCE TARGET LOG`.

Every read of the source is a line in LOG before it happens, so that whoever killed us can count them.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from shardtool.staging.background import Quiet
from shardtool.staging.request import StageRequest
from shardtool.staging.stage import stage
from shardtool.storage import open_place

if TYPE_CHECKING:
    from shardtool.storage.base import Stretch

JOBS = 3


class LoggingPlace:
    """A source that logs what is read from it."""

    is_local = False

    def __init__(self, folder: str, log: str) -> None:
        self.inner, self.url = open_place(folder), folder
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def read_through(self, path: str, offset: int, *rest: Any, **options: Any) -> Stretch:
        os.write(self._log, f"{path} {offset}\n".encode())
        return self.inner.read_through(path, offset, *rest, **options)


def main(source: str, target: str, log: str) -> None:
    request = StageRequest(source, (target,), select="all", jobs=JOBS)
    stage(LoggingPlace(source, log), request, Quiet())


if __name__ == "__main__":
    main(*sys.argv[1:])
