"""The plan of a token data set on disk: `.shardtool/plan/000.arrow`, a row a shard, and `plan.json`, written last.

The table's metadata say which runs there are and which documents belong to which split. `inputs.arrow` lists the files
of the source with their guards, so that a later run can tell whether they are the same. Each table has a digest.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from shardtool import columns
from shardtool.errors import FormatError
from shardtool.names import HIDDEN
from shardtool.storage import open_place
from shardtool.tokens.files import InputFile
from shardtool.tokens.plan import Selection, TokenPlan, TokenShard
from shardtool.tokens.runs import RunInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.token_options import TokenOptions
    from shardtool.tokens.tokenizer import TokenizerSpec

SHARDS, DROPPED, INPUTS = (f"{HIDDEN}/plan/{name}.arrow" for name in ("000", "dropped", "inputs"))
_META = b"shardtool"
_DIGEST = b"xxh3_64"  # of the table and its metadata, in the metadata of its one batch
_SHARD_FIELDS = {
    "split": pa.int32(),
    "first": pa.uint64(),
    "last": pa.uint64(),
    "tokens": pa.int64(),
    "sequences": pa.int64(),
    "skip": pa.int64(),
    "first_sequence": pa.int64(),
    "blocks": pa.list_(pa.uint64()),
}


@dataclass(frozen=True)
class ShardPlan:
    """All that packing a shard needs."""

    shards: tuple[TokenShard, ...]
    selection: Selection
    runs: tuple[RunInfo, ...]
    dtype: str
    is_sorted: bool
    context: int
    packing: str
    pad: int | None


def store_shards(
    out: str,
    plan: TokenPlan,
    runs: Sequence[RunInfo],
    options: TokenOptions,
    spec: TokenizerSpec,
    *,
    is_sorted: bool,
    durable: bool,
) -> None:
    """Write the table of shards and the table of documents left out."""
    meta = {
        "splits": list(plan.selection.names),
        "thresholds": list(plan.selection.thresholds),
        "runs": [asdict(run) for run in runs],
        "dtype": plan.dtype,
        "is_sorted": is_sorted,
        "context": options.context,
        "packing": options.packing,
        "pad": spec.pad,
    }
    rows = [asdict(shard) for shard in plan.shards]
    values = [pa.array([row[name] for row in rows], kind) for name, kind in _SHARD_FIELDS.items()]
    schema = pa.schema(list(_SHARD_FIELDS.items()), metadata={_META: json.dumps(meta).encode()})
    dropped = np.ascontiguousarray(plan.selection.dropped)
    dropped_schema = pa.schema([("hash", pa.uint64()), ("split", pa.uint64())])
    dropped_columns = [pa.array(dropped[:, 0]), pa.array(dropped[:, 1])]
    place = open_place(out)
    place.put(DROPPED, _encode(dropped_schema, dropped_columns), tag="plan", durable=durable)
    place.put(SHARDS, _encode(schema, values), tag="plan", durable=durable)


def _encode(schema: Any, values: list[Any]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        batch = pa.record_batch(values, schema=schema)
        writer.write_batch(batch, custom_metadata={_DIGEST: _digest_of(batch, schema)})
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _digest_of(batch: Any, schema: Any) -> str:
    """xxh3_64, 16 hex digits, over the metadata, then the name and the values of each column."""
    digest = xxhash.xxh3_64((schema.metadata or {}).get(_META, b""))
    for name, column in zip(schema.names, batch.columns, strict=True):
        digest.update(b"\0" + name.encode() + b"\0")
        for chunk in _canonical(column):
            digest.update(chunk)
    found: str = digest.hexdigest()
    return found


def _canonical(column: Any) -> Iterator[Any]:
    """The type and the values of a column as bytes that tell them apart; there are no nulls."""
    if column.null_count:
        raise ValueError("it has nulls")
    if pa.types.is_list(column.type):
        yield np.diff(column.offsets.to_numpy()).data
        yield from _canonical(column.flatten())
        return
    yield str(column.type).encode()
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        yield from columns.canonical(column.cast(pa.binary()))
    else:
        yield np.ascontiguousarray(column.to_numpy()).data


def _read(out: str, path: str) -> tuple[Any, dict[str, Any]]:
    place = open_place(out)
    full = place.shown(path)
    try:
        with pa.memory_map(os.fsencode(full)) if place.is_local else pa.BufferReader(place.read(path)) as source:
            reader = pa.ipc.open_file(source)
            batch, told = reader.get_batch_with_custom_metadata(0)
            batch.validate(full=True)
            if (
                told
                and _DIGEST in told
                and told[_DIGEST].decode("ascii", "replace") != _digest_of(batch, reader.schema)
            ):
                raise ValueError("it is not what was stored")
            meta = json.loads((reader.schema.metadata or {}).get(_META, b"{}"))
    except (OSError, pa.ArrowException, AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"the stored plan {full} cannot be read: {error}",
            hint="run the same command with --overwrite to plan and pack again",
            where={"path": full},
        ) from error
    return batch, meta


def load_shards(out: str) -> ShardPlan:
    """The inverse of `store_shards`.

    Raises:
        FormatError: the plan is gone or damaged.
    """
    batch, meta = _read(out, SHARDS)
    dropped, _ = _read(out, DROPPED)
    rows = batch.to_pylist()
    pairs = np.stack([dropped.column(name).to_numpy() for name in ("hash", "split")], axis=1)
    return ShardPlan(
        shards=tuple(TokenShard(**{**row, "blocks": tuple(row["blocks"])}) for row in rows),
        selection=Selection(tuple(meta["splits"]), tuple(meta["thresholds"]), pairs),
        runs=tuple(RunInfo(**run) for run in meta["runs"]),
        dtype=meta["dtype"],
        is_sorted=meta["is_sorted"],
        context=meta["context"],
        packing=meta["packing"],
        pad=meta["pad"],
    )


def store_inputs(out: str, files: Sequence[InputFile], *, durable: bool) -> None:
    """Write the list of source files with their guards."""
    schema = pa.schema(
        [
            ("root", pa.binary()),
            ("path", pa.binary()),
            ("size", pa.int64()),
            ("mtime_ns", pa.int64()),
            ("kind", pa.string()),
            ("compression", pa.string()),
            ("version", pa.string()),
            ("split", pa.string()),
        ]
    )
    rows = [{**vars(file), "root": os.fsencode(file.root)} for file in files]
    values = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    open_place(out).put(INPUTS, _encode(schema, values), tag="plan", durable=durable)


def load_inputs(out: str) -> list[InputFile]:
    """The inverse of `store_inputs`; earlier versions stored roots as text."""
    batch, _ = _read(out, INPUTS)
    return [InputFile(**{**row, "root": os.fsdecode(row["root"])}) for row in batch.to_pylist()]
