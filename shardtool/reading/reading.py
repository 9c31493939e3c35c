"""A finished data set opened for reading: its manifest, its indexes mapped as they are needed, its shards by `pread`.

    with Dataset.open("out/") as dataset:
        shard, sample = dataset.find(b"cats/0001")
        picture = dataset.read_part(shard, dataset.part_row(shard, sample, b"jpg"))
        for sample in dataset.samples(shard):  # big sequential reads, parts sliced out of them
            ...

Nothing is shared between processes: open a data set in each. Memory: the indexes in use are mapped, never loaded, and
`samples` holds one window of 1 MiB, or one sample that is larger, beside the keys of 8,192 samples.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import OrderedDict
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from shardtool.errors import AccessDenied, CorruptShard, SourceNotFound
from shardtool.formats import BYTES, ROWS, open_parts
from shardtool.formats.frames import FrameCache
from shardtool.formats.unpacked import fitted
from shardtool.indexing.cache import load_index
from shardtool.manifest import MANIFEST, load_manifest
from shardtool.reading.windows import WINDOW_BYTES, Sample, blocks, windows
from shardtool.staging.folder import read_staged
from shardtool.storage import is_remote
from shardtool.storage.regular import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.formats import PartsReader
    from shardtool.index_file import ShardIndex
    from shardtool.manifest import Manifest
    from shardtool.model import FileRecord
    from shardtool.reading.windows import Block

LARGE_PART_BYTES = 16 << 10  # mean from which parts are read one by one
MAX_INDEXES, MAX_FILES, MAX_ROW_READERS = 1024, 64, 8  # kept open; the least recently used go first


class Dataset:
    """A data set with a manifest. `open` makes one; it is a context manager.

    Args:
        path: its folder.
        manifest: what `load_manifest` found there.
    """

    window_bytes = WINDOW_BYTES  # that are worth one read

    def __init__(self, path: str, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self._indexes: OrderedDict[int, ShardIndex] = OrderedDict()
        self._files: OrderedDict[int, int] = OrderedDict()
        self._row_readers: OrderedDict[int, PartsReader] = OrderedDict()
        self._frames = FrameCache()

    @classmethod
    def open(cls, path: str, *, cache: str = "") -> Dataset:
        """The data set at `path`, a folder or URL; its manifest.json may be named instead.

        Args:
            path: where it lies.
            cache: a folder that `stage` filled with some or all of it; what is there is read there.

        Raises:
            SourceNotFound: no data set, or an unfinished one.
            FormatError: a damaged manifest.
            PlanMismatch: the cache holds another data set.
        """
        folder = os.path.dirname(path) or "." if os.path.basename(path) == MANIFEST else path
        return cls.of(folder, load_manifest(folder), cache=cache)

    @classmethod
    def of(cls, folder: str, manifest: Manifest, *, cache: str = "") -> Dataset:
        """The data set at `folder` whose manifest is known; see `open`."""
        if cache or is_remote(folder):
            from shardtool.reading.remote import RemoteDataset

            return RemoteDataset(folder, manifest, cache)
        return cls(folder, manifest)

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files and let go of the indexes; whoever still holds one keeps its map."""
        self._indexes.clear()
        self._frames.clear()
        while self._row_readers:
            self._row_readers.popitem()[1].close()
        while self._files:
            os.close(self._files.popitem()[1])

    @property
    def num_shards(self) -> int:
        """Shards of the data set."""
        return len(self.manifest.shards)

    def shard_path(self, shard: int) -> str:
        """Path of the file that holds the payload of shard k."""
        return os.path.join(self.path, self.manifest.shards[shard].path)

    def index(self, shard: int) -> ShardIndex:
        """The index of shard k, mapped.

        Raises:
            CorruptShard: it is gone, damaged, or of another shard.
        """
        found = self._indexes.get(shard)
        if found is None:
            found = self._indexes[shard] = self._open_index(shard)
            if len(self._indexes) > MAX_INDEXES:
                self._indexes.popitem(last=False)
        self._indexes.move_to_end(shard)
        return found

    def find(self, key: bytes, split: str = "") -> tuple[int, int]:
        """(shard, sample) of the sample called `key`; the first one where several splits have it.

        Reads O(log shards) indexes where the order follows the hash of the key, all of them where not.

        Raises:
            SourceNotFound: no such key.
        """
        found = self._search(key, split) if self._is_sorted_by_hash() else None
        found = found or self._scan(key, split)
        if found is None:
            raise SourceNotFound(
                f"{self.path} has no sample {key.decode('utf-8', 'backslashreplace')!r}"
                + (f" in {split}" if split else ""),
                hint=f"shardtool ls {self.path} --samples lists the keys; folders are part of a key, extensions not",
                where={"path": self.path, "key": key.decode("utf-8", "backslashreplace")},
            )
        return found

    def part_row(self, shard: int, sample: int, name: bytes) -> int:
        """Row of the part called `name` in the part columns of the shard's index.

        Raises:
            SourceNotFound: the sample has no such part.
        """
        index = self.index(shard)
        first, last = int(index.part_start[sample]), int(index.part_start[sample + 1])
        names = index.part_names.slice(first, last - first).to_pylist()
        if name in names:
            return first + int(names.index(name))
        key, wanted = (text.decode("utf-8", "backslashreplace") for text in (index.key(sample), name))
        has = ", ".join(text.decode("utf-8", "backslashreplace") for text in names)
        raise SourceNotFound(
            f"sample {key!r} has no part {wanted!r}", hint=f"it has: {has}", where={"path": self.path, "key": key}
        )

    def read_part(self, shard: int, part: int, *, check: bool = True) -> bytes:
        """Bytes of one part.

        Args:
            shard: 0-based place in the manifest.
            part: row in the part columns of the shard's index, from `part_row`.
            check: compare with the digest in the index.

        Raises:
            CorruptShard: the shard is cut short, or the bytes are not those that were packed.
        """
        return self.read_parts(shard, part, part + 1, check=check)[0]

    def read_parts(self, shard: int, low: int, high: int, *, check: bool = True) -> list[bytes]:
        """Bytes of the parts [low, high) of shard k, in the order of its index.

        Raises:
            CorruptShard: as `read_part`.
        """
        index = self.index(shard)
        if index.addressing == ROWS:
            payloads = self._rows(shard).read_parts(low, high)
        else:
            offsets, sizes = index.part_offset[low:high].tolist(), index.part_bytes[low:high].tolist()
            payloads = [self.read_range(shard, offset, size) for offset, size in zip(offsets, sizes, strict=True)]
        if check:
            self._check(shard, index, low, payloads)
        return payloads

    def read_range(self, shard: int, offset: int, size: int) -> bytes:
        """`size` bytes of shard k from byte `offset` on, in the terms of its index.

        Raises:
            CorruptShard: the shard ends before.
        """
        if self.manifest.shards[shard].raw_bytes and "frames" in self.index(shard).meta:
            return self._read_frames(shard, offset, size)
        return self.read_file(shard, offset, size)

    def _read_frames(self, shard: int, offset: int, size: int) -> bytes:
        """Out of what a compressed shard decompresses to."""
        index = self.index(shard)
        try:
            frames = self._frames.table(shard, index.meta)
            data = self._frames.read(shard, frames, offset, size, partial(self.read_file, shard))
        except CorruptShard as error:
            path = self.shard_path(shard)
            raise CorruptShard(
                error.message if path in error.message else f"{path}: {error.message}",
                hint=f"shardtool verify {self.path} --deep tells what is damaged and how to repair it",
                where={"path": path, "shard": shard, "offset": offset},
            ) from error
        if len(data) < size:
            raise self._cut_short(shard, offset + len(data))
        return data

    def read_file(self, shard: int, offset: int, size: int) -> bytes:
        """`size` bytes of the shard file as it lies there.

        Raises:
            CorruptShard: the file ends before.
        """
        data = os.pread(self._file(shard), size, offset)
        while len(data) < size:
            more = os.pread(self._file(shard), size - len(data), offset + len(data))
            if not more:
                raise self._cut_short(shard, offset + len(data))
            data += more
        return data

    def samples(self, shard: int, start: int = 0, stop: int | None = None, *, check: bool = False) -> Iterator[Sample]:
        """Samples [start, stop) of shard k in their order, read in windows of 1 MiB.

        Args:
            shard: 0-based place in the manifest.
            start: first sample.
            stop: the sample to end before; None for all.
            check: compare every part with its digest.

        Raises:
            CorruptShard: the shard is cut short, or (`check`) altered.
        """
        index = self.index(shard)
        stop = index.num_samples if stop is None else min(stop, index.num_samples)
        parts = slice(int(index.part_start[start]), int(index.part_start[max(start, stop)]))
        is_large = int(index.part_bytes[parts].sum()) > LARGE_PART_BYTES * (parts.stop - parts.start)
        is_by_part = is_large or index.addressing != BYTES
        for block in blocks(index, start, stop):
            if is_by_part:
                yield from self._by_part(shard, index, block, check)
                continue
            for first, last in windows(index, block.first, block.first + len(block.keys)):
                yield from self._window(shard, index, block, first, last, check)

    def _by_part(self, shard: int, index: ShardIndex, block: Block, check: bool) -> Iterator[Sample]:
        """As `_window`, a `pread` a part: large parts are copied once, into memory that the sample before has freed."""
        low, high = block.first_part, block.first_part + len(block.names)
        is_rows = index.addressing == ROWS
        offsets, sizes = index.part_offset[low:high].tolist(), index.part_bytes[low:high].tolist()
        for key, label, (a, b) in zip(block.keys, block.labels, pairwise(block.bounds), strict=True):
            if is_rows:
                payloads = self._rows(shard).read_parts(low + a, low + b)
            else:
                payloads = [self.read_range(shard, *part) for part in zip(offsets[a:b], sizes[a:b], strict=True)]
            if check:
                self._check(shard, index, low + a, payloads)
            yield Sample(key, label, dict(zip(block.names[a:b], payloads, strict=True)))

    def _window(
        self, shard: int, index: ShardIndex, block: Block, first: int, last: int, check: bool
    ) -> Iterator[Sample]:
        """Samples [first, last) of a block, by one read."""
        base, end = int(index.offset[first]), int(index.offset[last - 1] + index.num_bytes[last - 1])
        data = self.read_range(shard, base, end - base)
        low, high = int(index.part_start[first]), int(index.part_start[last])
        starts = index.part_offset[low:high].astype(np.int64) - base
        ends = starts + index.part_bytes[low:high].astype(np.int64)
        if high > low and (int(starts.min()) < 0 or int(ends.max()) > len(data)):
            payloads = [self.read_part(shard, part, check=check) for part in range(low, high)]  # links to other samples
        else:
            payloads = [data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
            if check:
                self._check(shard, index, low, payloads)
        return block.samples(first, last, payloads)

    def _check(self, shard: int, index: ShardIndex, low: int, payloads: list[bytes]) -> None:
        found = list(map(xxhash.xxh3_64_intdigest, payloads))
        wanted = index.part_xxh3_64[low : low + len(payloads)].tolist()
        if found != wanted:
            differing = np.array(found, np.uint64) != np.array(wanted, np.uint64)
            raise self._altered(shard, low + int(differing.argmax()))

    def _rows(self, shard: int) -> PartsReader:
        reader = self._row_readers.get(shard)
        if reader is None:
            reader = self._row_readers[shard] = open_parts(self, shard)
            if len(self._row_readers) > MAX_ROW_READERS:
                self._row_readers.popitem(last=False)[1].close()
        self._row_readers.move_to_end(shard)
        return reader

    def _file(self, shard: int) -> int:
        fd = self._files.get(shard)
        if fd is None:
            fd = self._files[shard] = self._open_file(shard)
            if len(self._files) > MAX_FILES:
                os.close(self._files.popitem(last=False)[1])
        self._files.move_to_end(shard)
        return fd

    def _open_file(self, shard: int) -> int:
        path = self.shard_path(shard)
        try:
            return open_regular(path)
        except PermissionError as error:
            raise AccessDenied(f"{path} cannot be read: {error.strerror}", where={"path": path}) from error
        except OSError as error:
            raise CorruptShard(
                f"{path} is in the manifest, but it cannot be opened: {error.strerror}",
                hint=self._why_missing(shard) or f"shardtool verify {self.path} lists all that is missing",
                where={"path": path, "shard": shard},
            ) from error

    def _home_of(self, record: FileRecord) -> str:
        """The folder or URL that an index is read from."""
        return self.path

    def _open_index(self, shard: int) -> ShardIndex:
        record, path = self.manifest.shards[shard], self.shard_path(shard)
        hint = f"shardtool index {self.path} builds it again from the shard"
        where = {"path": path, "shard": shard}
        if record.index is None:
            raise CorruptShard(f"{path} has no index", hint=hint, where=where)
        index_path = os.path.join(self.path, record.index.path)
        try:
            index = fitted(load_index(self._home_of(record.index), record.index), record)
        except OSError as error:
            message = f"{index_path} cannot be opened: {error.strerror or error}"
            raise CorruptShard(message, hint=self._why_missing(shard) or hint, where=where) from error
        if index.meta["shard"]["xxh3_128"] != record.files[0].xxh3_128 or index.num_samples != record.num_samples:
            raise CorruptShard(f"{index_path} is not the index of {record.path}", hint=hint, where=where)
        return index

    def _why_missing(self, shard: int) -> str:
        """What to do about a shard that was not staged; "" where all shards should be here."""
        staged = read_staged(self.path)
        if staged is None or (shard in staged.shards and not staged.is_window):
            return ""
        parent = os.path.dirname(os.path.abspath(self.path))
        return (
            f"only a share of the data set was staged here: shardtool stage {staged.source} {parent} "
            f"with --all brings every shard, with --shards {shard} this one"
        )

    def _is_sorted_by_hash(self) -> bool:
        membership = self.manifest.membership
        return membership.get("algorithm") == "xxh3-key/1" and not membership.get("stratified")

    def _shards_of(self, split: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for number, shard in enumerate(self.manifest.shards):
            if shard.num_samples and split in ("", shard.split):
                found.setdefault(shard.split, []).append(number)
        return found

    def _search(self, key: bytes, split: str) -> tuple[int, int] | None:
        """The key by two bisections in each split; None where it is not at its place."""
        seed = int(self.manifest.membership["seed"])
        wanted = xxhash.xxh3_64_intdigest(key, seed)

        def hash_at(shard: int, sample: int) -> int:
            digest: int = xxhash.xxh3_64_intdigest(self.index(shard).key(sample), seed)
            return digest

        for shards in self._shards_of(split).values():
            place = bisect_left(shards, wanted, key=lambda shard: hash_at(shard, self.index(shard).num_samples - 1))
            if place == len(shards):
                continue
            shard = shards[place]
            samples = range(self.index(shard).num_samples)
            sample = bisect_left(samples, wanted, key=lambda sample: hash_at(shard, sample))
            if self.index(shard).key(sample) == key:
                return shard, sample
        return None

    def _scan(self, key: bytes, split: str) -> tuple[int, int] | None:
        wanted = pa.scalar(key, pa.binary())
        for shards in self._shards_of(split).values():
            for shard in shards:
                sample = pc.index(self.index(shard).keys, wanted).as_py()
                if sample >= 0:
                    return shard, sample
        return None

    def _cut_short(self, shard: int, offset: int) -> CorruptShard:
        path = self.shard_path(shard)
        return CorruptShard(
            f"{path} ends at byte {offset:,}; it should have {self.manifest.shards[shard].num_bytes:,} bytes",
            hint=f"shardtool verify {self.path} --deep tells what is lost and how to repair it",
            where={"path": path, "shard": shard, "offset": offset},
        )

    def _altered(self, shard: int, part: int) -> CorruptShard:
        index, path = self.index(shard), self.shard_path(shard)
        sample = int(np.searchsorted(index.part_start, part, side="right")) - 1
        key, name = index.key(sample), index.part_names[part].as_py()
        offset = int(index.part_offset[part])
        member = (key + b"." + name).decode("utf-8", "backslashreplace")
        return CorruptShard(
            f"{path}: {member!r} at byte {offset:,} is not what was packed: its digest differs",
            hint=f"shardtool verify {self.path} --deep tells what is damaged and how to repair it",
            where={"path": path, "shard": shard, "offset": offset, "key": key.decode("utf-8", "backslashreplace")},
        )
