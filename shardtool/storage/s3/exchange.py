"""One request to a store and its answer: what an engine is given, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.storage.base import Take

Key: TypeAlias = str | bytes  # of an object: any text, or its UTF-8 bytes
Query: TypeAlias = tuple[tuple[str, str], ...]

UNTRUSTED = "untrusted"  # the one kind of trouble with a connection that no further try changes: its certificate
UNKNOWN_HOST = "unknown host"  # and one that few tries change: name servers do forget names, but for moments


@dataclass(frozen=True)
class Request:
    """What is asked of a store. `headers` have lower-case names and neither credentials nor a host."""

    method: str
    bucket: str
    key: Key = ""
    query: Query = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | memoryview = b""


@dataclass(frozen=True)
class Response:
    """What a store answered."""

    status: int
    headers: Mapping[str, str]  # lower-case names
    body: bytes = b""  # empty where it went into the caller's buffer
    num_bytes: int = 0  # of the body, wherever it went
    attempts: int = 1  # that it took

    @property
    def etag(self) -> str:
        """The version of the object, without the quotes around it; "" where the store tells none."""
        return self.headers.get("etag", "").removeprefix("W/").strip('"')


def if_match(version: str) -> dict[str, str]:
    """The header that asks for this version and no other; none for ""."""
    return {"if-match": f'"{version}"'} if version else {}


class Pieces:
    """A destination for a body that is handed on piece by piece, each while it is in the CPU's cache.

    Stands where a view of `num_bytes` would: it has a length, and a slice of it is the rest of it.

    Args:
        buffer: is filled again and again.
        num_bytes: that are wanted.
        take: called with each piece, in order; where an attempt broke the same bytes may come again.
        start: where the first byte is.
    """

    def __init__(self, buffer: memoryview, num_bytes: int, take: Take, start: int = 0) -> None:
        self.buffer, self.take, self.start, self._end = buffer, take, start, start + num_bytes

    def __len__(self) -> int:
        return self._end - self.start

    def __getitem__(self, rest: slice) -> Pieces:
        start = self.start + rest.start
        return Pieces(self.buffer, self._end - start, self.take, start)

    def hand_on(self, count: int, received: int) -> None:
        """Give `count` bytes that lie in the buffer away; `received` came before them.

        Raises:
            NotTaken: whoever takes them failed.
        """
        try:
            self.take(self.buffer[:count], self.start + received)
        except Exception as error:
            raise NotTaken(error) from error


class NotTaken(Exception):
    """What went wrong with bytes that had come: no trouble of the connection.

    Args:
        error: of whoever took them.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


Into: TypeAlias = memoryview | Pieces


class Broken(Exception):
    """An attempt that ended without a whole answer: no connection, a reset, a stall, a body cut short.

    Args:
        kind: a word for the counters: `connection`, `timeout`, `stall`, `body`; or one above.
        message: what the system said.
        received: bytes of the body that are in the caller's buffer already.
        head: status and headers, where they came.
    """

    def __init__(self, kind: str, message: str, received: int = 0, head: Response | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.received = received
        self.head = head


class Engine(Protocol):
    """One way to talk to a store; one attempt a call, no retries. Safe to use from many threads."""

    name: str

    def exchange(self, request: Request, into: Into | None = None) -> Response:
        """The answer to `request`, whatever its status.

        A body of status 200 or 206 goes into `into` where that is given: its first bytes, as many as fit. Only the
        engine built in takes Pieces.

        Raises:
            Broken: no whole answer came.
            AccessDenied: there are no credentials.
        """

    def adapt(self, request: Request, response: Response, code: str) -> bool:
        """Learn from a refusal: another region, new credentials, the store's clock. Whether a new try may succeed."""

    def endpoint(self, bucket: str) -> str:
        """Where requests for `bucket` go, for messages."""

    def close(self) -> None:
        """Close idle connections; the engine goes on to work."""
