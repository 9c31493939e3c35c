"""`dali/{shard}.idx`: the index of NVIDIA DALI's fn.readers.webdataset, version 1.2.

A line `v1.2 N`, then one a sample: `part offset size name` for each member, single spaces. Source: NVIDIA/DALI,
tools/wds2idx.py. The grammar escapes nothing, and that tool stops at names that are not ASCII: both are refused. The
files lie in a folder of their own, since Hugging Face takes all that lies beside the shards for data.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from shardtool.columns import to_list
from shardtool.dialects import Emission, SideFile
from shardtool.dialects.checks import refuse_names, require_tar, shards_by_split
from shardtool.dialects.rules import READERS, Cut
from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.reading.reading import Dataset

FOLDER = "dali"


def emit(dataset: Dataset, shares: str = "") -> Emission:
    """An index a shard.

    Raises:
        UsageProblem: not tar, or names that the grammar cannot hold.
    """
    require_tar(dataset, "dali")
    refuse_names(
        dataset,
        "dali",
        lambda name: not isinstance(READERS["dali"].cut(name), Cut),
        "hold a blank, a control character or one that is not ASCII: lines of a DALI index have no way to write them",
        "rename these files, or read with another loader",
    )
    splits = shards_by_split(dataset)
    numbers = [number for shards in splits.values() for number in shards]
    paths = {number: _path(dataset.manifest.shards[number].path) for number in numbers}
    if len(set(paths.values())) < len(paths):
        raise UsageProblem(
            "--emit dali: two shards in different folders have one name, and so would their indexes",
            hint="index each folder by itself",
        )
    files = tuple(SideFile(path, partial(_lines, dataset, number)) for number, path in paths.items())
    return Emission("dali", files, _recipe(dataset, next(iter(splits.values()))))


def _path(shard: str) -> str:
    """Of the index: the shard's name up to its first dot, as wds2idx has it."""
    name = os.path.basename(shard)
    return f"{FOLDER}/{name[:1]}{name[1:].partition('.')[0]}.idx"


def _lines(dataset: Dataset, shard: int) -> Iterator[bytes]:
    index = dataset.index(shard)
    yield b"v1.2 %d\n" % index.num_samples
    keys, names = to_list(index.keys), to_list(index.part_names)
    offsets, sizes, bounds = index.part_offset.tolist(), index.part_bytes.tolist(), index.part_start.tolist()
    for sample, key in enumerate(keys):
        rows = range(bounds[sample], bounds[sample + 1])
        members = (b"%s %d %d %s.%s" % (names[row], offsets[row], sizes[row], key, names[row]) for row in rows)
        yield b" ".join(members) + b"\n"


def _recipe(dataset: Dataset, shards: list[int]) -> str:
    root = dataset.path.rstrip("/")
    first = dataset.manifest.shards[shards[0]].path
    parts = ", ".join(f'"{name}"' for name in list(dataset.manifest.parts)[:3])
    return (
        "from nvidia.dali import fn\n"
        f'shards = ["{root}/{first}"]  # and so on: {root}/lists/ from --emit list\n'
        f'indexes = ["{root}/{_path(first)}"]\n'
        f"samples = fn.readers.webdataset(paths=shards, index_paths=indexes, ext=[{parts}])"
    )
