"""Every fault of the proxy is what it says, seen by a plain HTTP client."""

from __future__ import annotations

import http.client
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from fault_proxy import Fault, FaultProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from s3_servers import Bucket

BODY = bytes(range(256)) * 1000


@pytest.fixture
def url(seaweedfs_bucket: Bucket) -> str:
    """A signed URL of an object that holds BODY."""
    seaweedfs_bucket.put({"one": BODY})
    client = seaweedfs_bucket.server.client()
    signed: str = client.generate_presigned_url("get_object", {"Bucket": seaweedfs_bucket.name, "Key": "one"})
    return signed


@pytest.fixture
def proxy(url: str) -> Iterator[FaultProxy]:
    parts = urlsplit(url)
    with FaultProxy(f"{parts.scheme}://{parts.netloc}") as running:
        yield running


def get(proxy: FaultProxy, url: str, timeout: float = 20.0) -> tuple[int, bytes]:
    """(status, body) through the proxy; the Host header is the server's, for which the URL is signed."""
    connection = http.client.HTTPConnection(urlsplit(proxy.endpoint).netloc, timeout=timeout)
    parts = urlsplit(url)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}", headers={"Host": parts.netloc})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_without_rules_bytes_go_through(proxy: FaultProxy, url: str) -> None:
    assert get(proxy, url) == (200, BODY)
    assert proxy.sent_bytes("GET") == len(BODY)


def test_a_status_is_answered_as_often_as_asked_for(proxy: FaultProxy, url: str) -> None:
    proxy.add("GET", Fault("status", status=503, code="SlowDown", headers=("Retry-After: 1",)), skip=1, times=2)
    answers = [get(proxy, url) for _ in range(4)]
    assert [status for status, _ in answers] == [200, 503, 503, 200]
    assert b"<Code>SlowDown</Code>" in answers[1][1]
    assert [seen.status for seen in proxy.requests] == [200, 503, 503, 200]


def test_a_refused_request_gets_no_answer(proxy: FaultProxy, url: str) -> None:
    proxy.add("GET", Fault("refuse"))
    with pytest.raises(ConnectionError):
        get(proxy, url)
    assert get(proxy, url) == (200, BODY)


@pytest.mark.parametrize("kind", ["reset", "close"])
def test_a_body_ends_early(proxy: FaultProxy, url: str, kind: str) -> None:
    proxy.add("GET", Fault(kind, at=1000))
    with pytest.raises((ConnectionError, http.client.IncompleteRead)):
        get(proxy, url)
    assert proxy.requests[0].sent_bytes == 1000


def test_a_stall_outlasts_the_clients_patience(proxy: FaultProxy, url: str) -> None:
    proxy.add("GET", Fault("stall", at=1000, seconds=60))
    with pytest.raises(TimeoutError):
        get(proxy, url, timeout=0.2)


def test_a_slow_body_takes_its_time(proxy: FaultProxy, url: str) -> None:
    proxy.add("GET", Fault("slow", bytes_per_s=len(BODY) / 0.2))
    began = time.monotonic()
    assert get(proxy, url) == (200, BODY)
    assert time.monotonic() - began > 0.19


def test_latency_comes_before_the_answer(proxy: FaultProxy, url: str) -> None:
    proxy.add("GET", Fault("latency", seconds=0.2))
    began = time.monotonic()
    assert get(proxy, url) == (200, BODY)
    assert time.monotonic() - began > 0.19


def test_one_bit_is_flipped(proxy: FaultProxy, url: str) -> None:
    proxy.add("GET", Fault("flip", at=70_000))
    _, body = get(proxy, url)
    assert [at for at, (a, b) in enumerate(zip(body, BODY, strict=True)) if a != b] == [70_000]


def test_an_error_is_hidden_in_a_200(proxy: FaultProxy, url: str) -> None:
    proxy.add("GET", Fault("error200", code="InternalError"))
    status, body = get(proxy, url)
    assert status == 200
    assert b"<Code>InternalError</Code>" in body


def test_a_share_of_requests_fails_the_same_in_every_run(proxy: FaultProxy, url: str) -> None:
    failed = []
    for _ in range(2):
        proxy.clear()
        proxy.add("GET", Fault("status"), times=-1, probability=0.3, seed=1)
        failed.append([get(proxy, url)[0] for _ in range(20)])
    assert failed[0] == failed[1]
    assert 0 < failed[0].count(503) < 20


def test_uploads_go_through(proxy: FaultProxy, seaweedfs_bucket: Bucket) -> None:
    import dataclasses

    server = dataclasses.replace(seaweedfs_bucket.server, endpoint=proxy.endpoint)
    server.client().put_object(Bucket=seaweedfs_bucket.name, Key="two", Body=BODY)
    assert seaweedfs_bucket.get("two") == BODY
    assert proxy.requests[0].received_bytes == len(BODY)
