"""An S3 Inventory stands for a listing: in CSV, Parquet and ORC, with old versions, odd keys and damaged files."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import orc, parquet

from shardtool.errors import SourceError, SourceNotFound
from shardtool.sources import s3_cache
from shardtool.sources.s3_inventory import load
from shardtool.storage.s3.client import client_for
from shardtool.storage.s3.settings import S3Settings

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.storage.s3.client import S3Client
    from shardtool.storage.s3.pages import Objects

CSV_SCHEMA = "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag"
CSV = """\
"b","data/a+b%2Fc.jpg","v1","true","false","3","2026-01-31T12:00:00.000Z","e1"
"b","data/old.jpg","v0","false","false","4","2026-01-30T12:00:00.000Z","e0"
"b","data/gone.jpg","v2","true","true","","2026-01-30T12:00:00.000Z",""
"b","data/%C3%A4%0A.jpg","v3","true","false","5","2026-01-31T12:00:01.000Z","e3-2"
"b","other/x.jpg","v4","true","false","6","2026-01-31T12:00:01.000Z","e4"
"""
TIME_NS = 1_769_860_800_000_000_000


@pytest.fixture
def client() -> S3Client:
    return client_for(S3Settings(endpoint_url="http://127.0.0.1:9", region="us-east-1"))


def inventory(folder: Path, kind: str, data: bytes, schema: str, **other: Any) -> str:
    """Path of a manifest beside its data, as a copied inventory lies."""
    (folder / "data").mkdir()
    (folder / "data" / "part").write_bytes(data)
    (folder / "2026-02-01T00-00Z").mkdir()
    place = folder / "2026-02-01T00-00Z" / "manifest.json"
    md5 = hashlib.md5(data).hexdigest()
    manifest = {
        "sourceBucket": "b",
        "destinationBucket": "arn:aws:s3:::inventories",
        "creationTimestamp": "1769904000000",
        "fileFormat": kind,
        "fileSchema": schema,
        "files": [{"key": "b/all/data/part", "size": len(data), "MD5checksum": md5}],
    }
    place.write_text(json.dumps({**manifest, **other}))
    return str(place)


def columns() -> pa.Table:
    return pa.table(
        {
            "bucket": ["b", "b"],
            "key": ["data/ä+%41", "data/two"],
            "size": pa.array([3, 4], pa.int64()),
            "last_modified_date": pa.array([TIME_NS // 1_000_000, TIME_NS // 1_000_000], pa.timestamp("ms")),
            "e_tag": ['"e1"', None],
            "is_latest": [True, True],
        }
    )


def pairs(objects: Objects) -> dict[bytes, tuple[int, int, bytes]]:
    columns = (objects.keys.to_pylist(), objects.sizes.tolist(), objects.mtimes_ns.tolist(), objects.etags.to_pylist())
    return {key: (size, time, etag) for key, size, time, etag in zip(*columns, strict=True)}


@pytest.mark.parametrize("compress", [gzip.compress, bytes])
def test_csv_tells_the_latest_objects_below_the_prefix(tmp_path: Path, client: S3Client, compress: Any) -> None:
    place = inventory(tmp_path, "CSV", compress(CSV.encode()), CSV_SCHEMA)
    found = load(client, place, "b", b"data/")
    assert pairs(found.objects) == {
        b"data/a b/c.jpg": (3, TIME_NS, b"e1"),
        "data/ä\n.jpg".encode(): (5, TIME_NS + 10**9, b"e3-2"),
    }
    assert found.time_s == 1_769_904_000


def test_parquet_keys_are_taken_as_they_are(tmp_path: Path, client: S3Client) -> None:
    sink = io.BytesIO()
    parquet.write_table(columns(), sink)
    found = load(client, inventory(tmp_path, "Parquet", sink.getvalue(), "message"), "b", b"")
    assert pairs(found.objects) == {"data/ä+%41".encode(): (3, TIME_NS, b"e1"), b"data/two": (4, TIME_NS, b"")}


def test_orc_tells_the_same(tmp_path: Path, client: S3Client) -> None:
    sink = io.BytesIO()
    orc.write_table(columns(), sink)
    found = load(client, inventory(tmp_path, "ORC", sink.getvalue(), "struct"), "b", b"data/")
    assert pairs(found.objects) == {"data/ä+%41".encode(): (3, TIME_NS, b"e1"), b"data/two": (4, TIME_NS, b"")}


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"sourceBucket": "c"}, "lists bucket c, not b"),
        ({"fileFormat": "XLS"}, "format XLS"),
        ({"files": [{"key": "data/part", "MD5checksum": "0" * 32}]}, "damaged"),
        ({"fileSchema": "Bucket, Name, A, B, C, Size, D, E"}, "no column for the key"),
    ],
)
def test_an_inventory_that_cannot_be_used_says_why(
    tmp_path: Path, client: S3Client, other: dict[str, Any], told: str
) -> None:
    place = inventory(tmp_path, "CSV", CSV.encode(), CSV_SCHEMA, **other)
    with pytest.raises(SourceError, match=told):
        load(client, place, "b", b"")


def test_a_missing_file_of_an_inventory_is_named(tmp_path: Path, client: S3Client) -> None:
    place = inventory(tmp_path, "CSV", CSV.encode(), CSV_SCHEMA)
    (tmp_path / "data" / "part").unlink()
    with pytest.raises(SourceNotFound, match=r"data/part"):
        load(client, place, "b", b"")


def test_what_is_no_manifest_is_refused(tmp_path: Path, client: S3Client) -> None:
    (tmp_path / "manifest.json").write_text('{"files": []}')
    with pytest.raises(SourceError, match="it has no fileFormat"):
        load(client, str(tmp_path / "manifest.json"), "b", b"")


def test_an_empty_inventory_lists_nothing(tmp_path: Path, client: S3Client) -> None:
    assert load(client, inventory(tmp_path, "CSV", b"", CSV_SCHEMA), "b", b"").objects.num_rows == 0


@pytest.mark.parametrize("name", [b"list.arrow", b"caf\xe9.arrow"])
def test_a_stored_listing_comes_back_with_its_age(tmp_path: Path, client: S3Client, name: bytes) -> None:
    objects = load(client, inventory(tmp_path, "CSV", CSV.encode(), CSV_SCHEMA), "b", b"").objects
    path = str(tmp_path / os.fsdecode(name))
    assert s3_cache.load(path, "s3://b", "http://e") is None
    s3_cache.store(path, "s3://b", "http://e", objects, 7.0)
    known = s3_cache.load(path, "s3://b", "http://e")
    assert known is not None
    assert (pairs(known.objects), known.time_s) == (pairs(objects), 7.0)


@pytest.mark.parametrize(("root", "endpoint"), [("s3://c", "http://e"), ("s3://b", "http://f")])
def test_a_stored_listing_of_another_place_is_refused(
    tmp_path: Path, client: S3Client, root: str, endpoint: str
) -> None:
    path = str(tmp_path / "list.arrow")
    empty = load(client, inventory(tmp_path, "CSV", b"", CSV_SCHEMA), "b", b"").objects
    s3_cache.store(path, "s3://b", "http://e", empty, 7.0)
    with pytest.raises(SourceError, match="it lists s3://b at http://e"):
        s3_cache.load(path, root, endpoint)


def test_a_file_that_is_no_listing_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("mine")
    with pytest.raises(SourceError, match="it is no listing"):
        s3_cache.load(str(tmp_path / "list"), "s3://b", "http://e")
    assert (tmp_path / "list").read_text() == "mine"
