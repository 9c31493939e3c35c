"""A proxy between an S3 client and an S3 server that makes the wire go wrong on purpose, and writes down what it saw.

    with FaultProxy(server.endpoint) as proxy:
        proxy.add(r"GET .*\\.jpg", Fault("close", at=100), skip=2, times=1)
        ...  # clients talk to proxy.endpoint
        assert proxy.count(r"GET ") == 4

The first rule that matches a request, and is neither skipped nor used up, acts. The Host header goes through unchanged,
so signatures stay valid. Faults:

    status   answer `status` with an S3 error body of `code` (and `headers`); the server never sees the request
    refuse   reset the connection before any answer
    reset    reset the connection in the middle of the body, at byte `at`
    close    end the connection in the middle of the body, at byte `at`
    stall    say nothing more for `seconds` at byte `at` of the body, then end the connection
    slow     send the body at `bytes_per_s`
    latency  wait `seconds` before the request goes on
    flip     invert the lowest bit of byte `at` of the body
    error200 forward the request, then answer 200 with an S3 error of `code` as the body
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from typing import Self

BLOCK = 65_536
HEADER_LIMIT = 1 << 20
NO_BODY = (204, 304)


@dataclass(frozen=True)
class Fault:
    """What goes wrong; see the module."""

    kind: str
    at: int = 0
    seconds: float = 0.0
    status: int = 503
    code: str = "SlowDown"
    headers: tuple[str, ...] = ()
    bytes_per_s: float = 0.0


@dataclass
class Rule:
    """When a fault happens: for requests whose `METHOD path?query|range` is found by the expression `match`."""

    match: str
    fault: Fault
    skip: int = 0
    times: int = 1  # -1: always
    probability: float = 1.0
    seed: int = 0
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def applies(self, what: str) -> bool:
        """Whether it acts on this request; counts."""
        if self.times == 0 or not re.search(self.match, what):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self._random.random() >= self.probability:
            return False
        self.times -= self.times > 0
        return True


@dataclass
class Seen:
    """One request that came through."""

    method: str
    path: str  # with the query, as sent
    range: str = ""
    if_match: str = ""
    began_s: float = field(default_factory=time.monotonic)
    fault: str = ""
    status: int = 0
    sent_bytes: int = 0  # body bytes that the client was sent
    received_bytes: int = 0  # body bytes that the client sent

    @property
    def what(self) -> str:
        """What rules look at."""
        return f"{self.method} {self.path}|{self.range}"


class FaultProxy:
    """Listens on a free port of loopback, in a thread of its own, and forwards to `upstream`."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        assert parts.hostname is not None
        assert parts.port is not None
        self._upstream = (parts.hostname, parts.port)
        self._rules: list[Rule] = []
        self.requests: list[Seen] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.endpoint = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.endpoint = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def add(
        self, match: str, fault: Fault, *, skip: int = 0, times: int = 1, probability: float = 1.0, seed: int = 0
    ) -> Rule:
        """One more rule, behind those that are there."""
        rule = Rule(match, fault, skip, times, probability, seed)
        self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Forget rules and requests."""
        self._rules.clear()
        self.requests.clear()

    def count(self, match: str) -> int:
        """Requests whose `METHOD path?query|range` is found by `match`."""
        return sum(re.search(match, seen.what) is not None for seen in self.requests)

    def faults(self) -> int:
        """Requests on which a rule acted."""
        return sum(bool(seen.fault) for seen in self.requests)

    def sent_bytes(self, match: str = "") -> int:
        """Body bytes that went to clients."""
        return sum(seen.sent_bytes for seen in self.requests if re.search(match, seen.what))

    def is_idle(self) -> bool:
        """Whether no client is connected."""
        return not self._tasks

    def write_log(self, path: Path) -> None:
        """Every request as a line of JSON."""
        path.write_text("".join(json.dumps(asdict(seen)) + "\n" for seen in self.requests))

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=HEADER_LIMIT, backlog=1024)

    async def _stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:  # what a client that is gone will never read
            writer.transport.abort()
        for _ in range(3):
            await asyncio.sleep(0)  # transports say goodbye in the next rounds of the loop

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await _Connection(self, reader, writer).serve()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # either side went away
        finally:
            self._tasks.discard(task)
            writer.close()

    def fault_for(self, seen: Seen) -> Fault | None:
        """What the rules say about a request."""
        return next((rule.fault for rule in self._rules if rule.applies(seen.what)), None)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the server."""
        reader, writer = await asyncio.open_connection(*self._upstream, limit=HEADER_LIMIT)
        self._writers.add(writer)
        return reader, writer


@dataclass
class _Head:
    first: str
    headers: dict[str, str]  # names in lower case
    raw: bytes

    @property
    def length(self) -> int:
        return int(self.headers.get("content-length", 0))

    @property
    def is_chunked(self) -> bool:
        return self.headers.get("transfer-encoding", "").lower() == "chunked"


