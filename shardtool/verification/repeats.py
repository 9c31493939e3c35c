"""Equal values in several arrays: the search for keys that two shards have, by their hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.model import Int64Array, UInt64Array


def find_repeats(hashes: Sequence[UInt64Array]) -> tuple[Int64Array, Int64Array]:
    """Places of values that occur again: (place, place of the next equal one), each int64[n, 2] of (array, row).

    The arrays may be empty. Equal hashes are candidates only: two different keys may share one.
    """
    arrays = np.repeat(np.arange(len(hashes)), [len(values) for values in hashes])
    rows = np.concatenate([np.arange(len(values)) for values in hashes] or [np.zeros(0, np.int64)])
    values = np.concatenate([np.zeros(0, np.uint64), *hashes])
    order = np.argsort(values, kind="stable")
    again = np.flatnonzero(values[order[1:]] == values[order[:-1]])
    places = np.stack([arrays[order], rows[order]], axis=1).astype(np.int64)
    return places[again], places[again + 1]
