"""Index files of data sets, wherever they lie: mapped from a folder; from an object store fetched once and kept.

What was fetched is kept below `$SHARDTOOL_CACHE/indexes` under its digest, which is checked whenever it is opened, and
shared by all processes of the machine. Bounded: the files used longest ago go once there is more than 2 GiB. Where
nothing can be kept, an index is held in memory.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.errors import CorruptShard, DestinationError, NoSpace
from shardtool.hashing import digest_chunks
from shardtool.index_file import decode_index, open_index
from shardtool.storage import open_place
from shardtool.storage.cache import cache_folder
from shardtool.storage.local import put_file

if TYPE_CHECKING:
    from shardtool.index_file import ShardIndex
    from shardtool.model import FileRecord

LIMIT_BYTES = 2 << 30
_FOLDER = "indexes"


def read_index(out: str, path: str) -> ShardIndex:
    """The index at `path` of the data set at `out`, as it lies there now.

    Raises:
        FileNotFoundError: it is gone.
        CorruptShard: it is not an index.
    """
    place = open_place(out)
    shown = place.shown(path)
    return open_index(shown) if place.is_local else decode_index(place.read(path), shown)


def load_index(out: str, record: FileRecord) -> ShardIndex:
    """The index that `record` names, of the data set at `out`.

    Raises:
        FileNotFoundError: it is gone.
        CorruptShard: it is not an index, or of a store not the one that the manifest names.
    """
    place = open_place(out)
    path = place.shown(record.path)
    if place.is_local:
        return open_index(path)
    kept = os.path.join(cache_folder(), _FOLDER, f"{record.xxh3_128}.arrow")
    with suppress(OSError, CorruptShard):
        found = pa.memory_map(os.fsencode(kept)).read_buffer()
        if digest_chunks([memoryview(found)]) == record.xxh3_128:
            os.utime(kept)
            return decode_index(found, path)
    data = place.read(record.path)
    if digest_chunks([data]) != record.xxh3_128:
        raise CorruptShard(
            f"{path} is not the index that the manifest names: its digest is another",
            hint=f"shardtool index {out} builds it again from the shard",
            where={"url": path},
        )
    _keep(record, data)
    return decode_index(pa.py_buffer(data), path)


def _keep(record: FileRecord, data: bytes) -> None:
    """Write it to the cache, where there is room and right to do so."""
    folder = os.path.join(cache_folder(), _FOLDER)
    with suppress(OSError, DestinationError, NoSpace):
        put_file(folder, f"{record.xxh3_128}.arrow", data, tag="index", durable=False)
        if record.xxh3_128.startswith("00"):  # one of 256: a look at all of them takes time
            _trim(folder)


def _trim(folder: str) -> None:
    """Remove those used longest ago until three quarters of the limit are left."""
    with os.scandir(folder) as entries:
        found = [(entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in entries if entry.is_file()]
    total = sum(size for _, size, _ in found)
    if total <= LIMIT_BYTES:
        return
    for _, size, path in sorted(found):
        with suppress(OSError):
            os.unlink(path)
        total -= size
        if total <= LIMIT_BYTES * 3 // 4:
            return
