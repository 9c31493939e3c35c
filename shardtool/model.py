"""The tables and records that flow between the steps. Columns, not objects: a row costs bytes, not kilobytes.

    EntryTable --group--> SampleTable --plan--> Plan --pack--> Receipt --index--> Manifest

Arrays are numpy; variable-length bytes are pyarrow large_binary arrays, so that taking rows is one call.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.keys import KeyRule

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
    versions: BinaryArray | None = None  # binary[num_entries]: ETags; None for files, whose guard is the mtime
    offsets: Int64Array | None = None  # int64[num_entries]: where in its root, a shard file; None for whole files
    given: tuple[str, ...] = ()  # sources as they were named, where roots are something else
    files: tuple[str, ...] = ()  # what people know each root by, where they are something else

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

    def folder_of(self, rows: Any) -> Int32Array:
        """int32[n]: the folder of each row."""
        folders: Int32Array = self._folders[rows]
        return folders

    @cached_property
    def prefixes(self) -> BinaryArray:
        """binary[num_dirs]: each folder with its slash, b"" for a root."""
        import pyarrow as pa

        return pa.array([folder + b"/" if folder else b"" for folder in self.dirs], pa.binary())

    @cached_property
    def _folders(self) -> Int32Array:
        """int32[num_entries]; made once, when a plan is."""
        return np.repeat(np.arange(len(self.dirs), dtype=np.int32), np.diff(self.dir_start))

    def full_path(self, row: int) -> bytes:
        """Root and path of one row; for messages and lists, not for loops."""
        root = (self.files or self.roots)[self.root_of(row)]
        return os.path.join(os.fsencode(root), self.path(row))

    def root_of(self, row: int) -> int:
        """Row in `roots` of one row; for messages, not for loops."""
        folder = int(np.searchsorted(self.dir_start, row, side="right")) - 1
        return int(self.dir_root[folder])

    def path(self, row: int) -> bytes:
        """Path of one row below its root; for messages, not for loops."""
        folder = self.dirs[int(np.searchsorted(self.dir_start, row, side="right")) - 1]
        name: bytes = self.names[row].as_py()
        return folder + b"/" + name if folder else name


@dataclass
class Tally:
    """Entries that are not packed: counts by reason, and each as (reason, path, detail)."""

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
    origin: Origin | None = None  # where the sources are shards

    @property
    def seen(self) -> int:
        """Entries met: rows + ignored + failed."""
        return self.entries.num_entries + self.ignored.total() + self.failed.total()


@dataclass(frozen=True)
class Origin:
    """What shards know of their samples beside the bytes; codes are a row an entry, -1 where nothing is known."""

    splits: Int32Array  # row in split_names, int32[num_entries]
    split_names: tuple[str, ...]
    labels: Int32Array  # row in label_names, int32[num_entries]
    label_names: tuple[str, ...]
    has_part_names: bool  # all of them are data sets, whose part names are taken as they are
    losses: tuple[str, ...] = ()  # what cannot be carried over, in words


@dataclass(frozen=True)
class GeneratedPart:
    """A part that no file holds (a class number, a joined row): sample s has values[codes[s]], or none at -1."""

    name: bytes
    values: list[bytes]
    codes: Int32Array  # int32[num_samples]


@dataclass(frozen=True)
class SampleTable:
    """Samples with their parts, in source order. Keys and paths are not stored: they follow from entry and rule."""

    entries: EntryTable
    rule: KeyRule
    key_hash: UInt64Array  # xxh3_64(key, seed), uint64[num_samples]: the shuffled order, and the test for duplicates
    key_bytes: Int32Array  # length of the key, int32[num_samples]
    part_start: Int64Array  # int64[num_samples + 1]; parts of sample s are rows part_start[s]:part_start[s + 1]
    part_entry: Int64Array  # row in entries, int64[num_parts] (int32 where it fits)
    part_name: Int16Array  # row in part_names, int16[num_parts]
    part_names: list[bytes]
    labels: Int32Array | None = None  # row in label_names, int32[num_samples]
    label_names: list[str] = field(default_factory=list)
    generated: tuple[GeneratedPart, ...] = ()
    splits: Int32Array | None = None  # row in split_names, int32[num_samples]: where the source has splits
    split_names: tuple[str, ...] = ()

    @property
    def num_samples(self) -> int:
        """Rows of the table."""
        return len(self.key_hash)

    def parts_per_sample(self) -> Int64Array:
        """int64[num_samples]: parts that come from files."""
        return np.diff(self.part_start)

    def sum_over_parts(self, values: Int64Array) -> Int64Array:
        """int64[num_samples]: `values` (one a file part) added up a sample."""
        if len(values) == 0:
            return np.zeros(self.num_samples, np.int64)
        sums = np.add.reduceat(np.append(values, 0), self.part_start[:-1])
        return np.where(self.parts_per_sample() > 0, sums, 0).astype(np.int64)

    def payload_bytes(self) -> Int64Array:
        """int64[num_samples]: bytes of all parts, generated ones included."""
        total = self.sum_over_parts(self.entries.sizes[self.part_entry])
        for part in self.generated:
            lengths = np.array([len(value) for value in part.values] + [0], np.int64)
            total = total + lengths[part.codes]
        return total


@dataclass(frozen=True)
class ShardSpec:
    """One planned shard: rows [start, stop) of the plan's order."""

    split: str
    path: str  # below the output folder
    start: int
    stop: int
    num_bytes: int  # of the shard file; the real file has exactly these
    payload_bytes: int

    @property
    def num_samples(self) -> int:
        """Samples of the shard."""
        return self.stop - self.start


