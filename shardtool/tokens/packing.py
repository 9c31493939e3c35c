"""Documents -> sequences of exactly S tokens: one after the other, or with as few cuts as fit. Pure.

`best_fit` cuts only documents longer than S, and lays the pieces into the fullest sequence that has room.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from shardtool.model import Int64Array

BLOCK_DOCUMENTS = 1 << 15


@dataclass(frozen=True)
class Pieces:
    """Where runs of documents lie in sequences; piece i goes to `sequence[i]`, in the order given."""

    document: Int64Array
    start: Int64Array  # first token, in the document
    length: Int64Array
    sequence: Int64Array
    num_sequences: int


def best_fit(lengths: Int64Array, context: int) -> Pieces:
    """Pieces of a block of documents, best fit by decreasing length; equal lengths stay in order.

    Sequences are numbered by their first document, so that the shuffled order shows through.

    Args:
        lengths: tokens of each document, int64[n].
        context: tokens of a sequence.
    """
    counts = -(-lengths // context)
    document = np.repeat(np.arange(len(lengths)), counts)
    start = (np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)) * context
    length = np.minimum(lengths[document] - start, context)
    bins = np.empty(len(document), np.int64)
    used = _fill(length, context, bins)
    firsts = np.full(used, len(document))
    np.minimum.at(firsts, bins, np.arange(len(document)))
    rank = np.empty(used, np.int64)
    rank[np.argsort(firsts)] = np.arange(used)
    sequence = rank[bins]
    order = np.argsort(sequence, kind="stable")
    return Pieces(document[order], start[order], length[order], sequence[order], used)


def _fill(length: Int64Array, context: int, bins: Int64Array) -> int:
    """Put each piece into the bin with the least room that is enough; the number of bins."""
    rooms: list[int] = []  # sorted, each once
    open_bins: dict[int, list[int]] = {}  # room -> bins
    used = 0
    for piece in np.argsort(-length, kind="stable").tolist():
        size = int(length[piece])
        place = bisect_left(rooms, size)
        if place == len(rooms):
            number, room = used, context
            used += 1
        else:
            room = rooms[place]
            stack = open_bins[room]
            number = stack.pop()
            if not stack:
                del rooms[place], open_bins[room]
        bins[piece] = number
        if left := room - size:
            if left not in open_bins:
                open_bins[left] = []
                insort(rooms, left)
            open_bins[left].append(number)
    return used


def blocks_of(lengths: Int64Array, block_tokens: int) -> Int64Array:
    """int64[b + 1]: bounds of blocks of about `block_tokens` tokens and at most 2^15 documents; whole documents."""
    ends = np.cumsum(lengths)
    bounds = [0]
    while bounds[-1] < len(lengths):
        first = bounds[-1]
        before = int(ends[first - 1]) if first else 0
        stop = int(np.searchsorted(ends, before + block_tokens, side="right"))
        bounds.append(min(max(stop, first + 1), first + BLOCK_DOCUMENTS, len(lengths)))
    return np.array(bounds, np.int64)
