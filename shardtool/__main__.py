"""Entry point of `shardtool` and `python -m shardtool`: runs a command and turns what it raises into an exit code.

Errors raised on purpose carry their code; anything else is a bug of ours, exits 1 and shows its traceback.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import threading
import traceback
from typing import TYPE_CHECKING, TextIO

import click

from shardtool.cli import cli
from shardtool.cli.output import Session, mute, show_error
from shardtool.cli.usage import usage_problem
from shardtool.errors import AccessDenied, Interrupted, NoSpace, ShardtoolError, SourceError, SourceNotFound

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

SIGTERM_CODE = 128 + signal.SIGTERM
FIRST_FREE_FD = 3  # after stdin, stdout and stderr
COMPLETE_VARIABLE = "_SHARDTOOL_COMPLETE"


class Terminated(KeyboardInterrupt):
    """SIGTERM, so that whoever cleans up after Ctrl-C cleans up after this too."""


def main() -> None:
    """Run the command line of this process and exit."""
    _open_standard_streams()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads spin for 0.1 s, and have nothing to do
    sys.exit(run(sys.argv[1:]))


def _open_standard_streams() -> None:
    """Streams that were closed lead nowhere: else the next file that is opened would be one of them."""
    while (fd := os.open(os.devnull, os.O_RDWR)) < FIRST_FREE_FD:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - they are there until the end
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def run(args: Sequence[str]) -> int:
    """Exit code of the command line `args`, with all errors reported on stderr."""
    session = Session.of(list(args))
    try:
        _obey_sigterm(session)
        code = _invoke(list(args), session)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        return _report(error, session)
    return code


def _invoke(args: list[str], session: Session) -> int:
    if instruction := os.environ.get(COMPLETE_VARIABLE):
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "shardtool", COMPLETE_VARIABLE, instruction)
    with cli.make_context("shardtool", args, obj=session) as ctx:
        cli.invoke(ctx)
    return 0


def _report(error: BaseException, session: Session) -> int:
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if _reader_has_gone(error):
        return 0
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and not session.as_json:
        click.echo(error.ctx.get_help(), err=True)
        return error.exit_code
    problem = _as_problem(error, session)
    if problem is None:
        return _report_bug(error, session)
    if session.debug:
        traceback.print_exception(error)
    code = session.interrupt_code if isinstance(problem, Interrupted) else problem.exit_code
    show_error(problem, session, code)
    return code


def _as_problem(error: BaseException, session: Session) -> ShardtoolError | None:
    """What a user can act on, or None for a bug of ours."""
    if isinstance(error, ShardtoolError):
        return error
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return usage_problem(click.UsageError("a command is missing", error.ctx))
    if isinstance(error, click.ClickException):
        return usage_problem(error)
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        word = "interrupted" if session.interrupt_code == Interrupted.exit_code else "terminated"
        return Interrupted(word, hint="what was finished is kept; the same command goes on from there")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = {"path": os.fsdecode(error.filename)} if isinstance(error.filename, (str, bytes)) else {}
        place = f" for {where['path']}" if where else ""
        return NoSpace(
            f"{error.strerror}{place}", hint="free bytes or inodes there, then repeat the command", where=where
        )
    if isinstance(error, OSError) and error.errno and isinstance(error.filename, (str, bytes)):
        return _of_system(error, os.fsdecode(error.filename))
    return None


def _of_system(error: OSError, path: str) -> SourceError:
    """What the system says of a path is no bug: permissions, links in a circle, a disk that fails."""
    kind: type[SourceError] = SourceError
    hint = "check the path and its storage, then repeat the command"
    if isinstance(error, PermissionError):
        kind, hint = AccessDenied, "chmod u+r it (folders: u+rx), or run as its owner"
    elif isinstance(error, FileNotFoundError):
        kind, hint = SourceNotFound, "it may have been removed meanwhile: repeat the command when nothing writes there"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        hint = "let a process open more files: ulimit -n 4096"
    return kind(f"{path} cannot be used: {error.strerror}", hint=hint, where={"path": path})


def _report_bug(error: BaseException, session: Session) -> int:
    traceback.print_exception(error)
    problem = ShardtoolError(
        f"unexpected {type(error).__name__}: {error}",
        hint="this is a bug in shardtool; please report it with the traceback above",
    )
    show_error(problem, session, ShardtoolError.exit_code, code=type(error).__name__)
    return ShardtoolError.exit_code


def _obey_sigterm(session: Session) -> None:
    def stop(signum: int, frame: FrameType | None) -> None:
        session.interrupt_code = SIGTERM_CODE
        raise Terminated

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)


def _reader_has_gone(error: BaseException) -> bool:
    """Whether `error` is a broken pipe of stdout or stderr, and not of some worker; quietens the broken one."""
    if not isinstance(error, BrokenPipeError):
        return False
    broken = [stream for stream in (sys.stdout, sys.stderr) if _is_broken(stream)]
    for stream in broken:
        mute(stream)
    return bool(broken)


def _is_broken(stream: TextIO) -> bool:
    poll = select.poll()
    try:
        poll.register(stream.fileno(), 0)
    except (OSError, ValueError):
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


if __name__ == "__main__":
    main()
