"""What a mistyped command line meant: click's usage errors as `UsageProblem`, with what to type instead."""

from __future__ import annotations

import difflib
import os
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterable

# What people type who know other tools -> what it is called here. Shown only where the command has that option.
OPTION_SLIPS = {
    "--num-shards": "--shards",
    "--nshards": "--shards",
    "--num-workers": "--workers",
    "--jobs": "--workers",
    "--processes": "--workers",
    "--threads": "--workers",
    "--size": "--shard-size",
    "--maxsize": "--shard-size",
    "--max-size": "--shard-size",
    "--size-limit": "--shard-size",
    "--max-shard-size": "--shard-size",
    "--maxcount": "--samples-per-shard",
    "--max-count": "--samples-per-shard",
    "--num-samples": "--samples-per-shard",
    "--force": "--overwrite",
    "--yes": "--overwrite",
    "--no-shuffle": "--shuffle none",
    "--dry": "--dry-run",
    "--check": "--deep",
    "--full": "--deep",
    "--follow": "--links follow",
    "--labels": "--label-from",
    "--splits": "--split",
    "--group": "--group-by",
    "--nnodes": "--num-nodes",
    "--nproc-per-node": "--local-world-size",
    "--concurrency": "--jobs",
    "--limit-rate": "--bwlimit",
    "--cache-limit": "--budget",
    "--filter": "--include",
    "--ignore": "--exclude",
}
COMMAND_SLIPS = {
    "create": "pack",
    "make": "pack",
    "build": "pack",
    "write": "pack",
    "shard": "pack",
    "tar": "pack",
    "check": "verify",
    "validate": "verify",
    "list": "ls",
    "info": "stats",
    "show": "inspect",
    "read": "cat",
    "unpack": "extract",
    "download": "stage",
    "fetch": "stage",
    "sync": "stage",
    "cp": "stage",
    "help": "--help",
    "version": "--version",
}


class BadValue(click.BadParameter):
    """A value that an option cannot take, and what to type instead."""

    def __init__(
        self, message: str, *, hint: str = "", param: click.Parameter | None = None, ctx: click.Context | None = None
    ) -> None:
        super().__init__(message, ctx=ctx, param=param)
        self.hint = hint


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The known word most like `word`, or an empty string; `cutoff` 1.0 asks for equality."""
    words = list(known)
    found = difflib.get_close_matches(word, words, 1, cutoff)
    if not found:
        folded = {known_word.casefold(): known_word for known_word in words}
        found = [folded[name] for name in difflib.get_close_matches(word.casefold(), folded, 1, cutoff)]
    return found[0] if found else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean X?`, or an empty string when nothing is near."""
    found = nearest(word, known)
    return f"did you mean {found}?" if found else ""


def usage_problem(error: click.ClickException) -> UsageProblem:
    """The same trouble in our three parts: message, hint, where."""
    ctx = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchCommand):
        return UsageProblem(f"no such command: {error.command_name}", hint=_command_hint(error, ctx))
    if isinstance(error, click.NoSuchOption):
        name = error.option_name
        return UsageProblem(f"no such option: {name}", hint=_option_hint(name, ctx), where={"option": name})
    if isinstance(error, click.MissingParameter):
        return UsageProblem(f"{_param_name(error)} is missing", hint=_help_hint(ctx))
    if isinstance(error, click.BadParameter):
        return _bad_value(error, ctx)
    return UsageProblem(_tidy(error.format_message()), hint=_help_hint(ctx))


def _bad_value(error: click.BadParameter, ctx: click.Context | None) -> UsageProblem:
    name = _param_name(error)
    message = f"{name}: {_tidy(error.message)}{_origin(error, ctx)}"
    return UsageProblem(message, hint=getattr(error, "hint", "") or _help_hint(ctx), where={"option": name})


def _origin(error: click.BadParameter, ctx: click.Context | None) -> str:
    if ctx is None or error.param is None or error.param.name is None:
        return ""
    source = ctx.get_parameter_source(error.param.name)
    if source is ParameterSource.ENVIRONMENT:
        return f" (from {ctx.auto_envvar_prefix}_{error.param.name.upper()})"
    return " (from the --config file)" if source is ParameterSource.DEFAULT_MAP else ""


def _param_name(error: click.BadParameter) -> str:
    param = error.param
    if param is None:
        return str(error.param_hint or "value")
    return max(param.opts, key=len) if isinstance(param, click.Option) else param.human_readable_name


def _option_hint(name: str, ctx: click.Context | None) -> str:
    known = [opt for param in ctx.command.get_params(ctx) for opt in param.opts] if ctx else []
    slip = OPTION_SLIPS.get(name, "")
    if slip.split(" ")[0] in known:
        return f"it is called {slip} here"
    if ctx is not None and ctx.parent is None and not nearest(name, known, 0.75):
        return "options go behind the command: shardtool COMMAND [OPTIONS]"
    return did_you_mean(name, [opt for opt in known if opt.startswith("--")]) or _help_hint(ctx)


def _command_hint(error: click.NoSuchCommand, ctx: click.Context | None) -> str:
    word = error.command_name
    known = ctx.command.list_commands(ctx) if ctx and isinstance(ctx.command, click.Group) else []
    slip = COMMAND_SLIPS.get(word, "")
    if slip in known or slip.startswith("--"):
        return f"did you mean shardtool {slip}?"
    if "/" in word or os.path.isdir(word):
        return f"a command comes first: shardtool pack {word} OUT"
    found = nearest(word, known)
    return f"did you mean shardtool {found}?" if found else "shardtool --help lists the commands"


def _help_hint(ctx: click.Context | None) -> str:
    return f"{ctx.command_path if ctx else 'shardtool'} --help shows examples and all options"


def _tidy(text: Any) -> str:
    plain = str(text).strip().rstrip(".")
    return plain[:1].lower() + plain[1:]
