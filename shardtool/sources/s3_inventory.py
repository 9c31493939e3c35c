"""An S3 Inventory as a listing: manifest.json names files of CSV (gzip), Parquet or ORC; each lists keys and sizes.

The format: Amazon S3 User Guide, "Amazon S3 Inventory". Keys are URL-encoded in CSV alone. Where old versions are
listed, too, only the latest that is no delete marker counts. Every file is checked against the MD5 of the manifest.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.errors import SourceError, SourceNotFound
from shardtool.storage.s3.address import SCHEME, split_url
from shardtool.storage.s3.pages import Objects, concat

if TYPE_CHECKING:
    from shardtool.model import BinaryArray
    from shardtool.storage.s3.client import S3Client

FORMATS = ("CSV", "Parquet", "ORC")
# column -> its names in CSV schemas and in Parquet and ORC files
NAMES = {
    "bucket": ("Bucket", "bucket"),
    "key": ("Key", "key"),
    "size": ("Size", "size"),
    "etag": ("ETag", "e_tag"),
    "time": ("LastModifiedDate", "last_modified_date"),
    "is_latest": ("IsLatest", "is_latest"),
    "is_deleted": ("IsDeleteMarker", "is_delete_marker"),
}


@dataclass(frozen=True)
class Inventory:
    """What it lists, and when it was begun, seconds since 1970."""

    objects: Objects
    time_s: float


def load(client: S3Client, place: str, bucket: str, base: bytes) -> Inventory:
    """The objects of `bucket` whose keys begin with `base`.

    Args:
        place: of manifest.json, a URL or a path. Data files lie in the bucket that it names; or, for a path, below the
            folder that holds `data/`, as a copy of the inventory does.

    Raises:
        SourceNotFound: there is no manifest, or a file of it is missing.
        SourceError: it is no inventory, is about another bucket, or a file of it is damaged.
    """
    manifest = _manifest(place, _read(client, place))
    if manifest["sourceBucket"] != bucket:
        raise _useless(place, f"it lists bucket {manifest['sourceBucket']}, not {bucket}")
    if manifest["fileFormat"] not in FORMATS:
        raise _useless(place, f"format {manifest['fileFormat']} is none of {', '.join(FORMATS)}")
    parts = []
    for file in manifest["files"]:
        where = _place_of(place, manifest, file["key"])
        data = _read(client, where)
        if file.get("MD5checksum") not in (None, hashlib.md5(data, usedforsecurity=False).hexdigest()):
            raise _useless(place, f"{where} is damaged: its MD5 is not that of the manifest")
        parts.append(_objects(_table(data, manifest), base, is_csv=manifest["fileFormat"] == "CSV"))
    return Inventory(concat(parts), int(manifest.get("creationTimestamp", 0)) / 1000)


def _manifest(place: str, data: bytes) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(data)
        missing = {"sourceBucket", "fileFormat", "fileSchema", "files"} - set(manifest)
    except (ValueError, TypeError) as error:
        raise _useless(place, f"it is no JSON document ({error})") from error
    if missing:
        raise _useless(place, f"it has no {', '.join(sorted(missing))}")
    return manifest


def _place_of(place: str, manifest: dict[str, Any], key: str) -> str:
    if place.startswith(SCHEME):
        return f"{SCHEME}{manifest['destinationBucket'].rpartition(':')[2]}/{key}"
    return os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(place))), "data", os.path.basename(key))


def _read(client: S3Client, place: str) -> bytes:
    if place.startswith(SCHEME):
        body: bytes = client.request("GET", *split_url(place)).body
        return body
    try:
        with open(place, "rb") as file:
            return file.read()
    except OSError as error:
        raise SourceNotFound(
            f"inventory file {place} cannot be read: {error.strerror}",
            hint="--inventory takes the manifest.json of an S3 Inventory; its files lie in data/ beside its folder",
            where={"path": place},
        ) from error


def _table(data: bytes, manifest: dict[str, Any]) -> Any:
    """A table with the columns of NAMES that are there, by these names."""
    kind = manifest["fileFormat"]
    if kind == "CSV":
        table = _csv_table(data, [title.strip() for title in manifest["fileSchema"].split(",")])
    elif kind == "Parquet":
        from pyarrow import parquet

        table = parquet.read_table(io.BytesIO(data))
    else:
        from pyarrow import orc

        table = orc.read_table(io.BytesIO(data))
    found = {name: title for name, titles in NAMES.items() for title in titles if title in table.column_names}
    return pa.table({name: table[title] for name, title in found.items()})


def _csv_table(data: bytes, titles: list[str]) -> Any:
    from pyarrow import csv

    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    if not text:
        return pa.table({title: pa.array([], pa.binary()) for title in titles})
    types = dict.fromkeys(titles, pa.binary())
    return csv.read_csv(
        io.BytesIO(text),
        read_options=csv.ReadOptions(column_names=titles),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(column_types=types, strings_can_be_null=False),
    )


def _objects(table: Any, base: bytes, *, is_csv: bool) -> Objects:
    for needed in ("key", "size"):
        if needed not in table.column_names:
            raise SourceError(
                f"the inventory has no column for the {needed} of objects", hint="add the field to its configuration"
            )
    table = _latest(table)
    keys = _column(table, "key", pa.large_binary())
    if is_csv:
        keys = pa.array([unquote_to_bytes(key.replace(b"+", b" ")) for key in keys.to_pylist()], pa.large_binary())
    rows = len(keys)
    sizes = pc.fill_null(_column(table, "size", pa.int64()), 0).to_numpy().astype(np.int64)
    etags = pa.array([b""] * rows, pa.binary())
    if "etag" in table.column_names:
        etags = pc.fill_null(_column(table, "etag", pa.binary()), b"")
        etags = pc.replace_substring(etags, b'"', b"") if pc.any(pc.match_substring(etags, b'"')).as_py() else etags
    objects = Objects(keys, sizes, _times(table, rows), etags)
    return objects.where(pc.starts_with(keys, base).to_numpy(zero_copy_only=False)) if base else objects


def _latest(table: Any) -> Any:
    for name, wanted in (("is_latest", True), ("is_deleted", False)):
        if name in table.column_names:
            flags = table[name]
            if not pa.types.is_boolean(flags.type):
                flags = pc.equal(pc.utf8_lower(flags.cast(pa.string())), "true")
            flags = pc.fill_null(flags, wanted)
            table = table.filter(flags if wanted else pc.invert(flags))
    return table


def _column(table: Any, name: str, kind: Any) -> BinaryArray:
    column = table[name].combine_chunks()
    column = pa.array([], table[name].type) if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_integer(kind) and not pa.types.is_integer(column.type):
        column = column.cast(pa.string())
        column = pc.if_else(pc.equal(column, ""), "0", column)
    return column.cast(kind)


def _times(table: Any, rows: int) -> Any:
    if "time" not in table.column_names:
        return np.zeros(rows, np.int64)
    column = _column(table, "time", table["time"].type)
    if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        texts = [(text or "1970-01-01").rstrip("Zz") or "1970-01-01" for text in column.cast(pa.string()).to_pylist()]
        return np.array(texts, "datetime64[ns]").astype(np.int64) if texts else np.zeros(0, np.int64)
    if pa.types.is_integer(column.type):  # milliseconds
        return pc.fill_null(column, 0).to_numpy().astype(np.int64) * 1_000_000
    nanoseconds = column.cast(pa.timestamp("ns", tz=column.type.tz)).cast(pa.int64())
    return pc.fill_null(nanoseconds, 0).to_numpy().astype(np.int64)


def _useless(place: str, why: str) -> SourceError:
    return SourceError(
        f"inventory {place} cannot be used: {why}",
        hint="give the manifest.json of an S3 Inventory of the source bucket",
        where={"url": place},
    )
