"""How much memory may still be filled: what the machine has left, or what a control group leaves this process.

A container, a Slurm job and a systemd service are control groups with a limit. What is left of one is the limit less
what its processes use; pages of files that nobody has touched for long (`inactive_file`) give way at once and do not
count as used, as in the working set of Kubernetes.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MIN_BYTES = 64 << 20  # told even where nothing is left: less than this, and no process here could go on


class _Files(NamedTuple):
    """Names of the files of one version of control groups."""

    limit: str
    usage: str
    inactive: str  # key in memory.stat


_V2 = _Files("memory.max", "memory.current", "inactive_file")
_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_memory(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int:
    """Bytes that can be filled before something is swapped or killed: of the machine, or of the container if less.

    Args:
        proc, cgroups: where the system tells them.
    """
    return max(min([_machine(proc), *_left_of_groups(proc, cgroups)]), MIN_BYTES)


def _machine(proc: str) -> int:
    with suppress(OSError), open(os.path.join(proc, "meminfo"), encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # systems without /proc


def _left_of_groups(proc: str, cgroups: str) -> Iterator[int]:
    """What is left of each limit on this process: those of its group and of all groups around it."""
    for files, root, path in _memberships(proc, cgroups):
        while True:
            left = _left(os.path.join(root, path), files)
            if left is not None:
                yield left
            if not path:
                break
            path = os.path.dirname(path)


def _memberships(proc: str, cgroups: str) -> Iterator[tuple[_Files, str, str]]:
    """(file names, mount point, path below it) of the groups of this process that count memory.

    Inside a container the path may be that of the host, which is not there: then the mount point itself is the group.
    """
    with suppress(OSError), open(os.path.join(proc, "self", "cgroup"), encoding="utf-8", errors="replace") as file:
        for line in file:
            _, _, rest = line.rstrip("\n").partition(":")
            controllers, _, path = rest.partition(":")
            path = path.strip("/")
            if not controllers:
                yield _V2, cgroups, path
            elif "memory" in controllers.split(","):
                yield _V1, os.path.join(cgroups, "memory"), path


def _left(group: str, files: _Files) -> int | None:
    """The limit of one group less its working set; None where it has no limit, or does not tell."""
    with suppress(OSError, ValueError):
        limit = _number(group, files.limit)
        return limit - max(_number(group, files.usage) - _inactive(group, files.inactive), 0)
    return None


def _number(group: str, name: str) -> int:
    with open(os.path.join(group, name), encoding="ascii") as file:
        return int(file.read())  # `max` is no number: no limit


def _inactive(group: str, key: str) -> int:
    with suppress(OSError), open(os.path.join(group, "memory.stat"), encoding="ascii") as file:
        for line in file:
            name, _, count = line.partition(" ")
            if name == key:
                return int(count)
    return 0
