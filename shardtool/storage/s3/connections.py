"""HTTP connections kept open between requests, and bodies read into the caller's buffer.

A connection belongs to one thread while it is in use, and to whoever comes next afterwards: threads that end leave
theirs to the threads of the next shard, TLS handshake included.
"""

from __future__ import annotations

import functools
import http.client
import os
import ssl
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.storage.s3.exchange import UNTRUSTED, Broken, Response
from shardtool.storage.s3.settings import READ_BYTES
from shardtool.storage.s3.watch import SpeedWatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.storage.s3.address import Address
    from shardtool.storage.s3.settings import S3Settings

SEND_BYTES = 1 << 20  # a body is sent in pieces, because a socket's timeout counts for a whole call
_NETWORK_ERRORS = (OSError, http.client.HTTPException)


class Connections:
    """Idle connections by host; thread-safe without a lock, because deques are."""

    def __init__(self, settings: S3Settings) -> None:
        self.settings = settings
        self._idle: dict[tuple[bool, str], deque[http.client.HTTPConnection]] = {}

    def close(self) -> None:
        """Close what is idle."""
        for idle in self._idle.values():
            with suppress(IndexError):
                while True:
                    idle.pop().close()

    __del__ = close

    def exchange(
        self,
        address: Address,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | memoryview,
        into: memoryview | None,
    ) -> Response:
        """One request and its whole answer.

        A connection that the server closed while it was idle is replaced in silence.

        Raises:
            Broken: no whole answer came.
        """
        idle = self._idle.setdefault((address.is_tls, address.host), deque())
        while True:
            try:
                connection, is_fresh = idle.pop(), False
            except IndexError:
                connection, is_fresh = self._connect(address), True
            try:
                answer = _send(connection, method, target, headers, body)
            except _NETWORK_ERRORS as error:
                connection.close()
                if is_fresh or isinstance(error, TimeoutError):
                    raise _broken(error) from error
                continue
            response = self._receive(connection, answer, into)
            if answer.will_close or connection.sock is None:
                connection.close()
            else:
                idle.append(connection)
            return response

    def _connect(self, address: Address) -> http.client.HTTPConnection:
        if address.is_tls:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                address.host, timeout=self.settings.connect_s, context=_tls(os.environ.get("AWS_CA_BUNDLE") or None)
            )
        else:
            connection = http.client.HTTPConnection(address.host, timeout=self.settings.connect_s)
        try:
            connection.connect()
        except _NETWORK_ERRORS as error:
            connection.close()
            raise _broken(error) from error
        connection.sock.settimeout(self.settings.read_s)
        return connection

    def _receive(
        self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse, into: memoryview | None
    ) -> Response:
        head = Response(answer.status, {name.lower(): value for name, value in answer.getheaders()})
        reader = _Body(answer, self.settings.stall_s)
        try:
            if answer.status in (200, 206) and into is not None:
                count = reader.fill(into)
                if reader.is_done():
                    answer.close()
                else:
                    connection.close()  # more than was asked for: cheaper to leave than to read
                return Response(head.status, head.headers, b"", count)
            data = reader.all()
            answer.close()
        except _NETWORK_ERRORS as error:
            connection.close()
            raise _broken(error, reader.received if into is not None else 0, head) from error
        return Response(head.status, head.headers, data, len(data))


class _Body:
    """The body of an answer, with a watch on its speed."""

    def __init__(self, answer: http.client.HTTPResponse, stall_s: float) -> None:
        self.answer = answer
        self.received = 0
        self._length = answer.length  # None: chunked, or until the connection ends
        self._watch = SpeedWatch(stall_s)

    def fill(self, view: memoryview) -> int:
        """Bytes put into `view`: as many as there are, or as fit."""
        if self._length is not None:
            view = view[: self._length]
        while self.received < len(view):
            count = self._read(view[self.received : self.received + READ_BYTES])
            if count == 0:
                if self._length is not None:
                    raise http.client.IncompleteRead(b"", len(view) - self.received)
                break
            self._count(count)
        return self.received

    def is_done(self) -> bool:
        """Whether nothing is left to read."""
        if self._length is None:
            return self.answer.isclosed() or self.answer.read1(1) == b""
        return self.received == self._length

    def all(self) -> bytes:
        """The whole body."""
        if self._length is not None:
            whole = bytearray(self._length)
            self.fill(memoryview(whole))
            return bytes(whole)
        pieces = []
        while piece := self.answer.read1(READ_BYTES):
            pieces.append(piece)
            self._count(len(piece))
        return b"".join(pieces)

    def _read(self, view: memoryview) -> int:
        if self._length is not None:  # past http.client, whose readinto waits until `view` is full
            return self.answer.fp.readinto1(view)
        piece = self.answer.read1(len(view))
        view[: len(piece)] = piece
        return len(piece)

    def _count(self, count: int) -> None:
        self.received += count
        self._watch.check(self.received)


def _send(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes | memoryview,
) -> http.client.HTTPResponse:
    connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    try:
        if len(body) or method in ("PUT", "POST"):
            connection.putheader("content-length", str(len(body)))
        connection.endheaders(_pieces(memoryview(body)) if len(body) else None)
    except (BrokenPipeError, ConnectionResetError) as error:
        # A server that refuses a large body answers and closes before it has read all: the answer says why.
        try:
            return connection.getresponse()
        except _NETWORK_ERRORS:
            raise error from None
    return connection.getresponse()


def _pieces(view: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(view), SEND_BYTES):
        yield view[start : start + SEND_BYTES]


def _broken(error: Exception, received: int = 0, head: Response | None = None) -> Broken:
    if isinstance(error, ssl.SSLCertVerificationError):
        kind = UNTRUSTED
    elif isinstance(error, TimeoutError):
        kind = "stall" if head else "timeout"
    else:
        kind = "body" if head else "connection"
    return Broken(kind, str(error) or type(error).__name__, received, head)


@functools.cache
def _tls(ca_bundle: str | None) -> ssl.SSLContext:
    """Trust in the system's certificates, or in those of a file; made once, because it costs 10 to 30 ms."""
    return ssl.create_default_context(cafile=ca_bundle)
