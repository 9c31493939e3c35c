"""What other readers make of the samples of a data set or plan: which they drop, merge, split, rename or stop at.

Member names in, findings out; nothing is read. Keys without anything odd are cut alike by all readers, so only odd ones
are looked at name by name: about 1 us a sample for all readers together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xxhash

from shardtool import columns
from shardtool.dialects.rules import HF_FIRST, NAME_FIELD_BYTES, READERS, Cut, Loss, Reader
from shardtool.errors import UsageProblem
from shardtool.planning.plan_rows import shard_rows
from shardtool.verification.repeats import find_repeats

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardtool.model import BinaryArray, Int64Array, UInt64Array
    from shardtool.planning.plan import Plan
    from shardtool.reading.reading import Dataset

MAX_EXAMPLES = 3
EVEN = f"the first {HF_FIRST} samples of the last split do not have the same parts"
UNSEEN = f"parts that the first {HF_FIRST} samples of the last split lack"
LOWER_CASE = "part names come in lower case"
TWICE = "keys that occur more than once"
_PLAIN_KEY = re.compile(rb"(?:(?!__)[!-\[\]-~]*/)?(?![.]|__)[!-\-0-\[\]-~]+")  # ASCII, no blank or backslash
_PLAIN_PART = re.compile(rb"(?!__)[!-.0-@\[\]-~]+")  # no capitals, no slash


class ShardNames(NamedTuple):
    """The names in one shard, in its order."""

    split: str
    keys: BinaryArray  # binary[num_samples]
    part_start: Int64Array  # int64[num_samples + 1]
    names: BinaryArray  # binary[num_parts]


@dataclass
class Finding:
    """One thing that a reader does to some members or samples."""

    kind: str  # dropped, rejected, renamed, split, merged
    why: str
    unit: str  # what is counted: member, or sample
    count: int = 0
    examples: list[bytes] = field(default_factory=list)  # the first few: names of members, keys of samples


@dataclass
class Verdict:
    """All that one reader does."""

    reader: str
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether the reader gives back every sample as it was packed."""
        return not self.findings

    def add(self, kind: str, why: str, example: bytes) -> None:
        """Count one more."""
        unit = "sample" if kind in ("split", "merged") else "member"
        found = self.findings.setdefault((kind, why), Finding(kind, why, unit))
        found.count += 1
        if len(found.examples) < MAX_EXAMPLES:
            found.examples.append(example)


def readers_named(names: Sequence[str]) -> list[Reader]:
    """The readers with these names, in the order of the table; all of them for `all`.

    Raises:
        UsageProblem: no such reader.
    """
    unknown = [name for name in names if name not in READERS and name != "all"]
    if unknown:
        raise UsageProblem(f"{unknown[0]!r} is no reader", hint=f"one of: all, {', '.join(READERS)}")
    return [reader for name, reader in READERS.items() if name in names or "all" in names]


def examine_plan(plan: Plan, readers: Sequence[Reader]) -> list[Verdict]:
    """What each reader would make of a plan, before a byte is packed.

    Raises:
        UsageProblem: the plan is not for tar.
    """
    _require_tar(plan.options.format)
    rows = (shard_rows(plan.samples, plan.samples_of(shard)) for shard in range(len(plan.shards)))
    shards = (
        ShardNames(spec.split, own.keys, own.part_start, own.names) for spec, own in zip(plan.shards, rows, strict=True)
    )
    return examine(shards, readers, last_split=plan.shards[-1].split if plan.shards else "")


def examine_dataset(dataset: Dataset, readers: Sequence[Reader]) -> list[Verdict]:
    """What each reader makes of a finished data set.

    Raises:
        UsageProblem: it is not tar.
    """
    _require_tar(dataset.manifest.format)
    records = dataset.manifest.shards
    indexes = (dataset.index(number) for number in range(len(records)))
    shards = (
        ShardNames(record.split, index.keys, index.part_start, index.part_names)
        for record, index in zip(records, indexes, strict=True)
    )
    return examine(shards, readers, last_split=records[-1].split if records else "")


def _require_tar(shard_format: str) -> None:
    if shard_format != "tar":
        raise UsageProblem(
            f"--compat tells how readers cut the names in tar shards; the format here is {shard_format}",
            hint="leave --compat out: columns have names of their own",
        )


def examine(shards: Iterable[ShardNames], readers: Sequence[Reader], *, last_split: str) -> list[Verdict]:
    """What each reader does with these shards.

    Args:
        shards: in order, the shards of a split one after the other.
        readers: from `readers_named`.
        last_split: the split whose first samples decide for readers that infer columns.
    """
    verdicts = [Verdict(reader.name) for reader in readers]
    hashes: list[UInt64Array] = []
    evens = {reader.name: _Even() for reader in readers if reader.wants_even}
    for shard in shards:
        keys, names = columns.to_list(shard.keys), columns.to_list(shard.names)
        bounds = shard.part_start.tolist()
        odd = _odd_samples(keys, names, bounds)
        for reader, verdict in zip(readers, verdicts, strict=True):
            rows = _rows_to_check(reader, keys, names, bounds, odd)
            _walk(reader, verdict, keys, names, bounds, rows)
            if reader.wants_even:
                evens[reader.name].take(reader, shard.split == last_split, keys, names, bounds)
        if any(reader.wants_unique for reader in readers):
            hashes.append(np.fromiter(map(xxhash.xxh3_64_intdigest, keys), np.uint64, len(keys)))
    for reader, verdict in zip(readers, verdicts, strict=True):
        if reader.wants_even:
            evens[reader.name].close(verdict)
        repeated = len(find_repeats(hashes)[0]) if reader.wants_unique else 0
        if repeated:
            verdict.findings["rejected", TWICE] = Finding("rejected", TWICE, "sample", repeated)
    return verdicts


