"""Many GETs: results in order, errors in their place, memory and requests within their bounds, for any store."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.errors import RemoteError, SourceChanged, SourceNotFound
from shardtool.storage.s3.client import S3Client
from shardtool.storage.s3.exchange import Broken, Into, Request, Response
from shardtool.storage.s3.many import Get, Got, get_many, get_one
from shardtool.storage.s3.place import S3Place
from shardtool.storage.s3.retry import Pace
from shardtool.storage.s3.settings import S3Settings
from shardtool.storage.s3.walk import walk

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Shelf:
    """A store of a few objects in memory, with the rules of S3 for ranges and versions."""

    objects: dict[str, bytes]
    breaks: list[int] = field(default_factory=list)  # bytes after which the next bodies break off
    ignores_ranges: bool = False
    asked: list[Request] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    name: str = "shelf"
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def exchange(self, request: Request, into: Into | None = None) -> Response:
        assert into is None or isinstance(into, memoryview)
        with self._lock:
            self.asked.append(request)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return self._answer(request, into)
        finally:
            with self._lock:
                self.in_flight -= 1

    def _answer(self, request: Request, into: memoryview | None) -> Response:
        data = self.objects.get(str(request.key))
        if data is None:
            return Response(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
        etag = f'"{hash(data):x}"'
        if request.headers.get("if-match", etag) != etag:
            return Response(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
        head, body = self._cut(request, data, etag)
        assert into is not None
        count = min(len(body), len(into))
        broken_at = self.breaks.pop() if self.breaks and head.status in (200, 206) else count
        into[: min(count, broken_at)] = body[: min(count, broken_at)]
        if broken_at < count:
            raise Broken("body", "it ended", broken_at, head)
        return Response(head.status, head.headers, b"", count)

    def _cut(self, request: Request, data: bytes, etag: str) -> tuple[Response, bytes]:
        if "range" not in request.headers or self.ignores_ranges:
            return Response(200, {"etag": etag, "content-length": str(len(data))}), data
        first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last or len(data)) + 1, len(data))
        if start >= len(data):
            return Response(416, {}), b""
        told = {"etag": etag, "content-range": f"bytes {start}-{stop - 1}/{len(data)}"}
        return Response(206, told), data[start:stop]

    def adapt(self, request: Request, response: Response, code: str) -> bool:
        return False

    def endpoint(self, bucket: str) -> str:
        return "memory"

    def close(self) -> None:
        pass


class Cut(Shelf):
    """A store that says of a range beyond the end what is wrong, in 300 bytes."""

    def exchange(self, request: Request, into: Into | None = None) -> Response:
        return Response(416, {}, b"x" * 300, 300)


def test_an_error_document_as_long_as_the_range_is_not_its_bytes() -> None:
    with pytest.raises(SourceChanged, match="it ends before"):
        get_one(client_of(Cut({})), Get("b", "k", 300, offset=1000))


def client_of(shelf: Shelf) -> S3Client:
    return S3Client(S3Settings(), shelf, Pace(sleep=lambda _: None))


def run(shelf: Shelf, gets: list[Get], window: int = 10_000, threads: int = 8) -> list[Got]:
    return list(get_many(client_of(shelf), gets, window_bytes=window, threads=threads))


@settings(deadline=None)
@given(st.lists(st.integers(0, 3000), max_size=60), st.integers(0, 5000), st.integers(1, 16), st.integers(0, 9))
def test_results_come_in_order_within_the_window(sizes: list[int], window: int, threads: int, seed: int) -> None:
    rng = random.Random(seed)
    objects = {f"{n}": rng.randbytes(size) for n, size in enumerate(sizes)}
    shelf = Shelf(objects)
    drawn: list[int] = []
    taken = 0

    def gets() -> Iterator[Get]:
        for n, size in enumerate(sizes):
            drawn.append(size)
            yield Get("b", f"{n}", size)

    for n, got in enumerate(get_many(client_of(shelf), gets(), window_bytes=window, threads=threads)):
        assert (got.get.key, got.error) == (f"{n}", None)
        assert got.data is not None
        assert bytes(got.data) == objects[f"{n}"]
        held = sum(drawn[taken:]) - (drawn[-1] if drawn else 0)  # one more is drawn ahead, and not yet asked for
        assert held <= max(window, max(sizes))
        taken += 1
    assert taken == len(sizes)
    assert shelf.most_in_flight <= threads


def test_errors_are_results_and_stop_nobody() -> None:
    shelf = Shelf({"a": b"aa", "b": b"bbb", "c": b"c"})
    got = run(shelf, [Get("x", "a", 2), Get("x", "gone", 2), Get("x", "b", 2), Get("x", "c", 2), Get("x", "c", 1)])
    assert [type(one.error) for one in got] == [type(None), SourceNotFound, SourceChanged, SourceChanged, type(None)]


def test_an_object_larger_than_the_window_goes_alone() -> None:
    shelf = Shelf({"big": b"x" * 50_000, "small": b"y"})
    got = run(shelf, [Get("b", "small", 1), Get("b", "big", 50_000), Get("b", "small", 1)], window=100)
    assert [len(one.data or b"") for one in got] == [1, 50_000, 1]


def test_ranges_need_not_be_whole_objects() -> None:
    shelf = Shelf({"o": bytes(range(100))})
    got = run(shelf, [Get("b", "o", 10, offset=5), Get("b", "o", 0, offset=100), Get("b", "o", 10, offset=95)])
    assert got[0].data == bytearray(range(5, 15))
    assert got[1].data == bytearray()
    assert isinstance(got[2].error, SourceChanged)


def test_a_source_of_requests_that_fails_tells_it_to_the_taker() -> None:
    def gets() -> Iterator[Get]:
        yield Get("b", "o", 3)
        raise ValueError("no more")

    results = get_many(client_of(Shelf({"o": b"abc"})), gets(), window_bytes=100, threads=4)
    assert next(results).data == bytearray(b"abc")
    with pytest.raises(ValueError, match="no more"):
        next(results)


def test_nothing_asked_is_nothing_given() -> None:
    assert run(Shelf({}), []) == []


def test_a_taker_that_leaves_stops_the_requests() -> None:
    shelf = Shelf({f"{n}": b"x" * 100 for n in range(1000)})
    results = get_many(client_of(shelf), (Get("b", f"{n}", 100) for n in range(1000)), window_bytes=500, threads=2)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert len(shelf.asked) <= 6


@settings(deadline=None)
@given(
    st.binary(min_size=1, max_size=500),
    st.lists(st.integers(0, 200), max_size=8),
    st.integers(0, 400),
    st.integers(0, 500),
    st.booleans(),
)
def test_breaks_anywhere_change_no_byte(data: bytes, breaks: list[int], start: int, count: int, ranged: bool) -> None:
    shelf = Shelf({"o": data}, breaks)
    client = client_of(shelf)
    view = memoryview(bytearray(count))
    headers = {"range": f"bytes={start}-{start + count - 1}"} if ranged and count else {}
    start = start if headers else 0
    answer = client.request("GET", "b", "o", headers=headers, into=view, allow=(416,))
    expected = data[start : start + count]
    assert (answer.num_bytes, bytes(view[: answer.num_bytes])) == (len(expected), expected)


def test_a_store_that_ignores_ranges_is_found_out() -> None:
    shelf = Shelf({"o": bytes(range(100))}, ignores_ranges=True)
    with pytest.raises(RemoteError, match="asked for bytes from 10 on"):
        get_one(client_of(shelf), Get("b", "o", 10, offset=10))


def test_a_store_that_ignores_the_range_of_a_second_attempt_is_read_from_the_beginning() -> None:
    shelf = Shelf({"o": bytes(range(100))}, breaks=[40], ignores_ranges=True)
    assert get_one(client_of(shelf), Get("b", "o", 100)) == bytearray(range(100))
    assert len(shelf.asked) == 3


def test_a_second_attempt_asks_for_the_rest_of_the_same_version() -> None:
    shelf = Shelf({"o": bytes(range(100))}, breaks=[40])
    get_one(client_of(shelf), Get("b", "o", 100))
    assert shelf.asked[1].headers["range"] == "bytes=40-"
    assert shelf.asked[1].headers["if-match"]


@dataclass
class Carousel(Shelf):
    """A store whose list gives one token for ever."""

    def _answer(self, request: Request, into: memoryview | None) -> Response:
        page = "<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>"
        return Response(200, {"server": "Carousel/1"}, f"<ListBucketResult>{page}</ListBucketResult>".encode())


def test_a_list_that_repeats_itself_is_an_error_that_names_the_server() -> None:
    carousel = Carousel({})
    with pytest.raises(RemoteError, match=r"Carousel/1 at memory repeats"):
        list(walk(client_of(carousel), "b", "p/"))
    assert len(carousel.asked) == 2


def test_a_place_asks_again_where_an_answer_was_shorter_than_the_range() -> None:
    """HTTP lets a server send less than was asked for."""
    shelf = Miser({"out/o": bytes(range(100))})
    place = ShelfPlace("s3://b/out", client_of(shelf))
    view = memoryview(bytearray(60))
    assert place.read_into("o", 10, view) == 60
    assert bytes(view) == bytes(range(10, 70))


@dataclass
class Miser(Shelf):
    """A store that gives 7 bytes at a time."""

    def _cut(self, request: Request, data: bytes, etag: str) -> tuple[Response, bytes]:
        start = int(request.headers["range"].removeprefix("bytes=").split("-")[0])
        stop = min(start + 7, len(data))
        return Response(206, {"etag": etag, "content-range": f"bytes {start}-{stop - 1}/{len(data)}"}), data[start:stop]


class ShelfPlace(S3Place):
    """A place on a shelf."""

    def __init__(self, url: str, client: S3Client) -> None:
        super().__init__(url)
        self._client = client

    @property
    def client(self) -> S3Client:
        return self._client
