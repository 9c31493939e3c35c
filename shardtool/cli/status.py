"""`shardtool status`: how far a run is, how fast, what failed, and what to type next."""

from __future__ import annotations

import time

import click

from shardtool.cli.options import Command, Output, output_options
from shardtool.cli.s3_options import s3_options


@click.command(
    cls=Command,
    examples=(
        "shardtool status out/",
        "watch shardtool status out/",
        "shardtool status out/ --json | jq .done.shards",
    ),
    exit_codes=(4, 5, 8),
)
@click.argument("out", metavar="OUT")
@s3_options
@output_options
def command(output: Output, out: str) -> None:
    """Tell how far the data set in OUT is, also while it is being packed; reads only plan and receipts."""
    from shardtool.packing.status import read_status
    from shardtool.report.status import status_text

    status = read_status(out, time.time())
    output.result(
        status.document(), status_text(status), brief=f"{status.state} {status.done.shards}/{status.planned.shards}"
    )
    if status.next:
        output.hint(status.next)
