"""Tar shards without index or manifest, made by any tool: where they lie, and what they tell of themselves.

A path, a glob, a brace range or a folder flows in; `BareShard` columns flow out, in the order of the archive.
"""

from __future__ import annotations

import fnmatch
import glob
import mmap
import os
import re
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import numpy as np

from shardtool import columns
from shardtool.errors import BadKey, DuplicateKey, GroupError, SourceNotFound, UnknownFormat
from shardtool.formats.tar_header import padded
from shardtool.formats.tar_samples import ERROR_KINDS, group_members
from shardtool.formats.tar_scan import scan_members
from shardtool.model import ShardRows
from shardtool.names import DATA, SPLIT_ALIASES, expand_braces
from shardtool.storage import is_remote, open_place
from shardtool.storage.files import exists, local_copy, split_file
from shardtool.storage.regular import opener, refuse_special
from shardtool.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardtool.formats.tar_samples import Finding
    from shardtool.index_file import ShardIndex
    from shardtool.model import BinaryArray, Int64Array

FOREIGN_LAYOUT = "tar/other"  # a tar whose bytes do not follow from names and sizes
SUFFIXES = (".tar", ".tar.zst")
_GLOB = re.compile(r"[*?\[]")
_WORD = re.compile(r"[A-Za-z]+")
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


@dataclass(frozen=True)
class BareShard:
    """Samples of an archive, with the places of their parts."""

    num_members: int
    num_bytes: int
    keys: list[bytes]
    offset: Int64Array  # first byte of each sample's first header, int64[num_samples]
    sample_bytes: Int64Array  # to the end of its last member, int64[num_samples]
    part_start: Int64Array  # int64[num_samples + 1]
    part_names: list[bytes]
    part_offset: Int64Array  # int64[num_parts]
    part_sizes: Int64Array  # int64[num_parts]
    sources: BinaryArray  # the member's name, null where it is key + "." + part, binary[num_parts]
    findings: list[Finding]

    def rows(self) -> ShardRows:
        """As plan rows, without guards."""
        count = len(self.part_names)
        return ShardRows(
            keys=columns.binary(self.keys),
            labels=None,
            part_start=self.part_start,
            names=columns.binary(self.part_names),
            source=self.sources,
            roots=np.zeros(count, np.uint32),
            sizes=self.part_sizes,
            mtimes_ns=np.zeros(count, np.int64),
            data=columns.nulls(count),
        )

    @property
    def problems(self) -> list[Finding]:
        """What a reader would trip over, merge or lose."""
        return [finding for finding in self.findings if finding.kind in ERROR_KINDS]

    def skipped(self) -> dict[str, int]:
        """Members that are part of no sample, by reason."""
        counts: dict[str, int] = {}
        for finding in self.findings:
            if finding.kind not in ERROR_KINDS:
                counts[finding.kind] = counts.get(finding.kind, 0) + 1
        return counts


def read_bare(path: str, shown: str = "") -> BareShard:
    """What the tar `path` holds, by a strict walk over its headers; no payload is read, but an object is copied whole.

    Args:
        path: of a file, or URL of an object.
        shown: its name in messages, by default `path`.

    Raises:
        CorruptShard, FormatError: damage, or a member that is not supported, by name.
        UnknownFormat: compressed, or no tar at all.
    """
    with local_copy(path) as copy, open(copy, "rb", opener=opener) as file:
        return bare_of(file, shown or path)


def bare_of(file: IO[bytes], shown: str) -> BareShard:
    """As `read_bare`, of a file of the system that is open; `shown` is its name in messages."""
    size = os.fstat(file.fileno()).st_size
    _refuse_compressed(shown, os.pread(file.fileno(), 8, 0))
    if size == 0:
        scan_members(b"", shown)
    # not closed here: an error's traceback may still hold a view of it
    members = scan_members(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), shown)
    samples = group_members(members)
    rows = samples.rows
    first = members.header_offset[rows[samples.part_start[:-1]]] if len(rows) else np.zeros(0, np.int64)
    ends = members.data_offset + padded(np.where(members.types == ord("0"), members.sizes, 0))
    last = ends[rows[samples.part_start[1:] - 1]] if len(rows) else np.zeros(0, np.int64)
    names = columns.take(columns.binary(members.names), rows)
    keys = columns.take(columns.binary(samples.keys), np.repeat(np.arange(len(first)), np.diff(samples.part_start)))
    plain = columns.joined(keys, columns.binary(samples.part_names), b".")
    return BareShard(
        num_members=members.num_members,
        num_bytes=size,
        keys=samples.keys,
        offset=first,
        sample_bytes=last - first,
        part_start=samples.part_start,
        part_names=samples.part_names,
        part_offset=samples.offsets,
        part_sizes=samples.sizes,
        sources=columns.null_where_equal(names, plain),
        findings=samples.findings,
    )


def _refuse_compressed(path: str, head: bytes) -> None:
    for magic, name in _COMPRESSED.items():
        if head.startswith(magic):
            raise UnknownFormat(
                f"{path} is compressed with {name}; samples in it cannot be reached by their offsets",
                hint="decompress it first, or shardtool convert packs its samples anew",
                where={"path": path},
            )


