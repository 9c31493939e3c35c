"""Folders on a local file system: every file below some roots, with size and mtime, as columns.

A folder is listed, sorted, and stat'ed relative to its descriptor; where all its entries are plain files it is taken
whole, else entry by entry. One process walks alone for a moment; what is left by then is spread over the pool, and
workers hand back folders that they did not get to, so that no worker waits for another's deep subtree.
"""

from __future__ import annotations

import os
import stat
import time
from bisect import bisect_left
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING

from shardtool.sources.found import Folder, Found
from shardtool.sources.junk import ODD_LETTERS, ODD_NAMES, NameRules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.model import ScanResult
    from shardtool.workers import WorkerPool

ALONE_S = 0.05  # before workers are started, which takes 0.1 s; a tree of 20,000 files, warm, is done by then
BLOCK = 8_192  # names of one folder that are one task, and stat results held at once (about 0.7 KiB each)
TASK_ENTRIES = 16_384  # a worker returns after that many: about 40 ms warm
TASK_FOLDERS = 64

TABLE_SUFFIXES = (b".csv", b".tsv", b".jsonl", b".parquet")
TABLE_NAMES = frozenset(stem + end for stem in (b"metadata", b"labels") for end in (*TABLE_SUFFIXES, b".json", b".txt"))
_ODD = ODD_NAMES | TABLE_NAMES

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READABLE_FILE = stat.S_IFREG | 0o444


@dataclass(frozen=True)
class WalkRules:
    """What a walk does with what it meets; the same in every process.

    Args:
        roots: absolute paths.
        names: what to leave out by name.
        links: "follow", "skip" or "error".
        is_listing: the names come from a list: folders among them are not walked.
    """

    roots: tuple[bytes, ...]
    names: NameRules = field(default_factory=NameRules)
    links: str = "follow"
    is_listing: bool = False


@dataclass(frozen=True)
class TreeSource:
    """All files below some folders.

    Args:
        roots: absolute paths of folders that exist.
        names: what to leave out by name.
        links: "follow", "skip" or "error".
        skip_errors: entries that cannot be read are counted as failed, and are no fatal problem.
        pool: spreads the walk; None walks in this process.
        alone_s: seconds before the pool is used.
    """

    roots: tuple[str, ...]
    names: NameRules = field(default_factory=NameRules)
    links: str = "follow"
    skip_errors: bool = False
    pool: WorkerPool | None = None
    alone_s: float = ALONE_S

    def scan(self) -> ScanResult:
        """Every entry met, sorted."""
        rules = WalkRules(tuple(os.fsencode(root) for root in self.roots), self.names, self.links)
        folders = [Folder(root, b"") for root in range(len(self.roots))]
        found = walk_all(rules, folders, self.pool, self.alone_s)
        return found.result(self.roots, self.names.include, skip_errors=self.skip_errors)


def walk_all(rules: WalkRules, folders: list[Folder], pool: WorkerPool | None, alone_s: float = ALONE_S) -> Found:
    """What lies in `folders` and below them: alone for `alone_s` and until a worker has started, then with the pool."""
    if pool is None or pool.num_workers < 2:
        return walk(rules, folders)
    found, queue = Found(), deque(folders)
    walker = _Walker(rules, found)
    until = time.monotonic() + alone_s
    while queue and not pool.is_up:  # breadth first, so that there is soon enough for all workers
        queue.extend(walker.visit(queue.popleft()))
        if time.monotonic() >= until:
            pool.begin()
    found.used_includes |= rules.names.used_includes()
    tasks = deque(_batches(list(queue), pool.num_workers))
    for _, part in pool.run("shardtool.sources.tree:walk_in_worker", tasks, context=rules) if tasks else ():
        tasks.extend(_batches(part.left, pool.num_workers))
        found.merge(part)
    return found


def walk_in_worker(rules: WalkRules, folders: list[Folder]) -> Found:
    """`walk` up to TASK_ENTRIES, from inside each folder: a stat of a bare name costs 0.8 of one with `dir_fd`."""
    before = os.getcwdb()
    try:
        return walk(rules, folders, TASK_ENTRIES, may_chdir=True)
    finally:
        with suppress(OSError):
            os.chdir(before)


def walk(rules: WalkRules, folders: list[Folder], limit: int | None = None, *, may_chdir: bool = False) -> Found:
    """What lies in `folders` and below them; past `limit` entries the rest is handed back in `left`."""
    found = Found()
    walker = _Walker(rules, found, may_chdir=may_chdir)
    stack = folders[::-1]
    while stack and (limit is None or walker.num_met < limit):
        stack.extend(reversed(walker.visit(stack.pop())))
    found.left = stack[::-1]
    found.used_includes |= rules.names.used_includes()
    return found


