"""`wids/{split}.json`: the shard list of wids (webdataset before 1.0), which reads samples by number.

Layout: webdataset/webdataset 0.2.111, wids/wids_specs.py. wids reads the 100-byte name field of tar headers and nothing
else (wids/wids_mmtar.py), so longer names are refused. It sorts no shards: the order here is the order of the samples.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from shardtool.dialects import Emission, SideFile
from shardtool.dialects.checks import refuse_names, require_tar, shards_by_split
from shardtool.dialects.rules import READERS, Cut
from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from shardtool.reading.reading import Dataset

FOLDER = "wids"


def emit(dataset: Dataset, shares: str = "") -> Emission:
    """A list of shards a split; paths in it are relative to its own folder.

    Raises:
        UsageProblem: not tar, or names that wids would cut or cannot read.
    """
    require_tar(dataset, "wids")
    refuse_names(
        dataset,
        "wids",
        _is_unreadable,
        "are longer than 100 bytes, not UTF-8, or hold a line break: wids cuts the first and stops at the others",
        "wids reads the name field of a tar header only: pack with shorter folder names",
    )
    _check_paths(dataset)
    splits = shards_by_split(dataset)
    files = tuple(SideFile(f"{FOLDER}/{split}.json", partial(_content, dataset, split)) for split in splits)
    first = next(iter(splits))
    recipe = (
        "import wids  # pip install 'webdataset<1'; localname=str reads shards in place, not from copies in /tmp\n"
        f'dataset = wids.ShardListDataset("{dataset.path.rstrip("/")}/{FOLDER}/{first}.json", localname=str)\n'
        "print(len(dataset), dataset[0].keys())"
    )
    return Emission("wids", files, recipe)


def _is_unreadable(name: bytes) -> bool:
    return not isinstance(READERS["wids"].cut(name), Cut)


def _check_paths(dataset: Dataset) -> None:
    odd = [shard.path for shard in dataset.manifest.shards if set(shard.path) & set("?#;:")]
    if odd:
        raise UsageProblem(
            f"--emit wids: {odd[0]!r} has one of ? # ; : in its path, which wids reads as parts of a URL",
            hint="rename the shards and index them again",
            where={"path": odd[0]},
        )


def _content(dataset: Dataset, split: str) -> list[bytes]:
    manifest = dataset.manifest
    shards = [manifest.shards[number] for number in shards_by_split(dataset)[split]]
    head = json.dumps({"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": split})[:-1]
    lines = [
        json.dumps({"url": f"../{shard.path}", "nsamples": shard.num_samples, "filesize": shard.num_bytes})
        for shard in shards
    ]
    return [f'{head}, "shardlist": [\n'.encode(), ",\n".join(lines).encode(), b"\n]}\n"]
