"""`shardtool merge`: pairs of `.bin` and `.idx` become one, or several of a wanted size, in flat memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardtool.cli.command import GroupedOption
from shardtool.cli.options import Command, CountType, Output, SizeType, output_options
from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from shardtool.tokens.merge import Merged, Pair


@click.command(
    cls=Command,
    examples=(
        "shardtool merge part0 part1 part2 -o whole",
        "shardtool merge huge -o cut --shard-size 10GB",
        "shardtool merge --repair damaged -o mended",
    ),
    exit_codes=(4, 5, 6, 7),
)
@click.argument("pairs", nargs=-1, required=True, metavar="PAIR...")
@click.option(
    "-o",
    "--output",
    "prefix",
    cls=GroupedOption,
    section="Shards",
    required=True,
    metavar="OUT",
    help="Prefix of the pair to write; with a size, of the pairs OUT-00000-of-00003.",
)
@click.option(
    "--shard-size",
    cls=GroupedOption,
    section="Shards",
    type=SizeType(),
    metavar="SIZE",
    help="Cut into pairs of at most SIZE, both files counted; documents stay whole.",
)
@click.option(
    "--shard-tokens",
    cls=GroupedOption,
    section="Shards",
    type=CountType(),
    metavar="N",
    help="Cut into pairs of at most N tokens.",
)
@click.option(
    "--repair",
    cls=GroupedOption,
    section="Running",
    is_flag=True,
    help="Take damaged pairs too, where what is missing can be told from the rest.",
)
@click.option(
    "--durability",
    cls=GroupedOption,
    section="Running",
    type=click.Choice(["full", "none"]),
    default="full",
    show_default=True,
    help="Whether the result is forced to disk.",
)
@output_options
def command(
    output: Output,
    pairs: tuple[str, ...],
    prefix: str,
    shard_size: int | None,
    shard_tokens: int | None,
    repair: bool,
    durability: str,
) -> None:
    """Merge pairs of .bin and .idx, named by their prefixes, in the order given; or cut them anew."""
    if shard_size and shard_tokens:
        raise UsageProblem("--shard-size and --shard-tokens exclude one another", hint="choose one")
    from shardtool.tokens.merge import cut_pairs, merge_pairs, open_pairs

    opened, durable = open_pairs(pairs, repair=repair), durability == "full"
    for pair in opened:
        if pair.mended:
            output.step("mend", f"{pair.prefix}: {', '.join(pair.mended)}")
    if shard_size or shard_tokens:
        sizes = {"shard_bytes": shard_size or 0, "shard_tokens": shard_tokens or 0}
        written = cut_pairs(opened, prefix, **sizes, durable=durable)
    else:
        written = [merge_pairs(opened, prefix, durable=durable)]
    output.result(_document(opened, written), _text(opened, written))


def _document(opened: list[Pair], written: list[Merged]) -> dict[str, object]:
    """`shardtool/merge/1`."""
    return {
        "schema": "shardtool/merge/1",
        "sources": len(opened),
        "mended": {pair.prefix: list(pair.mended) for pair in opened if pair.mended},
        "dtype": opened[0].header.dtype.name,
        "documents": sum(pair.num_documents for pair in written),
        "tokens": sum(pair.num_tokens for pair in written),
        "bytes": sum(pair.num_bytes for pair in written),
        "pairs": [
            {
                "prefix": pair.prefix,
                "sequences": pair.num_sequences,
                "documents": pair.num_documents,
                "tokens": pair.num_tokens,
                "bytes": pair.num_bytes,
            }
            for pair in written
        ],
    }


def _text(opened: list[Pair], written: list[Merged]) -> str:
    from shardtool.units import format_bytes, plural

    documents, tokens = sum(pair.num_documents for pair in written), sum(pair.num_tokens for pair in written)
    size = format_bytes(sum(pair.num_bytes for pair in written))
    head = f"done   {plural(len(opened), 'pair')} -> {plural(len(written), 'pair')}"
    lines = [f"{head}   {plural(documents, 'document')}, {plural(tokens, 'token')}, {size}"]
    return "\n".join([*lines, *(f"       {pair.prefix}.bin, .idx" for pair in written[:5])])
