"""Keys that differ in case or Unicode form only: kept apart byte by byte here, one file on systems that fold names.

A key that is plain lower-case ASCII folds to itself, so only the others are folded and hashed; a data set of plain
names costs one pass over the bytes of its names.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from shardtool import columns
from shardtool.model import Problem
from shardtool.samples import key_array, keys_of
from shardtool.units import plural

if TYPE_CHECKING:
    from shardtool.model import BinaryArray, Int64Array, SampleTable

CHUNK = 1 << 16  # keys held at a time
BLOCK = 1 << 20  # bytes of names looked at at a time
MAX_EXAMPLES = 5


def twin_names(table: SampleTable, seed: int) -> Problem | None:
    """A notice about keys, or part names, that a folding file system takes for one; None where there are none.

    Args:
        seed: that of the table's key hashes.
    """
    rows = _folded_rows(table, seed)
    parts = _twin_parts(table)
    count = len(rows) - len(set(_groups(rows)))
    if count + len(parts) == 0:
        return None
    examples = [*_examples(table, rows), *parts][:MAX_EXAMPLES]
    total = count + len(parts)
    message = (
        f"{plural(total, 'name')} {'differs' if total == 1 else 'differ'} from another in case or Unicode form only:"
        " apart in the shards, but macOS and Windows would unpack one over the other"
    )
    return Problem("twin_names", total, tuple(examples), message, is_fatal=False)


def fold(name: bytes) -> bytes:
    """`name` as a file system compares it that ignores case and Unicode form."""
    if name.isascii():
        return name.lower()
    try:
        text = unicodedata.normalize("NFC", name.decode("utf-8"))
    except UnicodeDecodeError:
        return name.lower()
    return unicodedata.normalize("NFC", text.lower()).encode()


def _folded_rows(table: SampleTable, seed: int) -> list[tuple[int, int]]:
    """(folded hash, row) of every key that has a twin."""
    if not (
        _changes(columns.buffers_of(table.entries.names)[1]).any() or any(fold(d) != d for d in table.entries.dirs)
    ):
        return []
    hashes = table.key_hash.copy()
    for first in range(0, table.num_samples, CHUNK):
        rows = np.arange(first, min(first + CHUNK, table.num_samples))
        rows = rows[_may_change(key_array(table, rows))]
        keys = map(fold, keys_of(table, rows)) if len(rows) else ()
        hashes[rows] = [xxhash.xxh3_64_intdigest(key, seed) for key in keys]
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    twins = order[np.unique(np.concatenate([same, same + 1]))]
    return list(zip(hashes[twins].tolist(), twins.tolist(), strict=True))


def _are_plain(names: BinaryArray) -> bool:
    data = columns.buffers_of(names)[1]
    return not any(_changes(data[at : at + BLOCK]).any() for at in range(0, len(data), BLOCK))


def _changes(data: Any) -> Any:
    """bool[n]: bytes that folding may change: capitals, and all that is not ASCII."""
    return ((data >= ord("A")) & (data <= ord("Z"))) | (data >= 0x80)


def _may_change(keys: Any) -> Any:
    """bool[n]: keys with such a byte."""
    offsets, data = columns.buffers_of(keys)
    before = np.concatenate([[0], np.cumsum(_changes(data))])
    return before[offsets[1:]] > before[offsets[:-1]]


def _groups(rows: list[tuple[int, int]]) -> list[int]:
    return [folded for folded, _ in rows]


def _examples(table: SampleTable, rows: list[tuple[int, int]]) -> list[str]:
    """`Cats/1 and cats/1`, for the first few twins in source order."""
    groups: dict[int, list[int]] = {}
    for folded, row in sorted(rows, key=lambda pair: pair[1]):
        groups.setdefault(folded, []).append(row)
    pairs: list[Int64Array] = [np.array(found[:2]) for found in list(groups.values())[:MAX_EXAMPLES]]
    return [_pair(*keys_of(table, pair)) for pair in pairs]


def _twin_parts(table: SampleTable) -> list[str]:
    """The same for part names; only with `keep_case` can there be any."""
    first: dict[bytes, bytes] = {}
    names = [table.part_names[number] for number in np.unique(table.part_name).tolist()]
    found = [(first.setdefault(fold(name), name), name) for name in names]
    return [_pair(b"." + one, b"." + two) for one, two in found if one != two]


def _pair(one: bytes, two: bytes) -> str:
    texts = [name.decode("utf-8", "backslashreplace") for name in (one, two)]
    if len({unicodedata.normalize("NFC", text) for text in texts}) == 1:  # they look the same: show what differs
        texts = [ascii(text)[1:-1] for text in texts]
    return " and ".join(texts)
