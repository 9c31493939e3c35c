"""Tables that are joined to samples: CSV, TSV, JSON Lines and Parquet, with the line of each row for messages.

CSV and TSV cells are text, whatever they look like; JSON and Parquet values keep their types. Rows stay in arrow
buffers: the chosen columns of a CSV or Parquet file, the lines of a JSON Lines file. A byte order mark and CRLF line
ends are taken off.
"""

from __future__ import annotations

import csv
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.columns import to_list
from shardtool.errors import AccessDenied, SourceError, SourceNotFound, UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardtool.model import BinaryArray, Int64Array

KEY_NAMES = ("key", "file_name", "filename", "file", "path", "image", "id")
SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
PARQUET = (".parquet", ".pq")
BLOCK_BYTES = 32 << 20  # of a CSV file parsed at once; no row may be larger
_BOM = b"\xef\xbb\xbf"
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class Table:
    """A table whose rows can be read by number.

    Args:
        path: as given.
        key_name: the column that names samples.
        names: all columns, in the order of the file.
        keys: that column, large_binary[num_rows].
    """

    path: str
    key_name: str
    names: tuple[str, ...]
    keys: BinaryArray
    _columns: Any = None  # pyarrow.Table of CSV, TSV, Parquet
    _lines: Any = None  # large_binary[num_rows] of JSON Lines

    @property
    def shown(self) -> str:
        """The path for messages: below the working folder where it lies there."""
        relative = os.path.relpath(self.path)
        return self.path if relative.startswith("..") else relative

    @property
    def num_rows(self) -> int:
        """Rows, the header not counted."""
        return len(self.keys)

    def records(self, rows: Int64Array, names: Sequence[str]) -> list[dict[str, Any]]:
        """{column: value} of each given row; a field that a JSON line does not have is left out."""
        if self._lines is not None:
            wanted = set(names)
            objects = map(_decode, to_list(self._lines.take(pa.array(rows))))
            return [{name: value for name, value in found.items() if name in wanted} for found in objects]
        taken = self._columns.select(list(names)).take(pa.array(rows))
        found: list[dict[str, Any]] = taken.to_pylist()
        return found

    def place(self, row: int) -> str:
        """`metadata.csv:17`, or `metadata.parquet row 16`: where a row stands."""
        if self._columns is None:
            return f"{self.shown}:{_nth_line(self.path, row)}"
        ending = _ending(self.path)
        if ending in PARQUET:
            return f"{self.shown} row {row + 1}"
        with suppress(csv.Error, StopIteration):
            return f"{self.shown}:{_nth_row(self.path, SEPARATORS[ending], row + 1)[0]}"
        return f"{self.shown} row {row + 1}"


def read_table(path: str, key: str = "", columns: Sequence[str] | None = None) -> Table:
    """The table in a file.

    Args:
        key: the column that names samples; by default the first of `KEY_NAMES` that is there.
        columns: the other columns that are wanted; None takes all.

    Raises:
        SourceNotFound, AccessDenied: the file cannot be opened.
        UsageProblem: no table that is known by its ending, or a column that is not there.
        SourceError: the file is malformed; names the line.
    """
    ending = _ending(path)
    _check_file(path)
    if ending in SEPARATORS:
        return _read_csv(path, SEPARATORS[ending], key, columns)
    if ending in JSON_LINES:
        return _read_json_lines(path, key, columns)
    if ending in PARQUET:
        return _read_parquet(path, key, columns)
    known = " ".join((*SEPARATORS, *JSON_LINES, *PARQUET))
    hint = "write one object a line: jq -c '.[]' table.json > table.jsonl" if ending == ".json" else ""
    raise UsageProblem(f"--join {path} is no table: its name ends in none of {known}", hint=hint, where={"path": path})


