"""Freed memory back to the system: a process that is done with much of it is measured by what it has at its peak."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

import pyarrow as pa

__all__ = ["give_back"]


def give_back() -> None:
    """Give memory that is freed back to the system, Arrow's and that of the C library, where the latter can do that.

    glibc keeps what was freed between what is in use, and after the first large array that was freed even arrays of
    megabytes. A call takes about as long as 100,000 rows take to be parsed.
    """
    pa.default_memory_pool().release_unused()
    if (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> Any:
    """malloc_trim of glibc; None elsewhere."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
