"""The tables and records that flow between the steps. Columns, not objects: a row costs bytes, not kilobytes.

    EntryTable --group--> SampleTable --plan--> Plan --pack--> Receipt --index--> Manifest

Arrays are numpy; variable-length bytes are pyarrow large_binary arrays, so that taking rows is one call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator

Int64Array: TypeAlias = NDArray[np.int64]
UInt64Array: TypeAlias = NDArray[np.uint64]
Int32Array: TypeAlias = NDArray[np.int32]
Int16Array: TypeAlias = NDArray[np.int16]
BinaryArray: TypeAlias = Any  # pyarrow.LargeBinaryArray or BinaryArray; pyarrow ships no types


@dataclass(frozen=True)
class EntryTable:
    """Every file that a scan took, in source order: roots as given, then folders, then names, in byte order.

    Row r belongs to folder d where dir_start[d] <= r < dir_start[d + 1]; its path below the root is
    dirs[d] + b"/" + names[r], or names[r] alone for the root folder (dirs[d] == b"").
    """

    roots: tuple[str, ...]  # absolute paths, or URLs
    dirs: list[bytes]  # folders below their root, no leading or trailing slash
    dir_root: Int32Array  # int32[num_dirs], row in roots
    dir_start: Int64Array  # int64[num_dirs + 1]
    names: BinaryArray  # large_binary[num_entries]
    sizes: Int64Array  # bytes, int64[num_entries]
    mtimes_ns: Int64Array  # guard of the content, int64[num_entries]

    @property
    def num_entries(self) -> int:
        """Rows of the table."""
        return len(self.sizes)

    def folders(self) -> Iterator[tuple[int, int, int]]:
        """(folder, first row, end row) for each folder that has rows."""
        starts = self.dir_start.tolist()
        for folder in range(len(self.dirs)):
            if starts[folder] < starts[folder + 1]:
                yield folder, starts[folder], starts[folder + 1]

    def folder_of(self, rows: Int64Array) -> Int64Array:
        """int64[n]: the folder of each row."""
        return np.searchsorted(self.dir_start, rows, side="right") - 1

    def path(self, row: int) -> bytes:
        """Path of one row below its root; for messages, not for loops."""
        folder = self.dirs[int(self.folder_of(np.array([row], np.int64))[0])]
        name: bytes = self.names[row].as_py()
        return folder + b"/" + name if folder else name


@dataclass
class Tally:
    """What happened to entries that are not packed: counts by reason, the entries themselves as (reason, path, detail)."""

    counts: dict[str, int] = field(default_factory=dict)
    entries: list[tuple[str, bytes, str]] = field(default_factory=list)

    def add(self, reason: str, path: bytes, detail: str = "") -> None:
        """Count one entry under `reason`."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self.entries.append((reason, path, detail))

    def total(self) -> int:
        """Entries counted under any reason."""
        return sum(self.counts.values())

    def merge(self, other: Tally) -> None:
        """Take over all that `other` counted."""
        for reason, count in other.counts.items():
            self.counts[reason] = self.counts.get(reason, 0) + count
        self.entries.extend(other.entries)


@dataclass(frozen=True)
class Problem:
    """One kind of trouble with the input: how often, and up to five examples."""

    kind: str  # a word for programs: "dangling_link"
    count: int
    examples: tuple[str, ...]
    message: str  # one sentence for people
    hint: str = ""
    is_fatal: bool = True  # False: a notice, packing goes on


@dataclass(frozen=True)
class ScanResult:
    """What a source holds: rows to pack, what was left out and why, and what stands in the way."""

    entries: EntryTable
    ignored: Tally
    failed: Tally
    problems: tuple[Problem, ...] = ()
    num_links: int = 0  # links followed to a file or folder
    tables: tuple[bytes, ...] = ()  # tables lying among the files, candidates for --join

    @property
    def seen(self) -> int:
        """Entries met: rows + ignored + failed."""
        return self.entries.num_entries + self.ignored.total() + self.failed.total()
