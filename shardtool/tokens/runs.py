"""Run files: some documents as token ids, sorted as the data set will be, with a table beside them.

`.shardtool/parts/000012-000.bin` holds the ids, `000012-000.arrow` a row a document. Sorted runs make stage 2 a
merge that reads every run from front to back, whatever the shuffle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from shardtool import columns
from shardtool.errors import CorruptShard
from shardtool.formats.bin_index import DTYPES, dtype_for
from shardtool.names import HIDDEN
from shardtool.packing.destination import spool_folder
from shardtool.planning.splits import SPLIT_TAG
from shardtool.storage import is_remote
from shardtool.storage.files import absolute
from shardtool.storage.local import LocalFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.model import BinaryArray, Int64Array, UInt64Array

FOLDER = f"{HIDDEN}/parts"
PIECE_BYTES = 4 << 20  # of ids gathered at a time: they are hashed and written while they are in the cache
_FIELDS = {
    "key": pa.binary(),
    "hash": pa.uint64(),  # xxh3_64(key, seed): the place in the shuffle
    "split": pa.uint64(),  # xxh3_64(tag + key, seed): the place among the splits
    "place": pa.uint32(),  # before the run was sorted
    "tokens": pa.uint32(),
    "offset": pa.uint64(),  # byte in the run
    "xxh3_64": pa.uint64(),  # of the ids
    "text_bytes": pa.uint32(),
    "high": pa.uint64(),  # xxh3_128 of the content, for --dedup
    "low": pa.uint64(),
}
_SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, kind in _FIELDS.items()])


@dataclass(frozen=True)
class RunInfo:
    """What a receipt says of a run."""

    name: str  # 000012-000
    documents: int
    tokens: int
    num_bytes: int
    smallest_id: int
    largest_id: int
    dtype: str


class RunBuilder:
    """Documents that are gathered to a run.

    Args:
        dtype: of the ids; `auto` is the narrowest that holds those of this run.
        seed: of the hashes.
        sort: by hash; else documents stay in their order.
        splits: hash the keys a second time, for splits or duplicates; else these hashes are 0.
    """

    def __init__(self, dtype: str, seed: int, *, sort: bool, splits: bool) -> None:
        self.dtype, self.seed, self.sort, self.splits = dtype, seed, sort, splits
        self.range = (0, 0)  # of the ids
        self.keys: list[bytes] = []
        self._ids = _Ids()
        self._lengths: list[Int64Array] = []
        self._text_bytes: list[Int64Array] = []
        self._content: list[bytes] = []

    def note_range(self, low: int, high: int) -> None:
        """Ids from `low` to `high` come with the next documents."""
        self.range = (min(low, self.range[0]), max(high, self.range[1]))

    def add(
        self, keys: list[bytes], ids: NDArray[Any], lengths: Int64Array, text_bytes: Int64Array, content: list[bytes]
    ) -> None:
        """Take documents; `content` are their digests, where duplicates are looked for."""
        self.keys += keys
        self._ids.add(ids, self.dtype if self.dtype != "auto" else dtype_for(self.range[1]))
        self._lengths.append(lengths)
        self._text_bytes.append(text_bytes)
        self._content += content

    @property
    def num_bytes(self) -> int:
        """Bytes of the ids so far."""
        return self._ids.taken.nbytes

    def write(self, out: str, name: str, tag: str, *, durable: bool) -> RunInfo:
        """Write the run called `name`; its table after its ids."""
        lengths = np.concatenate(self._lengths)
        ids, dtype = self._ids.taken, self.dtype if self.dtype != "auto" else dtype_for(self.range[1])
        hashes = _hashes(self.keys, self.seed)
        keys = columns.binary(self.keys)
        order = sorted_order(hashes, keys) if self.sort else np.arange(len(lengths))
        sizes = lengths[order] * ids.itemsize
        table = {
            "key": keys.take(pa.array(order)) if self.sort else keys,
            "hash": hashes[order],
            "split": self._split_hashes()[order],
            "place": order.astype(np.uint32),
            "tokens": lengths[order].astype(np.uint32),
            "offset": (np.cumsum(sizes) - sizes).astype(np.uint64),
            "xxh3_64": self._put_ids(out, name, tag, as_binary(ids, lengths), order, sizes, durable=durable),
            "text_bytes": np.concatenate(self._text_bytes)[order].astype(np.uint32),
            **_content_columns(self._content, order),
        }
        batch = pa.record_batch([pa.array(column, _FIELDS[field]) for field, column in table.items()], schema=_SCHEMA)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, _SCHEMA) as writer:
            writer.write_batch(batch)
        _put(out, f"{FOLDER}/{name}.arrow", [memoryview(sink.getvalue())], tag, durable=durable)
        return RunInfo(name, len(lengths), len(ids), ids.nbytes, *self.range, dtype)

    def _split_hashes(self) -> UInt64Array:
        if not self.splits:
            return np.zeros(len(self.keys), np.uint64)
        return _hashes([SPLIT_TAG + key for key in self.keys], self.seed)

    def _put_ids(
        self,
        out: str,
        name: str,
        tag: str,
        payload: BinaryArray,
        order: Int64Array,
        sizes: Int64Array,
        *,
        durable: bool,
    ) -> UInt64Array:
        """Write the ids of all documents in `order`, a few MiB at a time; the digest of each document."""
        digests = [np.zeros(0, np.uint64)]
        file = LocalFile(out, f"{FOLDER}/{name}.bin", tag)
        try:
            for first, last in pairwise(_pieces(sizes)):
                rows = payload.slice(first, last - first)
                data = payload_of(payload.take(pa.array(order[first:last])) if self.sort else rows)
                ends = np.cumsum(sizes[first:last])
                digests.append(digests_of(data, ends - sizes[first:last], sizes[first:last]))
                file.write(data)
            file.publish(durable=durable)
        finally:
            file.abort()
        return np.concatenate(digests)


class _Ids:
    """Ids that are gathered in one buffer, which grows in place; its type widens once an id asks for it."""

    def __init__(self) -> None:
        self._buffer: NDArray[Any] = np.empty(0, np.uint8)
        self._count = 0

    @property
    def taken(self) -> NDArray[Any]:
        """All ids so far."""
        return self._buffer[: self._count]

    def add(self, ids: NDArray[Any], dtype: str) -> None:
        """Append ids, as `dtype`; that they fit was checked."""
        end = self._count + len(ids)
        if self._buffer.dtype != DTYPES[dtype]:
            self._buffer = self.taken.astype(DTYPES[dtype])
        if end > len(self._buffer):
            self._buffer.resize(max(end, 2 * len(self._buffer)), refcheck=False)
        np.copyto(self._buffer[self._count : end], ids, casting="unsafe")
        self._count = end


def _pieces(sizes: Int64Array) -> list[int]:
    """Bounds of rows of about `PIECE_BYTES`, at least one row each."""
    owners = (np.cumsum(sizes) - 1) // PIECE_BYTES
    return [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(sizes)]


def _hashes(keys: list[bytes], seed: int) -> UInt64Array:
    return np.fromiter((xxhash.xxh3_64_intdigest(key, seed) for key in keys), np.uint64, len(keys))


def _content_columns(content: list[bytes], order: Int64Array) -> dict[str, UInt64Array]:
    if not content:
        nothing = np.zeros(len(order), np.uint64)
        return {"high": nothing, "low": nothing}
    pairs = np.frombuffer(b"".join(content), ">u8").reshape(-1, 2)[order].astype(np.uint64)
    return {"high": pairs[:, 0], "low": pairs[:, 1]}


def _put(out: str, path: str, pieces: list[memoryview], tag: str, *, durable: bool) -> None:
    file = LocalFile(out, path, tag)
    try:
        for piece in pieces:
            file.write(piece)
        file.publish(durable=durable)
    finally:
        file.abort()


def as_binary(ids: NDArray[Any], lengths: Int64Array) -> BinaryArray:
    """large_binary[n]: the bytes of each document; a view of `ids`."""
    offsets = np.concatenate([[0], np.cumsum(lengths * ids.itemsize)]).astype(np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(ids))]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)


def payload_of(array: BinaryArray) -> memoryview:
    """The bytes of a large_binary array, one element after the other."""
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    data = array.buffers()[2]
    if data is None or len(array) == 0:
        return memoryview(b"")
    return memoryview(data)[int(offsets[0]) : int(offsets[-1])]


def digests_of(data: memoryview, offsets: Int64Array, sizes: Int64Array) -> UInt64Array:
    """xxh3_64 of each piece of `data`."""
    digest = xxhash.xxh3_64_intdigest
    spans = zip(offsets.tolist(), (offsets + sizes).tolist(), strict=True)
    return np.fromiter((digest(data[start:stop]) for start, stop in spans), np.uint64, len(offsets))


def sorted_order(hashes: UInt64Array, keys: BinaryArray) -> Int64Array:
    """int64[n]: rows by hash, equal hashes by key."""
    order = np.argsort(hashes, kind="stable")
    equal = np.flatnonzero(np.diff(hashes[order]) == 0)
    for place in equal.tolist():  # about once in 10^9 documents
        pair = order[place : place + 2].tolist()
        if keys[pair[1]].as_py() < keys[pair[0]].as_py():
            order[place : place + 2] = pair[::-1]
    return order


@dataclass(frozen=True)
class Run:
    """A run opened for reading: its table is mapped, its ids are read as they are needed."""

    info: RunInfo
    keys: BinaryArray
    hash: UInt64Array
    split: UInt64Array
    place: NDArray[np.uint32]
    tokens: NDArray[np.uint32]
    offset: UInt64Array
    xxh3_64: UInt64Array
    text_bytes: NDArray[np.uint32]
    high: UInt64Array
    low: UInt64Array
    path: str  # of the ids

    def documents(self, first: int, last: int) -> BinaryArray:
        """large_binary[last - first]: bytes of the documents [first, last).

        Read, not mapped: pages of a map would count as memory of every process that touched them.

        Raises:
            CorruptShard: the run is cut short.
        """
        start = int(self.offset[first])
        end = int(self.offset[last]) if last < len(self.offset) else self.info.num_bytes
        data = self._read(start, end - start)
        offsets = np.append(self.offset[first:last], np.uint64(end)).astype(np.int64) - start
        return pa.Array.from_buffers(pa.large_binary(), last - first, [None, pa.py_buffer(offsets), data])

    def _read(self, start: int, size: int) -> Any:
        """A buffer of arrow with these bytes; its memory is used again for the next one."""
        buffer = pa.allocate_buffer(size)
        view = memoryview(buffer)
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while len(view):  # a read gives at most 2 GiB
                count = os.preadv(fd, [view], start + size - len(view))
                if not count:
                    raise _gone(self.path, "it is cut short")
                view = view[count:]
        finally:
            os.close(fd)
        return buffer


def _gone(path: str, why: object) -> CorruptShard:
    return CorruptShard(
        f"the part file {path} cannot be read: {why}",
        hint="run the same command again: it is made anew",
        where={"path": path},
    )


def open_run(work: str, info: RunInfo) -> Run:
    """Open a run below a working folder.

    Raises:
        CorruptShard: it is gone, or cut short.
    """
    path = os.path.join(work, FOLDER, info.name)
    try:
        with pa.memory_map(f"{path}.arrow") as source:
            batch = pa.ipc.open_file(source).get_batch(0)
            batch.validate(full=True)
        if os.stat(f"{path}.bin").st_size != info.num_bytes:
            raise _gone(f"{path}.bin", "it is cut short")
    except (OSError, pa.ArrowException) as error:
        raise _gone(path, error) from error
    values = {name: batch.column(name).to_numpy() for name in _FIELDS if name != "key"}
    return Run(info=info, keys=batch.column("key"), path=f"{path}.bin", **values)


def work_folder(out: str) -> str:
    """The local folder below which the runs of an output lie: the output, or for a bucket one in the cache."""
    return spool_folder(absolute(out)) if is_remote(out) else os.path.abspath(out)


def run_paths(name: str) -> tuple[str, str]:
    """Both files of a run, below the working folder."""
    return f"{FOLDER}/{name}.bin", f"{FOLDER}/{name}.arrow"


def itemsize_of(dtype: str) -> int:
    """Bytes of one id."""
    return np.dtype(DTYPES[dtype]).itemsize
