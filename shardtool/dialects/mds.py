"""`index.json` beside MDS shards, as mosaicml-streaming reads it, from the heads of the shards.

Layout: mosaicml/streaming 0.13.0, base/format/mds. A shard begins with `u32 samples`, then `u32 offset[samples + 1]`,
then JSON that describes its columns; the index repeats that JSON with the size of each file.
"""

from __future__ import annotations

import json
import os
import struct
from functools import partial
from typing import TYPE_CHECKING, Any

from shardtool.dialects import Emission, SideFile
from shardtool.dialects.checks import shards_by_split
from shardtool.errors import CorruptShard, UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.reading.reading import Dataset

_U32 = 4


def emit(dataset: Dataset, shares: str = "") -> Emission:
    """An index.json a folder of shards.

    Raises:
        UsageProblem: shards of another format: streaming reads none of them.
    """
    manifest = dataset.manifest
    if manifest.format != "mds" or manifest.compression not in ("", "none"):
        raise UsageProblem(
            f"--emit mds describes MDS shards; {dataset.path} holds {manifest.format}",
            hint=f"shardtool convert {dataset.path} OUT --format mds writes the data set as MDS",
            where={"path": dataset.path},
        )
    folders: dict[str, list[int]] = {}
    for shards in shards_by_split(dataset).values():
        for number in shards:
            folders.setdefault(os.path.dirname(manifest.shards[number].path), []).append(number)
    own_files = {record.path for record in manifest.side_files}
    files = tuple(
        SideFile(path, partial(_index, dataset, shards))
        for path, shards in ((f"{folder}/index.json", shards) for folder, shards in folders.items())
        if path not in own_files
    )
    place = os.path.join(dataset.path, next(iter(folders)))
    recipe = f'from streaming import StreamingDataset\ndataset = StreamingDataset(local="{place}", batch_size=1)'
    return Emission("mds", files, recipe)


def _index(dataset: Dataset, shards: list[int]) -> Iterator[bytes]:
    entries = [_entry(dataset, number) for number in shards]
    yield json.dumps({"version": 2, "shards": entries}, sort_keys=True).encode() + b"\n"


def _entry(dataset: Dataset, shard: int) -> dict[str, Any]:
    record = dataset.manifest.shards[shard]
    try:
        (samples,) = struct.unpack("<I", dataset.read_range(shard, 0, _U32))
        (first,) = struct.unpack("<I", dataset.read_range(shard, _U32, _U32))
        start = _U32 * (samples + 2)
        config: dict[str, Any] = json.loads(dataset.read_range(shard, start, min(first, record.num_bytes) - start))
    except (ValueError, struct.error) as error:
        raise CorruptShard(
            f"{dataset.shard_path(shard)} does not begin as an MDS shard: {error}",
            hint=f"shardtool verify {dataset.path} --deep tells what is damaged",
            where={"path": dataset.shard_path(shard), "shard": shard},
        ) from error
    hashes = {name: record.files[0].xxh3_128 for name in config["hashes"] if name == "xxh3_128"}
    raw = {"basename": os.path.basename(record.path), "bytes": record.num_bytes, "hashes": hashes}
    return config | {"raw_data": raw, "zip_data": None, "samples": samples}
