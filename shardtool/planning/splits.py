"""Which split a sample belongs to: by shares of a keyed hash, its folder or a regular expression; groups stay whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from shardtool.errors import GroupError, UsageProblem
from shardtool.keys import compile_pattern
from shardtool.names import SPLIT_ALIASES, check_split_name
from shardtool.planning.cuts import apportion, stratified_positions
from shardtool.samples import keys_of

if TYPE_CHECKING:
    import re

    from shardtool.model import Int16Array, SampleTable, UInt64Array

SPLIT_TAG = b"split\0"  # another stream of the hash than membership
CHUNK = 1 << 16
_FIRST = ("train", "validation", "test")


def parse_shares(text: str) -> dict[str, float]:
    """`train=0.9,validation=0.1` as a table; shares need not add up to 1.

    Raises:
        UsageProblem: malformed, a name twice, a share that is not above zero, fewer than one split.
    """
    shares: dict[str, float] = {}
    for piece in text.split(","):
        name, equals, share = (part.strip() for part in piece.partition("="))
        try:
            value = float(share)
        except ValueError:
            value = 0.0
        if not equals or not 0 < value < 1e9 or name in shares:
            raise UsageProblem(
                f"--split {text!r}: {piece!r} is not NAME=SHARE", hint="--split train=0.9,validation=0.1"
            )
        shares[check_split_name(name)] = value
    return shares


def assign_splits(
    table: SampleTable,
    *,
    seed: int,
    shares: str = "",
    split_by: str = "",
    split_group: str = "",
    stratify: bool = False,
) -> tuple[list[str], Int16Array]:
    """(names, int16[num_samples]): the split of each sample; one split named `train` where nothing was asked for.

    Raises:
        UsageProblem: options that contradict one another.
        GroupError: a sample that `split_by` or `split_group` does not match.
    """
    if split_by and shares:
        raise UsageProblem("--split and --split-by exclude one another", hint="choose shares or names, not both")
    if split_group and not shares:
        raise UsageProblem("--split-group needs --split", hint="--split train=0.9,validation=0.1")
    if split_by:
        return _split_by(table, split_by)
    if not shares and table.splits is not None:
        return _kept(table)
    if not shares:
        return ["train"], np.zeros(table.num_samples, np.int16)
    names, values = list(parse_shares(shares)), list(parse_shares(shares).values())
    groups = _groups(table, seed, split_group)
    labels = table.labels if stratify and not split_group else None
    return names, _cut(groups, values, labels, len(table.label_names))


def _kept(table: SampleTable) -> tuple[list[str], Int16Array]:
    """The splits that the source has; samples of none are `train`."""
    codes = np.asarray(table.splits)
    names = list(table.split_names)
    if (codes < 0).any() and "train" not in names:
        names.append("train")
    train = names.index("train") if "train" in names else 0
    ordered = sorted(range(len(names)), key=lambda n: (_FIRST.index(names[n]) if names[n] in _FIRST else 3, names[n]))
    place = np.argsort(ordered).astype(np.int16)
    return [names[number] for number in ordered], place[np.where(codes < 0, train, codes)]


def _groups(table: SampleTable, seed: int, split_group: str) -> UInt64Array:
    """uint64[num_samples]: hash of each sample's key, or of its group; equal hashes stay together."""
    pattern = compile_pattern(split_group, "--split-group") if split_group else None
    hashes = np.empty(table.num_samples, np.uint64)
    for start in range(0, table.num_samples, CHUNK):
        rows = np.arange(start, min(start + CHUNK, table.num_samples))
        keys = keys_of(table, rows)
        names = [_named(key, pattern, "--split-group") for key in keys] if pattern else keys
        hashes[start : start + len(rows)] = [xxhash.xxh3_64_intdigest(SPLIT_TAG + name, seed) for name in names]
    return hashes


def _cut(groups: UInt64Array, shares: list[float], labels: Any, num_labels: int) -> Int16Array:
    """Cut the groups, in the order of their hashes, where the counts of samples come nearest to the shares."""
    order = np.argsort(groups, kind="stable")
    if labels is not None:
        positions = stratified_positions(labels[order], num_labels, tag=1)
        order = order[np.argsort(positions, kind="stable")]
        ends = np.arange(1, len(groups) + 1)
    else:
        is_last = np.append(groups[order][1:] != groups[order][:-1], True)
        ends = np.flatnonzero(is_last) + 1  # a cut may only fall behind the last sample of a group
    wanted = np.cumsum(apportion(len(groups), shares))
    splits = np.empty(len(groups), np.int16)
    start = 0
    for number, stop in enumerate(wanted.tolist()):
        at = int(np.searchsorted(ends, stop))
        if 0 < at < len(ends) and stop - ends[at - 1] <= ends[at] - stop:
            at -= 1
        cut = int(ends[min(at, len(ends) - 1)]) if stop and number < len(wanted) - 1 else stop
        splits[order[start : max(cut, start)]] = number
        start = max(cut, start)
    return splits


def _split_by(table: SampleTable, split_by: str) -> tuple[list[str], Int16Array]:
    pattern = None
    if split_by.startswith("regex:"):
        pattern = compile_pattern(split_by[len("regex:") :], "--split-by")
    elif split_by != "dir":
        raise UsageProblem(f"--split-by {split_by!r} is neither dir nor regex:PATTERN", hint="--split-by dir")
    ids: dict[bytes, int] = {}
    found = np.empty(table.num_samples, np.int16)
    for start in range(0, table.num_samples, CHUNK):
        rows = np.arange(start, min(start + CHUNK, table.num_samples))
        for row, key in zip(rows.tolist(), keys_of(table, rows), strict=True):
            name = _named(key, pattern, "--split-by") if pattern else _top_folder(key)
            found[row] = ids.setdefault(name, len(ids))
    names = [_split_name(name) for name in ids]
    ordered = sorted(set(names), key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))
    renumber = np.array([ordered.index(name) for name in names], np.int16)
    return ordered, renumber[found]


def _split_name(name: bytes) -> str:
    text = name.decode("utf-8", "replace")
    return SPLIT_ALIASES.get(text.lower()) or check_split_name(text)


def _top_folder(key: bytes) -> bytes:
    folder, slash, _ = key.partition(b"/")
    if not slash:
        raise GroupError(
            f"sample {key.decode('utf-8', 'backslashreplace')!r} lies in no folder, so --split-by dir cannot place it",
            hint="move it into a folder such as train/, or use --split-by 'regex:…'",
        )
    return folder


def _named(key: bytes, pattern: re.Pattern[bytes] | None, option: str) -> bytes:
    match = pattern.search(key) if pattern else None
    if match is None:
        raise GroupError(
            f"{option}: the pattern does not match key {key.decode('utf-8', 'backslashreplace')!r}",
            hint="the pattern is searched in the key; its first group, or the whole match, is the name",
        )
    name: bytes = match.group(1) if match.re.groups else match.group()
    return name
