"""Documents that come twice: with one content, which `--dedup` leaves out, or with one key, which no plan can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardtool.errors import DuplicateKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.model import BinaryArray, Int64Array, UInt64Array
    from shardtool.tokens.runs import Run

SHOWN = 3
_ROWS = 1 << 16  # of a run, looked at together


def find_duplicates(runs: Sequence[Run]) -> tuple[Any, int]:
    """((hash, split hash) of every sequence whose content came before in the source, sorted, uint64[n, 2]; documents).

    A long document is several sequences, and counts once: only its first one has bytes of text. Memory: 9 bytes a
    sequence, and 70 for each whose content comes more than once.
    """
    rows = _rows_with(runs, "high", _repeated(runs, "high"))
    high, low = _taken(runs, rows, "high"), _taken(runs, rows, "low")
    numbers = np.repeat(np.arange(len(runs), dtype=np.uint64), [len(some) for some in rows])
    place = (numbers << np.uint64(32)) | _taken(runs, rows, "place")
    order = np.lexsort((place, low, high))
    again = np.zeros(len(order), bool)
    again[1:] = (high[order[1:]] == high[order[:-1]]) & (low[order[1:]] == low[order[:-1]])
    del high, low, place, numbers
    is_again = np.zeros(len(order), bool)
    is_again[order[again]] = True
    ends = np.cumsum([len(some) for some in rows])[:-1]
    rows = [some[chosen] for some, chosen in zip(rows, np.split(is_again, ends), strict=True)]
    hashes, split = _taken(runs, rows, "hash"), _taken(runs, rows, "split")
    is_first = (_taken(runs, rows, "text_bytes") > 0) | (_taken(runs, rows, "tokens") == 0)
    return np.stack([hashes, split], axis=1)[np.lexsort((split, hashes))], int(np.count_nonzero(is_first))


def _repeated(runs: Sequence[Run], name: str) -> UInt64Array:
    """Values of a column that come more than once, sorted, each once; 9 bytes a row while they are looked for."""
    values, first = np.empty(sum(len(run.hash) for run in runs), np.uint64), 0
    for run in runs:
        values[first : first + len(run.hash)] = getattr(run, name)
        first += len(run.hash)
        run.forget()
    values.sort()
    return np.unique(values[1:][values[1:] == values[:-1]])


def _rows_with(runs: Sequence[Run], name: str, values: UInt64Array) -> list[Int64Array]:
    """Rows of each run that have one of the values, which are sorted, in a column."""
    return [_rows_among(run, getattr(run, name), values) for run in runs]


def _rows_among(run: Run, column: UInt64Array, values: UInt64Array) -> Int64Array:
    found = [np.zeros(0, np.int64)]
    for first in range(0, len(column) if len(values) else 0, _ROWS):
        some = column[first : first + _ROWS]
        place = np.minimum(np.searchsorted(values, some), len(values) - 1)
        found.append(np.flatnonzero(values[place] == some) + first)
    run.forget()
    return np.concatenate(found)


def _taken(runs: Sequence[Run], rows: Sequence[Int64Array], name: str) -> Any:
    """A column at these rows of each run, one after the other."""
    parts = []
    for run, some in zip(runs, rows, strict=True):
        parts.append(getattr(run, name)[some])
        run.forget()
    return np.concatenate(parts)


def refuse_keys_repeated_in(runs: Sequence[Run]) -> None:
    """As `refuse_repeated_keys`, for all rows of some runs, in memory of 9 bytes a row.

    Raises:
        DuplicateKey: naming some of them.
    """
    repeated = _repeated(runs, "hash")
    if not len(repeated):
        return
    rows = _rows_with(runs, "hash", repeated)
    hashes = _taken(runs, rows, "hash")
    keys = pa.chunked_array([run.keys.take(pa.array(some)) for run, some in zip(runs, rows, strict=True)])
    refuse_repeated_keys(hashes, keys, np.argsort(hashes))


def refuse_repeated_keys(hashes: UInt64Array, keys: BinaryArray, order: Int64Array) -> None:
    """Refuse documents with one key: neither their order nor their split would be told.

    Args:
        hashes: of the keys, uint64[n].
        keys: binary[n].
        order: rows by hash, int64[n].

    Raises:
        DuplicateKey: naming some of them.
    """
    pairs = np.flatnonzero(np.diff(hashes[order]) == 0)
    found = [(keys[int(order[at])].as_py(), keys[int(order[at + 1])].as_py()) for at in pairs.tolist()]
    repeated = sorted({key for key, other in found if key == other})
    if repeated:
        shown = [key.decode("utf-8", "backslashreplace") for key in repeated]
        raise DuplicateKey(
            f"{len(repeated):,} keys stand for more than one document: {', '.join(shown[:SHOWN])}",
            hint="a file of documents holds each key once; pack what comes twice once, or to another data set",
            where={"key": shown[0]},
        )