class _Connection:
    """One client's connection, and the one to the server that goes with it."""

    def __init__(self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy, self._reader, self._writer = proxy, reader, writer
        self._server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def serve(self) -> None:
        """Request after request, until one side has enough."""
        try:
            while await self._one():
                pass
        finally:
            if self._server is not None:
                self._server[1].close()

    async def _one(self) -> bool:
        head = await _read_head(self._reader)
        method, path, _ = head.first.split(" ", 2)
        seen = Seen(method, path, head.headers.get("range", ""), head.headers.get("if-match", ""))
        fault = self._proxy.fault_for(seen)
        seen.fault = fault.kind if fault else ""
        self._proxy.requests.append(seen)
        if fault is not None and fault.kind == "latency":
            await asyncio.sleep(fault.seconds)
        if fault is not None and fault.kind == "refuse":
            return self._reset()
        body = await self._read_body(head)
        seen.received_bytes = sum(map(len, body))
        if fault is not None and fault.kind == "status":
            return await self._say(fault.status, fault, seen)
        answer, source = await self._forward(head, body)
        if fault is not None and fault.kind == "error200":
            async for _ in _blocks(source, answer, method):
                pass
            return await self._say(200, fault, seen)
        return await self._answer(answer, source, fault, seen)

    async def _read_body(self, head: _Head) -> list[bytes]:
        """The request's body as it came, framing included."""
        if head.headers.get("expect", "").lower() == "100-continue":
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not head.is_chunked:
            return [await self._reader.readexactly(head.length)]
        body: list[bytes] = []
        while not body or int(body[-2].split(b";")[0], 16):
            size = await self._reader.readline()
            body += [size, await self._reader.readexactly(int(size.split(b";")[0], 16) + 2)]
        return body

    async def _forward(self, head: _Head, body: list[bytes]) -> tuple[_Head, asyncio.StreamReader]:
        if self._server is None:
            self._server = await self._proxy.connect()
        reader, writer = self._server
        writer.write(re.sub(rb"\r\nexpect:[^\r]*", b"", head.raw, flags=re.IGNORECASE))  # it was answered here
        writer.writelines(body)
        await writer.drain()
        return await _read_head(reader), reader

    async def _answer(self, answer: _Head, source: asyncio.StreamReader, fault: Fault | None, seen: Seen) -> bool:
        seen.status = int(answer.first.split(" ")[1])
        self._writer.write(answer.raw)
        async for block in _blocks(source, answer, seen.method):
            data, goes_on = await self._spoil(block, fault, seen)
            seen.sent_bytes += len(data)  # before the client can have it, and ask
            self._writer.write(b"%x\r\n%b\r\n" % (len(data), data) if answer.is_chunked else data)
            await self._writer.drain()
            if not goes_on:
                return await self._break(fault)
        if answer.is_chunked and seen.method != "HEAD":
            self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()
        return "close" not in answer.headers.get("connection", "").lower()

    async def _spoil(self, block: bytes, fault: Fault | None, seen: Seen) -> tuple[bytes, bool]:
        """(what the client gets of a block, whether anything comes behind it)."""
        if fault is None:
            return block, True
        at = fault.at - seen.sent_bytes
        if fault.kind in ("reset", "close", "stall") and at < len(block):
            return block[:at], False
        if fault.kind == "flip" and 0 <= at < len(block):
            return block[:at] + bytes([block[at] ^ 1]) + block[at + 1 :], True
        if fault.kind == "slow":
            await asyncio.sleep(len(block) / fault.bytes_per_s)
        return block, True

    async def _break(self, fault: Fault | None) -> bool:
        if fault is not None and fault.kind == "stall":
            await asyncio.sleep(fault.seconds)
        return self._reset() if fault is not None and fault.kind == "reset" else False

    async def _say(self, status: int, fault: Fault, seen: Seen) -> bool:
        text = f"<Error><Code>{fault.code}</Code><Message>injected</Message><RequestId>fault</RequestId></Error>"
        body = b"" if seen.method == "HEAD" else f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()
        seen.status, seen.sent_bytes = status, len(body)
        lines = [f"HTTP/1.1 {status} Injected", "Content-Type: application/xml", f"Content-Length: {len(body)}"]
        self._writer.write("\r\n".join([*lines, *fault.headers, "", ""]).encode() + body)
        await self._writer.drain()
        return True

    def _reset(self) -> bool:
        """End the connection with RST, as a crash does; nothing that is buffered gets out."""
        with suppress(OSError):
            at_once = struct.pack("ii", 1, 0)
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        self._writer.transport.abort()
        return False


async def _read_head(reader: asyncio.StreamReader) -> _Head:
    raw = await reader.readuntil(b"\r\n\r\n")
    first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return _Head(first, {name.strip().lower(): value.strip() for name, _, value in pairs}, raw)


async def _blocks(reader: asyncio.StreamReader, head: _Head, method: str) -> AsyncIterator[bytes]:
    """The body of an answer, without its framing."""
    if method == "HEAD" or int(head.first.split(" ")[1]) in NO_BODY:
        return
    if head.is_chunked:
        while size := int((await reader.readline()).split(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
        return
    left = head.length
    while left:
        block = await reader.read(min(BLOCK, left))
        if not block:
            raise asyncio.IncompleteReadError(b"", left)
        left -= len(block)
        yield block
