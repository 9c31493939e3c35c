"""Two key tables -> what was added, removed, moved and changed between two data sets. Pure: arrays in, figures out.

A sample is known by its key. It changed when one of its parts appeared, went, or differs in size or digest; it moved
when its shard is another one. Memory: a hash table of the keys of both sides, and about 60 bytes a sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.errors import DuplicateKey
from shardtool.statistics.metrics import key_document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardtool.model import BinaryArray, Int64Array, UInt64Array

SCHEMA = "shardtool/diff/1"
MAX_EXAMPLES = 5
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, eq=False)
class KeyTable:
    """All samples of a data set, in its order.

    Args:
        keys: binary[num_samples], each once.
        shards: 0-based place of the sample's shard in the manifest, int64[num_samples].
        splits: split name of each shard.
        part_start: parts of sample s are rows part_start[s]:part_start[s + 1], int64[num_samples + 1].
        part_names: names that `part_ids` point into.
        part_ids: int[num_parts].
        part_sizes: bytes, int64[num_parts].
        part_digests: xxh3_64, uint64[num_parts]; None where the data set records none: then sizes alone are compared.
    """

    keys: BinaryArray
    shards: Int64Array
    splits: Sequence[str]
    part_start: Int64Array
    part_names: Sequence[str]
    part_ids: NDArray[Any]
    part_sizes: Int64Array
    part_digests: UInt64Array | None = None

    @property
    def num_samples(self) -> int:
        """Rows of the table."""
        return len(self.shards)


@dataclass(frozen=True)
class Side:
    """One of the two data sets."""

    samples: int
    shards: int
    bytes: int  # payload


@dataclass(frozen=True)
class Example:
    """A sample by its key; what is known of it depends on the list that it stands in.

    Args:
        key: its key.
        before: (shard, split) in the first data set, None for an added sample.
        after: (shard, split) in the second, None for a removed one.
        parts: for a changed sample, the parts that differ.
    """

    key: bytes
    before: tuple[int, str] | None = None
    after: tuple[int, str] | None = None
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Change:
    """How many samples, their payload bytes (of the second data set; of the first where removed), the first five."""

    count: int
    bytes: int
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class DatasetDiff:
    """What happened between two data sets. `moved` and `changed` overlap: a sample may be both.

    Args:
        before: the first data set.
        after: the second.
        added: samples of the second alone.
        removed: samples of the first alone.
        moved: samples of both, in another shard.
        changed: samples of both, with other parts.
        other_split: how many of the moved went to another split: they may leak between training and test.
        changed_parts: samples in which a part appeared, went or differs, by part name.
        same: samples of both that neither moved nor changed.
        is_order_kept: samples of both come in the same order.
        is_by_digest: contents were compared; otherwise sizes alone.
    """

    before: Side
    after: Side
    added: Change
    removed: Change
    moved: Change
    changed: Change
    other_split: int
    changed_parts: dict[str, int]
    same: int
    is_order_kept: bool
    is_by_digest: bool

    @property
    def is_equal(self) -> bool:
        """True where both hold the same samples in the same shards and order."""
        return self.same == self.before.samples == self.after.samples and self.is_order_kept

    def document(self) -> dict[str, Any]:
        """The JSON document `shardtool/diff/1`."""
        return {
            "schema": SCHEMA,
            "equal": self.is_equal,
            "compared": "digests" if self.is_by_digest else "sizes",
            "before": vars(self.before),
            "after": vars(self.after),
            **{name: _change_document(getattr(self, name)) for name in ("added", "removed", "moved", "changed")},
            "other_split": self.other_split,
            "changed_parts": self.changed_parts,
            "same": self.same,
            "order_kept": self.is_order_kept,
        }


def compare(before: KeyTable, after: KeyTable) -> DatasetDiff:
    """What happened from `before` to `after`.

    Raises:
        DuplicateKey: a key occurs twice on one side, so samples cannot be told apart by it.
    """
    _check_unique(before, "first")
    _check_unique(after, "second")
    pair = _match(before, after)
    changed_parts, is_changed = _changes(pair)
    from_shards, to_shards = before.shards[pair.rows_before], after.shards[pair.rows_after]
    is_moved = from_shards != to_shards
    bytes_before, bytes_after = _sample_bytes(before), _sample_bytes(after)
    return DatasetDiff(
        before=_side(before, bytes_before),
        after=_side(after, bytes_after),
        added=_lone(after, bytes_after, pair.rows_after),
        removed=_lone(before, bytes_before, pair.rows_before, is_removed=True),
        moved=_common(pair, bytes_after, is_moved, names_parts=False),
        changed=_common(pair, bytes_after, is_changed, names_parts=True),
        other_split=_count_other_split(before.splits, after.splits, from_shards[is_moved], to_shards[is_moved]),
        changed_parts=changed_parts,
        same=int(np.count_nonzero(~(is_moved | is_changed))),
        is_order_kept=bool(np.all(np.diff(pair.rows_before) > 0)),
        is_by_digest=pair.is_by_digest,
    )


@dataclass(frozen=True, eq=False)
class _Pair:
    """Both tables and the rows of the samples that both have, in the order of `after`; int64[num_common] each."""

    before: KeyTable
    after: KeyTable
    rows_before: Int64Array
    rows_after: Int64Array

    @property
    def is_by_digest(self) -> bool:
        return self.before.part_digests is not None and self.after.part_digests is not None


def _check_unique(table: KeyTable, which: str) -> None:
    if pc.count_distinct(table.keys).as_py() == table.num_samples:
        return
    counts = pc.value_counts(table.keys)
    repeated = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")[:MAX_EXAMPLES].to_pylist()
    shown = ", ".join(repr(key.decode("utf-8", "backslashreplace")) for key in repeated)
    raise DuplicateKey(
        f"the {which} data set has keys that occur more than once: {shown}",
        hint="samples are matched by key; pack the data set again with: --on-duplicate error",
        where={"key": repeated[0].decode("utf-8", "backslashreplace")},
    )


def _match(before: KeyTable, after: KeyTable) -> _Pair:
    wanted, known = (table.keys.cast(pa.large_binary()) for table in (after, before))
    places = pc.index_in(wanted, value_set=known)
    if isinstance(places, pa.ChunkedArray):
        places = places.combine_chunks()
    rows_after = np.flatnonzero(pc.is_valid(places).to_numpy(zero_copy_only=False)).astype(np.int64)
    rows_before = places.drop_null().to_numpy(zero_copy_only=False).astype(np.int64)
    return _Pair(before, after, rows_before, rows_after)


def _changes(pair: _Pair) -> tuple[dict[str, int], NDArray[np.bool_]]:
    """Samples that differ by part name, and which of the common samples do, bool[num_common]."""
    is_changed = np.zeros(len(pair.rows_before), np.bool_)
    counts: dict[str, int] = {}
    owners = [np.repeat(np.arange(side.num_samples), np.diff(side.part_start)) for side in (pair.before, pair.after)]
    for name in sorted({*pair.before.part_names, *pair.after.part_names}):
        old, new = (
            _signatures(side, name, owner, pair.is_by_digest)
            for side, owner in zip((pair.before, pair.after), owners, strict=True)
        )
        differs = old[pair.rows_before] != new[pair.rows_after]
        is_changed |= differs
        if count := int(np.count_nonzero(differs)):
            counts[name] = count
    return counts, is_changed


def _signatures(table: KeyTable, name: str, owner: Int64Array, is_by_digest: bool) -> UInt64Array:
    """A number a sample for its part `name`, 0 where it has none, uint64[num_samples]; size alone without digests."""
    found = np.zeros(table.num_samples, np.uint64)
    if name not in table.part_names:
        return found
    rows = np.flatnonzero(table.part_ids == list(table.part_names).index(name))
    values = table.part_sizes[rows].astype(np.uint64) + np.uint64(1)
    if is_by_digest and table.part_digests is not None:
        values += table.part_digests[rows] * _GOLDEN  # wraps; an odd factor keeps different digests apart
    found[owner[rows]] = values
    return found


def _lone(table: KeyTable, sizes: Int64Array, common: Int64Array, *, is_removed: bool = False) -> Change:
    """The samples of one side that are not in `common`."""
    is_lone = np.ones(table.num_samples, np.bool_)
    is_lone[common] = False
    rows = np.flatnonzero(is_lone)
    examples = []
    for row in rows[:MAX_EXAMPLES].tolist():
        place = _place(table, row)
        examples.append(Example(_key(table, row), place if is_removed else None, None if is_removed else place))
    return Change(len(rows), int(sizes[rows].sum()), tuple(examples))


def _common(pair: _Pair, sizes: Int64Array, chosen: NDArray[np.bool_], *, names_parts: bool) -> Change:
    """The common samples that are `chosen`, bool[num_common]; `sizes` are those of the second side."""
    rows = np.flatnonzero(chosen)
    examples = []
    for row in rows[:MAX_EXAMPLES]:
        old, new = int(pair.rows_before[row]), int(pair.rows_after[row])
        parts = _differing(pair, old, new) if names_parts else ()
        examples.append(Example(_key(pair.after, new), _place(pair.before, old), _place(pair.after, new), parts))
    return Change(len(rows), int(sizes[pair.rows_after[rows]].sum()), tuple(examples))


def _differing(pair: _Pair, old: int, new: int) -> tuple[str, ...]:
    parts, others = _parts(pair.before, old, pair.is_by_digest), _parts(pair.after, new, pair.is_by_digest)
    return tuple(sorted(name for name in {*parts, *others} if parts.get(name) != others.get(name)))


def _parts(table: KeyTable, row: int, is_by_digest: bool) -> dict[str, tuple[int, int]]:
    found = {}
    for place in range(int(table.part_start[row]), int(table.part_start[row + 1])):
        digest = int(table.part_digests[place]) if is_by_digest and table.part_digests is not None else 0
        found[table.part_names[int(table.part_ids[place])]] = (int(table.part_sizes[place]), digest)
    return found


def _count_other_split(old: Sequence[str], new: Sequence[str], from_shards: Int64Array, to_shards: Int64Array) -> int:
    numbers = {name: number for number, name in enumerate(dict.fromkeys([*old, *new]))}
    old_splits = np.array([numbers[name] for name in old], np.int64)
    new_splits = np.array([numbers[name] for name in new], np.int64)
    return int(np.count_nonzero(old_splits[from_shards] != new_splits[to_shards]))


def _sample_bytes(table: KeyTable) -> Int64Array:
    """Payload bytes of each sample, int64[num_samples]."""
    sums = np.concatenate([[0], np.cumsum(table.part_sizes)])
    return np.diff(sums[table.part_start]).astype(np.int64)


def _side(table: KeyTable, sizes: Int64Array) -> Side:
    return Side(table.num_samples, len(table.splits), int(sizes.sum()))


def _key(table: KeyTable, row: int) -> bytes:
    key: bytes = table.keys[int(row)].as_py()
    return key


def _place(table: KeyTable, row: int) -> tuple[int, str]:
    shard = int(table.shards[row])
    return shard, table.splits[shard]


def _change_document(change: Change) -> dict[str, Any]:
    examples = [_example_document(example) for example in change.examples]
    return {"count": change.count, "bytes": change.bytes, "examples": examples}


def _example_document(example: Example) -> dict[str, Any]:
    places = {
        name: {"shard": place[0], "split": place[1]}
        for name, place in (("from", example.before), ("to", example.after))
        if place is not None
    }
    return {**key_document(example.key), **places, **({"parts": list(example.parts)} if example.parts else {})}
