"""Files that are read from their beginning to their end: compressed archives, zip, tables, compressed data sets.

Each becomes (path, payload, label) a part, in the order of the file. Untrusted input: names are made normal or left
out, nothing is unpickled, nothing is written. Memory: one member, or one batch of rows.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import sys
import tarfile
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, cast

import pyarrow as pa
import zstandard

from shardtool.errors import BadKey, CorruptShard, SourceError, UsageProblem
from shardtool.formats.tar_samples import normal_name
from shardtool.model import Tally
from shardtool.reading.reading import Dataset
from shardtool.shard_sources.cells import key_of, part_of
from shardtool.shard_sources.find import DATASET, STREAM
from shardtool.shard_sources.record_blocks import whole_block
from shardtool.shard_sources.records import PARSERS
from shardtool.storage import is_remote
from shardtool.storage.stream import open_binary
from shardtool.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from shardtool.shard_sources.find import SourceFile

    Part = tuple[bytes, bytes, int]

KEY_COLUMNS = ("key", "__key__")
ROWS_AT_ONCE = 64  # of a Parquet file: rows may be large
NO_MEMORY = "a value or batch in it asks for more memory than there is"
DECODE_ERRORS = (
    EOFError,
    UnicodeDecodeError,
    csv.Error,
    gzip.BadGzipFile,
    json.JSONDecodeError,
    lzma.LZMAError,
    pa.ArrowException,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    zstandard.ZstdError,
)


@dataclass
class Stream:
    """A file being read."""

    parts: Iterator[Part]
    mtime_ns: int
    split: str = ""
    label_names: tuple[str, ...] = ()
    ignored: Tally = field(default_factory=Tally)
    is_dataset: bool = False


def open_stream(file: SourceFile, key_column: str) -> Stream:
    """Begin to read `file`."""
    if file.kind == DATASET:
        return _dataset(file)
    ignored = Tally()
    mtime_ns = _mtime_ns(file.path)
    if file.kind == "tar-stream":
        return Stream(_tar(file.path, ignored), mtime_ns, ignored=ignored)
    if file.kind == "zip":
        return Stream(_zip(file.path, ignored), mtime_ns, ignored=ignored)
    if file.kind.removesuffix(STREAM) in PARSERS:
        return Stream(_records(file), mtime_ns, file.split, is_dataset=True)
    rows = {"parquet": _parquet, "arrow": _arrow, "jsonl": _jsonl, "csv": _csv}[file.kind](file.path)
    return Stream(_table(file.path, rows, key_column), mtime_ns, file.split)


def _dataset(file: SourceFile) -> Stream:
    from shardtool.shard_sources.look import labels_of

    dataset = Dataset.open(file.dataset)
    index, record = dataset.index(file.shard), dataset.manifest.shards[file.shard]
    labels, names = labels_of(dataset, index)

    def parts() -> Iterator[Part]:
        with dataset:
            part = 0
            for sample in dataset.samples(file.shard, check=True):
                for row in range(part, part + len(sample.parts)):
                    name = index.part_names[row].as_py()
                    data = sample.parts[name.decode("utf-8", "backslashreplace")]
                    yield sample.key + b"." + name, data, -1 if labels is None else int(labels[row])
                part += len(sample.parts)

    return Stream(parts(), _mtime_ns(file.path), record.split, names, is_dataset=True)


def _mtime_ns(path: str) -> int:
    """Guard of what is unpacked; 0 for objects, whose digests are the guards of their parts."""
    return 0 if is_remote(path) else os.stat(path).st_mtime_ns


@contextmanager
def decompressed(path: str) -> Iterator[IO[bytes]]:
    """The bytes of a file behind its compression, which its suffix tells."""
    suffix = path.lower().rpartition(".")[2]
    with open_binary(path) as file:
        if suffix not in _DECODERS:
            yield file
            return
        with _DECODERS[suffix](file) as plain:
            yield plain


def _zstd(file: IO[bytes]) -> IO[bytes]:
    reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    return io.BufferedReader(cast("io.RawIOBase", reader))


_DECODERS: dict[str, Callable[[IO[bytes]], Any]] = {
    "gz": lambda file: gzip.GzipFile(fileobj=file),
    "tgz": lambda file: gzip.GzipFile(fileobj=file),
    "bz2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
    "zst": _zstd,
    "zstd": _zstd,
}


def _tar(path: str, ignored: Tally) -> Iterator[Part]:
    with decompressed(path) as data, tarfile.open(fileobj=data, mode="r|") as archive:
        for member in archive:
            name = os.fsencode(member.name)
            place = normal_name(name)
            if not member.isreg():
                is_link = member.islnk() or member.issym()
                ignored.add("directory" if member.isdir() else "link" if is_link else "special", name)
            elif place is None:
                ignored.add("bad_name", name, "absolute, or with `..`")
            else:
                payload = archive.extractfile(member)
                yield place, payload.read() if payload else b"", -1
        if data.read(1) and not _only_zeros(data):
            raise tarfile.ReadError("there is data behind the end of the archive")


def _only_zeros(data: IO[bytes]) -> bool:
    return not any(piece.strip(b"\0") for piece in iter(lambda: data.read(1 << 16), b""))


def _zip(path: str, ignored: Tally) -> Iterator[Part]:
    with open_binary(path) as file, zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            name = member.filename.encode("utf-8", "surrogateescape")
            place = normal_name(name)
            if member.is_dir():
                ignored.add("directory", name)
            elif member.flag_bits & 1:
                ignored.add("encrypted", name)
            elif place is None:
                ignored.add("bad_name", name, "absolute, or with `..`")
            else:
                yield place, _unzipped(path, archive, member), -1


def _unzipped(path: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    try:
        return archive.read(member)
    except NotImplementedError as error:  # Deflate64, as Windows writes large files
        raise SourceError(
            f"{path}: {member.filename!r} is compressed by method {member.compress_type}, which cannot be read here",
            hint="unpack it with 7z, then: shardtool pack FOLDER OUT; or leave the file out with --on-error skip",
            where={"path": path},
        ) from error


def _records(file: SourceFile) -> Iterator[Part]:
    """Records of which some values are numbers, or that lie behind compression, which are in memory, whole."""
    from shardtool.shard_sources.look import blocks_of, named_cells

    kind = file.kind.removesuffix(STREAM)
    if kind == file.kind:
        blocks = blocks_of(file)
    else:
        with decompressed(file.path) as data:
            blocks = [whole_block(memoryview(data.read()), file.path, kind)]
    for path, cell, block in named_cells(blocks, file.path):
        yield path, cell.text or bytes(block.view[cell.offset : cell.offset + cell.size]), -1


def _parquet(path: str) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    with open_binary(path) as data, pq.ParquetFile(data) as file:
        _check_columns(path, file.schema_arrow.names)
        for batch in file.iter_batches(ROWS_AT_ONCE):
            yield from _rows_of(path, batch)


def _arrow(path: str) -> Iterator[dict[str, Any]]:
    with open_binary(path) as data, pa.PythonFile(data, mode="r") as source:
        try:
            file = pa.ipc.open_file(source)
            batches: Iterable[Any] = (file.get_batch(number) for number in range(file.num_record_batches))
        except pa.ArrowInvalid:
            source.seek(0)
            batches = pa.ipc.open_stream(source)
        for batch in batches:
            batch.validate(full=True)  # offsets are followed unchecked: a damaged one would end the process
            _check_columns(path, batch.schema.names)
            for start in range(0, batch.num_rows, ROWS_AT_ONCE):
                yield from _rows_of(path, batch.slice(start, ROWS_AT_ONCE))


def _rows_of(path: str, batch: Any) -> list[dict[str, Any]]:
    """The rows of a batch; times that Python has no value for (nanoseconds, the year 10,000) cannot be rows."""
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except (OverflowError, ValueError) as error:
        raise SourceError(
            f"{path} holds a value that has no text: {error}",
            hint="write that column again as text or as microseconds; --on-error skip leaves the whole file out",
            where={"path": path},
        ) from error
    return rows


def _check_columns(path: str, names: Sequence[str]) -> None:
    """Refuse a table with two columns of one name: a row would keep one of them."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise CorruptShard(
            f"{path} has more than one column called {twice[0]!r}",
            hint="give each column a name of its own, or leave the file out with --on-error skip",
            where={"path": path},
        )


