"""Are the contents of parts what their columns promise: UTF-8 in a text column, a number in an integer column?

Readers of formats with types decode a column without asking; a part that they cannot decode would end their run.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

import numpy as np

from shardtool import columns
from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.formats.scatter import Bytes
    from shardtool.model import Int64Array, ShardRows

KIND_WORDS = {"string": "UTF-8 text", "int64": "a number"}
SHOWN_BYTES = 40
PLAIN_DIGITS, PLAIN_TEXT = 18, 64  # bytes of parts that numpy looks at; where one is longer, one by one


class ContentCheck:
    """Checks payload that passes by.

    Args:
        rows: the shard.
        kinds: column kind of each part name: `binary`, `string` or `int64`.
    """

    def __init__(self, rows: ShardRows, kinds: dict[bytes, str]) -> None:
        self._rows = rows
        encoded = rows.names.dictionary_encode()
        self._by_code = [kinds[name] for name in columns.to_list(encoded.dictionary)]
        self._codes = encoded.indices.to_numpy()

    def look(self, low: int, starts: Int64Array, slab: Bytes) -> None:
        """Take the parts from `low` on, which lie at `starts` of the slab, int64[n].

        Raises:
            UsageProblem: one of them is not what its column promises.
        """
        sizes, codes = self._rows.sizes[low : low + len(starts)], self._codes[low : low + len(starts)]
        wrong: list[int] = []
        for code, kind in enumerate(self._by_code):
            if kind not in KIND_WORDS:
                continue
            places = np.flatnonzero(codes == code)
            begins, lengths = starts[places], sizes[places]
            if not _are_plain(kind, slab, begins, lengths):
                view, ends = slab.data, begins + lengths
                runs = zip(places.tolist(), begins.tolist(), ends.tolist(), strict=True)
                wrong += [place for place, begin, end in runs if not _fits(kind, bytes(view[begin:end]))][:1]
        if wrong:
            begin, size = int(starts[min(wrong)]), int(sizes[min(wrong)])
            self._refuse(low + min(wrong), slab[begin : begin + min(size, SHOWN_BYTES)].tobytes())

    def pieces(self, part: int, pieces: Iterable[memoryview]) -> Iterator[memoryview]:
        """The pieces of one large part, each checked before it is passed on; raises as `look` does."""
        kind = self._by_code[self._codes[part]]
        if kind == "int64" and not 0 < int(self._rows.sizes[part]) <= SHOWN_BYTES:
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
        kind = KIND_WORDS[self._by_code[self._codes[part]]]
        raise UsageProblem(
            f"{key}.{name} is not {kind}, as other parts called {name} are taken to be: it begins with {begin!r}",
            hint=f"--schema {name}=binary packs {name} as bytes; with --overwrite, or to a new folder",
            where={"key": key, "part": name},
        )


def _are_plain(kind: str, slab: Bytes, starts: Int64Array, sizes: Int64Array) -> bool:
    """Whether each of these parts is a few decimal digits, or a short text in ASCII; there is more that fits a kind."""
    if len(sizes) == 0:
        return True
    is_number, largest = kind == "int64", int(sizes.max())
    if largest > (PLAIN_DIGITS if is_number else PLAIN_TEXT) or (is_number and not sizes.min()):
        return False
    ends = np.cumsum(sizes)
    found = slab[np.repeat(starts - (ends - sizes), sizes) + np.arange(int(ends[-1]))]
    return bool(((found - np.uint8(ord("0"))).max() < 10) if is_number else (found.max(initial=0) < 0x80))


def _fits(kind: str, payload: bytes) -> bool:
    try:
        if kind == "string":
            payload.decode("utf-8")
        else:
            int(payload)
    except ValueError:
        return False
    return True
