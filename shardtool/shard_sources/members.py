"""Parts that lie in shards as rows of an EntryTable: paths cut into folders and names, places, digests.

    Members a shard file  ->  one EntryTable, one Origin

An entry's path is KEY.PART (or the name of an archive's member), its root says which file and how to read it, its
offset where it lies there. Memory: columns, and 20 bytes for each change of folder.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardtool import columns
from shardtool.model import EntryTable, Origin, ScanResult, Tally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.model import BinaryArray, Int32Array, Int64Array, UInt64Array
    from shardtool.sources.junk import NameRules

SLASH = ord("/")


@dataclass(frozen=True)
class Members:
    """The parts of one shard file."""

    root: str  # as sources.opening reads it: `range:PATH`
    file: str  # path or URL of the source file
    paths: BinaryArray  # binary[num_parts], KEY.PART
    offsets: Int64Array  # int64[num_parts]
    sizes: Int64Array  # int64[num_parts]
    mtime_ns: int  # guard of the file
    digests: UInt64Array | None = None  # xxh3_64 of each part, where it is known
    split: str = ""  # "" where the shard tells none
    labels: Int32Array | None = None  # row in label_names of each part's sample
    label_names: tuple[str, ...] = ()
    ignored: Tally = field(default_factory=Tally)
    is_dataset: bool = False  # paths are KEY.PART, in that spelling
    num_samples: int = 0  # that the parts make, as they lie there; 0 where nobody counted


def scan_result(
    found: Sequence[Members], rules: NameRules, given: tuple[str, ...], losses: Sequence[str]
) -> ScanResult:
    """All members as one table, in the order of the shards.

    Args:
        found: the shards, in order.
        rules: what to leave out by name; of the members of data sets only by glob.
        given: the sources as they were named.
        losses: what cannot be carried over.
    """
    ignored = Tally()
    kept = [_select(members, rules, ignored) for members in found]
    splits = tuple(dict.fromkeys(members.split for members in found if members.split))
    labels = tuple(dict.fromkeys(name for members in found for name in members.label_names))
    origin = Origin(
        splits=_concatenate([_split_codes(members, splits) for members in kept], np.int32),
        split_names=splits,
        labels=_concatenate([_label_codes(members, labels) for members in kept], np.int32),
        label_names=labels,
        has_part_names=all(members.is_dataset for members in found),
        losses=tuple(losses),
    )
    return ScanResult(_table(kept, given), ignored, Tally(), origin=origin)


def _table(found: Sequence[Members], given: tuple[str, ...]) -> EntryTable:
    files = {members.root: members.file for members in found}
    roots = {root: number for number, root in enumerate(files)}
    folders: list[bytes] = []
    folder_root: list[Any] = []
    starts: list[Any] = []
    names: list[Any] = []
    base = 0
    for members in found:
        first, found_folders, tail = cut_paths(members.paths)
        folders += found_folders
        folder_root.append(np.full(len(first), roots[members.root], np.int32))
        starts.append(first + base)
        names.append(tail)
        base += len(members.sizes)
    digests = [_versions(members) for members in found]
    return EntryTable(
        roots=tuple(roots),
        dirs=folders,
        dir_root=_concatenate(folder_root, np.int32),
        dir_start=np.append(_concatenate(starts, np.int64), base),
        names=pa.concat_arrays(names) if names else pa.array([], pa.large_binary()),
        sizes=_concatenate([members.sizes for members in found], np.int64),
        mtimes_ns=_concatenate([np.full(len(m.sizes), m.mtime_ns, np.int64) for m in found], np.int64),
        versions=pa.concat_arrays(digests) if digests else pa.array([], pa.binary()),
        offsets=_concatenate([members.offsets for members in found], np.int64),
        given=given,
        files=tuple(files.values()),
    )


def cut_paths(paths: BinaryArray) -> tuple[Int64Array, list[bytes], BinaryArray]:
    """(first row of each run of one folder, that folder, large_binary[n] last names)."""
    offsets, data = columns.buffers_of(paths)
    if len(paths) == 0:
        return np.zeros(0, np.int64), [], pa.array([], pa.large_binary())
    slashes = np.flatnonzero(data[: offsets[-1]] == SLASH)
    last = np.append(slashes, -1)[np.searchsorted(slashes, offsets[1:], side="left") - 1]
    cut = np.where(last >= offsets[:-1], last + 1 - offsets[:-1], 0)
    heads = columns.heads(paths, np.maximum(cut - 1, 0)).dictionary_encode()
    codes = heads.indices.to_numpy()
    first = np.concatenate([[0], np.flatnonzero(codes[1:] != codes[:-1]) + 1]).astype(np.int64)
    known = columns.to_list(heads.dictionary)
    return first, [known[code] for code in codes[first].tolist()], columns.tails(paths, cut)


def _versions(members: Members) -> BinaryArray:
    """binary[num_parts]: eight bytes of digest, null where none is known."""
    count = len(members.sizes)
    if members.digests is None:
        return pa.nulls(count, pa.binary())
    data = members.digests.astype("<u8").tobytes()
    offsets = np.arange(0, 8 * count + 1, 8, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _select(members: Members, rules: NameRules, ignored: Tally) -> Members:
    """`members` without what the rules leave out."""
    ignored.merge(members.ignored)
    if members.is_dataset and not rules.has_globs:
        return members
    keep = np.ones(len(members.sizes), bool)
    for row, path in enumerate(columns.to_list(members.paths)):
        found = _reason(path, rules, is_dataset=members.is_dataset)
        if found is not None:
            keep[row] = False
            ignored.add(found[0], path, found[1])
    return members if keep.all() else take(members, np.flatnonzero(keep))


def _reason(path: bytes, rules: NameRules, *, is_dataset: bool) -> tuple[str, str] | None:
    *folders, name = path.split(b"/")
    if not is_dataset:
        for depth, folder in enumerate(folders, 1):
            if found := rules.folder(folder, b"/".join(folders[:depth])):
                return found
    found = rules.file(name, path)
    return None if found and is_dataset and found[0] in ("junk", "hidden") else found


def take(members: Members, rows: Int64Array) -> Members:
    """The given parts of `members`."""
    return replace(
        members,
        paths=columns.take(members.paths, rows),
        offsets=members.offsets[rows],
        sizes=members.sizes[rows],
        digests=None if members.digests is None else members.digests[rows],
        labels=None if members.labels is None else members.labels[rows],
    )


def _split_codes(members: Members, names: tuple[str, ...]) -> Int32Array:
    code = names.index(members.split) if members.split else -1
    return np.full(len(members.sizes), code, np.int32)


def _label_codes(members: Members, names: tuple[str, ...]) -> Int32Array:
    if members.labels is None:
        return np.full(len(members.sizes), -1, np.int32)
    renumber = np.array([names.index(name) for name in members.label_names] + [-1], np.int32)
    return renumber[members.labels]


def _concatenate(pieces: list[Any], dtype: Any) -> Any:
    return np.concatenate(pieces).astype(dtype, copy=False) if pieces else np.zeros(0, dtype)
