"""Is a tar shard the one that names and sizes call for? Every header against the one that would be written today.

Stricter than reading headers: a shard of ours has no freedom, so that each header must be equal byte for byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardtool.formats.tar import layout_of
from shardtool.formats.tar_header import BLOCK, extension, headers
from shardtool.samples import member_names
from shardtool.storage.files import open_stream

if TYPE_CHECKING:
    from shardtool.model import Int64Array, ShardRows


class HeaderCheck:
    """Compares the headers that pass by with those that `rows` call for, all of a piece at once.

    Args:
        rows: names and sizes of the members.
        part_offset: where their payload lies, int64[num_parts].
    """

    def __init__(self, rows: ShardRows, part_offset: Int64Array) -> None:
        self._members, self._sizes = member_names(rows), rows.sizes
        self._header = part_offset - BLOCK
        self._extra = layout_of(rows, self._members).extension
        self._bad: list[int] = []

    def look(self, base: int, piece: memoryview) -> None:
        """Take a piece of the shard that begins at byte `base`, a multiple of 512."""
        end = base + len(piece) // BLOCK * BLOCK
        first, last = np.searchsorted(self._header, [base, end]).tolist()
        if first == last:
            return
        blocks = np.frombuffer(piece, np.uint8, end - base).reshape(-1, BLOCK)
        found = blocks[(self._header[first:last] - base) // BLOCK]
        wanted = headers(self._members[first:last], self._sizes[first:last])
        if not np.array_equal(found, wanted):
            self._bad += (first + np.flatnonzero((found != wanted).any(axis=1))).tolist()

    def bad_parts(self, path: str) -> list[int]:
        """Rows of the parts whose header is another one, or whose pax header in the file `path` is.

        With "" for `path`, where the shard is compressed, pax headers are left to the checksums of its frames.
        """
        bad = set(self._bad)
        rows = np.flatnonzero(self._extra).tolist() if path else []
        if not rows:
            return sorted(bad)
        with open_stream(path) as file:
            for row in rows:
                size = int(self._extra[row])
                found = file.pread(size, int(self._header[row]) - size)
                if found != extension(self._members[row], int(self._sizes[row])):
                    bad.add(row)
        return sorted(bad)