def refuse_problems(path: str, bare: BareShard) -> None:
    """Raise for what no index can put right, five of a kind at most.

    Raises:
        DuplicateKey: keys or parts that occur twice, or samples that lie in pieces.
        BadKey, GroupError: names that lead out of the archive; links to nowhere; no samples at all.
    """
    problems = bare.problems
    if problems:
        kinds = {finding.kind for finding in problems}
        shown = "".join(f"\n  {finding.message}" for finding in problems[:5])
        rest = f"\n  and {len(problems) - 5:,} more" if len(problems) > 5 else ""
        error = DuplicateKey if kinds & {"duplicate_key", "duplicate_part", "not_adjacent"} else BadKey
        count = plural(len(problems), "member")
        raise error(
            f"{path} cannot be indexed: {count} that readers would merge or lose{shown}{rest}",
            hint="unpack it and pack the folder: shardtool pack groups, names and checks anew",
            where={"path": path, "offset": problems[0].offset, "key": _text(problems[0].key)},
        )
    if not bare.keys:
        raise GroupError(
            f"{path} holds no samples: {plural(bare.num_members, 'member')}, none of them named KEY.PART",
            hint="a part is named by what follows the first dot, such as cats/0001.jpg",
            where={"path": path},
        )


def differences(bare: BareShard, index: ShardIndex) -> str:
    """The first thing in which an index is not what the archive itself tells; "" where all agrees."""
    if bare.problems:
        return bare.problems[0].message
    if bare.keys != columns.to_list(index.keys):
        return f"its {index.num_samples:,} keys are not those of the shard ({len(bare.keys):,})"
    if bare.part_names != columns.to_list(index.part_names) or not np.array_equal(bare.part_start, index.part_start):
        return "its parts are not those of the shard"
    pairs = (
        (bare.offset, index.offset),
        (bare.sample_bytes, index.num_bytes),
        (bare.part_offset, index.part_offset),
        (bare.part_sizes, index.part_bytes),
    )
    same = all(np.array_equal(ours, theirs.astype(np.int64)) for ours, theirs in pairs)
    return "" if same else "its offsets or sizes are not those of the shard"


def find_shards(places: Sequence[str]) -> list[str]:
    """Paths of the shards meant by folders, files, globs and brace ranges, each once, in natural order by folder.

    Raises:
        SourceNotFound: a place that holds no shard.
        SourceError: one that is a FIFO or a device.
    """
    found: dict[str, None] = {}
    for place in places:
        paths = _shards_at(place)
        if not paths:
            raise SourceNotFound(
                f"{place} holds no {' or '.join(SUFFIXES)} shards" if _is_there(place) else f"{place} does not exist",
                hint="name a folder with shards, or shards: 'dir/train-{000..099}.tar'",
                where={"path": place},
            )
        found.update(dict.fromkeys(paths))
    return list(found)


def is_folder(place: str) -> bool:
    """Whether `place` is a folder, or a prefix of objects."""
    if not is_remote(place):
        return os.path.isdir(place)
    return not place.endswith(SUFFIXES) and next(iter(open_place(place).list()), None) is not None


def _is_there(place: str) -> bool:
    return is_folder(place) if is_remote(place) else os.path.exists(place)


def _shards_at(place: str) -> list[str]:
    if is_remote(place):
        return _objects_at(place)
    if os.path.isdir(place):
        top = os.path.join(place, DATA)
        inner = _tars_below(top) if os.path.isdir(top) else []
        return inner or sorted(_tars_in(place), key=natural)
    paths = [place] if os.path.lexists(place) else expand_braces(place)
    if len(paths) > 1 or os.path.lexists(place):
        refuse_special(paths)
        return paths
    return (
        sorted((path for path in glob.glob(place) if os.path.isfile(path)), key=natural) if _GLOB.search(place) else []
    )


def _objects_at(url: str) -> list[str]:
    """As `_shards_at`, of an object store: a glob is matched against what a listing tells."""
    patterns = expand_braces(url)
    if len(patterns) > 1:
        return patterns
    if url.endswith(SUFFIXES) and not _GLOB.search(url):
        place, name = split_file(url)
        return [url] if exists(place, name) else []
    if found := _GLOB.search(url):
        top = url[: found.start()].rpartition("/")[0]
        urls = [f"{top}/{stat.path}" for stat in open_place(top).list()]
        return sorted((one for one in urls if _matches(one, url)), key=natural)
    place = open_place(url)
    names = [stat.path for stat in place.list() if stat.path.endswith(SUFFIXES)]
    inner = [name for name in names if name.startswith(f"{DATA}/")]
    chosen = inner or [name for name in names if "/" not in name]
    return [place.shown(name) for name in sorted(chosen, key=lambda name: (os.path.dirname(name), natural(name)))]


def _matches(url: str, pattern: str) -> bool:
    """As the shell would match: `*` stops at a slash."""
    return url.count("/") == pattern.count("/") and fnmatch.fnmatchcase(url, pattern)


def _tars_in(folder: str) -> Iterable[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIXES) and not entry.name.startswith(".") and entry.is_file():
                yield os.path.join(folder, entry.name)


def _tars_below(top: str) -> list[str]:
    found: list[str] = []
    for folder, folders, _ in os.walk(top):
        folders.sort()
        found += sorted(_tars_in(folder), key=natural)
    return found


def natural(path: str) -> list[tuple[int, str]]:
    """Sorts shard 10 after shard 9, whatever the padding."""
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"([0-9]+)", path)]


def split_of(path: str) -> str:
    """The split that a shard's name begins with, such as `val` in `val-0001.tar`, in our words; `train` by default."""
    for text in (os.path.basename(path), os.path.basename(os.path.dirname(path))):
        word = _WORD.match(text)
        if word is not None and word.group().lower() in SPLIT_ALIASES:
            return SPLIT_ALIASES[word.group().lower()]
    return "train"


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
