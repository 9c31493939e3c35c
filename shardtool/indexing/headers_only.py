"""A tar that passes by once, kept without the contents of its members: a sparse file of the same length.

What a walk over headers looks at is where it was: headers, extension headers with their data, contents of at most one
block, and all that follows the end or a header that makes no sense. Large contents are holes, which take no space.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardtool.formats.tar_header import BLOCK, padded

if TYPE_CHECKING:
    from typing import BinaryIO

_EXTENSIONS = b"xXgLK"  # what follows such a header belongs to the next one
_PAX = b"xX"
_MAX_EXTENSION_BYTES = 1 << 20  # a longer one is refused by the walk


class HeadersOnly:
    """Where a tar is written to, in pieces of any length; `finish` gives the file its length."""

    def __init__(self, file: BinaryIO) -> None:
        self._fd = file.fileno()
        self._at = 0  # bytes that have been put, or passed over
        self._hole = 0  # bytes to pass over
        self._held = bytearray()  # what has come of a header, or of one with the data that is kept with it
        self._wanted = BLOCK  # bytes of it
        self._kind = b""  # of a header that is held with its data
        self._pax_size: int | None = None  # of the next member
        self._keeps_all = False

    @property
    def at(self) -> int:
        """Bytes that were taken, or passed over."""
        return self._at + len(self._held)

    @property
    def hole(self) -> int:
        """Bytes of contents that come next and are not kept; `skip` may stand for them."""
        return self._hole

    def skip(self, count: int) -> None:
        """Pass over `count` bytes of the hole."""
        assert count <= self._hole
        self._hole -= count
        self._at += count

    def write(self, data: bytes | memoryview) -> None:
        """Take the next bytes."""
        view = memoryview(data)
        while view:
            if self._keeps_all:
                self._put(view)
                return
            if self._hole:
                count = min(self._hole, len(view))
                self.skip(count)
            else:
                count = min(self._wanted - len(self._held), len(view))
                self._held += view[:count]
            view = view[count:]
            if len(self._held) == self._wanted:
                self._step()

    def finish(self) -> None:
        """Write what is left; the file is as long as all that was taken."""
        self._flush()
        os.ftruncate(self._fd, self._at)

    def _step(self) -> None:
        """A header is there, or one with its data: put it, unless data must come with it."""
        if self._wanted == BLOCK:
            header = bytes(self._held)
            size, self._kind = _size_of(header), header[156:157]
            if size is None or (self._kind in _EXTENSIONS and size > _MAX_EXTENSION_BYTES):
                self._keeps_all = True
                size = 0
            elif self._kind not in _EXTENSIONS:
                size = size if self._pax_size is None else self._pax_size
                self._pax_size = None
                self._hole = int(padded(size)) if size > BLOCK else 0
            if size and not self._hole:
                self._wanted = BLOCK + int(padded(size))
                return
        elif self._kind in _PAX and (stated := _stated_size(bytes(self._held[BLOCK:]))) is not None:
            self._pax_size = stated
        self._flush()

    def _flush(self) -> None:
        self._put(memoryview(self._held))
        self._held, self._wanted = bytearray(), BLOCK

    def _put(self, view: memoryview) -> None:
        """Write at the current place; zeros are left a hole."""
        at, self._at = self._at, self._at + len(view)
        if bytes(view).count(0) == len(view):
            return
        while view:
            count = os.pwrite(self._fd, view, at)
            view, at = view[count:], at + count


def _size_of(header: bytes) -> int | None:
    """Bytes of data that a header states; None where it states none in a form that is known."""
    text = header[124:136]
    if text[0] == 0x80:
        return int.from_bytes(text[1:], "big")
    digits = text.strip(b" \0")
    return int(digits, 8) if digits and not digits.strip(b"01234567") else None


def _stated_size(records: bytes) -> int | None:
    """The last `size` among the records `LENGTH KEY=VALUE` and newline of a pax header."""
    at, found = 0, None
    while (space := records.find(b" ", at)) > at and (digits := records[at:space]).isdigit() and int(digits):
        key, _, value = records[space + 1 : at + int(digits) - 1].partition(b"=")
        if key == b"size" and value.isdigit():
            found = int(value)
        at += int(digits)
    return found
