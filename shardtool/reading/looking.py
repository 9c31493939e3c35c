"""One shard or one sample of a data set in full, as figures that `report/inspect` shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardtool import columns
from shardtool.formats import ROWS
from shardtool.index_file import NO_FILE, part_table
from shardtool.sniff import describe
from shardtool.statistics.dataset_stats import label_names
from shardtool.statistics.overhead import overhead_by_cause

if TYPE_CHECKING:
    from shardtool.manifest import ManifestShard
    from shardtool.reading.reading import Dataset
    from shardtool.sniff import Preview

NUM_KEYS = 3  # first and last keys of a shard that are shown


@dataclass(frozen=True)
class PartColumn:
    """One part name over a shard; sizes in bytes."""

    name: bytes
    samples: int
    num_bytes: int
    smallest: int
    p50: int
    largest: int


@dataclass(frozen=True)
class ShardView:
    """A shard: what the manifest and its index say."""

    number: int
    record: ManifestShard
    digest: str
    num_parts: int
    num_blocks: int
    overhead: dict[str, int]
    first_keys: tuple[bytes, ...]
    last_keys: tuple[bytes, ...]
    parts: tuple[PartColumn, ...]
    labels: dict[str, int]  # samples a label


@dataclass(frozen=True)
class PartView:
    """A part of a sample: where it lies, what it came from, and what its bytes are."""

    name: bytes
    num_bytes: int
    offset: int
    xxh3_64: int
    source: bytes | None  # None: no file held it
    preview: Preview


@dataclass(frozen=True)
class SampleView:
    """A sample: its place and its parts."""

    key: bytes
    shard: int
    sample: int
    record: ManifestShard
    addressing: str  # BYTES; for CELLS and ROWS offset is the group, num_bytes the row in it
    offset: int
    num_bytes: int
    label: int | None
    label_name: str
    parts: tuple[PartView, ...]


def view_shard(dataset: Dataset, number: int) -> ShardView:
    """Shard k of the data set.

    Raises:
        CorruptShard: its index is gone or damaged.
    """
    index, record = dataset.index(number), dataset.manifest.shards[number]
    sizes = index.part_bytes.astype(np.int64)
    last = max(index.num_samples - NUM_KEYS, min(NUM_KEYS, index.num_samples))
    labels: dict[str, int] = {}
    if index.labels is not None:
        names = label_names(dataset)
        counts = np.bincount(index.labels[index.labels >= 0])
        labels = {names[n] if n < len(names) else str(n): c for n, c in enumerate(counts.tolist()) if c}
    return ShardView(
        number=number,
        record=record,
        digest=record.files[0].xxh3_128,
        num_parts=index.num_parts,
        num_blocks=len(index.block_digests),
        overhead=overhead_by_cause(dataset.manifest.format, sizes, record.num_bytes, 1),
        first_keys=tuple(columns.to_list(index.keys.slice(0, NUM_KEYS))),
        last_keys=tuple(columns.to_list(index.keys.slice(last))),
        parts=tuple(
            PartColumn(
                name,
                len(rows),
                int(sizes[rows].sum()),
                int(sizes[rows].min()),
                int(np.quantile(sizes[rows], 0.5, method="inverted_cdf")),
                int(sizes[rows].max()),
            )
            for name, rows in part_table(index)
        ),
        labels=labels,
    )


def view_sample(dataset: Dataset, shard: int, sample: int) -> SampleView:
    """One sample; of each part at most its first MiB is read.

    Raises:
        CorruptShard: the shard is cut short, or its index damaged.
    """
    index = dataset.index(shard)
    key = index.key(sample)
    parts = []
    for row in range(int(index.part_start[sample]), int(index.part_start[sample + 1])):
        name, start, size = index.part_names[row].as_py(), int(index.part_offset[row]), int(index.part_bytes[row])

        def read(offset: int, count: int, start: int = start, size: int = size, row: int = row) -> bytes:
            if index.addressing == ROWS:
                return dataset.read_part(shard, row, check=False)[offset : offset + count]
            return dataset.read_range(shard, start + offset, max(min(count, size - offset), 0))

        source = index.part_source[row].as_py()
        parts.append(
            PartView(
                name,
                size,
                start,
                int(index.part_xxh3_64[row]),
                None if source == NO_FILE else source or key + b"." + name,
                describe(size, read),
            )
        )
    label = None if index.labels is None else int(index.labels[sample])
    names = label_names(dataset) if label is not None else []
    return SampleView(
        key=key,
        shard=shard,
        sample=sample,
        record=dataset.manifest.shards[shard],
        addressing=index.addressing,
        offset=int(index.offset[sample]),
        num_bytes=int(index.num_bytes[sample]),
        label=label,
        label_name=names[label] if label is not None and 0 <= label < len(names) else "",
        parts=tuple(parts),
    )
