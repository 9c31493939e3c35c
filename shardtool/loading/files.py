"""Shard files opened for random reads from several threads, hinted ahead, or held in the page cache whole.

Bytes come by `pread`, or out of a map for shards that were preloaded; views are of maps. Memory: nothing but maps of
pages of the page cache, which all processes of a node share.
"""

from __future__ import annotations

import errno
import os
import resource
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np

from shardtool.errors import UsageProblem
from shardtool.loading.available import available_memory
from shardtool.loading.maps import check_maps, map_file, map_limit
from shardtool.storage.regular import open_regular
from shardtool.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardtool.reading.reading import Dataset

MAX_FILES = 256  # kept open; those opened first go first, which costs no bookkeeping a read
MAX_VIEWED = 4096  # mapped for views, likewise
HINT_BYTES = 128 << 10  # of one hint: Linux cuts a longer one off at its readahead, by default as long as this
PRELOAD_SHARE = 0.9  # of the available memory
PAGE_BYTES = 4096


class ShardFiles:
    """The shard files of a data set.

    Args:
        dataset: opened; its own file handles are used for error messages only.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._files: dict[int, _File] = {}
        self._maps: dict[int, memoryview] = {}  # preloaded
        self._viewed: dict[int, memoryview] = {}
        self._lock = Lock()
        self._max_files = _max_files()
        _ALL.add(self)

    def read(self, shard: int, offset: int, size: int) -> bytes:
        """`size` bytes of shard k of the manifest from byte `offset` on. Safe between threads.

        Raises:
            CorruptShard: the file is gone, or ends before.
        """
        if self._maps and (mapped := self._maps.get(shard)) is not None and offset + size <= len(mapped):
            return mapped[offset : offset + size].tobytes()
        try:
            file = self._files.get(shard) or self._file(shard)  # held until it is read; if evicted, it closes then
            data = os.pread(file.fd, size, offset)
        except OSError:
            data = b""
        if len(data) == size:
            return data
        return self._dataset.read_range(shard, offset, size)  # cut short, or gone: that is explained there

    def view(self, shard: int, offset: int, size: int) -> memoryview:
        """As `read`, but nothing is copied: a read-only view of the mapped file, which stays mapped while it is held.

        A file that is cut short while it is mapped ends the process (SIGBUS), as with any map.

        Raises:
            CorruptShard: the file is gone, or ends before.
        """
        mapped = self._maps.get(shard) or self._viewed.get(shard) or self._map_for_views(shard)
        if mapped is not None and offset + size <= len(mapped):
            return mapped[offset : offset + size]
        return memoryview(self._dataset.read_range(shard, offset, size))

    def will_need(self, shard: int, offset: int, size: int) -> None:
        """Tell the kernel to read a range ahead, unless it is in the page cache; returns at once.

        Does nothing where the system has no such call. Of cached photos a hint costs as much as planning their batch.
        """
        if hasattr(os, "posix_fadvise") and shard not in self._maps:
            try:
                file = self._file(shard)
                if _is_cached(file.fd, offset, size):
                    return
                for begin in range(offset, offset + size, HINT_BYTES):
                    length = min(HINT_BYTES, offset + size - begin)
                    os.posix_fadvise(file.fd, begin, length, os.POSIX_FADV_WILLNEED)
            except OSError:
                return  # a hint; reading will tell what is wrong

    def preload(self, shards: Iterable[int], *, available_bytes: int | None = None, warm: bool = True) -> int:
        """Keep shards in the page cache: map them, and read what is not there yet. Returns their bytes.

        Processes that preload the same files share one copy.

        Args:
            shards: 0-based places in the manifest.
            available_bytes: memory they may fill; None asks the system.
            warm: read them now; False maps what another process has read.

        Raises:
            UsageProblem: they do not fit, or are more than a process may map.
            CorruptShard: a file is gone.
        """
        wanted = [shard for shard in shards if shard not in self._maps]
        total = sum(self._dataset.manifest.shards[shard].files[0].num_bytes for shard in wanted)
        if warm:
            _check_fits(total, available_memory() if available_bytes is None else available_bytes)
        check_maps(len(wanted) + sum(len(files._maps) for files in list(_ALL)))
        for shard in wanted:
            try:
                self._maps[shard] = self._mapped(shard)
            except OSError:
                self._dataset.read_range(shard, 0, 0)  # gone: that is explained there
                raise
        for shard in wanted if warm else ():
            _touch(self._maps[shard])
        return total

    def close(self) -> None:
        """Close files and maps; reads under way keep theirs."""
        self._files.clear()
        self._maps.clear()
        self._viewed.clear()

    def _map_for_views(self, shard: int) -> memoryview | None:
        """A map of a shard; None where it cannot be mapped."""
        try:
            mapped = self._mapped(shard)
        except OSError:  # gone: reading explains it
            return None
        with self._lock:
            self._viewed[shard] = mapped
            if len(self._viewed) > min(MAX_VIEWED, map_limit() // (2 * len(_ALL))):
                self._viewed.pop(next(iter(self._viewed)))  # unmapped once no view is left
        return mapped

    def _mapped(self, shard: int) -> memoryview:
        path = self._dataset.shard_path(shard)
        try:
            return map_file(path)
        except OSError as error:
            if error.errno not in _NONE_LEFT:
                raise
            _let_go()
            return map_file(path)

    def _file(self, shard: int) -> _File:
        file = self._files.get(shard)
        if file is None:
            try:
                file = self._open(shard)
            except OSError as error:
                if error.errno not in _NONE_LEFT:
                    raise
                _let_go()
                file = self._open(shard)
        return file

    def _open(self, shard: int) -> _File:
        with self._lock:
            file = self._files.get(shard)
            if file is None:
                file = self._files[shard] = _File(self._dataset.shard_path(shard))
            if len(self._files) > self._max_files:
                self._files.pop(next(iter(self._files)))
        return file

    def let_go(self) -> None:
        """Close and unmap what is kept for later, unless another thread is at it; reads under way keep theirs."""
        if self._lock.acquire(blocking=False):
            try:
                self._files.clear()
                self._viewed.clear()
            finally:
                self._lock.release()


_ALL: WeakSet[ShardFiles] = WeakSet()  # of this process: the data sets of a mixture share its descriptors
_NONE_LEFT = (errno.EMFILE, errno.ENFILE, None)  # descriptors, and maps


def _max_files() -> int:
    """Files that one data set keeps open: a quarter of what the process may have, at most MAX_FILES."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_FILES if limit == resource.RLIM_INFINITY else min(MAX_FILES, max(1, limit // 4))


