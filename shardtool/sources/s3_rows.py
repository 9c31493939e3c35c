"""Objects of a listing -> rows of an EntryTable, and a reason for everything else. Columns in, columns out, no request.

Keys below a root are cut at their last slash to folder and name, whatever they hold: `//`, `..`, newlines. What a tree
would leave out is left out here by the same rules, a folder as one entry; objects that only stand for a folder (a key
that ends with a slash, or with `_$folder$`) are counted as folder markers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool import columns
from shardtool.errors import SourceError
from shardtool.model import EntryTable
from shardtool.sources.junk import ODD_LETTERS, ODD_NAMES
from shardtool.storage.s3.pages import chunks_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.model import BinaryArray, Int32Array, Int64Array, Tally
    from shardtool.sources.junk import NameRules
    from shardtool.storage.s3.pages import Objects

    Mask: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]
    Positions: TypeAlias = Int32Array | Int64Array

BLOCK = 65_536  # keys cut at a time: bounds the byte-wise index to some 20 MiB
SLASH = ord("/")
HADOOP_MARKER = b"_$folder$"


class Cut(NamedTuple):
    """Keys as folders and names."""

    folders: list[bytes]  # each once
    codes: Int32Array  # int32[n], row in folders
    names: list[BinaryArray]  # large_binary[n] in chunks


@dataclass
class Others:
    """The columns beside the keys; each is replaced by the same in order, so that only one is there twice at a time."""

    sizes: Int64Array
    mtimes_ns: Int64Array
    etags: list[BinaryArray]  # in chunks

    def keep(self, keep: Mask) -> None:
        """Only the rows where `keep` is true."""
        self.sizes, self.mtimes_ns = self.sizes[keep], self.mtimes_ns[keep]
        keep_of(self.etags, keep)


class Rows(NamedTuple):
    """The entries of one root, sorted by folder and name."""

    folders: list[bytes]
    counts: Int64Array  # int64[num_folders]
    names: BinaryArray  # large_binary[n]
    sizes: Int64Array  # bytes, int64[n]
    mtimes_ns: Int64Array  # int64[n]
    etags: BinaryArray  # binary[n]


def taken_apart(objects: Objects) -> tuple[list[BinaryArray], Others]:
    """(chunks of the keys, the other columns), to be used up."""
    return chunks_of(objects.keys), Others(objects.sizes, objects.mtimes_ns, chunks_of(objects.etags))


def rows_of(found: Cut, others: Others, root: bytes, rules: NameRules, ignored: Tally) -> Rows:
    """The rows of one root.

    Args:
        found: their keys, cut; used up.
        others: the other columns; used up.
        root: how messages call the place that the keys lie below; has no slash at its end.
        rules: what to leave out by name.
        ignored: gets what is left out.
    """
    keep = _Sieve(rules, root, ignored).sift(found, others.sizes)
    if not keep.all():
        found = found._replace(codes=found.codes[keep])
        keep_of(found.names, keep)
        others.keep(keep)
    return _sorted(found, others)


def cut(keys: list[BinaryArray], width: int) -> Cut:
    """Folder and name of each key, without its first `width` bytes.

    A key that has no slash, or a single one at its very beginning, lies in the root folder b"": its name is all of it.

    Args:
        keys: chunks of them; used up.
    """
    codes: list[Int32Array] = []
    names: list[BinaryArray] = []
    rank: dict[bytes, int] = {}
    for chunk in columns.used_up(keys):
        for first in range(0, len(chunk), BLOCK):
            folder, name = _cut_block(chunk.slice(first, BLOCK), width)
            encoded = folder.dictionary_encode()
            known = [rank.setdefault(path, len(rank)) for path in columns.to_list(encoded.dictionary)]
            codes.append(np.array(known, np.int32)[encoded.indices.to_numpy()])
            names.append(name)
    return Cut(list(rank), np.concatenate(codes) if codes else np.zeros(0, np.int32), names)


def keep_of(chunks: list[BinaryArray], keep: Mask) -> None:
    """Only the rows of a column where `keep`, bool[n], is true."""
    start = 0
    for at, chunk in enumerate(chunks):
        chunks[at] = chunk.filter(pa.array(keep[start : start + len(chunk)]))
        start += len(chunk)


def _cut_block(keys: BinaryArray, width: int) -> tuple[BinaryArray, BinaryArray]:
    offsets, data = columns.buffers_of(keys)
    starts, ends = offsets[:-1] + width, offsets[1:]
    slashes = np.flatnonzero(data[offsets[0] : offsets[-1]] == SLASH) + offsets[0]
    before = np.searchsorted(slashes, ends) - 1
    last = np.where(before >= 0, slashes[before] if len(slashes) else -1, -1)
    has_folder = last > starts  # a slash at the very beginning belongs to the name: b"" is the root folder itself
    folder_ends = np.where(has_folder, last, starts)
    return _slices(data, starts, folder_ends), _slices(data, np.where(has_folder, last + 1, starts), ends)


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

    def sift(self, found: Cut, sizes: Int64Array) -> Mask:
        """bool[n]: the row is kept."""
        folders, codes, names = found.folders, found.codes, pa.chunked_array(found.names, pa.large_binary())
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

    def _odd(self, names: BinaryArray, keep: Mask) -> Int64Array:
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


def _sorted(found: Cut, others: Others) -> Rows:
    """Rows by folder and name, both in byte order; folders without rows are left out."""
    folders, place, chunks = found
    in_order = sorted(range(len(folders)), key=folders.__getitem__)
    rank = np.empty(len(folders), np.int32)
    rank[in_order] = np.arange(len(folders))
    np.take(rank, place, out=place, mode="clip")  # in its own memory
    counts = np.bincount(place, minlength=len(folders))
    position = None  # as a store in byte order lists a flat tree: nothing moves
    if not (place[1:] >= place[:-1]).all():
        position = _positions(place, counts)
    names = columns.gathered(chunks, pa.large_binary(), position)
    place[:] = np.repeat(np.arange(len(folders), dtype=np.int32), counts)
    if not _is_ascending(place, names):
        table = pa.table({"place": place, "name": names})
        order = pc.sort_indices(table, [("place", "ascending"), ("name", "ascending")])
        names = names.take(order)
        further = _inverse(order.to_numpy())
        position = further if position is None else further[position]
    others.sizes = _moved(others.sizes, position)
    others.mtimes_ns = _moved(others.mtimes_ns, position)
    try:
        etags = columns.gathered(others.etags, pa.binary(), position)
    except OverflowError as error:
        raise SourceError(
            f"the ETags of {len(place):,} objects do not fit: {error}",
            hint="pack prefixes of the source to folders of their own, then shardtool merge them",
        ) from error
    shown = np.flatnonzero(counts)
    in_folders = [folders[in_order[at]] for at in shown.tolist()]
    return Rows(in_folders, counts[shown], names, others.sizes, others.mtimes_ns, etags)


def _positions(place: Int32Array, counts: Int64Array) -> Positions:
    """Where a stable sort by `place` puts each row; block by block, so that no more than the result is held.

    Args:
        place: int32[n].
        counts: how often each value occurs.
    """
    following = np.cumsum(counts) - counts  # the next free row of each value
    position: Positions = np.empty(len(place), _index_type(len(place)))
    for first in range(0, len(place), BLOCK):
        block = place[first : first + BLOCK]
        order = np.argsort(block, kind="stable")
        ordered = block[order]
        begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        sizes = np.diff(begins, append=len(block))
        position[first + order] = following[ordered] + np.arange(len(block)) - np.repeat(begins, sizes)
        following[ordered[begins]] += sizes
    return position


def _inverse(order: Int64Array) -> Positions:
    """Where each row goes, from which row comes to each place."""
    position: Positions = np.empty(len(order), _index_type(len(order)))
    position[order] = np.arange(len(order))
    return position


def _index_type(num_rows: int) -> Any:
    return np.int32 if num_rows < 1 << 31 else np.int64


def _moved(values: Int64Array, position: Positions | None) -> Int64Array:
    if position is None:
        return values
    moved = np.empty_like(values)
    moved[position] = values
    return moved


def _is_ascending(place: Int32Array, names: BinaryArray) -> bool:
    if len(place) < 2:
        return True
    rising = pc.less(names.slice(0, len(names) - 1), names.slice(1)).to_numpy(zero_copy_only=False)
    return bool(((place[1:] > place[:-1]) | rising).all())


def repeated(rows: Rows) -> Iterator[bytes]:
    """Paths that occur more than once, each as often as it is too much."""
    if len(rows.names) < 2:
        return
    same = pc.equal(rows.names.slice(1), rows.names.slice(0, len(rows.names) - 1)).to_numpy(zero_copy_only=False)
    if not same.any():
        return
    folder = np.repeat(np.arange(len(rows.folders)), rows.counts)
    for row in np.flatnonzero(same & (folder[1:] == folder[:-1])).tolist():
        name: bytes = rows.names[row + 1].as_py()
        yield rows.folders[folder[row]] + b"/" + name if rows.folders[folder[row]] else name


def table_of(roots: Sequence[str], parts: Sequence[Rows]) -> EntryTable:
    """One table for all roots."""
    counts = np.concatenate([part.counts for part in parts]).astype(np.int64)
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    etags = _concat([part.etags for part in parts])
    is_none = pc.equal(etags, b"")
    return EntryTable(
        tuple(roots),
        [folder for part in parts for folder in part.folders],
        np.repeat(np.arange(len(parts), dtype=np.int32), [len(part.folders) for part in parts]),
        starts,
        _concat([part.names for part in parts]),
        _concat([part.sizes for part in parts]),
        _concat([part.mtimes_ns for part in parts]),
        versions=pc.if_else(is_none, pa.scalar(None, pa.binary()), etags) if pc.any(is_none).as_py() else etags,
    )


def _concat(parts: list[Any]) -> Any:
    """All parts as one array; a single one as it is, which spares a copy of it."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else pa.concat_arrays(parts)
