"""`--join TABLE`: rows of a table become parts of samples, and class labels where a column is asked for.

Rows and samples that find no partner are counted; a policy says whether that is an error. None is dropped in silence.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.columns import to_list
from shardtool.errors import DuplicateKey, GroupError, MissingPart
from shardtool.grouping.group import select_samples
from shardtool.grouping.labels import label_samples
from shardtool.grouping.match import NOWHERE, SEVERAL, Finder, match_rows, plain_path
from shardtool.grouping.required import tally_files
from shardtool.grouping.row_parts import CHUNK, add_parts, bare_value, parse_parts, settle_parts, wanted_columns
from shardtool.model import Problem, Tally
from shardtool.samples import keys_of
from shardtool.sources.found import show_path
from shardtool.sources.table import read_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.model import EntryTable, Int64Array, SampleTable
    from shardtool.sources.table import Table

MAX_EXAMPLES = 5


@dataclass(frozen=True)
class Joined:
    """Samples with the parts of their rows, and what was met on the way."""

    samples: SampleTable
    dropped: Tally  # files of samples without a row, left out by policy
    problems: tuple[Problem, ...]  # notices


def join(
    samples: SampleTable,
    path: str,
    *,
    seed: int = 0,
    key: str = "",
    columns: tuple[str, ...] = (),
    part: str = "",
    label: str = "",
    on_missing: str = "error",
) -> Joined:
    """`samples` with the parts, and labels, that the table at `path` gives.

    Args:
        seed: of the samples' key hashes.
        key: the column that names samples or their files; by default the first of the usual names.
        columns: for the JSON part; all by default, save the key, the label and those with a part of their own.
        part: as `parse_parts` reads it.
        label: column of the class names; "" for none.
        on_missing: samples without a row are an error, are left out (`skip`), or get an empty part (`empty`); rows
            without a sample are an error under `error`, else a notice.

    Raises:
        UsageProblem: parts or columns that do not go together.
        SourceError: the table cannot be read.
        GroupError: rows that name no sample, or several; DuplicateKey: several rows for one sample; MissingPart:
            samples without a row, under `error`.
    """
    parts = parse_parts(part)
    table = read_table(path, key, wanted_columns(parts, columns, label))
    parts, names = settle_parts(table, parts, columns, label)
    found = match_rows(samples, seed, table.keys)
    missing = _check_matches(samples, seed, table, found, on_missing)
    notices = _notices(table, found, key)
    row_of = np.full(samples.num_samples, NOWHERE, np.int64)
    row_of[found[found >= 0]] = np.flatnonzero(found >= 0)
    dropped = Tally()
    if on_missing == "skip" and missing:
        tally_files(samples, row_of < 0, dropped, "missing_row")
        samples, row_of = select_samples(samples, row_of >= 0), row_of[row_of >= 0]
    samples = add_parts(samples, table, row_of, parts, names)
    if label:
        samples = label_samples(
            samples,
            _label_texts(table, row_of, label),
            f"column {label!r} of {table.shown} is empty there",
            numeric=True,
        )
    return Joined(samples, dropped, notices)


# What did not match


def _check_matches(samples: SampleTable, seed: int, table: Table, found: Int64Array, on_missing: str) -> int:
    """The number of samples without a row; all that is wrong comes in one error."""
    taken = np.bincount(found[found >= 0], minlength=samples.num_samples)
    missing = np.flatnonzero(taken == 0)
    problems = [_ambiguous(table, found), _repeated(table, found, taken)]
    if on_missing == "error":
        problems += [_unmatched(samples, seed, table, found), _without_row(samples, table, missing)]
    elif len(missing) == samples.num_samples:
        problems += [_without_row(samples, table, missing)]
    wrong = [problem for problem in problems if problem]
    if wrong:
        kinds: dict[str, type[GroupError]] = {"duplicate_row": DuplicateKey, "missing_row": MissingPart}
        error = kinds.get(wrong[0].kind, GroupError) if len(wrong) == 1 else GroupError
        lines = ["\n".join([problem.message, *(f"  {text}" for text in problem.examples)]) for problem in wrong]
        hints = dict.fromkeys(problem.hint for problem in wrong)
        raise error("\n".join(lines), hint="; ".join(hints), where={"path": table.path})
    return len(missing)


def _ambiguous(table: Table, found: Int64Array) -> Problem | None:
    rows = np.flatnonzero(found == SEVERAL)
    examples = [f"{table.place(row)}: {_key(table, row)}" for row in rows[:MAX_EXAMPLES].tolist()]
    text = f"{_count(rows, 'row')} of {table.shown} could belong to several samples"
    hint = f"write the folder in column {table.key_name!r} too"
    return Problem("ambiguous_row", len(rows), _shown(examples, rows), text, hint) if len(rows) else None


def _repeated(table: Table, found: Int64Array, taken: Int64Array) -> Problem | None:
    samples = np.flatnonzero(taken > 1)
    examples = []
    for sample in samples[:MAX_EXAMPLES].tolist():
        rows = np.flatnonzero(found == sample)[:2].tolist()
        examples.append(f"{table.place(rows[0])} and {table.place(rows[1])}: {_key(table, rows[1])}")
    text = f"{_count(samples, 'sample')} with more than one row in {table.shown}"
    hint = "keep one row for each sample"
    return Problem("duplicate_row", len(samples), _shown(examples, samples), text, hint) if len(samples) else None


def _unmatched(samples: SampleTable, seed: int, table: Table, found: Int64Array) -> Problem | None:
    rows = np.flatnonzero(found == NOWHERE)
    if len(rows) == 0:
        return None
    finder = Finder(samples, seed)
    examples = []
    for row in rows[:MAX_EXAMPLES].tolist():
        near = finder.sample_without(plain_path(table.keys[row].as_py()))
        why = f" (sample {show_path(near)} has no such file)" if near else ""
        examples.append(f"{table.place(row)}: {_key(table, row)}{why}")
    text = f"{_count(rows, 'row')} of {table.shown} {'matches' if len(rows) == 1 else 'match'} no sample"
    hint = f"--on-missing skip leaves them out; is {table.key_name!r} the column that names the files (--join-key)?"
    return Problem("unmatched_row", len(rows), _shown(examples, rows), text, hint)


def _without_row(samples: SampleTable, table: Table, missing: Int64Array) -> Problem | None:
    if len(missing) == 0:
        return None
    examples = [show_path(key) for key in keys_of(samples, missing[:MAX_EXAMPLES])]
    text = f"{len(missing):,} of {samples.num_samples:,} samples have no row in {table.shown}"
    hint = "--on-missing skip leaves them out, --on-missing empty packs an empty part"
    if len(missing) == samples.num_samples:
        hint = f"is {table.key_name!r} the column that names the files? choose another with --join-key"
    return Problem("missing_row", len(missing), _shown(examples, missing), text, hint)


def _notices(table: Table, found: Int64Array, key: str) -> tuple[Problem, ...]:
    notices = []
    if not key:
        text = f"{table.shown} is joined by its column {table.key_name!r} (--join-key chooses another)"
        notices.append(Problem("join_key", 1, (), text, is_fatal=False))
    rows = np.flatnonzero(found == NOWHERE)
    if len(rows):
        examples = [f"{table.place(row)}: {_key(table, row)}" for row in rows[:MAX_EXAMPLES].tolist()]
        text = f"{_count(rows, 'row')} of {table.shown} {'matches' if len(rows) == 1 else 'match'} no sample"
        notices.append(Problem("unmatched_row", len(rows), tuple(examples), text, is_fatal=False))
    return tuple(notices)


def _key(table: Table, row: int) -> str:
    return show_path(table.keys[row].as_py())


def _count(rows: Int64Array, word: str) -> str:
    return f"{len(rows):,} {word}{'' if len(rows) == 1 else 's'}"


def _shown(examples: list[str], rows: Int64Array) -> tuple[str, ...]:
    more = len(rows) - len(examples)
    return (*examples, f"and {more:,} more") if more else tuple(examples)


def _label_texts(table: Table, row_of: Int64Array, label: str) -> Iterator[list[bytes]]:
    """The class name of each sample, b"" where it has none, a chunk at a time."""
    for start in range(0, len(row_of), CHUNK):
        rows = row_of[start : start + CHUNK]
        found = [b""] * len(rows)
        has_row = np.flatnonzero(rows >= 0)
        for place, record in zip(has_row.tolist(), table.records(rows[has_row], [label]), strict=True):
            found[place] = bare_value(record.get(label)) or b""
        yield found


# The table among the sources


def without_table(entries: EntryTable, path: str) -> tuple[EntryTable, bytes | None]:
    """(entries without the file at `path`, where it lies below a root); None where it is none of them."""
    for number, root in enumerate(entries.roots):
        for base in {root, os.path.realpath(root)}:
            for place in {os.path.abspath(path), os.path.realpath(path)}:
                below = os.fsencode(os.path.relpath(place, base)) if place.startswith(base.rstrip("/") + "/") else b""
                row = _row_of(entries, number, below) if below else None
                if row is not None:
                    return _without_row_of(entries, row), os.path.join(os.fsencode(root), below)
    return entries, None


def _row_of(entries: EntryTable, root: int, path: bytes) -> int | None:
    folder, _, name = path.rpartition(b"/")
    for number, start, stop in entries.folders():
        if entries.dirs[number] == folder and int(entries.dir_root[number]) == root:
            names = to_list(entries.names.slice(start, stop - start))
            return start + names.index(name) if name in names else None
    return None


def _without_row_of(entries: EntryTable, row: int) -> EntryTable:
    keep = np.delete(np.arange(entries.num_entries), row)
    return replace(
        entries,
        dir_start=entries.dir_start - (entries.dir_start > row),
        names=entries.names.take(keep),
        sizes=entries.sizes[keep],
        mtimes_ns=entries.mtimes_ns[keep],
    )
