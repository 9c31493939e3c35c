"""The command line: a table of commands, each loaded only when it runs.

`shardtool --help` imports click and this module, no command and no library that moves data.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, NamedTuple

import click

from shardtool import __version__


class Entry(NamedTuple):
    """One command: where it lives and how `shardtool --help` lists it."""

    module: str
    section: str
    help: str


COMMANDS: dict[str, Entry] = {
    "scan": Entry("scan", "Pack", "what is there: files, samples, parts, sizes, junk, problems"),
    "plan": Entry("plan", "Pack", "decide shards, sizes and order; pack --dry-run shows the same"),
    "pack": Entry("pack", "Pack", "many small files -> few big shuffled, indexed shards"),
    "index": Entry("index", "Pack", "publish the manifest; rebuild a lost index"),
    "convert": Entry("convert", "Pack", "data sets, archives, tables -> other shards"),
    "merge": Entry("merge", "Pack", "many .bin/.idx pairs -> one, or pairs of a wanted size"),
    "verify": Entry("verify", "Check", "is it whole, and with --deep, is it undamaged"),
    "status": Entry("status", "Check", "how far a run is, how fast, and what failed"),
    "stats": Entry("stats", "Check", "shape, fill, overhead, parts, labels, shuffle quality"),
    "diff": Entry("diff", "Check", "what differs between two data sets"),
    "ls": Entry("ls", "Look", "list shards or samples"),
    "inspect": Entry("inspect", "Look", "one shard or one sample in full"),
    "cat": Entry("cat", "Look", "one part of a sample to stdout"),
    "extract": Entry("extract", "Look", "unpack samples to files"),
    "assign": Entry("assign", "Serve", "which rank reads what, exactly once"),
    "where": Entry("where", "Serve", "which epoch, step and rank reads a sample"),
    "stage": Entry("stage", "Serve", "bring a node's share to its local disk"),
    "completion": Entry("completion", "Shell", "print the completion script of a shell"),
}


class LazyGroup(click.Group):
    """A group that reads its commands from `COMMANDS` and imports the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table; those not built yet are left out."""
        return [name for name, entry in COMMANDS.items() if _is_built(entry)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        entry = COMMANDS.get(cmd_name)
        if entry is None or not _is_built(entry):
            return None
        command: click.Command = importlib.import_module(f"shardtool.cli.{entry.module}").command
        command.name = cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Commands by section, from the table alone."""
        names = self.list_commands(ctx)
        for section in dict.fromkeys(COMMANDS[name].section for name in names):
            rows = [(name, COMMANDS[name].help) for name in names if COMMANDS[name].section == section]
            with formatter.section(section):
                formatter.write_dl([(name.ljust(10), text) for name, text in rows])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Command names from the table, and the group's own options."""
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found: list[Any] = [CompletionItem(name, help=COMMANDS[name].help) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)


def _is_built(entry: Entry) -> bool:
    return importlib.util.find_spec(f"shardtool.cli.{entry.module}") is not None


@click.group(
    cls=LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "SHARDTOOL",
        "max_content_width": 80,
    },
    epilog="shardtool COMMAND --help shows examples, options and exit codes.",
)
@click.version_option(__version__, prog_name="shardtool", message="%(prog)s %(version)s", allow_from_autoenv=False)
def cli() -> None:
    """Many small files in, few big shuffled and indexed shards out.

    \b
      shardtool pack photos/ out/     pack a folder, at most 256 MiB a shard
      shardtool verify out/ --deep    prove that nothing was lost
      shardtool stats out/            see what is inside
    """
