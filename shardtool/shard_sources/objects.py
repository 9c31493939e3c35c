"""Parts that are runs of bytes of objects, straight from the store: nothing of them touches a local disk.

Roots are `range:ETAG:s3://BUCKET/KEY` beside `range:PATH`, in one plan: every range is asked for on condition that the
object is still the one that was scanned (If-Match), and every part is compared with its digest where that is known.
Requests are under way ahead in the order of the shard; see `runs` for what one of them brings. Memory: one batch of
64 MiB, and a window of 32 MiB in flight.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np
import xxhash

from shardtool.errors import AccessDenied, SourceChanged, SourceError, SourceNotFound
from shardtool.shard_sources.ranges import PREFIX, RangeReader
from shardtool.shard_sources.runs import RUN_BYTES, Run, batch_bounds, runs_of
from shardtool.storage import REMOTE_SCHEME
from shardtool.storage.s3.address import split_url
from shardtool.storage.s3.client import client_for
from shardtool.storage.s3.many import Get, get_many, get_one
from shardtool.storage.s3.retry import count_retry
from shardtool.storage.s3.settings import S3Settings

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from shardtool.model import ShardRows
    from shardtool.sources.reader import PartReader
    from shardtool.storage.s3.many import Got

WINDOW_BYTES = 32 << 20  # in flight: 1 GB/s at 30 ms
REQUESTS = 64  # in flight, a process
ATTEMPTS = 3  # at a part whose bytes have another digest
_MARK = f":{REMOTE_SCHEME}"


class Object(NamedTuple):
    """An object in the version that was scanned."""

    bucket: str
    key: str
    version: str  # ETag; "" where the store told none

    @classmethod
    def of(cls, root: str) -> Object | None:
        """The object that a root names; None where it is a path."""
        version, mark, rest = root.removeprefix(PREFIX).partition(_MARK)
        return cls(*split_url(REMOTE_SCHEME + rest), version) if mark and root.startswith(PREFIX) else None


def object_root(url: str, version: str) -> str:
    """The root of an object in a version."""
    return f"{PREFIX}{version}:{url}"


def open_ranges(roots: tuple[str, ...], rows: ShardRows, members: list[bytes], fresh_until: float = 0.0) -> PartReader:
    """Reads parts of files by path, of objects by request, or of both."""
    is_any_remote = any(_MARK in roots[number] for number in np.unique(rows.roots).tolist())
    return (ObjectRangeReader if is_any_remote else RangeReader)(roots, rows, members, fresh_until)


class _Batch:
    """Parts [first, last) that have been fetched."""

    def __init__(self, first: int, sizes: list[int]) -> None:
        self.ends = np.cumsum([0, *sizes]).tolist()
        self.first, self.data = first, memoryview(bytearray(self.ends[-1]))
        self.errors: dict[int, SourceError] = {}

    def view(self, part: int) -> memoryview:
        """The bytes of a part."""
        at = part - self.first
        return self.data[self.ends[at] : self.ends[at + 1]]


class ObjectRangeReader(RangeReader):
    """Reads the parts of one shard from shards of which some or all are objects.

    Args:
        roots: `range:ETAG:s3://BUCKET/KEY` or `range:PATH` each.
        rows, members, fresh_until: as `RangeReader`.
    """

    def __init__(self, roots: tuple[str, ...], rows: ShardRows, members: list[bytes], fresh_until: float = 0.0) -> None:
        super().__init__(roots, rows, members, fresh_until)
        used = np.unique(rows.roots).tolist()
        self._objects = {number: found for number in used if (found := Object.of(roots[number])) is not None}
        for number, found in self._objects.items():
            self._paths[number] = f"{REMOTE_SCHEME}{found.bucket}/{found.key}"
        is_inline = ~np.asarray(rows.data.is_null())
        is_fetched = np.isin(rows.roots, list(self._objects)) & ~is_inline
        self._wanted = np.where(is_fetched, rows.sizes, 0)  # bytes that come from objects
        self._is_fetched = is_fetched.tolist()
        self._bounds = batch_bounds(self._wanted)
        self._client = client_for(S3Settings.from_environ())
        self._planned: dict[int, list[Run]] = {}  # of batches that are asked for
        self._results: Generator[Got, None, None] | None = None
        self._upcoming = 0  # batch that the results give next
        self._batch: _Batch | None = None

    def close(self) -> None:
        """No further requests; close all files."""
        super().close()
        self._stop()
        self._batch = None

    def fill(self, first: int, last: int, starts: list[int], slab: memoryview) -> list[int]:
        """Read parts [first, last) to slab[starts[i - first]:]; their xxh3_64.

        Raises:
            SourceChanged: a shard is another one than was scanned.
            SourceNotFound, AccessDenied: it is gone, or may not be read.
            SourceError: a part is not what its digest says, thrice.
            RemoteError: the store kept failing after all retries.
        """
        digests = []
        for part, start in zip(range(first, last), starts, strict=True):
            view = slab[start : start + self._sizes[part]]
            if self._is_fetched[part]:
                at = 0
                for piece in self._pieces(part):
                    view[at : at + len(piece)] = piece
                    at += len(piece)
                digests.append(self._settled(part, view))
            else:
                self._read(part, view)
                digests.append(xxhash.xxh3_64_intdigest(view))
        self._check(first, digests)
        return digests

    def stream(self, part: int, buffer: memoryview) -> Iterator[memoryview]:
        """The bytes of one large part, in pieces; raises as `fill` does."""
        if not self._is_fetched[part]:
            yield from super().stream(part, buffer)
            return
        state = xxhash.xxh3_64()
        for piece in self._pieces(part):
            state.update(piece)
            yield piece
        self._check(part, [state.intdigest()])

    def _pieces(self, part: int) -> Iterator[memoryview]:
        number = int(np.searchsorted(self._bounds, part, side="right")) - 1
        if self._sizes[part] > RUN_BYTES:
            yield from self._large(number, part)
            return
        if self._batch is None or self._batch.first != self._bounds[number]:
            self._batch = self._fetched(number)
        if part in self._batch.errors:
            self._refused(part, self._batch.errors[part])
        yield self._batch.view(part)

    def _fetched(self, number: int) -> _Batch:
        """Batch k, whole; what cannot be had of it is told when it is asked for."""
        self._batch = None  # its memory is free now
        first, last = self._bounds[number : number + 2]
        batch = _Batch(first, self._wanted[first:last].tolist())
        results = self._from(number)
        for run in self._runs(number):
            got = next(results)
            if isinstance(got.error, SourceError):
                batch.errors |= dict.fromkeys(run.parts, got.error)
            elif got.error is not None:
                raise got.error
            else:
                assert got.data is not None
                data = memoryview(got.data)
                for part in run.parts:
                    begin = self._offsets[part] - run.begin
                    batch.view(part)[:] = data[begin : begin + self._sizes[part]]
        self._done(number)
        return batch

    def _large(self, number: int, part: int) -> Iterator[memoryview]:
        """The pieces of batch k, which is one part."""
        results = self._from(number)
        for _ in self._runs(number):
            got = next(results)
            if isinstance(got.error, SourceError):
                self._refused(part, got.error)
            elif got.error is not None:
                raise got.error
            assert got.data is not None
            yield memoryview(got.data)
        self._done(number)

    def _from(self, number: int) -> Generator[Got, None, None]:
        """The results from batch k on; asked for anew where the last ones are elsewhere."""
        if self._results is None or self._upcoming != number:
            self._stop()
            gets = (self._get(run) for later in range(number, len(self._bounds) - 1) for run in self._runs(later))
            self._results = _generator(get_many(self._client, gets, window_bytes=WINDOW_BYTES, threads=REQUESTS))
        self._upcoming = -1  # until this batch is through
        return self._results

    def _done(self, number: int) -> None:
        self._upcoming = number + 1
        self._planned.pop(number, None)

    def _stop(self) -> None:
        if self._results is not None:
            self._results.close()
            self._results = None
        self._planned = {}

    def _runs(self, number: int) -> list[Run]:
        """The requests of batch k; the same for whoever asks first, a thread that fetches or the one that waits."""
        known, (first, last) = self._planned, self._bounds[number : number + 2]
        if number not in known:
            if last - first == 1 and self._wanted[first] > RUN_BYTES:
                begin, end = self._offsets[first], self._offsets[first] + self._sizes[first]
                stops = [*range(begin, end, RUN_BYTES), end]
                known[number] = [Run(self._roots[first], *ends, [first]) for ends in pairwise(stops)]
            else:
                parts = first + np.flatnonzero(self._wanted[first:last])
                assert self._rows.offsets is not None
                known[number] = runs_of(parts, self._rows.roots, self._rows.offsets, self._rows.sizes)
        return known[number]

    def _get(self, run: Run) -> Get:
        found = self._objects[run.root]
        return Get(found.bucket, found.key, run.end - run.begin, run.begin, found.version)

    def _settled(self, part: int, view: memoryview) -> int:
        """The digest of a part; fetched again, alone, while it is not the one that its index tells."""
        digest = xxhash.xxh3_64_intdigest(view)
        wanted = self._digests[part] if self._digests else None
        for _ in range(ATTEMPTS - 1):
            if wanted in (None, digest) or len(view) > RUN_BYTES:
                break
            count_retry("damaged")
            begin = self._offsets[part]
            try:
                view[:] = get_one(self._client, self._get(Run(self._roots[part], begin, begin + len(view), [part])))
            except SourceError as error:
                self._refused(part, error)
            digest = xxhash.xxh3_64_intdigest(view)
        return digest

    def _refused(self, part: int, error: SourceError) -> NoReturn:
        url = self._paths[self._roots[part]]
        known = (SourceChanged, SourceNotFound, AccessDenied)
        kind = next((kind for kind in known if isinstance(error, kind)), SourceError)
        message = f"{url} cannot be read: {error.message.removeprefix(url).lstrip(': ')}"
        hint = "put it right and run the same command again: finished shards are kept"
        if kind is SourceChanged:
            message = f"{url} is not the shard that was scanned: {error.message.removeprefix(url).strip()}"
            hint = "rerun with --rescan once nothing writes to it any more"
        raise kind(message, hint=hint, where={**error.where, "part": part}) from error


def _generator(results: Iterator[Got]) -> Generator[Got, None, None]:
    yield from results
