"""docs/reference/cli.md from the help of every command, so that the page cannot drift from the program."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "cli.md"
INTRO = """# Command line

Made by `scripts/docs` from `--help`; edit the texts in `shardtool/cli/`, not here.
"""


def page() -> str:
    """The whole page."""
    from shardtool.cli import cli

    root = click.Context(cli, info_name="shardtool", **cli.context_settings)
    blocks = [INTRO, block("shardtool", cli.get_help(root))]
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        assert command is not None, name
        context = click.Context(command, info_name=name, parent=root)
        blocks.append(block(f"shardtool {name}", command.get_help(context)))
    return "\n".join(blocks)


def block(title: str, text: str) -> str:
    """One section: a heading and the help as printed."""
    return f"## {title}\n\n```text\n{text.rstrip()}\n```\n"


def main() -> int:
    """Write the page, or with --check compare it."""
    os.environ["COLUMNS"] = "80"
    wanted = page()
    if "--check" not in sys.argv[1:]:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == wanted:
        return 0
    print(f"docs: {PAGE.name} is not what --help says; run scripts/docs", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
