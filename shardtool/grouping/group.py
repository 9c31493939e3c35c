"""Entries -> samples: cut names into key and part, bring the parts of a sample together, and find what would be lost.

A sorted folder lists the parts of a sample side by side under the default rule, so grouping compares neighbours and
hashes one key a sample. Runs with equal hashes are then brought together: another folder under a regex, another root.
The hash is the one that shuffles (`xxh3_64(key, seed)`), so no key is hashed twice and none is sorted as a string.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.errors import BadKey, DuplicateKey, GroupError
from shardtool.grouping.runs import NO_MATCH, NO_PART, find_runs
from shardtool.model import Problem, SampleTable, Tally
from shardtool.samples import identities_of, keys_of

if TYPE_CHECKING:
    from shardtool.grouping.runs import Runs
    from shardtool.keys import KeyRule
    from shardtool.model import EntryTable
    from shardtool.workers import WorkerPool

MAX_PART_NAMES = 64
_REASONS = {NO_PART: "no_extension", NO_MATCH: "no_match"}


@dataclass(frozen=True)
class Grouping:
    """Samples, and the entries that became part of none."""

    samples: SampleTable
    ignored: Tally
    problems: tuple[Problem, ...] = ()


def group(
    entries: EntryTable,
    rule: KeyRule,
    *,
    seed: int = 0,
    on_duplicate: str = "error",
    trust_parts: bool = False,
    pool: WorkerPool | None = None,
) -> Grouping:
    """The samples of a scan, in source order, parts by name inside a sample.

    Args:
        seed: of the membership hash, 64 bits.
        on_duplicate: `error`, `first` (keep the first in source order) or `skip` (drop all of them) when a sample has
            two parts of one name.
        trust_parts: the user chose the rule; odd part names become notices.
        pool: shares the reading of many names.

    Raises:
        DuplicateKey: two parts of a sample have one name, and `on_duplicate` is `error`.
        BadKey: part names that show that the rule cuts names wrongly, unless `trust_parts`.
        GroupError: no sample at all.
    """
    runs = find_runs(entries, rule, seed, pool)
    ignored = _ignored(entries, runs.part_ids)
    table = _assemble(entries, rule, runs)
    table = _merge_equal_keys(table)
    table = _sort_parts(table)
    if table.num_samples == 0:
        raise _nothing_left(entries, ignored)
    problems = check_part_names(table, trust_parts=trust_parts)
    table = _resolve_duplicates(table, on_duplicate, ignored)
    return Grouping(table, ignored, problems)


def _ignored(entries: EntryTable, part_ids: Any) -> Tally:
    tally = Tally()
    for row in np.flatnonzero(part_ids < 0).tolist():
        tally.add(_REASONS[int(part_ids[row])], entries.full_path(row))
    return tally


def _assemble(entries: EntryTable, rule: KeyRule, runs: Runs) -> SampleTable:
    """One sample a run that kept an entry."""
    kept = runs.part_ids >= 0
    ends = np.append(runs.start, entries.num_entries).astype(np.int64)
    if bool(kept.all()):
        return SampleTable(
            entries,
            rule,
            runs.hashes,
            runs.key_bytes,
            ends,
            np.arange(entries.num_entries, dtype=_row_type(entries.num_entries)),
            runs.part_ids,
            runs.part_names,
        )
    before = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
    starts = before[ends]
    used = np.diff(starts) > 0
    return SampleTable(
        entries,
        rule,
        runs.hashes[used],
        runs.key_bytes[used],
        np.append(starts[:-1][used], starts[-1]),
        np.flatnonzero(kept).astype(_row_type(entries.num_entries)),
        runs.part_ids[kept],
        runs.part_names,
    )


def _row_type(num_rows: int) -> Any:
    return np.int32 if num_rows < 2**31 - 1 else np.int64


def _merge_equal_keys(table: SampleTable) -> SampleTable:
    """Runs of one identity become one sample, at the place of the first.

    Raises:
        DuplicateKey: different identities that give one key (`22.05` and `22_05` under last-dot).
    """
    order = np.argsort(table.key_hash, kind="stable")
    hashes = table.key_hash[order]
    same = np.flatnonzero(hashes[1:] == hashes[:-1])
    if len(same) == 0:
        return table
    involved = np.unique(np.concatenate([order[same], order[same + 1]]))
    identities = identities_of(table, involved)
    first_of: dict[bytes, int] = {}
    owner_of_key: dict[bytes, bytes] = {}
    target = np.arange(table.num_samples)
    clashes: list[str] = []
    for sample, identity in zip(involved.tolist(), identities, strict=True):
        key = table.rule.key(identity)
        owner = owner_of_key.setdefault(key, identity)
        if owner != identity:
            clashes.append(f"{_show(owner)} and {_show(identity)} -> key {_show(key)}")
        target[sample] = first_of.setdefault(identity, sample)
    if clashes:
        raise DuplicateKey(
            _several(
                len(clashes), "different name would become one key", "different names would become one key", clashes
            ),
            hint="rename one of each, or give the rule yourself: --group-by 'regex:…'",
        )
    return _gather(table, target)


def _gather(table: SampleTable, target: Any) -> SampleTable:
    """Parts of every sample s go to sample target[s] <= s; samples left without parts vanish."""
    owner = np.repeat(target, table.parts_per_sample())
    rows = np.argsort(owner, kind="stable")
    kept = np.unique(target)
    starts = np.searchsorted(owner[rows], kept)
    return replace(
        table,
        key_hash=table.key_hash[kept],
        key_bytes=table.key_bytes[kept],
        part_start=np.append(starts, len(rows)).astype(np.int64),
        part_entry=table.part_entry[rows],
        part_name=table.part_name[rows],
    )


def _sort_parts(table: SampleTable) -> SampleTable:
    """Parts of a sample in the byte order of their names; a stable sort, so that equal names keep source order."""
    order = sorted(range(len(table.part_names)), key=lambda number: table.part_names[number])
    rank = np.zeros(max(len(order), 1), np.int16)
    rank[order] = np.arange(len(order), dtype=np.int16)
    ranks = rank[table.part_name]
    is_first = np.zeros(len(ranks) + 1, bool)
    is_first[table.part_start] = True
    descends = (ranks[1:] < ranks[:-1]) & ~is_first[1:-1] if len(ranks) else np.zeros(0, bool)
    if descends.any():
        owner = np.repeat(np.arange(table.num_samples), table.parts_per_sample())
        rows = np.lexsort((ranks, owner))
        table = replace(table, part_entry=table.part_entry[rows], part_name=table.part_name[rows])
    return table


def _resolve_duplicates(table: SampleTable, policy: str, ignored: Tally) -> SampleTable:
    is_first = np.zeros(len(table.part_name) + 1, bool)
    is_first[table.part_start] = True
    again = np.flatnonzero((table.part_name[1:] == table.part_name[:-1]) & ~is_first[1:-1]) + 1
    if len(again) == 0:
        return table
    rows = table.part_entry
    if policy == "error":
        examples = [_pair(table.entries, int(rows[part - 1]), int(rows[part])) for part in again[:5]]
        raise _duplicate_parts(table, again, examples)
    drop = np.zeros(len(rows), bool)
    drop[again] = True
    if policy == "skip":
        drop[again - 1] = True
    for part in np.flatnonzero(drop).tolist():
        ignored.add("duplicate", table.entries.full_path(int(rows[part])))
    return _drop_parts(table, drop)


def _pair(entries: EntryTable, first: int, second: int) -> str:
    """Two entries by their paths, with the root or shard that each lies in where these are two."""
    path = entries.path if entries.root_of(first) == entries.root_of(second) else entries.full_path
    return f"{_show(path(first))} and {_show(path(second))}"


def _drop_parts(table: SampleTable, drop: Any) -> SampleTable:
    before = np.concatenate([[0], np.cumsum(~drop)]).astype(np.int64)
    starts = before[table.part_start]
    used = np.diff(starts) > 0
    return replace(
        table,
        key_hash=table.key_hash[used],
        key_bytes=table.key_bytes[used],
        part_start=np.append(starts[:-1][used], starts[-1]),
        part_entry=table.part_entry[~drop],
        part_name=table.part_name[~drop],
    )


def select_samples(table: SampleTable, keep: Any) -> SampleTable:
    """The samples where bool[num_samples] `keep` holds, in their order."""
    drop = np.repeat(~keep, table.parts_per_sample())
    counts = table.parts_per_sample()[keep]
    return replace(
        table,
        key_hash=table.key_hash[keep],
        key_bytes=table.key_bytes[keep],
        part_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        part_entry=table.part_entry[~drop],
        part_name=table.part_name[~drop],
        labels=None if table.labels is None else table.labels[keep],
        generated=tuple(replace(part, codes=part.codes[keep]) for part in table.generated),
    )


def _duplicate_parts(table: SampleTable, again: Any, examples: list[str]) -> DuplicateKey:
    sample = int(np.searchsorted(table.part_start, again[0], side="right")) - 1
    key = keys_of(table, np.array([sample]))[0]
    folders = table.entries.folder_of(table.part_entry[again])
    same_folder = bool((folders == table.entries.folder_of(table.part_entry[again - 1])).all())
    cure = (
        "--keep-case keeps names apart that differ in case only"
        if same_folder
        else "keep folders in keys (the default rules do), or pack the roots one by one"
    )
    return DuplicateKey(
        _several(len(again), "part is there twice", "parts are there twice", examples),
        hint=f"{cure}; or choose with --on-duplicate first|skip",
        where={"key": _show(key)},
    )


def check_part_names(table: SampleTable, *, trust_parts: bool) -> tuple[Problem, ...]:
    """Notices about part names; raises BadKey for those that show that names are cut at the wrong place."""
    counts = np.bincount(table.part_name, minlength=len(table.part_names))
    used = [(name, int(count)) for name, count in zip(table.part_names, counts.tolist(), strict=True) if count]
    odd = [name for name, _ in used if is_odd_part(name)]
    if not odd and len(used) <= MAX_PART_NAMES:
        return ()
    if trust_parts or table.rule.kind in ("regex", "dir"):
        if not odd:
            return ()
        shown = tuple(_show(name) for name in odd[:5])
        return (Problem("odd_part", len(odd), shown, "part names that readers may not take", "", is_fatal=False),)
    raise _wrong_cut(table, set(odd) or {name for name, _ in used}, bool(odd))


def is_odd_part(name: bytes) -> bool:
    """Whether readers would cut, refuse or misread a part of that name."""
    head, dot, _ = name.partition(b".")
    has_bad_byte = any(byte <= 0x20 or byte in b'/\\:*?"<>|' or byte == 0x7F for byte in name)
    return (
        has_bad_byte
        or (bool(dot) and head.replace(b"-", b"").replace(b"_", b"").isdigit())
        or not all(name.split(b"."))
    )


def _wrong_cut(table: SampleTable, names: set[bytes], odd: bool) -> BadKey:
    rule = table.rule
    wanted = np.array([name in names for name in table.part_names])
    parts = np.flatnonzero(wanted[table.part_name])
    owners = np.unique(np.searchsorted(table.part_start, parts, side="right") - 1)
    lines = []
    for sample in owners[:5].tolist():
        rows = table.part_entry[table.part_start[sample] : table.part_start[sample + 1]]
        files = [table.entries.path(int(row)).rpartition(b"/")[2] for row in rows[:3]]
        key = keys_of(table, np.array([sample]))[0]
        lines.append(f"{', '.join(_show(name) for name in files)}  ->  key {_show(key)}")
    where = "its first dot" if rule.kind == "first-dot" else "its last dot"
    what = (
        f"{len(owners):,} keys look wrong: the name is cut at {where}"
        if odd
        else f"{len(names)} different part names (more than {MAX_PART_NAMES}): the name is cut at {where}"
    )
    other = "last-dot" if rule.kind == "first-dot" else "first-dot"
    return BadKey(
        "\n".join([what, *(f"  {line}" for line in lines)])
        + (f"\n  and {len(owners) - 5:,} more" if len(owners) > 5 else ""),
        hint=f"--group-by {other} cuts there instead (a key 22.05 becomes 22_05); "
        f"--group-by {rule.kind}, said explicitly, takes the names as they are",
    )


def _nothing_left(entries: EntryTable, ignored: Tally) -> GroupError:
    if entries.num_entries == 0:
        return GroupError(
            "the source holds no files to pack", hint="shardtool scan SRC lists what was left out and why"
        )
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(ignored.counts.items()))
    hint = "--no-ext data packs files without extension as part 'data'" if "no_extension" in ignored.counts else ""
    return GroupError(f"none of {entries.num_entries:,} files became a sample: {reasons}", hint=hint)


def _several(count: int, one: str, many: str, examples: list[str]) -> str:
    more = [f"  and {count - len(examples[:5]):,} more"] if count > len(examples[:5]) else []
    return "\n".join([f"{count:,} {one if count == 1 else many}", *(f"  {line}" for line in examples[:5]), *more])


def _show(name: bytes) -> str:
    text = name.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
