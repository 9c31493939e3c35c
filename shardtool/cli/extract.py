"""`shardtool extract`: samples back to files."""

from __future__ import annotations

from typing import Any

import click

from shardtool.cli.command import GroupedOption
from shardtool.cli.options import Command, CountType, DidYouMeanChoice, Output, options, output_options
from shardtool.cli.s3_options import s3_options
from shardtool.cli.types import WordsType
from shardtool.errors import DamageFound

SELECTING: dict[str, dict[str, Any]] = {
    "--split": {"metavar": "NAME", "help": "Only samples of this split."},
    "--shard": {
        "multiple": True,
        "type": CountType(minimum=0),
        "metavar": "K",
        "help": "Only shard K, counted from 0; may be repeated.",
    },
    "--parts": {"type": WordsType(), "metavar": "PARTS", "help": "Only these parts: jpg,txt."},
    "--all-parts": {
        "is_flag": True,
        "help": "Also parts that no file held: class numbers, columns of --join.",
    },
}


def selecting(function: Any) -> Any:
    """Which samples and parts."""
    for name, settings in reversed(SELECTING.items()):
        function = click.option(name, cls=GroupedOption, section="Source", **settings)(function)
    return function


@click.command(
    cls=Command,
    examples=(
        "shardtool extract out/ photos/",
        "shardtool extract out/ photos/ 'cats/*' dogs/0442",
        "shardtool extract out/ photos/ --split validation --parts jpg",
    ),
    exit_codes=(4, 5, 6, 7, 8),
)
@click.argument("out", metavar="OUT")
@click.argument("target", metavar="DIR")
@click.argument("keys", nargs=-1, metavar="[KEY...]")
@selecting
@click.option(
    "--by",
    cls=GroupedOption,
    section="Output",
    type=DidYouMeanChoice(("source", "key")),
    default="source",
    show_default=True,
    help="Name files by the path they were packed from, or by key and part.",
)
@click.option(
    "--overwrite", cls=GroupedOption, section="Output", is_flag=True, help="Replace files that are there already."
)
@options("workers")
@s3_options
@output_options
def command(output: Output, out: str, target: str, keys: tuple[str, ...], **chosen: Any) -> None:
    """Write the samples of OUT, or those that KEY names, to files below DIR; digests are checked on the way."""
    from shardtool.executors.local import workers_for
    from shardtool.reading.extract import PRELOAD, Selection, extract
    from shardtool.report.extract import extract_text, left_out_text
    from shardtool.workers import WorkerPool

    selection = Selection(
        keys=keys,
        split=chosen["split"] or "",
        shards=tuple(chosen["shard"]),
        parts=tuple(chosen["parts"] or ()),
        all_parts=chosen["all_parts"],
        by=chosen["by"],
    )
    workers = 0 if keys and not any(set(key) & set("*?[") for key in keys) else workers_for(chosen["workers"])
    with WorkerPool(workers, preload=PRELOAD) as pool:
        result = extract(out, target, selection, pool, output, overwrite=chosen["overwrite"])
    output.result(result.document(), extract_text(result), brief=target)
    if notice := left_out_text(result):
        output.detail(notice) if keys else output.step("note", notice)
    if result.report.damaged:
        raise DamageFound(
            f"{len(result.report.damaged):,} parts are damaged and were not written",
            hint=f"shardtool verify {out} --deep tells how to repair them",
            where={"path": out, "shard": result.report.damaged[0][0]},
        )
