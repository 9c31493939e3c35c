"""Shards read back through the webdataset package, as a training run would read them: the task of a worker."""

from __future__ import annotations

import os
import warnings
from typing import IO, TYPE_CHECKING, Any, cast

import xxhash

from shardtool import columns
from shardtool.formats.tar_samples import normal_name
from shardtool.indexing.cache import load_index
from shardtool.storage.files import local_copy
from shardtool.verification.shard import MAX_FAULTS, Fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.index_file import ShardIndex
    from shardtool.verification.shard import VerifyJob


def read_back(job: VerifyJob, shard: int) -> list[Fault]:
    """Where webdataset does not make of shard k what its index says: samples, keys in order, parts by digest."""
    record = job.shards[shard]
    if record.index is None:
        return []
    index = load_index(job.out, record.index)
    faults: list[Fault] = []
    number = -1
    try:
        for number, sample in enumerate(_samples(os.path.join(job.out, record.path))):
            message = _difference(index, number, sample)
            if message and len(faults) < MAX_FAULTS:
                offset = int(index.offset[number]) if number < index.num_samples else None
                key = index.key(number) if number < index.num_samples else None
                faults.append(Fault("reader", f"{record.path}: {message}", record.path, shard, offset, key))
    except Exception as error:  # whatever that package raises is what a training run would see
        message = f"webdataset fails after {number + 1:,} samples: {type(error).__name__}: {error}"
        faults.append(Fault("reader", f"{record.path}: {message}", record.path, shard))
    else:
        if number + 1 != index.num_samples:
            message = f"webdataset reads {number + 1:,} samples, the index has {index.num_samples:,}"
            faults.append(Fault("reader", f"{record.path}: {message}", record.path, shard))
    return faults


def _samples(path: str) -> Iterator[dict[str, Any]]:
    from webdataset.tariterators import group_by_keys, tar_file_expander

    with local_copy(path) as copy, warnings.catch_warnings(), open(copy, "rb") as file:
        warnings.simplefilter("ignore")
        stream = _decompressed(file) if path.endswith(".zst") else file
        yield from group_by_keys(tar_file_expander([{"url": path, "stream": stream}], handler=_raise), handler=_raise)


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    """What `zstd -dc`, in a pipe of webdataset, would give."""
    import zstandard

    return cast("IO[bytes]", zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))


def _plain(key: str) -> str:
    """`key` as an index has it: webdataset leaves `./` where tar wrote it."""
    name = normal_name(key.encode("utf-8", "surrogateescape"))
    return key if name is None else name.decode("utf-8", "surrogateescape")


def _raise(error: BaseException) -> bool:
    raise error


def _difference(index: ShardIndex, number: int, sample: dict[str, Any]) -> str:
    if number >= index.num_samples:
        return f"webdataset reads a sample {sample['__key__']!r} that the index does not have"
    key = index.key(number).decode("utf-8", "surrogateescape")
    if _plain(sample["__key__"]) != key:
        return f"webdataset reads sample #{number + 1:,} as {sample['__key__']!r}, the index has {key!r}"
    first, last = int(index.part_start[number]), int(index.part_start[number + 1])
    names = columns.to_list(index.part_names.slice(first, last - first))
    wanted = {
        name.decode("utf-8", "surrogateescape").lower(): int(digest)
        for name, digest in zip(names, index.part_xxh3_64[first:last], strict=True)
    }
    found = {name.lower(): xxhash.xxh3_64_intdigest(data) for name, data in sample.items() if not name.startswith("__")}
    if found == wanted:
        return ""
    differing = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
    return f"webdataset reads other parts of {key!r}: {', '.join(differing)}"
