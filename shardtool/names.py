"""Names of shard files and index files, and brace ranges such as `train-{00000..00007}-of-00008.tar`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterable

DATA, INDEX, HIDDEN = "data", "index", ".shardtool"
MIN_DIGITS = 5
FAN_OUT_ABOVE, FAN_OUT = 10_000, 1_000  # the hub and many file systems suffer above 10,000 entries in a folder
SPLIT_ALIASES = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
LOADER_NAMES = {  # format: stem of a shard, which lies in a folder of its split
    "mds": "shard.{number:05d}",
    "litdata": "chunk-0-{number}",
    "arrow-stream": "data-{number:0{digits}d}-of-{count:0{digits}d}",
}
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
_SPLIT_NAME = re.compile(r"[A-Za-z0-9_]+")


def shard_path(split: str, number: int, count: int, suffix: str, *, total: int, shard_format: str = "") -> str:
    """`data/train-00003-of-00008.tar`; in folders of 1,000 where the data set has more than 10,000 shards.

    Loaders that want a folder a split get `data/train/shard.00003.mds`.

    Args:
        number: 0-based, inside the split.
        count: shards of the split.
        total: shards of the data set.
        shard_format: name of the format.
    """
    digits = max(MIN_DIGITS, len(str(count)))
    if shard_format in LOADER_NAMES:
        stem = LOADER_NAMES[shard_format].format(number=number, count=count, digits=digits)
        folder = f"{DATA}/{split}/{number // FAN_OUT:03d}" if total > FAN_OUT_ABOVE else f"{DATA}/{split}"
        return f"{folder}/{stem}{suffix}"
    folder = f"{DATA}/{split}-{number // FAN_OUT:03d}" if total > FAN_OUT_ABOVE else DATA
    return f"{folder}/{split}-{number:0{digits}d}-of-{count:0{digits}d}{suffix}"


def index_path(shard: int, total: int) -> str:
    """`index/00003.arrow`; the number is the shard's place in the manifest."""
    digits = max(MIN_DIGITS, len(str(total - 1)))
    folder = f"{INDEX}/{shard // FAN_OUT:03d}" if total > FAN_OUT_ABOVE else INDEX
    return f"{folder}/{shard:0{digits}d}.arrow"


def check_split_name(name: str) -> str:
    """`name` itself, where it is letters, digits and underscores, as every loader wants it.

    Raises:
        UsageProblem: any other character.
    """
    if not _SPLIT_NAME.fullmatch(name):
        raise UsageProblem(f"split name {name!r} has other characters than letters, digits and _", hint="rename it")
    return name


def expand_braces(pattern: str) -> list[str]:
    """Names meant by `a-{00..02}.tar`: every range expanded, zero padding kept; the text itself where none is there."""
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    first, last = found.group(1), found.group(2)
    width = len(first) if first.startswith("0") or len(first) == len(last) else 0
    numbers = (f"{number:0{width}d}" for number in range(int(first), int(last) + 1))
    tails = expand_braces(pattern[found.end() :])
    return [pattern[: found.start()] + number + tail for number in numbers for tail in tails]


def compact_braces(names: Iterable[str]) -> list[str]:
    """The fewest brace patterns that expand to `names`, in their order; the inverse of `expand_braces`."""
    patterns: list[str] = []
    run: list[tuple[str, str, str]] = []
    for name in names:
        found = re.search(r"\d+", name.rpartition("/")[2])
        offset = len(name) - len(name.rpartition("/")[2])
        piece = (
            (name[: offset + found.start()], found.group(), name[offset + found.end() :]) if found else (name, "", "")
        )
        if run and not _continues(run[-1], piece):
            patterns.append(_pattern(run))
            run = []
        run.append(piece)
    return patterns + ([_pattern(run)] if run else [])


def _continues(last: tuple[str, str, str], piece: tuple[str, str, str]) -> bool:
    same = last[0] == piece[0] and last[2] == piece[2] and len(last[1]) == len(piece[1])
    return same and piece[1] != "" and int(piece[1]) == int(last[1]) + 1


def _pattern(run: list[tuple[str, str, str]]) -> str:
    head, first, tail = run[0]
    return f"{head}{first}{tail}" if len(run) == 1 else f"{head}{{{first}..{run[-1][1]}}}{tail}"
