"""A data set on an object store, or one of which a part lies in a folder nearby: the same calls as `Dataset`.

A shard that the cache folder holds whole is read there; all others by ranged requests, each of the version of the
object that was seen first. Memory: two windows of 8 MiB while a shard is read through, and its indexes.
"""

from __future__ import annotations

import glob
import os
import threading
import time
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import AccessDenied, CorruptShard, PlanMismatch, SourceNotFound
from shardtool.formats import BYTES, ROWS
from shardtool.formats.unpacked import raw_path
from shardtool.manifest import MANIFEST, load_manifest
from shardtool.reading.reading import Dataset
from shardtool.reading.windows import block_of, windows
from shardtool.storage import open_place
from shardtool.storage.fetching import Fetcher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from shardtool.index_file import ShardIndex
    from shardtool.manifest import Manifest
    from shardtool.model import FileRecord
    from shardtool.reading.windows import Sample

WINDOW_BYTES = 8 << 20  # of one request: its latency is small beside the time that the bytes take
MAX_GAP = 256 << 10  # bytes read for nothing rather than another request
LOOK_AGAIN_S = 1.0  # until the cache folder is asked again for a shard that it did not hold


class _Window(NamedTuple):
    """A range of a shard file on its way."""

    shard: int
    begin: int
    end: int
    data: Future[bytes]


