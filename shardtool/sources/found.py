"""What a walk found so far: columns for the rows, lists for the rest; workers send it, the parent joins it.

A row costs 18 bytes and its name here, 24 bytes and its name in the EntryTable. Nothing here is an object per row.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from shardtool.model import EntryTable, Problem, ScanResult, Tally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.model import BinaryArray, Int64Array

MAX_EXAMPLES = 5

# kind of a failed entry -> one sentence (count in front), what to do about it
FAILURES: dict[str, tuple[str, str]] = {
    "access_denied": ("cannot be read: permission denied", "chmod u+r them (folders: u+rx), or run as their owner"),
    "dangling_link": ("are links that point to nothing", "restore the targets, or remove the links"),
    "link": ("are links, which --links error forbids", "use --links follow or --links skip"),
    "unreadable": ("cannot be read: the file system reports an error", "check the storage, then try again"),
    "vanished": ("disappeared during the scan", "wait until nothing changes the source, then try again"),
    "not_found": ("of the list do not exist", "paths of the list are relative to the source folder"),
    "not_a_file": ("of the list are folders", "list the files in them, or give the folders as sources"),
    "listed_twice": ("are named more than once in the list", "remove the repetitions, such as with sort -u"),
    "outside_root": ("of the list lie outside the source folder", "give a source folder that contains all of them"),
}


class Folder(NamedTuple):
    """A folder to walk; with `names`, only these entries of it.

    Args:
        root: number of the root.
        path: below the root, b"" for the root itself.
        chain: (device, inode) of every folder on the way, kept below followed links only.
        part: place among several tasks for one folder.
        names: sorted, joined by NUL.
    """

    root: int
    path: bytes
    chain: tuple[tuple[int, int], ...] | None = None
    part: int = 0
    names: bytes | None = None


class Found:
    """Rows by folder, in the order found, and everything that is not a row."""

    def __init__(self) -> None:
        self.folders: list[bytes] = []
        self.folder_roots, self.folder_parts, self.counts = array("i"), array("i"), array("q")
        self.names, self.lengths = bytearray(), array("H")
        self.sizes, self.mtimes_ns = array("q"), array("q")
        self.ignored, self.failed = Tally(), Tally()
        self.num_links = 0
        self.tables: list[bytes] = []
        self.used_includes: set[bytes] = set()
        self.left: list[Folder] = []  # folders that the walk did not get to

    @property
    def num_rows(self) -> int:
        """Rows so far."""
        return len(self.sizes)

    def add_rows(self, folder: Folder, names: list[bytes], sizes: list[int], mtimes_ns: list[int]) -> None:
        """Take the files of one folder, sorted by name."""
        if not names:
            return
        self.folders.append(folder.path)
        self.folder_roots.append(folder.root)
        self.folder_parts.append(folder.part)
        self.counts.append(len(names))
        self.names += b"".join(names)
        self.lengths.extend(map(len, names))
        self.sizes.fromlist(sizes)
        self.mtimes_ns.fromlist(mtimes_ns)

    def merge(self, other: Found) -> None:
        """Take over all that `other` found, but not what it left."""
        self.folders += other.folders
        self.folder_roots += other.folder_roots
        self.folder_parts += other.folder_parts
        self.counts += other.counts
        self.names += other.names
        self.lengths += other.lengths
        self.sizes += other.sizes
        self.mtimes_ns += other.mtimes_ns
        self.ignored.merge(other.ignored)
        self.failed.merge(other.failed)
        self.num_links += other.num_links
        self.tables += other.tables
        self.used_includes |= other.used_includes

    def result(self, roots: tuple[str, ...], include: Sequence[bytes], *, skip_errors: bool) -> ScanResult:
        """The scan's result, everything in the order of roots, folders and names, whatever order it was found in."""
        for tally in (self.ignored, self.failed):
            tally.entries.sort(key=lambda entry: (entry[1], entry[0]))
        problems = failure_problems(self.failed, is_fatal=not skip_errors) + unused_includes(
            include, self.used_includes
        )
        entries = self._table(roots)
        return ScanResult(
            entries, self.ignored, self.failed, tuple(problems), self.num_links, tuple(sorted(self.tables))
        )

    def _table(self, roots: tuple[str, ...]) -> EntryTable:
        keys = list(zip(self.folder_roots, self.folders, self.folder_parts, strict=True))
        order = sorted(range(len(keys)), key=keys.__getitem__)
        counts = np.array(self.counts, np.int64)
        names, sizes, mtimes_ns = self._columns()
        if order != list(range(len(keys))):
            rows = _ranges(_starts(counts)[:-1][order], counts[order])
            names, sizes, mtimes_ns = names.take(pa.array(rows)), sizes[rows], mtimes_ns[rows]
        first = [at for at, now in enumerate(order) if at == 0 or keys[order[at - 1]][:2] != keys[now][:2]]
        dir_root = np.array([keys[order[at]][0] for at in first], np.int32)
        dir_start = _starts(counts[order])[[*first, len(order)]]
        return EntryTable(roots, [keys[order[at]][1] for at in first], dir_root, dir_start, names, sizes, mtimes_ns)

    def _columns(self) -> tuple[BinaryArray, Int64Array, Int64Array]:
        offsets = _starts(np.frombuffer(self.lengths, np.uint16))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.names)]
        names = pa.Array.from_buffers(pa.large_binary(), len(self.lengths), buffers)
        return names, np.frombuffer(self.sizes, np.int64), np.frombuffer(self.mtimes_ns, np.int64)


