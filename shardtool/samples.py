"""Keys and member names of a SampleTable: not stored, they follow from the first file of a sample and the key rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardtool import columns

if TYPE_CHECKING:
    from shardtool.model import Int64Array, SampleTable


def keys_of(table: SampleTable, samples: Int64Array) -> list[bytes]:
    """Keys of the given rows, in their order."""
    rule = table.rule
    key, identities = rule.key, identities_of(table, samples)
    if rule.is_contiguous and not rule.escape_names:
        return [key(identity) if identity[:1] == b"." or b"/." in identity else identity for identity in identities]
    return [key(identity) for identity in identities]


def identities_of(table: SampleTable, samples: Int64Array) -> list[bytes]:
    """What the rule cut from the first file of each row: equal identities are one sample; the key follows from it."""
    entries, rule = table.entries, table.rule
    rows = table.part_entry[table.part_start[samples]]
    folders = entries.folder_of(rows).tolist()
    names = columns.to_list(columns.take(entries.names, rows))
    if rule.is_contiguous:
        prefixes = [folder + b"/" if folder else b"" for folder in entries.dirs]
        return [
            prefixes[folder] + (name.partition(b".")[0] if name[:1] != b"." else b"." + name[1:].partition(b".")[0])
            for folder, name in zip(folders, names, strict=True)
        ]
    cut = (rule.split(entries.dirs[folder], name) for folder, name in zip(folders, names, strict=True))
    return [found[0] if found else b"" for found in cut]


def member_names_of(table: SampleTable, parts: Int64Array) -> list[bytes]:
    """key + b"." + part name of the given file parts."""
    owners = np.searchsorted(table.part_start, parts, side="right") - 1
    names = [table.part_names[number] for number in table.part_name[parts].tolist()]
    return [key + b"." + name for key, name in zip(keys_of(table, owners), names, strict=True)]
