"""Memory of mapped files: pages that were read count as memory of a process until it lets go of them.

`Column` is an array that lies in an unnamed file while it is made, so that a table of any length is written column by
column without being held.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import tempfile
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.storage.local import write_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MADV_DONTNEED = 4  # sys/mman.h of Linux


def let_go(address: int, size: int) -> None:
    """Give the pages of a mapped file back; whoever looks at them again reads them anew. Elsewhere than on Linux, none.

    Args:
        address: where the map of a file begins. Anything but a map of a file would lose its bytes.
        size: bytes of the map.
    """
    if size and (madvise := _madvise()) is not None:
        madvise(address, size, _MADV_DONTNEED)


@cache
def _madvise() -> Any:
    """madvise of the C library; None elsewhere than on Linux."""
    if sys.platform != "linux":
        return None
    found = ctypes.CDLL(None).madvise
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found


class Column:
    """Values appended to an unnamed file, then looked at through a map of it.

    Args:
        folder: where there is room for them; nothing of them stays there, even where the process is killed.
        dtype: of the values.
    """

    def __init__(self, folder: str, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        self._folder = folder
        self._count = 0
        self._map: mmap.mmap | None = None
        with write_errors(folder):
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115

    def __len__(self) -> int:
        return self._count

    def append(self, values: Any) -> None:
        """Take values, converted to the type of the column."""
        data = np.ascontiguousarray(values, self._dtype)
        view = data.view(np.uint8).data
        with write_errors(self._folder):
            while len(view):
                view = view[self._file.write(view) :]
        self._count += len(data)

    @property
    def values(self) -> NDArray[Any]:
        """All values, a view; no more can be appended."""
        if not self._count:
            return np.zeros(0, self._dtype)
        if self._map is None:
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(self._map, self._dtype)

    def forget(self) -> None:
        """Let go of the pages that were looked at."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Give the room back; views stay valid."""
        self._file.close()
