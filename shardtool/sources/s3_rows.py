"""Objects of a listing -> rows of an EntryTable, and a reason for everything else. Columns in, columns out, no request.

Keys below a root are cut at their last slash to folder and name, whatever they hold: `//`, `..`, newlines. What a tree
would leave out is left out here by the same rules, a folder as one entry; objects that only stand for a folder (a key
that ends with a slash, or with `_$folder$`) are counted as folder markers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool import columns
from shardtool.model import EntryTable
from shardtool.sources.junk import ODD_LETTERS, ODD_NAMES
from shardtool.storage.s3.pages import Objects, concat

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.model import BinaryArray, Int32Array, Int64Array, Tally
    from shardtool.sources.junk import NameRules

BLOCK = 65_536  # keys cut at a time: bounds the byte-wise index to some 20 MiB
SLASH = ord("/")
HADOOP_MARKER = b"_$folder$"


class Cut(NamedTuple):
    """Keys as folders and names."""

    folders: list[bytes]  # each once
    codes: Int32Array  # int32[n], row in folders
    names: BinaryArray  # large_binary[n]


class Rows(NamedTuple):
    """The entries of one root, sorted by folder and name."""

    folders: list[bytes]
    counts: Int64Array  # int64[num_folders]
    names: BinaryArray  # large_binary[n]
    objects: Objects  # in the same order, without keys


def rows_of(found: Cut, objects: Objects, root: bytes, rules: NameRules, ignored: Tally) -> Rows:
    """The rows of one root.

    Args:
        found: their keys, cut.
        objects: the other columns.
        root: how messages call the place that the keys lie below; has no slash at its end.
        rules: what to leave out by name.
        ignored: gets what is left out.
    """
    folders, codes, names = found
    keep = _Sieve(rules, root, ignored).sift(folders, codes, names, objects.sizes)
    if not keep.all():
        mask = pa.array(keep)
        found, objects = Cut(folders, codes[keep], names.filter(mask)), objects.where(keep)
    return _sorted(found, objects)


def cut(keys: BinaryArray, width: int) -> Cut:
    """Folder and name of each key, without its first `width` bytes.

    A key that has no slash, or a single one at its very beginning, lies in the root folder b"": its name is all of it.
    """
    folders, names = [], []
    for first in range(0, len(keys), BLOCK):
        folder, name = _cut_block(keys.slice(first, BLOCK), width)
        folders.append(folder.dictionary_encode())
        names.append(name)
    if not folders:
        return Cut([], np.zeros(0, np.int32), pa.array([], pa.large_binary()))
    encoded = pa.chunked_array(folders).unify_dictionaries().combine_chunks()
    encoded = encoded if not isinstance(encoded, pa.ChunkedArray) else encoded.chunk(0)
    codes: Int32Array = encoded.indices.to_numpy()
    return Cut(columns.to_list(encoded.dictionary), codes, pa.concat_arrays(names))


def _cut_block(keys: BinaryArray, width: int) -> tuple[BinaryArray, BinaryArray]:
    offsets, data = _buffers(keys)
    starts, ends = offsets[:-1] + width, offsets[1:]
    slashes = np.flatnonzero(data[offsets[0] : offsets[-1]] == SLASH) + offsets[0]
    before = np.searchsorted(slashes, ends) - 1
    last = np.where(before >= 0, slashes[before] if len(slashes) else -1, -1)
    has_folder = last > starts  # a slash at the very beginning belongs to the name: b"" is the root folder itself
    folder_ends = np.where(has_folder, last, starts)
    return _slices(data, starts, folder_ends), _slices(data, np.where(has_folder, last + 1, starts), ends)


def _buffers(array: BinaryArray) -> tuple[Int64Array, Any]:
    """(int64[n + 1] offsets, uint8 data) of a large_binary array; a view of both."""
    _, offsets, data = array.buffers()
    found = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return found, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)


def _slices(data: Any, starts: Int64Array, ends: Int64Array) -> BinaryArray:
    """large_binary[n] of data[starts[i]:ends[i]]."""
    lengths = ends - starts
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data[places])]
    return pa.Array.from_buffers(pa.large_binary(), len(starts), buffers)


class _Sieve:
    """Which rows are kept; counts the others."""

    def __init__(self, rules: NameRules, root: bytes, ignored: Tally) -> None:
        self._rules, self._root, self._ignored = rules, root, ignored
        self._left_out: dict[bytes, bool] = {}  # folders that were asked about

    def sift(
        self, folders: list[bytes], codes: Int32Array, names: BinaryArray, sizes: Int64Array
    ) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """bool[n]: the row is kept."""
        folder_is_kept = np.array([not self._is_left_out(folder) for folder in folders], bool)
        keep = folder_is_kept[codes]
        for row in self._odd(names, keep).tolist():
            name = names[row].as_py()
            folder = folders[codes[row]]
            path = folder + b"/" + name if folder else name
            reason = self._reason(name, path, int(sizes[row]))
            if reason is not None:
                self._ignored.add(reason[0], self._root + b"/" + path, reason[1])
                keep[row] = False
        return keep

    def _is_left_out(self, folder: bytes) -> bool:
        """Whether a folder or one above it is left out; the uppermost such is counted, once."""
        ends = [at for at in range(1, len(folder)) if folder[at] == SLASH]
        for end in [*ends, len(folder)] if folder else ():
            path = folder[:end]
            if path not in self._left_out:
                reason = self._rules.folder(path.rpartition(b"/")[2], path)
                self._left_out[path] = reason is not None
                if reason is not None:
                    self._ignored.add(reason[0], self._root + b"/" + path + b"/", reason[1])
            if self._left_out[path]:
                return True
        return False

    def _odd(self, names: BinaryArray, keep: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Int64Array:
        """int64[m]: rows whose names need a look; the others are kept without Python seeing them."""
        if self._rules.has_globs:
            return np.flatnonzero(keep)
        odd = pc.is_in(names, value_set=pa.array([b"", b"/", *sorted(ODD_NAMES)], pa.large_binary()))
        for letter in ODD_LETTERS:
            odd = pc.or_(odd, pc.starts_with(names, letter))
        odd = pc.or_(odd, pc.ends_with(names, HADOOP_MARKER))
        found: Int64Array = np.flatnonzero(odd.to_numpy(zero_copy_only=False) & keep)
        return found

    def _reason(self, name: bytes, path: bytes, size: int) -> tuple[str, str] | None:
        if name in (b"", b"/") or name.endswith(HADOOP_MARKER):
            return "folder_marker", f"{size:,} bytes" if size > 1 else ""
        return self._rules.file(name, path)


def _sorted(found: Cut, objects: Objects) -> Rows:
    """Rows by folder and name, both in byte order; folders without rows are left out."""
    folders, codes, names = found
    in_order = sorted(range(len(folders)), key=folders.__getitem__)
    rank = np.empty(len(folders), np.int64)
    rank[in_order] = np.arange(len(folders))
    place = rank[codes]
    order = np.argsort(place, kind="stable")
    if not _is_ascending(place[order], names.take(pa.array(order))):
        table = pa.table({"place": place, "name": names})
        order = pc.sort_indices(table, [("place", "ascending"), ("name", "ascending")]).to_numpy()
    counts = np.bincount(place, minlength=len(folders))
    shown = np.flatnonzero(counts)
    in_folders = [folders[in_order[at]] for at in shown.tolist()]
    if _is_range(order):  # as a store in byte order lists a flat tree: nothing is copied
        return Rows(in_folders, counts[shown], names, objects)
    taken = pa.array(order)
    objects = Objects(objects.keys, objects.sizes[order], objects.mtimes_ns[order], objects.etags.take(taken))
    return Rows(in_folders, counts[shown], names.take(taken), objects)


def _is_range(order: Int64Array) -> bool:
    """Whether `order` is 0, 1, 2 ..."""
    return bool((np.diff(order) == 1).all()) and (len(order) == 0 or int(order[0]) == 0)


def _is_ascending(place: Int64Array, names: BinaryArray) -> bool:
    if len(place) < 2:
        return True
    rising = pc.less(names.slice(0, len(names) - 1), names.slice(1)).to_numpy(zero_copy_only=False)
    return bool(((place[1:] > place[:-1]) | rising).all())


def repeated(rows: Rows) -> Iterator[bytes]:
    """Paths that occur more than once, each as often as it is too much."""
    if len(rows.names) < 2:
        return
    same = pc.equal(rows.names.slice(1), rows.names.slice(0, len(rows.names) - 1)).to_numpy(zero_copy_only=False)
    folder = np.repeat(np.arange(len(rows.folders)), rows.counts)
    for row in np.flatnonzero(same & (folder[1:] == folder[:-1])).tolist():
        name: bytes = rows.names[row + 1].as_py()
        yield rows.folders[folder[row]] + b"/" + name if rows.folders[folder[row]] else name


def table_of(roots: Sequence[str], parts: Sequence[Rows]) -> EntryTable:
    """One table for all roots."""
    counts = np.concatenate([part.counts for part in parts]).astype(np.int64)
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    objects = concat([part.objects for part in parts])
    etags = objects.etags
    return EntryTable(
        tuple(roots),
        [folder for part in parts for folder in part.folders],
        np.repeat(np.arange(len(parts), dtype=np.int32), [len(part.folders) for part in parts]),
        starts,
        pa.concat_arrays([part.names for part in parts]),
        objects.sizes,
        objects.mtimes_ns,
        versions=pc.if_else(pc.equal(etags, b""), pa.scalar(None, pa.binary()), etags),
    )
