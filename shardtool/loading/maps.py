"""Files mapped for reading: a view a file, no descriptor, and not more maps than the kernel gives a process.

A map of Python's `mmap` holds a descriptor as long as it lives, Arrow's does not: thousands of shards are mapped where
a process may open 64 files. Each takes one of the maps of a process, of which Linux allows 65,530 (vm.max_map_count);
beyond them even memory cannot be allocated any more, so that less is used here.
"""

from __future__ import annotations

import os
from functools import cache

import pyarrow as pa

from shardtool.errors import UsageProblem
from shardtool.storage.regular import check_regular

__all__ = ["check_maps", "map_file", "map_limit"]

MAX_MAP_COUNT = 65_530  # where the kernel does not say; Documentation/admin-guide/sysctl/vm.rst
_SETTING = "/proc/sys/vm/max_map_count"


def map_file(path: str) -> memoryview:
    """A read-only view of a whole file, which stays mapped while any view of it is held; b"" of an empty one.

    Raises:
        OSError: the file is gone or none, or nothing more can be opened (EMFILE) or mapped (no errno).
    """
    check_regular(path)
    with pa.memory_map(os.fsencode(path)) as file:
        return memoryview(file.read_buffer()).cast("B")  # Arrow's bytes are signed


@cache
def map_limit() -> int:
    """Maps for the shards of all data sets of this process: half of what the kernel allows."""
    try:
        with open(_SETTING, encoding="ascii") as file:
            return int(file.read()) // 2
    except (OSError, ValueError):
        return MAX_MAP_COUNT // 2


def check_maps(num_maps: int) -> None:
    """Refuse more maps than there may be.

    Raises:
        UsageProblem: says how many there may be.
    """
    if num_maps > map_limit():
        raise UsageProblem(
            f"{num_maps:,} shards to preload take a map each, and this process may have {map_limit():,}",
            hint=f"preload fewer shards (a node's share), pack larger ones (--shard-size), or sysctl "
            f"vm.max_map_count={4 * num_maps}",
        )