def show_path(path: bytes) -> str:
    """`path` for people and JSON: bytes that are not UTF-8, and control characters, as escapes."""
    text = path.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _starts(counts: np.ndarray[tuple[int], np.dtype[np.integer]]) -> Int64Array:
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def _ranges(starts: Int64Array, counts: Int64Array) -> Int64Array:
    """Row numbers of the ranges [start, start + count), one after another."""
    return np.repeat(starts - _starts(counts)[:-1], counts) + np.arange(counts.sum())


def failure_problems(failed: Tally, *, is_fatal: bool) -> list[Problem]:
    """A problem for each reason that entries failed for."""
    examples: dict[str, list[str]] = {}
    for kind, path, _ in failed.entries:
        shown = examples.setdefault(kind, [])
        if len(shown) < MAX_EXAMPLES:
            shown.append(show_path(path))
    problems = []
    for kind, count in sorted(failed.counts.items()):
        text, hint = FAILURES[kind]
        hint += "; or leave them out with --on-error skip" if is_fatal else ""
        problems.append(Problem(kind, count, tuple(examples[kind]), _sentence(count, text), hint, is_fatal))
    return problems


def _sentence(count: int, text: str) -> str:
    """`3 paths are links …`, `1 path is a link …`."""
    if count > 1:
        return f"{count:,} paths {text}"
    for many, one in (("are links that point", "is a link that points"), ("are links,", "is a link,")):
        text = text.replace(many, one)
    for many, one in (("are named", "is named"), ("are folders", "is a folder"), ("do not exist", "does not exist")):
        text = text.replace(many, one)
    return f"1 path {text.replace('lie outside', 'lies outside')}"


def unused_includes(include: Sequence[bytes], used: set[bytes]) -> list[Problem]:
    """A problem, where patterns match nothing."""
    unused = tuple(show_path(pattern) for pattern in include if pattern not in used)
    if not unused:
        return []
    message = f"--include {', '.join(unused[:MAX_EXAMPLES])} matches no file"
    hint = "patterns are matched below the source folder: '*.jpg' at any depth, 'train/**' everything in train"
    return [Problem("include_unmatched", len(unused), unused[:MAX_EXAMPLES], message, hint)]
