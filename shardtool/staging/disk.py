"""What the target's file system can do: its kind, its room, and how bytes get there and out of the page cache."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from functools import cache
from typing import Any

from shardtool.errors import NoSpace
from shardtool.storage.local import create, destination_error, free_space, write_errors
from shardtool.units import format_bytes

_FILE_SYSTEMS = {  # f_type of statfs, include/uapi/linux/magic.h
    0x01021994: "tmpfs",
    0x6969: "nfs",
    0x794C7630: "overlay",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x65735546: "fuse",
    0x00C36400: "ceph",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x19830326: "beegfs",
}
_COSTS = {
    "tmpfs": "it is memory: what is staged there is no longer free for training",
    "overlay": "it is the writable layer of a container: mount a volume of the node there",
}
_SHARED = "it is shared over a network: a node gains nothing, and several nodes wait for one lock"
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def file_system(path: str) -> str:
    """Name of the file system at `path`, "" where it is an ordinary one or the system does not tell."""
    if sys.platform != "linux":
        return ""
    buffer = ctypes.create_string_buffer(256)  # struct statfs; f_type is its first word
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    if _libc().statfs(os.fsencode(path), buffer) != 0:
        return ""
    kind = int.from_bytes(buffer.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) & 0xFFFFFFFF
    return _FILE_SYSTEMS.get(kind, "")


def warning_for(path: str) -> str:
    """A sentence about a target that is not a local disk; "" where it is one."""
    kind = file_system(path)
    return f"{path} is on {kind}: {_COSTS.get(kind, _SHARED)}" if kind else ""


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def allocate(fd: int, size: int, path: str) -> None:
    """Give a file its size, and its room where the file system can reserve any.

    `os.posix_fallocate` would write to every block of a file system that cannot; this asks the kernel alone.

    Raises:
        NoSpace: there is no room.
    """
    if sys.platform == "linux" and size > 0:
        result = _libc().fallocate(fd, 0, ctypes.c_int64(0), ctypes.c_int64(size))
        number = ctypes.get_errno()
        if result != 0 and number not in _UNSUPPORTED:
            raise destination_error(OSError(number, os.strerror(number)), path)
    with write_errors(path):
        os.ftruncate(fd, size)


def check_room(folder: str, num_bytes: int, num_files: int, reserve: int) -> None:
    """See that so many bytes and files fit, with `reserve` bytes left over.

    Raises:
        NoSpace: they do not.
    """
    free_bytes, free_inodes = free_space(folder)
    where = {"path": folder}
    if num_bytes and num_bytes + reserve > free_bytes:
        kept = f" and {format_bytes(reserve)} stay free" if reserve else ""
        raise NoSpace(
            f"{folder} has {format_bytes(free_bytes)} free, {format_bytes(num_bytes)} are needed{kept}",
            hint="free some space, name another DST, or keep a part at a time: --budget",
            where=where,
        )
    if num_files > free_inodes:
        raise NoSpace(
            f"{folder} has {free_inodes:,} inodes free, {num_files:,} are needed",
            hint="free some inodes, or name another DST",
            where=where,
        )


def write_at(fd: int, view: memoryview, offset: int, path: str) -> None:
    """Write all of `view` at `offset`."""
    try:
        count = os.pwrite(fd, view, offset)
        while count < len(view):
            view, offset = view[count:], offset + count
            count = os.pwrite(fd, view, offset)
    except OSError as error:
        raise destination_error(error, path) from error


def open_part(path: str) -> int:
    """A descriptor of a file to be read and written; it and its folder are made where they are not there."""
    with write_errors(path):
        return create(path, os.O_RDWR)


def move(path: str, final: str) -> None:
    """Rename a file; the new folder is made where it is not there."""
    try:
        os.rename(path, final)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(final), exist_ok=True)
        os.rename(path, final)


def forget(fd: int) -> None:
    """Drop a file's clean pages from the cache."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
