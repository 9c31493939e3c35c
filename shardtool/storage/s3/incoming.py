"""What comes in over a socket: lines, then bytes straight into the caller's buffer, each within a time.

A plain socket waits inside the kernel (SO_RCVTIMEO): Python's own timeouts ask `poll` before each call, and let go of
the interpreter once more for it, which threads that share it pay for. TLS needs Python's: OpenSSL reads on its own.
"""

from __future__ import annotations

import ssl
import struct
from socket import SO_RCVTIMEO, SO_SNDTIMEO, SOL_SOCKET
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

BUFFER_BYTES = 16 << 10  # heads of answers; what of a body comes with them is copied, the rest is not
MAX_LINE = BUFFER_BYTES


class Incoming:
    """The receiving side of a connected socket.

    Every method raises OSError: TimeoutError where nothing came in time, ConnectionError where what came is no answer.
    """

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._socket = connection
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._begin = self._end = 0  # what is in the buffer and was not taken yet
        self.wait_at_most(seconds)

    def wait_at_most(self, seconds: float) -> None:
        """How long the other side may say nothing, or take nothing."""
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.settimeout(seconds)
            return
        self._socket.settimeout(None)
        whole, rest = divmod(round(seconds * 1e6), 10**6)
        for option in (SO_RCVTIMEO, SO_SNDTIMEO):
            self._socket.setsockopt(SOL_SOCKET, option, struct.pack("@ll", whole, rest))

    def line(self) -> bytes:
        """The next line with its end."""
        while (found := self._buffer.find(b"\n", self._begin, self._end)) < 0:
            if self._end - self._begin >= MAX_LINE:
                raise ConnectionResetError("a line too long")
            if not self._more():
                raise ConnectionResetError("the server ended the connection")
        begin, self._begin = self._begin, found + 1
        return bytes(self._view[begin : self._begin])

    def read_into(self, view: memoryview) -> int:
        """Some of the next bytes, at least one; 0 where the other side has ended."""
        if self._begin == self._end:
            return self._receive(view)
        count = min(self._end - self._begin, len(view))
        view[:count] = self._view[self._begin : self._begin + count]
        self._begin += count
        return count

    def _more(self) -> int:
        """Bytes added to the buffer; 0 where the other side has ended."""
        if self._begin:
            rest = self._end - self._begin
            self._view[:rest] = self._view[self._begin : self._end]
            self._begin, self._end = 0, rest
        count = self._receive(self._view[self._end :])
        self._end += count
        return count

    def _receive(self, view: memoryview) -> int:
        try:
            return self._socket.recv_into(view)
        except BlockingIOError as error:
            raise late() from error


def late() -> TimeoutError:
    """What a socket says whose time is over: that it would block."""
    return TimeoutError("timed out")
