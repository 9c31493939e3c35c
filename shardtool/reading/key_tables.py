"""All samples of a finished data set as one table of keys, parts and digests, read from its indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardtool import columns
from shardtool.statistics.dataset_diff import KeyTable

if TYPE_CHECKING:
    from shardtool.model import Int64Array
    from shardtool.reading.reading import Dataset


def key_table(dataset: Dataset) -> KeyTable:
    """The table that two data sets are compared by. Memory: the keys, and about 32 bytes a part."""
    numbers: dict[bytes, int] = {}
    keys, counts, shards, ids, sizes, digests = [], [], [], [], [], []
    for shard in range(dataset.num_shards):
        index = dataset.index(shard)
        keys.append(index.keys.cast(pa.large_binary()))
        counts.append(np.diff(index.part_start))
        shards.append(np.full(index.num_samples, shard, np.int64))
        names = index.part_names.dictionary_encode()
        places = [numbers.setdefault(name, len(numbers)) for name in columns.to_list(names.dictionary)]
        ids.append(np.array(places, np.int32)[names.indices.to_numpy()])
        sizes.append(index.part_bytes.astype(np.int64))
        digests.append(np.array(index.part_xxh3_64))
    return KeyTable(
        keys=pa.concat_arrays(keys) if keys else pa.array([], pa.large_binary()),
        shards=_joined(shards),
        splits=[shard.split for shard in dataset.manifest.shards],
        part_start=np.concatenate([[0], np.cumsum(_joined(counts))]).astype(np.int64),
        part_names=[name.decode("utf-8", "backslashreplace") for name in numbers],
        part_ids=_joined(ids),
        part_sizes=_joined(sizes),
        part_digests=np.concatenate([np.zeros(0, np.uint64), *digests]),
    )


def _joined(arrays: list[Int64Array]) -> Int64Array:
    return np.concatenate([np.zeros(0, np.int64), *arrays])
