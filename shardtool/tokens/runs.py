"""Run files: some documents as token ids, sorted as the data set will be, with a table beside them.

`.shardtool/parts/000012-000.bin` holds the ids, `000012-000.arrow` a row a document. Sorted runs make stage 2 a
merge that reads every run from front to back, whatever the shuffle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise, repeat
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
from shardtool.storage.local import new_file
from shardtool.storage.pages import let_go

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.model import BinaryArray, Int64Array, UInt64Array

FOLDER = f"{HIDDEN}/parts"
PIECE_BYTES = 1 << 20  # of ids gathered at a time: they are hashed and written while they are in the cache
PIECE_DOCUMENTS = 4096  # at most, each a Python object as long as its piece is gathered
_FIELDS = {
    "key": pa.binary(),
    "hash": pa.uint64(),  # xxh3_64(key, seed): the place in the shuffle
    "split": pa.uint64(),  # xxh3_64(tag + key, seed): the place among the splits; or the number of one that is kept
    "place": pa.uint32(),  # before the run was sorted
    "tokens": pa.uint32(),
    "offset": pa.uint64(),  # byte in the run
    "xxh3_64": pa.uint64(),  # of the ids
    "text_bytes": pa.uint64(),  # a document, before it is cut, may have more than 4 GiB
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


class IdBuffer:
    """Ids gathered one after the other; its memory is used again, run after run, as fresh pages cost more than the
    work on the ids in them. The type widens once an id asks for it.

    Args:
        capacity: bytes that are enough for most runs; pages that are not filled take no memory.
    """

    def __init__(self, capacity: int = 0) -> None:
        self._memory = np.empty(capacity, np.uint8)
        self._count = 0
        self._dtype: Any = np.dtype(np.uint8)

    def clear(self) -> None:
        """Forget all ids."""
        self._count = 0

    @property
    def taken(self) -> NDArray[Any]:
        """All ids so far, a view."""
        return self._memory[: self._count * self._dtype.itemsize].view(self._dtype)

    def add(self, ids: NDArray[Any], dtype: str) -> None:
        """Append ids, as `dtype`; that they fit was checked."""
        if self._dtype != DTYPES[dtype]:
            held, self._dtype = self.taken, np.dtype(DTYPES[dtype])
            if len(held):
                self._memory = held.astype(self._dtype).view(np.uint8)
        used, size = (count * self._dtype.itemsize for count in (self._count, len(ids)))
        if used + size > len(self._memory):
            grown = np.empty(max(used + size, 2 * len(self._memory)), np.uint8)
            grown[:used] = self._memory[:used]
            self._memory = grown
        np.copyto(self._memory[used : used + size].view(self._dtype), ids, casting="unsafe")
        self._count += len(ids)


class RunBuilder:
    """Documents that are gathered to a run.

    Args:
        dtype: of the ids; `auto` is the narrowest that holds those of this run.
        seed: of the hashes.
        sort: by hash; else documents stay in their order.
        splits: hash the keys a second time, for splits or duplicates; else these hashes are 0.
        split: number of the split that all of them are in, which then stands for these hashes.
        ids: where the ids go; what it holds is forgotten.
    """

    def __init__(
        self, dtype: str, seed: int, *, sort: bool, splits: bool, ids: IdBuffer, split: int | None = None
    ) -> None:
        self.dtype, self.seed, self.sort, self.splits, self.split = dtype, seed, sort, splits, split
        self.range = (0, 0)  # of the ids
        self.keys: list[bytes] = []
        self._ids = ids
        self._ids.clear()
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
        starts = (np.cumsum(lengths) - lengths) * ids.itemsize
        sizes = lengths[order] * ids.itemsize
        path = os.path.join(out, FOLDER, name)
        table = {
            "key": keys.take(pa.array(order)) if self.sort else keys,
            "hash": hashes[order],
            "split": self._split_hashes()[order],
            "place": order.astype(np.uint32),
            "tokens": lengths[order].astype(np.uint32),
            "offset": (np.cumsum(sizes) - sizes).astype(np.uint64),
            "xxh3_64": _put_ids(f"{path}.bin", tag, bytes_of(ids), starts[order], sizes, durable=durable),
            "text_bytes": np.concatenate(self._text_bytes)[order].astype(np.uint64),
            **_content_columns(self._content, order),
        }
        batch = pa.record_batch([pa.array(column, _FIELDS[field]) for field, column in table.items()], schema=_SCHEMA)
        with (
            new_file(f"{path}.arrow", tag, durable=durable) as file,
            pa.ipc.new_file(pa.PythonFile(file, "w"), _SCHEMA) as writer,
        ):
            writer.write_batch(batch)
        return RunInfo(name, len(lengths), len(ids), ids.nbytes, *self.range, dtype)

    def _split_hashes(self) -> UInt64Array:
        if self.split is not None:
            return np.full(len(self.keys), self.split, np.uint64)
        if not self.splits:
            return np.zeros(len(self.keys), np.uint64)
        return _hashes([SPLIT_TAG + key for key in self.keys], self.seed)


def _put_ids(
    path: str, tag: str, data: memoryview, starts: Int64Array, sizes: Int64Array, *, durable: bool
) -> UInt64Array:
    """Write documents in the order given, piece by piece; the digest of each."""
    digests = [np.zeros(0, np.uint64)]
    with new_file(path, tag, durable=durable) as file:
        for first, last in pairwise(piece_bounds(sizes)):
            documents = cut(data, starts[first:last], sizes[first:last])
            digests.append(digests_of(documents))
            file.write(b"".join(documents))
    return np.concatenate(digests)


def piece_bounds(sizes: Int64Array) -> list[int]:
    """Bounds of consecutive documents of about `PIECE_BYTES`, at least one and at most `PIECE_DOCUMENTS` each."""
    if len(sizes) == 0:
        return [0]
    owners = (np.cumsum(sizes) - 1) // PIECE_BYTES
    rows = np.arange(1, len(sizes))
    inner = rows[(owners[1:] != owners[:-1]) | (rows % PIECE_DOCUMENTS == 0)]
    return [0, *inner.tolist(), len(sizes)]


def cut(data: memoryview, starts: Int64Array, sizes: Int64Array) -> list[memoryview]:
    """The bytes of documents, views of `data`."""
    return [data[start:stop] for start, stop in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)]


def bytes_of(ids: NDArray[Any]) -> memoryview:
    """The bytes of an array in one dimension, which may be empty."""
    return ids.view(np.uint8).data


def digests_of(documents: list[memoryview]) -> UInt64Array:
    """xxh3_64 of each."""
    return np.fromiter(map(xxhash.xxh3_64_intdigest, documents), np.uint64, len(documents))


def _hashes(keys: list[bytes], seed: int) -> UInt64Array:
    return np.fromiter(map(xxhash.xxh3_64_intdigest, keys, repeat(seed)), np.uint64, len(keys))


def _content_columns(content: list[bytes], order: Int64Array) -> dict[str, UInt64Array]:
    if not content:
        nothing = np.zeros(len(order), np.uint64)
        return {"high": nothing, "low": nothing}
    pairs = np.frombuffer(b"".join(content), ">u8").reshape(-1, 2)[order].astype(np.uint64)
    return {"high": pairs[:, 0], "low": pairs[:, 1]}


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
class RunRows:
    """Some documents of a run: columns of its table."""

    keys: BinaryArray
    hash: UInt64Array
    split: UInt64Array
    tokens: NDArray[np.uint32]
    offset: UInt64Array
    xxh3_64: UInt64Array
    text_bytes: UInt64Array

    def copy(self) -> RunRows:
        """The same in memory of their own."""
        numbers = (self.hash.copy(), self.split.copy(), self.tokens.copy(), self.offset.copy())
        return RunRows(columns.copied(self.keys), *numbers, self.xxh3_64.copy(), self.text_bytes.copy())

    def sliced(self, first: int, last: int) -> RunRows:
        """Documents [first, last) of these, views."""
        rows, keys = slice(first, last), self.keys.slice(first, last - first)
        numbers = (self.hash[rows], self.split[rows], self.tokens[rows], self.offset[rows])
        return RunRows(keys, *numbers, self.xxh3_64[rows], self.text_bytes[rows])


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
    text_bytes: UInt64Array
    high: UInt64Array
    low: UInt64Array
    path: str  # of the ids
    table: Any  # the map that all columns are views of

    def forget(self) -> None:
        """Let go of what was looked at in the table: its pages count as memory of this process."""
        let_go(self.table.address, self.table.size)

    def rows(self, first: int, last: int) -> RunRows:
        """Documents [first, last), copied: of the table itself nothing stays in memory."""
        whole = RunRows(self.keys, self.hash, self.split, self.tokens, self.offset, self.xxh3_64, self.text_bytes)
        found = whole.sliced(first, last).copy()
        self.forget()
        return found

    @property
    def itemsize(self) -> int:
        """Bytes of an id."""
        return itemsize_of(self.info.dtype)

    def start_of(self, document: int) -> int:
        """Byte of the run at which a document begins, or the end of all."""
        return int(self.offset[document]) if document < len(self.offset) else self.info.num_bytes

    def read(self, start: int, view: memoryview) -> None:
        """Fill `view` with the bytes of the ids from byte `start` on.

        Read, not mapped: pages of a map would count as memory of every process that touched them.

        Raises:
            CorruptShard: the run is cut short.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while len(view):  # a read gives at most 2 GiB
                count = os.preadv(fd, [view], start)
                if not count:
                    raise _gone(self.path, "it is cut short")
                view, start = view[count:], start + count
        finally:
            os.close(fd)


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
        with pa.memory_map(os.fsencode(f"{path}.arrow")) as source:
            table = source.read_buffer()
        batch = pa.ipc.open_file(pa.BufferReader(table)).get_batch(0)
        batch.validate(full=True)
        let_go(table.address, table.size)
        if os.stat(f"{path}.bin").st_size != info.num_bytes:
            raise _gone(f"{path}.bin", "it is cut short")
    except (OSError, pa.ArrowException) as error:
        raise _gone(path, error) from error
    values = {name: batch.column(name).to_numpy() for name in _FIELDS if name != "key"}
    return Run(info=info, keys=batch.column("key"), path=f"{path}.bin", table=table, **values)


def work_folder(out: str) -> str:
    """The local folder below which the runs of an output lie: the output, or for a bucket one in the cache."""
    return spool_folder(absolute(out)) if is_remote(out) else os.path.abspath(out)


def run_paths(name: str) -> tuple[str, str]:
    """Both files of a run, below the working folder."""
    return f"{FOLDER}/{name}.bin", f"{FOLDER}/{name}.arrow"


def itemsize_of(dtype: str) -> int:
    """Bytes of one id."""
    return np.dtype(DTYPES[dtype]).itemsize
