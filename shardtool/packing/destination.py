"""The output folder: is it new, unfinished or finished, is it ours, and who else is writing to it.

Nothing that we did not write is ever removed: `--overwrite` takes away what a manifest or receipt of ours names.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING

import xxhash

from shardtool.emitted import EMITTED, our_emitted
from shardtool.errors import (
    AccessDenied,
    DestinationError,
    DestinationExists,
    FormatError,
    NoSpace,
    ShardtoolError,
    SourceNotFound,
)
from shardtool.manifest import LABELS, MANIFEST, load_manifest
from shardtool.names import DATA, HIDDEN, INDEX, index_path
from shardtool.packing.receipts import FOLDED, read_receipts, remove_loose
from shardtool.planning.plan_file import PLAN_JSON, load_plan
from shardtool.storage import is_remote, open_place
from shardtool.storage.cache import cache_folder
from shardtool.storage.files import Sizes, exists
from shardtool.storage.local import destination_error, free_space, is_temp_name, write_errors
from shardtool.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.model import ShardSpec
    from shardtool.planning.plan_file import StoredPlan
    from shardtool.storage.base import Place

SPOOL = "spool"
_SPOOLED = re.compile(r"[0-9]+\.bin")
HARMLESS = {"lost+found", ".DS_Store", HIDDEN}
IGNORED, FAILED, LOCK = f"{HIDDEN}/ignored.jsonl", f"{HIDDEN}/failed.jsonl", f"{HIDDEN}/lock"
REPLACING = f"{HIDDEN}/replacing"
INDEX_BYTES_A_PART = 64  # measured 57-62 with keys of 20 bytes; for the check of free space only
MAX_LISTED = 1_000  # objects looked at to tell whether a prefix is ours: one request


def state_of(out: str) -> str:
    """`new`, `unfinished` or `finished`; unfinished where only the manifest is damaged, since packing writes it again.

    Raises:
        DestinationExists: the folder or prefix holds files, and no data set of ours.
        DestinationError: it is no folder, or the store does not let us in.
    """
    place = open_place(out)
    names = _local_names(out) if place.is_local else _remote_names(place)
    if not names:
        return "new"
    if exists(place, MANIFEST):
        try:
            load_manifest(out)
        except FormatError as error:
            if not exists(place, PLAN_JSON):
                raise _not_ours(out, names) from error
        else:
            return "finished"
    if HIDDEN in names and (names <= HARMLESS or _is_begun(out)):
        return "unfinished"
    if names - HARMLESS:
        raise _not_ours(out, names)
    return "new"


def is_ours(out: str) -> bool:
    """Whether a data set of ours lies in `out`, or was begun there."""
    place = open_place(out)
    if place.is_local:
        return any(os.path.exists(place.shown(name)) for name in (MANIFEST, HIDDEN))
    return exists(place, MANIFEST) or next(iter(place.list(f"{HIDDEN}/")), None) is not None


def _local_names(out: str) -> set[str]:
    """Names in the folder; none where it does not exist."""
    if not os.path.lexists(out):
        return set()
    if not os.path.isdir(out):
        raise DestinationError(f"{out} is no folder", hint="name a folder that does not exist yet", where={"path": out})
    with write_errors(out):
        return set(os.listdir(out))


def _remote_names(place: Place) -> set[str]:
    """First components of some objects below the prefix, all of them where there are few."""
    try:
        return {stat.path.partition("/")[0] for stat in islice(place.list(), MAX_LISTED)}
    except (AccessDenied, SourceNotFound) as error:
        message = error.message if place.url in error.message else f"{place.url}: {error.message}"
        raise DestinationError(message, hint=error.hint, where=error.where) from error


def _is_begun(out: str) -> bool:
    return any(exists(open_place(out), path) for path in (PLAN_JSON, REPLACING))


def _not_ours(out: str, names: set[str]) -> DestinationExists:
    strangers = sorted(names - HARMLESS)
    return DestinationExists(
        f"{out} is not empty and holds no data set of ours: {', '.join(strangers[:3])}"
        + (f" and {len(strangers) - 3:,} more" if len(strangers) > 3 else ""),
        hint="write to a new folder; nothing there was touched",
        where={"path": out},
    )


@contextmanager
def locked(out: str, part: tuple[int, int] | None) -> Iterator[None]:
    """Hold the output against other runs on this machine; parts of one data set go side by side.

    The lock lies in the folder, or for an object store in the cache of this machine. Folders that only it needed go
    with it.

    Raises:
        DestinationError: another process packs to it.
    """
    root = lock_root(out)
    made = _missing_folders(root)
    held: list[tuple[str, int]] = []
    try:
        if part is None:
            held.append(_lock(out, LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB))
        else:
            held.append(_lock(out, LOCK, fcntl.LOCK_SH | fcntl.LOCK_NB))
            held.append(_lock(out, f"{LOCK}-part-{part[0]}-of-{part[1]}", fcntl.LOCK_EX | fcntl.LOCK_NB))
        yield
    finally:
        for path, fd in reversed(held):
            _unlock(path, fd)
        with suppress(OSError):  # what is not empty stays
            with suppress(OSError):
                os.rmdir(spool_folder(out))
            for folder in (os.path.join(root, HIDDEN), *made):
                os.rmdir(folder)


@contextmanager
def in_turn(out: str, step: str) -> Iterator[None]:
    """One part at a time on this machine; the others wait."""
    path, fd = _lock(out, f"{LOCK}-{step}", fcntl.LOCK_EX)
    try:
        yield
    finally:
        _unlock(path, fd)


def lock_root(out: str) -> str:
    """The local folder below which the locks of an output lie."""
    if not is_remote(out):
        return out
    return os.path.join(cache_folder(), "locks", xxhash.xxh3_64_hexdigest(open_place(out).url.encode()))


def _missing_folders(out: str) -> list[str]:
    """`out` and the folders above it that do not exist, the deepest first."""
    missing, path = [], os.path.abspath(out)
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing


def _lock(out: str, name: str, operation: int) -> tuple[str, int]:
    path = os.path.join(lock_root(out), name)
    while True:
        fd = _open_lock(path)
        try:
            fcntl.flock(fd, operation)
        except BlockingIOError as error:
            os.close(fd)
            raise DestinationError(
                f"another shardtool is packing to {out}",
                hint="wait for it, or stop it; to share the work of one data set use --part i/n",
                where={"path": out},
            ) from error
        except OSError:
            return path, fd  # a file system without locks; shards are still written atomically
        except BaseException:
            os.close(fd)
            raise
        if _is_at(path, fd):
            return path, fd
        os.close(fd)  # whoever held it took the file away: the next one is the lock


def _open_lock(path: str) -> int:
    with write_errors(path):
        while True:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with suppress(FileNotFoundError):  # whoever left last removed the folder
                return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _is_at(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _unlock(path: str, fd: int) -> None:
    """Let go of a lock; the last one to do so removes its file."""
    is_shared = False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        is_shared = True
    except OSError:
        pass  # a file system without locks
    if not is_shared:
        with suppress(OSError):
            os.unlink(path)
    os.close(fd)


def remove_dataset(out: str, *, durable: bool) -> None:
    """Remove what our manifest, plan and receipts in `out` name, the manifest first; everything else stays.

    The folder stays ours beside files of others, by a mark that `remove_leftovers` takes away.
    """
    place = open_place(out)
    with write_errors(out):
        paths = our_files(out)
        emitted = our_emitted(out)
        place.put(REPLACING, b"", tag="replacing", durable=durable)
        place.remove([MANIFEST])
        place.remove(paths)
        place.remove([*emitted, EMITTED])
        remove_loose(out)
        place.sweep_all()
        plan_files = [stat.path for folder in ("plan", "provenance") for stat in place.list(f"{HIDDEN}/{folder}/")]
        place.remove([FOLDED, IGNORED, FAILED, LABELS, *plan_files])
        place.remove([PLAN_JSON])
        if place.is_local:
            _remove_empty_folders(out, emitted)


def our_files(out: str) -> set[str]:
    """Shards and indexes that the manifest, the plan or a receipt of ours in `out` names, there or not."""
    paths: set[str] = set()
    with suppress(ShardtoolError):
        manifest = load_manifest(out)
        paths.update(record.path for record in manifest.side_files)
        for shard in manifest.shards:
            paths.update(record.path for record in shard.files)
            paths.update([shard.index.path] if shard.index else [])
    with suppress(ShardtoolError):  # a shard may be there without its receipt
        paths.update(_planned_files(load_plan(out)))
    for receipt in read_receipts(out).values():
        paths.update(record.path for record in (*receipt.files, receipt.index))
    return {path for path in paths if not path.startswith("/") and ".." not in path.split("/")}


def _planned_files(stored: StoredPlan | None) -> Iterator[str]:
    shards = stored.shards if stored else ()
    for number, spec in enumerate(shards):
        yield spec.path
        if spec.path.endswith(".bin"):
            yield f"{spec.path[:-4]}.idx"
        yield index_path(number, len(shards))


def bytes_of(out: str, paths: Iterable[str]) -> int:
    """Bytes that removing `paths` would free."""
    sizes = Sizes(open_place(out))
    return sum(sizes.of(path) or 0 for path in paths)


def remove_leftovers(out: str) -> None:
    """Remove temp files, uploads and locks of killed attempts; called when the manifest is published."""
    place = open_place(out)
    place.sweep_all()
    place.remove([REPLACING])
    remove_spool(out)
    folder = os.path.join(lock_root(out), HIDDEN)
    for name in os.listdir(folder):
        if name.startswith(f"{os.path.basename(LOCK)}-"):
            path = os.path.join(folder, name)
            with suppress(OSError):
                _unlock(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))  # removes it, unless another run holds it


def spool_folder(out: str) -> str:
    """Where sources that must be decoded are unpacked to, until the data set is published."""
    if is_remote(out):
        return os.path.join(cache_folder(), "spool", xxhash.xxh3_64_hexdigest(out.rstrip("/").encode()))
    return os.path.join(os.path.abspath(out), HIDDEN, SPOOL)


def remove_spool(out: str) -> None:
    """Remove what was unpacked."""
    folder = spool_folder(out)
    with suppress(FileNotFoundError):
        for name in os.listdir(folder):
            if _SPOOLED.fullmatch(name) or is_temp_name(name):
                os.unlink(os.path.join(folder, name))
    with suppress(OSError):
        os.rmdir(folder)


def _remove_empty_folders(out: str, emitted: list[str]) -> None:
    for folder in {os.path.dirname(path) for path in emitted} - {""}:
        with suppress(OSError):
            os.rmdir(os.path.join(out, folder))
    for top in (DATA, INDEX, f"{HIDDEN}/plan"):
        for folder, _, _ in os.walk(os.path.join(out, top), topdown=False):
            with suppress(OSError):
                os.rmdir(folder)


def check_space(out: str, specs: Iterable[ShardSpec], num_parts: int, *, reclaimed: int = 0) -> None:
    """Refuse early what cannot fit, once `reclaimed` bytes are freed; an object store tells no limit.

    Raises:
        NoSpace: fewer bytes or inodes are free than the shards still to be packed take.
    """
    if is_remote(out):
        return
    wanted, inodes = INDEX_BYTES_A_PART * num_parts, 16
    for spec in specs:
        wanted += spec.num_bytes
        inodes += 3
    try:
        free, free_inodes = free_space(out)
    except OSError as error:
        raise destination_error(error, out) from error
    free += reclaimed
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
    "bytes_of",
    "check_space",
    "in_turn",
    "is_ours",
    "load_plan",
    "locked",
    "our_files",
    "remove_dataset",
    "remove_leftovers",
    "remove_spool",
    "spool_folder",
    "state_of",
]
