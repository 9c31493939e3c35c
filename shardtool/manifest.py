"""manifest.json: all shards with sizes, counts and digests, written last. A data set without one is unfinished."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardtool import __version__
from shardtool.errors import DestinationExists, FormatError, SourceNotFound, UsageProblem
from shardtool.formats import get_format
from shardtool.hashing import digest_chunks
from shardtool.model import FileRecord, Manifest, ManifestShard, PartTotals
from shardtool.names import FAN_OUT_ABOVE, HIDDEN
from shardtool.packing.receipts import file_document, file_record, fold_receipts, parts_document, parts_from
from shardtool.storage import open_place
from shardtool.storage.files import exists

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardtool.model import Receipt
    from shardtool.planning.plan_file import StoredPlan

__all__ = [
    "LABELS",
    "MANIFEST",
    "Manifest",
    "ManifestShard",
    "compose",
    "dataset_identity",
    "decode_manifest",
    "encode_labels",
    "encode_manifest",
    "load_manifest",
    "merge_parts",
    "no_manifest",
    "publish",
    "versions",
]

SCHEMA = "shardtool/manifest/1"
MANIFEST = "manifest.json"
LABELS = "labels.json"
MAX_COUNT = 1 << 62  # of samples or bytes: sums of them stay numbers of 64 bits
_PATH_OPTIONS = ("join", "files_from", "inventory")  # the manifest names files, never places


def dataset_identity(labels: FileRecord | None, shards: tuple[ManifestShard, ...]) -> str:
    """dataset_id: xxh3_128 over labels.json and each shard's names, samples, bytes and digests in order."""
    rows: list[Any] = [labels.xxh3_128 if labels else None]
    rows += [
        [shard.split, shard.num_samples, [[r.path, r.num_bytes, r.xxh3_128] for r in shard.packed_files]]
        for shard in shards
    ]
    return digest_chunks([json.dumps(rows, separators=(",", ":")).encode()])


def publish(out: str, stored: StoredPlan, receipts: list[Receipt], *, durable: bool) -> Manifest:
    """Write labels.json and manifest.json, then fold the receipts. All receipts of the plan must be given, in order."""
    place, labels = open_place(out), None
    if stored.label_names:
        labels = place.put(LABELS, encode_labels(stored.label_names), tag="labels", durable=durable)
    manifest = compose(stored, receipts, labels)
    shard_format = get_format(stored.options.format, stored.settings)
    side_files = [
        place.put(path, data, tag="side", durable=durable) for path, data in shard_format.side_files(manifest)
    ]
    manifest = replace(manifest, side_files=tuple(side_files))
    place.put(MANIFEST, encode_manifest(manifest), tag="manifest", durable=durable)
    fold_receipts(out, receipts, durable=durable)
    if len(manifest.shards) > FAN_OUT_ABOVE:
        _write_card(out, manifest, durable=durable)
    return manifest


def _write_card(out: str, manifest: Manifest, *, durable: bool) -> None:
    """README.md, without which Hugging Face finds no shards in folders; one that is there already stays."""
    from shardtool.dialects.hf_card import emission
    from shardtool.emitted import write_emissions

    with suppress(DestinationExists, UsageProblem):
        write_emissions(out, [emission(out, manifest)], durable=durable)


def encode_labels(names: Iterable[str]) -> bytes:
    """labels.json: the class names, one a line, in the order of their numbers."""
    return (json.dumps(list(names), ensure_ascii=False, indent=0) + "\n").encode()


def decode_labels(data: bytes) -> tuple[str, ...]:
    """The inverse of `encode_labels`; ValueError or TypeError for anything else."""
    return tuple(_text(name) for name in json.loads(data))