@dataclass(frozen=True)
class Receipt:
    """Proof that shard k of a plan is complete: its files with sizes and digests, and what was left out of it."""

    plan_id: str
    shard: int
    split: str
    files: tuple[FileRecord, ...]
    index: FileRecord
    num_samples: int
    payload_bytes: int
    parts: dict[str, PartTotals]
    failed: tuple[tuple[str, str], ...] = ()  # (escaped key, reason)
    failed_entries: int = 0  # files that the failed samples would have taken
    raw_bytes: int = 0  # of the shard before compression; 0 where it is not compressed
    raw_xxh3_128: str = ""
    waited: bool = field(default=False, compare=False)  # for the device; a hint to the executor, not stored
    retries: int = field(default=0, compare=False)  # requests to a store that were sent again meanwhile; not stored


@dataclass(frozen=True)
class FileRecord:
    """A file of a data set: path below its folder, size in bytes, xxh3_128 in hex."""

    path: str
    num_bytes: int
    xxh3_128: str


@dataclass(frozen=True)
class PartTotals:
    """One part name over a shard or data set: how many samples have it, and its bytes."""

    samples: int
    num_bytes: int
    smallest: int
    largest: int


@dataclass(frozen=True)
class ManifestShard:
    """One shard of a data set; its number is its place in the manifest."""

    split: str
    files: tuple[FileRecord, ...]
    index: FileRecord | None
    num_samples: int
    payload_bytes: int
    raw_bytes: int = 0  # before compression; 0 where the shard is not compressed
    raw_xxh3_128: str = ""
    packed: FileRecord | None = None  # the compressed file, where the first of `files` is what was made of it

    @property
    def packed_files(self) -> tuple[FileRecord, ...]:
        """Its files as they were packed."""
        return self.files if self.packed is None else (self.packed, *self.files[1:])

    @property
    def path(self) -> str:
        """The file that holds the payload, below the data set's folder."""
        return self.files[0].path

    @property
    def num_bytes(self) -> int:
        """Bytes of all files of the shard, its index aside."""
        return sum(record.num_bytes for record in self.files)


@dataclass(frozen=True)
class Manifest:
    """A finished data set."""

    format: str
    compression: str
    plan_id: str
    dataset_id: str
    shards: tuple[ManifestShard, ...]
    options: dict[str, Any] = field(default_factory=dict)
    membership: dict[str, Any] = field(default_factory=dict)
    ledger: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, PartTotals] = field(default_factory=dict)
    labels: FileRecord | None = None
    created_by: dict[str, str] = field(default_factory=dict)
    side_files: tuple[FileRecord, ...] = ()  # that the format's own readers need beside the shards

    @property
    def num_samples(self) -> int:
        """Samples of all shards."""
        return sum(shard.num_samples for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Bytes of all shard files."""
        return sum(shard.num_bytes for shard in self.shards)

    @property
    def payload_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(shard.payload_bytes for shard in self.shards)

    def splits(self) -> dict[str, dict[str, int]]:
        """{split: {samples, shards, bytes}} in the order of the shards."""
        found: dict[str, dict[str, int]] = {}
        for shard in self.shards:
            entry = found.setdefault(shard.split, {"samples": 0, "shards": 0, "bytes": 0})
            entry["samples"] += shard.num_samples
            entry["shards"] += 1
            entry["bytes"] += shard.num_bytes
        return found


@dataclass(frozen=True)
class ShardRows:
    """All that is needed to write one shard: samples in final order with their parts, locators and guards.

    The member called key + b"." + name lies at `source` below its root, or at that same path where source is null, or
    is `data` itself where that is not null.
    """

    keys: BinaryArray  # binary[num_samples]
    labels: Int32Array | None  # int32[num_samples]
    part_start: Int64Array  # int64[num_samples + 1]
    names: BinaryArray  # binary[num_parts]
    source: BinaryArray  # binary[num_parts], nullable
    roots: NDArray[np.uint32]  # uint32[num_parts]
    sizes: Int64Array  # bytes, int64[num_parts]
    mtimes_ns: Int64Array  # guards, int64[num_parts]; 0 for generated parts
    data: BinaryArray  # binary[num_parts], nullable
    versions: BinaryArray | None = None  # binary[num_parts], nullable: ETags; None where the mtime is the guard
    offsets: Int64Array | None = None  # int64[num_parts]: byte (or row) in the root, a shard file; None for whole files

    @property
    def num_samples(self) -> int:
        """Samples of the shard."""
        return len(self.part_start) - 1

    @property
    def num_parts(self) -> int:
        """Parts of the shard."""
        return len(self.sizes)

    def owners(self) -> Int64Array:
        """int64[num_parts]: the sample of each part."""
        return np.repeat(np.arange(self.num_samples), np.diff(self.part_start))
