"""Files from one shard: the task of a worker of `extract`, and the tree that it writes to."""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from shardtool.errors import CorruptShard, DestinationError, DestinationExists
from shardtool.formats import BYTES, ROWS
from shardtool.reading.extract import ExtractReport, chosen_parts, chosen_samples, paths_of, runs_of, safe_path
from shardtool.reading.reading import Dataset
from shardtool.reading.windows import WINDOW_BYTES, windows
from shardtool.storage.local import destination_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.index_file import ShardIndex
    from shardtool.reading.extract import ExtractJob

MAX_FOLDERS = 64  # kept open
LARGE_BYTES = 8 << 20  # a part above it is copied in pieces
PIECE_BYTES = 1 << 20


def extract_shard(job: ExtractJob, shard: int) -> ExtractReport:
    """Write the selected parts of shard k; what is damaged is left out and reported.

    Raises:
        DestinationExists: a file is there already.
        DestinationError, NoSpace: it cannot be written.
    """
    report = ExtractReport()
    with Dataset.open(job.dataset) as dataset, Tree(job.target, f"extract-{shard}", overwrite=job.overwrite) as tree:
        index = dataset.index(shard)
        samples = chosen_samples(index, job.selection)
        parts, report.left_out = chosen_parts(index, samples, job)
        paths = dict(zip(parts.tolist(), paths_of(index, parts, job.selection.by), strict=True))
        for first, stop in runs_of(samples):
            for begin, end in windows(index, first, stop, dataset.window_bytes):
                _write_window(dataset, shard, index, begin, end, paths, tree, report)
        report.num_samples = len(samples)
    return report


def _write_window(
    dataset: Dataset,
    shard: int,
    index: ShardIndex,
    first: int,
    stop: int,
    paths: dict[int, bytes],
    tree: Tree,
    report: ExtractReport,
) -> None:
    rows = [row for row in range(int(index.part_start[first]), int(index.part_start[stop])) if row in paths]
    data, base = memoryview(b""), 0
    if index.addressing == BYTES:
        base, end = int(index.offset[first]), int(index.offset[stop - 1] + index.num_bytes[stop - 1])
        if end - base <= LARGE_BYTES:
            with suppress(CorruptShard):  # then part by part, so that those before the damage come out
                data = memoryview(dataset.read_range(shard, base, end - base))
    for row in rows:
        offset, size = int(index.part_offset[row]) - base, int(index.part_bytes[row])
        try:
            if index.addressing == ROWS:
                pieces = iter([memoryview(dataset.read_part(shard, row, check=False))])
            elif offset >= 0 and offset + size <= len(data):
                pieces = iter([data[offset : offset + size]])
            else:
                pieces = _pieces(dataset, shard, base + offset, size)
            tree.write(paths[row], pieces, int(index.part_xxh3_64[row]))
        except CorruptShard as error:
            report.damaged.append((shard, f"{os.fsdecode(paths[row])}: {error.message}"))
            continue
        report.num_parts += 1
        report.num_bytes += size


def _pieces(dataset: Dataset, shard: int, offset: int, size: int) -> Iterator[memoryview]:
    piece_bytes = PIECE_BYTES * (dataset.window_bytes // WINDOW_BYTES)
    while size > 0:
        piece = dataset.read_range(shard, offset, min(size, piece_bytes))
        yield memoryview(piece)
        offset, size = offset + len(piece), size - len(piece)


class Tree:
    """Files below a folder. Folders are opened from their parents and never through a link."""

    def __init__(self, target: str, tag: str, *, overwrite: bool) -> None:
        self._overwrite = overwrite
        self._target = target
        self._temp = os.fsencode(f".tmp-{tag}-{os.getpid()}")
        self._top = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._folders: OrderedDict[bytes, int] = OrderedDict()

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (*self._folders.values(), self._top):
            os.close(fd)

    def write(self, path: bytes, pieces: Iterator[memoryview], digest: int) -> None:
        """One file, under its name only when all pieces are there and have the digest, xxh3_64.

        Raises:
            CorruptShard: they have not.
            DestinationExists: a file of that name is there, or a link stands in the way.
        """
        safe = safe_path(path)
        if safe is None:
            raise DestinationError(f"{path!r} would lead out of {self._target}")
        folder, _, name = safe.rpartition(b"/")
        shown = os.path.join(self._target, os.fsdecode(safe))
        try:
            parent = self._folder(folder)
            fd = os.open(self._temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=parent)
            try:
                _copy(fd, pieces, digest)
                self._name(parent, name)
            finally:
                os.close(fd)
                with suppress(FileNotFoundError):
                    os.unlink(self._temp, dir_fd=parent)
        except OSError as error:
            raise self._refusal(error, shown) from error

    def _name(self, parent: int, name: bytes) -> None:
        """Give the temp file its name; without `overwrite` only where none has it."""
        if self._overwrite:
            os.rename(self._temp, name, src_dir_fd=parent, dst_dir_fd=parent)
            return
        try:
            os.link(self._temp, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                raise
            if _exists(parent, name):  # a file system without hard links
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from error
            os.rename(self._temp, name, src_dir_fd=parent, dst_dir_fd=parent)

    def _folder(self, path: bytes) -> int:
        """Descriptor of a folder below the target, made where it is missing."""
        if not path:
            return self._top
        found = self._folders.get(path)
        if found is not None:
            self._folders.move_to_end(path)
            return found
        above, _, name = path.rpartition(b"/")
        parent = self._folder(above)
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        self._folders[path] = fd
        if len(self._folders) > MAX_FOLDERS:
            oldest = next(iter(self._folders))
            os.close(self._folders.pop(oldest))
        return fd

    def _refusal(self, error: OSError, path: str) -> Exception:
        where = {"path": path}
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            message = f"a link or file stands where {os.path.dirname(path)} should be a folder"
            return DestinationExists(message, hint="choose an empty folder", where=where)
        if error.errno in (errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY):
            message = f"{path} is there already"
            return DestinationExists(message, hint="choose an empty folder, or --overwrite", where=where)
        return destination_error(error, path)


def _exists(parent: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _copy(fd: int, pieces: Iterator[memoryview], digest: int) -> None:
    state = xxhash.xxh3_64()
    for piece in pieces:
        state.update(piece)
        view = piece
        while len(view):
            view = view[os.write(fd, view) :]
    if np.uint64(state.intdigest()) != np.uint64(digest):
        raise CorruptShard("its digest is not that of what was packed; it was not written")
