"""Payload of local files, straight into a slab: open, readv, fstat, close, and a digest while the bytes are in cache.

A batch of files at a time while reads come from memory; as soon as they wait for the device, a window of files is
opened ahead with WILLNEED, which is what keeps a device busy from one thread. The size is checked at every read, and
the mtime unless the scan saw it within the last seconds: fstat is a quarter of the cost of a small file.
"""

from __future__ import annotations

import errno
import os
import resource
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
import xxhash

from shardtool import columns
from shardtool.errors import AccessDenied, SourceChanged, SourceError, SourceNotFound
from shardtool.sources.medium import MEDIUM, Mark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from shardtool.model import ShardRows

BATCH_FILES = 128  # opened together while reads come from memory; 32 is 10 % slower, 1,024 no better
WINDOW_FILES = 64  # measured: 16 too few, 256 no better
WINDOW_BYTES = 32 << 20
FRESH_SECONDS = 5.0  # a guard this young is not looked at again; attribute caches of NFS keep theirs 3 to 60 s
ADVISED_BYTES = 4 << 20  # of one file; beyond that sequential read-ahead does better
FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a fifo put in place of a file must not block


class PartReader(Protocol):
    """Payload of the parts of one shard, in order."""

    def fill(self, first: int, last: int, starts: list[int], slab: memoryview) -> list[int]:
        """Read parts [first, last) to slab[starts[i]:]; their xxh3_64."""

    def stream(self, part: int, buffer: memoryview) -> Iterator[memoryview]:
        """The bytes of one large part, in pieces that lie in `buffer`."""

    def failures(self) -> list[tuple[int, SourceError]]:
        """(part, error) for every part that cannot be read as planned."""

    def close(self) -> None:
        """Close all that is open."""


def failures_of(num_parts: int, read: Callable[[int], Iterable[object]]) -> list[tuple[int, SourceError]]:
    """(part, error) for every part whose pieces, `read(part)`, end in an error."""
    found = []
    for part in range(num_parts):
        try:
            for _ in read(part):
                pass
        except SourceError as error:
            found.append((part, error))
    return found


