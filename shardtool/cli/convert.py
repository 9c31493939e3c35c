"""`shardtool convert`: shards, archives and tables become shards of another format, size, order or split."""

from __future__ import annotations

from typing import Any

import click

from shardtool.cli.choices import is_given
from shardtool.cli.options import (
    Command,
    Output,
    grouping_options,
    options,
    output_options,
    running_options,
    shard_options,
)
from shardtool.cli.pack import run_pack
from shardtool.cli.s3_options import s3_options


@click.command(
    cls=Command,
    examples=(
        "shardtool convert out/ parquet/ --format parquet",
        "shardtool convert 'old/train-{000..099}.tar' new/ --shard-size 1GiB --seed 7",
        "shardtool convert rows.jsonl.gz photos.zip out/ --split train=0.9,test=0.1",
    ),
    exit_codes=(3, 4, 5, 6, 7, 8),
)
@click.argument("sources", nargs=-1, metavar="[SRC...]")
@click.argument("out", metavar="OUT")
@options("include", "exclude", "hidden", "key-column")
@grouping_options
@shard_options
@running_options
@options("dry-run", "world-size", "loader-workers")
@s3_options
@output_options
def command(output: Output, sources: tuple[str, ...], out: str, **chosen: Any) -> None:
    """Pack the samples of SRC - data sets, shards, archives, tables - into shards in OUT.

    Splits and labels of data sets are kept; what cannot be carried over is said. Parts that lie in their files as they
    are (tar, data sets of most formats) are read there; what must be decoded is unpacked once, beside the plan.
    """
    if chosen["format"] != "bin" and not is_given("group_by"):
        from shardtool.shard_sources.find import holds_tokens

        if holds_tokens(sources):  # a key such as a.jsonl#17 has dots, its part is `tokens`
            chosen["group_by"] = "last-dot"
    run_pack(output, sources, out, {**chosen, "source": "shards", "links": "follow", "files_from": None, "null": False})