def _batches(folders: list[Folder], num_workers: int) -> Iterator[list[Folder]]:
    width = max(1, min(TASK_FOLDERS, len(folders) // (4 * num_workers)))
    for first in range(0, len(folders), width):
        yield folders[first : first + width]


class _Walker:
    """Visits one folder after another and puts what it meets into `found`."""

    def __init__(self, rules: WalkRules, found: Found, *, may_chdir: bool = False) -> None:
        self._rules, self._found, self._may_chdir = rules, found, may_chdir
        self._plain_mask = 0o170000 if os.geteuid() == 0 else 0o170444  # root reads all
        self.num_met = 0

    def visit(self, folder: Folder) -> list[Folder]:
        """Take the files of `folder`; the folders below it that are still to be walked, sorted."""
        path = self._absolute(folder, b"")
        try:
            fd = os.open(path, _FOLDER_FLAGS)
            try:
                names = sorted(os.listdir(path)) if folder.names is None else folder.names.split(b"\0")
                if len(names) > BLOCK:
                    return _split(folder, names)
                return self._visit(folder, fd, names)
            finally:
                os.close(fd)
        except OSError as error:
            self._fail_folder(folder, error)
            return []

    def _visit(self, folder: Folder, fd: int, names: list[bytes]) -> list[Folder]:
        self.num_met += len(names)
        try:
            if self._may_chdir:
                os.fchdir(fd)
                stats = list(map(os.lstat, names))
            else:
                stats = list(map(partial(os.stat, dir_fd=fd, follow_symlinks=False), names))
        except OSError:
            return _Sieve(self._rules, self._found, folder, fd).sift(names)
        if not self._are_plain(names, stats):
            return _Sieve(self._rules, self._found, folder, fd).sift(names, stats)
        if not folder.path:
            self._found.tables += [self._absolute(folder, name) for name in names if name.endswith(TABLE_SUFFIXES)]
        self._found.add_rows(folder, names, [s.st_size for s in stats], [s.st_mtime_ns for s in stats])
        return []

    def _are_plain(self, names: list[bytes], stats: list[os.stat_result]) -> bool:
        """Whether all are readable files under names that need no look; four passes in C, no Python per entry."""
        wanted = _READABLE_FILE & self._plain_mask
        return (
            not self._rules.names.has_globs
            and _ODD.isdisjoint(names)
            and not any(_begins(names, letter) for letter in ODD_LETTERS)
            and all(mode & self._plain_mask == wanted for mode in {s.st_mode for s in stats})
        )

    def _fail_folder(self, folder: Folder, error: OSError) -> None:
        """A folder counts as one failed entry; in a listing each of its names does."""
        kind = failure_kind(error, is_listing=self._rules.is_listing)
        names = folder.names.split(b"\0") if folder.names is not None else [b""]
        for name in names:
            self._found.failed.add(kind, self._absolute(folder, name), error.strerror or "")

    def _absolute(self, folder: Folder, name: bytes) -> bytes:
        return os.path.join(self._rules.roots[folder.root], folder.path, name) if name else self._folder_path(folder)

    def _folder_path(self, folder: Folder) -> bytes:
        root = self._rules.roots[folder.root]
        return os.path.join(root, folder.path) if folder.path else root


class _Sieve:
    """One folder, entry by entry: rows, folders to walk, and a reason for everything else."""

    def __init__(self, rules: WalkRules, found: Found, folder: Folder, fd: int) -> None:
        self._rules, self._found, self._folder, self._fd = rules, found, folder, fd
        self._prefix = folder.path + b"/" if folder.path else b""
        self._base = os.path.join(rules.roots[folder.root], self._prefix)
        self._names: list[bytes] = []
        self._stats: list[os.stat_result] = []
        self._below: list[Folder] = []

    def sift(self, names: list[bytes], stats: list[os.stat_result] | None = None) -> list[Folder]:
        """Put every entry where it belongs; the folders among them."""
        for number, name in enumerate(names):
            try:
                status = stats[number] if stats else os.stat(name, dir_fd=self._fd, follow_symlinks=False)
            except OSError as error:
                if not self._is_left_out(name):
                    self._fail(failure_kind(error, is_listing=self._rules.is_listing), name, error.strerror or "")
            else:
                self._place(name, status)
        sizes, mtimes_ns = [s.st_size for s in self._stats], [s.st_mtime_ns for s in self._stats]
        self._found.add_rows(self._folder, self._names, sizes, mtimes_ns)
        return self._below

    def _place(self, name: bytes, status: os.stat_result) -> None:
        if stat.S_ISREG(status.st_mode):
            self._place_file(name, status)
        elif stat.S_ISDIR(status.st_mode):
            self._place_folder(name, status)
        elif stat.S_ISLNK(status.st_mode):
            self._place_link(name)
        elif not self._is_left_out(name):
            self._ignore("special", name, _special_word(status.st_mode))

    def _place_file(self, name: bytes, status: os.stat_result) -> bool:
        if self._is_left_out(name):
            return False
        if not self._is_readable(name, status):
            self._fail("access_denied", name, f"mode {status.st_mode & 0o7777:04o}")
            return False
        if name in TABLE_NAMES or (not self._prefix and name.endswith(TABLE_SUFFIXES)):
            self._found.tables.append(self._base + name)
        self._names.append(name)
        self._stats.append(status)
        return True

    def _place_folder(self, name: bytes, status: os.stat_result, *, is_link: bool = False) -> None:
        reason = self._rules.names.folder(name, self._prefix + name)
        identity, chain = (status.st_dev, status.st_ino), self._folder.chain
        if reason is not None:
            self._found.ignored.add(reason[0], self._base + name + b"/", reason[1])
            return
        if self._rules.is_listing:
            self._fail("not_a_file", name, "a folder")
            return
        if is_link:
            chain = self._chain
        if chain is not None and identity in chain:
            self._ignore("link_loop", name, "leads back to a folder above it")
            return
        self._found.num_links += is_link
        self._below.append(
            Folder(self._folder.root, self._prefix + name, None if chain is None else (*chain, identity))
        )

    def _place_link(self, name: bytes) -> None:
        if self._rules.links != "follow":
            self._refuse_link(name)
            return
        try:
            target = os.stat(name, dir_fd=self._fd)
        except OSError as error:
            if not self._is_left_out(name):
                kind = "access_denied" if isinstance(error, PermissionError) else "dangling_link"
                self._fail(kind, name, self._target(name))
            return
        if stat.S_ISDIR(target.st_mode):
            self._place_folder(name, target, is_link=True)
        elif stat.S_ISREG(target.st_mode):
            self._found.num_links += self._place_file(name, target)
        elif not self._is_left_out(name):
            self._ignore("special", name, f"a link to {_special_word(target.st_mode)}")

    def _refuse_link(self, name: bytes) -> None:
        if self._is_left_out(name):
            return
        if self._rules.links == "skip":
            self._ignore("link", name, self._target(name))
        else:
            self._fail("link", name, self._target(name))

    def _target(self, name: bytes) -> str:
        try:
            return "to " + os.readlink(name, dir_fd=self._fd).decode("utf-8", "backslashreplace")
        except OSError:
            return ""

    def _is_left_out(self, name: bytes) -> bool:
        """Count `name` as ignored where the rules for file names say so."""
        reason = self._rules.names.file(name, self._prefix + name)
        if reason is not None:
            self._ignore(reason[0], name, reason[1])
        return reason is not None

    def _is_readable(self, name: bytes, status: os.stat_result) -> bool:
        """From the mode bits; where they say no, the system is asked: an ACL, or being root, may allow it."""
        mode = status.st_mode
        if mode & 0o444 == 0o444 or (mode & 0o400 and status.st_uid == os.geteuid()):
            return True
        return os.access(name, os.R_OK, dir_fd=self._fd, effective_ids=os.access in os.supports_effective_ids)

    def _ignore(self, reason: str, name: bytes, detail: str) -> None:
        self._found.ignored.add(reason, self._base + name, detail)

    def _fail(self, kind: str, name: bytes, detail: str) -> None:
        self._found.failed.add(kind, self._base + name, detail)

    @cached_property
    def _chain(self) -> tuple[tuple[int, int], ...]:
        """(device, inode) of the root and of every folder down to this one."""
        if self._folder.chain is not None:
            return self._folder.chain
        root = self._rules.roots[self._folder.root]
        steps = self._folder.path.split(b"/") if self._folder.path else []
        chain = []
        for above in accumulate([root, *steps], lambda above, name: os.path.join(above, name)):
            with suppress(OSError):
                status = os.stat(above)
                chain.append((status.st_dev, status.st_ino))
        return tuple(chain)


def failure_kind(error: OSError, *, is_listing: bool) -> str:
    """The word for an entry that the system would not show."""
    if isinstance(error, PermissionError):
        return "access_denied"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "not_found" if is_listing else "vanished"
    return "unreadable"


def _split(folder: Folder, names: list[bytes]) -> list[Folder]:
    """A large folder as several tasks."""
    blocks = range(0, len(names), BLOCK)
    return [folder._replace(part=part, names=b"\0".join(names[at : at + BLOCK])) for part, at in enumerate(blocks)]


def _begins(names: list[bytes], letter: bytes) -> bool:
    """Whether any of the sorted `names` begins with `letter`."""
    at = bisect_left(names, letter)
    return at < len(names) and names[at].startswith(letter)


def _special_word(mode: int) -> str:
    for is_kind, word in ((stat.S_ISFIFO, "a fifo"), (stat.S_ISSOCK, "a socket")):
        if is_kind(mode):
            return word
    return "a device"
