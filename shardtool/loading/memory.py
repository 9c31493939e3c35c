"""Freed memory that stays with a loader worker, so that the next batch is not written into fresh pages.

A batch of big samples is allocated and freed as a whole; glibc gives such memory back each time, and every page is
faulted in again: 28 faults for a picture of 110 KB, more than copying it costs (measured: half the CPU time).
"""

from __future__ import annotations

import ctypes
import sys

__all__ = ["reuse_freed_memory"]

KEPT_BYTES = 256 << 20
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
MAX_MMAP_THRESHOLD = 32 << 20  # the most that glibc takes


def reuse_freed_memory() -> bool:
    """Keep up to 256 MiB of freed memory in this process; False where the C library cannot. Loader workers do it."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MAX_MMAP_THRESHOLD) and mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
