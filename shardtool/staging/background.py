"""A copy that goes on after its launcher was told to go on: the same stage in a process of its own session.

    start(request) -> child that reads the request from stdin, copies, and ends with its result or error as JSON

The command waits for the first shards of each rank, or for the child to fail. What a child says goes to
`.stage/background.log`, an error as a line of JSON with its process id.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from shardtool import errors
from shardtool.errors import ShardtoolError
from shardtool.staging.election import Watch, pauses
from shardtool.staging.errands import errands_of
from shardtool.staging.folder import make_folders
from shardtool.staging.request import StageResult, decode_request, encode_request
from shardtool.staging.stage import check_foreseeable, introduce, stage
from shardtool.storage.local import write_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.staging.errands import Errand
    from shardtool.staging.request import StageRequest
    from shardtool.staging.stage import Moving, Say
    from shardtool.storage.base import Place


def stage_ahead(place: Place, request: StageRequest, say: Say) -> StageResult:
    """Return once the first `ready_after` shards of each rank are there; the rest comes in the background.

    Raises:
        ShardtoolError: whatever ended the copy in the background before that.
    """
    began = time.monotonic()
    errands = errands_of(place, request)
    for errand in errands:
        check_foreseeable(errand, request)
        make_folders(errand.target)
    result = StageResult(tuple(errand.target.path for errand in errands), errands[0].manifest.dataset_id)
    result.total_shards, result.is_complete = len(errands[0].manifest.shards), False
    introduce(place, request, errands, say)
    child = start(request, errands[0].target.log)
    wanted = [record for errand in errands for record in errand.first(request.ready_after)]
    num_bytes = sum(record.num_bytes for record in wanted)
    with say.progress(len(wanted), num_bytes, sum(record.num_samples for record in wanted), verb="copy") as progress:
        _follow(child, errands, request, progress)
    result.num_shards, result.num_bytes = len(wanted), num_bytes
    result.seconds = time.monotonic() - began
    return result


def _follow(child: subprocess.Popen[bytes], errands: list[Errand], request: StageRequest, progress: Moving) -> None:
    watches = [Watch(errand.target, errand.first(request.ready_after), progress.advance) for errand in errands]
    for pause in pauses():
        has_ended = child.poll() is not None
        if sum(watch.is_done() for watch in watches) == len(watches):
            child.returncode = child.returncode or 0  # it outlives us on purpose, so that nobody is warned of it
            return
        if has_ended:
            raise _error_of(child, errands[0].target.log)
        pause()


def start(request: StageRequest, log: str) -> subprocess.Popen[bytes]:
    """The child, detached from the terminal and from the launcher's process group."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    with write_errors(log):
        file = open(log, "ab")  # noqa: SIM115 - every rank may start one: they share the log
    with file:
        child = subprocess.Popen(
            [sys.executable, "-m", "shardtool.staging.background"],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
    assert child.stdin is not None
    with child.stdin as stream, contextlib.suppress(BrokenPipeError):
        stream.write(encode_request(request).encode())
    return child


def _error_of(child: subprocess.Popen[bytes], log: str) -> ShardtoolError:
    """What the child ended with."""
    with open(log, "rb") as file:
        lines = file.read().decode("utf-8", "replace").splitlines()
    for line in reversed(lines):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            document = json.loads(line)
            if document["pid"] == child.pid:
                kind = getattr(errors, document["code"], ShardtoolError)
                error: ShardtoolError = kind(document["message"], hint=document["hint"], where=document["where"])
                return error
    return ShardtoolError(
        f"the copy in the background ended with {child.returncode}",
        hint=f"what it said last is in {log}; the same command goes on from there",
        where={"path": log},
    )


class Quiet:
    """A copy that tells nobody how far it is: who wants to know looks at the folder."""

    def step(self, verb: str, text: str) -> None:
        """Nothing."""

    def warn(self, text: str) -> None:
        """Nothing: the command that started it has said so."""

    @contextlib.contextmanager
    def progress(self, total_shards: int, total_bytes: int, total_samples: int, verb: str = "copy") -> Iterator[Quiet]:
        """Itself."""
        yield self

    def advance(self, shards: int = 0, nbytes: int = 0, samples: int = 0) -> None:
        """Nothing."""


def main() -> int:
    """The child: the exit code of the copy."""
    from shardtool.storage import open_place

    try:
        request = decode_request(sys.stdin.read())
        result = stage(open_place(request.source), request, Quiet(), stays=True)
    except ShardtoolError as error:
        print(json.dumps(_document(error)))  # noqa: T201
        return error.exit_code
    print(json.dumps(result.document()))  # noqa: T201
    return 0


def _document(error: ShardtoolError) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "code": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        "where": {name: str(value) for name, value in error.where.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
