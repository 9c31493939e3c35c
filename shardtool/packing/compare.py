"""A stored plan against a fresh one: which files were added, removed, resized, or have other contents now."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from shardtool import columns
from shardtool.errors import FormatError, PlanMismatch, SourceError
from shardtool.indexing.cache import read_index
from shardtool.names import index_path
from shardtool.planning.plan import DEFAULT_SHARD_BYTES
from shardtool.planning.plan_file import plan_identity, read_rows
from shardtool.planning.plan_rows import shard_rows
from shardtool.samples import member_names
from shardtool.scan import absolute_root
from shardtool.sources.opening import open_reader
from shardtool.storage import open_place
from shardtool.storage.files import exists
from shardtool.units import show_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardtool.model import BinaryArray, ShardRows
    from shardtool.planning.plan import Plan, PlanOptions
    from shardtool.planning.plan_file import StoredPlan
    from shardtool.sources.reader import PartReader


@dataclass
class Changes:
    """What differs between two scans of a source, in files (parts), with examples."""

    added: int = 0
    removed: int = 0
    resized: int = 0
    rewritten: int = 0  # same size, other contents
    touched: int = 0  # same size and contents, other time
    damaged: int = 0  # shards whose stored rows cannot be read, so that contents were compared
    other: bool = False  # the plan differs in something else: a label, a joined value
    shards: set[int] = field(default_factory=set)  # that hold rewritten parts
    examples: list[str] = field(default_factory=list)

    @property
    def any(self) -> bool:
        """True where packing the source again would give another data set."""
        return bool(self.added or self.removed or self.resized or self.rewritten or self.other)

    @property
    def only_contents(self) -> bool:
        """True where every difference is one that `--update` can repair."""
        return bool(self.rewritten) and not (self.added or self.removed or self.resized or self.other)

    def sentence(self) -> str:
        """`3 files added, 1 changed` ."""
        words = [
            (self.added, "added"),
            (self.removed, "removed"),
            (self.resized + self.rewritten, "changed"),
        ]
        said = [f"{count:,} {word}" for count, word in words if count]
        if self.other and not said:
            return "labels or joined values changed"
        return ("files: " if said else "") + ", ".join(said)


def check_same_options(out: str, stored: StoredPlan, options: PlanOptions, sources: Sequence[str]) -> None:
    """Options and sources equal those of the plan stored in `out`.

    Raises:
        PlanMismatch: naming each difference.
    """
    new, old = _flat(options.document()), _flat(stored.options.document())
    differences = [
        f"{name.replace('_', '-')} {_show(name, old.get(name, ''))}, now {_show(name, new[name])}"
        for name in new
        if new[name] != old.get(name, "")
    ]
    roots = [absolute_root(source) for source in sources]
    known = stored.given or stored.roots
    if list(map(os.path.realpath, roots)) != list(map(os.path.realpath, known)):
        differences.append(f"source {', '.join(known)}, now {', '.join(roots)}")
    if differences:
        raise PlanMismatch(
            f"{out} holds a data set made with other options:  {';  '.join(differences)}",
            hint="write to a new folder, or replace it with --overwrite",
            where={"path": out},
        )


def _flat(document: dict[str, Any]) -> dict[str, Any]:
    """Options with those of tokens beside the others."""
    tokens = document.pop("tokens", None) or {}
    return {**document, **tokens}


def _show(name: str, value: Any) -> str:
    if name == "shard_size":
        return show_size(value or DEFAULT_SHARD_BYTES)
    if value in ("", []) or (value == 0 and name in ("shards", "samples_per_shard")):
        return "none"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def source_differs(out: str, changes: Changes) -> PlanMismatch:
    """The error for a source that is not what was packed to `out`: counts, examples, choices."""
    choices = ["write to a new folder", "replace it with --overwrite"]
    if changes.only_contents:
        choices.append("or repack only the shards that hold them with --update")
    shown = "".join(f"\n  {path}" for path in changes.examples)
    return PlanMismatch(
        f"the source of {out} is not what was packed:  {changes.sentence()}{shown}",
        hint=", ".join(choices),
        where={"path": out},
    )


def compare_plans(out: str, stored: StoredPlan, fresh: Plan) -> Changes:
    """What has changed since `stored` was made, by contents where only times differ, or where its guards are damaged.

    Raises:
        FormatError: the stored plan is damaged, and the fresh one is another.
    """
    if plan_identity(fresh) == stored.plan_id:
        return _compare_guards(out, stored, fresh)
    try:
        return _compare_members(out, stored, fresh)
    except FormatError as error:
        raise FormatError(
            f"{error.message}; and the source is not what it was",
            hint="write to a new folder, or replace it with --overwrite",
            where=error.where,
        ) from error


def _compare_guards(out: str, stored: StoredPlan, fresh: Plan) -> Changes:
    changes, roots = Changes(), fresh.samples.entries.roots
    for shard in range(len(stored.shards)):
        old, new = _rows_or_none(out, shard), shard_rows(fresh.samples, fresh.samples_of(shard))
        if old is None:
            changes.damaged += 1
            if not _is_packed(out, stored, shard):
                continue  # the rows as they are now are as good as any
        rows = _other_guards(old, new) if old else _parts_of_files(new)
        if len(rows) == 0:
            continue
        members = member_names(new)
        if old and old.versions is not None and new.versions is not None:
            rows = _compare_versions(changes, shard, rows, members, old.versions, new.versions)
            if len(rows) == 0:
                continue
        digests = _packed_digests(out, stored, shard, new.num_parts)
        if new.versions is not None:
            _compare_contents(changes, shard, rows, members, digests, open_reader(roots, new, members))
            continue
        sources = columns.to_list(new.source)
        for row in rows.tolist():
            path = os.path.join(os.fsencode(roots[int(new.roots[row])]), sources[row] or members[row])
            is_same = digests is not None and _digest(path) == int(digests[row])
            _count(changes, shard, os.fsdecode(path), is_same=is_same)
    return changes


def _rows_or_none(out: str, shard: int) -> ShardRows | None:
    """The stored rows of a shard; None where they are damaged, so that contents must be compared."""
    try:
        return read_rows(out, shard)
    except FormatError:
        return None


def _parts_of_files(rows: ShardRows) -> Any:
    """int64[m]: parts that no plan holds itself."""
    return np.flatnonzero([data is None for data in columns.to_list(rows.data)])


def _other_guards(old: ShardRows, new: ShardRows) -> Any:
    """int64[m]: parts whose guards differ: versions where both scans saw them, else times.

    Parts of shards have both: their version is a digest of the part, the time guards the shard that it lies in.
    """
    times = old.mtimes_ns != new.mtimes_ns
    if old.versions is None or new.versions is None:
        return np.flatnonzero(times)
    pairs = zip(columns.to_list(old.versions), columns.to_list(new.versions), strict=True)
    differ = [before != now if before and now else late for (before, now), late in zip(pairs, times, strict=True)]
    return np.flatnonzero(np.logical_or(differ, times) if new.offsets is not None else differ)


def _compare_versions(
    changes: Changes, shard: int, rows: Any, members: list[bytes], old: BinaryArray, new: BinaryArray
) -> Any:
    """Parts whose version tells their content: an ETag, the digest of a shard's index; the rows of the others."""
    before, after, untold = columns.to_list(old), columns.to_list(new), []
    for row in rows.tolist():
        if before[row] is None or after[row] is None:
            untold.append(row)
        else:
            _count(changes, shard, os.fsdecode(members[row]), is_same=before[row] == after[row])
    return np.array(untold, np.int64)


