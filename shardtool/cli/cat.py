"""`shardtool cat`: parts of samples to stdout, byte for byte."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any

import click

from shardtool.cli.command import GroupedOption
from shardtool.cli.options import Command, Output, output_options
from shardtool.cli.s3_options import s3_options
from shardtool.errors import SourceNotFound, UsageProblem

if TYPE_CHECKING:
    from shardtool.reading.reading import Dataset


@click.command(
    cls=Command,
    examples=(
        "shardtool cat out/ cats/0001.json | jq .caption",
        "shardtool cat out/ cats/0001.jpg > 0001.jpg",
        "shardtool cat out/ cats/0001 dogs/0002 --part txt",
    ),
    exit_codes=(4, 5, 8),
)
@click.argument("out", metavar="OUT")
@click.argument("members", nargs=-1, required=True, metavar="KEY.PART...")
@click.option("--part", metavar="NAME", default="", cls=GroupedOption, section="Source", help="Part of every KEY.")
@click.option(
    "--split", metavar="NAME", default="", cls=GroupedOption, section="Source", help="Look for the keys in this split."
)
@s3_options
@output_options
def command(output: Output, out: str, members: tuple[str, ...], part: str, split: str) -> None:
    """Write parts of samples in the data set OUT to stdout as they are, one after another; digests are checked."""
    from shardtool.assignment.lookup import check_split
    from shardtool.reading.reading import Dataset

    with Dataset.open(out) as dataset:
        check_split(dataset, split)
        places = [_find(dataset, member, part, split) for member in members]  # all of them, before the first byte
        if output.as_json:
            output.result({"schema": "shardtool/cat/1", "parts": [_document(dataset, *place) for place in places]}, "")
            return
        for shard, row in places:
            output.raw(dataset.read_part(shard, row))


def _find(dataset: Dataset, member: str, part: str, split: str) -> tuple[int, int]:
    """(shard, row of the part in its index) of `KEY.PART`, of `KEY` with --part, or of a sample that has one part.

    Raises:
        SourceNotFound: no such sample, or it has no such part.
        UsageProblem: the sample has several parts, and none was named.
    """
    from shardtool.assignment.lookup import find_sample, key_bytes, split_member

    shard, sample = find_sample(dataset, member, split)
    index = dataset.index(shard)
    key, first, last = index.key(sample), int(index.part_start[sample]), int(index.part_start[sample + 1])
    named = os.fsencode(part)
    if not named:
        cut, rest = split_member(key_bytes(member))
        named = rest if cut == key else b""
    if named:
        return shard, _part_row(dataset, shard, sample, named)
    names = [
        name.decode("utf-8", "backslashreplace") for name in index.part_names.slice(first, last - first).to_pylist()
    ]
    if len(names) == 1:
        return shard, first
    raise UsageProblem(
        f"sample {key.decode('utf-8', 'backslashreplace')!r} has several parts: {', '.join(names)}",
        hint=f"name one: shardtool cat {dataset.path} {member}.{names[0]}, or --part {names[0]}",
        where={"key": key},
    )


def _part_row(dataset: Dataset, shard: int, sample: int, name: bytes) -> int:
    """The part as named, else in lower case, as packing wrote it."""
    try:
        return dataset.part_row(shard, sample, name)
    except SourceNotFound:
        if name.lower() == name:
            raise
        return dataset.part_row(shard, sample, name.lower())


def _document(dataset: Dataset, shard: int, row: int) -> dict[str, Any]:
    from shardtool.report.text import json_key

    index, data = dataset.index(shard), dataset.read_part(shard, row)
    sample = int(index.part_start.searchsorted(row, side="right")) - 1
    name = index.part_names[row].as_py().decode("utf-8", "backslashreplace")
    shown = {**json_key(index.key(sample)), "part": name, "bytes": len(data)}
    try:
        return shown | {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return shown | {"data_b64": base64.b64encode(data).decode("ascii")}
