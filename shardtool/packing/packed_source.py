"""Sources of `pack` that were packed before: a data set is refused, shards among the files are noticed.

Packed as files, shards become samples of shards. That is seldom meant, and it is never noticed before training.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import ShardtoolError, UsageProblem
from shardtool.manifest import MANIFEST, SCHEMA
from shardtool.model import Problem
from shardtool.names import HIDDEN
from shardtool.planning.plan_file import PLAN_JSON
from shardtool.storage import open_place
from shardtool.storage.files import exists
from shardtool.units import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.model import SampleTable, ScanResult
    from shardtool.planning.plan import PlanOptions

SHARD_PARTS = frozenset(
    b"tar tar.gz tgz tar.zst tar.bz2 tar.xz zip parquet arrow tfrecord tfrecord.gz mds mds.zstd".split()
)
_HEAD_BYTES = 256  # of a manifest; its schema comes first
_MAX_EXAMPLES = 5


def refuse_datasets(sources: Sequence[str], out: str, options: PlanOptions) -> None:
    """Refuse to pack a data set as if its shards were the samples, unless each file is to be one, or a list names them.

    Raises:
        UsageProblem: with the command that packs its samples.
    """
    if options.source != "files" or options.group_by == "file" or options.files_from:
        return
    packed = [source for source in sources if is_dataset(source)]
    if packed:
        is_are = "is a data set" if len(packed) == 1 else "are data sets"
        raise UsageProblem(
            f"{', '.join(packed)} {is_are}: pack would take the shards for samples",
            hint=f"shardtool convert {' '.join(sources)} {out} packs the samples in them; --group-by file packs the"
            " shards themselves, each as a sample",
            where={"path": packed[0]},
        )


def is_dataset(source: str) -> bool:
    """Whether a data set lies in this folder or prefix itself, finished or begun. A few requests to a store."""
    place, head = open_place(source), memoryview(bytearray(_HEAD_BYTES))
    with suppress(OSError, ShardtoolError):
        if exists(place, PLAN_JSON):
            return True
        if not place.is_local or os.path.isfile(place.shown(MANIFEST)):
            count = place.read_into(MANIFEST, 0, head)
            return f'"{SCHEMA}"'.encode() in bytes(head[:count])
    return False


def shards_noticed(scanned: ScanResult, samples: SampleTable) -> list[Problem]:
    """A notice of data sets below the sources, or else of sources whose files are mostly shards or archives."""
    return _datasets_below(scanned) or _shards_among(samples)


def _datasets_below(scanned: ScanResult) -> list[Problem]:
    hidden = os.fsencode(HIDDEN)
    found = {
        os.fsdecode(path.partition(b"/" + hidden)[0]): None
        for reason, path, _ in scanned.ignored.entries
        if reason == "junk" and hidden in path.split(b"/")
    }
    if not found:
        return []
    message = f"{plural(len(found), 'data set lies', 'data sets lie')} in the source, and shards are taken for samples"
    hint = "leave such a folder out with --exclude FOLDER, or pack its samples with shardtool convert"
    return [Problem("dataset", len(found), tuple(found)[:_MAX_EXAMPLES], message, hint, is_fatal=False)]


def _shards_among(samples: SampleTable) -> list[Problem]:
    counts = np.bincount(samples.part_name, minlength=len(samples.part_names)).tolist()
    shards = {
        name: count for name, count in zip(samples.part_names, counts, strict=True) if count and name in SHARD_PARTS
    }
    total = sum(shards.values())
    if 2 * total < len(samples.part_name) or not total:
        return []
    message = (
        f"{total:,} of {plural(len(samples.part_name), 'file')} are shards or archives, and each is taken for a part"
    )
    shown = tuple(name.decode() for name in sorted(shards))
    hint = "shardtool convert packs the samples in them"
    return [Problem("shards", total, shown, message, hint, is_fatal=False)]