class LocalReader:
    """Reads the parts of one shard from folders.

    Args:
        roots: source roots.
        rows: the shard.
        members: key + b"." + part name, list[num_parts].
        fresh_until: time.monotonic() up to which the guards of `rows` count as just seen.
    """

    def __init__(self, roots: tuple[str, ...], rows: ShardRows, members: list[bytes], fresh_until: float = 0.0) -> None:
        self._members, self._rows, self._roots = members, rows, roots
        self._paths = _locations(rows, members)
        self._data = None if rows.data.null_count == rows.num_parts else columns.to_list(rows.data)
        self._sizes, self._guards = rows.sizes.tolist(), rows.mtimes_ns.tolist()
        self._root_fds = _open_roots(roots)
        self._fds = [self._root_fds[root] for root in rows.roots.tolist()]
        self._window: deque[int] = deque()
        self._opened = 0
        self._ahead: list[int] = []
        self._fresh_until = fresh_until
        self._batch = max(1, min(BATCH_FILES, _open_limit() // 4))

    def close(self) -> None:
        """Close all that is open."""
        while self._window:
            os.close(self._window.popleft())
        while self._root_fds:
            os.close(self._root_fds.pop())

    def fill(self, first: int, last: int, starts: list[int], slab: memoryview) -> list[int]:
        """Read parts [first, last) to slab[starts[i - first]:]; their xxh3_64.

        Raises:
            SourceChanged: size or mtime differ from the guard.
            SourceError: a file cannot be read.
        """
        began = Mark.now()
        if MEDIUM.is_cold or self._window:
            digests = self._fill_ahead(first, last, starts, slab)
        elif self._data is None:
            digests = self._fill_files(range(first, last), starts, slab, is_fresh=began.seconds < self._fresh_until)
        else:
            digests = self._fill_mixed(first, last, starts, slab, is_fresh=began.seconds < self._fresh_until)
        MEDIUM.note(last - first, sum(self._sizes[first:last]), began)
        return digests

    def _fill_files(self, parts: Sequence[int], starts: list[int], slab: memoryview, *, is_fresh: bool) -> list[int]:
        """The hot loop, a batch of files at a time: open all, read all, close all in one call."""
        digests: list[int] = []
        read = _read_fresh if is_fresh else _read_guarded
        for begin in range(0, len(parts), self._batch):
            batch = parts[begin : begin + self._batch]
            fds: list[int] = []
            try:
                self._open_all(batch, fds)
                places = starts[begin : begin + self._batch]
                odd = read(fds, places, _pick(self._sizes, batch), _pick(self._guards, batch), slab, digests)
                for place in odd:
                    self._settle(fds[place], batch[place], starts[begin + place], slab, digests, begin + place)
            finally:
                _close_all(fds)
        return digests

    def _open_all(self, parts: Sequence[int], fds: list[int]) -> None:
        open_, add = os.open, fds.append
        try:
            for path, root in zip(_pick(self._paths, parts), _pick(self._fds, parts), strict=True):
                add(open_(path, FLAGS, dir_fd=root))
        except OSError as error:
            self._failed(parts[len(fds)], error)

    def _settle(self, fd: int, part: int, start: int, slab: memoryview, digests: list[int], place: int) -> None:
        """Read a file again that was not as planned: it is so (a short read), or an error says why not."""
        view = slab[start : start + self._sizes[part]]
        try:
            with suppress(OSError):  # a fifo in the place of the file: the check tells
                os.lseek(fd, 0, os.SEEK_SET)
            self._check(fd, part, 0, view)
        except OSError as error:
            self._failed(part, error)
        digests[place] = xxhash.xxh3_64_intdigest(view)

    def _fill_mixed(self, first: int, last: int, starts: list[int], slab: memoryview, *, is_fresh: bool) -> list[int]:
        """Files and generated parts: these are copied, those read."""
        data = self._data or []
        files = [part for part in range(first, last) if data[part] is None]
        read = iter(self._fill_files(files, [starts[part - first] for part in files], slab, is_fresh=is_fresh))
        digests = []
        for part, start in zip(range(first, last), starts, strict=True):
            inline = data[part]
            if inline is None:
                digests.append(next(read))
            else:
                slab[start : start + len(inline)] = inline
                digests.append(xxhash.xxh3_64_intdigest(inline))
        return digests

    def _fill_ahead(self, first: int, last: int, starts: list[int], slab: memoryview) -> list[int]:
        digests = []
        for part, start in zip(range(first, last), starts, strict=True):
            view = slab[start : start + self._sizes[part]]
            inline = self._data[part] if self._data else None
            if inline is None:
                self._read(self._next_open(part), part, view)
            else:
                view[:] = inline
            digests.append(xxhash.xxh3_64_intdigest(view))
        return digests

    def stream(self, part: int, buffer: memoryview) -> Iterator[memoryview]:
        """The bytes of one large part, in pieces that lie in `buffer`; raises as `fill` does."""
        inline = self._data[part] if self._data else None
        if inline is not None:
            yield memoryview(inline)
            return
        fd = self._next_open(part) if self._window else self._open(part)
        try:
            with suppress(OSError):  # a fifo in the place of the file: told apart below
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            left = self._sizes[part]
            while left:
                got = os.readv(fd, (buffer[: min(left, len(buffer))],))
                if not got:
                    self._changed(part, self._sizes[part] - left, os.fstat(fd))
                left -= got
                yield buffer[:got]
            stat = os.fstat(fd)
            if stat.st_size != self._sizes[part] or stat.st_mtime_ns != self._guards[part]:
                self._changed(part, self._sizes[part], stat)
        except OSError as error:
            self._failed(part, error)
        finally:
            os.close(fd)

    def failures(self) -> list[tuple[int, SourceError]]:
        """(part, error) for every part that cannot be read as planned; reads each file whole."""
        buffer = memoryview(bytearray(1 << 20))
        return failures_of(self._rows.num_parts, lambda part: self.stream(part, buffer))

    def _read(self, fd: int, part: int, view: memoryview) -> None:
        try:
            self._check(fd, part, 0, view)
        except OSError as error:
            self._failed(part, error)
        finally:
            os.close(fd)

    def _check(self, fd: int, part: int, got: int, view: memoryview) -> None:
        """Read what is missing of `view` (some file systems hand out less than asked for), then check the guard."""
        while got < len(view) and (more := os.readv(fd, (view[got:],))):
            got += more
        stat = os.fstat(fd)
        if got != len(view) or stat.st_size != len(view) or stat.st_mtime_ns != self._guards[part]:
            self._changed(part, got, stat)

    def _open(self, part: int) -> int:
        try:
            return os.open(self._paths[part], FLAGS, dir_fd=self._fds[part])
        except OSError as error:
            self._failed(part, error)

    def _next_open(self, part: int) -> int:
        """The descriptor of `part`; keeps the window behind it open and its reads under way."""
        if not self._ahead:
            self._ahead = _window_ends(self._rows)
        if not self._window:
            self._opened = part
        stop = self._ahead[part]
        while self._opened < stop and self._advance():
            pass
        return self._window.popleft() if self._window else self._open(part)

    def _advance(self) -> bool:
        """Open one more file ahead; False where the system has no more descriptors."""
        part = self._opened
        if self._data is None or self._data[part] is None:
            try:
                fd = os.open(self._paths[part], FLAGS, dir_fd=self._fds[part])
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and self._window:
                    return False
                if self._window:
                    return False  # met again, and told, when it is this part's turn
                self._failed(part, error)
            if self._sizes[part]:
                with suppress(OSError):
                    os.posix_fadvise(fd, 0, min(self._sizes[part], ADVISED_BYTES), os.POSIX_FADV_WILLNEED)
            self._window.append(fd)
        self._opened = part + 1
        return True

    def path_of(self, part: int) -> str:
        """Where part lies, for messages."""
        return os.path.join(self._roots[int(self._rows.roots[part])], os.fsdecode(self._paths[part]))

    def _changed(self, part: int, got: int, stat: os.stat_result) -> NoReturn:
        size = self._sizes[part]
        if stat.st_size != size or got != size:
            what = f"{size:,} bytes were planned, {stat.st_size:,} are there"
        else:
            what = "it was written again since the scan"
        path = self.path_of(part)
        raise SourceChanged(
            f"{path} changed while the data set was packed: {what}",
            hint="let the writer finish, then rerun with --rescan; or --on-changed skip leaves such samples out",
            where={"path": path, "part": part},
        )

    def _failed(self, part: int, error: OSError) -> NoReturn:
        path = self.path_of(part)
        kind: type[SourceError] = SourceError
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            kind = SourceNotFound
        elif isinstance(error, PermissionError):
            kind = AccessDenied
        if isinstance(error, SourceError):
            raise error
        raise kind(
            f"{path} cannot be read: {error.strerror or error}",
            hint="put it right and run the same command again; or --on-error skip leaves such samples out",
            where={"path": path, "part": part},
        ) from error


def _pick(column: list[Any], parts: Sequence[int]) -> list[Any]:
    """column[parts]; a slice where they are a range."""
    if isinstance(parts, range):
        return column[parts.start : parts.stop]
    return [column[part] for part in parts]


def _read_guarded(
    fds: list[int], starts: list[int], sizes: list[int], guards: list[int], slab: memoryview, digests: list[int]
) -> list[int]:
    """Read each descriptor to its place, size and mtime checked; the places (in the batch) of those that differ."""
    readv, fstat, digest, add, odd = os.readv, os.fstat, xxhash.xxh3_64_intdigest, digests.append, []
    for fd, start, size, guard in zip(fds, starts, sizes, guards, strict=True):
        view = slab[start : start + size]
        try:
            got = readv(fd, (view,))
        except OSError:
            got = -1
        stat = fstat(fd)
        if got != size or stat.st_size != size or stat.st_mtime_ns != guard:
            odd.append(fds.index(fd))
        add(digest(view))
    return odd


def _read_fresh(
    fds: list[int], starts: list[int], sizes: list[int], guards: list[int], slab: memoryview, digests: list[int]
) -> list[int]:
    """As `_read_guarded`, for guards that were seen just now: a byte too few or too many tells another size."""
    readv, digest, add, odd = os.readv, xxhash.xxh3_64_intdigest, digests.append, []
    beyond = memoryview(bytearray(1))
    for fd, start, size in zip(fds, starts, sizes, strict=True):
        view = slab[start : start + size]
        try:
            got = readv(fd, (view, beyond))
        except OSError:
            got = -1
        if got != size:
            odd.append(fds.index(fd))
        add(digest(view))
    return odd


def _close_all(fds: list[int]) -> None:
    """Close descriptors, in one system call where they are a gapless range: then it holds no other than ours."""
    if fds and max(fds) - min(fds) == len(fds) - 1:
        os.closerange(min(fds), max(fds) + 1)
        return
    for fd in fds:
        os.close(fd)


def _open_roots(roots: tuple[str, ...]) -> list[int]:
    fds: list[int] = []
    for root in roots:
        try:
            fds.append(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError as error:
            _close_all(fds)
            kind = SourceNotFound if isinstance(error, FileNotFoundError | NotADirectoryError) else SourceError
            raise kind(
                f"source {root} cannot be read: {error.strerror}",
                hint="bring it back to where it was and run the same command again: finished shards are kept",
                where={"path": root},
            ) from error
    return fds


def _locations(rows: ShardRows, members: list[bytes]) -> list[bytes]:
    if rows.source.null_count == rows.num_parts:
        return members
    sources = columns.to_list(rows.source)
    return [member if source is None else source for member, source in zip(members, sources, strict=True)]


def _open_limit() -> int:
    """Descriptors that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft > 0 else 1 << 20


def _window_ends(rows: ShardRows) -> list[int]:
    """list[num_parts]: how far parts are opened ahead when part p is read."""
    window = max(1, min(WINDOW_FILES, _open_limit() // 4))
    ends = np.concatenate([[0], np.cumsum(rows.sizes)])
    by_bytes = np.searchsorted(ends, ends[:-1] + WINDOW_BYTES, side="right") - 1
    places = np.arange(rows.num_parts)
    stops: list[int] = np.clip(by_bytes, places + 1, np.minimum(places + window, rows.num_parts)).tolist()
    return stops
