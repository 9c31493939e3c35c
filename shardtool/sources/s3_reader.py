"""Payload of objects, straight into a slab: a window of requests is under way ahead, in the order of the shard.

Every object is asked for on condition that it is still the one that was listed (If-Match). Large objects come in
pieces. Memory is the window, whatever the objects' sizes.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING, NoReturn

import xxhash

from shardtool import columns
from shardtool.errors import AccessDenied, SourceChanged, SourceError, SourceNotFound
from shardtool.sources.reader import failures_of
from shardtool.sources.s3_url import base_of
from shardtool.storage.s3.client import client_for
from shardtool.storage.s3.many import Get, get_many, get_one
from shardtool.storage.s3.retry import count_retry
from shardtool.storage.s3.settings import S3Settings

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from shardtool.model import ShardRows
    from shardtool.storage.s3.many import Got

PIECE_BYTES = 8 << 20  # AWS advises ranges of 8 to 16 MiB
WINDOW_BYTES = 64 << 20
REQUESTS = 64  # in flight, a process; 0.2 ms of CPU each, so that they keep a core busy at 10 to 20 ms of latency
CHECK_MD5 = "SHARDTOOL_S3_CHECK_MD5"  # 1: compare objects with ETags that are MD5 sums; about 1.3 s a GB
MD5_ATTEMPTS = 3
_MD5 = re.compile(rb"[0-9a-f]{32}")


class S3Reader:
    """Reads the parts of one shard from an object store.

    Args:
        roots: URLs of prefixes.
        rows: the shard.
        members: key + b"." + part name, list[num_parts].
    """

    def __init__(
        self, roots: tuple[str, ...], rows: ShardRows, members: list[bytes], _fresh_until: float = 0.0
    ) -> None:
        self._rows, self._members = rows, members
        self._client = client_for(S3Settings.from_environ())
        self._places = [base_of(root) for root in roots]
        self._root_of = rows.roots.tolist()
        self._sizes = rows.sizes.tolist()
        self._sources = columns.to_list(rows.source)
        self._data = columns.to_list(rows.data)
        self._versions = columns.to_list(rows.versions) if rows.versions is not None else [None] * rows.num_parts
        self._checks_md5 = os.environ.get(CHECK_MD5, "") not in ("", "0")
        self._run: Generator[Got, None, None] | None = None
        self._next = 0  # part that the run gives next

    def close(self) -> None:
        """No further requests."""
        if self._run is not None:
            self._run.close()
            self._run = None

    def fill(self, first: int, last: int, starts: list[int], slab: memoryview) -> list[int]:
        """Read parts [first, last) to slab[starts[i - first]:]; their xxh3_64.

        Raises:
            SourceChanged: an object is another one by now.
            SourceNotFound, AccessDenied: it is gone, or may not be read.
            RemoteError: the store kept failing after all retries.
        """
        digests = []
        for part, start in zip(range(first, last), starts, strict=True):
            at = start
            for piece in self._pieces(part):
                slab[at : at + len(piece)] = piece
                at += len(piece)
            digests.append(xxhash.xxh3_64_intdigest(slab[start:at]))
        return digests

    def stream(self, part: int, _buffer: memoryview) -> Iterator[memoryview]:
        """The bytes of one large part, in pieces; raises as `fill` does."""
        return self._pieces(part)

    def failures(self) -> list[tuple[int, SourceError]]:
        """(part, error) for every part that cannot be read as planned; reads each object whole."""
        return failures_of(self._rows.num_parts, self._pieces)

    def url_of(self, part: int) -> str:
        """Where a part lies, for messages."""
        bucket, key = self._place_of(part)
        return f"s3://{bucket}/{key.decode('utf-8', 'backslashreplace')}"

    def _place_of(self, part: int) -> tuple[str, bytes]:
        bucket, base = self._places[self._root_of[part]]
        source = self._sources[part]
        return bucket, base + (self._members[part] if source is None else source)

    def _pieces(self, part: int) -> Iterator[memoryview]:
        inline = self._data[part]
        if inline is not None:
            yield memoryview(inline)
            return
        run = self._run_at(part)
        md5 = self._md5_of(part)
        for _ in range(_num_pieces(self._sizes[part])):
            got = next(run)
            if got.error is not None:
                self._next = part + 1 if _num_pieces(self._sizes[part]) == 1 else -1
                self._failed(part, got.error)
            assert got.data is not None
            data = self._settled(part, got) if md5 and _num_pieces(self._sizes[part]) == 1 else got.data
            if md5 is not None:
                md5.update(data)
            yield memoryview(data)
        self._next = part + 1
        if md5 is not None and md5.hexdigest().encode() != self._versions[part]:
            self._damaged(part)

    def _run_at(self, part: int) -> Generator[Got, None, None]:
        """The results from `part` on; a new run where the last one is elsewhere."""
        while self._run is not None and self._next < part and self._next >= 0 and self._data[self._next] is not None:
            self._next += 1  # generated parts are not asked for
        if self._run is None or self._next != part:
            self.close()
            gets = (get for later in range(part, self._rows.num_parts) for get in self._gets(later))
            self._run = _generator(get_many(self._client, gets, window_bytes=WINDOW_BYTES, threads=REQUESTS))
        self._next = -1  # until this part is through
        return self._run

    def _gets(self, part: int) -> Iterator[Get]:
        if self._data[part] is not None:
            return
        (bucket, key), size, etag = self._place_of(part), self._sizes[part], self._versions[part]
        version = etag.decode() if etag else ""
        if _num_pieces(size) == 1:
            yield Get(bucket, key, size, None, version)
            return
        for offset in range(0, size, PIECE_BYTES):
            yield Get(bucket, key, min(PIECE_BYTES, size - offset), offset, version)

    def _md5_of(self, part: int) -> hashlib._Hash | None:
        if not self._checks_md5 or not _MD5.fullmatch(self._versions[part] or b""):
            return None
        return hashlib.md5(usedforsecurity=False)

    def _settled(self, part: int, got: Got) -> bytearray:
        """The bytes of a whole object; asked for again while they have another MD5 than its ETag says."""
        data, attempts = got.data or bytearray(), 1
        while hashlib.md5(data, usedforsecurity=False).hexdigest().encode() != self._versions[part]:
            if attempts == MD5_ATTEMPTS:
                self._next = part + 1
                self._damaged(part)
            count_retry("damaged")
            data, attempts = get_one(self._client, got.get), attempts + 1
        return data

    def _damaged(self, part: int) -> NoReturn:
        url = self.url_of(part)
        raise SourceError(
            f"{url}: its bytes have another MD5 than its ETag says",
            hint=f"try again; where the store encrypts, ETags are no MD5: unset {CHECK_MD5}",
            where={"url": url, "part": part},
        )

    def _failed(self, part: int, error: Exception) -> NoReturn:
        if not isinstance(error, SourceError):
            raise error
        url = self.url_of(part)
        hint = "put it right and run the same command again; or --on-error skip leaves such samples out"
        message = f"{url} cannot be read: {error.message.removeprefix(url).lstrip(': ')}"
        kind: type[SourceError] = SourceNotFound if isinstance(error, SourceNotFound) else AccessDenied
        if isinstance(error, SourceChanged):
            kind = SourceChanged
            message = f"{url} changed while the data set was packed: {error.message.removeprefix(url).strip()}"
            hint = "let the writer finish, then rerun with --rescan; or --on-changed skip leaves such samples out"
        raise kind(message, hint=hint, where={**error.where, "part": part}) from error


def _num_pieces(size: int) -> int:
    return max(1, -(-size // PIECE_BYTES))


def _generator(results: Iterator[Got]) -> Generator[Got, None, None]:
    yield from results
