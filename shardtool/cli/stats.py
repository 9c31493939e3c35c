"""`shardtool stats`: what a data set looks like, every figure beside what a uniform shuffle would give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardtool.cli.options import Command, Output, options, output_options
from shardtool.cli.s3_options import s3_options
from shardtool.units import format_bytes, plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.statistics.dataset_stats import DatasetStats


@click.command(
    cls=Command,
    examples=(
        "shardtool stats out/",
        "shardtool stats out/ --world-size 16 --loader-workers 4",
        "shardtool stats out/ --json | jq .shuffle.neighbour_distance",
    ),
    exit_codes=(4, 5, 8),
)
@click.argument("out", metavar="OUT")
@options("world-size", "loader-workers")
@s3_options
@output_options
def command(output: Output, out: str, world_size: int | None, loader_workers: int | None) -> None:
    """Show sizes, fill, overhead, parts, labels and shuffle quality of the data set in OUT."""
    from shardtool.reading.reading import Dataset
    from shardtool.report.stats import render_stats
    from shardtool.statistics.dataset_stats import measure_dataset

    ranks, workers = world_size or 0, loader_workers or 0
    with Dataset.open(out) as dataset:
        found = measure_dataset(dataset)
    text = render_stats(
        found.stats,
        heading=heading(found, out),
        ascii_only=not output.unicode,
        more=list(_more_lines(found, ranks, workers)),
        more_advice=list(_more_advice(found, ranks, workers)),
    )
    output.result(found.document(ranks, workers), text, brief=found.manifest.dataset_id)


def heading(found: DatasetStats, out: str) -> str:
    """`out/   tar   3f9c2a71   shuffled, seed 0   complete`."""
    manifest, membership = found.manifest, found.manifest.membership
    order = f"shuffled, seed {membership.get('seed')}" if membership.get("shuffled") else "in source order"
    order += ", stratified" if membership.get("stratified") else ""
    failed = int(manifest.ledger.get("failed", 0))
    state = "complete" if not failed else f"without {plural(failed, 'file')} that failed"
    return "   ".join([out, manifest.format, manifest.dataset_id[:8], order, state])


def _more_lines(found: DatasetStats, ranks: int, workers: int) -> Iterator[tuple[str, list[str]]]:
    if found.tokens:
        from shardtool.token_lengths import shown_lengths

        yield from shown_lengths(found.tokens)
    causes = [f"{cause} {format_bytes(size)}" for cause, size in found.overhead.items() if size]
    if len(causes) > 1:
        yield "overhead", causes
    splits = found.manifest.splits()
    if len(splits) > 1:
        yield (
            "splits",
            [f"{name} {row['samples']:,} in {plural(row['shards'], 'shard')}" for name, row in splits.items()],
        )
    for load in found.loads(ranks, workers) if ranks else ():
        who = f"{plural(ranks, 'rank')} x {plural(max(workers, 1), 'worker')}"
        name = f"{load.split}: " if len(splits) > 1 else ""
        samples = _range(load.samples_min, load.samples_max)
        yield (
            "ranks",
            [
                f"{name}{who}",
                f"{samples} samples a rank",
                f"{_range(load.shards_min, load.shards_max)} shards a worker",
            ],
        )


def _more_advice(found: DatasetStats, ranks: int, workers: int) -> Iterator[str]:
    """Too few shards for those who read, from the split with the fewest samples a shard on."""
    for load in found.loads(ranks, workers) if ranks else ():
        if load.shards_min == 0:
            readers = ranks * max(workers, 1)
            num_shards = found.manifest.splits()[load.split]["shards"]
            yield (
                f"{load.split}: {plural(num_shards, 'shard')} for {readers:,} readers leave some without, or make them"
                f" share: they wait for one another. Pack again with: --shards-multiple-of {readers}"
            )
            return


def _range(low: int, high: int) -> str:
    return f"{high:,}" if low == high else f"{low:,} .. {high:,}"
