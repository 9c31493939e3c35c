"""The output folder: is it new, unfinished or finished, is it ours, and who else is writing to it.

Nothing that we did not write is ever removed: `--overwrite` takes away what a manifest or receipt of ours names.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from shardtool.errors import DestinationError, DestinationExists, NoSpace, ShardtoolError
from shardtool.manifest import LABELS, MANIFEST, load_manifest
from shardtool.names import DATA, HIDDEN, INDEX
from shardtool.plan_file import PLAN_JSON, load_plan
from shardtool.receipts import FOLDED, read_receipts, remove_loose
from shardtool.storage.local import TEMP_PREFIX, destination_error, free_space, write_errors
from shardtool.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.model import ShardSpec

HARMLESS = {"lost+found", ".DS_Store", HIDDEN}
IGNORED, FAILED, LOCK = f"{HIDDEN}/ignored.jsonl", f"{HIDDEN}/failed.jsonl", f"{HIDDEN}/lock"
INDEX_BYTES_A_PART = 64  # measured 57-62 with keys of 20 bytes; for the check of free space only


def state_of(out: str) -> str:
    """`new`, `unfinished` or `finished`.

    Raises:
        DestinationExists: the folder holds files, and no data set of ours.
        DestinationError: it is no folder.
    """
    if not os.path.lexists(out):
        return "new"
    if not os.path.isdir(out):
        raise DestinationError(f"{out} is no folder", hint="name a folder that does not exist yet", where={"path": out})
    with write_errors(out):
        names = set(os.listdir(out))
    if MANIFEST in names:
        load_manifest(out)
        return "finished"
    if HIDDEN in names and (os.path.exists(os.path.join(out, PLAN_JSON)) or names <= HARMLESS):
        return "unfinished"
    strangers = sorted(names - HARMLESS)
    if strangers:
        raise DestinationExists(
            f"{out} is not empty and holds no data set of ours: {', '.join(strangers[:3])}"
            + (f" and {len(strangers) - 3:,} more" if len(strangers) > 3 else ""),
            hint="write to a new folder; nothing there was touched",
            where={"path": out},
        )
    return "new"


@contextmanager
def locked(out: str, part: tuple[int, int] | None) -> Iterator[None]:
    """Hold the output against a second run on this machine; parts of one run go side by side.

    Raises:
        DestinationError: another process packs to it.
    """
    name = LOCK if part is None else f"{LOCK}-part-{part[0]}-of-{part[1]}"
    path = os.path.join(out, name)
    with write_errors(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _take_lock(fd, out)
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)  # still held: whoever waits for it finds another file
        os.close(fd)


def _take_lock(fd: int, out: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DestinationError(
            f"another shardtool is packing to {out}",
            hint="wait for it, or stop it; to share the work of one data set use --part i/n",
            where={"path": out},
        ) from error
    except OSError:
        return  # a file system without locks; shards are still written atomically


def remove_dataset(out: str) -> None:
    """Remove what our manifest, plan and receipts in `out` name, the manifest first; everything else stays."""
    with write_errors(out):
        paths = _our_files(out)
        _unlink(out, [MANIFEST])
        _unlink(out, paths)
        remove_loose(out)
        _remove_temps(out)
        _unlink(out, [FOLDED, PLAN_JSON, IGNORED, FAILED, LABELS])
        _unlink(out, _plan_files(out))
        _remove_empty_folders(out)


def _our_files(out: str) -> set[str]:
    paths: set[str] = set()
    with suppress(ShardtoolError):
        for shard in load_manifest(out).shards:
            paths.update(record.path for record in shard.files)
            paths.update([shard.index.path] if shard.index else [])
    for receipt in read_receipts(out).values():
        paths.update(record.path for record in (*receipt.files, receipt.index))
    return {path for path in paths if not path.startswith("/") and ".." not in path.split("/")}


def _plan_files(out: str) -> list[str]:
    with suppress(OSError):
        return [f"{HIDDEN}/plan/{name}" for name in os.listdir(os.path.join(out, HIDDEN, "plan"))]
    return []


def _unlink(out: str, paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(out, path))


def _remove_temps(out: str) -> None:
    for top in (out, os.path.join(out, DATA), os.path.join(out, INDEX), os.path.join(out, HIDDEN)):
        for folder, _, names in os.walk(top):
            for name in names:
                if name.startswith(TEMP_PREFIX):
                    with suppress(OSError):
                        os.unlink(os.path.join(folder, name))
            if top == out:
                break


def remove_leftovers(out: str) -> None:
    """Remove temp files of killed attempts; called when the manifest is published."""
    _remove_temps(out)


def _remove_empty_folders(out: str) -> None:
    for top in (DATA, INDEX, f"{HIDDEN}/plan"):
        for folder, _, _ in os.walk(os.path.join(out, top), topdown=False):
            with suppress(OSError):
                os.rmdir(folder)


def check_space(out: str, specs: Iterable[ShardSpec], num_parts: int) -> None:
    """Refuse early what cannot fit.

    Raises:
        NoSpace: fewer bytes or inodes are free than the shards still to be packed take.
    """
    wanted, inodes = INDEX_BYTES_A_PART * num_parts, 16
    for spec in specs:
        wanted += spec.num_bytes
        inodes += 3
    try:
        free, free_inodes = free_space(out)
    except OSError as error:
        raise destination_error(error, out) from error
    if wanted > free:
        raise NoSpace(
            f"{format_bytes(wanted)} are needed in {out}, {format_bytes(free)} are free",
            hint="free some space, or write elsewhere; nothing was written",
            where={"path": out},
        )
    if inodes > free_inodes:
        raise NoSpace(
            f"{inodes:,} inodes are needed in {out}, {free_inodes:,} are free",
            hint="a larger --shard-size makes fewer files; nothing was written",
            where={"path": out},
        )


__all__ = [
    "FAILED",
    "IGNORED",
    "check_space",
    "load_plan",
    "locked",
    "remove_dataset",
    "remove_leftovers",
    "state_of",
]
