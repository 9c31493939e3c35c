"""Where the parts lie in files whose parts are runs of bytes: shards of our data sets, plain tar archives, records.

A path or URL flows in, `Members` flow out. No payload is kept: an index file is read, or the headers of an archive; in
a bucket, where headers cannot be found by themselves, an object passes by once.
"""

from __future__ import annotations

import mmap
import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xxhash

from shardtool import columns
from shardtool.errors import CorruptShard, ShardtoolError, SourceError
from shardtool.formats import BYTES, CELLS
from shardtool.formats.tar_samples import normal_name
from shardtool.formats.tar_scan import scan_members
from shardtool.manifest import LABELS, decode_labels, load_manifest
from shardtool.model import Tally
from shardtool.names import SPLIT_ALIASES
from shardtool.reading.reading import Dataset
from shardtool.shard_sources.cells import key_of, part_name
from shardtool.shard_sources.find import DATASET
from shardtool.shard_sources.members import Members
from shardtool.shard_sources.objects import object_root
from shardtool.shard_sources.ranges import PREFIX
from shardtool.shard_sources.record_blocks import remote_blocks, whole_block
from shardtool.shard_sources.records import KEYS
from shardtool.shard_sources.remote_headers import tar_headers
from shardtool.storage import is_remote, open_place
from shardtool.storage.base import Stat
from shardtool.storage.files import place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.index_file import ShardIndex
    from shardtool.model import Int32Array, Manifest
    from shardtool.shard_sources.find import SourceFile
    from shardtool.shard_sources.record_blocks import Block
    from shardtool.shard_sources.records import Cell
    from shardtool.shard_sources.spool import SpoolJob


class NeedsDecoding(Exception):
    """A value of the file is no run of its bytes; caught by `look`."""


_WORD = re.compile(r"[A-Za-z]+")
FILE, HARD_LINK = ord("0"), ord("1")
_TYPES = {HARD_LINK: "link", ord("2"): "link", ord("5"): "directory"}


def look(job: SpoolJob, task: tuple[int, SourceFile]) -> Members | ShardtoolError | None:
    """The members of one file; None where some of them must be decoded.

    An error comes back as a value, so that all of them can be shown together.
    """
    file = task[1]
    try:
        return LOOKERS[file.kind](file)
    except NeedsDecoding:
        return None
    except ShardtoolError as error:
        return error
    except OSError as error:
        return SourceError(f"{file.path} cannot be read: {error.strerror or error}", where={"path": file.path})


class _Seen(NamedTuple):
    """Where the parts of a file are read from, and what tells that it is still the same."""

    root: str
    stat: Stat
    guard: int  # of the content: its time in nanoseconds, or a hash of its ETag


def _seen(file: SourceFile) -> _Seen:
    if not is_remote(file.path):
        found = os.stat(file.path)
        return _Seen(PREFIX + file.path, Stat(file.path, found.st_size, ""), found.st_mtime_ns)
    place, name = place_of(file.path)
    stat = file.stat or place.stat(name)
    guard = xxhash.xxh3_64_intdigest(stat.version.encode()) >> 1  # of 63 bits: the column is signed
    return _Seen(object_root(file.path, stat.version), stat, guard)


@lru_cache(maxsize=4)
def _manifest(folder: str, dataset_id: str) -> Manifest:
    """The manifest of a data set; it is the same as long as its identity is."""
    return load_manifest(folder)


def _look_at_dataset(file: SourceFile) -> Members:
    with Dataset.of(file.dataset, _manifest(file.dataset, file.dataset_id)) as dataset:
        index, record = dataset.index(file.shard), dataset.manifest.shards[file.shard]
        if index.addressing not in (BYTES, CELLS) or "raw_bytes" in index.meta:
            raise NeedsDecoding
        seen = _seen(file)
        if seen.stat.num_bytes != record.files[0].num_bytes:
            raise CorruptShard(
                f"{file.path} has {seen.stat.num_bytes:,} bytes, the manifest says {record.files[0].num_bytes:,}",
                hint=f"shardtool verify {file.dataset} tells what is wrong",
                where={"path": file.path},
            )
        labels, names = labels_of(dataset, index)
        return Members(
            root=seen.root,
            file=file.path,
            paths=member_paths(index),
            offsets=index.part_offset.astype(np.int64),
            sizes=index.part_bytes.astype(np.int64),
            mtime_ns=seen.guard,
            digests=index.part_xxh3_64,
            split=record.split,
            labels=labels,
            label_names=names,
            is_dataset=True,
            num_samples=index.num_samples,
        )


def member_paths(index: ShardIndex) -> object:
    """binary[num_parts]: KEY.PART of every part of an index."""
    return columns.joined(columns.take(index.keys, index.owners()), index.part_names, b".")


