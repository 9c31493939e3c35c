"""What goes wrong on the wire is made good, or told with all that is needed to find out why."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from typing import TYPE_CHECKING

import pytest
from fault_proxy import Fault, FaultProxy

from shardtool.errors import AccessDenied, DestinationError, NoSpace, RemoteError, SourceChanged
from shardtool.storage.base import PIECE_BYTES, Stretch
from shardtool.storage.s3.client import S3Client, forget_clients
from shardtool.storage.s3.exchange import if_match
from shardtool.storage.s3.journal import open_uploads
from shardtool.storage.s3.place import S3Place
from shardtool.storage.s3.retry import Pace, retries_so_far
from shardtool.storage.s3.settings import S3Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from s3_servers import Bucket

    from shardtool.storage.s3.upload import NewObject

MIB = 1 << 20
BODY = random.Random(1).randbytes(3 * MIB)
ENGINES = ("thin", "boto3", "obstore")


@dataclass
class Clock:
    """Time that passes while somebody sleeps, and at no other moment."""

    time: float = 0.0
    slept: list[float] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        self.meanwhile()

    def pace(self) -> Pace:
        return Pace(self.sleep, lambda: self.time, lambda: 0.5)


@dataclass
class Wire:
    """A bucket behind a proxy that spoils requests."""

    bucket: Bucket
    proxy: FaultProxy
    clock: Clock
    settings: S3Settings
    clients: list[S3Client] = field(default_factory=list)

    def client(self, engine: str = "thin", **settings: float) -> S3Client:
        made = S3Client(replace(self.settings, engine=engine, **settings), pace=self.clock.pace())  # type: ignore[arg-type]
        self.clients.append(made)
        return made

    def get(self, client: S3Client, start: int = 0, stop: int = len(BODY)) -> bytes:
        """A range of the object `one`."""
        data = bytearray(stop - start)
        headers = {"range": f"bytes={start}-{stop - 1}"}
        answer = client.request("GET", self.bucket.name, "one", headers=headers, into=memoryview(data))
        assert answer.num_bytes == stop - start
        return bytes(data)


@pytest.fixture
def wire(seaweedfs_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    seaweedfs_bucket.put({"one": BODY})
    with FaultProxy(seaweedfs_bucket.server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        forget_clients()
        wire = Wire(seaweedfs_bucket, proxy, Clock(), S3Settings.from_environ())
        yield wire
        for client in wire.clients:
            client.engine.close()
        forget_clients()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["close", "reset"])
def test_a_body_that_breaks_goes_on_at_the_byte_where_it_broke(wire: Wire, engine: str, kind: str) -> None:
    client = wire.client(engine)
    wire.proxy.add("GET", Fault(kind, at=2_000_000), times=1)
    assert wire.get(client, 1000) == BODY[1000:]
    first, second = [seen for seen in wire.proxy.requests if seen.method == "GET"]
    assert first.range == f"bytes=1000-{len(BODY) - 1}"
    resumed = int(second.range.removeprefix("bytes=").split("-")[0])
    assert (0 if kind == "reset" else 1000) < resumed <= 2_001_000  # a reset may take back what was not read yet
    assert bool(second.if_match) == (resumed > 1000)
    assert len(wire.clock.slept) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_bytes_that_are_handed_on_survive_breaks_as_those_in_a_buffer_do(
    wire: Wire, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = S3Place(f"s3://{wire.bucket.name}")
    client = wire.client(engine)
    monkeypatch.setattr(S3Place, "client", client)
    wire.proxy.add("GET", Fault("close", at=1_200_000), times=2)
    got = bytearray(len(BODY))

    def take(piece: memoryview, start: int) -> None:
        got[start : start + len(piece)] = piece

    needed = place.buffer_bytes(len(BODY))
    assert needed == (PIECE_BYTES if engine == "thin" else len(BODY))
    buffer = memoryview(bytearray(needed))
    found = place.read_through("one", 1000, len(BODY) - 1000, take, buffer)
    assert found == Stretch(len(BODY) - 1000, place.stat("one").version, len(BODY))
    assert bytes(got[: len(BODY) - 1000]) == BODY[1000:]
    assert wire.proxy.count("GET") == 3
    beyond = place.read_through("one", len(BODY) + 5, 10, take, buffer)
    assert (beyond.num_bytes, beyond.file_bytes) in ((0, len(BODY)), (0, None))


def test_a_disk_that_is_full_ends_a_transfer_at_once(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(piece: memoryview, start: int) -> None:
        raise NoSpace("full")

    monkeypatch.setattr(S3Place, "client", wire.client())
    with pytest.raises(NoSpace):
        S3Place(f"s3://{wire.bucket.name}").read_through("one", 0, len(BODY), take, memoryview(bytearray(MIB)))
    assert wire.proxy.count("GET") == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_body_that_breaks_again_and_again_is_read_as_long_as_bytes_come(wire: Wire, engine: str) -> None:
    client = wire.client(engine)
    wire.proxy.add("GET", Fault("close", at=200_000 if engine != "obstore" else 1_200_000), times=14)
    assert wire.get(client) == BODY


@pytest.mark.parametrize("engine", ENGINES)
def test_an_object_that_is_replaced_between_two_attempts_is_not_mixed(wire: Wire, engine: str) -> None:
    client = wire.client(engine)
    wire.proxy.add("GET", Fault("close", at=2_000_000), times=1)
    wire.clock.meanwhile = lambda: wire.bucket.put({"one": BODY[::-1]})
    with pytest.raises(SourceChanged, match="one"):
        wire.get(client)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stall_is_left_and_asked_for_anew(wire: Wire, engine: str) -> None:
    client = wire.client(engine, stall_s=0.3, read_s=0.3)
    wire.proxy.add("GET", Fault("stall", at=2_000_000, seconds=60), times=1)
    assert wire.get(client) == BODY
    assert wire.proxy.count("GET") == 2


def test_a_trickle_is_a_stall_too(wire: Wire) -> None:
    client = wire.client(stall_s=0.2, read_s=10.0)
    wire.proxy.add("GET", Fault("slow", bytes_per_s=40_000.0), times=1)
    before = retries_so_far().get("stall", 0)
    assert wire.get(client, stop=500_000) == BODY[:500_000]
    assert retries_so_far()["stall"] == before + 1
    assert wire.proxy.requests[1].range != "bytes=0-499999"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_refused_connection_is_tried_again(wire: Wire, engine: str) -> None:
    client = wire.client(engine)
    wire.proxy.add("GET", Fault("refuse"), times=3)
    assert wire.get(client) == BODY


@pytest.mark.parametrize("engine", ENGINES)
def test_a_storm_of_503_ends_well(wire: Wire, engine: str) -> None:
    client = wire.client(engine)
    wire.proxy.add("GET", Fault("status", status=503), times=25)
    before = retries_so_far().get("throttled", 0)
    assert wire.get(client) == BODY
    assert retries_so_far()["throttled"] == before + 25
    assert client.limiter.limit < 1024


@pytest.mark.parametrize("engine", ENGINES)
def test_503_for_ever_ends_within_the_budget_and_says_all(wire: Wire, engine: str) -> None:
    client = wire.client(engine, retry_s=120)
    wire.proxy.add("GET", Fault("status", status=503), times=-1)
    with pytest.raises(RemoteError) as raised:
        wire.get(client)
    assert wire.clock.time <= 120
    error = raised.value
    assert error.exit_code == 8
    for said in (f"s3://{wire.bucket.name}/one", wire.proxy.endpoint, "attempts", "503"):
        assert said in error.message
    assert "--workers" in error.hint


def test_a_server_that_is_gone_ends_after_ten_attempts(wire: Wire) -> None:
    client = wire.client()
    wire.proxy.add("GET", Fault("refuse"), times=-1)
    with pytest.raises(RemoteError, match="10 attempts"):
        wire.get(client)
    assert wire.proxy.count("GET") == 10


@pytest.mark.parametrize("engine", ["thin", "boto3"])
@pytest.mark.parametrize(("header", "seconds"), [("Retry-After: 7", 7), ("x-amz-retry-after: 2500", 2.5)])
def test_the_store_says_how_long_to_wait(wire: Wire, engine: str, header: str, seconds: float) -> None:
    client = wire.client(engine)
    wire.proxy.add("GET", Fault("status", status=503, headers=(header,)), times=1)
    wire.get(client)
    assert wire.clock.slept == [seconds]


@pytest.mark.parametrize(("status", "code"), [(500, "InternalError"), (400, "RequestTimeout"), (502, "BadGateway")])
def test_other_trouble_of_the_server_is_tried_again(wire: Wire, status: int, code: str) -> None:
    client = wire.client()
    wire.proxy.add("GET", Fault("status", status=status, code=code), times=2)
    assert wire.get(client) == BODY


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("num_bytes", [len(BODY), 20, 0], ids=["large", "small", "empty"])
def test_an_error_in_the_place_of_an_object_is_not_taken_for_it(wire: Wire, engine: str, num_bytes: int) -> None:
    """Status 200, and a document that is longer than a small object."""
    wire.bucket.put({"it": BODY[:num_bytes]})
    wire.proxy.add("GET .*/it", Fault("error200", code="InternalError"), times=2)
    view = memoryview(bytearray(num_bytes))
    place = S3Place(f"s3://{wire.bucket.name}")
    answer = wire.client(engine).request(
        "GET", wire.bucket.name, "it", headers=if_match(place.stat("it").version), into=view
    )
    assert (answer.num_bytes, bytes(view)) == (num_bytes, BODY[:num_bytes])
    assert wire.proxy.count("GET .*/it") == 3


def test_an_object_that_is_an_error_document_is_read_as_it_is(wire: Wire) -> None:
    document = b"<?xml version='1.0'?><Error><Code>SlowDown</Code></Error>"
    wire.bucket.server.client().put_object(
        Bucket=wire.bucket.name, Key="it", Body=document, ContentType="application/xml"
    )
    view = memoryview(bytearray(len(document)))
    wire.client().request("GET", wire.bucket.name, "it", into=view)
    assert bytes(view) == document
    assert wire.proxy.count("GET") == 1


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (404, "NoSuchKey"), (400, "InvalidArgument")])
def test_what_no_retry_can_change_fails_at_once(wire: Wire, status: int, code: str) -> None:
    client = wire.client()
    wire.proxy.add("GET", Fault("status", status=status, code=code), times=-1)
    with pytest.raises((PermissionError, FileNotFoundError, RemoteError), match=f"{code}.*request fault"):
        wire.get(client)
    assert wire.proxy.count("GET") == 1
    assert wire.clock.slept == []


def test_a_wrong_clock_is_corrected_by_the_store(wire: Wire) -> None:
    """The first answer tells a time an hour ahead; the next signature is an hour ahead, and the real server objects."""
    client = wire.client()
    ahead = f"Date: {formatdate(time.time() + 3600, usegmt=True)}"
    wire.proxy.add("GET", Fault("status", status=403, code="RequestTimeTooSkewed", headers=(ahead,)), times=1)
    assert wire.get(client) == BODY
    statuses = [seen.status for seen in wire.proxy.requests]
    assert statuses == [403, 403, 206]


def test_a_clock_that_cannot_be_corrected_is_an_error(wire: Wire) -> None:
    client = wire.client()
    now = f"Date: {formatdate(usegmt=True)}"
    wire.proxy.add("GET", Fault("status", status=403, code="RequestTimeTooSkewed", headers=(now,)), times=-1)
    with pytest.raises(AccessDenied) as raised:
        wire.get(client)
    assert "clock" in raised.value.hint
    assert wire.proxy.count("GET") == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_expired_credentials_are_read_again(
    wire: Wire, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, file = wire.bucket.server, tmp_path / "credentials"
    write_credentials(file, "expired", "no-secret")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    client = wire.client(engine)
    wire.proxy.add("GET", Fault("status", status=400, code="ExpiredToken"), times=1)
    with pytest.raises(AccessDenied) as raised:  # the file still holds the old ones
        wire.get(client)
    assert "aws sso login" in raised.value.hint
    write_credentials(file, server.access_key, server.secret_key)
    wire.proxy.add("GET", Fault("status", status=400, code="ExpiredToken"), times=1)
    assert wire.get(client) == BODY


def write_credentials(file: Path, access_key: str, secret_key: str) -> None:
    file.write_text(f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret_key}\n")


def test_a_completion_that_says_error_under_status_200_is_not_believed(wire: Wire) -> None:
    """The upload was completed after all: the second request finds none, and the object tells that it is ours."""
    place = S3Place(wire.bucket.url("out"), quick(wire))
    file = place.create("big", "t")
    file.write(BODY * 6)
    wire.proxy.add(r"POST .*\?uploadId=", Fault("error200", code="InternalError"), times=1)
    file.publish(durable=True)
    assert wire.proxy.count(r"POST .*\?uploadId=") == 2
    assert place.stat("big").num_bytes == len(BODY) * 6


def test_a_completion_that_never_happened_is_not_taken_for_one(wire: Wire) -> None:
    place = S3Place(wire.bucket.url("out"), quick(wire))
    file = place.create("big", "t")
    file.write(BODY * 6)
    wire.proxy.add(r"POST .*\?uploadId=", Fault("status", status=404, code="NoSuchUpload"), times=-1)
    with pytest.raises(RemoteError, match="lost its parts"):
        file.publish(durable=True)
    file.abort()
    assert list(place.list()) == []
    assert list(open_uploads(place.client, place.bucket, place.key("big"))) == []


def test_parts_that_fail_are_sent_again(wire: Wire) -> None:
    place = S3Place(wire.bucket.url("out"), quick(wire))
    wire.proxy.add("PUT .*partNumber", Fault("status", status=503), times=1)
    wire.proxy.add("PUT .*partNumber", Fault("refuse"), times=1, skip=1)
    wire.proxy.add("POST .*uploads", Fault("status", status=500, code="InternalError"), times=1)
    file = place.create("big", "t")
    for _ in range(12):
        file.write(BODY)
    file.publish(durable=True)
    view = memoryview(bytearray(len(BODY) * 12))
    assert place.read_into("big", 0, view) == len(view)
    assert view == BODY * 12


def test_a_part_that_cannot_be_sent_fails_the_file_and_leaves_nothing(wire: Wire) -> None:
    place = S3Place(wire.bucket.url("out"), quick(wire))
    wire.proxy.add("PUT .*partNumber=2&", Fault("status", status=403, code="AccessDenied"), times=-1)
    file = place.create("big", "t")
    with pytest.raises(DestinationError, match="AccessDenied"):
        write_all(file.write, file.publish)
    file.abort()
    assert list(place.list()) == []
    assert list(open_uploads(place.client, place.bucket, place.key("big"))) == []


def write_all(write: Callable[[bytes], None], publish: Callable[..., None]) -> None:
    for _ in range(30):
        write(BODY)
    publish(durable=True)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_who_is_stopped_does_not_wait_for_a_store_that_is_gone(wire: Wire, stop: type[BaseException]) -> None:
    place = S3Place(wire.bucket.url("out"), replace(wire.settings, retry_s=3600.0))
    file = place.create("big", "t")
    file.write(BODY * 6)
    wire.proxy.add("", Fault("status", status=503), times=-1)  # after the parts that are under way
    before = len(wire.proxy.requests)
    with pytest.raises(stop):
        stopped_while_writing(file, stop)
    assert len(wire.proxy.requests) - before <= 20
    wire.proxy.clear()
    place.sweep("t", ["big"])
    assert list(open_uploads(place.client, place.bucket, place.key("big"))) == []


def stopped_while_writing(file: NewObject, stop: type[BaseException]) -> None:
    try:
        for _ in range(12):
            file.write(BODY)
        raise stop
    finally:
        file.abort()


def test_a_store_without_bulk_delete_gets_one_request_an_object(wire: Wire) -> None:
    place = S3Place(wire.bucket.url("out"), quick(wire))
    for n in range(5):
        place.put(f"{n}", b"x", tag="t", durable=False)
    wire.proxy.add(r"POST .*\?delete", Fault("status", status=501, code="NotImplemented"), times=-1)
    place.remove([f"{n}" for n in range(5)])
    assert list(place.list()) == []
    assert wire.proxy.count("DELETE ") == 5


def test_a_bucket_in_another_region_is_followed_once(wire: Wire) -> None:
    client = wire.client()
    elsewhere = ("x-amz-bucket-region: eu-west-9",)
    wire.proxy.add("GET", Fault("status", status=301, code="PermanentRedirect", headers=elsewhere), times=1)
    assert wire.get(client) == BODY  # SeaweedFS takes the signature of any region
    wire.proxy.add("GET", Fault("status", status=301, code="PermanentRedirect", headers=elsewhere), times=-1)
    with pytest.raises(RemoteError) as raised:
        wire.get(client)
    assert "AWS_REGION" in raised.value.hint


def test_a_proxy_is_spoken_to_by_boto3(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("NO_PROXY", "no_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", wire.proxy.endpoint)
    wire.settings = replace(wire.settings, endpoint_url=wire.bucket.server.endpoint)
    assert wire.get(wire.client()) == BODY
    assert wire.proxy.requests[0].path.startswith(f"{wire.bucket.server.endpoint}/{wire.bucket.name}/one")
    assert "because of a proxy" in caplog.text


def quick(wire: Wire) -> S3Settings:
    """Through the proxy, with real and short waits."""
    return replace(wire.settings, retry_s=20.0)