def _compare_contents(
    changes: Changes, shard: int, rows: Any, members: list[bytes], digests: Any, reader: PartReader
) -> None:
    """Parts in objects or shards, read again, since what told their version is lost."""
    buffer = memoryview(bytearray(1 << 20))
    with closing(reader):
        for row in rows.tolist():
            is_same = digests is not None and _joined_digest(reader.stream(row, buffer)) == int(digests[row])
            _count(changes, shard, os.fsdecode(members[row]), is_same=is_same)


def _count(changes: Changes, shard: int, path: str, *, is_same: bool) -> None:
    """One part whose guard is another, or is lost."""
    if is_same:
        changes.touched += 1
        return
    changes.rewritten += 1
    changes.shards.add(shard)
    if len(changes.examples) < 5:
        changes.examples.append(path)


def _is_packed(out: str, stored: StoredPlan, shard: int) -> bool:
    return exists(open_place(out), index_path(shard, len(stored.shards)))


def _packed_digests(out: str, stored: StoredPlan, shard: int, num_parts: int) -> Any:
    """xxh3_64 of each part as packed; None where the shard is not packed, or parts of it were left out."""
    if not _is_packed(out, stored, shard):
        return None
    index = read_index(out, index_path(shard, len(stored.shards)))
    return index.part_xxh3_64 if index.num_parts == num_parts else None


def _joined_digest(pieces: Iterable[memoryview]) -> int:
    state = xxhash.xxh3_64()
    for piece in pieces:
        state.update(piece)
    return state.intdigest()


def _digest(path: bytes) -> int:
    try:
        with open(path, "rb", buffering=0) as file:
            return _joined_digest(iter(lambda: memoryview(file.read(1 << 20)), b""))
    except OSError as error:
        raise SourceError(
            f"{os.fsdecode(path)} cannot be read: {error.strerror}",
            hint="put it right and run the same command again",
            where={"path": os.fsdecode(path)},
        ) from error


def _compare_members(out: str, stored: StoredPlan, fresh: Plan) -> Changes:
    old_names, old_sizes = _members(read_rows(out, shard) for shard in range(len(stored.shards)))
    new_names, new_sizes = _members(
        shard_rows(fresh.samples, fresh.samples_of(shard)) for shard in range(len(fresh.shards))
    )
    common, old_at, new_at = np.intersect1d(old_names, new_names, assume_unique=True, return_indices=True)
    changes = Changes(
        added=len(new_names) - len(common),
        removed=len(old_names) - len(common),
        resized=int((old_sizes[old_at] != new_sizes[new_at]).sum()),
    )
    changes.other = not (changes.added or changes.removed or changes.resized)
    return changes


def _members(shards: Iterator[ShardRows]) -> tuple[Any, Any]:
    """(uint64 hash of each member name, its size), over all shards."""
    hashes, sizes = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for rows in shards:
        names = member_names(rows)
        hashes.append(np.fromiter(map(xxhash.xxh3_64_intdigest, names), np.uint64, len(names)))
        sizes.append(rows.sizes)
    return np.concatenate(hashes), np.concatenate(sizes)
