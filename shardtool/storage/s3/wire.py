"""HTTP/1.1 over one socket, as much of it as stores speak: a request out, its answer in, the body into a buffer.

http.client takes as long for the head of an answer as everything else together takes for a small object (its headers
are parsed as an e-mail); this is RFC 9112 without what no store sends: folded header lines and encodings but chunked.
"""

from __future__ import annotations

import functools
import os
import socket
import ssl
from typing import TYPE_CHECKING

from shardtool.errors import UsageProblem
from shardtool.storage.s3.exchange import Response
from shardtool.storage.s3.incoming import Incoming, late

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.storage.s3.address import Address

SEND_BYTES = 1 << 20  # a body is sent in pieces, because a socket's timeout counts for a whole call
MAX_HEADERS = 256
_NO_BODY = (204, 304)
_PORTS = {False: 80, True: 443}


class Wire:
    """A connection to a server, for one request at a time.

    Every method raises OSError (TimeoutError, ConnectionError, ...) where the other side does not answer as it should.
    """

    def __init__(self, address: Address, *, connect_s: float, read_s: float) -> None:
        host, _, port = address.host.rpartition(":") if _has_port(address.host) else (address.host, "", "")
        host = host.strip("[]")
        self._socket = socket.create_connection((host, int(port or _PORTS[address.is_tls])), connect_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.is_tls:
                trust = _trust(os.environ.get("AWS_CA_BUNDLE") or None)
                self._socket = trust.wrap_socket(self._socket, server_hostname=host)
            self._incoming = Incoming(self._socket, read_s)
        except BaseException:
            self._socket.close()
            raise
        self._left: int | None = 0  # bytes of the body, or of its present chunk; None: until the connection ends
        self._is_chunked = False
        self._is_between = False  # a chunk is read, the size of the next one is not
        self.can_go_on = True  # whether another request may follow on this connection

    def wait_at_most(self, seconds: float) -> None:
        """How long the other side may say nothing."""
        self._incoming.wait_at_most(seconds)

    def close(self) -> None:
        """End it."""
        self._socket.close()

    def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes | memoryview) -> Response:
        """Send a request; status and headers of the answer."""
        length = [f"content-length: {len(body)}"] if len(body) or method in ("PUT", "POST") else []
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), *length]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        if head.count(b"\n") != len(lines) + 1:
            raise ValueError("a header holds a line break")
        try:
            self._send(head, body)
        except (BrokenPipeError, ConnectionResetError) as error:
            # A server that refuses a large body answers and closes before it has read all: the answer says why.
            self.can_go_on = False
            try:
                return self._head(method)
            except OSError:
                raise error from None
        return self._head(method)

    def _send(self, head: bytes, body: bytes | memoryview) -> None:
        view = memoryview(body)
        first = head if len(view) > SEND_BYTES else b"".join((head, body))
        rest = range(0, len(view), SEND_BYTES) if len(view) > SEND_BYTES else ()
        try:
            self._socket.sendall(first)
            for start in rest:
                self._socket.sendall(view[start : start + SEND_BYTES])
        except BlockingIOError as error:
            raise late() from error

    def _head(self, method: str) -> Response:
        status = 100
        while 100 <= status < 200:  # Continue, Early Hints
            line = self._incoming.line()
            if not line.startswith(b"HTTP/1.") or not line[9:12].isdigit():
                raise ConnectionError(f"no answer of HTTP: {line[:40]!r}")
            version, status = line[5:8], int(line[9:12])
            headers = self._headers()
        said = headers.get("connection", "").lower()
        self.can_go_on = self.can_go_on and "close" not in said and (version == b"1.1" or "keep-alive" in said)
        self._is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        if method == "HEAD" or status in _NO_BODY:
            self._left, self._is_chunked = 0, False
        elif self._is_chunked:
            self._left, self._is_between = self._next_chunk(), False
        else:
            length = headers.get("content-length", "")
            self._left = int(length) if length.isdigit() else None
            self.can_go_on = self.can_go_on and self._left is not None
        return Response(status, headers)

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        for _ in range(MAX_HEADERS):
            line = self._incoming.line()
            if line in (b"\r\n", b"\n"):
                return headers
            name, _, value = line.decode("latin-1").partition(":")
            name, value = name.lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        raise ConnectionError(f"more than {MAX_HEADERS} headers")

    @property
    def length(self) -> int | None:
        """Bytes of the body that are left, where they are known."""
        return None if self._is_chunked else self._left

    @property
    def is_done(self) -> bool:
        """Whether the body is read to its end."""
        return self._left == 0 and not self._is_between

    def read_into(self, view: memoryview) -> int:
        """Some of the next bytes of the body, at least one; 0 at its end."""
        if self._is_between:
            self._incoming.line()
            self._left, self._is_between = self._next_chunk(), False
        if self._left == 0 or not len(view):
            return 0
        count = self._incoming.read_into(view if self._left is None else view[: self._left])
        if count == 0:
            if self._left is not None:
                raise ConnectionError(f"the connection ended {self._left} bytes before the body")
            self._left = 0
        elif self._left is not None:
            self._left -= count
            self._is_between = self._left == 0 and self._is_chunked
        return count

    def _next_chunk(self) -> int:
        """Bytes of the next chunk; after the last one, whose size is 0, trailers are read away."""
        text = self._incoming.line().split(b";")[0].strip()
        try:
            size = int(text, 16)
        except ValueError:
            raise ConnectionError(f"no size of a chunk: {text[:20]!r}") from None
        if size < 0:
            raise ConnectionError(f"no size of a chunk: {text[:20]!r}")
        if size == 0:
            self._headers()
        return size


def _has_port(host: str) -> bool:
    return ":" in host and not host.endswith("]")


@functools.cache
def _trust(ca_bundle: str | None) -> ssl.SSLContext:
    """Trust in the system's certificates, or in those of a file; made once, because it costs 10 to 30 ms.

    Raises:
        UsageProblem: the file cannot be read, or holds no certificate.
    """
    try:
        return ssl.create_default_context(cafile=ca_bundle)
    except OSError as error:
        raise UsageProblem(
            f"AWS_CA_BUNDLE={ca_bundle}: {error.strerror or error}",
            hint="name a file of certificates in PEM, or unset it to trust those of the system",
        ) from error
