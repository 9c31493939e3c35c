"""What a scan found, in figures: parts, classes, sizes, what is left out, a preview, and what deserves a warning.

    ScanResult, Grouped or the error that stopped it --survey--> Survey

A grouping error does not hide the scan: parts are then counted by name alone, and there are no samples.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from shardtool import columns
from shardtool.formats.tar import unportable_names
from shardtool.keys import RULES, is_utf8, join
from shardtool.model import Problem, Tally
from shardtool.names import SPLIT_ALIASES
from shardtool.samples import keys_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.errors import GroupError
    from shardtool.keys import KeyRule
    from shardtool.model import EntryTable, Int64Array, SampleTable, ScanResult
    from shardtool.packing.prepare import Grouped

NUM_PREVIEW = 5
_CHUNK = 1 << 16


@dataclass(frozen=True)
class PartSizes:
    """The files of one part name, in bytes. `octaves[i]` of them have 2^(first + i) <= bytes < 2^(first + i + 1)."""

    entries: int
    num_bytes: int
    p50: int
    p95: int
    largest: int
    octaves: tuple[int, ...] = ()


@dataclass(frozen=True)
class Classes:
    """What --label-from parent would give: how many classes, and the samples of the smallest and largest."""

    count: int
    fewest: int
    most: int


@dataclass(frozen=True)
class Duplicate:
    """A part that several files claim, or a key that several names become; the files are named by path."""

    key: bytes
    part: bytes | None  # None: the key itself is claimed by different names
    paths: tuple[bytes, ...]


@dataclass(frozen=True)
class Survey:
    """All that `scan` says about a source."""

    entries: int
    seen: int
    samples: int
    num_bytes: int
    parts: dict[bytes, PartSizes]
    classes: Classes | None
    split_folders: tuple[str, ...]  # top folders, where all of them are named like splits
    ignored: Tally
    failed: Tally
    problems: tuple[Problem, ...]
    links: int
    tables: tuple[bytes, ...]
    preview: tuple[tuple[bytes, tuple[tuple[bytes, int], ...]], ...]  # (key, ((part, bytes), ...))
    incomplete: dict[bytes, int] = field(default_factory=dict)  # part -> samples that lack it
    empty: int = 0  # files of 0 bytes
    not_utf8: int = 0  # names


def survey(scanned: ScanResult, grouped: Grouped | None, rule: KeyRule, error: GroupError | None = None) -> Survey:
    """The figures of a scan.

    Args:
        grouped: its samples; None where they could not be made.
        rule: how names are cut, for the parts where there are no samples.
        error: why there are none.
    """
    entries = scanned.entries
    ignored, failed = (grouped.ignored, grouped.failed) if grouped else (scanned.ignored, scanned.failed)
    samples = grouped.samples if grouped else None
    problems = list(grouped.problems if grouped else scanned.problems)
    problems += [as_problem(error)] if error else []
    problems += _unportable(samples) if samples else []
    taken = samples.part_entry if samples else np.arange(entries.num_entries)
    sizes = entries.sizes[taken]
    return Survey(
        entries=scanned.seen - ignored.total() - failed.total(),
        seen=scanned.seen,
        samples=samples.num_samples if samples else 0,
        num_bytes=int(sizes.sum()),
        parts=_parts_of(samples) if samples else _parts_by_name(entries, rule),
        classes=_classes(samples) if samples else None,
        split_folders=_split_folders(entries),
        ignored=ignored,
        failed=failed,
        problems=tuple(problems),
        links=scanned.num_links,
        tables=scanned.tables,
        preview=tuple(_preview(samples)) if samples else (),
        incomplete=_incomplete(samples) if samples else {},
        empty=int(np.count_nonzero(sizes == 0)),
        not_utf8=_count_not_utf8(entries),
    )


def as_problem(error: GroupError) -> Problem:
    """A grouping error beside the problems of the scan: its first line is the message, the rest examples."""
    kind = "".join("_" + char.lower() if char.isupper() else char for char in type(error).__name__).lstrip("_")
    first, *rest = error.message.split("\n")
    head = first.replace(",", "").split(" ")[0]
    count = int(head) if head.isdecimal() else 1
    return Problem(kind, count, tuple(line.strip() for line in rest), first, error.hint)


def _unportable(table: SampleTable) -> list[Problem]:
    names = unportable_names(table)
    if not names:
        return []
    shown = tuple(name.decode("utf-8", "backslashreplace") for name in names[:5])
    text = f"{len(names):,} names are neither UTF-8 nor short enough for a plain tar header"
    return [Problem("bad_key", len(names), shown, text, "--escape-names writes such bytes as %XX")]


def _parts_of(table: SampleTable) -> dict[bytes, PartSizes]:
    sizes = table.entries.sizes[table.part_entry]
    found = {
        name: part_sizes(sizes[table.part_name == number])
        for number, name in enumerate(table.part_names)
        if bool((table.part_name == number).any())
    }
    for part in table.generated:
        lengths = np.array([len(value) for value in part.values], np.int64)
        found[part.name] = part_sizes(lengths[part.codes[part.codes >= 0]])
    return _by_bytes(found)


def _parts_by_name(entries: EntryTable, rule: KeyRule) -> dict[bytes, PartSizes]:
    """Parts as the rule names them, without samples."""
    rows: dict[bytes, list[int]] = {}
    for row, folder, name in each_name(entries):
        cut = rule.split(folder, name)
        part = rule.part(cut[1]) if cut else None
        if part is not None:
            rows.setdefault(part, []).append(row)
    return _by_bytes({part: part_sizes(entries.sizes[places]) for part, places in rows.items()})


def _by_bytes(parts: dict[bytes, PartSizes]) -> dict[bytes, PartSizes]:
    return dict(sorted(parts.items(), key=lambda item: (-item[1].num_bytes, item[0])))


def part_sizes(sizes: Int64Array) -> PartSizes:
    """The figures of one part name."""
    if not len(sizes):
        return PartSizes(0, 0, 0, 0, 0)
    p50, p95 = np.quantile(sizes, (0.5, 0.95), method="inverted_cdf").tolist()
    octaves = np.bincount(np.frexp(np.maximum(sizes, 1).astype(np.float64))[1])
    used = np.flatnonzero(octaves)
    counts = tuple(octaves[used[0] : used[-1] + 1].tolist())
    return PartSizes(len(sizes), int(sizes.sum()), int(p50), int(p95), int(sizes.max()), counts)


def _classes(table: SampleTable) -> Classes | None:
    """None where a sample lies in no folder, or where folders do not look like classes."""
    if table.labels is not None:
        counts = np.bincount(table.labels)
    else:
        rule, entries = table.rule, table.entries
        if rule.kind not in RULES:
            return None
        steps = [folder.split(b"/") for folder in entries.dirs]
        places = [path[:-1] if rule.kind == "dir" else path for path in steps]
        names = [path[-1] if path else b"" for path in places]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        codes = np.array([numbers[name] for name in names], np.int64)
        folders = entries.folder_of(table.part_entry[table.part_start[:-1]])
        counts = np.bincount(codes[folders], minlength=len(numbers))
        if b"" in numbers and counts[numbers[b""]]:
            return None
    counts = counts[counts > 0]
    if len(counts) < 2 or 2 * len(counts) > table.num_samples:
        return None
    return Classes(len(counts), int(counts.min()), int(counts.max()))


def _split_folders(entries: EntryTable) -> tuple[str, ...]:
    tops = {folder.partition(b"/")[0] for folder in entries.dirs}
    names = sorted(top.decode("utf-8", "backslashreplace") for top in tops)
    return tuple(names) if len(names) > 1 and all(name in SPLIT_ALIASES for name in names) else ()


def _preview(table: SampleTable) -> Iterator[tuple[bytes, tuple[tuple[bytes, int], ...]]]:
    rows = np.arange(min(NUM_PREVIEW, table.num_samples))
    for sample, key in zip(rows.tolist(), keys_of(table, rows), strict=True):
        start, stop = int(table.part_start[sample]), int(table.part_start[sample + 1])
        sizes = table.entries.sizes[table.part_entry[start:stop]].tolist()
        parts = [
            (table.part_names[number], size) for number, size in zip(table.part_name[start:stop], sizes, strict=True)
        ]
        for part in table.generated:
            code = int(part.codes[sample])
            parts += [(part.name, len(part.values[code]))] if code >= 0 else []
        yield key, tuple(sorted(parts))


def _incomplete(table: SampleTable) -> dict[bytes, int]:
    counts = Counter({table.part_names[n]: c for n, c in enumerate(np.bincount(table.part_name).tolist()) if c})
    for part in table.generated:
        counts[part.name] += int(np.count_nonzero(part.codes >= 0))
    return {name: table.num_samples - count for name, count in sorted(counts.items()) if count < table.num_samples}


def _count_not_utf8(entries: EntryTable) -> int:
    count = 0
    for start in range(0, entries.num_entries, _CHUNK):
        names = columns.to_list(entries.names.slice(start, _CHUNK))
        if not is_utf8(b"/".join(names)):
            count += sum(not is_utf8(name) for name in names)
    return count


def each_name(entries: EntryTable) -> Iterator[tuple[int, bytes, bytes]]:
    """(row, folder, name) of every entry; about 0.2 us each."""
    for folder, start, stop in entries.folders():
        for first in range(start, stop, _CHUNK):
            names = columns.to_list(entries.names.slice(first, min(_CHUNK, stop - first)))
            for row, name in enumerate(names, first):
                yield row, entries.dirs[folder], name


def find_duplicates(entries: EntryTable, rule: KeyRule) -> list[Duplicate]:
    """Every part that several files claim, and every key that several names become, by key.

    Two hashes an entry find the suspects, 24 bytes each; only their names are looked at again.
    """
    members, keys, identities = (np.zeros(entries.num_entries, np.uint64) for _ in range(3))
    for row, folder, name in each_name(entries):
        cut = _cut(rule, folder, name)
        if cut is None:
            members[row] = keys[row] = identities[row] = row
            continue
        identity, key, part = cut
        members[row] = xxhash.xxh3_64_intdigest(key + b"\0" + part)
        keys[row] = xxhash.xxh3_64_intdigest(key)
        identities[row] = xxhash.xxh3_64_intdigest(identity)
    rows = np.union1d(_repeated(members), _of_several(keys, identities))
    return _duplicates_among(entries, rule, rows)


def _cut(rule: KeyRule, folder: bytes, name: bytes) -> tuple[bytes, bytes, bytes] | None:
    """(identity, key, part) of a file; None where it belongs to no sample."""
    cut = rule.split(folder, name)
    part = rule.part(cut[1]) if cut and cut[0] else None
    return (cut[0], rule.key(cut[0]), part) if cut and part is not None else None


def _repeated(hashes: object) -> Int64Array:
    """Rows whose hash occurs again."""
    _, inverse, counts = np.unique(np.asarray(hashes), return_inverse=True, return_counts=True)
    return np.flatnonzero(counts[inverse] > 1)


def _of_several(keys: object, identities: object) -> Int64Array:
    """Rows whose key is that of several identities."""
    pairs = np.stack([np.asarray(keys), np.asarray(identities)], axis=1)
    unique = np.unique(pairs, axis=0)
    again, counts = np.unique(unique[:, 0], return_counts=True)
    return np.flatnonzero(np.isin(np.asarray(keys), again[counts > 1]))


def _duplicates_among(entries: EntryTable, rule: KeyRule, rows: Int64Array) -> list[Duplicate]:
    by_part: dict[tuple[bytes, bytes], list[bytes]] = {}
    by_key: dict[bytes, dict[bytes, bytes]] = {}
    for row in rows.tolist():
        folder = entries.dirs[int(entries.folder_of(np.array([row], np.int64))[0])]
        name = entries.names[row].as_py()
        cut = _cut(rule, folder, name)
        if cut is None:
            continue
        identity, key, part = cut
        by_part.setdefault((key, part), []).append(join(folder, name))
        by_key.setdefault(key, {}).setdefault(identity, join(folder, name))
    found = [Duplicate(key, part, tuple(paths)) for (key, part), paths in by_part.items() if len(paths) > 1]
    found += [Duplicate(key, None, tuple(names.values())) for key, names in by_key.items() if len(names) > 1]
    return sorted(found, key=lambda duplicate: (duplicate.key, duplicate.part or b""))
