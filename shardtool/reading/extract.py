"""Samples back to files, under the paths that they were packed from.

    indexes --choose--> rows and paths, all checked first;  each shard --workers--> files, digests checked on the way

Nothing is written outside the target: every folder is opened from its parent and no link is followed. A file appears
under its name only when it is whole. Memory: 8 bytes a part, and what `windows` holds.
"""

from __future__ import annotations

import fnmatch
import os
import re
import time
import unicodedata
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from shardtool import columns
from shardtool.errors import BadKey, DestinationExists, DuplicateKey, SourceNotFound, UsageProblem
from shardtool.index_file import NO_FILE
from shardtool.reading.reading import Dataset
from shardtool.storage import is_remote
from shardtool.storage.files import absolute
from shardtool.storage.local import write_errors
from shardtool.units import plural
from shardtool.verification.repeats import find_repeats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.index_file import ShardIndex
    from shardtool.model import Int64Array, UInt64Array
    from shardtool.packing.build import Say
    from shardtool.workers import WorkerPool

SCHEMA = "shardtool/extract/1"
EXTRACT = "shardtool.reading.extract_shard:extract_shard"
PRELOAD = ("shardtool.reading.extract_shard",)
MAX_SHOWN = 5
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Selection:
    """Which samples and parts, and where they go.

    Args:
        keys: keys, or globs in which `*` also stands for slashes; none means all.
        split: only samples of this split.
        shards: only these places in the manifest.
        parts: only these parts; none means all that came from files.
        all_parts: also parts that packing made (class numbers, joined rows).
        by: `source`, the path that a part was packed from, or `key`: key + "." + part.
    """

    keys: tuple[str, ...] = ()
    split: str = ""
    shards: tuple[int, ...] = ()
    parts: tuple[str, ...] = ()
    all_parts: bool = False
    by: str = "source"

    def patterns(self) -> tuple[frozenset[bytes], list[re.Pattern[str]]]:
        """(keys as they are, compiled globs)."""
        plain = frozenset(os.fsencode(key) for key in self.keys if not _GLOB.search(key))
        return plain, [re.compile(fnmatch.translate(key)) for key in self.keys if _GLOB.search(key)]


@dataclass(frozen=True)
class ExtractJob:
    """All that a worker needs."""

    dataset: str
    target: str
    selection: Selection
    overwrite: bool


@dataclass
class ExtractReport:
    """What came out of one shard."""

    num_samples: int = 0
    num_parts: int = 0
    num_bytes: int = 0
    left_out: dict[str, int] = field(default_factory=dict)  # generated parts, by name
    damaged: list[tuple[int, str]] = field(default_factory=list)  # (shard, message)

    def merge(self, other: ExtractReport) -> None:
        """Add another shard's."""
        self.num_samples += other.num_samples
        self.num_parts += other.num_parts
        self.num_bytes += other.num_bytes
        self.damaged += other.damaged
        for name, count in other.left_out.items():
            self.left_out[name] = self.left_out.get(name, 0) + count


@dataclass(frozen=True)
class ExtractResult:
    """What was written below `target`."""

    target: str
    report: ExtractReport
    seconds: float

    def document(self) -> dict[str, Any]:
        """`shardtool/extract/1`."""
        report = self.report
        return {
            "schema": SCHEMA,
            "output": self.target,
            "samples": report.num_samples,
            "parts": report.num_parts,
            "bytes": report.num_bytes,
            "left_out_parts": dict(sorted(report.left_out.items())),
            "damaged": [{"shard": shard, "message": message} for shard, message in report.damaged],
            "seconds": round(self.seconds, 3),
        }


def extract(
    path: str, target: str, selection: Selection, pool: WorkerPool, say: Say, *, overwrite: bool = False
) -> ExtractResult:
    """Write the selected samples of the data set `path` to files below `target`.

    Raises:
        SourceNotFound: no such data set, key, part, split or shard.
        BadKey, DuplicateKey: a path that leads out of the target, or two parts with one path.
        DestinationExists: a file is there already, and not `overwrite`.
    """
    began = time.monotonic()
    _check_apart(path, target)
    with Dataset.open(path) as dataset:
        job = ExtractJob(absolute(dataset.path), os.path.abspath(target), selection, overwrite)
        shards = _shards(dataset, selection)
        with write_errors(target):
            os.makedirs(target, exist_ok=True)
        sizes = _check(dataset, job, shards)
    total = ExtractReport()
    with say.progress(len(sizes), sum(sizes.values()), 0) as progress:
        for shard, report in pool.run(EXTRACT, list(sizes), context=job, describe=lambda shard: f"shard {shard}"):
            total.merge(report)
            progress.advance(1, sizes[shard], report.num_samples)
    total.damaged.sort()
    return ExtractResult(target, total, time.monotonic() - began)


