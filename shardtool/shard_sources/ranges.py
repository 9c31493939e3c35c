"""Parts that are runs of bytes of shard files, straight into a slab by `preadv`, each against its digest where known.

Roots are `range:PATH`; `objects` reads those that lie in a store. While reads wait for the device, the next parts are
asked for ahead with WILLNEED. Memory: the slab of the caller; at most MAX_FILES descriptors.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import xxhash

from shardtool import columns
from shardtool.errors import AccessDenied, SourceChanged, SourceError, SourceNotFound
from shardtool.sources.medium import MEDIUM, Mark
from shardtool.sources.reader import WINDOW_BYTES, failures_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.model import ShardRows

PREFIX = "range:"
MAX_FILES = 64


class RangeReader:
    """Reads the parts of one shard from other shards.

    Args:
        roots: `range:PATH` each.
        rows: the shard; its offsets are bytes in the files, its versions the digests of parts.
        members: key + b"." + part name, list[num_parts].
        fresh_until: not used; a shard file is looked at once, when it is opened.
    """

    def __init__(self, roots: tuple[str, ...], rows: ShardRows, members: list[bytes], fresh_until: float = 0.0) -> None:
        assert rows.offsets is not None
        self._paths = [root.removeprefix(PREFIX) for root in roots]
        self._rows, self._members = rows, members
        self._roots, self._offsets = rows.roots.tolist(), rows.offsets.tolist()
        self._sizes, self._guards = rows.sizes.tolist(), rows.mtimes_ns.tolist()
        self._data = None if rows.data.null_count == rows.num_parts else columns.to_list(rows.data)
        self._digests = _known_digests(rows)
        self._files: OrderedDict[int, int] = OrderedDict()
        self._advised = 0
        self._stops: list[int] | None = None  # how far the system was asked to read when each part is: made when needed

    def close(self) -> None:
        """Close all that is open."""
        while self._files:
            os.close(self._files.popitem()[1])

    def fill(self, first: int, last: int, starts: list[int], slab: memoryview) -> list[int]:
        """Read parts [first, last) to slab[starts[i - first]:]; their xxh3_64.

        Raises:
            SourceChanged: a shard file is another one than was scanned.
            SourceError: it cannot be read, or a part is not what its digest says.
        """
        began = Mark.now()
        digests = []
        for part, start in zip(range(first, last), starts, strict=True):
            if MEDIUM.is_cold:
                self._advise(part)
            view = slab[start : start + self._sizes[part]]
            self._read(part, view)
            digests.append(xxhash.xxh3_64_intdigest(view))
        MEDIUM.note(last - first, sum(self._sizes[first:last]), began)
        self._check(first, digests)
        return digests

    def stream(self, part: int, buffer: memoryview) -> Iterator[memoryview]:
        """The bytes of one large part, in pieces that lie in `buffer`; raises as `fill` does."""
        state = xxhash.xxh3_64()
        inline = self._data[part] if self._data else None
        if inline is not None:
            yield memoryview(inline)
            return
        done = 0
        while done < self._sizes[part]:
            view = buffer[: min(len(buffer), self._sizes[part] - done)]
            self._read_range(part, self._offsets[part] + done, view)
            state.update(view)
            done += len(view)
            yield view
        self._check(part, [state.intdigest()])

    def failures(self) -> list[tuple[int, SourceError]]:
        """(part, error) for every part that cannot be read as planned."""
        buffer = memoryview(bytearray(1 << 20))
        return failures_of(self._rows.num_parts, lambda part: self.stream(part, buffer))

    def _read(self, part: int, view: memoryview) -> None:
        inline = self._data[part] if self._data else None
        if inline is None:
            self._read_range(part, self._offsets[part], view)
        else:
            view[:] = inline

    def _read_range(self, part: int, offset: int, view: memoryview) -> None:
        fd = self._file(part)
        try:
            got = os.preadv(fd, [view], offset)
            while got < len(view) and (more := os.preadv(fd, [view[got:]], offset + got)):
                got += more
        except OSError as error:
            self._failed(part, error)
        if got != len(view):
            self._changed(part, f"it ends at byte {offset + got:,}")

    def _file(self, part: int) -> int:
        root = self._roots[part]
        fd = self._files.get(root)
        if fd is None:
            fd = self._files[root] = self._open(part)
            if len(self._files) > MAX_FILES:
                os.close(self._files.popitem(last=False)[1])
        self._files.move_to_end(root)
        return fd

    def _open(self, part: int) -> int:
        path = self._paths[self._roots[part]]
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._failed(part, error)
        if os.fstat(fd).st_mtime_ns != self._guards[part]:
            os.close(fd)
            self._changed(part, "it was written again")
        return fd

    def _advise(self, part: int) -> None:
        """Ask for the parts up to WINDOW_BYTES behind `part`, each once."""
        if self._stops is None:
            ends = np.concatenate([[0], np.cumsum(self._rows.sizes)])
            self._stops = np.searchsorted(ends, ends[:-1] + WINDOW_BYTES).tolist()
        stop = min(self._stops[part], len(self._sizes))
        for ahead in range(max(part, self._advised), stop):
            if self._data is None or self._data[ahead] is None:
                with suppress(OSError, AttributeError):  # systems without the call
                    os.posix_fadvise(
                        self._file(ahead), self._offsets[ahead], self._sizes[ahead], os.POSIX_FADV_WILLNEED
                    )
        self._advised = max(self._advised, stop)

    def _check(self, first: int, digests: list[int]) -> None:
        wanted = self._digests
        if wanted is None:
            return
        for part, digest in enumerate(digests, first):
            if wanted[part] is not None and wanted[part] != digest:
                path = self._paths[self._roots[part]]
                raise SourceError(
                    f"{path}: {self._shown(part)} at byte {self._offsets[part]:,} is damaged: its digest is not that "
                    "of the index",
                    hint="shardtool verify --deep tells what else is; --on-error skip leaves such samples out",
                    where={"path": path, "offset": self._offsets[part], "part": part},
                )

    def _shown(self, part: int) -> str:
        return repr(self._members[part].decode("utf-8", "backslashreplace"))

    def _changed(self, part: int, what: str) -> NoReturn:
        path = self._paths[self._roots[part]]
        raise SourceChanged(
            f"{path} is not the shard that was scanned: {what}",
            hint="rerun with --rescan once nothing writes to it any more",
            where={"path": path, "part": part},
        )

    def _failed(self, part: int, error: OSError) -> NoReturn:
        path = self._paths[self._roots[part]]
        kind: type[SourceError] = SourceError
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            kind = SourceNotFound
        elif isinstance(error, PermissionError):
            kind = AccessDenied
        raise kind(
            f"{path} cannot be read: {error.strerror or error}",
            hint="bring it back to where it was and run the same command again: finished shards are kept",
            where={"path": path, "part": part},
        ) from error


def _known_digests(rows: ShardRows) -> list[int | None] | None:
    """xxh3_64 of each part, None where the source does not tell it."""
    if rows.versions is None or rows.versions.null_count == rows.num_parts:
        return None
    found = [
        None if version is None else int.from_bytes(version, "little") for version in columns.to_list(rows.versions)
    ]
    return found if np.any([digest is not None for digest in found]) else None
