"""What several dialects ask of a data set before they write a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xxhash

from shardtool.columns import to_list
from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardtool.index_file import ShardIndex
    from shardtool.model import UInt64Array
    from shardtool.reading.reading import Dataset

MAX_SHOWN = 3


def require_tar(dataset: Dataset, dialect: str) -> None:
    """Refuse a data set that is not plain tar.

    Raises:
        UsageProblem: another format, or compressed shards: offsets into them lead nowhere.
    """
    manifest = dataset.manifest
    if manifest.format == "tar" and manifest.compression in ("", "none"):
        return
    found = manifest.format if manifest.format != "tar" else f"tar compressed with {manifest.compression}"
    raise UsageProblem(
        f"--emit {dialect} describes plain tar shards; {dataset.path} holds {found}",
        hint="shardtool convert writes the data set as tar"
        if manifest.format != "tar"
        else "pack with --compress none",
        where={"path": dataset.path},
    )


def refuse_names(dataset: Dataset, dialect: str, is_bad: Callable[[bytes], bool], why: str, hint: str) -> None:
    """Refuse a data set that has member names which `is_bad` finds.

    Raises:
        UsageProblem: counts them, and shows the first.
    """
    count, shown = 0, list[bytes]()
    for shard in range(dataset.num_shards):
        for name in member_names(dataset.index(shard)):
            if is_bad(name):
                count += 1
                shown += [name] if len(shown) < MAX_SHOWN else []
    if count:
        examples = "".join(f"\n  {name.decode('utf-8', 'backslashreplace')!r}" for name in shown)
        rest = f"\n  and {count - MAX_SHOWN:,} more" if count > MAX_SHOWN else ""
        raise UsageProblem(
            f"--emit {dialect}: {count:,} member names {why}{examples}{rest}", hint=hint, where={"path": dataset.path}
        )


def member_names(index: ShardIndex) -> Iterator[bytes]:
    """key + b"." + part name of each member, in the order of the shard."""
    keys, names = to_list(index.keys), to_list(index.part_names)
    bounds = index.part_start.tolist()
    for sample, key in enumerate(keys):
        for name in names[bounds[sample] : bounds[sample + 1]]:
            yield key + b"." + name


def hash_keys(index: ShardIndex) -> UInt64Array:
    """uint64[num_samples]: xxh3_64 of the keys of a shard."""
    return np.fromiter(map(xxhash.xxh3_64_intdigest, to_list(index.keys)), np.uint64, index.num_samples)


def shards_by_split(dataset: Dataset) -> dict[str, list[int]]:
    """{split: its shards that hold samples}, in the order of the manifest."""
    found: dict[str, list[int]] = {}
    for number, shard in enumerate(dataset.manifest.shards):
        if shard.num_samples:
            found.setdefault(shard.split, []).append(number)
    return found