def labels_of(dataset: Dataset, index: ShardIndex) -> tuple[Int32Array | None, tuple[str, ...]]:
    """(label of each part's sample, class names); (None, ()) where the data set has no names of classes."""
    if index.labels is None or dataset.manifest.labels is None:
        return None, ()
    try:
        names = decode_labels(open_place(dataset.path).read(LABELS))
    except (FileNotFoundError, TypeError, ValueError) as error:
        raise CorruptShard(
            f"{dataset.path} has labels, and their names are lost: {LABELS} is missing or damaged",
            hint=f"shardtool verify {dataset.path} tells what is wrong, shardtool index {dataset.path} builds it again",
            where={"path": dataset.path},
        ) from error
    known = np.where(index.labels < len(names), index.labels, -1)
    return np.asarray(known, np.int32)[index.owners()], names


def _look_at_tar(file: SourceFile) -> Members:
    seen = _seen(file)
    members = scan_members(_tar_buffer(file, seen), file.path)
    ignored, rows, paths = Tally(), [], []
    types = members.types.tolist()
    known: dict[bytes, int] = {}
    for row, name in enumerate(members.names):
        path, target = normal_name(name), row
        if types[row] == HARD_LINK:
            target = known.get(normal_name(members.link_targets[row]) or b"", -1)
        elif types[row] != FILE:
            target = -1
        if path is None or target < 0:
            is_odd = path is None and types[row] in (FILE, HARD_LINK)
            reason = "bad_name" if is_odd else _TYPES.get(types[row], "special")
            ignored.add(reason, name, "absolute, or with `..`" if is_odd else "")
        else:
            known[path] = target
            rows.append(target)
            paths.append(path)
    return Members(
        root=seen.root,
        file=file.path,
        paths=columns.binary(paths),
        offsets=members.data_offset[rows],
        sizes=members.sizes[rows],
        mtime_ns=seen.guard,
        split=split_in_name(file.path),
        ignored=ignored,
        num_samples=len(set(map(_stem, paths))),
    )


def _stem(path: bytes) -> bytes:
    """A member's name up to the first dot behind its folders."""
    folder, slash, name = path.rpartition(b"/")
    return folder + slash + name.partition(b".")[0]


def _tar_buffer(file: SourceFile, seen: _Seen) -> mmap.mmap | bytes:
    """All of an archive, or at least its headers."""
    if seen.stat.num_bytes == 0:
        return b""
    if is_remote(file.path):
        return tar_headers(file.path, seen.stat)
    with open(file.path, "rb") as archive:
        return mmap.mmap(archive.fileno(), 0, prot=mmap.PROT_READ)


def split_in_name(path: str) -> str:
    """The split that the name of a file begins with, `val` in `val-0001.tar`, in our words; "" where it tells none."""
    word = _WORD.match(os.path.basename(path))
    return SPLIT_ALIASES.get(word.group().lower(), "") if word else ""


def _look_at_records(file: SourceFile) -> Members:
    """Records whose values are bytes.

    Raises:
        NeedsDecoding: a value is a number.
    """
    seen = _seen(file)
    if seen.stat.num_bytes == 0:
        raise CorruptShard(f"{file.path} is empty", where={"path": file.path})
    paths, offsets, sizes, num_samples, last = [], [], [], 0, b""
    for path, cell, block in named_cells(blocks_of(file, seen.stat), file.path):
        if cell.offset < 0:
            raise NeedsDecoding
        key = path.rpartition(b".")[0]
        num_samples += key != last
        last = key
        paths.append(path)
        offsets.append(block.base + cell.offset)
        sizes.append(cell.size)
    return Members(
        root=seen.root,
        file=file.path,
        paths=columns.binary(paths),
        offsets=np.array(offsets, np.int64),
        sizes=np.array(sizes, np.int64),
        mtime_ns=seen.guard,
        split=file.split or split_in_name(file.path),
        is_dataset=True,
        num_samples=num_samples,
    )


def blocks_of(file: SourceFile, known: Stat | None = None) -> Iterable[Block]:
    """The records of a file that is not compressed, block by block; `known` spares a look at its size."""
    if is_remote(file.path):
        return remote_blocks(file.path, file.kind, known or _seen(file).stat)
    with open(file.path, "rb") as data:
        # not closed here: an error's traceback may still hold a view of it
        return [whole_block(memoryview(mmap.mmap(data.fileno(), 0, prot=mmap.PROT_READ)), file.path, file.kind)]


def named_cells(blocks: Iterable[Block], path: str) -> Iterator[tuple[bytes, Cell, Block]]:
    """(KEY.PART, cell, its block) for every value of some records: keys from a column, else numbers behind the name."""
    stem = os.path.basename(path).split(".")[0].encode("utf-8", "surrogateescape")
    number = 0
    for block in blocks:
        for cells in block.records:
            named = next((cell for cell in cells if cell.name in KEYS), None)
            key = stem + b"-%08d" % number
            if named is not None:
                key = key_of(named.text or bytes(block.view[named.offset : named.offset + named.size]))
            for cell in cells:
                if cell is not named:
                    yield key + b"." + part_name(cell.name), cell, block
            number += 1


LOOKERS = {
    DATASET: _look_at_dataset,
    "tar": _look_at_tar,
    "tfrecord": _look_at_records,
    "mds": _look_at_records,
    "litdata": _look_at_records,
}