def compose(stored: StoredPlan, receipts: list[Receipt], labels: FileRecord | None) -> Manifest:
    """The manifest of a plan whose shards are all packed."""
    shards = tuple(
        ManifestShard(
            receipt.split,
            receipt.files,
            receipt.index,
            receipt.num_samples,
            receipt.payload_bytes,
            receipt.raw_bytes,
            receipt.raw_xxh3_128,
        )
        for receipt in receipts
    )
    failed = sum(receipt.failed_entries for receipt in receipts)
    ledger = stored.ledger.document()
    ledger["packed"] -= failed
    ledger["failed"] += failed
    return Manifest(
        format=stored.options.format,
        compression=stored.settings.compress,
        plan_id=stored.plan_id,
        dataset_id=dataset_identity(labels, shards),
        shards=shards,
        options=_shown_options(stored.options.document()),
        membership=dict(stored.membership or {}),
        ledger=ledger,
        parts=merge_parts([receipt.parts for receipt in receipts]),
        labels=labels,
        created_by=versions(),
    )


def _shown_options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: os.path.basename(str(value)) if name in _PATH_OPTIONS else value for name, value in options.items()}


def versions() -> dict[str, str]:
    """Versions of what can change an output byte."""
    import numpy as np
    import pyarrow as pa

    return {"shardtool": __version__, "numpy": str(np.__version__), "pyarrow": str(pa.__version__)}


def merge_parts(tables: list[dict[str, PartTotals]]) -> dict[str, PartTotals]:
    """Totals over several shards."""
    merged: dict[str, PartTotals] = {}
    for table in tables:
        for name, totals in table.items():
            known = merged.get(name)
            merged[name] = totals if known is None else _sum(known, totals)
    return dict(sorted(merged.items()))


def _sum(one: PartTotals, two: PartTotals) -> PartTotals:
    return PartTotals(
        one.samples + two.samples,
        one.num_bytes + two.num_bytes,
        min(one.smallest, two.smallest),
        max(one.largest, two.largest),
    )


def encode_manifest(manifest: Manifest) -> bytes:
    """manifest.json: head first, then one shard a line."""
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "format": manifest.format,
        "compression": manifest.compression,
        "plan_id": manifest.plan_id,
        "dataset_id": manifest.dataset_id,
        "created_by": manifest.created_by,
        "options": manifest.options,
        "membership": manifest.membership,
        "totals": {
            "samples": manifest.num_samples,
            "shards": len(manifest.shards),
            "bytes": manifest.num_bytes,
            "payload_bytes": manifest.payload_bytes,
            "sources": manifest.ledger.get("packed", 0),
        },
        "ledger": manifest.ledger,
        "parts": parts_document(manifest.parts),
        "splits": manifest.splits(),
        "labels": file_document(manifest.labels) if manifest.labels else None,
    }
    if manifest.side_files:
        head["side_files"] = [file_document(record) for record in manifest.side_files]
    lines = [json.dumps(_shard_document(shard), separators=(",", ":")) for shard in manifest.shards]
    text = json.dumps(head, indent=1, ensure_ascii=False)
    whole = text[:-2] + ',\n "shards": [\n' + ",\n".join(lines) + "\n ]\n}\n"
    return whole.encode("utf-8", "backslashreplace")  # a pattern in bytes that are not UTF-8: \udcXX, as JSON has it


def _shard_document(shard: ManifestShard) -> dict[str, Any]:
    document = {
        "split": shard.split,
        "files": [file_document(record) for record in shard.files],
        "index": file_document(shard.index) if shard.index else None,
        "samples": shard.num_samples,
        "payload_bytes": shard.payload_bytes,
    }
    if shard.raw_bytes:
        document |= {"raw_bytes": shard.raw_bytes, "raw_xxh3_128": shard.raw_xxh3_128}
    if shard.packed is not None:
        document["packed"] = file_document(shard.packed)
    return document


def load_manifest(out: str) -> Manifest:
    """The manifest of the data set at `out`, a folder or URL.

    Raises:
        SourceNotFound: there is none.
        FormatError: it is not ours, or damaged.
    """
    path = open_place(out).shown(MANIFEST)
    try:
        data = open_place(out).read(MANIFEST)
    except FileNotFoundError as error:
        raise no_manifest(out) from error
    try:
        return decode_manifest(data)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"{path} is no manifest of ours, or it is damaged: {error}",
            hint="shardtool index OUT builds it again",
            where={"path": path},
        ) from error


