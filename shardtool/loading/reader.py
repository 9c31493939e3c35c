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
from functools import partial
from itertools import islice, starmap
from multiprocessing.reduction import ForkingPickler
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import xxhash

from shardtool.assignment.assignment import fingerprint_of, split_shards
from shardtool.errors import UsageProblem
from shardtool.formats import BYTES
from shardtool.index_file import sample_sizes
from shardtool.loading.batch_plan import RunLimits, plan_batch
from shardtool.loading.decode import decoder_for, decoders_named, token_dtype
from shardtool.loading.memory import reuse_freed_memory
from shardtool.loading.remote import open_files
from shardtool.loading.tables import FILE, FRAMES, ShardTable
from shardtool.manifest import load_manifest
from shardtool.reading.reading import Dataset
from shardtool.reading.remote import find_staged
from shardtool.storage import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from shardtool.index_file import ShardIndex
    from shardtool.loading.batch_plan import BatchPlan
    from shardtool.manifest import Manifest
    from shardtool.model import Int64Array

__all__ = ["KEY", "Fetch", "SampleReader", "threads_of"]

KEY = "__key__"  # webdataset's name for it
REMOTE_LIMITS = RunLimits(gap=64 << 10)  # each call is a request
REMOTE_THREADS = 16
MAP = "map"
MAX_TABLE_PARTS = 8 << 20  # of all tables kept

Data: TypeAlias = "bytes | memoryview | list[Any]"  # a range, or parts


class _Opening:
    """Readers are opened one at a time; after a fork nobody holds the lock."""

    lock = Lock()

    @classmethod
    def renew(cls) -> None:
        cls.lock = Lock()


os.register_at_fork(after_in_child=_Opening.renew)


class Fetch:
    """A batch under way. `samples` waits for it."""

    def __init__(self, reader: SampleReader, plan: BatchPlan, is_valid: NDArray[np.bool_] | None) -> None:
        self._reader, self._plan, self._is_valid = reader, plan, is_valid
        self._pending: list[Future[list[Data]]] = []

    def begin(self, pool: ThreadPoolExecutor, tasks: int) -> Fetch:
        """Have so many tasks of a pool read the batch, every tasks-th range each."""

        def read(task: int) -> list[Data]:
            return list(self._reader.reads(self._plan, slice(task, None, tasks)))

        self._pending = [pool.submit(read, task) for task in range(tasks)]
        return self

    def samples(self) -> list[Any]:
        """The samples, in the order that was asked for."""
        if not self._pending:
            return self._reader.finish(self._plan, self._reader.reads(self._plan), self._is_valid)
        data: list[Data] = [b""] * len(self._plan.runs)
        for task, future in enumerate(self._pending):
            data[task :: len(self._pending)] = future.result()
        return self._reader.finish(self._plan, iter(data), self._is_valid)


