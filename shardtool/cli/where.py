"""`shardtool where`: which epoch, step, rank, loader worker and slot reads one sample."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from shardtool.cli.options import Command, Output, output_options
from shardtool.cli.reading_options import load_state_file, reading_options, wish_of
from shardtool.cli.s3_options import s3_options
from shardtool.report.text import json_key

if TYPE_CHECKING:
    from shardtool.assignment.assignment import Assignment
    from shardtool.reading.place import Reading
    from shardtool.reading.reading import Dataset

SCHEMA = "shardtool/where/1"


@click.command(
    cls=Command,
    examples=(
        "shardtool where out/ cats/0001 --world-size 16 --epoch 3",
        "shardtool where out/ cats/0001 --state state.json --world-size 64 --batch-size 1024",
        "shardtool where out/ cats/0001 --world-size 16 --json | jq .readings",
    ),
    exit_codes=(4, 5, 6, 8),
)
@click.argument("out", metavar="OUT")
@click.argument("key", metavar="KEY")
@reading_options
@s3_options
@output_options
def command(output: Output, out: str, key: str, **chosen: Any) -> None:
    """Say when, and by whom, the sample KEY of OUT is read; give the options of the run, or its state."""
    from shardtool.assignment.assignment import assign
    from shardtool.assignment.lookup import check_split, find_sample
    from shardtool.reading.reading import Dataset
    from shardtool.report.assign import order_fields, render_reading

    state = load_state_file(chosen["state"])
    with Dataset.open(out) as dataset:
        shard, row = find_sample(dataset, key, check_split(dataset, chosen["split"] or ""))
        name = dataset.index(shard).key(row)
        wish = replace(wish_of(chosen), split=dataset.manifest.shards[shard].split)
        # Steps count from where the run began: --epoch says which reading is meant, not where that is.
        found = assign(dataset.manifest, replace(wish, epoch=None), state)
        epoch = found.epoch if wish.epoch is None else wish.epoch
        document = where_document(dataset, found, name, shard, row, epoch)
    text = render_reading(document, name, order_fields(found), ascii_only=not output.unicode)
    output.result(document, text)
    for note in found.notes:
        output.warn(note)


def where_document(dataset: Dataset, found: Assignment, key: bytes, shard: int, row: int, epoch: int) -> dict[str, Any]:
    """The JSON document."""
    from shardtool.assignment.files import extents_of, order_document
    from shardtool.reading.place import position_of, readings_of, reason_unread

    position = position_of(found, shard, row, epoch)
    readings = readings_of(found.deal, position)
    extents = extents_of(dataset)
    offsets, sizes = extents(shard) if extents else (None, None)
    return {
        "schema": SCHEMA,
        "dataset_id": found.dataset_id,
        **json_key(key),
        "split": found.shards.name,
        "shard": shard,
        "path": dataset.manifest.shards[shard].path,
        "sample": row,
        "offset": None if offsets is None else int(offsets[row]),
        "bytes": None if sizes is None else int(sizes[row]),
        "world_size": found.deal.world_size,
        "num_nodes": found.num_nodes,
        "loader_workers": found.wish.loader_workers,
        "batch_size": found.deal.batch_size,
        "policy": found.deal.policy,
        "order": order_document(found),
        "start": found.position,
        "epoch": epoch,
        "position": position,
        "readings": [_reading_document(found, reading) for reading in readings],
        "reason": "" if readings else reason_unread(found.deal, position),
    }


def _reading_document(found: Assignment, reading: Reading) -> dict[str, Any]:
    return {
        "step": reading.step,
        "rank": reading.rank,
        "node": found.node_of(reading.rank),
        "local_rank": reading.rank // found.num_nodes,
        "worker": reading.step % max(1, found.wish.loader_workers),
        "slot": reading.slot,
        "is_valid": reading.is_valid,
    }
