"""Sources of documents: files found, their kinds told by name, cut into tasks that workers read.

A task is a slice of one large file, or many small ones. Tasks follow from the sources alone, never from workers.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from shardtool import columns
from shardtool.errors import ShardtoolError, SourceError, UsageProblem
from shardtool.hashing import digest_chunks
from shardtool.model import Tally
from shardtool.packing.packed_source import is_dataset
from shardtool.packing.prepare import problem_texts, raise_problems, scan_sources
from shardtool.storage import REMOTE_SCHEME, is_remote, open_place
from shardtool.storage.files import MANY_THREADS
from shardtool.storage.s3.address import split_url
from shardtool.tokens.arrays import array_head
from shardtool.tokens.files import InputFile, column_source, first_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardtool.model import EntryTable
    from shardtool.planning.plan import PlanOptions
    from shardtool.workers import WorkerPool

T = TypeVar("T")

SLICE_BYTES = 64 << 20  # of a large file, at most
LEAST_SLICE_BYTES = 4 << 20
SLICES = 64  # of all sources together, where slices of at least `LEAST_SLICE_BYTES` allow
LOOKS, LOOKS_A_SUFFIX = 1024, 64  # files without a telling name that are looked at before any is read, at most
LOOK_BYTES = 1024
BATCH_FILES, BATCH_BYTES = 1024, 16 << 20  # small text files a task
LINES, COLUMNS, IPC, TEXT, TAR, NPY = "lines", "parquet", "arrow", "text", "tar", "npy"
PAIR, SHARD = "pair", "shard"  # token ids with an .idx, of other tools and of a data set of ours
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
class Task:
    """What one worker reads at a time: a slice of one file, or several files whole.

    The slice is bytes of lines, row groups of Parquet, rows of an array, sequences of a pair; (0, -1) is all of it.
    """

    number: int
    files: tuple[InputFile, ...]
    span: tuple[int, int] = (0, -1)

    def identity(self, settings: Any) -> str:
        """xxh3_128 over all that decides what reading the task gives."""
        files = [[os.fsdecode(f.path), f.size, f.guard, f.kind, f.compression, f.split] for f in self.files]
        return digest_chunks([repr([files, self.span, settings]).encode("utf-8", "surrogateescape")])


@dataclass(frozen=True)
class Inputs:
    """All files with documents, in source order, and what else was met."""

    roots: tuple[str, ...]
    files: tuple[InputFile, ...]
    ignored: Tally
    failed: Tally
    notices: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of all files, as they lie on disk or in a bucket."""
        return sum(file.size for file in self.files)


def find_inputs(
    sources: Sequence[str],
    options: PlanOptions,
    pool: WorkerPool | None,
    *,
    on_error: str = "error",
    null: bool = False,
    list_cache: str = "",
) -> Inputs:
    """The files below `sources`, folders and prefixes of object stores in any mixture; each may also be one file.

    Raises:
        SourceError: a source cannot be read, or holds nothing.
        UsageProblem: files that hold no text, compressed archives, or a data set.
    """
    if options.source == "shards":
        return _pair_inputs(sources, options)
    _check_sources(sources, list_cache)
    roots, files, notices = [], [], []
    ignored, failed = Tally(), Tally()
    for source in sources:
        single = _one_file(source)
        if single is not None:
            roots.append(single.full_path)
            files.append(single)
            continue
        scanned = scan_sources(
            (source,), options, pool, on_error=on_error, null=null, list_cache=list_cache if is_remote(source) else ""
        )
        raise_problems(scanned)
        notices += problem_texts(scanned.problems)
        ignored.merge(scanned.ignored)
        failed.merge(scanned.failed)
        roots.append(scanned.entries.roots[0])
        files += _rows(scanned.entries)
    _check_archives(files)
    _check_text(files)
    files = _with_distinct_names(files)
    if not files:
        raise SourceError(
            f"no documents in {', '.join(sources)}", hint="name folders or files with text or ids in them"
        )
    return Inputs(tuple(roots), tuple(files), ignored, failed, tuple(notices))


def _pair_inputs(sources: Sequence[str], options: PlanOptions) -> Inputs:
    """Token shards, to be packed anew."""
    from shardtool.tokens.pairs import find_pairs

    files, notices = find_pairs(sources, options)
    files = _with_distinct_names(files)
    return Inputs(tuple(os.path.abspath(source) for source in sources), tuple(files), Tally(), Tally(), tuple(notices))


def _check_sources(sources: Sequence[str], list_cache: str) -> None:
    if list_cache and sum(map(is_remote, sources)) > 1:
        raise UsageProblem(
            f"--list-cache {list_cache} holds the list of one source, and there are more",
            hint="pack the prefix that holds them all",
        )
    for source in sources:
        if is_dataset(source):
            raise UsageProblem(
                f"{source} is a data set, and its indexes and manifest are no documents",
                hint=f"its shards are: shardtool pack {os.path.join(source, 'data')} OUT --format bin",
                where={"path": source},
            )


def _one_file(source: str) -> InputFile | None:
    """The file that a source is, or the object, where nothing lies below its name."""
    if not is_remote(source):
        if not os.path.isfile(source):
            return None
        root, name = os.path.split(os.path.abspath(source))
        stat = os.stat(source)
        return InputFile(root, os.fsencode(name), stat.st_size, stat.st_mtime_ns, *kind_of(name))
    bucket, key = split_url(source)
    if not key or key.endswith("/"):
        return None
    place = open_place(f"{REMOTE_SCHEME}{bucket}")
    try:
        found = place.stat(key)
        if next(iter(place.list(f"{key}/")), None) is not None:
            return None
    except (FileNotFoundError, PermissionError):
        return None  # the listing will tell
    root, _, name = source.rpartition("/")
    return InputFile(root, os.fsencode(name), found.num_bytes, 0, *kind_of(name), found.version)