class SampleReader:
    """Samples of one split of a packed data set.

    Args:
        path: folder or URL of the data set.
        split: its name; "" takes the only one, or `train`.
        parts: part names to read; None reads all. A sample without such a part lacks the entry.
        decode: True decodes json, txt, cls, npy and tokens, False leaves bytes; or a list of those kinds.
        transform: called with each sample; what it returns is the sample. With `pread` and `map` it is called right
            after the sample was read, whose bytes it then finds in the processor's cache.
        io: `pread` reads one range after the other, `threads:N` N at a time; 16 at a time from an object store.
            `map` copies nothing: parts are read-only memoryviews of the mapped shards, valid as long as they are held.
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
        self._is_mapped, self._cache, self._limits = io == MAP, os.fspath(cache), RunLimits()
        if is_remote(self._path):
            self._limits, self._threads = REMOTE_LIMITS, self._threads if "threads" in io else REMOTE_THREADS
        found = Dataset.open(self._path)
        self._path, manifest = found.path, found.manifest
        self._manifest: Manifest | None = manifest  # of this process, and of those forked from it
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
        hidden = ("_manifest", "_dataset", "_files", "_tables", "_pool", "_lock")
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
        wanted = np.asarray(numbers, np.int64)
        is_in_background = self._threads > 1 or ahead
        with self._lock:
            plan = self._plan(wanted, in_batch_order=self._transform is not None and not is_in_background)
            if self._pool is None and is_in_background:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="shardtool-read")
        fetch = Fetch(self, plan, is_valid)
        if plan.runs and self._pool is not None:
            fetch.begin(self._pool, min(self._threads, len(plan.runs)))
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

    def reads(self, plan: BatchPlan, chosen: slice = slice(None)) -> Iterator[Data]:
        """The bytes of the runs of a plan, or of some, or the parts of them; each is read when it is asked for."""
        runs = plan.runs[chosen]
        if plan.source == FILE:
            return starmap(self._files.view if self._is_mapped else self._files.read, runs)
        data = starmap(partial(self._read_by_format, plan), runs)
        return map(_view_of, data) if self._is_mapped else data

    def _read_by_format(self, plan: BatchPlan, shard: int, begin: int, size: int) -> bytes | list[bytes]:
        """What no `pread` gives; one thread at a time, for the reader of a shard keeps what it decoded last."""
        with self._lock:
            if plan.source == FRAMES:
                return self._dataset.read_range(shard, begin, size)
            table, read = self._table(shard), self._dataset.read_part
            rows = plan.rows[begin : begin + size].tolist()
            return [read(shard, table.index_row(row), check=False) for row in rows]

    def finish(self, plan: BatchPlan, reads: Iterator[Data], is_valid: NDArray[np.bool_] | None) -> list[Any]:
        """The samples of a plan in the order of the batch, decoded, marked and transformed.

        Args:
            plan: says what to cut.
            reads: data of its runs, one after the other.
            is_valid: bool[n], what to mark samples with.
        """
        samples = _cut(plan, reads)
        if self._check or self._kinds:
            samples = self._decoded(plan, samples)
        if self._transform is None or not plan.is_in_batch_order:
            samples = iter(_placed(plan, samples))
        if self._valid:
            samples = self._marked(samples, [True] * len(plan.spots) if is_valid is None else is_valid.tolist())
        return list(samples if self._transform is None else map(self._transform, samples))

    def _marked(self, samples: Iterator[dict[str, Any]], marks: list[bool]) -> Iterator[dict[str, Any]]:
        for sample, mark in zip(samples, marks, strict=True):
            sample[self._valid] = mark
            yield sample

    def _decoded(self, plan: BatchPlan, samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Compare parts with their digests where asked, then decode them."""
        parts = enumerate(plan.names)
        for sample, count in zip(samples, plan.counts, strict=True):
            for part, name in islice(parts, count):
                if self._check:
                    self._compare(int(plan.shards[part]), int(plan.rows[part]), sample[name])
                decode = self._decoders[name]
                if decode is not None:
                    sample[name] = decode(bytes(sample[name]))
            yield sample

    def _compare(self, shard: int, part: int, payload: bytes) -> None:
        with self._lock:
            table = self._table(shard)
            if xxhash.xxh3_64_intdigest(payload) != table.digest[part]:
                self._dataset.read_part(shard, table.index_row(part))  # raises, and says where

    def _locate(self, numbers: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(shard of the split, row) of sample numbers."""
        if numbers.size and (int(numbers.min()) < 0 or int(numbers.max()) >= len(self)):
            bad = int(numbers[(numbers < 0) | (numbers >= len(self))][0])
            raise IndexError(f"there is no sample {bad} among {len(self)}")
        shards = np.searchsorted(self._edges, numbers, side="right") - 1
        return shards, numbers - self._edges[shards]

    def _plan(self, numbers: Int64Array, *, in_batch_order: bool) -> BatchPlan:
        spots = np.argsort(numbers, kind="stable")
        shards, rows = self._locate(numbers[spots])
        places = self.shards.places[shards]
        return plan_batch(places, rows, spots, self._table, self._limits, in_batch_order=in_batch_order)

    def _table(self, place: int) -> ShardTable:
        table = self._tables.get(place)
        if table is None:
            table = self._tables[place] = ShardTable.of(self._dataset.index(place), self._parts)
            for name in table.names.tolist():
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
            with _Opening.lock:
                if self._pid != os.getpid():
                    if self._pid:  # forked: a thread that holds the lock did not come along
                        self._lock = RLock()
                    self._open()
                    reuse_freed_memory()

    def _open(self) -> None:
        self._manifest = self._manifest or self._staged_manifest() or load_manifest(self._path)
        self._dataset = Dataset.of(self._path, self._manifest, cache=self._cache)
        self._files = open_files(self._dataset)
        self._tables: OrderedDict[int, ShardTable] = OrderedDict()
        self._table_parts = 0
        self._pool = None
        self._decoders: dict[str, Callable[[bytes], Any] | None] = {}
        if self._preloaded.size:
            self._files.preload(self._preloaded.tolist(), warm=False)
        if self._is_mapped:
            ForkingPickler.register(memoryview, _sent)
        self._pid = os.getpid()  # last: it says that all the rest is there

    def _staged_manifest(self) -> Manifest | None:
        """What another process opened, out of the cache folder; None where that has not the manifest of the source."""
        if not self._cache:
            return None
        manifest = load_manifest(find_staged(self._cache, self.dataset_id))
        return None if any(shard.packed for shard in manifest.shards) else manifest


def _sent(view: memoryview) -> tuple[type, tuple[bytes]]:
    """What multiprocessing sends for a view, which has no pickle of its own; a queue would wait for it without end."""
    return memoryview, (view.tobytes(),)


def _view_of(data: Data) -> Data:
    return [memoryview(part) for part in data] if isinstance(data, list) else memoryview(data)


def _cut(plan: BatchPlan, reads: Iterator[Data]) -> Iterator[dict[str, Any]]:
    """The samples of a plan, in its order."""
    parts = zip(plan.run_of, plan.names, plan.cuts, strict=True)
    known, data = -1, cast("Any", b"")
    for key, count in zip(plan.keys, plan.counts, strict=True):
        sample: dict[str, Any] = {KEY: key}
        for run, name, cut in islice(parts, count):
            if run != known:
                known, data = run, next(reads)
            sample[name] = data[cut]
        yield sample


def _placed(plan: BatchPlan, samples: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Samples in the order of the batch."""
    found: list[dict[str, Any]] = [{}] * len(plan.spots)
    for spot, sample in zip(plan.spots, samples, strict=True):
        found[spot] = sample
    return found


def threads_of(io: str) -> int:
    """Reads at a time: 1 for `pread` and `map`, N for `threads:N`.

    Raises:
        UsageProblem: anything else.
    """
    kind, _, number = io.partition(":")
    if io in ("pread", MAP):
        return 1
    if kind == "threads" and number.isdecimal() and 1 <= int(number) <= 256:
        return int(number)
    raise UsageProblem(f"io is {io!r}", hint="io= takes pread, map, or threads:N with 1 to 256 threads")
