"""Receipts: `.shardtool/receipts/00017.json` proves that shard 17 of a plan is complete.

Folded into one `.shardtool/receipts.jsonl` when the manifest is published. A receipt counts only for the plan it names,
and only while its files are there with their sizes.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shardtool.hashing import FileDigest
from shardtool.model import FileRecord, PartTotals, Receipt
from shardtool.names import FAN_OUT, FAN_OUT_ABOVE, HIDDEN
from shardtool.storage import open_place
from shardtool.storage.files import Sizes, exists, open_stream, read_many

if TYPE_CHECKING:
    from shardtool.storage.base import Place

SCHEMA = "shardtool/receipt/1"
FOLDER = f"{HIDDEN}/receipts"
FOLDED = f"{HIDDEN}/receipts.jsonl"


def receipt_path(shard: int, total: int) -> str:
    """Where the receipt of shard k lies, below the data set's folder."""
    folder = f"{FOLDER}/{shard // FAN_OUT:03d}" if total > FAN_OUT_ABOVE else FOLDER
    return f"{folder}/{shard:05d}.json"


def write_receipt(out: str, receipt: Receipt, total: int, *, tag: str, durable: bool) -> None:
    """Store a receipt; the last thing that happens to a shard."""
    data = encode_receipt(receipt) + b"\n"
    open_place(out).put(receipt_path(receipt.shard, total), data, tag=tag, durable=durable)


def encode_receipt(receipt: Receipt) -> bytes:
    """One line of JSON."""
    document = {
        "schema": SCHEMA,
        "plan_id": receipt.plan_id,
        "shard": receipt.shard,
        "split": receipt.split,
        "files": [file_document(record) for record in receipt.files],
        "index": file_document(receipt.index),
        "samples": receipt.num_samples,
        "payload_bytes": receipt.payload_bytes,
        "parts": parts_document(receipt.parts),
        "failed": [list(pair) for pair in receipt.failed],
        "failed_entries": receipt.failed_entries,
    }
    if receipt.raw_bytes:
        document |= {"raw_bytes": receipt.raw_bytes, "raw_xxh3_128": receipt.raw_xxh3_128}
    return json.dumps(document, separators=(",", ":")).encode()


def decode_receipt(line: bytes | str) -> Receipt:
    """The inverse of `encode_receipt`; ValueError, TypeError or KeyError for anything else."""
    document = json.loads(line)
    if document["schema"] != SCHEMA:
        raise ValueError(f"schema {document['schema']!r}")
    if not document["files"]:
        raise ValueError("a receipt without files")
    return Receipt(
        plan_id=str(document["plan_id"]),
        shard=int(document["shard"]),
        split=str(document["split"]),
        files=tuple(file_record(entry) for entry in document["files"]),
        index=file_record(document["index"]),
        num_samples=int(document["samples"]),
        payload_bytes=int(document["payload_bytes"]),
        parts=parts_from(document["parts"]),
        failed=tuple((str(pair[0]), str(pair[1])) for pair in document["failed"]),
        failed_entries=int(document["failed_entries"]),
        raw_bytes=int(document.get("raw_bytes", 0)),
        raw_xxh3_128=str(document.get("raw_xxh3_128", "")),
    )


def file_document(record: FileRecord) -> dict[str, Any]:
    """A FileRecord as JSON."""
    return {"path": record.path, "bytes": record.num_bytes, "xxh3_128": record.xxh3_128}


def file_record(document: dict[str, Any]) -> FileRecord:
    """The inverse of `file_document`."""
    return FileRecord(str(document["path"]), int(document["bytes"]), str(document["xxh3_128"]))


def parts_document(parts: dict[str, PartTotals]) -> dict[str, Any]:
    """Part totals as JSON, by name."""
    return {
        name: {"samples": total.samples, "bytes": total.num_bytes, "min": total.smallest, "max": total.largest}
        for name, total in sorted(parts.items())
    }