def _check_apart(path: str, target: str) -> None:
    if is_remote(target):
        raise UsageProblem(f"{target}: files are extracted to a folder", hint="shardtool extract OUT DIR")
    if is_remote(path):
        return
    source, below = os.path.realpath(path), os.path.realpath(target)
    if os.path.commonpath([source, below]) == source:
        raise UsageProblem(f"{target} lies in the data set {path}", hint="choose a folder outside of it")


def _shards(dataset: Dataset, selection: Selection) -> list[int]:
    """The shards to look into."""
    manifest = dataset.manifest
    if selection.split and selection.split not in manifest.splits():
        known = ", ".join(manifest.splits())
        raise SourceNotFound(f"{dataset.path} has no split {selection.split!r}", hint=f"it has: {known}")
    for shard in selection.shards:
        if shard >= len(manifest.shards):
            raise SourceNotFound(
                f"{dataset.path} has no shard {shard}", hint=f"shards are counted from 0 to {len(manifest.shards) - 1}"
            )
    for part in selection.parts:
        if part not in manifest.parts:
            raise SourceNotFound(f"{dataset.path} has no part {part!r}", hint=f"it has: {', '.join(manifest.parts)}")
    return [
        number
        for number, shard in enumerate(manifest.shards)
        if selection.split in ("", shard.split) and (not selection.shards or number in selection.shards)
    ]


def chosen_samples(index: ShardIndex, selection: Selection) -> Int64Array:
    """Rows of the selected samples, int64[n]."""
    plain, globs = selection.patterns()
    if not plain and not globs:
        return np.arange(index.num_samples)
    found = [
        sample
        for sample, key in enumerate(columns.to_list(index.keys))
        if key in plain or (globs and _matches(globs, key.decode("utf-8", "surrogateescape")))
    ]
    return np.array(found, np.int64)


def _matches(globs: list[re.Pattern[str]], key: str) -> bool:
    return any(pattern.match(key) for pattern in globs)


def chosen_parts(index: ShardIndex, samples: Int64Array, job: ExtractJob) -> tuple[Int64Array, dict[str, int]]:
    """(rows of the parts to write, int64[n]; generated parts that are left out, by name)."""
    starts, counts = index.part_start[samples], np.diff(index.part_start)[samples]
    firsts = np.repeat(starts - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) if len(samples) else starts
    rows = firsts + np.arange(int(counts.sum()))
    names = columns.to_list(columns.take(index.part_names, rows))
    wanted = {os.fsencode(part) for part in job.selection.parts}
    if wanted:
        return rows[[name in wanted for name in names]].astype(np.int64), {}
    sources = columns.to_list(columns.take(index.part_source, rows))
    is_kept = np.array([job.selection.all_parts or source != NO_FILE for source in sources], bool)
    left_out: dict[str, int] = {}
    for name, kept in zip(names, is_kept.tolist(), strict=True):
        if not kept:
            text = name.decode("utf-8", "backslashreplace")
            left_out[text] = left_out.get(text, 0) + 1
    return rows[is_kept].astype(np.int64), left_out


def paths_of(index: ShardIndex, parts: Int64Array, by: str) -> list[bytes]:
    """Path below the target of each part, as the index has it: not checked yet."""
    owners = np.searchsorted(index.part_start, parts, side="right") - 1
    keys, names = columns.take(index.keys, owners), columns.take(index.part_names, parts)
    plain = columns.to_list(columns.joined(keys, names, b"."))
    if by == "key":
        return plain
    sources = columns.to_list(columns.take(index.part_source, parts))
    return [source or member for source, member in zip(sources, plain, strict=True)]


def safe_path(path: bytes) -> bytes | None:
    """`path` without `.` and empty components; None where it leads out of its folder or names none."""
    pieces = [piece for piece in path.split(b"/") if piece not in (b"", b".")]
    if path.startswith(b"/") or b".." in pieces or not pieces or b"\0" in path:
        return None
    return b"/".join(pieces)


