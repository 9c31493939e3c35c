"""`shardtool ls`: the shards of a data set, or its samples, one a line."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from shardtool.cli.command import GroupedOption
from shardtool.cli.options import Command, Output, output_options
from shardtool.cli.output import emit
from shardtool.cli.s3_options import s3_options
from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.manifest import ManifestShard
    from shardtool.reading.reading import Dataset

SCHEMA = "shardtool/ls/1"


@click.command(
    cls=Command,
    examples=(
        "shardtool ls out/",
        "shardtool ls out/ --braces --split train",
        "shardtool ls out/ --samples | head",
    ),
    exit_codes=(4, 5, 8),
)
@click.argument("out", metavar="OUT")
@click.option("--split", metavar="NAME", default="", cls=GroupedOption, section="Source", help="Only this split.")
@click.option(
    "--braces",
    is_flag=True,
    cls=GroupedOption,
    section="Output",
    help="Print the fewest brace patterns that name all shards.",
)
@click.option(
    "--samples",
    is_flag=True,
    cls=GroupedOption,
    section="Output",
    help="List samples: key, then parts with their bytes.",
)
@s3_options
@output_options
def command(output: Output, out: str, split: str, braces: bool, samples: bool) -> None:
    """List the shards of the data set in OUT; with -q their paths only."""
    from shardtool.assignment.lookup import check_split
    from shardtool.reading.reading import Dataset

    if braces and samples:
        raise UsageProblem("--braces and --samples exclude one another", hint="choose one")
    with Dataset.open(out) as dataset:
        check_split(dataset, split)
        chosen = [(n, s) for n, s in enumerate(dataset.manifest.shards) if split in ("", s.split)]
        if samples:
            _list_samples(output, dataset, chosen)
            return
        paths = [os.path.join(out, shard.path) for _, shard in chosen]
        if braces:
            _list_patterns(output, paths)
        else:
            _list_shards(output, dataset, chosen, paths)


def _list_patterns(output: Output, paths: list[str]) -> None:
    from shardtool.names import compact_braces

    patterns = compact_braces(paths)
    output.result({"schema": SCHEMA, "patterns": patterns}, "\n".join(patterns))


def _list_shards(output: Output, dataset: Dataset, chosen: list[tuple[int, ManifestShard]], paths: list[str]) -> None:
    from shardtool.report.text import table
    from shardtool.units import format_bytes

    rows = [[n, shard.path, shard.split, shard.num_samples, format_bytes(shard.num_bytes)] for n, shard in chosen]
    document = {
        "schema": SCHEMA,
        "dataset_id": dataset.manifest.dataset_id,
        "shards": [
            {
                "shard": number,
                "split": shard.split,
                "path": shard.path,
                "samples": shard.num_samples,
                "bytes": shard.num_bytes,
                "payload_bytes": shard.payload_bytes,
                "xxh3_128": shard.files[0].xxh3_128,
            }
            for number, shard in chosen
        ],
    }
    text = table(rows, header=("shard", "path", "split", "samples", "bytes"), align="rllrr")
    output.result(document, text, brief="\n".join(paths))


def _list_samples(output: Output, dataset: Dataset, chosen: list[tuple[int, ManifestShard]]) -> None:
    """A shard at a time, so that neither memory nor the first line waits for the whole data set."""
    if not output.as_json:
        for number, _ in chosen:
            lines = list(_sample_lines(dataset, number, keys_only=output.quiet))
            if lines:
                emit("\n".join(lines), sys.stdout)
        return
    head = json.dumps({"schema": SCHEMA, "dataset_id": dataset.manifest.dataset_id})
    output.raw((head[:-1] + ', "samples": [').encode())
    between = b"\n"
    for number, _ in chosen:
        rows = [json.dumps(row, ensure_ascii=False) for row in _sample_documents(dataset, number)]
        if rows:
            output.raw(between + ",\n".join(rows).encode("utf-8", "backslashreplace"))
            between = b",\n"
    output.raw(b"\n]}\n")


def _each_sample(dataset: Dataset, shard: int) -> Iterator[tuple[bytes, int | None, list[tuple[str, int]]]]:
    """(key, label, [(part, bytes)]) of a shard, from its index."""
    from shardtool import columns

    index = dataset.index(shard)
    keys, bounds = columns.to_list(index.keys), index.part_start.tolist()
    names = [name.decode("utf-8", "backslashreplace") for name in columns.to_list(index.part_names)]
    sizes = index.part_bytes.tolist()
    labels = [None] * len(keys) if index.labels is None else index.labels.tolist()
    for row, (key, label) in enumerate(zip(keys, labels, strict=True)):
        start, stop = bounds[row], bounds[row + 1]
        yield key, label, list(zip(names[start:stop], sizes[start:stop], strict=True))


def _sample_lines(dataset: Dataset, shard: int, *, keys_only: bool) -> Iterator[str]:
    from shardtool.report.text import escape_key, printable

    for key, _, parts in _each_sample(dataset, shard):
        shown = "" if keys_only else "".join(f"   {printable(name)} {size:,} B" for name, size in parts)
        yield escape_key(key) + shown


def _sample_documents(dataset: Dataset, shard: int) -> Iterator[dict[str, Any]]:
    from shardtool.report.text import json_key

    split = dataset.manifest.shards[shard].split
    for row, (key, label, parts) in enumerate(_each_sample(dataset, shard)):
        yield {**json_key(key), "split": split, "shard": shard, "sample": row, "label": label, "parts": dict(parts)}