def _let_go() -> None:
    """Close files and maps of all data sets, when there is no descriptor or map left."""
    for files in list(_ALL):
        files.let_go()


def _is_cached(fd: int, offset: int, size: int) -> bool:
    """Whether a range is in the page cache, by its first, middle and last byte; False where nothing tells."""
    if not hasattr(os, "RWF_NOWAIT"):
        return False
    byte = [bytearray(1)]
    try:
        return all(
            os.preadv(fd, byte, place, os.RWF_NOWAIT) for place in (offset, offset + size // 2, offset + size - 1)
        )
    except OSError:  # it would wait, or the file system has no such reads
        return False


class _File:
    """A descriptor that closes when the last read that uses it is done."""

    __slots__ = ("fd",)

    def __init__(self, path: str) -> None:
        self.fd = -1
        self.fd = open_regular(path)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def _check_fits(num_bytes: int, available: int) -> None:
    if num_bytes > PRELOAD_SHARE * available:
        raise UsageProblem(
            f"{format_bytes(num_bytes)} of shards do not fit into {format_bytes(available)} of available memory",
            hint="preload fewer shards (a node's share), use more nodes, or leave preload out",
        )


def _touch(mapped: memoryview) -> None:
    """Read every page that is not resident, and enter all into the page table."""
    view = np.frombuffer(mapped, np.uint8)
    int(view[::PAGE_BYTES].sum())