def _check(dataset: Dataset, job: ExtractJob, shards: list[int]) -> dict[int, int]:
    """{shard: bytes to write}, once every path is known to be safe, free and unique."""
    is_blind, is_empty = is_case_blind(job.target), not os.listdir(job.target)
    sizes: dict[int, int] = {}
    hashes: list[UInt64Array] = []
    found_keys: set[bytes] = set()
    bad: list[bytes] = []
    existing: list[bytes] = []
    plain, globs = job.selection.patterns()
    num_found = 0
    for shard in shards:
        index = dataset.index(shard)
        samples = chosen_samples(index, job.selection)
        num_found += len(samples)
        if plain:
            found_keys |= {index.key(sample) for sample in samples.tolist()} & plain
        parts, _ = chosen_parts(index, samples, job)
        paths = [(path, safe_path(path)) for path in paths_of(index, parts, job.selection.by)]
        bad += [path for path, safe in paths if safe is None][:MAX_SHOWN]
        safe_paths = [safe for _, safe in paths if safe is not None]
        if not is_empty and not job.overwrite and len(existing) < MAX_SHOWN:
            existing += _existing(job.target, safe_paths)
        folded = map(_folded, safe_paths) if is_blind else iter(safe_paths)
        hashes.append(np.fromiter(map(xxhash.xxh3_64_intdigest, folded), np.uint64, len(safe_paths)))
        if len(samples):
            sizes[shard] = int(index.part_bytes[parts].sum())
    _report_absent(dataset, plain - found_keys, bool(globs or plain) and num_found == 0, job.selection)
    if bad:
        raise BadKey(
            f"{plural(len(bad), 'path')} would lead out of {job.target}{_shown(bad)}", hint="--by key, perhaps"
        )
    _report_repeats(dataset, job, shards, hashes, is_blind=is_blind)
    if existing:
        raise DestinationExists(
            f"files are there already{_shown(existing)}",
            hint="choose an empty folder, or replace them with --overwrite; nothing was written",
            where={"path": os.path.join(job.target, os.fsdecode(existing[0]))},
        )
    return sizes


def _existing(target: str, paths: list[bytes]) -> list[bytes]:
    top = os.fsencode(target)
    return [path for path in paths if os.path.lexists(os.path.join(top, path))][:MAX_SHOWN]


def _report_absent(
    dataset: Dataset, absent: frozenset[bytes] | set[bytes], is_none: bool, selection: Selection
) -> None:
    if absent or is_none:
        what = sorted(absent) or [os.fsencode(key) for key in selection.keys]
        raise SourceNotFound(
            f"{dataset.path} has no samples called{_shown(what)}",
            hint="a key has its folders and no extension: cats/0001; quote globs: 'cats/*'",
            where={"path": dataset.path, "key": what[0].decode("utf-8", "backslashreplace")},
        )


def _report_repeats(
    dataset: Dataset, job: ExtractJob, shards: list[int], hashes: list[UInt64Array], *, is_blind: bool
) -> None:
    """Two parts for one path. `hashes` are those of the paths of each shard."""
    first, again = find_repeats(hashes)
    if not len(again):
        return
    pairs = zip(first[:MAX_SHOWN].tolist(), again[:MAX_SHOWN].tolist(), strict=True)
    shown = [" and ".join(_path_at(dataset, job, shards[array], row) for array, row in pair) for pair in pairs]
    why = "this file system does not tell capitals from small letters" if is_blind else "they have the same path"
    raise DuplicateKey(
        f"{plural(len(again), 'part')} would overwrite others: {why}" + "".join(f"\n  {pair}" for pair in shown),
        hint="extract to another file system" if is_blind else "--by key gives every part its own path",
    )


def _path_at(dataset: Dataset, job: ExtractJob, shard: int, row: int) -> str:
    index = dataset.index(shard)
    parts, _ = chosen_parts(index, chosen_samples(index, job.selection), job)
    return paths_of(index, parts[row : row + 1], job.selection.by)[0].decode("utf-8", "backslashreplace")


def _shown(paths: Sequence[bytes]) -> str:
    lines = [f"\n  {path.decode('utf-8', 'backslashreplace')}" for path in paths[:MAX_SHOWN]]
    return "".join(lines) + (f"\n  and {len(paths) - MAX_SHOWN:,} more" if len(paths) > MAX_SHOWN else "")


def is_case_blind(folder: str) -> bool:
    """Whether the file system takes `A` and `a` for one name."""
    probe = os.path.join(folder, f".tmp-case-{os.getpid()}")
    with write_errors(folder):
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        return os.path.lexists(os.path.join(folder, os.path.basename(probe).upper()))
    finally:
        with suppress(OSError):
            os.unlink(probe)


def _folded(path: bytes) -> bytes:
    """`path` as a file system that knows no case takes it."""
    text = unicodedata.normalize("NFC", path.decode("utf-8", "surrogateescape")).casefold()
    return text.encode("utf-8", "surrogateescape")


def runs_of(rows: Int64Array) -> Iterator[tuple[int, int]]:
    """(first, end) of each run of neighbours in ascending `rows`."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    for run in np.split(rows, breaks):
        if len(run):
            yield int(run[0]), int(run[-1]) + 1
