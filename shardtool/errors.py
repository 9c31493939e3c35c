"""Every error a user can meet; the class decides the exit code.

    ShardtoolError                 1
      UsageProblem                 2
      Incomplete                   3
        StageTimeout               3   also TimeoutError
      DamageFound                  4
      SourceError                  5
        SourceNotFound             5   also FileNotFoundError
        AccessDenied               5   also PermissionError
        SourceChanged              5
      GroupError                   5
        DuplicateKey               5
        MissingPart                5
        BadKey                     5
      PlanError                    2
        SampleTooLarge             5
        PlanMismatch               6
      FormatError                  4
        CorruptShard               4
        UnknownFormat              2
      DestinationError             6
        DestinationExists          6   also FileExistsError
        NoSpace                    7   also OSError
      RemoteError                  8
      ExecutorError                1
        WorkerLost                 1
      Interrupted                130

A message says what and where, then what was expected and found; the hint says what to type.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "AccessDenied",
    "BadKey",
    "CorruptShard",
    "DamageFound",
    "DestinationError",
    "DestinationExists",
    "DuplicateKey",
    "ExecutorError",
    "FormatError",
    "GroupError",
    "Incomplete",
    "Interrupted",
    "MissingPart",
    "NoSpace",
    "PlanError",
    "PlanMismatch",
    "RemoteError",
    "SampleTooLarge",
    "ShardtoolError",
    "SourceChanged",
    "SourceError",
    "SourceNotFound",
    "StageTimeout",
    "UnknownFormat",
    "UsageProblem",
    "WorkerLost",
]


class ShardtoolError(Exception):
    """Root of all errors raised on purpose.

    Args:
        message: what failed, where, what was expected and what was found.
        hint: what to do about it, as a command or an option where there is one.
        where: place of the trouble: any of `path`, `url`, `shard`, `key`, `offset`.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", where: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = dict(where or {})

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors travel from worker processes to the parent whole."""
        return _rebuild, (type(self), self.message, self.hint, self.where)

    def __str__(self) -> str:
        return self.message


def _rebuild(kind: type[ShardtoolError], message: str, hint: str, where: dict[str, Any]) -> ShardtoolError:
    return kind(message, hint=hint, where=where)


class UsageProblem(ShardtoolError):
    """A bad option, or options that contradict one another or the input."""

    exit_code = 2


class Incomplete(ShardtoolError):
    """The run ended, but samples or shards failed or were skipped by a policy."""

    exit_code = 3


class StageTimeout(Incomplete, TimeoutError):
    """A shard that is being staged was not there in time."""


class DamageFound(ShardtoolError):
    """`verify` found that the data set is not what its manifest says."""

    exit_code = 4


class SourceError(ShardtoolError):
    """The input cannot be read as it is."""

    exit_code = 5


class SourceNotFound(SourceError, FileNotFoundError):
    """A path or URL that does not exist."""


class AccessDenied(SourceError, PermissionError):
    """A path or URL that exists and may not be read."""


class SourceChanged(SourceError):
    """A file or object is no longer what the scan saw."""


class GroupError(ShardtoolError):
    """Entries cannot be grouped to samples without loss."""

    exit_code = 5


class DuplicateKey(GroupError):
    """Two samples, or two parts of one sample, have the same name."""


class MissingPart(GroupError):
    """A sample lacks a part that `--require` names, or a row of the joined table."""


class BadKey(GroupError):
    """A key or part name that readers would cut, merge or drop."""


class PlanError(ShardtoolError):
    """No plan satisfies the options."""

    exit_code = 2


class SampleTooLarge(PlanError):
    """One sample alone is larger than a shard may be, or than the format can hold."""

    exit_code = 5


class PlanMismatch(PlanError):
    """The output was made, or begun, from another plan."""

    exit_code = 6


class FormatError(ShardtoolError):
    """Shard bytes that do not follow their format."""

    exit_code = 4


class CorruptShard(FormatError):
    """A shard that is cut short, altered, or disagrees with its index."""


class UnknownFormat(FormatError):
    """A file that no format recognises, or a format name that does not exist."""

    exit_code = 2


class DestinationError(ShardtoolError):
    """The output cannot be written where it was asked for."""

    exit_code = 6


class DestinationExists(DestinationError, FileExistsError):
    """The output holds something that this run must not touch."""


class NoSpace(DestinationError, OSError):
    """The output has no bytes or inodes left."""

    exit_code = 7


class RemoteError(ShardtoolError):
    """A remote store kept failing after all retries."""

    exit_code = 8


class ExecutorError(ShardtoolError):
    """The engine that runs the packing failed."""


class WorkerLost(ExecutorError):
    """A worker process died more often than it may."""


class Interrupted(ShardtoolError):
    """Stopped by a signal; what was finished stays, and a rerun goes on."""

    exit_code = 130
