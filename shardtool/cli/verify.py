"""`shardtool verify`: is a data set whole, and with --deep, is it undamaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardtool.cli.command import GroupedOption
from shardtool.cli.options import Command, DidYouMeanChoice, Output, options, output_options
from shardtool.cli.s3_options import s3_options
from shardtool.errors import DamageFound

if TYPE_CHECKING:
    from shardtool.verification.verify import VerifyResult


@click.command(
    cls=Command,
    examples=(
        "shardtool verify out/",
        "shardtool verify out/ --deep --reader webdataset",
        "shardtool verify 'shards/train-{000..099}.tar'",
    ),
    exit_codes=(4, 5, 8),
)
@click.argument("places", nargs=-1, required=True, metavar="OUT")
@options("deep")
@click.option(
    "--reader",
    cls=GroupedOption,
    section="Running",
    type=DidYouMeanChoice(("webdataset",), {"wds": "webdataset"}),
    help="Read all shards once more through that package and compare keys and bytes.",
)
@options("workers")
@s3_options
@output_options
def command(output: Output, places: tuple[str, ...], deep: bool, reader: str | None, workers: int) -> None:
    """Check the data set in OUT against its manifest, or the structure of shards that have none."""
    from shardtool.report.verify import repair_hint, summary, verify_text

    result = _check(output, places, deep, reader or "", workers)
    output.result(result.document(), verify_text(result))
    if not result.is_ok:
        fault = result.faults[0]
        where = {"path": fault.path, "shard": fault.shard, "offset": fault.offset}
        raise DamageFound(
            summary(result),
            hint=repair_hint(result),
            where={name: value for name, value in where.items() if value not in (None, "")},
        )


def _check(output: Output, places: tuple[str, ...], deep: bool, reader: str, workers: int) -> VerifyResult:
    from shardtool.executors.local import workers_for
    from shardtool.verification.verify import PRELOAD, verify, workers_needed
    from shardtool.workers import WorkerPool

    wanted = workers_for(workers)
    if _is_dataset(places):
        num_bytes, num_shards = _extent(places[0])
        wanted = workers_needed(num_bytes, num_shards, wanted, is_deep=deep or bool(reader))
        with WorkerPool(wanted, preload=PRELOAD) as pool:
            return verify(places[0], pool, output, is_deep=deep, reader=reader)
    from shardtool.indexing.bare_shards import find_shards
    from shardtool.tokens.verify import pair_prefixes, verify_pairs
    from shardtool.verification.bare import verify_bare

    if pairs := pair_prefixes(places):
        num_bytes = sum(_size(f"{pair}.bin") for pair in pairs)
        with WorkerPool(workers_needed(num_bytes, len(pairs), wanted, is_deep=deep), preload=PRELOAD) as pool:
            return verify_pairs(pairs, pool, output, is_deep=deep)
    paths = find_shards(places)
    num_bytes = sum(_size(path) for path in paths)
    with WorkerPool(workers_needed(num_bytes, len(paths), wanted, is_deep=True), preload=PRELOAD) as pool:
        if deep or reader:
            output.warn("shards without a manifest have no digests to compare with; only their structure is checked")
        return verify_bare(places, pool, output)


def _is_dataset(places: tuple[str, ...]) -> bool:
    """Whether the one place is a folder of ours: finished, or begun, or empty; then `verify` says what it is."""
    from shardtool.errors import SourceNotFound
    from shardtool.indexing.bare_shards import find_shards, is_folder
    from shardtool.packing.destination import is_ours
    from shardtool.tokens.verify import pair_prefixes

    if len(places) != 1 or not is_folder(places[0]):
        return False
    if is_ours(places[0]):
        return True
    if pair_prefixes(places):
        return False
    try:
        return not find_shards(places)
    except SourceNotFound:
        return True


def _size(path: str) -> int:
    """Bytes of a shard, 0 where it is not there."""
    from shardtool.storage.files import file_size

    try:
        return file_size(path)
    except FileNotFoundError:
        return 0


def _extent(path: str) -> tuple[int, int]:
    """(bytes, shards) of a data set, zeros where its manifest is damaged or gone."""
    from shardtool.errors import FormatError, SourceNotFound
    from shardtool.manifest import load_manifest

    try:
        manifest = load_manifest(path)
    except (FormatError, SourceNotFound):
        return 0, 0
    return manifest.num_bytes, len(manifest.shards)
