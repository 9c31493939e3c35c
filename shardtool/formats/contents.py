"""Are the contents of parts what their columns promise: UTF-8 in a text column, a number in an integer column?

Readers of formats with types decode a column without asking; a part that they cannot decode would end their run.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from shardtool import columns
from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardtool.model import ShardRows

KIND_WORDS = {"string": "UTF-8 text", "int64": "a number"}
SHOWN_BYTES = 40


class ContentCheck:
    """Checks payload that passes by.

    Args:
        rows: the shard.
        kinds: column kind of each part name: `binary`, `string` or `int64`.
    """

    def __init__(self, rows: ShardRows, kinds: dict[bytes, str]) -> None:
        self._rows = rows
        encoded = rows.names.dictionary_encode()
        by_code = [kinds[name] for name in columns.to_list(encoded.dictionary)]
        self._kinds = [by_code[code] for code in encoded.indices.to_numpy().tolist()]
        self._is_needed = any(kind in KIND_WORDS for kind in by_code)

    def look(self, low: int, starts: Sequence[int], slab: memoryview) -> None:
        """Take the parts from `low` on, which lie at `starts` of the slab.

        Raises:
            UsageProblem: one of them is not what its column promises.
        """
        if not self._is_needed:
            return
        sizes = self._rows.sizes[low : low + len(starts)].tolist()
        kinds = self._kinds[low : low + len(starts)]
        for place, (start, size, kind) in enumerate(zip(starts, sizes, kinds, strict=True)):
            if kind in KIND_WORDS and not _fits(kind, bytes(slab[start : start + size])):
                self._refuse(low + place, bytes(slab[start : start + min(size, SHOWN_BYTES)]))

    def pieces(self, part: int, pieces: Iterable[memoryview]) -> Iterator[memoryview]:
        """The pieces of one large part, each checked before it is passed on; raises as `look` does."""
        kind = self._kinds[part]
        if kind == "int64" and int(self._rows.sizes[part]) > SHOWN_BYTES:
            self._refuse(part, b"")
        decoder = codecs.getincrementaldecoder("utf-8")()
        for piece in pieces:
            try:
                if kind == "string":
                    decoder.decode(piece)
                elif kind == "int64":
                    int(bytes(piece))
            except ValueError:
                self._refuse(part, bytes(piece[:SHOWN_BYTES]))
            yield piece
        if decoder.getstate()[0]:
            self._refuse(part, decoder.getstate()[0])

    def _refuse(self, part: int, begin: bytes) -> None:
        rows, sample = self._rows, int(self._rows.part_start.searchsorted(part, side="right")) - 1
        key, name = (
            value.as_py().decode("utf-8", "backslashreplace") for value in (rows.keys[sample], rows.names[part])
        )
        raise UsageProblem(
            f"{key}.{name} is not {KIND_WORDS[self._kinds[part]]}, as other parts called {name} are taken to be:"
            f" it begins with {begin!r}",
            hint=f"--schema {name}=binary packs {name} as bytes; with --overwrite, or to a new folder",
            where={"key": key, "part": name},
        )


def _fits(kind: str, payload: bytes) -> bool:
    try:
        if kind == "string":
            payload.decode("utf-8")
        else:
            int(payload)
    except ValueError:
        return False
    return True
