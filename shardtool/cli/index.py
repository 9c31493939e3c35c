"""`shardtool index`: publish, rebuild what was lost, or index shards that other tools wrote."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from shardtool.cli.command import GroupedOption
from shardtool.cli.options import Command, Output, options, output_options
from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from shardtool.rebuild import RebuildResult


@click.command(
    cls=Command,
    examples=(
        "shardtool index out/",
        "shardtool index 'shards/train-{000..099}.tar'",
        "shardtool index /readonly/shards --out-dir indexed/",
    ),
    exit_codes=(3, 4, 5, 6, 7),
)
@click.argument("places", nargs=-1, required=True, metavar="OUT")
@click.option(
    "--out-dir",
    cls=GroupedOption,
    section="Output",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="For shards of other tools: write index and manifest to DIR, with links to the shards.",
)
@options("workers")
@output_options
def command(output: Output, places: tuple[str, ...], out_dir: str | None, workers: int) -> None:
    """Publish the manifest when all shards are there, rebuild what was lost of it, or index shards of other tools."""
    from shardtool.report.index import index_text, skipped_text

    result = _index(output, places, out_dir or "", workers)
    output.result(result.document(), index_text(result), brief=result.out)
    if notice := skipped_text(result.skipped):
        output.warn(notice)
    if not result.is_unchanged:
        output.hint(f"shardtool verify {result.out} --deep · shardtool stats {result.out}")


def _index(output: Output, places: tuple[str, ...], out_dir: str, workers: int) -> RebuildResult:
    from shardtool.executors.local import workers_for
    from shardtool.index_bare import index_foreign
    from shardtool.rebuild import PRELOAD, rebuild
    from shardtool.workers import WorkerPool

    with WorkerPool(workers_for(workers), preload=PRELOAD) as pool:
        if len(places) == 1 and os.path.isdir(places[0]):
            if out_dir and _is_ours(places[0]):
                raise UsageProblem(
                    f"{places[0]} is a data set of ours", hint=f"without --out-dir: shardtool index {places[0]}"
                )
            found = None if out_dir else rebuild(places[0], pool, output)
            if found is not None:
                return found
        return index_foreign(places, pool, output, out=out_dir)


def _is_ours(place: str) -> bool:
    return any(os.path.exists(os.path.join(place, name)) for name in ("manifest.json", ".shardtool/plan.json"))
