"""The rows of one planned shard, and the identity of a whole plan. Tables in, tables out; no file is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardtool import columns
from shardtool.model import ShardRows
from shardtool.samples import key_array, path_array

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.model import Int64Array, SampleTable


def shard_rows(table: SampleTable, samples: Int64Array) -> ShardRows:
    """The samples of one shard, in the given order, with keys and locators as bytes."""
    counts = table.part_start[samples + 1] - table.part_start[samples]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    rows = np.repeat(table.part_start[samples] - starts[:-1], counts) + np.arange(starts[-1])
    owners = np.repeat(np.arange(len(samples)), counts)
    names = columns.take(columns.binary(table.part_names), table.part_name[rows])
    entries, entry = table.entries, table.part_entry[rows]
    paths = path_array(entries, entry)
    keys = key_array(table, samples, columns.take(paths, starts[:-1]))
    source = columns.null_where_equal(paths, columns.joined(columns.take(keys, owners), names, b"."))
    files = ShardRows(
        keys=keys,
        labels=None if table.labels is None else table.labels[samples],
        part_start=starts,
        names=names,
        source=source,
        roots=entries.dir_root[entries.folder_of(entry)].astype(np.uint32),
        sizes=entries.sizes[entry],
        mtimes_ns=entries.mtimes_ns[entry],
        data=columns.nulls(len(entry)),
        versions=None if entries.versions is None else columns.take(entries.versions, entry),
        offsets=None if entries.offsets is None else entries.offsets[entry],
    )
    return _with_generated(files, table, samples, owners) if table.generated else files


def _with_generated(files: ShardRows, table: SampleTable, samples: Int64Array, owners: Int64Array) -> ShardRows:
    """Generated parts merged in, parts of a sample in the byte order of their names."""
    owner, names, sizes = [owners], columns.to_list(files.names), [files.sizes]
    data: list[bytes | None] = [None] * files.num_parts
    for part in table.generated:
        codes = part.codes[samples]
        has = np.flatnonzero(codes >= 0)
        values = [part.values[code] for code in codes[has].tolist()]
        owner.append(has)
        names += [part.name] * len(has)
        data += values
        sizes.append(np.fromiter(map(len, values), np.int64, len(has)))
    added = len(names) - files.num_parts
    known = {name: rank for rank, name in enumerate(sorted(set(names)))}
    all_owners = np.concatenate(owner)
    order = np.lexsort((np.fromiter((known[name] for name in names), np.int64, len(names)), all_owners))
    counts = np.bincount(all_owners, minlength=len(samples))
    return ShardRows(
        keys=files.keys,
        labels=files.labels,
        part_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        names=columns.take(columns.binary(names), order),
        source=columns.take(columns.binary(columns.to_list(files.source) + [None] * added), order),
        roots=np.append(files.roots, np.zeros(added, np.uint32))[order],
        sizes=np.concatenate(sizes)[order],
        mtimes_ns=np.append(files.mtimes_ns, np.zeros(added, np.int64))[order],
        data=columns.take(columns.binary(data), order),
        versions=None
        if files.versions is None
        else columns.take(columns.binary(columns.to_list(files.versions) + [None] * added), order),
        offsets=None if files.offsets is None else np.append(files.offsets, np.zeros(added, np.int64))[order],
    )


def canonical_rows(rows: ShardRows) -> Iterator[bytes | memoryview]:
    """All of `rows` that can change an output byte, as bytes: not the guards, not the roots."""
    yield from columns.canonical(rows.keys)
    if rows.labels is not None:
        yield rows.labels.astype("<i4").tobytes()
    yield rows.part_start.astype("<i8").tobytes()
    yield from columns.canonical(rows.names)
    yield from columns.canonical(rows.source)
    yield rows.sizes.astype("<i8").tobytes()
    yield from columns.canonical(rows.data)


def guarding_rows(rows: ShardRows) -> Iterator[bytes | memoryview]:
    """What `canonical_rows` leaves out: roots, guards and offsets, as bytes."""
    yield rows.roots.astype("<u4").tobytes()
    yield rows.mtimes_ns.astype("<i8").tobytes()
    if rows.versions is not None:
        yield from columns.canonical(rows.versions)
    if rows.offsets is not None:
        yield rows.offsets.astype("<i8").tobytes()
