"""What the servers of these tests do and do not: the ground on which the other tests stand."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from s3_servers import Bucket

ODD_KEYS = (
    "a b",
    "a//b",
    "a/./b",
    "a/../b",
    "back\\slash",
    "new\nline",
    "ä/ö",
    "日本",
    "k",
    "k/x",
    "plus+%25",
    "x" * 300,
)


def status(error: pytest.ExceptionInfo[ClientError]) -> int:
    return int(error.value.response["ResponseMetadata"]["HTTPStatusCode"])


def test_an_object_comes_back_with_its_md5_as_etag(bucket: Bucket) -> None:
    bucket.put({"one": b"body"})
    answer = bucket.server.client().get_object(Bucket=bucket.name, Key="one")
    assert answer["Body"].read() == b"body"
    assert answer["ETag"] == f'"{hashlib.md5(b"body").hexdigest()}"'


def test_a_wrong_secret_is_refused(bucket: Bucket) -> None:
    import dataclasses

    stranger = dataclasses.replace(bucket.server, secret_key="wrong").client()
    with pytest.raises(ClientError) as error:
        stranger.list_objects_v2(Bucket=bucket.name)
    assert status(error) == 403


def test_a_condition_that_fails_is_answered_412(bucket: Bucket) -> None:
    bucket.put({"one": b"body"})
    with pytest.raises(ClientError) as error:
        bucket.server.client().get_object(Bucket=bucket.name, Key="one", IfMatch='"0"')
    assert status(error) == 412


def test_ceph_keeps_every_odd_key_in_byte_order(ceph_bucket: Bucket) -> None:
    ceph_bucket.put(dict.fromkeys(ODD_KEYS, b"x"))
    assert ceph_bucket.keys() == sorted(ODD_KEYS, key=str.encode)


def test_seaweedfs_lists_folders_first(seaweedfs_bucket: Bucket) -> None:
    seaweedfs_bucket.put({"a-b": b"x", "a/b": b"x"})
    assert seaweedfs_bucket.keys() == ["a/b", "a-b"]
