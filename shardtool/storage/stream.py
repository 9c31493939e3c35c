"""A file of any place as a Python file object: sequential reads in large pieces, seeks where a reader must."""

from __future__ import annotations

import io
import os
from typing import IO, TYPE_CHECKING, Any, cast

from shardtool.storage import is_remote
from shardtool.storage.files import place_of

if TYPE_CHECKING:
    from shardtool.storage.base import Place

PIECE_BYTES = 8 << 20  # of one request to an object store


class _Object(io.RawIOBase):
    """One object, read by range; it must stay the same while it is read."""

    def __init__(self, place: Place, path: str) -> None:
        super().__init__()
        self._place, self._path = place, path
        self._stat = place.stat(path)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._stat.num_bytes}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: max(self._stat.num_bytes - self._position, 0)]
        if not len(view):
            return 0
        got = self._place.read_into(self._path, self._position, view, version=self._stat.version)
        self._position += got
        return got


def open_binary(url: str) -> IO[bytes]:
    """The file at `url`, a local path or an object's URL, for reading.

    Raises:
        FileNotFoundError, PermissionError: as the place says.
        SourceChanged: while it is read, where an object became another one.
    """
    if not is_remote(url):
        return open(url, "rb")
    return cast("IO[bytes]", io.BufferedReader(_Object(*place_of(url)), PIECE_BYTES))