def _rows(table: EntryTable) -> Iterator[InputFile]:
    """The files of a source, in its order."""
    sizes, mtimes_ns = table.sizes.tolist(), table.mtimes_ns.tolist()
    for folder, first, end in table.folders():
        prefix = table.dirs[folder] + b"/" if table.dirs[folder] else b""
        versions = columns.to_list(table.versions.slice(first, end - first)) if table.versions is not None else None
        for number, name in enumerate(columns.to_list(table.names.slice(first, end - first))):
            kind = kind_of(os.fsdecode(name))
            version = (versions[number] or b"").decode() if versions else ""
            row = first + number
            yield InputFile(table.roots[0], prefix + name, sizes[row], mtimes_ns[row], *kind, version)


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
    """Refuse pictures and their like before anything is written; some without a telling name, by a zero byte.

    Whoever reads the others looks at them then: a look is a request, or a file opened.
    """
    texts = [(file, is_binary_by_name(file)) for file in files if file.kind == TEXT and not file.compression]
    wrong = [file for file, is_binary in texts if is_binary]
    untold = [file for file, is_binary in texts if is_binary is None]
    unsure = _some(untold)
    wrong += [file for file, is_binary in zip(unsure, side_by_side(_has_zero_byte, unsure), strict=True) if is_binary]
    if wrong:
        shown = "\n".join(f"  {file.full_path}" for file in wrong[:5])
        hint = "--format tar or parquet packs any bytes; or choose the text with --include '*.txt'"
        if any(file.path.endswith(b".idx") for file in wrong):
            hint = "pairs of token ids are packed anew by: shardtool convert SRC OUT --format bin"
        raise UsageProblem(
            f"{'at least ' if len(unsure) < len(untold) else ''}{len(wrong):,} files hold no text\n{shown}",
            hint=hint,
            where={"path": wrong[0].full_path},
        )


def _some(files: Sequence[InputFile]) -> list[InputFile]:
    """A few of each suffix, from all over the source."""
    of_suffix: dict[str, list[InputFile]] = {}
    for file in files:
        of_suffix.setdefault(_suffix(file), []).append(file)
    chosen = [file for some in of_suffix.values() for file in some[:: -(-len(some) // LOOKS_A_SUFFIX)]]
    return chosen[:: -(-len(chosen) // LOOKS) or 1]


def _suffix(file: InputFile) -> str:
    return os.path.splitext(os.fsdecode(file.path))[1].lower()


def is_binary_by_name(file: InputFile) -> bool | None:
    """Whether the name of a file says that it holds no text; None where it says neither."""
    suffix = _suffix(file)
    if _NO_TEXT.fullmatch(suffix):
        return True
    return False if suffix in (".txt", ".md", ".rst", ".text") else None


def _has_zero_byte(file: InputFile) -> bool:
    try:
        return b"\0" in first_bytes(file, LOOK_BYTES)
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
    if file.is_remote:
        if file.root == REMOTE_SCHEME:
            return file
        folder, _, name = file.root.removeprefix(REMOTE_SCHEME).rpartition("/")
        return replace(file, root=REMOTE_SCHEME + folder, path=os.fsencode(name) + b"/" + file.path)
    folder, name = os.path.split(file.root)
    return replace(file, root=folder, path=os.fsencode(name) + b"/" + file.path) if name else file


def cut_tasks(files: Sequence[InputFile]) -> list[Task]:
    """Tasks in source order; the same for any number of workers.

    A small source is cut into small slices, so that all workers have something to do.
    """
    slice_bytes = min(SLICE_BYTES, max(sum(file.size for file in files) // SLICES, LEAST_SLICE_BYTES))
    looked_at = [file for file in files if file.kind in (COLUMNS, NPY)]
    spans = dict(zip(looked_at, side_by_side(partial(_spans, slice_bytes=slice_bytes), looked_at), strict=True))
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
        found = spans[file] if file in spans else _spans(file, slice_bytes)
        tasks += [Task(len(tasks) + number, (file,), span) for number, span in enumerate(found)]
    if batch:
        tasks.append(Task(len(tasks), tuple(batch)))
    return tasks


def side_by_side(function: Callable[[InputFile], T], files: Sequence[InputFile]) -> list[T]:
    """What the function gives for each file, in their order; of objects many at once, as each takes a request."""
    if sum(file.is_remote for file in files) < 2:
        return list(map(function, files))
    with ThreadPoolExecutor(min(MANY_THREADS, len(files)), thread_name_prefix="look") as pool:
        return list(pool.map(function, files))


def _spans(file: InputFile, slice_bytes: int) -> list[tuple[int, int]]:
    if file.kind == LINES and not file.compression:
        starts = range(0, max(file.size, 1), slice_bytes)
        return [(start, min(start + slice_bytes, file.size)) for start in starts]
    if file.kind == COLUMNS:
        return list(_row_groups(file, slice_bytes))
    if file.kind == NPY:
        return list(_array_rows(file, slice_bytes))
    if file.kind in (PAIR, SHARD):
        from shardtool.tokens.pairs import sequence_spans

        return list(sequence_spans(file, slice_bytes))
    return [(0, -1)]


def _row_groups(file: InputFile, slice_bytes: int) -> Iterator[tuple[int, int]]:
    try:
        with column_source(file)[0] as source:
            metadata = pq.read_metadata(source)
    except ShardtoolError:
        raise  # of a store
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
    head = array_head(file)
    if len(head.shape) == 1:
        yield 0, head.shape[0]
        return
    step = max(1, slice_bytes // max(head.row_bytes, 1))
    for first in range(0, head.shape[0], step):
        yield first, min(first + step, head.shape[0])
