"""Class labels from folder names, a regular expression or a joined column: a `cls` part and the list of names."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import GroupError, UsageProblem
from shardtool.keys import compile_pattern
from shardtool.model import GeneratedPart
from shardtool.samples import has_part, keys_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.model import Int32Array, SampleTable

LABEL_PART = b"cls"
COLUMN = "column:"  # --label-from column:NAME, answered by join
CHUNK = 1 << 16
_NUMBER = re.compile(rb"[+-]?\d+(\.\d+)?")


def add_labels(table: SampleTable, label_from: str) -> SampleTable:
    """`table` with labels, numbered in the byte order of their names, and a generated `cls` part.

    Args:
        label_from: `parent` (last folder of the key), or `regex:PATTERN` searched in the key (its first group, or the
            whole match).

    Raises:
        UsageProblem: neither of the two.
        GroupError: a sample without a label, or a file part that is called `cls` already.
    """
    if label_from.startswith("regex:"):
        pattern = compile_pattern(label_from[len("regex:") :], "--label-from")
        return label_samples(table, _matches(table, pattern), "their key does not match")
    if label_from != "parent":
        raise UsageProblem(
            f"--label-from {label_from!r} is none of parent, regex:PATTERN, {COLUMN}NAME", hint="--label-from parent"
        )
    return label_samples(table, _parents(table), "they lie in no folder")


def label_samples(
    table: SampleTable, names: Iterable[list[bytes]], why_none: str, *, numeric: bool = False
) -> SampleTable:
    """`table` with labels, and a generated `cls` part that holds their numbers.

    Args:
        names: the class name of each sample, b"" where it has none, in pieces.
        why_none: what it means that a sample has none, for the message.
        numeric: where all names are numbers, they are numbered in numeric order, not in byte order.

    Raises:
        GroupError: a sample without a label, or a part that is called `cls` already.
    """
    if has_part(table, LABEL_PART).any():
        raise GroupError(
            "--label-from makes a part 'cls', but there are parts of that name already",
            hint="leave them out with --exclude '*.cls', or rename them with --alias label=cls",
        )
    ids: dict[bytes, int] = {}
    found = np.empty(table.num_samples, np.int32)
    start = 0
    for piece in names:
        found[start : start + len(piece)] = [ids.setdefault(name, len(ids)) for name in piece]
        start += len(piece)
    if b"" in ids:
        raise _unlabelled(table, found == ids[b""], why_none)
    ordered = sorted(ids)
    if numeric and all(_NUMBER.fullmatch(name) for name in ordered):
        ordered.sort(key=float)
    return with_labels(table, ordered, ids, found)


def with_labels(table: SampleTable, names: list[bytes], ids: dict[bytes, int], found: Int32Array) -> SampleTable:
    """`table` with labels renumbered from `ids` to the order of `names`, and the `cls` part."""
    renumber = np.empty(len(ids), np.int32)
    renumber[[ids[name] for name in names]] = np.arange(len(ids), dtype=np.int32)
    labels = renumber[found]
    part = GeneratedPart(LABEL_PART, [b"%d" % number for number in range(len(names))], labels)
    text = [name.decode("utf-8", "backslashreplace") for name in names]
    return replace(table, labels=labels, label_names=text, generated=(*table.generated, part))


def _keys(table: SampleTable) -> Iterator[list[bytes]]:
    for start in range(0, table.num_samples, CHUNK):
        yield keys_of(table, np.arange(start, min(start + CHUNK, table.num_samples)))


def _parents(table: SampleTable) -> Iterator[list[bytes]]:
    for keys in _keys(table):
        yield [key.rpartition(b"/")[0].rpartition(b"/")[2] for key in keys]


def _matches(table: SampleTable, pattern: re.Pattern[bytes]) -> Iterator[list[bytes]]:
    group = 1 if pattern.groups else 0
    for keys in _keys(table):
        yield [(match.group(group) or b"") if (match := pattern.search(key)) else b"" for key in keys]


def _unlabelled(table: SampleTable, has_none: np.ndarray[tuple[int], np.dtype[np.bool_]], why: str) -> GroupError:
    rows = np.flatnonzero(has_none)
    shown = "\n".join(f"  {key.decode('utf-8', 'backslashreplace')}" for key in keys_of(table, rows[:5]))
    return GroupError(
        f"{len(rows):,} samples have no label: {why}\n{shown}",
        hint="leave them out with --exclude, or take the label from the name: --label-from 'regex:([a-z]+)_'",
    )
