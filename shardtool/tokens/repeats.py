"""Documents that come twice: with one content, which `--dedup` leaves out, or with one key, which no plan can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.errors import DuplicateKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.model import BinaryArray, Int64Array, UInt64Array
    from shardtool.tokens.runs import Run

SHOWN = 3


def find_duplicates(runs: Sequence[Run]) -> tuple[Any, int]:
    """((hash, split hash) of every sequence whose content came before in the source, sorted, uint64[n, 2]; documents).

    A long document is several sequences, and counts once: only its first one has bytes of text.
    """
    high, low, hashes, split, tokens, text_bytes = (
        np.concatenate([getattr(run, name) for run in runs])
        for name in ("high", "low", "hash", "split", "tokens", "text_bytes")
    )
    place = np.concatenate([np.full(len(run.place), number, np.uint64) for number, run in enumerate(runs)])
    place = (place << np.uint64(32)) | np.concatenate([run.place for run in runs])
    order = np.lexsort((place, low, high))
    again = np.zeros(len(order), bool)
    again[1:] = (high[order][1:] == high[order][:-1]) & (low[order][1:] == low[order][:-1])
    rows = order[again]
    found = np.stack([hashes[rows], split[rows]], axis=1)
    is_first = (text_bytes[rows] > 0) | (tokens[rows] == 0)
    return found[np.lexsort((split[rows], hashes[rows]))], int(np.count_nonzero(is_first))


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
