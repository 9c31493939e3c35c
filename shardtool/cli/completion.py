"""`shardtool completion SHELL`: the script that makes a shell complete commands, options and values."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from shardtool.cli.command import Command
from shardtool.cli.types import DidYouMeanChoice
from shardtool.errors import UsageProblem


@click.command(
    cls=Command,
    examples=(
        "shardtool completion bash > ~/.local/share/bash-completion/completions/shardtool",
        'eval "$(shardtool completion zsh)"',
        "shardtool completion fish > ~/.config/fish/completions/shardtool.fish",
    ),
)
@click.argument("shell", type=DidYouMeanChoice(("bash", "zsh", "fish")))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for bash, zsh or fish."""
    kind = get_completion_class(shell)
    if kind is None:
        raise UsageProblem(f"no completion for {shell}", hint="bash, zsh and fish have one")
    # Not kind.source: bash's would start a bash only to ask its version.
    click.echo(ShellComplete.source(kind(ctx.find_root().command, {}, "shardtool", "_SHARDTOOL_COMPLETE")))
