"""`shardtool index`: publish, rebuild what was lost, or index shards that other tools wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardtool.cli.command import GroupedOption
from shardtool.cli.options import Command, Output, options, output_options
from shardtool.cli.s3_options import s3_options
from shardtool.cli.types import DialectsType
from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from shardtool.emitted import Emitted
    from shardtool.indexing.rebuild import RebuildResult


@click.command(
    cls=Command,
    examples=(
        "shardtool index out/",
        "shardtool index 'shards/train-{000..099}.tar'",
        "shardtool index out/ --emit wids,energon,hf-card",
    ),
    exit_codes=(3, 4, 5, 6, 7, 8),
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
@click.option(
    "--emit",
    cls=GroupedOption,
    section="Output",
    type=DialectsType(),
    default=(),
    help="Write the index files of other loaders beside the shards, and say how they load them: "
    "wids, sizes, list, dali, energon, hf-card, mds, and of token shards ds, olmo, nanogpt, llmc, npy, megatron, "
    "nanotron; several with commas.",
)
@click.option(
    "--split-shards",
    cls=GroupedOption,
    section="Output",
    metavar="NAME=SHARE,...",
    default="",
    help="For --emit energon of a data set without splits: give whole shards to train, val, test.",
)
@click.option(
    "--repair",
    cls=GroupedOption,
    section="Running",
    is_flag=True,
    help="Mend the .idx of the .bin/.idx pairs that OUT names (prefixes, folders); the .bin is left alone, the "
    "damaged .idx kept as .idx.damaged.",
)
@options("workers")
@s3_options
@output_options
def command(
    output: Output,
    places: tuple[str, ...],
    out_dir: str | None,
    emit: tuple[str, ...],
    split_shards: str,
    repair: bool,
    workers: int,
) -> None:
    """Publish the manifest when all shards are there, rebuild what was lost of it, or index shards of other tools."""
    if repair:
        if out_dir or emit or split_shards:
            raise UsageProblem(
                "--repair goes alone: --out-dir, --emit and --split-shards are for data sets",
                hint="first --repair, then the other",
            )
        _repair(output, places)
        return
    from shardtool.report.index import emitted_text, index_text, skipped_text

    if split_shards and "energon" not in emit:
        raise UsageProblem("--split-shards is for --emit energon", hint="shardtool pack --split cuts by samples")
    result = _index(output, places, out_dir or "", workers)
    emitted = _emit(result, emit, split_shards)
    document = result.document() | ({"emitted": [one.document() for one in emitted]} if emit else {})
    output.result(document, "\n".join([index_text(result), *map(emitted_text, emitted)]), brief=result.out)
    if any(one.emission.needs_card for one in emitted) and not _has_card(result.out):
        output.warn(
            "Hugging Face datasets takes the .idx files beside the shards for data, unless a card tells it otherwise:"
            f" shardtool index {result.out} --emit hf-card"
        )
    if notice := skipped_text(result.skipped):
        output.warn(notice)
    if not result.is_unchanged:
        output.hint(f"shardtool verify {result.out} --deep · shardtool stats {result.out}")


def _repair(output: Output, places: tuple[str, ...]) -> None:
    """`shardtool/repair/1`."""
    from shardtool.report.index import repair_text
    from shardtool.tokens.mend import mend_pairs

    pairs = mend_pairs(places)
    document = {
        "schema": "shardtool/repair/1",
        "pairs": [
            {
                "prefix": pair.prefix,
                "mended": list(pair.mended),
                "kept": pair.kept or None,
                "sequences": pair.num_sequences,
                "documents": pair.num_documents,
                "tokens": pair.num_tokens,
            }
            for pair in pairs
        ],
    }
    mended = [pair.prefix for pair in pairs if pair.mended]
    output.result(document, repair_text(pairs), brief="\n".join(mended))
    if mended:
        output.hint(f"shardtool verify {mended[0]} --deep")


def _index(output: Output, places: tuple[str, ...], out_dir: str, workers: int) -> RebuildResult:
    from shardtool.executors.local import workers_for
    from shardtool.indexing.bare import index_foreign
    from shardtool.indexing.bare_shards import is_folder
    from shardtool.indexing.rebuild import PRELOAD, rebuild
    from shardtool.packing.destination import is_ours
    from shardtool.workers import WorkerPool

    with WorkerPool(workers_for(workers), preload=PRELOAD) as pool:
        if len(places) == 1 and is_folder(places[0]):
            if out_dir and is_ours(places[0]):
                raise UsageProblem(
                    f"{places[0]} is a data set of ours", hint=f"without --out-dir: shardtool index {places[0]}"
                )
            found = None if out_dir else rebuild(places[0], pool, output)
            if found is not None:
                return found
        return index_foreign(places, pool, output, out=out_dir)


def _emit(result: RebuildResult, names: tuple[str, ...], split_shards: str) -> list[Emitted]:
    from shardtool.dialects import prepare
    from shardtool.emitted import write_emissions
    from shardtool.reading.reading import Dataset

    if not names:
        return []
    with Dataset.open(result.out) as dataset:
        return write_emissions(result.out, prepare(dataset, names, split_shards))


def _has_card(out: str) -> bool:
    from shardtool.storage import open_place
    from shardtool.storage.files import exists

    return exists(open_place(out), "README.md")
