"""Names -> runs: neighbouring entries with one identity, their keys hashed. The loop of grouping, shared by workers.

A run never crosses a folder; runs of one identity in several folders are brought together by `group`.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from shardtool.columns import buffers_of, to_list
from shardtool.errors import BadKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.keys import KeyRule
    from shardtool.model import EntryTable, Int16Array, Int32Array, Int64Array, UInt64Array
    from shardtool.workers import WorkerPool

CHUNK_ROWS = 1 << 16  # names held as Python objects at a time
SHARED_ROWS = 100_000  # entries from which workers are worth their messages
NO_PART, NO_MATCH = -1, -2  # part ids of entries that belong to no sample


@dataclass(frozen=True)
class Runs:
    """Neighbouring entries with one identity."""

    start: Int64Array  # first entry of each run
    hashes: UInt64Array  # xxh3_64(key, seed) of each run
    key_bytes: Int32Array  # length of the key of each run
    part_ids: Int16Array  # row in part_names of each entry, or NO_PART, NO_MATCH
    part_names: list[bytes]


class Names(NamedTuple):
    """Names of some folders, as they are sent to a worker."""

    first: int  # row of the first one
    folders: list[bytes]
    counts: list[int]  # names of each folder
    lengths: bytes  # int32 of each name
    data: bytes


class _Columns(NamedTuple):
    """Columns of runs while they grow."""

    start: array[int]
    hashes: array[int]
    key_bytes: array[int]
    part_ids: array[int]


class _PartIds(dict[bytes, int]):
    """Extension -> row in `names`; unseen ones are normalised by the rule and added."""

    def __init__(self, rule: KeyRule) -> None:
        super().__init__()
        self.rule = rule
        self.names: list[bytes] = []
        self._numbers: dict[bytes, int] = {}

    def __missing__(self, extension: bytes) -> int:
        name = self.rule.part(extension)
        if name is None:
            number = NO_PART
        else:
            number = self.number(name)
        self[extension] = number
        return number

    def number(self, name: bytes) -> int:
        """Row of a part name; a new one is added."""
        number = self._numbers.get(name)
        if number is None:
            if len(self.names) >= np.iinfo(np.int16).max:
                shown = name.decode("utf-8", "backslashreplace")
                raise BadKey(
                    f"more than {len(self.names):,} different part names, such as {shown}",
                    hint="try --group-by last-dot, or give the rule with --group-by regex:…",
                )
            number = self._numbers[name] = len(self.names)
            self.names.append(name)
        return number


def find_runs(entries: EntryTable, rule: KeyRule, seed: int, pool: WorkerPool | None = None) -> Runs:
    """The runs of all entries, in their order.

    Raises:
        BadKey: more part names than a table can hold.
    """
    if pool is None or pool.num_workers < 2 or entries.num_entries < SHARED_ROWS:
        return _read(_folder_chunks(entries), rule, seed)
    tasks = list(_tasks(entries, max(CHUNK_ROWS // 4, entries.num_entries // (8 * pool.num_workers))))
    found = {
        task.first: runs for task, runs in pool.run("shardtool.grouping.runs:read_names", tasks, context=(rule, seed))
    }
    return _join([found[first] for first in sorted(found)], rule)


def read_names(context: tuple[KeyRule, int], task: Names) -> Runs:
    """The runs of one task; called in a worker."""
    rule, seed = context
    starts = np.zeros(len(task.lengths) // 4 + 1, np.int64)
    np.cumsum(np.frombuffer(task.lengths, np.int32), out=starts[1:])
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(task.data)]
    names = to_list(pa.Array.from_buffers(pa.large_binary(), len(starts) - 1, buffers))
    return _read(_cut(task, names), rule, seed)


def _cut(task: Names, names: list[bytes]) -> Iterator[tuple[int, bytes, list[bytes]]]:
    start = 0
    for folder, count in zip(task.folders, task.counts, strict=True):
        yield task.first + start, folder, names[start : start + count]
        start += count


def _tasks(entries: EntryTable, num_rows: int) -> Iterator[Names]:
    """The names of whole folders, about `num_rows` at a time."""
    offsets, data = buffers_of(entries.names)
    folders: list[bytes] = []
    counts: list[int] = []
    first = 0
    for folder, start, stop in entries.folders():
        folders.append(entries.dirs[folder])
        counts.append(stop - start)
        if stop - first >= num_rows or stop == entries.num_entries:
            lengths = np.diff(offsets[first : stop + 1]).astype(np.int32)
            yield Names(first, folders, counts, lengths.tobytes(), data[offsets[first] : offsets[stop]].tobytes())
            folders, counts, first = [], [], stop


def _join(pieces: list[Runs], rule: KeyRule) -> Runs:
    """Pieces in their order as one, with one list of part names."""
    part_ids = _PartIds(rule)
    numbers = []
    for piece in pieces:
        table = np.array([part_ids.number(name) for name in piece.part_names] + [NO_MATCH, NO_PART], np.int16)
        numbers.append(table[piece.part_ids])  # -1 and -2 are the last two
    return Runs(
        np.concatenate([piece.start for piece in pieces]),
        np.concatenate([piece.hashes for piece in pieces]),
        np.concatenate([piece.key_bytes for piece in pieces]),
        np.concatenate(numbers),
        part_ids.names,
    )


def _read(chunks: Iterator[tuple[int, bytes, list[bytes]]], rule: KeyRule, seed: int) -> Runs:
    runs = _Columns(array("q"), array("Q"), array("i"), array("h"))
    part_ids = _PartIds(rule)
    read = _read_contiguous if rule.is_contiguous else _read_any
    for first, folder, names in chunks:
        read(runs, first, folder, names, rule, part_ids, seed)
    return Runs(
        np.frombuffer(runs.start, np.int64),
        np.frombuffer(runs.hashes, np.uint64),
        np.frombuffer(runs.key_bytes, np.int32),
        np.frombuffer(runs.part_ids, np.int16),
        part_ids.names,
    )


def _folder_chunks(entries: EntryTable) -> Iterator[tuple[int, bytes, list[bytes]]]:
    """(first row, folder, names) for each folder, converting about CHUNK_ROWS names at a time."""
    base = 0
    chunk: list[bytes] = []
    for folder, start, stop in entries.folders():
        if stop > base + len(chunk):
            base = start
            chunk = to_list(entries.names.slice(start, max(stop - start, CHUNK_ROWS)))
        yield start, entries.dirs[folder], chunk[start - base : stop - base]


def _read_contiguous(
    runs: _Columns, row: int, folder: bytes, names: list[bytes], rule: KeyRule, part_ids: _PartIds, seed: int
) -> None:
    """The hot loop of grouping: about 0.3 us an entry."""
    add_start, add_hash, add_bytes = runs.start.append, runs.hashes.append, runs.key_bytes.append
    add_part, digest, key_of = runs.part_ids.append, xxhash.xxh3_64_intdigest, rule.key
    prefix = folder + b"/" if folder else b""
    escapes = rule.escape_names
    last = None
    for name in names:
        stem, _, extension = name.partition(b".")
        if not stem:  # a hidden file: its first dot belongs to the stem
            stem, _, extension = name[1:].partition(b".")
            stem = b"." + stem
        if stem != last:
            last, key = stem, prefix + stem
            if escapes or stem[:1] == b".":
                key = key_of(key)
            add_start(row)
            add_hash(digest(key, seed))
            add_bytes(len(key))
        add_part(part_ids[extension])
        row += 1


def _read_any(
    runs: _Columns, row: int, folder: bytes, names: list[bytes], rule: KeyRule, part_ids: _PartIds, seed: int
) -> None:
    last = None
    for name in names:
        found = rule.split(folder, name)
        identity, extension = found or (b"", b"")
        if not identity:
            found = None
        if identity != last or found is None:
            last, key = identity, rule.key(identity)
            runs.start.append(row)
            runs.hashes.append(xxhash.xxh3_64_intdigest(key, seed))
            runs.key_bytes.append(len(key))
        runs.part_ids.append(NO_MATCH if found is None else part_ids[extension])
        row += 1
