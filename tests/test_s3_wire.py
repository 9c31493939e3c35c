"""Answers of HTTP/1.1 in every form that stores give them, cut into packets anywhere."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardtool.errors import UsageProblem
from shardtool.storage.base import Stretch
from shardtool.storage.s3.address import Address
from shardtool.storage.s3.connections import Connections
from shardtool.storage.s3.exchange import Broken, NotTaken, Pieces, Response
from shardtool.storage.s3.place import S3Place
from shardtool.storage.s3.settings import S3Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

QUICK = S3Settings(connect_s=5, read_s=5)


@contextlib.contextmanager
def says(*answers: list[bytes]) -> Iterator[tuple[Address, list[bytes]]]:
    """A server that answers each request by packets, then hangs up; and the requests it got."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server, answers, asked), daemon=True)
        thread.start()
        yield Address(False, f"127.0.0.1:{server.getsockname()[1]}", "/bucket"), asked
    thread.join(10)


def serve(server: socket.socket, answers: tuple[list[bytes], ...], asked: list[bytes]) -> None:
    with contextlib.suppress(OSError):
        connection = server.accept()[0]
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for packets in answers:
                asked.append(connection.recv(1 << 16))
                for packet in packets:
                    connection.sendall(packet)


def ask(address: Address, into: bytearray | Pieces | None = None, method: str = "GET", body: bytes = b"") -> Response:
    connections = Connections(QUICK)
    view = memoryview(into) if isinstance(into, bytearray) else into
    try:
        return connections.exchange(address, method, "/bucket/key", {"host": "h"}, body, view)
    finally:
        connections.close()


def cut(data: bytes, places: list[int]) -> list[bytes]:
    points = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(points)]


def chunked(body: bytes, sizes: list[int]) -> bytes:
    out, rest = b"", body
    for size in sizes:
        piece, rest = rest[:size], rest[size:]
        out += b"%x;ext=1\r\n%b\r\n" % (len(piece), piece) if piece else b""
    out += b"%X\r\n%b\r\n" % (len(rest), rest) if rest else b""
    return out + b"0\r\nX-Trailer: t\r\n\r\n"


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=300), st.lists(st.integers(1, 80), max_size=5), st.lists(st.integers(0, 900), max_size=6))
@example(b"", [], [])
def test_a_chunked_body_is_put_together(body: bytes, sizes: list[int], places: list[int]) -> None:
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(body, sizes)
    with says(cut(raw, places)) as (address, _):
        assert ask(address).body == body


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=300), st.lists(st.integers(0, 900), max_size=6), st.integers(0, 400), st.booleans())
def test_a_body_of_known_or_unknown_length_is_read(body: bytes, places: list[int], room: int, is_known: bool) -> None:
    length = b"Content-Length: %d\r\n" % len(body) if is_known else b""
    with says(cut(b'HTTP/1.1 200 OK\r\nETag: "e"\r\n%b\r\n%b' % (length, body), places)) as (address, _):
        buffer = bytearray(room)
        answer = ask(address, buffer)
        assert answer.num_bytes == min(room, len(body))
        assert buffer[: answer.num_bytes] == body[:room]
        assert answer.etag == "e"


def test_headers_are_lower_case_and_repeated_ones_are_joined() -> None:
    raw = b"HTTP/1.1 404 Not Found\r\nX-One:  a b \r\nx-one: c\r\nContent-Length: 2\r\n\r\nno"
    with says([raw]) as (address, _):
        answer = ask(address)
    assert (answer.status, answer.body, answer.headers["x-one"]) == (404, b"no", "a b, c")


def test_continue_is_not_the_answer() -> None:
    with says([b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]) as (address, asked):
        assert ask(address, method="PUT", body=b"data").status == 200
    assert asked[0].endswith(b"content-length: 4\r\n\r\ndata")


def test_a_head_has_no_body_whatever_its_length_says() -> None:
    with says([b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"]) as (address, _):
        assert ask(address, method="HEAD").headers["content-length"] == "99"


@pytest.mark.parametrize(
    ("raw", "received"),
    [
        (b"", 0),
        (b"HTTP/1.1 200", 0),
        (b"HTTP/1.1 200 OK\r\nContent-Le", 0),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345", 5),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n", 5),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfive\r\n", 0),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n12345\r\n", 0),
        (b"SSH-2.0-OpenSSH_9.2\r\n", 0),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 300 + b"\r\n", 0),
        (b"HTTP/1.1 200 OK\r\nlong: " + b"x" * 70_000 + b"\r\n\r\n", 0),
    ],
)
def test_what_is_no_whole_answer_is_broken_at_a_known_byte(raw: bytes, received: int) -> None:
    with says([raw]) as (address, _), pytest.raises(Broken) as raised:
        ask(address, bytearray(100))
    assert raised.value.received == received
    assert raised.value.kind == ("body" if received else "connection")


def test_a_server_that_says_nothing_is_left_after_its_time() -> None:
    connections = Connections(replace(QUICK, read_s=0.05))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address(False, f"127.0.0.1:{server.getsockname()[1]}", "/bucket")
        with pytest.raises(Broken) as raised:
            connections.exchange(address, "GET", "/k", {}, b"", None)
    assert (raised.value.kind, raised.value.received) == ("timeout", 0)


