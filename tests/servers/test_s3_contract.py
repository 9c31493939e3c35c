"""Every engine keeps the same contract, on every server."""

from __future__ import annotations

import os
import random
import signal
from typing import TYPE_CHECKING

import pytest

from shardtool.errors import AccessDenied, DestinationError, SourceChanged, SourceNotFound
from shardtool.storage.s3.client import S3Client, client_for, forget_clients
from shardtool.storage.s3.exchange import Request
from shardtool.storage.s3.journal import open_uploads
from shardtool.storage.s3.many import Get, get_many
from shardtool.storage.s3.place import S3Place
from shardtool.storage.s3.settings import S3Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from s3_servers import Bucket

MIB = 1 << 20
BODY = random.Random(1).randbytes(40 * MIB)
ODD_KEYS = [
    "a b",
    "plus+and%25percent",
    "é/日本/😀",
    "k",
    "k/x",
    "a//b",
    "./here",
    "../up",
    "x/../y",
    "trailing/",
    "back\\slash",
    "new\nline",
    "quote'\"<&>",
    "?query#hash",
    "l" * 300,
    "~-_.!*'()",
]


@pytest.fixture(autouse=True, params=["thin", "boto3", "obstore"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("SHARDTOOL_S3_ENGINE", request.param)
    forget_clients()
    yield request.param
    forget_clients()


@pytest.fixture
def place(bucket: Bucket) -> S3Place:
    return S3Place(bucket.url("out"))


def uploads_of(place: S3Place, path: str) -> list[str]:
    return list(open_uploads(place.client, place.bucket, place.key(path)))


def test_what_is_put_is_read_back(place: S3Place) -> None:
    record = place.put("a/b.json", b'{"x": 1}', tag="t", durable=True)
    found = place.stat("a/b.json")
    assert (record.path, record.num_bytes, found.num_bytes) == ("a/b.json", 8, 8)
    assert place.read("a/b.json") == b'{"x": 1}'
    assert found.version
    assert [(stat.path, stat.num_bytes, stat.version) for stat in place.list()] == [("a/b.json", 8, found.version)]


def test_an_empty_object_is_an_object(place: S3Place) -> None:
    place.put("empty", b"", tag="t", durable=True)
    assert (place.read("empty"), place.stat("empty").num_bytes) == (b"", 0)
    assert place.read_into("empty", 0, memoryview(bytearray(10))) == 0
    gets = [Get(place.bucket, place.key("empty"), 0)]
    assert [got.data for got in get_many(place.client, gets, window_bytes=100, threads=2)] == [bytearray()]


def test_ranges_are_filled_and_shorter_only_at_the_end(place: S3Place) -> None:
    data = bytes(range(256)) * 100
    place.put("x", data, tag="t", durable=True)
    view = memoryview(bytearray(1000))
    for offset, count in ((0, 1000), (77, 1000), (len(data) - 10, 10), (len(data), 0), (len(data) + 5, 0)):
        assert place.read_into("x", offset, view) == count
        assert view[:count] == data[offset : offset + count]


def test_an_object_that_was_replaced_is_not_read_under_its_old_version(place: S3Place) -> None:
    place.put("x", b"old" * 100, tag="t", durable=True)
    version = place.stat("x").version
    assert place.read_into("x", 0, memoryview(bytearray(10)), version=version) == 10
    place.put("x", b"new" * 100, tag="t", durable=True)
    with pytest.raises(SourceChanged, match="out/x"):
        place.read_into("x", 0, memoryview(bytearray(10)), version=version)


def test_what_is_missing_is_a_file_not_found(place: S3Place) -> None:
    for call in (place.stat, place.read):
        with pytest.raises(FileNotFoundError, match="out/nothing") as raised:
            call("nothing")
        assert isinstance(raised.value, SourceNotFound)
    with pytest.raises(FileNotFoundError):
        place.read_into("nothing", 0, memoryview(bytearray(10)))
    assert list(place.list("nothing/")) == []


def test_a_missing_bucket_is_named(place: S3Place) -> None:
    elsewhere = S3Place("s3://no-such-bucket-here/out")
    with pytest.raises(SourceNotFound, match="bucket 'no-such-bucket-here' does not exist"):
        elsewhere.read("x")
    with pytest.raises(SourceNotFound, match="no-such-bucket-here"):
        list(elsewhere.list())
    with pytest.raises(DestinationError, match="no-such-bucket-here"):
        elsewhere.put("x", b"1", tag="t", durable=True)


def test_a_wrong_secret_is_a_permission_error(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret-value")
    with pytest.raises(PermissionError) as raised:
        S3Place(bucket.url()).read("x")
    assert isinstance(raised.value, AccessDenied)
    assert "wrong-secret-value" not in raised.value.message + raised.value.hint
    with pytest.raises(DestinationError):
        S3Place(bucket.url()).put("x", b"1", tag="t", durable=True)


def test_an_anonymous_request_is_refused_where_it_should_be(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDTOOL_NO_SIGN_REQUEST", "1")
    with pytest.raises(PermissionError):
        S3Place(bucket.url()).read("x")


def test_a_large_file_appears_when_it_is_published_and_not_before(place: S3Place) -> None:
    file = place.create("data/x.tar", "plan-0")
    for start in range(0, len(BODY), 3 * MIB):
        file.write(BODY[start : start + 3 * MIB])
    assert list(place.list()) == []
    assert len(uploads_of(place, "data/x.tar")) == 1
    file.publish(durable=True)
    file.abort()
    assert [(stat.path, stat.num_bytes) for stat in place.list()] == [("data/x.tar", len(BODY))]
    assert file.record().num_bytes == len(BODY)
    assert len(file.digest.blocks()) == 3
    view = memoryview(bytearray(len(BODY)))
    assert place.read_into("data/x.tar", 0, view) == len(BODY)
    assert view == BODY
    assert uploads_of(place, "data/x.tar") == []
    assert notes(place) == []


def test_an_aborted_file_leaves_nothing(place: S3Place) -> None:
    file = place.create("data/x.tar", "plan-0")
    file.write(BODY)
    file.abort()
    assert list(place.list()) == []
    assert uploads_of(place, "data/x.tar") == []
    assert notes(place) == []


def test_only_uploads_of_the_tag_and_path_are_swept(place: S3Place) -> None:
    files = [place.create(path, tag) for path, tag in (("x", "p-1"), ("y", "p-1"), ("x", "q-1"))]
    for file in files:
        file.write(BODY[: 17 * MIB])
    place.sweep("p-1", ["x"])
    assert (len(uploads_of(place, "x")), len(uploads_of(place, "y"))) == (1, 1)
    place.sweep_all()
    assert (uploads_of(place, "x"), uploads_of(place, "y"), notes(place)) == ([], [], [])
    for file in files:
        file.abort()


def test_many_objects_come_in_order_and_errors_in_their_place(place: S3Place, bucket: Bucket) -> None:
    sizes = [random.Random(n).randrange(1, 5000) for n in range(60)]
    bucket.put({f"out/{n}": bytes([n]) * size for n, size in enumerate(sizes)})
    gets = [Get(bucket.name, f"out/{n}", size) for n, size in enumerate(sizes)]
    gets[7] = Get(bucket.name, "out/nothing", 5)
    gets[9] = Get(bucket.name, "out/9", sizes[9] - 1)
    gets[11] = Get(bucket.name, "out/11", sizes[11], version="0123456789abcdef0123456789abcdef")
    gets[13] = Get(bucket.name, "out/13", 10, offset=sizes[13] - 10)
    got = list(get_many(place.client, gets, window_bytes=20_000, threads=8))
    assert [one.get for one in got] == gets
    assert {n: type(one.error) for n, one in enumerate(got) if one.error} == {
        7: SourceNotFound,
        9: SourceChanged,
        11: SourceChanged,
    }
    assert all(one.data == bytearray([n]) * one.get.num_bytes for n, one in enumerate(got) if not one.error)


def test_more_objects_than_a_page_are_listed_and_removed(place: S3Place, bucket: Bucket) -> None:
    for n in range(30):
        place.put(f"many/{n:04d}", b"x", tag="t", durable=False)
    place.put("other", b"x", tag="t", durable=False)
    assert sorted(stat.path for stat in place.list("many/")) == [f"many/{n:04d}" for n in range(30)]
    place.remove([f"many/{n:04d}" for n in range(31)])
    place.remove(["other", "gone already"])
    assert bucket.keys() == []


def test_a_child_after_a_fork_reads_for_itself(place: S3Place) -> None:
    place.put("x", b"fork" * 1000, tag="t", durable=True)
    view = memoryview(bytearray(4000))
    assert place.read_into("x", 0, view) == 4000
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a hang ends the child, not the test session
        os._exit(0 if place.read_into("x", 0, memoryview(bytearray(4000))) == 4000 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert place.read_into("x", 0, view) == 4000


def test_odd_keys_come_back_as_they_are(ceph_bucket: Bucket) -> None:
    place = S3Place(ceph_bucket.url())
    for key in ODD_KEYS:
        place.put(key, key.encode() * 3, tag="t", durable=False)
    assert sorted(stat.path for stat in place.list()) == sorted(ODD_KEYS)
    for key in ODD_KEYS:
        view = memoryview(bytearray(len(key.encode())))
        assert place.read_into(key, 0, view) == len(view)
        assert view == key.encode()
    place.remove(ODD_KEYS)
    assert ceph_bucket.keys() == []


@pytest.mark.parametrize("checksums", ["auto", "required", "supported"])
def test_every_way_to_check_an_upload_is_taken(place: S3Place, checksums: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDTOOL_S3_CHECKSUMS", checksums)
    file = place.create("x", "t")
    file.write(BODY[: 20 * MIB])
    file.publish(durable=True)
    place.put("y", b"small", tag="t", durable=True)
    assert (place.stat("x").num_bytes, place.read("y")) == (20 * MIB, b"small")


def test_a_body_that_was_altered_on_its_way_is_refused_by_the_store(seaweedfs_bucket: Bucket) -> None:
    client: S3Client = client_for(S3Settings.from_environ())
    for header in ({"x-amz-checksum-crc32": "AAAAAA=="}, {"content-md5": "1B2M2Y8AsgTpgAmY7PhCfg=="}):
        answer = client.engine.exchange(request_with(seaweedfs_bucket.name, header))
        assert answer.status == 400


def request_with(bucket: str, headers: dict[str, str]) -> Request:
    return Request("PUT", bucket, "x", headers=headers, body=b"other bytes")


def notes(place: S3Place) -> list[str]:
    return [stat.path for stat in place.walk(".shardtool/uploads/")]
