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
from shardtool.storage.local import put_file

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA = "shardtool/receipt/1"
FOLDER = f"{HIDDEN}/receipts"
FOLDED = f"{HIDDEN}/receipts.jsonl"


def receipt_path(shard: int, total: int) -> str:
    """Where the receipt of shard k lies, below the data set's folder."""
    folder = f"{FOLDER}/{shard // FAN_OUT:03d}" if total > FAN_OUT_ABOVE else FOLDER
    return f"{folder}/{shard:05d}.json"


def write_receipt(out: str, receipt: Receipt, total: int, *, tag: str, durable: bool) -> None:
    """Store a receipt; the last thing that happens to a shard."""
    put_file(out, receipt_path(receipt.shard, total), encode_receipt(receipt) + b"\n", tag=tag, durable=durable)


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
    """The inverse of `encode_receipt`; ValueError or KeyError for anything else."""
    document = json.loads(line)
    if document["schema"] != SCHEMA:
        raise ValueError(f"schema {document['schema']!r}")
    return Receipt(
        plan_id=document["plan_id"],
        shard=document["shard"],
        split=document["split"],
        files=tuple(file_record(entry) for entry in document["files"]),
        index=file_record(document["index"]),
        num_samples=document["samples"],
        payload_bytes=document["payload_bytes"],
        parts=parts_from(document["parts"]),
        failed=tuple((pair[0], pair[1]) for pair in document["failed"]),
        failed_entries=document["failed_entries"],
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
    """The inverse of `parts_document`."""
    return {
        name: PartTotals(entry["samples"], entry["bytes"], entry["min"], entry["max"])
        for name, entry in document.items()
    }


def read_receipts(out: str) -> dict[int, Receipt]:
    """Every receipt in the folder `out`, whatever its plan; unreadable ones count as absent."""
    found: dict[int, Receipt] = {}
    with suppress(FileNotFoundError), open(os.path.join(out, FOLDED), "rb") as file:
        for line in file:
            _collect(found, line)
    for path in _loose(out):
        with suppress(FileNotFoundError), open(path, "rb") as file:
            _collect(found, file.read())
    return found


def _collect(found: dict[int, Receipt], line: bytes) -> None:
    with suppress(ValueError, KeyError, TypeError, IndexError):
        receipt = decode_receipt(line)
        found[receipt.shard] = receipt


def _loose(out: str) -> Iterable[str]:
    for folder, _, names in os.walk(os.path.join(out, FOLDER)):
        for name in names:
            if name.endswith(".json") and not name.startswith("."):
                yield os.path.join(folder, name)


def is_valid(out: str, receipt: Receipt, plan_id: str, *, deep: bool = False) -> bool:
    """True where the receipt is of this plan and its files are there with their sizes (`deep`: and digests)."""
    if receipt.plan_id != plan_id:
        return False
    return all(_is_there(out, record, deep=deep) for record in (*receipt.files, receipt.index))


def _is_there(out: str, record: FileRecord, *, deep: bool) -> bool:
    path = os.path.join(out, record.path)
    try:
        if os.stat(path).st_size != record.num_bytes:
            return False
    except OSError:
        return False
    return not deep or digest_of(path) == record.xxh3_128


def digest_of(path: str) -> str:
    """xxh3_128 of a file, read in pieces of 1 MiB."""
    digest = FileDigest()
    buffer = memoryview(bytearray(1 << 20))
    with open(path, "rb", buffering=0) as file:
        while got := file.readinto(buffer):
            digest.update(buffer[:got])
    return digest.hexdigest()


def fold_receipts(out: str, receipts: list[Receipt], *, durable: bool) -> None:
    """Put all receipts into one file, then remove the loose ones."""
    lines = b"".join(encode_receipt(receipt) + b"\n" for receipt in receipts)
    put_file(out, FOLDED, lines, tag="fold", durable=durable)
    remove_loose(out)


def remove_loose(out: str) -> None:
    """Remove the files of `.shardtool/receipts`, temps of killed attempts included, and the folder."""
    for folder, _, names in os.walk(os.path.join(out, FOLDER), topdown=False):
        for name in names:
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))
        with suppress(OSError):
            os.rmdir(folder)


def drop_receipts(out: str, shards: set[int], receipts: dict[int, Receipt], total: int, *, durable: bool) -> None:
    """Forget the receipts of `shards`, so that they are packed again."""
    kept = [receipt for shard, receipt in sorted(receipts.items()) if shard not in shards]
    if os.path.exists(os.path.join(out, FOLDED)):
        fold_receipts(out, kept, durable=durable)
    for shard in shards:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(out, receipt_path(shard, total)))