def _jsonl(path: str) -> Iterator[dict[str, Any]]:
    with decompressed(path) as data:
        for number, line in enumerate(data, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise CorruptShard(
                    f"{path}: line {number:,} is no JSON: {error}",
                    hint="mend the line, or leave the file out with --on-error skip",
                    where={"path": path, "line": number},
                ) from error
            if not isinstance(row, dict):
                raise UsageProblem(f"{path}: line {number:,} is no JSON object", where={"path": path})
            yield row


def _csv(path: str) -> Iterator[dict[str, Any]]:
    delimiter = "\t" if path.lower().endswith(".tsv") else ","
    csv.field_size_limit(sys.maxsize)  # of a cell; 128 KiB otherwise
    with io.TextIOWrapper(open_binary(path), encoding="utf-8-sig", newline="") as text:
        rows = csv.DictReader(text, delimiter=delimiter, strict=True)
        names = list(rows.fieldnames or ())
        _check_columns(path, names)
        for row in rows:
            surplus, absent = len(row.get(None, ())), sum(cell is None for cell in row.values())
            if surplus or absent:
                raise CorruptShard(
                    f"{path}: line {rows.line_num:,} has {plural(len(names) + surplus - absent, 'cell')}, "
                    f"the header names {plural(len(names), 'column')}",
                    hint="quote cells that hold the separator, and write an empty cell where there is no value; "
                    "or leave the file out with --on-error skip",
                    where={"path": path, "line": rows.line_num},
                )
            yield row


def _table(path: str, rows: Iterator[dict[str, Any]], key_column: str) -> Iterator[Part]:
    """Every row a sample, every column a part; keys from a column, or numbers behind the name of the file."""
    stem = os.path.basename(path).split(".")[0].encode("utf-8", "surrogateescape")
    for number, row in enumerate(rows):
        column = key_column or next((name for name in KEY_COLUMNS if name in row), "")
        if column and row.get(column) is None:
            raise BadKey(
                f"{path}: row {number:,} has no {column!r}, the column of keys",
                hint="--key-column names another; without one rows are numbered",
                where={"path": path, "row": number},
            )
        try:
            key = key_of(row[column]) if column else stem + b"-%08d" % number
            parts = [part_of(name, value) for name, value in row.items() if name != column]
        except UnicodeEncodeError as error:
            raise CorruptShard(
                f"{path}: row {number:,} holds half of a surrogate pair: {error.object[error.start]!a} is no text",
                hint="mend the row, or leave the file out with --on-error skip",
                where={"path": path, "row": number},
            ) from error
        found = [part for part in parts if part is not None]
        if not found:
            raise BadKey(
                f"{path}: row {number:,} has no value but its key",
                hint="a sample needs one part at least",
                where={"path": path, "row": number},
            )
        for part, data in found:
            yield key + b"." + part, data, -1