def _ending(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _check_file(path: str) -> None:
    try:
        with open(path, "rb"):
            return
    except PermissionError as error:
        raise AccessDenied(f"--join {path} may not be read", where={"path": path}) from error
    except IsADirectoryError as error:
        raise UsageProblem(f"--join {path} is a folder", hint="name a table", where={"path": path}) from error
    except OSError as error:
        raise SourceNotFound(
            f"--join {path} cannot be opened: {error.strerror}",
            hint="check the path, which is taken from the folder you are in",
            where={"path": path},
        ) from error


# Which columns


def _choose_key(path: str, names: Sequence[str], key: str) -> str:
    if key:
        check_column(path, names, key)
        return key
    lowered = {name.lower(): name for name in reversed(names)}
    for name in KEY_NAMES:
        if name in lowered:
            return lowered[name]
    hint = f"choose the one that names the samples: --join-key {names[0]}" if names else ""
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        hint = "its columns seem to be separated by another character: save it with commas, or with tabs as .tsv"
    raise UsageProblem(
        f"{path} has no column called {', '.join(KEY_NAMES[:-1])} or {KEY_NAMES[-1]}; it has {', '.join(names)}",
        hint=hint,
        where={"path": path},
    )


def check_column(path: str, names: Sequence[str], name: str) -> None:
    """`name` is among the columns `names` of the table at `path`.

    Raises:
        UsageProblem: it is not; says which are there, and the nearest.
    """
    if name not in names:
        near = get_close_matches(name, names, 1)
        raise UsageProblem(
            f"{path} has no column {name!r}; it has {', '.join(names)}",
            hint=f"did you mean {near[0]}?" if near else "--join-key, --join-columns and --join-part name columns",
            where={"path": path},
        )


def _choose(path: str, names: Sequence[str], key: str, columns: Sequence[str] | None) -> list[str]:
    """The columns to keep, in the order of the file: those wanted, or all but the key."""
    for name in columns or ():
        check_column(path, names, name)
    return [name for name in names if (name != key if columns is None else name in columns)]


def _check_names(path: str, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice or not all(names):
        what = f"column {twice[0]!r} twice" if twice and twice[0] else "a column without a name"
        raise SourceError(f"{path}:1: the header has {what}", hint="rename it", where={"path": path, "line": 1})


# CSV and TSV


def _read_csv(path: str, separator: str, key: str, columns: Sequence[str] | None) -> Table:
    from pyarrow import csv as arrow_csv

    names = _header(path, separator)
    chosen_key = _choose_key(path, names, key)
    kept = _choose(path, names, chosen_key, columns)
    types = {name: pa.large_string() for name in (*kept, names[-1])} | {chosen_key: pa.large_binary()}
    try:
        table = arrow_csv.read_csv(
            path,
            read_options=arrow_csv.ReadOptions(block_size=BLOCK_BYTES),
            parse_options=arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                strings_can_be_null=False,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowException as error:
        _explain_csv(path, separator, len(names), str(error))
    _check_last_quote(path, separator, table.column(names[-1]))
    keys = _joined(table.column(chosen_key), pa.large_binary())
    return Table(path, chosen_key, tuple(names), keys, _as_text(table.select(kept)))


def _header(path: str, separator: str) -> list[str]:
    try:
        names = _nth_row(path, separator, 0)[1]
    except StopIteration:
        raise SourceError(
            f"{path} is empty", hint="a table begins with the names of its columns", where={"path": path}
        ) from None
    except csv.Error as error:
        raise SourceError(f"{path}:1: {error}", where={"path": path, "line": 1}) from error
    try:
        _ = [name.encode() for name in names]
    except UnicodeEncodeError:
        _explain_csv(path, separator, len(names), "the header is not UTF-8")
    _check_names(path, names)
    return names


def _nth_row(path: str, separator: str, row: int) -> tuple[int, list[str]]:
    """(line, cells) of a row, 0 the header; empty lines are no rows."""
    for number, found in enumerate(_rows_of(path, separator)):
        if number == row:
            return found
    raise StopIteration


def _rows_of(path: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file, delimiter=separator)
        before = 0
        for cells in reader:
            if cells:
                yield before + 1, cells
            before = reader.line_num


def _explain_csv(path: str, separator: str, num_columns: int, message: str) -> NoReturn:
    """Name the first line that is wrong, by a second and slower look."""
    with open(path, "rb") as file:
        if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            raise SourceError(f"{path} is UTF-16 text", hint="save it as UTF-8", where={"path": path})
    with suppress(csv.Error):
        for line, cells in _rows_of(path, separator):
            where = {"path": path, "line": line}
            if len(cells) != num_columns:
                raise SourceError(
                    f"{path}:{line}: {num_columns} columns expected, {len(cells)} found",
                    hint="put quotes around values that hold the separator or a newline, and double quotes inside",
                    where=where,
                )
            if any("\udc80" <= char <= "\udcff" for cell in cells for char in cell):
                raise SourceError(f"{path}:{line}: not UTF-8 text", hint="save it as UTF-8", where=where)
    raise SourceError(f"{path} cannot be read: {message}", where={"path": path})


def _check_last_quote(path: str, separator: str, last: Any) -> None:
    """A quote that is never closed swallows the rest of the file, and arrow does not say so."""
    if len(last) == 0 or b"\n" not in last[-1].cast(pa.large_binary()).as_py():
        return
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 4096))
        if file.read().rstrip(b"\r\n").endswith(b'"'):
            return
    line = _nth_row(path, separator, len(last))[0]
    raise SourceError(
        f"{path}:{line}: a quote is opened and never closed",
        hint="close it; a quote inside a quoted value is written twice",
        where={"path": path, "line": line},
    )


def _as_text(table: Any) -> Any:
    """`table` with the key, where it is wanted as a value too, as text like the rest."""
    return table.cast(pa.schema([pa.field(name, pa.large_string()) for name in table.column_names]))


def _joined(column: Any, kind: Any) -> BinaryArray:
    """One array of a chunked column."""
    found = column.cast(kind).combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


# JSON Lines


def _read_json_lines(path: str, key: str, columns: Sequence[str] | None) -> Table:
    with open(path, "rb") as file:
        data = file.read().removeprefix(_BOM)
    lines = _split_lines(data)
    names: dict[str, None] = {}
    chosen = key
    keys: list[bytes] = []
    rows: list[int] = []
    for number, text in _texts(lines):
        if not text.strip():
            continue
        record = _parse(path, len(keys), text)
        names.update(dict.fromkeys(record))
        chosen = chosen or _choose_key(path, list(record), "")
        keys.append(_key_text(path, len(keys), record, chosen))
        rows.append(number)
    if not keys:
        raise SourceError(f"{path} is empty", hint="a table holds one JSON object a line", where={"path": path})
    _choose(path, list(names), chosen, columns)
    kept = lines if len(rows) == len(lines) else lines.take(pa.array(rows))
    return Table(path, chosen, tuple(names), pa.array(keys, pa.large_binary()), _lines=kept)


def _split_lines(data: bytes) -> BinaryArray:
    """large_binary of the lines; views into `data`."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
    offsets = np.unique(np.concatenate([[0], ends, [len(data)]])).astype(np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _texts(lines: BinaryArray, step: int = 1 << 14) -> Iterable[tuple[int, bytes]]:
    for start in range(0, len(lines), step):
        yield from enumerate(to_list(lines.slice(start, step)), start)


def _parse(path: str, row: int, text: bytes) -> dict[str, Any]:
    try:
        record = _decode(text)
    except ValueError as error:
        reason = getattr(error, "msg", str(error))
        _refuse_line(path, row, f"no JSON: {reason}", "one object a line")
    if not isinstance(record, dict):
        _refuse_line(path, row, "no JSON object", 'one object a line, such as {"file_name": "a.jpg"}')
    return record


def _decode(text: bytes) -> Any:
    return _DECODER.decode(text.decode("utf-8"))


def _key_text(path: str, row: int, record: dict[str, Any], name: str) -> bytes:
    value = record.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        _refuse_line(path, row, f"no text in {name!r}, which names the sample", "--join-key chooses another field")
    return value.encode("utf-8", "surrogatepass")


def _refuse_line(path: str, row: int, what: str, hint: str) -> NoReturn:
    line = _nth_line(path, row)
    raise SourceError(f"{path}:{line}: {what}", hint=hint, where={"path": path, "line": line})


def _nth_line(path: str, row: int) -> int:
    """The line of a row, counted from 1; lines without content are no rows."""
    with open(path, "rb") as file:
        for line, text in enumerate(file, 1):
            if text.removeprefix(_BOM).strip():
                if row == 0:
                    return line
                row -= 1
    return 0


# Parquet


def _read_parquet(path: str, key: str, columns: Sequence[str] | None) -> Table:
    from pyarrow import parquet

    try:
        names = [name for name in parquet.read_schema(path).names if not name.startswith("__index_level_")]
        _check_names(path, names)
        chosen = _choose_key(path, names, key)
        kept = _choose(path, names, chosen, columns)
        table = parquet.read_table(path, columns=sorted({chosen, *kept}), partitioning=None)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{path} is no Parquet file, or damaged: {error}", where={"path": path}) from error
    keys = _parquet_keys(path, chosen, table.column(chosen))
    return Table(path, chosen, tuple(names), keys, table.select(kept))


def _parquet_keys(path: str, name: str, column: Any) -> BinaryArray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if not any(is_kind(column.type) for is_kind in kinds):
        raise UsageProblem(
            f"column {name!r} of {path} names no samples: its type is {column.type}", hint="choose another: --join-key"
        )
    if column.null_count:
        row = int(np.flatnonzero(pc.is_null(column).to_numpy())[0])
        raise SourceError(
            f"{path} row {row + 1}: no text in {name!r}, which names the sample", hint="choose another: --join-key"
        )
    return _joined(column, pa.large_binary())
