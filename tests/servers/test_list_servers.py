"""Listings of real servers are complete, whichever way the work is shared."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from shardtool.sources.s3 import list_bucket
from shardtool.storage.s3.client import client_for
from shardtool.storage.s3.listing import Listing
from shardtool.storage.s3.settings import S3Settings

if TYPE_CHECKING:
    from s3_servers import Bucket


def fill(bucket: Bucket, keys: list[str]) -> None:
    client = bucket.server.client()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: client.put_object(Bucket=bucket.name, Key=key, Body=b""), keys))


def test_folders_are_listed_side_by_side(bucket: Bucket) -> None:
    keys = [f"d/f{number % 20:02d}-{'x' * (number % 3)}/{number:04d}" for number in range(1500)]
    keys += [f"d/{number}" for number in range(20)]
    fill(bucket, keys)
    found = list_bucket(client_for(S3Settings.from_environ()), bucket.name, b"d/")
    assert sorted(found.keys.to_pylist()) == sorted(key.encode() for key in keys)


def test_ranges_of_a_flat_prefix_are_listed_side_by_side(ceph_bucket: Bucket) -> None:
    keys = ["a-0", "a/x", *(f"b{number:05d}" for number in range(2500))]
    fill(ceph_bucket, keys)
    client = client_for(S3Settings.from_environ())
    queries: list[dict[str, str]] = []

    def ask(query: tuple[tuple[str, str], ...]) -> bytes:
        queries.append(dict(query))
        body: bytes = client.request("GET", ceph_bucket.name, query=query).body
        return body

    found = Listing(ask, "ceph").objects(b"")
    assert sorted(found.keys.to_pylist()) == sorted(key.encode() for key in keys)
    assert any("start-after" in query for query in queries)  # the keys show that the store lists in byte order
