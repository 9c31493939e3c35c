"""HTTP connections kept open between requests, and bodies read into the caller's buffer.

A connection belongs to one thread while it is in use, and to whoever comes next afterwards: threads that end leave
theirs to the threads of the next shard, TLS handshake included.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.storage.s3.exchange import UNKNOWN_HOST, UNTRUSTED, Broken, NotTaken, Pieces, Response
from shardtool.storage.s3.settings import READ_BYTES
from shardtool.storage.s3.watch import SpeedWatch
from shardtool.storage.s3.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.storage.s3.address import Address
    from shardtool.storage.s3.exchange import Into
    from shardtool.storage.s3.settings import S3Settings

MAX_CHUNKED_BYTES = 64 << 20  # of a body whose size was not told: lists and errors are far smaller


class Connections:
    """Idle connections by host; thread-safe without a lock, because deques are."""

    def __init__(self, settings: S3Settings) -> None:
        self.settings = settings
        self._idle: dict[tuple[bool, str], deque[Wire]] = {}

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
        into: Into | None,
    ) -> Response:
        """One request and its whole answer.

        A connection that the server closed while it was idle is replaced in silence.

        Raises:
            Broken: no whole answer came.
        """
        idle = self._idle.setdefault((address.is_tls, address.host), deque())
        while True:
            try:
                wire, is_fresh = idle.pop(), False
            except IndexError:
                wire, is_fresh = self._connect(address), True
            try:
                head = wire.ask(method, target, headers, body)
            except OSError as error:
                wire.close()
                if is_fresh or isinstance(error, TimeoutError) or method == "POST":  # it may have been obeyed
                    raise _broken(error) from error
                continue
            except BaseException:
                wire.close()
                raise
            response = self._receive(wire, head, into)
            if wire.can_go_on and wire.is_done:
                idle.append(wire)
            else:
                wire.close()  # more than was asked for is left: cheaper to leave than to read
            return response

    def _connect(self, address: Address) -> Wire:
        try:
            return Wire(address, connect_s=self.settings.connect_s, read_s=self.settings.read_s)
        except OSError as error:
            raise _broken(error) from error

    def _receive(self, wire: Wire, head: Response, into: Into | None) -> Response:
        body = _Body(wire, self.settings.stall_s)
        is_long = wire.length is None or wire.length > READ_BYTES
        try:
            if is_long:  # a first byte may take its time, those behind it may not
                wire.wait_at_most(self.settings.stall_s)
            data = b""
            if head.status in (200, 206) and into is not None:
                body.fill(into)
            else:
                data = body.all()
            if is_long:
                wire.wait_at_most(self.settings.read_s)
        except OSError as error:
            wire.close()
            raise _broken(error, body.received if into is not None else 0, head) from error
        except NotTaken:
            wire.close()
            raise
        return Response(head.status, head.headers, data, body.received)


class _Body:
    """The body of an answer, with a watch on its speed."""

    def __init__(self, wire: Wire, stall_s: float) -> None:
        self.received = 0
        self._wire = wire
        self._watch = SpeedWatch(stall_s)

    def fill(self, into: Into) -> int:
        """Bytes put into `into`: as many as there are, or as fit."""
        if isinstance(into, Pieces):
            self._hand_on(into)
            return self.received
        while self.received < len(into):
            count = self._wire.read_into(into[self.received : self.received + READ_BYTES])
            if count == 0:
                break
            self.received += count
            self._watch.check(self.received)
        return self.received

    def _hand_on(self, into: Pieces) -> None:
        """Whole pieces, so that writes are aligned; what is left of them at the end of a body or at a break."""
        filled = 0
        try:
            while size := min(len(into.buffer), len(into) - self.received):
                count = self._wire.read_into(into.buffer[filled:size])
                filled += count
                self._watch.check(self.received + filled)
                if count == 0:
                    break
                if filled == size:
                    self._give(into, filled)
                    filled = 0
        except OSError:
            self._give(into, filled)
            raise
        self._give(into, filled)

    def _give(self, into: Pieces, count: int) -> None:
        if count:
            into.hand_on(count, self.received)
            self.received += count

    def all(self) -> bytes:
        """The whole body."""
        whole = bytearray(self._wire.length if self._wire.length is not None else READ_BYTES)
        while True:
            self.fill(memoryview(whole))
            if self._wire.is_done or self.received < len(whole):
                return bytes(memoryview(whole)[: self.received])
            if len(whole) >= MAX_CHUNKED_BYTES:
                raise ConnectionError(f"a body of more than {MAX_CHUNKED_BYTES} bytes and of unknown size")
            whole.extend(bytes(len(whole)))


def _broken(error: OSError, received: int = 0, head: Response | None = None) -> Broken:
    if isinstance(error, ssl.SSLCertVerificationError):
        kind = UNTRUSTED
    elif isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME:
        kind = UNKNOWN_HOST
    elif isinstance(error, TimeoutError):
        kind = "stall" if head else "timeout"
    else:
        kind = "body" if head else "connection"
    return Broken(kind, str(error) or type(error).__name__, received, head)