def test_a_server_that_takes_nothing_is_left_after_its_time() -> None:
    connections = Connections(replace(QUICK, read_s=0.05))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address(False, f"127.0.0.1:{server.getsockname()[1]}", "/bucket")
        with pytest.raises(Broken) as raised:
            connections.exchange(address, "PUT", "/k", {}, bytes(64 << 20), None)
    assert raised.value.kind == "timeout"


def test_a_connection_is_used_again_and_replaced_when_it_was_closed() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"
    connections = Connections(QUICK)
    with says([answer + b"a"], [answer + b"b"]) as (address, asked):
        for expected in (b"a", b"b"):
            assert connections.exchange(address, "GET", "/k", {}, b"", None).body == expected
        assert len(asked) == 2
    with pytest.raises(Broken):  # both the idle connection and a new one: nobody is there any more
        connections.exchange(address, "GET", "/k", {}, b"", None)
    connections.close()


def test_a_header_with_a_line_break_is_never_sent() -> None:
    connections = Connections(QUICK)
    with says([b""]) as (address, asked), pytest.raises(ValueError, match="line break"):
        connections.exchange(address, "GET", "/k", {"if-match": '"x\r\nhost: evil'}, b"", None)
    assert asked in ([], [b""])
    connections.close()


def test_nobody_listening_is_broken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(Broken, match="refused"):
        ask(Address(False, f"127.0.0.1:{port}", ""))


@given(
    st.binary(min_size=1, max_size=300), st.lists(st.integers(0, 400), max_size=6), st.integers(1, 64), st.booleans()
)
@settings(max_examples=40, deadline=None)
def test_pieces_are_what_a_buffer_would_hold(data: bytes, places: list[int], piece: int, is_chunked: bool) -> None:
    head = b"transfer-encoding: chunked" if is_chunked else b"content-length: %d" % len(data)
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if is_chunked else data
    answer = b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + body
    got = bytearray()

    def take(view: memoryview, start: int) -> None:
        assert start == len(got)
        got.extend(view)

    with says(cut(answer, places)) as (address, _):
        response = ask(address, Pieces(memoryview(bytearray(piece)), len(data), take))
    assert (response.num_bytes, bytes(got)) == (len(data), data)


def test_who_cannot_take_a_piece_is_no_trouble_of_the_connection() -> None:
    def take(view: memoryview, start: int) -> None:
        raise OSError("full")

    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbody"
    with says([answer]) as (address, _), pytest.raises(NotTaken) as raised:
        ask(address, Pieces(memoryview(bytearray(2)), 4, take))
    assert str(raised.value.error) == "full"


def test_the_rest_of_pieces_begins_where_it_was_cut() -> None:
    starts: list[tuple[bytes, int]] = []
    whole = Pieces(memoryview(bytearray(b"abcd")), 100, lambda view, start: starts.append((bytes(view), start)))
    rest = whole[30:][20:]
    rest.hand_on(2, 5)
    assert (len(whole), len(rest), starts) == (100, 50, [(b"ab", 55)])


def test_certificates_that_cannot_be_read_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere.pem")
    with says([b""]) as (address, _), pytest.raises(UsageProblem, match=r"AWS_CA_BUNDLE=/nowhere\.pem: No such file"):
        ask(replace(address, is_tls=True))


def test_a_request_that_changes_something_is_not_sent_twice_behind_the_back_of_who_sends_it() -> None:
    with says([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]) as (address, asked):
        connections = Connections(QUICK)
        try:
            connections.exchange(address, "GET", "/bucket/key", {"host": "h"}, b"", None)
            with pytest.raises(Broken):  # the connection was kept, and the server has hung up
                connections.exchange(address, "POST", "/bucket/key?uploads", {"host": "h"}, b"", None)
        finally:
            connections.close()
    assert len(asked) == 1


class Capped:
    """A client of a store that answers with 300 bytes at most."""

    def __init__(self, data: bytes) -> None:
        self.data, self.asked = data, list[str]()

    def request(self, _method: str, _bucket: str, _key: str, *, into: Pieces, headers: dict[str, str], **_: Any) -> Any:
        self.asked.append(headers["range"])
        first, last = map(int, headers["range"].removeprefix("bytes=").split("-"))
        body = self.data[first : min(first + 300, last + 1)]
        for start in range(0, len(body), len(into.buffer)):
            piece = body[start : start + len(into.buffer)]
            into.buffer[: len(piece)] = piece
            into.hand_on(len(piece), start)
        told = {"content-range": f"bytes {first}-{first + len(body) - 1}/{len(self.data)}", "etag": '"e"'}
        return Response(206, told, b"", len(body))


def test_a_store_that_gives_less_than_was_asked_for_is_asked_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    store, got = Capped(bytes(range(256)) * 4), bytearray(1000)
    monkeypatch.setattr(S3Place, "client", store)
    monkeypatch.setattr(S3Place, "_takes_pieces", lambda self: True)

    def take(piece: memoryview, start: int) -> None:
        got[start : start + len(piece)] = piece

    found = S3Place("s3://bucket").read_through("key", 24, 1000, take, memoryview(bytearray(100)))
    assert found == Stretch(1000, "e", 1024)
    assert (bytes(got), len(store.asked)) == (store.data[24:], 4)
