"""Where the parts lie in files whose parts are runs of bytes: shards of our data sets, plain tar archives.

No payload is read: an index file, or the headers of an archive.
"""

from __future__ import annotations

import json
import mmap
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from shardtool import columns
from shardtool.errors import CorruptShard, ShardtoolError, SourceError
from shardtool.formats.tar_samples import normal_name
from shardtool.formats.tar_scan import scan_members
from shardtool.manifest import LABELS
from shardtool.model import Tally
from shardtool.names import SPLIT_ALIASES
from shardtool.reading import Dataset
from shardtool.shard_sources.members import Members
from shardtool.shard_sources.ranges import PREFIX

if TYPE_CHECKING:
    from shardtool.index_file import ShardIndex
    from shardtool.model import Int32Array
    from shardtool.shard_sources.find import SourceFile
    from shardtool.shard_sources.spool import SpoolJob

_WORD = re.compile(r"[A-Za-z]+")
FILE, HARD_LINK = ord("0"), ord("1")
_TYPES = {HARD_LINK: "link", ord("2"): "link", ord("5"): "directory"}


def look(job: SpoolJob, task: tuple[int, SourceFile]) -> Members | ShardtoolError:
    """The members of one file; an error comes back as a value, so that all of them can be shown together."""
    file = task[1]
    try:
        return LOOKERS[file.kind](file)
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
    names: tuple[str, ...] = ()
    with suppress(OSError, ValueError), open(os.path.join(dataset.path, LABELS), "rb") as text:
        names = tuple(json.loads(text.read()))
    if not names:
        return None, ()
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


LOOKERS = {"dataset": _look_at_dataset, "tar": _look_at_tar}
