"""An S3 server that holds nothing and answers at once: lists of millions of generated keys, objects of any size.

    python tests/null_s3.py --latency 0.03      prints its endpoint, serves until standard input ends

The bucket says what it holds: `keys-1000000` lists that many keys in folders of 2,000; in `size-4096` every object has
4,096 bytes. For measurements, where a real server would be the limit, and for lists that would take hours to make.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import threading
from bisect import bisect_left
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER_KEYS = 2_000
PAGE_KEYS = 1_000
ROW = (
    b"<Contents><Key>%b</Key><LastModified>2026-01-31T12:00:00.000Z</LastModified><ETag>&quot;%032x&quot;</ETag>"
    b"<Size>%d</Size><StorageClass>STANDARD</StorageClass></Contents>"
)
HEAD = b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\nETag: "0"\r\nLast-Modified: Sat, 31 Jan 2026 12:00:00 GMT\r\n\r\n'


def key_of(number: int) -> bytes:
    """Key of object `number`; ascending."""
    return b"data/%05d/%09d.jpg" % (number // FOLDER_KEYS, number)


def size_of(number: int) -> int:
    """Its size in bytes."""
    return 1_000 + number % 100_000


def list_page(num_keys: int, prefix: bytes, delimiter: bytes, token: str) -> bytes:
    """A page of ListObjectsV2 of the bucket that holds keys 0 ... num_keys - 1."""
    numbers = range(num_keys)
    first = bisect_left(numbers, prefix, key=key_of)
    last = bisect_left(numbers, prefix + b"\xff", key=key_of)
    start = int(token or first)
    body: list[bytes] = []
    stop = start
    if delimiter and len(prefix) < len(b"data/00000/"):
        width = len(b"data/") if len(prefix) < len(b"data/") else len(b"data/00000/")
        while stop < last and len(body) < PAGE_KEYS:
            folder = key_of(stop)[:width]
            body.append(b"<CommonPrefixes><Prefix>%b</Prefix></CommonPrefixes>" % folder)
            stop = bisect_left(numbers, folder + b"\xff", key=key_of)
    else:
        stop = min(last, start + PAGE_KEYS)
        body = [ROW % (key_of(number), number + 1, size_of(number)) for number in range(start, stop)]
    more = b"<IsTruncated>true</IsTruncated><NextContinuationToken>%d</NextContinuationToken>" % stop
    return b"<ListBucketResult>%b%b</ListBucketResult>" % (more if stop < last else b"", b"".join(body))


@lru_cache(maxsize=4)
def _zeros(size: int) -> bytes:
    return bytes(size)


def answer(target: str) -> bytes:
    """Body of the answer to a GET."""
    parts = urlsplit(target)
    bucket = parts.path.split("/")[1]
    kind, _, number = bucket.partition("-")
    if kind == "keys" and parts.query:
        query = parse_qs(parts.query, keep_blank_values=True)
        prefix, delimiter, token = (query.get(name, [""])[0] for name in ("prefix", "delimiter", "continuation-token"))
        return list_page(int(number), unquote_to_bytes(prefix), delimiter.encode(), token)
    if kind == "keys":
        found = re.search(r"(\d{9})\.jpg$", parts.path)
        return _zeros(size_of(int(found.group(1)))) if found else b""
    return _zeros(int(number))


class _Connection(asyncio.Protocol):
    def __init__(self, latency_s: float) -> None:
        self._latency_s, self._buffer = latency_s, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            target = self._buffer[: self._buffer.find(b"\r\n")].split(b" ")[1].decode()
            self._buffer = self._buffer[end + 4 :]
            asyncio.get_running_loop().call_later(self._latency_s, self._reply, target)

    def _reply(self, target: str) -> None:
        body = answer(target)
        self._transport.write(HEAD % len(body) + body)


async def serve(latency_s: float) -> None:
    """Serve until standard input ends; prints the endpoint first."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(latency_s), "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    ended = asyncio.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(ended.set)), daemon=True).start()
    await ended.wait()
    server.close()


@contextmanager
def null_s3(latency_s: float = 0.0) -> Iterator[str]:
    """A server in a process of its own; its endpoint."""
    command = [sys.executable, os.path.abspath(__file__), "--latency", str(latency_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
            process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    asyncio.run(serve(parser.parse_args().latency))
