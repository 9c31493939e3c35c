"""The command class: options in groups, three examples, exit codes last; --config and the session behind it."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any

import click

from shardtool.cli.output import Session
from shardtool.cli.types import WordsType
from shardtool.cli.usage import nearest
from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SECTIONS = ("Source", "Object storage", "Grouping", "Shards", "Tokens", "Order", "Running", "Output", "Options")

EXIT_CODES = {
    0: "done",
    1: "unexpected failure: a bug in shardtool",
    2: "usage: a bad option, or options that contradict the input",
    3: "incomplete: samples or shards failed or were skipped, and are listed",
    4: "damage found",
    5: "input problem: not found, denied, empty, duplicates, bad keys, changed",
    6: "destination problem: not empty, another plan, not ours",
    7: "no space left",
    8: "remote trouble after retries",
    130: "interrupted (143: terminated); the same command goes on from there",
}
ALWAYS = (0, 1, 2, 130)


class GroupedOption(click.Option):
    """An option that knows the section of --help it belongs to."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class Command(click.Command):
    """A command whose --help reads: one sentence, examples, options in groups, exit codes.

    Args:
        examples: three command lines.
        exit_codes: those this command can end with, beside 0, 1, 2 and 130.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), exit_codes: Iterable[int] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self.exit_codes = tuple(sorted({*ALWAYS, *exit_codes}))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, unless an argument is empty: then it means the folder one stands in, which nobody said."""
        for param in self.params:
            value = ctx.params.get(param.name or "")
            if isinstance(param, click.Argument) and (value == "" or (isinstance(value, tuple) and "" in value)):
                name = param.make_metavar(ctx).strip("[].")
                raise UsageProblem(f"an empty argument for {name}", hint="is it a shell variable that is not set?")
        return super().invoke(ctx)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The sentence, then the examples."""
        super().format_help_text(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"  {line}\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options, section by section."""
        rows: dict[str, list[tuple[str, str]]] = {name: [] for name in SECTIONS}
        for param in self.get_params(ctx):
            record = None if isinstance(param, click.Argument) else param.get_help_record(ctx)
            if record is not None:
                default = "Output" if param is self.get_help_option(ctx) else "Options"
                rows[getattr(param, "section", default)].append(record)
        for name in SECTIONS:
            if rows[name]:
                with formatter.section(name):
                    formatter.write_dl(rows[name])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Where else options can be set, and how the command can end."""
        super().format_epilog(ctx, formatter)
        name = (ctx.info_name or "").upper().replace("-", "_")
        formatter.write_paragraph()
        formatter.write_text(f"An option may also be set by SHARDTOOL_{name}_OPTION, or in the file of --config.")
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), EXIT_CODES[code]) for code in self.exit_codes])


def remember(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Option callback: --json and --debug, wherever they were set, decide how errors look."""
    session = ctx.find_root().ensure_object(Session)
    if param.name == "json":
        session.as_json = session.as_json or bool(value)
    else:
        session.debug = session.debug or bool(value)
    return value


def read_config(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """Option callback of --config: what the file sets becomes this command's defaults.

    Options stand at the top, or in a table with the command's name, which wins; keys may have `-` or `_`.
    Tables of other commands are left alone.
    """
    if not path or ctx.resilient_parsing:
        return
    document = _load(path)
    root = ctx.find_root()
    commands = root.command.list_commands(root) if isinstance(root.command, click.Group) else []
    options = _settable(ctx)
    flat = {key: value for key, value in document.items() if not isinstance(value, dict)}
    for key, value in document.items():
        if isinstance(value, dict) and key not in commands and key != ctx.info_name:
            raise _unknown(key, path, [*commands, *options])
    own = document.get(ctx.info_name or "", {})
    defaults = dict(ctx.default_map or {})
    for key, value in [*flat.items(), *(own.items() if isinstance(own, dict) else ())]:
        option = options.get(key.replace("_", "-"))
        if option is None or option.name is None:
            raise _unknown(key, path, options)
        if value is not None:
            defaults[option.name] = _checked(key, value, option, path)
    ctx.default_map = defaults


def _load(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            data = file.read()
        document = json.loads(data) if path.endswith(".json") else tomllib.loads(data.decode())
    except OSError as error:
        raise UsageProblem(f"--config {path}: {error.strerror}", hint="give a TOML or JSON file") from None
    except ValueError as error:
        raise UsageProblem(f"--config {path}: {error}", hint='write it like: shard-size = "256MiB"') from None
    if not isinstance(document, dict):
        raise UsageProblem(f"--config {path}: not a table of options", hint='write it like: {"shard-size": "256MiB"}')
    return document


def _settable(ctx: click.Context) -> dict[str, click.Option]:
    options = [param for param in ctx.command.params if isinstance(param, click.Option) and param.name != "config"]
    return {opt.removeprefix("--"): option for option in options for opt in option.opts if opt.startswith("--")}


def _unknown(key: str, path: str, known: Iterable[str]) -> UsageProblem:
    found = nearest(key.replace("_", "-"), known)
    hint = f"did you mean {found}?" if found else "use the long names of options, without the dashes"
    return UsageProblem(f"--config {path}: no such option: {key}", hint=hint, where={"path": path, "option": key})


def _checked(key: str, value: Any, option: click.Option, path: str) -> Any:
    if option.is_flag != isinstance(value, bool):
        wanted = "true or false" if option.is_flag else "a value"
        raise UsageProblem(
            f"--config {path}: {key} = {json.dumps(value, default=str)}, expected {wanted}", hint=f"see --help: --{key}"
        )
    if option.multiple:
        return value if isinstance(value, list) else [value]
    if isinstance(value, list) and not isinstance(option.type, WordsType):
        raise UsageProblem(f"--config {path}: {key} takes one value, not a list", hint=f"see --help: --{key}")
    return value
