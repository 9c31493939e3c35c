"""`--require jpg,txt`: samples that lack a part are an error, are left out, or get an empty part."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.errors import MissingPart
from shardtool.grouping.group import select_samples
from shardtool.model import GeneratedPart, Tally
from shardtool.samples import has_part, keys_of

if TYPE_CHECKING:
    from shardtool.model import SampleTable


def apply_required(table: SampleTable, names: tuple[str, ...], on_missing: str) -> tuple[SampleTable, Tally]:
    """(table, files of the samples that were left out).

    Args:
        on_missing: `error`, `skip`, or `empty` (a part of 0 bytes is made).

    Raises:
        MissingPart: a sample lacks a part, and `on_missing` is `error`, or no sample is left.
    """
    dropped = Tally()
    for name in names:
        part = name.strip().encode()
        has = has_part(table, part)
        if bool(has.all()):
            continue
        if on_missing == "error":
            raise _missing(table, name, has)
        if on_missing == "empty":
            codes = np.where(has, -1, 0).astype(np.int32)
            table = replace(table, generated=(*table.generated, GeneratedPart(part, [b""], codes)))
            continue
        if not has.any():
            raise _missing(table, name, has)
        tally_files(table, ~has, dropped, "missing_part")
        table = select_samples(table, has)
    return table, dropped


def tally_files(table: SampleTable, samples: Any, tally: Tally, reason: str) -> None:
    """Count the files of the samples where bool[num_samples] `samples` holds."""
    for part in np.flatnonzero(np.repeat(samples, table.parts_per_sample())).tolist():
        tally.add(reason, table.entries.full_path(int(table.part_entry[part])))


def _missing(table: SampleTable, name: str, has: Any) -> MissingPart:
    rows = np.flatnonzero(~has)
    shown = "\n".join(f"  {key.decode('utf-8', 'backslashreplace')}" for key in keys_of(table, rows[:5]))
    return MissingPart(
        f"{len(rows):,} of {table.num_samples:,} samples have no part {name!r}\n{shown}",
        hint="--on-missing skip leaves them out, --on-missing empty packs an empty part",
    )
