"""A finished data set -> its figures: the indexes are read shard by shard, payload never.

Dataset --shard_columns(k)--> metrics.StatsAccumulator --> DatasetStats --document()--> `shardtool/stats/1`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardtool import columns
from shardtool.errors import CorruptShard
from shardtool.manifest import decode_labels
from shardtool.planning.plan import PlanOptions, shard_limit
from shardtool.statistics.metrics import ShardColumns, StatsAccumulator
from shardtool.statistics.overhead import add_causes, overhead_by_cause
from shardtool.storage import open_place
from shardtool.token_lengths import TokenLengths

if TYPE_CHECKING:
    from shardtool.manifest import Manifest
    from shardtool.reading.reading import Dataset
    from shardtool.statistics.metrics import Stats

MAX_RANKED = 100_000_000  # samples whose keys are held to judge their order: about 5 GB at 32 bytes a key


@dataclass(frozen=True)
class ReaderLoad:
    """What each of `world_size` ranks with `loader_workers` processes gets of one split, by plain division."""

    split: str
    samples_min: int
    samples_max: int
    shards_min: int  # a loader process, where shards are dealt whole
    shards_max: int


@dataclass(frozen=True, eq=False)
class DatasetStats:
    """Figures, overhead bytes by cause, and whose they are."""

    manifest: Manifest
    stats: Stats
    overhead: dict[str, int]
    tokens: dict[str, Any] | None = None  # of token shards

    def loads(self, world_size: int, loader_workers: int) -> list[ReaderLoad]:
        """One row a split; `loader_workers` 0 counts as one."""
        readers = world_size * max(loader_workers, 1)
        return [
            ReaderLoad(split, *_shares(totals["samples"], world_size), *_shares(totals["shards"], readers))
            for split, totals in self.manifest.splits().items()
        ]

    def document(self, world_size: int = 0, loader_workers: int = 0) -> dict[str, Any]:
        """The JSON document `shardtool/stats/1`."""
        manifest, stats = self.manifest, self.stats.document()
        readers = None
        if world_size:
            loads = {load.split: vars(load) for load in self.loads(world_size, loader_workers)}
            readers = {"world_size": world_size, "loader_workers": max(loader_workers, 1), "splits": loads}
        return {
            "schema": stats["schema"],
            "dataset_id": manifest.dataset_id,
            "plan_id": manifest.plan_id,
            "format": manifest.format,
            "compression": manifest.compression,
            "membership": manifest.membership,
            **stats,
            "overhead": self.overhead,
            "splits": manifest.splits(),
            "ledger": manifest.ledger,
            "readers": readers,
            **({"tokens": self.tokens} if self.tokens else {}),
        }


def _shares(count: int, readers: int) -> tuple[int, int]:
    return count // readers, -(-count // readers)


def measure_dataset(dataset: Dataset) -> DatasetStats:
    """The figures of a data set; reads every index once.

    Raises:
        CorruptShard: an index is gone or damaged.
    """
    manifest = dataset.manifest
    accumulator, overhead = StatsAccumulator(), dict[str, int]()
    with_keys = manifest.num_samples <= MAX_RANKED
    lengths = TokenLengths(manifest) if manifest.format == "bin" else None
    for shard in range(dataset.num_shards):
        found = shard_columns(dataset, shard, with_keys=with_keys)
        accumulator.add(found)
        if lengths is not None:
            lengths.add(dataset.index(shard).part_bytes)
        sizes = found.part_sizes if found.part_sizes is not None else np.zeros(0, np.int64)
        overhead = add_causes(overhead, overhead_by_cause(manifest.format, sizes, found.file_bytes, 1))
    options = PlanOptions.from_document(manifest.options)
    stats = accumulator.finish(shard_size=shard_limit(options) or None, label_names=label_names(dataset))
    return DatasetStats(manifest, stats, overhead, lengths.document() if lengths else None)


def shard_columns(dataset: Dataset, shard: int, *, with_keys: bool = True) -> ShardColumns:
    """What is counted of shard k; the columns are copies, so that its index may be unmapped.

    Raises:
        CorruptShard: the index is gone or damaged.
    """
    index, record = dataset.index(shard), dataset.manifest.shards[shard]
    sizes = index.part_bytes.astype(np.int64)
    names = index.part_names.dictionary_encode()
    ends = np.concatenate([[0], np.cumsum(sizes)])
    return ShardColumns(
        index=shard,
        split=record.split,
        file_bytes=record.num_bytes,
        payload_bytes=record.payload_bytes,
        sample_bytes=np.diff(ends[index.part_start]).astype(np.int64),
        part_names=[name.decode("utf-8", "backslashreplace") for name in columns.to_list(names.dictionary)],
        part_ids=names.indices.to_numpy(),
        part_sizes=sizes,
        labels=None if index.labels is None else index.labels.astype(np.int32),
        keys=pa.concat_arrays([index.keys, pa.array([], pa.binary())]) if with_keys else None,
    )


def label_names(dataset: Dataset) -> list[str]:
    """Names of the labels, by number; empty where the data set has none.

    Raises:
        CorruptShard: labels.json is gone or damaged.
    """
    record = dataset.manifest.labels
    if record is None:
        return []
    place = open_place(dataset.path)
    path = place.shown(record.path)
    try:
        return list(decode_labels(place.read(record.path)))
    except (OSError, ValueError, TypeError) as error:
        raise CorruptShard(
            f"{path} cannot be read: {error}",
            hint=f"shardtool verify {dataset.path} lists all that is missing",
            where={"path": path},
        ) from error
