"""Everything a command says goes through here: the result to stdout, all else to stderr.

`Output` is made by the decorator `output_options` and handed to the command as `output`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, TextIO

import click

from shardtool.cli.progress import Bar, Events, Lines, Progress, line_interval_s
from shardtool.report.text import escape_key, printable, to_ascii, width, without_surrogates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.errors import ShardtoolError

LINE_COLUMNS = 80
_UNDECODED = re.compile("[\udc80-\udcff]")


@dataclass
class Session:
    """What must be known to report an error, even before options are parsed."""

    as_json: bool = False
    debug: bool = False
    interrupt_code: int = 130

    @classmethod
    def of(cls, args: list[str]) -> Session:
        """Seen on the command line alone; the environment and --config add to it later."""
        words = args[: args.index("--")] if "--" in args else args
        return cls(as_json="--json" in words, debug="--debug" in words)


@dataclass
class Output:
    """The voice of one command.

    Args:
        as_json: `--json`: the result is one JSON document, steps and hints are silent.
        quiet: `-q`: only results, warnings and errors.
        verbose: how many `-v`.
        debug: tracebacks with errors.
        progress_mode: one of auto, bar, lines, json, none.
    """

    as_json: bool = False
    quiet: bool = False
    verbose: int = 0
    debug: bool = False
    progress_mode: str = "auto"
    _bar: Bar | None = field(default=None, repr=False)

    @property
    def unicode(self) -> bool:
        """Whether stdout can carry block glyphs."""
        return can_encode("▁█·", sys.stdout)

    @property
    def is_silent(self) -> bool:
        """Whether steps and hints are left out."""
        return self.as_json or self.quiet

    def result(self, document: Mapping[str, Any], text: str, *, brief: str | None = None) -> None:
        """Write the result to stdout: `document` with --json, else `text` (`brief` with -q, where given).

        A reader that has gone does not change what the command found, so a broken pipe is no error here.
        """
        shown = text if brief is None or not self.quiet else brief
        if self.as_json:
            shown = dump_json(document, indent=2 if is_terminal(sys.stdout) else None)
        if not shown:
            return
        try:
            emit(shown, sys.stdout)
        except BrokenPipeError:
            mute(sys.stdout)

    def raw(self, data: bytes | memoryview) -> None:
        """Write bytes to stdout as they are; raises BrokenPipeError, which ends the command quietly."""
        stream = sys.stdout.buffer
        stream.write(data)
        stream.flush()

    def step(self, verb: str, text: str) -> None:
        """`plan   7,034 samples -> 8 shards`: one line a step, more lines hang under the first."""
        if not self.is_silent:
            self._say(labelled(verb, printable(text)))

    def detail(self, text: str, level: int = 1) -> None:
        """More about the step, shown from `level` times -v on."""
        if self.verbose >= level and not self.as_json:
            self._say(labelled("", printable(text)))

    def warn(self, text: str) -> None:
        """`! ...`: what it costs and what to type; never silenced."""
        body = wrapped(printable(text), 2).replace("\n", "\n  ")
        self._say(click.style("!", fg="yellow") + " " + body)

    def hint(self, text: str) -> None:
        """`next   ...`: what to do after this, once."""
        if not self.is_silent:
            self._say(labelled(click.style("next", dim=True), printable(text)))

    def progress(self, total_shards: int, total_bytes: int, total_samples: int, verb: str = "pack") -> Progress:
        """A context manager whose `.advance(shards, nbytes, samples)` moves the bar, or what stands for it."""
        progress = Progress(verb, total_shards, total_bytes, total_samples)
        mode = self._progress_mode()
        if mode == "bar":
            self._bar = Bar(progress, ascii_only=not can_encode("█▏", sys.stderr))
            progress.display = self._bar
        elif mode == "lines":
            progress.display = Lines(progress, self._say, line_interval_s())
        elif mode == "json":
            progress.display = Events(progress, self._say)
        return progress

    def _progress_mode(self) -> str:
        if self.progress_mode != "auto":
            return self.progress_mode
        if self.is_silent:
            return "none"
        return "bar" if is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb" else "lines"

    def _say(self, text: str) -> None:
        if self._bar and not self._bar.bar.disable:
            self._bar.bar.clear()
        tell(text)


def show_error(problem: ShardtoolError, session: Session, exit_code: int, code: str = "") -> None:
    """Write the three parts of an error to stderr, or with --json one line, the last there."""
    if session.as_json:
        document = {
            "schema": "shardtool/error/1",
            "code": code or type(problem).__name__,
            "exit_code": exit_code,
            "message": problem.message,
            "hint": problem.hint,
            "where": problem.where,
        }
        tell(dump_json(document))
        return
    lines = [labelled(click.style("error", fg="red", bold=True), wrapped(printable(problem.message), 7))]
    if problem.hint:
        lines.append(labelled(click.style("hint", bold=True), printable(problem.hint)))
    tell(_with_exit_code("\n".join(lines), exit_code))


def tell(text: str) -> None:
    """Write lines to stderr. That nobody reads it, or that its disk is full, ends no work and changes no exit code."""
    try:
        emit(text, sys.stderr)
    except OSError:
        mute(sys.stderr)


def labelled(verb: str, text: str) -> str:
    """`text` after a verb padded to seven columns; its further lines start below its first."""
    pad = " " * max(7 - width(click.unstyle(verb)), 1)
    return verb + pad + text.replace("\n", "\n" + " " * 7)


def wrapped(text: str, indent: int) -> str:
    """`text` broken between words to fit a terminal; as it is where stderr is a file, so that logs can be searched."""
    if not is_terminal(sys.stderr):
        return text
    columns = max(shutil.get_terminal_size().columns - indent, 40)
    fold = textwrap.TextWrapper(columns, break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
    return "\n".join(fold.fill(line) if len(line) > columns else line for line in text.split("\n"))


def dump_json(document: Mapping[str, Any], indent: int | None = None) -> str:
    """`document` as JSON text that any UTF-8 reader takes; numpy scalars and arrays become plain numbers."""
    text = json.dumps(document, ensure_ascii=False, indent=indent, default=_plain)
    # Undecodable bytes of a path are lone surrogates here; in JSON their escape needs a second backslash.
    return _UNDECODED.sub(lambda match: f"\\\\x{ord(match.group()) - 0xDC00:02x}", text)


def emit(text: str, stream: TextIO) -> None:
    """Write lines to a stream, in what it can encode, with colour where it is wanted."""
    text = without_surrogates(text)
    if not can_encode(text, stream):
        text = to_ascii(text)
    click.echo(text, file=stream, color=wants_color(stream))


def can_encode(text: str, stream: TextIO) -> bool:
    """Whether `stream` can carry `text`."""
    try:
        text.encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def wants_color(stream: IO[str]) -> bool:
    """NO_COLOR, then FORCE_COLOR, then a terminal that is not dumb."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def is_terminal(stream: IO[str]) -> bool:
    """Whether `stream` is a terminal, also when it is closed."""
    try:
        return stream.isatty()
    except ValueError:
        return False


def mute(stream: TextIO) -> None:
    """Send the rest of a stream nowhere, so that closing it at exit cannot fail."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass


def _with_exit_code(text: str, exit_code: int) -> str:
    tail = f"(exit {exit_code})"
    room = LINE_COLUMNS - width(click.unstyle(text.rsplit("\n", 1)[-1])) - len(tail)
    return text + " " * max(room, 3) + tail


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return escape_key(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return os.fspath(value)