def no_manifest(out: str) -> SourceNotFound:
    """The error for a place without a manifest: unfinished, no data set, or not there at all."""
    place = open_place(out)
    is_there = os.path.isdir(out) if place.is_local else next(iter(place.list()), None) is not None
    if exists(place, HIDDEN) if place.is_local else next(iter(place.list(f"{HIDDEN}/")), None) is not None:
        return SourceNotFound(
            f"{out} is unfinished: it has no {MANIFEST}",
            hint=f"shardtool pack {out} goes on with it; shardtool status {out} tells how far it is",
            where={"path": out},
        )
    what = f"holds no data set: there is no {MANIFEST}" if is_there else "does not exist"
    if place.is_local and not is_there and os.path.lexists(out):
        what = "is no folder"
    return SourceNotFound(
        f"{out} {what}",
        hint="name the folder that shardtool pack wrote" if place.is_local else "name the prefix that was packed to",
        where={"path": out},
    )


def decode_manifest(data: bytes) -> Manifest:
    """The inverse of `encode_manifest`; ValueError, TypeError or KeyError for anything else."""
    try:
        return _decoded(json.loads(data))
    except (AttributeError, RecursionError) as error:
        raise ValueError(f"it is malformed ({error})") from error


def _decoded(document: dict[str, Any]) -> Manifest:
    if document["schema"] != SCHEMA:
        raise ValueError(f"schema {document['schema']!r}")
    return Manifest(
        format=_name(document["format"]),
        compression=_text(document["compression"]),
        plan_id=_text(document["plan_id"]),
        dataset_id=_name(document["dataset_id"]),  # part of a staged folder's name
        shards=tuple(_decode_shard(entry) for entry in document["shards"]),
        options=_table(document["options"]),
        membership=_membership(document["membership"]),
        ledger=_ledger(document["ledger"]),
        parts=parts_from(document["parts"]),
        labels=_safe(file_record(document["labels"])) if document["labels"] else None,
        created_by=_table(document["created_by"]),
        side_files=tuple(_safe(file_record(record)) for record in document.get("side_files", ())),
    )


def _decode_shard(entry: dict[str, Any]) -> ManifestShard:
    if not entry["files"]:
        raise ValueError("a shard without files")
    return ManifestShard(
        split=_name(entry["split"]),
        files=tuple(_safe(file_record(record)) for record in entry["files"]),
        index=_safe(file_record(entry["index"])) if entry["index"] else None,
        num_samples=_count(entry["samples"]),
        payload_bytes=_count(entry["payload_bytes"]),
        raw_bytes=_count(entry.get("raw_bytes", 0)),
        raw_xxh3_128=str(entry.get("raw_xxh3_128", "")),
        packed=_safe(file_record(entry["packed"])) if entry.get("packed") else None,
    )


def _safe(record: FileRecord) -> FileRecord:
    """`record`, where its path stays inside the data set's folder."""
    names = _text(record.path).split("/")
    if names[0] == "" or ".." in names or "\0" in record.path:
        raise ValueError(f"path {record.path!r} leads out of the folder, or is none")
    _count(record.num_bytes)
    return record


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} where a text should be")
    value.encode()  # an escaped half of a surrogate pair is none
    return value


def _name(value: Any) -> str:
    """A text that may become part of a file's name."""
    if "/" in _text(value) or "\0" in value:
        raise ValueError(f"{value!r} where a name should be")
    return str(value)


def _count(value: Any) -> int:
    number = int(value)
    if not 0 <= number < MAX_COUNT:
        raise ValueError(f"a number of {number}")
    return number


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} where a table should be")
    return value


def _membership(value: Any) -> dict[str, Any]:
    if not isinstance(_table(value).get("seed", 0), int):
        raise TypeError(f"seed {value['seed']!r}")
    return _table(value)


def _ledger(value: Any) -> dict[str, Any]:
    """Sums of entries; empty where none were counted."""
    if _table(value):
        list(map(_count, (value["seen"], value["packed"], value["failed"], *value["ignored"].values())))
    return _table(value)
