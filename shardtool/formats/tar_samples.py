"""Samples of a tar that another tool wrote: the members of `tar_scan` in, keys and part ranges and findings out.

The rule is webdataset's (`webdataset/tariterators.py`: `base_plus_ext`, `group_by_keys`): the key is the path up to the
first dot of its last component, the part is the rest in lower case, and neighbours with one key are one sample. What
such a reader drops, merges or trips over in silence is a `Finding` here; nothing raises, callers decide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING, Final

import numpy as np

from shardtool.formats.tar_scan import show_name

if TYPE_CHECKING:
    from shardtool.formats.tar_scan import TarMembers
    from shardtool.model import Int64Array

__all__ = ["ERROR_KINDS", "SKIP_KINDS", "Finding", "TarSamples", "group_members", "normal_name"]

SKIP_KINDS: Final = {
    "directory": "a directory",
    "metadata": "metadata: `__x__` at the top, which readers skip",
    "no_dot": "no dot in its last component, so no part name",
    "hidden": "its last component starts with a dot, so no key",
    "empty_part": "nothing after the dot",
    "special": "neither file nor link",
}
ERROR_KINDS: Final = {
    "bad_name": "an absolute name, or `..` in it",
    "link": "a link that names no earlier file of the archive",
    "duplicate_part": "a part that the sample already has",
    "duplicate_key": "a second sample of that key",
    "not_adjacent": "parts of one sample that do not lie side by side",
}
_FILE, _HARD_LINK, _SYMBOLIC_LINK, _DIRECTORY = b"0125"


@dataclass(frozen=True)
class Finding:
    """One member that a reader would skip (`SKIP_KINDS`) or trip over (`ERROR_KINDS`)."""

    kind: str
    offset: int  # byte of the member's first header
    key: bytes  # key of the sample, or the member's name where it has none
    message: str  # one sentence, with both positions where two members are concerned


@dataclass(frozen=True)
class TarSamples:
    """Samples in archive order; sample s has the parts part_start[s] <= p < part_start[s + 1].

    Fragments of a sample that is not adjacent are samples of their own with one key, as a reader sees them.
    """

    keys: list[bytes]
    part_start: Int64Array  # int64[num_samples + 1]
    part_names: list[bytes]
    rows: Int64Array  # row of the part in `TarMembers`, int64[num_parts]
    offsets: Int64Array  # byte where the data begins; of a link, that of its target, int64[num_parts]
    sizes: Int64Array  # bytes of data, int64[num_parts]
    findings: list[Finding]

    @property
    def num_samples(self) -> int:
        """Rows of the sample table."""
        return len(self.keys)


def group_members(members: TarMembers, *, keep_case: bool = False) -> TarSamples:
    """Samples of a scanned archive, and everything in it that is not part of one or stands in the way.

    Hard and symbolic links to an earlier file of the archive become parts with the data of that file. `keep_case`
    leaves part names as they are; otherwise they are lower case, as in webdataset.
    """
    findings: list[Finding] = []
    names = _normal_names(members, findings)
    data = _resolve_links(members, names, findings)
    rows, keys, parts = _split_names(members, names, findings)
    if not keep_case:
        lower = {part: part.lower() for part in set(parts)}
        parts = [lower[part] for part in parts] if any(lower[part] != part for part in lower) else parts
    starts = [0] if keys else []
    starts += [place for place in range(1, len(keys)) if keys[place] != keys[place - 1]]
    samples = TarSamples(
        keys=[keys[start] for start in starts],
        part_start=np.array([*starts, len(keys)], np.int64),
        part_names=parts,
        rows=rows,
        offsets=members.data_offset[data[rows]],
        sizes=members.sizes[data[rows]],
        findings=findings,
    )
    findings += _repeats(members, samples)
    return replace(samples, findings=sorted(findings, key=lambda finding: finding.offset))


def normal_name(name: bytes) -> bytes | None:
    """`name` without `.` and empty components, or None when it is absolute, has `..` in it, or nothing is left."""
    pieces = [piece for piece in name.split(b"/") if piece not in (b"", b".")]
    if name.startswith(b"/") or b".." in pieces or not pieces:
        return None
    return b"/".join(pieces)


def _normal_names(members: TarMembers, findings: list[Finding]) -> list[bytes | None]:
    """Normal form of every name; None for those to leave out, each of which is a finding."""
    names: list[bytes | None] = list(members.names)
    is_directory = members.types == _DIRECTORY
    is_left_out = is_directory | ~np.isin(members.types, (_FILE, _HARD_LINK, _SYMBOLIC_LINK))
    left_out = np.flatnonzero(is_left_out).tolist()
    is_normal = _are_normal(list(compress(members.names, ~is_left_out)) if left_out else members.names)
    for row in left_out if is_normal else range(len(names)):
        names[row] = normal_name(members.names[row])
    for row in left_out:
        is_root = is_directory[row] and not members.names[row].strip(b"./") and b".." not in members.names[row]
        if names[row] is not None or is_root:
            _report(findings, members, "directory" if is_directory[row] else "special", row)
            names[row] = None
        else:
            _report(findings, members, "bad_name", row)
    if not is_normal:
        for row in [row for row, name in enumerate(names) if name is None and not is_left_out[row]]:
            _report(findings, members, "bad_name", row)
    return names


def _are_normal(names: list[bytes]) -> bool:
    """Whether no name has an empty component, or one that begins with a dot; looks at all bytes in a few calls."""
    text = np.frombuffer(b"\0" + b"\0".join(names) + b"\0", np.uint8)
    slashes = np.flatnonzero(text == ord("/"))
    before_dots = text[np.flatnonzero(text == ord(".")) - 1]
    beside_slashes = np.concatenate([text[slashes - 1], text[slashes + 1]])
    return not any(((near == 0) | (near == ord("/"))).any() for near in (before_dots, beside_slashes))


def _report(findings: list[Finding], members: TarMembers, kind: str, row: int, detail: str = "") -> None:
    name, offset = members.names[row], int(members.header_offset[row])
    text = SKIP_KINDS.get(kind) or ERROR_KINDS[kind]
    findings.append(Finding(kind, offset, name, f"{show_name(name)} at byte {offset}: {text}{detail}"))


def _resolve_links(members: TarMembers, names: list[bytes | None], findings: list[Finding]) -> Int64Array:
    """int64[n]: the row whose data each row stands for; links to no earlier file are reported and lose their name."""
    data = np.arange(members.num_members)
    if not members.link_targets:
        return data
    latest: dict[bytes, int] = {}
    for row, name in enumerate(names):
        target = members.link_targets.get(row)
        if target is not None and name is not None:
            path = _target_path(name, target, members.types[row] == _SYMBOLIC_LINK)
            found = latest.get(path) if path is not None else None
            if found is None:
                _report(findings, members, "link", row, f" ({show_name(target)})")
                names[row] = name = None
            else:
                data[row] = found
        if name is not None:
            latest[name] = int(data[row])
    return data


def _target_path(name: bytes, target: bytes, is_symbolic: bool) -> bytes | None:
    """Path in the archive that a link names; None when it leads out of it. A symbolic one starts at its folder."""
    if not is_symbolic or target.startswith(b"/"):
        return None if is_symbolic else normal_name(target)
    pieces = name.split(b"/")[:-1]
    for piece in target.split(b"/"):
        if piece == b"..":
            if not pieces:
                return None
            pieces.pop()
        elif piece not in (b"", b"."):
            pieces.append(piece)
    return b"/".join(pieces)


def _split_names(
    members: TarMembers, names: list[bytes | None], findings: list[Finding]
) -> tuple[Int64Array, list[bytes], list[bytes]]:
    """Rows that are parts of samples, with the key and part name of each."""
    present = [name for name in names if name is not None]
    clean = _split_clean(present)
    if clean is not None:
        return np.array([row for row, name in enumerate(names) if name is not None], np.int64), *clean
    rows: list[int] = []
    keys: list[bytes] = []
    parts: list[bytes] = []
    for row, name in enumerate(names):
        if name is None:
            continue
        key, dot, part = name.partition(b".")
        if b"/" in part:  # a dot in a folder's name
            folder, _, last = name.rpartition(b"/")
            key, dot, part = last.partition(b".")
            key = folder + b"/" + key
        kind = ""
        if name[:2] == b"__" and name.split(b"/", 1)[0].endswith(b"__"):
            kind = "metadata"
        elif not dot:
            kind = "no_dot"
        elif not key or key[-1:] == b"/":
            kind = "hidden"
        elif not part:
            kind = "empty_part"
        if kind:
            _report(findings, members, kind, row)
            continue
        rows.append(row)
        keys.append(key)
        parts.append(part)
    return np.array(rows, np.int64), keys, parts


def _split_clean(names: list[bytes]) -> tuple[list[bytes], list[bytes]] | None:
    """Keys and part names when every name splits at its first dot and none is skipped; all in a few calls."""
    split_at = [name.partition(b".") for name in names]
    if not split_at:
        return None
    keys, dots, parts = ([pieces[place] for pieces in split_at] for place in range(3))
    ends = b"\0" + b"\0".join(keys) + b"\0"
    is_clean = b"" not in dots and b"" not in parts and b"/" not in b"".join(parts)
    is_clean = is_clean and not any(text in ends for text in (b"\0\0", b"/\0", b"\0__"))
    return (keys, parts) if is_clean else None


def _repeats(members: TarMembers, samples: TarSamples) -> list[Finding]:
    """Parts that a sample has twice, keys that come again with the same parts, and samples that lie in pieces."""
    found: list[Finding] = []
    bounds = samples.part_start.tolist()
    if len(set(samples.keys)) < samples.num_samples:
        found += _repeated_keys(members, samples, bounds)
    numbers = {name: number for number, name in enumerate(set(samples.part_names))}
    part = np.fromiter(map(numbers.__getitem__, samples.part_names), np.int64, len(samples.part_names))
    sample = np.repeat(np.arange(samples.num_samples), np.diff(samples.part_start))
    codes = np.sort(sample * max(len(numbers), 1) + part)
    for number in sorted(set((codes[1:][codes[1:] == codes[:-1]] // max(len(numbers), 1)).tolist())):
        found += _repeated_parts(members, samples, bounds[number], bounds[number + 1])
    return found


def _repeated_keys(members: TarMembers, samples: TarSamples, bounds: list[int]) -> list[Finding]:
    found = []
    first_seen: dict[bytes, int] = {}
    parts_seen: dict[bytes, set[bytes]] = {}
    for number, key in enumerate(samples.keys):
        parts = set(samples.part_names[bounds[number] : bounds[number + 1]])
        first = first_seen.setdefault(key, number)
        before = parts_seen.setdefault(key, set())
        if first != number:
            kind = "duplicate_key" if before & parts else "not_adjacent"
            here, there = (_position(members, samples, bounds[place]) for place in (number, first))
            text = f"sample {show_name(key)} at byte {here}: {ERROR_KINDS[kind]}; it began at byte {there}"
            found.append(Finding(kind, here, key, text))
        before |= parts
    return found


def _repeated_parts(members: TarMembers, samples: TarSamples, start: int, stop: int) -> list[Finding]:
    found = []
    seen: dict[bytes, int] = {}
    key = samples.keys[int(np.searchsorted(samples.part_start, start, side="right")) - 1]
    for place in range(start, stop):
        first = seen.setdefault(samples.part_names[place], place)
        if first != place:
            here, there = (_position(members, samples, at) for at in (place, first))
            sizes = f"{samples.sizes[place]} bytes; it is at byte {there} already, {samples.sizes[first]} bytes"
            what = f"sample {show_name(key)}, part {show_name(samples.part_names[place])} at byte {here}"
            found.append(Finding("duplicate_part", here, key, f"{what}: {ERROR_KINDS['duplicate_part']}, {sizes}"))
    return found


def _position(members: TarMembers, samples: TarSamples, part: int) -> int:
    return int(members.header_offset[samples.rows[part]])
