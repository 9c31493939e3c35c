"""Where the parts lie in files whose parts are runs of bytes: shards of our data sets, plain tar archives.

No payload is read: an index file, or the headers of an archive.
"""

from __future__ import annotations

import mmap
import os
import re
from typing import TYPE_CHECKING

import numpy as np

from shardtool import columns
from shardtool.errors import CorruptShard, ShardtoolError, SourceError
from shardtool.formats.tar_samples import normal_name
from shardtool.formats.tar_scan import scan_members
from shardtool.manifest import LABELS, decode_labels
from shardtool.model import Tally
from shardtool.names import SPLIT_ALIASES
from shardtool.reading.reading import Dataset
from shardtool.shard_sources.cells import key_of, part_name
from shardtool.shard_sources.find import STREAM
from shardtool.shard_sources.members import Members
from shardtool.shard_sources.ranges import PREFIX
from shardtool.shard_sources.records import KEYS, PARSERS
from shardtool.storage import open_place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.index_file import ShardIndex
    from shardtool.model import Int32Array
    from shardtool.shard_sources.find import SourceFile
    from shardtool.shard_sources.records import Cell
    from shardtool.shard_sources.spool import SpoolJob


class NeedsDecoding(Exception):
    """A value of the file is no run of its bytes; caught by `look`."""


_WORD = re.compile(r"[A-Za-z]+")
FILE, HARD_LINK = ord("0"), ord("1")
_TYPES = {HARD_LINK: "link", ord("2"): "link", ord("5"): "directory"}


def look(job: SpoolJob, task: tuple[int, SourceFile]) -> Members | ShardtoolError:
    """The members of one file; an error comes back as a value, so that all of them can be shown together."""
    file = task[1]
    try:
        return LOOKERS[file.kind](file)
    except NeedsDecoding:
        from shardtool.shard_sources.spool import unpack

        return unpack(job, task)
    except ShardtoolError as error:
        return error
    except OSError as error:
        return SourceError(f"{file.path} cannot be read: {error.strerror or error}", where={"path": file.path})


def _look_at_dataset(file: SourceFile) -> Members:
    with Dataset.open(file.dataset) as dataset:
        index, record = dataset.index(file.shard), dataset.manifest.shards[file.shard]
        size = os.stat(file.path).st_size
        if size != record.files[0].num_bytes:
            raise CorruptShard(
                f"{file.path} has {size:,} bytes, the manifest says {record.files[0].num_bytes:,}",
                hint=f"shardtool verify {file.dataset} tells what is wrong",
                where={"path": file.path},
            )
        labels, names = labels_of(dataset, index)
        return Members(
            root=PREFIX + file.path,
            file=file.path,
            paths=member_paths(index),
            offsets=index.part_offset.astype(np.int64),
            sizes=index.part_bytes.astype(np.int64),
            mtime_ns=os.stat(file.path).st_mtime_ns,
            digests=index.part_xxh3_64,
            split=record.split,
            labels=labels,
            label_names=names,
            is_dataset=True,
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
    stat = os.stat(file.path)
    with open(file.path, "rb") as archive:
        if stat.st_size == 0:
            scan_members(b"", file.path)
        members = scan_members(mmap.mmap(archive.fileno(), 0, prot=mmap.PROT_READ), file.path)
    ignored, rows, paths = Tally(), [], []
    types = members.types.tolist()
    known: dict[bytes, int] = {}
    for row, name in enumerate(members.names):
        path, place = normal_name(name), row
        if types[row] == HARD_LINK:
            place = known.get(normal_name(members.link_targets[row]) or b"", -1)
        elif types[row] != FILE:
            place = -1
        if path is None or place < 0:
            is_odd = path is None and types[row] in (FILE, HARD_LINK)
            reason = "bad_name" if is_odd else _TYPES.get(types[row], "special")
            ignored.add(reason, name, "absolute, or with `..`" if is_odd else "")
        else:
            known[path] = place
            rows.append(place)
            paths.append(path)
    return Members(
        root=PREFIX + file.path,
        file=file.path,
        paths=columns.binary(paths),
        offsets=members.data_offset[rows],
        sizes=members.sizes[rows],
        mtime_ns=stat.st_mtime_ns,
        split=split_in_name(file.path),
        ignored=ignored,
    )


def split_in_name(path: str) -> str:
    """The split that the name of a file begins with, `val` in `val-0001.tar`, in our words; "" where it tells none."""
    word = _WORD.match(os.path.basename(path))
    return SPLIT_ALIASES.get(word.group().lower(), "") if word else ""


def _look_at_records(file: SourceFile) -> Members:
    """Records whose values are bytes.

    Raises:
        NeedsDecoding: a value is a number.
    """
    stat = os.stat(file.path)
    paths, offsets, sizes = [], [], []
    with open(file.path, "rb") as data:
        if stat.st_size == 0:
            raise CorruptShard(f"{file.path} is empty", where={"path": file.path})
        # not closed here: an error's traceback may still hold a view of it
        view = memoryview(mmap.mmap(data.fileno(), 0, prot=mmap.PROT_READ))
    for path, cell in named_cells(view, file):
        if cell.offset < 0:
            raise NeedsDecoding
        paths.append(path)
        offsets.append(cell.offset)
        sizes.append(cell.size)
    return Members(
        root=PREFIX + file.path,
        file=file.path,
        paths=columns.binary(paths),
        offsets=np.array(offsets, np.int64),
        sizes=np.array(sizes, np.int64),
        mtime_ns=stat.st_mtime_ns,
        split=file.split or split_in_name(file.path),
        is_dataset=True,
    )


def named_cells(view: memoryview, file: SourceFile) -> Iterator[tuple[bytes, Cell]]:
    """(KEY.PART, cell) for every value of the records in `view`: keys from a column, else numbers behind the name."""
    stem = os.path.basename(file.path).split(".")[0].encode("utf-8", "surrogateescape")
    for number, cells in enumerate(PARSERS[file.kind.removesuffix(STREAM)](view, file.path)):
        named = next((cell for cell in cells if cell.name in KEYS), None)
        key = stem + b"-%08d" % number
        if named is not None:
            key = key_of(named.text or bytes(view[named.offset : named.offset + named.size]))
        for cell in cells:
            if cell is not named:
                yield key + b"." + part_name(cell.name), cell


LOOKERS = {
    "dataset": _look_at_dataset,
    "tar": _look_at_tar,
    "tfrecord": _look_at_records,
    "mds": _look_at_records,
    "litdata": _look_at_records,
}
