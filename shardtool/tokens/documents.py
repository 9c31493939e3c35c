"""A task -> its documents, in batches of about 1 MiB: keys, and texts or ids. What cannot be read is told apart.

A key is the file's path below its source, `#`, and where the document is in it: the byte a line begins at, the row of a
table or array, the name in a tar. A text file is one document, called by its path.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardtool.errors import ShardtoolError, SourceError
from shardtool.tokens.arrays import array_head, array_rows
from shardtool.tokens.files import (
    check_guards,
    column_source,
    contents,
    damage_named,
    decompressed,
    on_disk,
    opened,
    ranged,
)
from shardtool.tokens.inputs import COLUMNS, IPC, LINES, LOOK_BYTES, NPY, PAIR, SHARD, TAR, is_binary_by_name
from shardtool.tokens.pairs import read_pair

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from shardtool.indexing.bare_shards import BareShard
    from shardtool.model import Int64Array
    from shardtool.tokens.files import InputFile
    from shardtool.tokens.inputs import Task

BATCH_TEXT_BYTES = 1 << 20
BATCH_ROWS = 1 << 14
BATCH_COLUMN_BYTES = 1 << 19
TEXT_PARTS = ("txt", "text")
_BYTES_OF = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
_ARE_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


@dataclass
class Batch:
    """Some documents: texts, or ids one after the other with their lengths."""

    keys: list[bytes]
    texts: list[bytes] = field(default_factory=list)
    ids: NDArray[Any] | None = None
    lengths: Int64Array | None = None
    failures: list[tuple[bytes, str]] = field(default_factory=list)  # (key, reason)


def read_documents(task: Task, text_field: str, ids_field: str, *, wants_ids: bool) -> Iterator[Batch]:
    """The documents of a task, in their order.

    Raises:
        SourceChanged: a file is not the one that was listed.
        SourceError: a file, not a document of it, cannot be read.
    """
    kind = task.files[0].kind
    check_guards(task.files)
    name = ids_field if wants_ids else text_field
    if kind == LINES:
        yield from _in_batches(_lines(task.files[0], task.span, name, wants_ids=wants_ids), wants_ids=wants_ids)
    elif kind in (COLUMNS, IPC):
        yield from _tables(task, name, wants_ids=wants_ids)
    elif kind == NPY:
        yield _array(task)
    elif kind in (PAIR, SHARD):
        for keys, ids, lengths in read_pair(task.files[0], task.span):
            yield Batch(keys, ids=ids, lengths=lengths)
    elif kind == TAR:
        yield from _in_batches(_members(task.files[0], text_field), wants_ids=False)
    else:
        yield from _in_batches(_texts(task.files), wants_ids=False)


Found = tuple[bytes, Any, str]  # key, text or list of ids, reason why there is neither


def _in_batches(found: Iterator[Found], *, wants_ids: bool) -> Iterator[Batch]:
    batch, size, values = Batch([]), 0, []
    for key, value, reason in found:
        if reason:
            batch.failures.append((key, reason))
            continue
        batch.keys.append(key)
        values.append(value)
        size += len(value) * (4 if wants_ids else 1)
        if size >= BATCH_TEXT_BYTES or len(values) >= BATCH_ROWS:
            yield _filled(batch, values, wants_ids=wants_ids)
            batch, size, values = Batch([]), 0, []
    if values or batch.failures:
        yield _filled(batch, values, wants_ids=wants_ids)


def _filled(batch: Batch, values: list[Any], *, wants_ids: bool) -> Batch:
    if wants_ids:
        batch.lengths = np.fromiter(map(len, values), np.int64, len(values))
        batch.ids = np.fromiter((token for value in values for token in value), np.int64, int(batch.lengths.sum()))
    else:
        batch.texts = values
    return batch


def _lines(file: InputFile, span: tuple[int, int], name: str, *, wants_ids: bool) -> Iterator[Found]:
    """Lines that begin in the span; the one that crosses its end is read whole."""
    start, stop = span
    prefix = file.path + b"#"
    with damage_named(file), _from(file, start, stop) as stream:
        if start:
            start += len(stream.readline()) - 1
        while stop < 0 or start < stop:
            line = stream.readline()
            if not line:
                break
            key = prefix + str(start).encode()
            start += len(line)
            if not line.isspace():
                yield _row(key, line, name, wants_ids=wants_ids)


def _from(file: InputFile, start: int, stop: int) -> AbstractContextManager[IO[bytes]]:
    """The bytes of a file, decompressed; of a slice of it from the byte before it on, which tells where lines end."""
    return decompressed(file) if file.compression else opened(file, max(start - 1, 0), stop)


def _row(key: bytes, line: bytes, name: str, *, wants_ids: bool) -> Found:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        return key, None, f"no JSON: {error}"
    if not isinstance(document, dict) or name not in document:
        has = ", ".join(list(document)[:8]) if isinstance(document, dict) else type(document).__name__
        option = "--ids-field" if wants_ids else "--text-field"
        return key, None, f"no field {name!r} (it has: {has}); choose with {option}"
    value = document[name]
    if wants_ids:
        is_good = isinstance(value, list) and all(
            type(token) is int and -(1 << 63) <= token < 1 << 63 for token in value
        )
        return (key, value, "") if is_good else (key, None, f"field {name!r} is no list of whole numbers")
    if not isinstance(value, str):
        return key, None, f"field {name!r} is {type(value).__name__}, expected text"
    try:
        return key, value.encode(), ""
    except UnicodeEncodeError:  # half of a surrogate pair
        return key, None, f"field {name!r} is no Unicode text"


def _texts(files: tuple[InputFile, ...]) -> Iterator[Found]:
    for file, data in contents(files):
        if not file.compression and b"\0" in data[:LOOK_BYTES] and is_binary_by_name(file) is None:
            yield file.path, None, "no text: it has a zero byte"
        else:
            yield _text(file.path, data)


def _text(key: bytes, data: bytes) -> Found:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return key, None, f"no UTF-8: byte {data[error.start]:#04x} at {error.start:,}"
    return key, data, ""


def _members(file: InputFile, text_field: str) -> Iterator[Found]:
    """One document a sample: its part called as the text field, else `txt`, else `text`."""
    from shardtool.indexing.bare_shards import bare_of

    with on_disk(file) as stream:
        shard = bare_of(stream, file.full_path)
        for sample, part in _chosen_parts(shard, text_field):
            data = os.pread(stream.fileno(), int(shard.part_sizes[part]), int(shard.part_offset[part]))
            yield _text(file.path + b"#" + shard.keys[sample], data)


def _chosen_parts(shard: BareShard, text_field: str) -> Iterable[tuple[int, int]]:
    """(sample, part) of each sample that has a text."""
    ranks = {name.encode(): rank for rank, name in reversed(list(enumerate((text_field, *TEXT_PARTS))))}
    names, owners = shard.part_names, np.repeat(np.arange(len(shard.keys)), np.diff(shard.part_start)).tolist()
    chosen: dict[int, int] = {}  # sample: part
    for part, name in enumerate(names):
        before = chosen.get(owners[part])
        if name in ranks and (before is None or ranks[name] < ranks[names[before]]):
            chosen[owners[part]] = part
    return chosen.items()


def _tables(task: Task, name: str, *, wants_ids: bool) -> Iterator[Batch]:
    file = task.files[0]
    row = 0
    batches = _parquet(file, task.span, name) if file.kind == COLUMNS else _ipc(file, name)
    try:
        with damage_named(file):
            for base, column in batches:
                row = base if base is not None else row
                for start in range(0, len(column), BATCH_ROWS):
                    piece = column.slice(start, BATCH_ROWS)
                    keys = _row_keys(file.path, row + start, len(piece))
                    yield from _ids_column(keys, piece, name) if wants_ids else _text_column(keys, piece, name)
                row += len(column)
    except ShardtoolError as error:
        if "path" in error.where or "url" in error.where:
            raise
        raise SourceError(
            f"{file.full_path}: {error.message}", hint=error.hint, where={"path": file.full_path}
        ) from error


def _row_keys(path: bytes, first: int, count: int) -> list[bytes]:
    prefix = path + b"#"
    return [prefix + b"%d" % row for row in range(first, first + count)]


def _parquet(file: InputFile, span: tuple[int, int], name: str) -> Iterator[tuple[int | None, Any]]:
    source, options = column_source(file)
    with source, pq.ParquetFile(source, pre_buffer=False, **options) as table:
        _check_column(file, table.schema_arrow.names, name)
        first: int | None = sum(table.metadata.row_group(group).num_rows for group in range(span[0]))
        for batch in table.iter_batches(
            _rows_a_batch(table.metadata, span), list(range(*span)), columns=[name], use_threads=False
        ):
            yield first, batch.column(0)
            first = None


def _rows_a_batch(metadata: Any, span: tuple[int, int]) -> int:
    """Rows of about `BATCH_COLUMN_BYTES`: what is decoded is used while it is in the cache."""
    groups = [metadata.row_group(group) for group in range(*span)]
    num_bytes: int = sum(group.total_byte_size for group in groups)
    rows: int = sum(group.num_rows for group in groups)
    return max(256, min(BATCH_ROWS, rows * BATCH_COLUMN_BYTES // max(num_bytes, 1)))


def _ipc(file: InputFile, name: str) -> Iterator[tuple[int | None, Any]]:
    """Record batches of an Arrow file, or of a stream, as Hugging Face `datasets` writes them."""
    with ranged(file) as source:
        try:
            reader = pa.ipc.open_file(source)
        except pa.ArrowInvalid:
            yield from _ipc_stream(file, name)
            return
        _check_column(file, reader.schema.names, name)
        if file.is_remote:  # of other columns no byte is asked for
            wanted = pa.ipc.IpcReadOptions(included_fields=[reader.schema.names.index(name)])
            reader = pa.ipc.open_file(source, options=wanted)
        for number in range(reader.num_record_batches):
            yield None, _checked(reader.get_batch(number), name)


def _ipc_stream(file: InputFile, name: str) -> Iterator[tuple[int | None, Any]]:
    with opened(file) if file.is_remote else ranged(file) as source, pa.ipc.open_stream(source) as reader:
        _check_column(file, reader.schema.names, name)
        for batch in reader:
            yield None, _checked(batch, name)


def _checked(batch: Any, name: str) -> Any:
    """A column whose offsets lie in its buffers; they are followed unchecked: a damaged one would end the process."""
    column = batch.column(name)
    column.validate()
    raw = _BYTES_OF.get(column.type)  # a text that is no UTF-8 is a failure of its document alone
    (column.cast(raw) if raw else column).validate(full=True)
    return column


def _check_column(file: InputFile, names: list[str], name: str) -> None:
    if name not in names:
        raise SourceError(
            f"{file.full_path} has no column {name!r}; it has: {', '.join(names)}",
            hint="--text-field NAME, or --ids-field NAME with --tokenizer none",
            where={"path": file.full_path},
        )


def _text_column(keys: list[bytes], column: Any, name: str) -> Iterator[Batch]:
    if pa.types.is_dictionary(column.type):  # categories of pandas
        column = column.dictionary_decode()
    if not any(is_text(column.type) for is_text in _ARE_TEXT):
        raise SourceError(f"column {name!r} is {column.type}, expected text", hint="choose with --text-field")
    values = column.cast(pa.large_binary()).to_numpy(zero_copy_only=False).tolist()
    rows = ((key, value, "" if value is not None else "null") for key, value in zip(keys, values, strict=True))
    yield from _in_batches(rows, wants_ids=False)


def _ids_column(keys: list[bytes], column: Any, name: str) -> Iterator[Batch]:
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not is_list or not pa.types.is_integer(kind.value_type):
        raise SourceError(
            f"column {name!r} is {kind}, expected lists of whole numbers",
            hint="text needs --tokenizer FILE or bytes; choose the column with --ids-field",
        )
    failures: list[tuple[bytes, str]] = []
    if column.null_count:
        good = column.is_valid()
        failures = [(key, "null") for key, ok in zip(keys, good.to_pylist(), strict=True) if not ok]
        keys = [key for key, ok in zip(keys, good.to_pylist(), strict=True) if ok]
        column = column.filter(good)
    values = column.flatten()
    if values.null_count:
        raise SourceError(f"column {name!r} has nulls inside its lists", hint="leave such rows out")
    yield Batch(keys, ids=values.to_numpy(zero_copy_only=False), lengths=_list_lengths(column), failures=failures)


def _list_lengths(column: Any) -> Int64Array:
    """int64[n]: values of each list; none is null."""
    if pa.types.is_fixed_size_list(column.type):
        return np.full(len(column), column.type.list_size, np.int64)
    lengths: Int64Array = np.diff(column.offsets.to_numpy()).astype(np.int64)
    return lengths


def _array(task: Task) -> Batch:
    file = task.files[0]
    head = array_head(file)
    first, last = task.span
    rows = array_rows(file, head, first, last)
    if rows.ndim == 1:
        return Batch([file.path], ids=np.asarray(rows), lengths=np.array([len(rows)], np.int64))
    lengths = np.full(last - first, head.shape[1], np.int64)
    return Batch(_row_keys(file.path, first, last - first), ids=np.asarray(rows).reshape(-1), lengths=lengths)
