"""Class labels from folder names or a regular expression: a `cls` part (the number) and the list of names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import GroupError, UsageProblem
from shardtool.keys import compile_pattern
from shardtool.model import GeneratedPart
from shardtool.samples import keys_of

if TYPE_CHECKING:
    from shardtool.model import Int32Array, SampleTable

LABEL_PART = b"cls"
CHUNK = 1 << 16


def add_labels(table: SampleTable, label_from: str) -> SampleTable:
    """`table` with labels, numbered in the byte order of their names, and a generated `cls` part.

    Args:
        label_from: `parent` (last folder of the key), or `regex:PATTERN` searched in the key (its first group, or the
            whole match).

    Raises:
        UsageProblem: neither of the two.
        GroupError: a sample without a label, or a file part that is called `cls` already.
    """
    pattern = None
    if label_from.startswith("regex:"):
        pattern = compile_pattern(label_from[len("regex:") :], "--label-from")
    elif label_from != "parent":
        raise UsageProblem(
            f"--label-from {label_from!r} is neither parent nor regex:PATTERN", hint="--label-from parent"
        )
    if LABEL_PART in table.part_names:
        raise GroupError(
            "--label-from makes a part 'cls', but files with that extension are there already",
            hint="leave them out with --exclude '*.cls', or rename them with --alias label=cls",
        )
    ids: dict[bytes, int] = {}
    found = np.empty(table.num_samples, np.int32)
    missing: list[bytes] = []
    for start in range(0, table.num_samples, CHUNK):
        rows = np.arange(start, min(start + CHUNK, table.num_samples))
        for row, key in zip(rows.tolist(), keys_of(table, rows), strict=True):
            if pattern is None:
                name = key.rpartition(b"/")[0].rpartition(b"/")[2]
            else:
                match = pattern.search(key)
                name = (match.group(1) if match.re.groups else match.group()) if match else b""
            if not name:
                missing.append(key)
            found[row] = ids.setdefault(name, len(ids))
    if missing:
        raise _unlabelled(missing, label_from)
    return with_labels(table, sorted(ids), ids, found)


def with_labels(table: SampleTable, names: list[bytes], ids: dict[bytes, int], found: Int32Array) -> SampleTable:
    """`table` with labels renumbered from `ids` to the order of `names`, and the `cls` part."""
    renumber = np.empty(len(ids), np.int32)
    renumber[[ids[name] for name in names]] = np.arange(len(ids), dtype=np.int32)
    labels = renumber[found]
    part = GeneratedPart(LABEL_PART, [b"%d" % number for number in range(len(names))], labels)
    text = [name.decode("utf-8", "backslashreplace") for name in names]
    return replace(table, labels=labels, label_names=text, generated=(*table.generated, part))


def _unlabelled(missing: list[bytes], label_from: str) -> GroupError:
    shown = "\n".join(f"  {key.decode('utf-8', 'backslashreplace')}" for key in missing[:5])
    reason = "lie in no folder" if label_from == "parent" else "do not match"
    return GroupError(
        f"{len(missing):,} samples have no label: they {reason}\n{shown}",
        hint="leave them out with --exclude, or take the label from the name: --label-from 'regex:([a-z]+)_'",
    )
