"""`shardtool diff`: what differs between two data sets, sample by sample, from their indexes alone."""

from __future__ import annotations

import click

from shardtool.cli.command import GroupedOption
from shardtool.cli.options import Command, Output, output_options
from shardtool.cli.s3_options import s3_options
from shardtool.errors import Incomplete
from shardtool.units import plural


@click.command(
    cls=Command,
    examples=(
        "shardtool diff old/ new/",
        "shardtool diff old/ new/ --exit-code && echo equal",
        "shardtool diff old/ new/ --json | jq .changed.count",
    ),
    exit_codes=(3, 4, 5, 8),
)
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option(
    "--exit-code",
    cls=GroupedOption,
    section="Output",
    is_flag=True,
    help="End with 3 where anything differs; without it a difference is no failure.",
)
@s3_options
@output_options
def command(output: Output, before: str, after: str, exit_code: bool) -> None:
    """Compare the data sets A and B: samples added, removed, moved and changed."""
    from shardtool.reading.key_tables import key_table
    from shardtool.reading.reading import Dataset
    from shardtool.report.diff import render_diff
    from shardtool.statistics.dataset_diff import compare

    with Dataset.open(before) as one, Dataset.open(after) as two:
        diff = compare(key_table(one), key_table(two))
    output.result(diff.document(), render_diff(diff, before=before, after=after, ascii_only=not output.unicode))
    if exit_code and not diff.is_equal:
        count = diff.added.count + diff.removed.count + diff.moved.count + diff.changed.count
        raise Incomplete(
            f"{before} and {after} differ: {plural(count, 'difference')}" if count else f"{before} and {after} differ",
            hint="without --exit-code a difference is no failure",
        )
