"""`shardtool inspect`: a data set, one shard or one sample in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardtool.cli.command import GroupedOption
from shardtool.cli.options import Command, CountType, Output, options, output_options
from shardtool.cli.s3_options import s3_options
from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from shardtool.reading.reading import Dataset


@click.command(
    cls=Command,
    examples=(
        "shardtool inspect out/ cats/0001",
        "shardtool inspect out/ train-00003-of-00008.tar",
        "shardtool inspect out/ --compat all",
    ),
    exit_codes=(4, 5, 8),
)
@click.argument("out", metavar="OUT")
@click.argument("what", required=False, metavar="[KEY|SHARD|SHARD:N]")
@click.option(
    "--split", metavar="NAME", default="", cls=GroupedOption, section="Source", help="Look for the key in this split."
)
@click.option(
    "--doc",
    type=CountType(minimum=0),
    metavar="N",
    cls=GroupedOption,
    section="Source",
    help="Of token shards: show sequence N of the data set, counted from 0.",
)
@click.option(
    "--decode",
    metavar="FILE",
    cls=GroupedOption,
    section="Output",
    help="Of token shards: show the text, too; FILE is a tokenizer.json, its folder, or bytes.",
)
@options("compat")
@s3_options
@output_options
def command(
    output: Output,
    out: str,
    what: str | None,
    split: str,
    doc: int | None,
    decode: str | None,
    compat: tuple[str, ...],
) -> None:
    """Show the data set in OUT, one of its shards (by number or name), or one sample (by key, or SHARD:N).

    A number is a shard, unless a sample has it for a key; 3: is always a shard.
    """
    from shardtool.assignment.lookup import check_split, open_at
    from shardtool.report.inspect import dataset_document, dataset_text

    dataset, file = open_at(out)
    with dataset:
        check_split(dataset, split)
        word = what or file
        if doc is not None or decode:
            from shardtool.cli.token_view import show_sequence

            show_sequence(output, dataset, word, split, doc, decode)
            return
        if word and compat:
            raise UsageProblem("--compat is about a whole data set", hint=f"shardtool inspect {out} --compat all")
        if word:
            _show_one(output, dataset, word, split)
            return
        text = dataset_text(dataset.manifest, out, ascii_only=not output.unicode)
        document = dataset_document(dataset.manifest)
        if compat:
            from shardtool.compat import examine_dataset, readers_named
            from shardtool.report.compat import compat_document, compat_text

            verdicts = examine_dataset(dataset, readers_named(compat))
            document["compat"] = compat_document(verdicts)
            text += "\n\n" + compat_text(verdicts, dataset.manifest.num_samples, ascii_only=not output.unicode)
        output.result(document, text, brief=dataset.manifest.dataset_id)


def _show_one(output: Output, dataset: Dataset, word: str, split: str) -> None:
    from shardtool.assignment.lookup import resolve
    from shardtool.reading.looking import view_sample, view_shard
    from shardtool.report.inspect import sample_document, sample_text, shard_document, shard_text

    number, place = resolve(dataset, word, split)
    if place is not None:
        sample = view_sample(dataset, number, place)
        output.result(sample_document(sample), sample_text(sample, ascii_only=not output.unicode))
    else:
        shard = view_shard(dataset, number)
        output.result(shard_document(shard), shard_text(shard, ascii_only=not output.unicode))