def parts_from(document: dict[str, Any]) -> dict[str, PartTotals]:
    """The inverse of `parts_document`; ValueError, TypeError or KeyError for anything else."""
    if not isinstance(document, dict):
        raise TypeError(f"parts {document!r}")
    return {
        name: PartTotals(int(entry["samples"]), int(entry["bytes"]), int(entry["min"]), int(entry["max"]))
        for name, entry in document.items()
    }


def read_receipts(out: str) -> dict[int, Receipt]:
    """Every receipt in `out`, a folder or URL, whatever its plan; unreadable ones count as absent."""
    place, found = open_place(out), dict[int, Receipt]()
    with suppress(FileNotFoundError):
        for line in place.read(FOLDED).splitlines():
            _collect(found, line)
    for _, data in read_many(place, _loose(place)):
        _collect(found, data)
    return found


def _collect(found: dict[int, Receipt], line: bytes) -> None:
    with suppress(ValueError, KeyError, TypeError, IndexError):
        receipt = decode_receipt(line)
        found[receipt.shard] = receipt


def _loose(place: Place) -> list[str]:
    names = (stat.path for stat in place.list(f"{FOLDER}/"))
    return [name for name in names if name.endswith(".json") and not name.rpartition("/")[2].startswith(".")]


def valid_receipts(
    out: str, receipts: dict[int, Receipt], plan_id: str, num_shards: int, *, deep: bool = False
) -> dict[int, Receipt]:
    """Those of a plan whose files are there with their sizes (`deep`: and digests)."""
    ours = {k: receipt for k, receipt in receipts.items() if k < num_shards and receipt.plan_id == plan_id}
    sizes = Sizes(open_place(out)) if ours else None
    return {k: receipt for k, receipt in ours.items() if sizes and is_valid(out, receipt, sizes, deep=deep)}


def is_valid(out: str, receipt: Receipt, sizes: Sizes, *, deep: bool = False) -> bool:
    """True where the files of a receipt are there with their sizes (`deep`: and digests)."""
    records = (*receipt.files, receipt.index)
    if any(sizes.of(record.path) != record.num_bytes for record in records):
        return False
    return not deep or all(digest_of(open_place(out).shown(r.path)) == r.xxh3_128 for r in records)


def digest_of(path: str) -> str:
    """xxh3_128 of a file or object, read in pieces of 1 MiB."""
    digest = FileDigest()
    buffer = memoryview(bytearray(1 << 20))
    with open_stream(path) as file:
        while got := file.readinto(buffer):
            digest.update(buffer[:got])
    return digest.hexdigest()


def fold_receipts(out: str, receipts: list[Receipt], *, durable: bool) -> None:
    """Put all receipts into one file, then remove the loose ones."""
    lines = b"".join(encode_receipt(receipt) + b"\n" for receipt in receipts)
    open_place(out).put(FOLDED, lines, tag="fold", durable=durable)
    remove_loose(out)


def has_loose(out: str) -> bool:
    """Whether receipts lie in files of their own, or their folder is still there."""
    place = open_place(out)
    if place.is_local:
        return os.path.isdir(place.shown(FOLDER))
    return next(iter(place.list(f"{FOLDER}/")), None) is not None


def remove_loose(out: str) -> None:
    """Remove the files of `.shardtool/receipts`, temps of killed attempts included, and the folder."""
    place = open_place(out)
    if not place.is_local:
        place.remove([stat.path for stat in place.list(f"{FOLDER}/")])
        return
    for folder, _, names in os.walk(os.path.join(out, FOLDER), topdown=False):
        for name in names:
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))
        with suppress(OSError):
            os.rmdir(folder)


def drop_receipts(out: str, shards: set[int], receipts: dict[int, Receipt], total: int, *, durable: bool) -> None:
    """Forget the receipts of `shards`, so that they are packed again."""
    kept = [receipt for shard, receipt in sorted(receipts.items()) if shard not in shards]
    place = open_place(out)
    if exists(place, FOLDED):
        fold_receipts(out, kept, durable=durable)
    place.remove(receipt_path(shard, total) for shard in shards)
