"""Batches of samples of one split, by number: `reader.read([5, 17, 3])` gives their parts, in that order.

Sample numbers count the samples of the split in the order of the manifest. A batch is sorted by shard and row,
neighbours are read together, and each sample becomes a dictionary {"__key__": key, part: bytes, or what its decoder
made of them}. A reader may be pickled, forked, or shared by threads; each process opens its own files. Memory: mapped
indexes, tables of at most 8 M parts (100 MB), and the batches under way.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import xxhash

from shardtool.assignment.assignment import fingerprint_of, split_shards
from shardtool.errors import UsageProblem
from shardtool.formats import BYTES
from shardtool.index_file import sample_sizes
from shardtool.loading.decode import decoder_for, decoders_named, token_dtype
from shardtool.loading.memory import reuse_freed_memory
from shardtool.loading.remote import open_files
from shardtool.loading.tables import FILE, FRAMES, PARTS, ShardTable
from shardtool.reading.reading import Dataset
from shardtool.storage import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from shardtool.index_file import ShardIndex
    from shardtool.model import Int64Array

__all__ = ["KEY", "Fetch", "SampleReader", "threads_of"]

KEY = "__key__"  # webdataset's name for it
MAX_GAP = 8 << 10  # bytes read for nothing rather than another call; a call costs what 8 KiB of copying do
REMOTE_GAP = 64 << 10  # the same where a call is a request
REMOTE_THREADS = 16
MAX_RUN = 8 << 20  # bytes of one read
ALONE_BYTES = 32 << 10  # a part of so many is read into bytes of its own; cutting it out of a longer read would copy it
MAX_TABLE_PARTS = 8 << 20  # of all tables kept

Pick = tuple[dict[str, Any], str, int, int, int]  # sample, part name, part, offset, size
Data: TypeAlias = "bytes | list[bytes]"  # a range, or parts


class Run:
    """One read: bytes begin..end-1 of a shard file (its place in the manifest), and the parts in it."""

    __slots__ = ("begin", "end", "picks", "shard", "source")

    def __init__(self, shard: int, begin: int, end: int, picks: list[Pick], source: str = FILE) -> None:
        self.shard, self.begin, self.end, self.picks, self.source = shard, begin, end, picks, source

    def takes(self, offset: int, size: int, gap: int) -> bool:
        """True where a part lies close and is small enough to be read along."""
        if self.source == PARTS:
            return True
        is_close = self.begin <= offset <= self.end + gap
        is_small = size < ALONE_BYTES or self.source == FRAMES  # those are copied anyway
        return is_close and is_small and offset + size - self.begin <= MAX_RUN


class Fetch:
    """A batch under way. `samples` waits for it."""

    def __init__(
        self,
        reader: SampleReader,
        runs: list[Run],
        found: list[dict[str, Any]],
        is_valid: NDArray[np.bool_] | None,
    ) -> None:
        self._reader, self._runs, self._found, self._is_valid = reader, runs, found, is_valid
        self._pending: list[Future[list[Data]]] = []

    def begin(self, pool: ThreadPoolExecutor, tasks: int) -> Fetch:
        """Have so many tasks of a pool read the batch, every tasks-th range each."""
        self._pending = [pool.submit(self._reader.read_runs, self._runs[task::tasks]) for task in range(tasks)]
        return self

    def samples(self) -> list[Any]:
        """The samples, in the order that was asked for."""
        if not self._pending:
            self._reader.unpack(self._runs, self._reader.read_runs(self._runs))
        for task, future in enumerate(self._pending):
            self._reader.unpack(self._runs[task :: len(self._pending)], future.result())
        return self._reader.finish(self._found, self._is_valid)


class SampleReader:
    """Samples of one split of a packed data set.

    Args:
        path: folder or URL of the data set.
        split: its name; "" takes the only one, or `train`.
        parts: part names to read; None reads all. A sample without such a part lacks the entry.
        decode: True decodes json, txt, cls, npy and tokens, False leaves bytes; or a list of those kinds.
        transform: called with each sample; what it returns is the sample.
        io: `pread` reads one range after the other, `threads:N` N at a time; 16 at a time from an object store.
        valid: name of an entry that is False for samples which `pad` repeats, True for all others; "" adds none.
        check: compare every part with the digest in the index.
        cache: a folder that `shardtool stage` fills with some or all of it: what is there is read there.

    Raises:
        SourceNotFound: no data set there.
        UsageProblem: no such split, or a value out of range.
    """

    def __init__(
        self,
        path: str,
        *,
        split: str = "",
        parts: Iterable[str] | None = None,
        decode: bool | Iterable[str] = False,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        io: str = "pread",
        valid: str = "",
        check: bool = False,
        cache: str = "",
    ) -> None:
        self._path, self._pid, self._preloaded = os.fspath(path), 0, np.empty(0, np.int64)
        self._parts = None if parts is None else frozenset(parts)
        self._kinds, self._transform = decoders_named(decode), transform
        self._threads, self._valid, self._check = threads_of(io), valid, check
        self._cache, self._gap = os.fspath(cache), MAX_GAP
        if is_remote(self._path):
            self._gap, self._threads = REMOTE_GAP, self._threads if io != "pread" else REMOTE_THREADS
        manifest = Dataset.open(self._path).manifest
        self._dtype = token_dtype(manifest)
        self.dataset_id = manifest.dataset_id
        self.shards = split_shards(manifest, split)
        self.fingerprint = fingerprint_of(manifest, self.shards.name)
        self._edges = np.concatenate([[0], np.cumsum(self.shards.counts)]).astype(np.int64)
        self._pool: ThreadPoolExecutor | None = None
        self._lock = RLock()
        self._open()

    def __len__(self) -> int:
        return self.shards.num_samples

    def __getstate__(self) -> dict[str, Any]:
        """What opens the data set again in another process."""
        hidden = ("_dataset", "_files", "_tables", "_pool", "_lock")
        return {**self.__dict__, "_pid": 0, **dict.fromkeys(hidden)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = RLock()

    def read(self, numbers: Sequence[int] | Int64Array, is_valid: NDArray[np.bool_] | None = None) -> list[Any]:
        """Samples by number, in the order given.

        Raises:
            IndexError: there is no such sample.
            CorruptShard: a shard is cut short, or (`check`) altered.
        """
        return self.start(numbers, is_valid).samples()

    def start(
        self, numbers: Sequence[int] | Int64Array, is_valid: NDArray[np.bool_] | None = None, *, ahead: bool = False
    ) -> Fetch:
        """Begin to read a batch in the background, with `ahead` even where `io` is `pread`."""
        self._reopen()
        with self._lock:
            runs, found = self._plan(np.asarray(numbers, np.int64))
            if self._pool is None and (self._threads > 1 or ahead):
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="shardtool-read")
        fetch = Fetch(self, runs, found, is_valid)
        if runs and self._pool is not None:
            fetch.begin(self._pool, min(self._threads, len(runs)))
        return fetch

    def numbers(self, shards: Int64Array, rows: Int64Array) -> Int64Array:
        """int64[n]: sample numbers of rows of shards, as an `Order` over `self.shards.counts` gives them."""
        return self._edges[shards] + rows

    def sizes(self, numbers: Int64Array) -> Int64Array:
        """int64[n]: bytes of each sample in its shard, headers included where a sample is a run of bytes."""
        self._reopen()
        shards, rows = self._locate(numbers)
        out = np.empty_like(rows)
        for shard in np.unique(shards).tolist():
            chosen = shards == shard
            out[chosen] = sample_sizes(self._index(int(self.shards.places[shard])))[rows[chosen]]
        return out

    def tokens(self, numbers: Int64Array) -> Int64Array:
        """int64[n]: token ids of each sample; 0 where samples are no sequences of tokens."""
        return self.sizes(numbers) // self._dtype.itemsize if self._dtype is not None else np.zeros_like(numbers)

    def hint(self, shards: Int64Array, rows: Int64Array, counts: Int64Array) -> None:
        """Tell the kernel that rows[i] .. rows[i] + counts[i] - 1 of shards[i] (of the split) will be read soon."""
        self._reopen()
        for shard, row, count in zip(shards.tolist(), rows.tolist(), counts.tolist(), strict=True):
            place = int(self.shards.places[shard])
            index = self._index(place)
            if index.addressing != BYTES or "raw_bytes" in index.meta:
                continue  # columns lie apart, frames are found when they are read
            begin, last = int(index.offset[row]), row + count - 1
            self._files.will_need(place, begin, int(index.offset[last] + index.num_bytes[last]) - begin)

    def preload(self, shards: Int64Array | None = None, *, available_bytes: int | None = None) -> int:
        """Keep shards of the split, all by default, in the page cache; returns their bytes. See `ShardFiles`."""
        self._reopen()
        places = self.shards.places if shards is None else self.shards.places[shards]
        size = self._files.preload(places.tolist(), available_bytes=available_bytes)
        self._preloaded = np.union1d(self._preloaded, places)
        return size

    def close(self) -> None:
        """Close all files; reading again opens them."""
        if self._pid == os.getpid():
            if self._pool is not None:
                self._pool.shutdown()
            self._files.close()
            self._dataset.close()
        self._pid = 0

    def read_runs(self, runs: list[Run]) -> list[Data]:
        """The bytes of each range, or the parts of it."""
        read = self._files.read
        return [
            read(run.shard, run.begin, run.end - run.begin) if run.source == FILE else self._read_by_format(run)
            for run in runs
        ]

    def _read_by_format(self, run: Run) -> Data:
        """What no `pread` gives; one thread at a time, for the reader of a shard keeps what it decoded last."""
        with self._lock:
            if run.source == FRAMES:
                return self._dataset.read_range(run.shard, run.begin, run.end - run.begin)
            read = self._dataset.read_part
            return [read(run.shard, part, check=False) for _, _, part, _, _ in run.picks]

    def unpack(self, runs: list[Run], data: list[Data]) -> None:
        """Cut the parts out of the ranges, and decode them."""
        is_plain = not (self._check or self._kinds)
        for run, piece in zip(runs, data, strict=True):
            if isinstance(piece, list):
                for (sample, name, part, _, _), payload in zip(run.picks, piece, strict=True):
                    sample[name] = payload if is_plain else self._value(run.shard, name, part, payload)
                continue
            begin = run.begin
            for sample, name, part, offset, size in run.picks:
                payload = piece[offset - begin : offset - begin + size]
                sample[name] = payload if is_plain else self._value(run.shard, name, part, payload)

    def finish(self, found: list[dict[str, Any]], is_valid: NDArray[np.bool_] | None) -> list[Any]:
        """Mark what is repeated, then transform."""
        if self._valid:
            marks = [True] * len(found) if is_valid is None else is_valid.tolist()
            for sample, mark in zip(found, marks, strict=True):
                sample[self._valid] = mark
        return found if self._transform is None else [self._transform(sample) for sample in found]

    def _locate(self, numbers: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(shard of the split, row) of sample numbers."""
        if numbers.size and (int(numbers.min()) < 0 or int(numbers.max()) >= len(self)):
            bad = int(numbers[(numbers < 0) | (numbers >= len(self))][0])
            raise IndexError(f"there is no sample {bad} among {len(self)}")
        shards = np.searchsorted(self._edges, numbers, side="right") - 1
        return shards, numbers - self._edges[shards]

    def _plan(self, numbers: Int64Array) -> tuple[list[Run], list[dict[str, Any]]]:
        """(ranges to read, ascending but for parts that lie elsewhere; the samples, still without their bytes)."""
        by_place = np.argsort(numbers, kind="stable")
        shards, rows = self._locate(numbers[by_place])
        found: list[dict[str, Any]] = [{} for _ in range(len(numbers))]
        runs: list[Run] = []
        known, wanted, gap = -1, self._parts, self._gap
        for spot, shard, row in zip(by_place.tolist(), shards.tolist(), rows.tolist(), strict=True):
            if shard != known:
                known, place, run = shard, int(self.shards.places[shard]), Run(-1, -MAX_RUN, -MAX_RUN, [])
                table = self._table(place)
                starts, offsets, sizes = table.part_start, table.offset, table.size
            sample = found[spot]
            sample[KEY] = table.key(row)
            for part in range(starts[row], starts[row + 1]):
                name = table.names[table.code[part]]
                if wanted is not None and name not in wanted:
                    continue
                offset, size = offsets[part], sizes[part]
                sample[name] = b""  # keeps the order of the parts, whichever is read first
                if run.takes(offset, size, gap):
                    run.picks.append((sample, name, part, offset, size))
                    run.end = max(run.end, offset + size)
                else:
                    run = Run(place, offset, offset + size, [(sample, name, part, offset, size)], table.source)
                    runs.append(run)
        return runs, found

    def _value(self, shard: int, name: str, part: int, payload: bytes) -> Any:
        if self._check:
            with self._lock:
                wanted = self._table(shard).digest[part]
                if xxhash.xxh3_64_intdigest(payload) != wanted:
                    self._dataset.read_part(shard, part)  # raises, and says where
        decode = self._decoders[name]
        return payload if decode is None else decode(payload)

    def _table(self, place: int) -> ShardTable:
        table = self._tables.get(place)
        if table is None:
            table = self._tables[place] = ShardTable.of(self._dataset.index(place))
            for name in table.names:
                self._decoders.setdefault(name, decoder_for(name, self._kinds, self._dtype))
            self._table_parts += table.num_parts
            while self._table_parts > MAX_TABLE_PARTS and len(self._tables) > 1:
                self._table_parts -= self._tables.popitem(last=False)[1].num_parts
        else:
            self._tables.move_to_end(place)
        return table

    def _index(self, place: int) -> ShardIndex:
        with self._lock:
            return self._dataset.index(place)

    def _reopen(self) -> None:
        if self._pid != os.getpid():  # a loader worker, forked or spawned
            with self._lock:
                if self._pid != os.getpid():
                    self._open()
                    reuse_freed_memory()

    def _open(self) -> None:
        self._dataset = Dataset.open(self._path, cache=self._cache)
        self._files = open_files(self._dataset)
        self._tables: OrderedDict[int, ShardTable] = OrderedDict()
        self._table_parts = 0
        self._pool = None
        self._decoders: dict[str, Callable[[bytes], Any] | None] = {}
        if self._preloaded.size:
            self._files.preload(self._preloaded.tolist(), warm=False)
        self._pid = os.getpid()  # last: it says that all the rest is there


def threads_of(io: str) -> int:
    """Reads at a time: 1 for `pread`, N for `threads:N`.

    Raises:
        UsageProblem: anything else.
    """
    kind, _, number = io.partition(":")
    if io == "pread":
        return 1
    if kind == "threads" and number.isdecimal() and 1 <= int(number) <= 256:
        return int(number)
    raise UsageProblem(f"io is {io!r}", hint="io= takes pread, or threads:N with 1 to 256 threads")
