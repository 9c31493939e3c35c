"""Sources of documents: files found, their kinds told by name, cut into tasks that workers read.

A task is a slice of one large file, or many small ones. Tasks follow from the sources alone, never from workers.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardtool.errors import SourceError, UsageProblem
from shardtool.hashing import digest_chunks
from shardtool.manifest import MANIFEST
from shardtool.model import Tally
from shardtool.names import HIDDEN
from shardtool.packing.prepare import raise_problems, scan_sources
from shardtool.storage import is_remote

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.planning.plan import PlanOptions
    from shardtool.workers import WorkerPool

SLICE_BYTES = 64 << 20  # of a large file, at most
LEAST_SLICE_BYTES = 4 << 20
SLICES = 64  # of all sources together, where slices of at least `LEAST_SLICE_BYTES` allow
BATCH_FILES, BATCH_BYTES = 1024, 16 << 20  # small text files a task
LINES, COLUMNS, IPC, TEXT, TAR, NPY = "lines", "parquet", "arrow", "text", "tar", "npy"
_KINDS = {
    ".jsonl": LINES, ".ndjson": LINES, ".json": LINES, ".jsonlines": LINES,
    ".parquet": COLUMNS, ".pq": COLUMNS, ".arrow": IPC, ".feather": IPC, ".ipc": IPC, ".tar": TAR, ".npy": NPY,
}  # fmt: skip
_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
_NO_TEXT = re.compile(
    r"\.(jpe?g|png|gif|bmp|webp|tiff?|ico|mp[34]|wav|flac|ogg|opus|m4a|mkv|avi|mov|webm|np[z]|pth?|pkl|safetensors|zip|7z|"
    r"rar|xz|bz2|pdf|docx?|h5|hdf5|tfrecord|bin|idx|exe|so|o|a|pyc|woff2?|ttf|class|jar|mds|lmdb|dcm|nii)"
)


@dataclass(frozen=True)
class InputFile:
    """One file with documents in it."""

    root: str
    path: bytes  # below the root
    size: int
    mtime_ns: int
    kind: str
    compression: str = ""

    @property
    def full_path(self) -> str:
        """Where it lies."""
        return os.path.join(self.root, os.fsdecode(self.path))


@dataclass(frozen=True)
class Task:
    """What one worker reads at a time: a slice of one file, or several files whole.

    The slice is bytes of lines, row groups of Parquet, rows of an array; (0, -1) is all of it.
    """

    number: int
    files: tuple[InputFile, ...]
    span: tuple[int, int] = (0, -1)

    def identity(self, settings: Any) -> str:
        """xxh3_128 over all that decides what reading the task gives."""
        files = [[os.fsdecode(f.path), f.size, f.mtime_ns, f.kind, f.compression] for f in self.files]
        return digest_chunks([repr([files, self.span, settings]).encode("utf-8", "surrogateescape")])


@dataclass(frozen=True)
class Inputs:
    """All files with documents, in source order, and what else was met."""

    roots: tuple[str, ...]
    files: tuple[InputFile, ...]
    ignored: Tally
    failed: Tally

    @property
    def num_bytes(self) -> int:
        """Bytes of all files, as they lie on disk."""
        return sum(file.size for file in self.files)


def find_inputs(
    sources: Sequence[str],
    options: PlanOptions,
    pool: WorkerPool | None,
    *,
    on_error: str = "error",
    null: bool = False,
) -> Inputs:
    """The files below `sources`; a source may also be one file.

    Raises:
        SourceError: a source cannot be read, or holds nothing.
        UsageProblem: files that hold no text, compressed archives, a data set, or a source on an object store.
    """
    _check_places(sources)
    roots, files = [], []
    ignored, failed = Tally(), Tally()
    for source in sources:
        if os.path.isfile(source):
            root, name = os.path.split(os.path.abspath(source))
            stat = os.stat(source)
            roots.append(os.path.abspath(source))
            files.append(InputFile(root, os.fsencode(name), stat.st_size, stat.st_mtime_ns, *kind_of(name)))
            continue
        scanned = scan_sources((source,), options, pool, on_error=on_error, null=null)
        raise_problems(scanned)
        ignored.merge(scanned.ignored)
        failed.merge(scanned.failed)
        table = scanned.entries
        roots.append(table.roots[0])
        for row in range(table.num_entries):
            path = table.path(row)
            kind = kind_of(os.fsdecode(path))
            files.append(InputFile(table.roots[0], path, int(table.sizes[row]), int(table.mtimes_ns[row]), *kind))
    _check_archives(files)
    _check_text(files)
    files = _with_distinct_names(files)
    if not files:
        raise SourceError(
            f"no documents in {', '.join(sources)}", hint="name folders or files with text or ids in them"
        )
    return Inputs(tuple(roots), tuple(files), ignored, failed)


def _check_places(sources: Sequence[str]) -> None:
    for source in sources:
        if is_remote(source):
            raise UsageProblem(
                f"{source}: documents are read from folders and files of this machine, not from an object store",
                hint="copy them here, or mount the bucket; the output may be s3://...",
                where={"url": source},
            )
        if all(os.path.exists(os.path.join(source, name)) for name in (MANIFEST, HIDDEN)):
            raise UsageProblem(
                f"{source} is a data set, and its indexes and manifest are no documents",
                hint=f"its shards are: shardtool pack {os.path.join(source, 'data')} OUT --format bin",
                where={"path": source},
            )


def kind_of(name: str) -> tuple[str, str]:
    """(kind, compression) that a file name tells; what is not known by name is text."""
    stem, suffix = os.path.splitext(name.lower())
    if suffix in _COMPRESSED:
        return (LINES if _KINDS.get(os.path.splitext(stem)[1]) == LINES else TEXT), _COMPRESSED[suffix]
    return _KINDS.get(suffix, TEXT), ""


def _check_archives(files: list[InputFile]) -> None:
    """Refuse archives and tables compressed as a whole: decompressed they would pass for one long text."""
    wrong = [file for file in files if file.compression and file.kind == TEXT and _is_archive(file)]
    wrong += [file for file in files if file.path.lower().endswith((b".tgz", b".tzst"))]
    if wrong:
        shown = "\n".join(f"  {file.full_path}" for file in wrong[:5])
        raise UsageProblem(
            f"{len(wrong):,} files are compressed archives, tables or arrays, which hold no text as they are\n{shown}",
            hint="decompress them first; shards of shardtool: shardtool convert SRC PLAIN --format tar",
            where={"path": wrong[0].full_path},
        )


def _is_archive(file: InputFile) -> bool:
    suffix = os.path.splitext(os.path.splitext(os.fsdecode(file.path).lower())[0])[1]
    return _KINDS.get(suffix, LINES) != LINES or bool(_NO_TEXT.fullmatch(suffix))


def _check_text(files: list[InputFile]) -> None:
    """Refuse pictures and their like before anything is written; without a telling name, by a zero byte."""
    wrong = [file for file in files if file.kind == TEXT and _is_binary(file)]
    if wrong:
        shown = "\n".join(f"  {file.full_path}" for file in wrong[:5])
        raise UsageProblem(
            f"{len(wrong):,} files hold no text\n{shown}",
            hint="--format tar or parquet packs any bytes; or choose the text with --include '*.txt'",
            where={"path": wrong[0].full_path},
        )


def _is_binary(file: InputFile) -> bool:
    if file.compression:
        return False
    suffix = os.path.splitext(os.fsdecode(file.path))[1].lower()
    if _NO_TEXT.fullmatch(suffix):
        return True
    if suffix in (".txt", ".md", ".rst", ".text"):
        return False
    try:
        with open(file.full_path, "rb") as opened:
            return b"\0" in opened.read(1024)
    except OSError:
        return False  # reading it will say why


def _with_distinct_names(files: list[InputFile]) -> list[InputFile]:
    """Files of several roots whose paths are equal are called by as much of the root as tells them apart."""
    while True:
        counts: dict[bytes, int] = {}
        for file in files:
            counts[file.path] = counts.get(file.path, 0) + 1
        renamed = [_with_longer_name(file) if counts[file.path] > 1 else file for file in files]
        if renamed == files:
            return files
        files = renamed


def _with_longer_name(file: InputFile) -> InputFile:
    folder, name = os.path.split(file.root)
    return replace(file, root=folder, path=os.fsencode(name) + b"/" + file.path) if name else file


def cut_tasks(files: Sequence[InputFile]) -> list[Task]:
    """Tasks in source order; the same for any number of workers.

    A small source is cut into small slices, so that all workers have something to do.
    """
    slice_bytes = min(SLICE_BYTES, max(sum(file.size for file in files) // SLICES, LEAST_SLICE_BYTES))
    tasks: list[Task] = []
    batch: list[InputFile] = []
    size = 0
    for file in files:
        if file.kind == TEXT:
            if batch and (len(batch) == BATCH_FILES or size + file.size > BATCH_BYTES):
                tasks.append(Task(len(tasks), tuple(batch)))
                batch, size = [], 0
            batch.append(file)
            size += file.size
            continue
        if batch:
            tasks.append(Task(len(tasks), tuple(batch)))
            batch, size = [], 0
        tasks += [Task(len(tasks) + number, (file,), span) for number, span in enumerate(_spans(file, slice_bytes))]
    if batch:
        tasks.append(Task(len(tasks), tuple(batch)))
    return tasks


def _spans(file: InputFile, slice_bytes: int) -> Iterator[tuple[int, int]]:
    if file.kind == LINES and not file.compression:
        for start in range(0, max(file.size, 1), slice_bytes):
            yield start, min(start + slice_bytes, file.size)
    elif file.kind == COLUMNS:
        yield from _row_groups(file, slice_bytes)
    elif file.kind == NPY:
        yield from _array_rows(file, slice_bytes)
    else:
        yield 0, -1


def _row_groups(file: InputFile, slice_bytes: int) -> Iterator[tuple[int, int]]:
    try:
        metadata = pq.read_metadata(file.full_path)
    except (OSError, pa.ArrowException) as error:
        raise SourceError(
            f"{file.full_path} cannot be read as Parquet: {error}", where={"path": file.full_path}, hint="copy it again"
        ) from error
    first, size = 0, 0
    for group in range(metadata.num_row_groups):
        more = metadata.row_group(group).total_byte_size
        if size and size + more > slice_bytes:
            yield first, group
            first, size = group, 0
        size += more
    if metadata.num_row_groups:
        yield first, metadata.num_row_groups


def _array_rows(file: InputFile, slice_bytes: int) -> Iterator[tuple[int, int]]:
    array = open_array(file)
    if array.ndim == 1:
        yield 0, 1
        return
    step = max(1, slice_bytes // max(array.shape[1] * array.itemsize, 1))
    for first in range(0, len(array), step):
        yield first, min(first + step, len(array))


def open_array(file: InputFile) -> Any:
    """A mapped `.npy` of whole numbers in one or two dimensions.

    Raises:
        SourceError: something else; pickles are never loaded.
    """
    try:
        array = np.load(file.full_path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise SourceError(
            f"{file.full_path} is no array of numpy: {error}",
            hint="raw ids without a header are no .npy: merge them as .bin with an .idx",
            where={"path": file.full_path},
        ) from error
    if array.ndim not in (1, 2) or array.dtype.kind not in "iu":
        raise SourceError(
            f"{file.full_path} has shape {array.shape} of {array.dtype}, expected ids in one or two dimensions",
            hint="a row is a document",
            where={"path": file.full_path},
        )
    return array