def _odd_samples(keys: list[bytes], names: list[bytes], bounds: list[int]) -> set[int]:
    """Samples whose key or part names a reader could see otherwise."""
    plain = _PLAIN_KEY.fullmatch
    odd = {sample for sample, key in enumerate(keys) if plain(key) is None}
    bad = {name for name in set(names) if _PLAIN_PART.fullmatch(name) is None}
    if bad:
        owners = np.repeat(np.arange(len(keys)), np.diff(bounds)).tolist()
        odd |= {owner for owner, name in zip(owners, names, strict=True) if name in bad}
    return odd | {sample for sample in range(1, len(keys)) if keys[sample] == keys[sample - 1]}


def _rows_to_check(
    reader: Reader, keys: list[bytes], names: list[bytes], bounds: list[int], odd: set[int]
) -> list[int]:
    """Samples to look at: the odd ones, and their neighbours, which they could be merged with."""
    rows = set(odd)
    if reader.name == "litdata":
        base = [key.rpartition(b"/")[2] for key in keys]
        rows |= {sample for sample in range(1, len(keys)) if base[sample] == base[sample - 1]}
    if reader.name == "wids":
        longest = max(map(len, names), default=0)
        for sample in [s for s, key in enumerate(keys) if len(key) + 1 + longest > NAME_FIELD_BYTES]:
            own = names[bounds[sample] : bounds[sample + 1]]
            rows |= {sample} if len(keys[sample]) + 1 + max(map(len, own), default=0) > NAME_FIELD_BYTES else set()
    near = rows | {row - 1 for row in rows} | {row + 1 for row in rows}
    return sorted(near & set(range(len(keys)))) if rows else []


def _walk(
    reader: Reader, verdict: Verdict, keys: list[bytes], names: list[bytes], bounds: list[int], rows: list[int]
) -> None:
    """Read the given samples as the reader does: members with equal keys in a row are one sample."""
    open_key, open_parts, last = "", set[str](), -2
    for row in rows:
        if row != last + 1:
            open_key, open_parts = "", set()
        last, seen = row, list[str]()
        for name in names[bounds[row] : bounds[row + 1]]:
            member = keys[row] + b"." + name
            found = reader.cut(member)
            if isinstance(found, Loss):
                verdict.add(found.kind, found.why, member)
                continue
            if found.key == open_key and not seen:
                verdict.add("merged", "with the sample before it, whose key is the same to this reader", keys[row])
            if found.key != open_key:
                open_key, open_parts = found.key, set(reader.reserved)
            seen += [found.key] if found.key not in seen[-1:] else []
            if found.part in open_parts:
                verdict.add(reader.repeats, "the sample has such a part already", member)
            open_parts.add(found.part)
            _check_name(reader, verdict, found, keys[row], name)
        if len(seen) > 1:
            verdict.add("split", "its parts have different keys to this reader", keys[row])


def _check_name(reader: Reader, verdict: Verdict, found: Cut, key: bytes, name: bytes) -> None:
    wanted = key.decode("utf-8", "surrogateescape"), name.decode("utf-8", "surrogateescape")
    if reader.name == "litdata":
        wanted = wanted[0].replace("\\", "/").rpartition("/")[2], wanted[1]
    if found.part == wanted[1].lower() != wanted[1] and found.key == wanted[0]:
        verdict.add("renamed", LOWER_CASE, key + b"." + name)
    elif found != wanted:
        verdict.add("renamed", "the name is cut elsewhere", key + b"." + name)


class _Even:
    """The parts of the first samples, which decide the columns; and how many members have no column."""

    def __init__(self) -> None:
        self.first: list[tuple[bytes, frozenset[bytes]]] = []
        self.counts: dict[bytes, int] = {}
        self.examples: dict[bytes, bytes] = {}
        self._is_begun = False

    def take(self, reader: Reader, is_last: bool, keys: list[bytes], names: list[bytes], bounds: list[int]) -> None:
        """Count the parts of a shard; the first shard of the last split decides."""
        if is_last and not self._is_begun and keys:
            self._is_begun = True
            own = [(keys[s], frozenset(names[bounds[s] : bounds[s + 1]])) for s in range(min(HF_FIRST, len(keys)))]
            self.first = [(key, parts) for key, parts in own if _is_seen(reader, key, parts)]
        for name in set(names) - self.examples.keys():
            sample = int(np.searchsorted(bounds, names.index(name), side="right")) - 1
            self.examples[name] = keys[sample] + b"." + name
        for name, count in zip(*np.unique(np.array(names, object), return_counts=True), strict=True):
            self.counts[name] = self.counts.get(name, 0) + int(count)

    def close(self, verdict: Verdict) -> None:
        """Enter what was found."""
        if not self.first:
            return
        wanted = self.first[0][1]
        uneven = [key for key, parts in self.first if parts != wanted]
        if uneven:
            verdict.findings["rejected", EVEN] = Finding("rejected", EVEN, "sample", len(uneven), uneven[:MAX_EXAMPLES])
            return
        unseen = sorted(self.counts.keys() - wanted)
        if unseen:
            count = sum(self.counts[name] for name in unseen)
            examples = [self.examples[name] for name in unseen[:MAX_EXAMPLES]]
            verdict.findings["dropped", UNSEEN] = Finding("dropped", UNSEEN, "member", count, examples)


def _is_seen(reader: Reader, key: bytes, parts: frozenset[bytes]) -> bool:
    return any(isinstance(reader.cut(key + b"." + name), Cut) for name in parts)
