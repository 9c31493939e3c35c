"""`sizes.json` beside the shards, and `lists/{split}.txt`: what scripts around webdataset read.

sizes.json is `{shard name: samples}` (mlfoundations/open_clip: training/data.py looks for it in the shards' folder).
"""

from __future__ import annotations

import json
import os
from functools import partial
from typing import TYPE_CHECKING

from shardtool.dialects import Emission, SideFile
from shardtool.dialects.checks import shards_by_split
from shardtool.errors import UsageProblem
from shardtool.names import compact_braces

if TYPE_CHECKING:
    from shardtool.reading.reading import Dataset

FOLDER = "lists"


def emit_sizes(dataset: Dataset, shares: str = "") -> Emission:
    """sizes.json in each folder that holds shards."""
    folders = dict.fromkeys(os.path.dirname(shard.path) for shard in dataset.manifest.shards)
    files = tuple(SideFile(os.path.join(folder, "sizes.json"), partial(_sizes, dataset, folder)) for folder in folders)
    place = os.path.join(dataset.path.rstrip("/"), files[0].path)
    return Emission("sizes", files, f'import json\nsizes = json.load(open("{place}"))\nprint(sum(sizes.values()))')


def _sizes(dataset: Dataset, folder: str) -> list[bytes]:
    shards = [shard for shard in dataset.manifest.shards if os.path.dirname(shard.path) == folder]
    sizes = {os.path.basename(shard.path): shard.num_samples for shard in shards}
    return [json.dumps(sizes, indent=0).encode(), b"\n"]


def emit_list(dataset: Dataset, shares: str = "") -> Emission:
    """The shards of each split, one path below the data set's folder a line.

    Raises:
        UsageProblem: a path that a line cannot hold.
    """
    if any("\n" in shard.path for shard in dataset.manifest.shards):
        raise UsageProblem("--emit list: the path of a shard has a line break", hint="rename it and index again")
    splits = shards_by_split(dataset)
    files = tuple(SideFile(f"{FOLDER}/{split}.txt", partial(_lines, dataset, split)) for split in splits)
    patterns = compact_braces(dataset.manifest.shards[number].path for number in next(iter(splits.values())))
    return Emission("list", files, _recipe(dataset, files[0].path, patterns))


def _recipe(dataset: Dataset, place: str, patterns: list[str]) -> str:
    root, manifest = dataset.path.rstrip("/"), dataset.manifest
    if manifest.format == "tar" and manifest.compression not in ("", "none"):
        root = f"pipe:zstd -dc {root}"  # tarfile reads no zstd before Python 3.14
    urls = f'urls = ["{root}/" + line.strip() for line in open("{dataset.path.rstrip("/")}/{place}")]'
    if manifest.format != "tar":
        return urls
    head = "import webdataset as wds\n"
    if len(patterns) == 1:
        return f'{head}dataset = wds.WebDataset("{root}/{patterns[0]}", shardshuffle=False)'
    return f"{head}{urls}\ndataset = wds.WebDataset(urls, shardshuffle=False)"


def _lines(dataset: Dataset, split: str) -> list[bytes]:
    shards = dataset.manifest.shards
    return [os.fsencode(shards[number].path) + b"\n" for number in shards_by_split(dataset)[split]]
