"""Files that a list names, one path a line or NUL separated, relative to one source folder; each is stat'ed.

What is named is meant: hidden names are taken. Junk, globs, links and everything else follow the rules of a tree.
Missing, repeated and outside paths are failed entries and problems.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardtool.errors import AccessDenied, SourceNotFound, UsageProblem
from shardtool.sources.found import Folder, Found
from shardtool.sources.junk import NameRules
from shardtool.sources.tree import ALONE_S, BLOCK, WalkRules, walk_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.model import ScanResult
    from shardtool.workers import WorkerPool


@dataclass(frozen=True)
class ListingSource:
    """The files that a list names.

    Args:
        root: absolute path of the folder that the paths are relative to.
        paths: as in the list.
        names: what to leave out by name; its `hidden` does not matter.
        links: "follow", "skip" or "error".
        skip_errors: entries that cannot be read are counted as failed, and are no fatal problem.
        pool: spreads the stat calls; None makes them in this process.
        alone_s: seconds before the pool is used.
    """

    root: str
    paths: list[bytes]
    names: NameRules = field(default_factory=NameRules)
    links: str = "follow"
    skip_errors: bool = False
    pool: WorkerPool | None = None
    alone_s: float = ALONE_S

    def scan(self) -> ScanResult:
        """Every path of the list, sorted."""
        names, base = replace(self.names, hidden=True), os.fsencode(self.root)
        found = Found()
        folders = list(_tasks(_by_folder(self.paths, base, found), base, names, found))
        found.merge(walk_all(WalkRules((base,), names, self.links, is_listing=True), folders, self.pool, self.alone_s))
        return found.result((self.root,), self.names.include, skip_errors=self.skip_errors)


def read_list(where: str, *, null_separated: bool = False) -> list[bytes]:
    """The paths of a list, in its order; empty lines are skipped, Windows line ends are taken off.

    Args:
        where: a file, or `-` for stdin.
        null_separated: as `find -print0` writes it.

    Raises:
        SourceNotFound: there is no such file.
        AccessDenied: it may not be read.
        UsageProblem: it holds no path, or the wrong separator.
    """
    try:
        data = sys.stdin.buffer.read() if where == "-" else Path(where).read_bytes()
    except PermissionError as error:
        raise AccessDenied(f"list of files {where} cannot be read", where={"path": where}) from error
    except OSError as error:
        message = f"list of files {where} cannot be read: {error.strerror}"
        raise SourceNotFound(message, where={"path": where}) from error
    if not null_separated and b"\0" in data:
        raise UsageProblem(f"list of files {where} is separated by NUL bytes", hint="add --null")
    paths = [path for path in data.split(b"\0" if null_separated else b"\n") if path]
    if not null_separated and paths and all(path.endswith(b"\r") for path in paths):
        paths = [path[:-1] for path in paths if path != b"\r"]
    if not paths:
        raise UsageProblem(f"list of files {where} is empty", hint="write one path a line")
    return paths


def _by_folder(paths: list[bytes], base: bytes, found: Found) -> dict[bytes, list[bytes]]:
    """{folder below the root: names}; paths that lead out of the root are counted in `found`."""
    folders: dict[bytes, list[bytes]] = {}
    for path in paths:
        below = _below(path, base)
        if below is None:
            found.failed.add("outside_root", path, "")
        else:
            folder, _, name = below.rpartition(b"/")
            folders.setdefault(folder, []).append(name)
    return folders


def _below(path: bytes, base: bytes) -> bytes | None:
    """`path` below `base`, without `.` and empty steps; None where it leads elsewhere or is `base` itself."""
    if path.startswith(b"/"):
        if not path.startswith(base.rstrip(b"/") + b"/"):
            return None
        path = path[len(base.rstrip(b"/")) + 1 :]
    if b"//" in path or b"." in path or path.endswith(b"/"):
        steps = [step for step in path.split(b"/") if step not in (b"", b".")]
        return None if b".." in steps or not steps else b"/".join(steps)
    return path or None


def _tasks(folders: dict[bytes, list[bytes]], base: bytes, rules: NameRules, found: Found) -> Iterator[Folder]:
    """The folders with their names, sorted, each name once, in blocks; folders that are left out are counted."""
    for path in sorted(folders):
        names, prefix = folders[path], os.path.join(base, path, b"")
        reason = _left_out(path, rules)
        if reason is not None:
            for name in names:
                found.ignored.add(reason[0], prefix + name, reason[1])
            continue
        unique = sorted(set(names))
        if len(unique) != len(names):
            _count_repeated(names, prefix, found)
        for part, first in enumerate(range(0, len(unique), BLOCK)):
            yield Folder(0, path, part=part, names=b"\0".join(unique[first : first + BLOCK]))


def _count_repeated(names: list[bytes], prefix: bytes, found: Found) -> None:
    met: set[bytes] = set()
    for name in names:
        if name in met:
            found.failed.add("listed_twice", prefix + name, "")
        met.add(name)


def _left_out(folder: bytes, rules: NameRules) -> tuple[str, str] | None:
    """Why a folder is left out, by its own name or that of one above it."""
    steps = folder.split(b"/") if folder else []
    for depth, name in enumerate(steps, start=1):
        if (reason := rules.folder(name, b"/".join(steps[:depth]))) is not None:
            return reason
    return None