class RemoteDataset(Dataset):
    """A data set whose shards are, all or some of them, behind a network. Threads may call `read_file` side by side.

    Args:
        path: its URL or folder.
        manifest: what `load_manifest` found there.
        cache: a staged folder of it, or the folder that holds such; "" for none.
    """

    window_bytes = WINDOW_BYTES

    def __init__(self, path: str, manifest: Manifest, cache: str = "") -> None:
        super().__init__(path, manifest)
        self.place = open_place(path)
        self.cache = find_staged(cache, manifest.dataset_id) if cache else ""
        self._versions: dict[int, str] = {}
        self._absent: dict[int, float] = {}  # when the cache did not hold a shard
        self._ahead: list[_Window] = []
        self._fetcher = Fetcher(2)
        self._lock = threading.RLock()

    def close(self) -> None:
        """Let go of files, indexes and what is on its way."""
        super().close()
        self._ahead.clear()
        self._fetcher.close()

    def shard_path(self, shard: int) -> str:
        """Where shard k is read: a path in the cache folder, or else where the data set lies."""
        return self.local_path(shard) or self.place.shown(self.manifest.shards[shard].path)

    def read_range(self, shard: int, offset: int, size: int) -> bytes:
        """As `Dataset.read_range`; of a shard that the cache holds decompressed without that work."""
        record = self.manifest.shards[shard]
        if self.cache and record.raw_bytes:
            path = os.path.join(self.cache, raw_path(record.path))
            with suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
                data = os.pread(file.fileno(), size, offset)
                if len(data) == size:
                    return data
        return super().read_range(shard, offset, size)

    def local_path(self, shard: int) -> str:
        """Path of the shard in the cache folder; "" where it is not there, whole."""
        if not self.cache or time.monotonic() - self._absent.get(shard, -LOOK_AGAIN_S) < LOOK_AGAIN_S:
            return ""
        record = self.manifest.shards[shard].files[0]
        path = os.path.join(self.cache, record.path)
        try:
            if os.stat(path).st_size == record.num_bytes:
                return path
        except OSError:
            pass
        self._absent[shard] = time.monotonic()
        return ""

    def read_file(self, shard: int, offset: int, size: int) -> bytes:
        """`size` bytes of the shard file as it lies there.

        Raises:
            CorruptShard: the file ends before, or is gone.
            SourceChanged: the object was replaced since it was first read.
            RemoteError: the store fails, after all retries.
        """
        for window in self._ahead:
            if window.shard == shard and window.begin <= offset and offset + size <= window.end:
                with suppress(CancelledError):  # another thread has closed the data set: asked for on its own
                    return window.data.result()[offset - window.begin : offset + size - window.begin]
        if self._is_local(shard):
            with self._lock, suppress(FileNotFoundError):  # it may leave the cache at any time
                return super().read_file(shard, offset, size)
        return self._request(shard, offset, size)

    def read_parts(self, shard: int, low: int, high: int, *, check: bool = True) -> list[bytes]:
        """Bytes of the parts [low, high) of shard k, neighbours by one request."""
        index = self.index(shard)
        if index.addressing == ROWS or self._is_local(shard):
            return super().read_parts(shard, low, high, check=check)
        offsets, sizes = index.part_offset[low:high].tolist(), index.part_bytes[low:high].tolist()
        payloads = [b""] * len(offsets)
        for begin, end, rows in _runs(offsets, sizes):
            data = self.read_range(shard, begin, end - begin)
            for row in rows:
                payloads[row] = data[offsets[row] - begin : offsets[row] + sizes[row] - begin]
        if check:
            self._check(shard, index, low, payloads)
        return payloads

    def samples(self, shard: int, start: int = 0, stop: int | None = None, *, check: bool = False) -> Iterator[Sample]:
        """Samples [start, stop) of shard k in their order, in windows of 8 MiB, the next one on its way.

        Args and errors are those of `Dataset.samples`.
        """
        if self._is_local(shard):
            yield from super().samples(shard, start, stop, check=check)
            return
        index = self.index(shard)
        stop = index.num_samples if stop is None else min(stop, index.num_samples)
        spans = list(windows(index, start, stop, WINDOW_BYTES))
        try:
            for number, (first, last) in enumerate(spans):
                block = block_of(index, first, last)
                if index.addressing == BYTES:
                    self._fetch_ahead(shard, index, spans[number : number + 2])
                    yield from self._window(shard, index, block, first, last, check)
                else:
                    parts = block.first_part, block.first_part + len(block.names)
                    yield from block.samples(first, last, self.read_parts(shard, *parts, check=check))
        finally:
            self._ahead = [window for window in self._ahead if window.shard != shard]

    def version(self, shard: int) -> str:
        """The version of the object that holds the payload of shard k, as first seen.

        Raises:
            CorruptShard: it is gone, or has another size than the manifest says.
        """
        found = self._versions.get(shard)
        if found is None:
            found = self._versions[shard] = self._look_up(shard)
        return found

    def _home_of(self, record: FileRecord) -> str:
        """The cache folder, where it has the index with its size: `stage` checked its digest."""
        try:
            is_there = bool(self.cache) and os.stat(os.path.join(self.cache, record.path)).st_size == record.num_bytes
        except OSError:
            is_there = False
        return self.cache if is_there else self.path

    def _request(self, shard: int, offset: int, size: int) -> bytes:
        version = self.version(shard)
        buffer = memoryview(bytearray(size))
        done = self.place.read_into(self.manifest.shards[shard].path, offset, buffer, version=version) if size else 0
        if done < size:
            raise self._cut_short(shard, offset + done)
        return bytes(buffer)

    def _look_up(self, shard: int) -> str:
        record, path = self.manifest.shards[shard].files[0], self.place.shown(self.manifest.shards[shard].path)
        where = {"path": path, "shard": shard}
        try:
            found = self.place.stat(record.path)
        except PermissionError as error:
            if isinstance(error, AccessDenied):
                raise
            raise AccessDenied(f"{path} cannot be read: {error.strerror}", where=where) from error
        except FileNotFoundError as error:
            raise CorruptShard(
                f"{path} is in the manifest, but it does not exist",
                hint=f"shardtool verify {self.path} lists all that is missing",
                where=where,
            ) from error
        if found.num_bytes != record.num_bytes:
            raise CorruptShard(
                f"{path} has {found.num_bytes:,} bytes; the manifest has {record.num_bytes:,}",
                hint=f"shardtool verify {self.path} --deep tells what is lost and how to repair it",
                where=where,
            )
        return found.version

    def _is_local(self, shard: int) -> bool:
        return self._files.get(shard) is not None or bool(self.local_path(shard))

    def _open_file(self, shard: int) -> int:
        return os.open(self.local_path(shard), os.O_RDONLY | os.O_CLOEXEC)

    def _fetch_ahead(self, shard: int, index: ShardIndex, spans: list[tuple[int, int]]) -> None:
        """Have these windows of a shard on their way, and no others of it."""
        wanted = [self._extent(shard, index, first, last) for first, last in spans]
        kept = [window for window in self._ahead if window.shard != shard or (window.begin, window.end) in wanted]
        there = [(window.begin, window.end) for window in kept if window.shard == shard]
        for begin, end in wanted:
            if (begin, end) not in there:
                request = partial(self._request, shard, begin, end - begin)
                kept.append(_Window(shard, begin, end, self._fetcher.submit(request)))
        self._ahead = kept

    def _extent(self, shard: int, index: ShardIndex, first: int, last: int) -> tuple[int, int]:
        """Bytes of the shard file that hold samples [first, last)."""
        begin, end = int(index.offset[first]), int(index.offset[last - 1] + index.num_bytes[last - 1])
        if "frames" not in index.meta:
            return begin, end
        frames = self._frames.table(shard, index.meta)
        return frames.extent(begin // frames.frame_bytes, min(-(-end // frames.frame_bytes), frames.num_frames))


def _runs(offsets: list[int], sizes: list[int]) -> Iterator[tuple[int, int, list[int]]]:
    """(begin, end, rows) of ranges that hold all parts, near ones together, of 8 MiB at most or one larger part."""
    order = sorted(range(len(offsets)), key=offsets.__getitem__)
    begin = end = 0
    rows: list[int] = []
    for row in order:
        first, last = offsets[row], offsets[row] + sizes[row]
        if rows and (first > end + MAX_GAP or max(last, end) - begin > WINDOW_BYTES):
            yield begin, end, rows
            rows = []
        if not rows:
            begin = end = first
        end = max(end, last)
        rows.append(row)
    if rows:
        yield begin, end, rows


def find_staged(folder: str, dataset_id: str) -> str:
    """The staged folder that `folder` is, or holds, of the data set `dataset_id`.

    Raises:
        SourceNotFound: it holds nothing staged of it.
        PlanMismatch: it is another data set.
    """
    if os.path.exists(os.path.join(folder, MANIFEST)):
        found = load_manifest(folder).dataset_id
        if found != dataset_id:
            raise PlanMismatch(
                f"cache {folder} holds data set {found[:8]}, not {dataset_id[:8]}",
                hint="stage this one: shardtool stage SRC DST",
                where={"path": folder},
            )
        return folder
    name = os.path.join(glob.escape(folder), f"*-{dataset_id[:12]}")
    for path in (*glob.glob(name), *glob.glob(name + "-raw")):
        if os.path.exists(os.path.join(path, MANIFEST)):
            return path
    raise SourceNotFound(
        f"cache {folder} holds nothing staged of data set {dataset_id[:8]}",
        hint="fill it first: shardtool stage SRC DST",
        where={"path": folder},
    )
