"""What a person means by a word: a shard by number or name, a sample by key or place, a part by member name.

Keys may be typed as they are shown, with bytes that are not UTF-8 as `\\xNN`.
"""

from __future__ import annotations

import difflib
import os
import re
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from shardtool import columns
from shardtool.errors import SourceNotFound, UsageProblem
from shardtool.manifest import MANIFEST
from shardtool.reading.reading import Dataset
from shardtool.storage import is_remote, open_place
from shardtool.storage.files import exists, split_file

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_COMPARED, MAX_SHARDS = 10_000, 1_000  # keys that are compared to name the nearest, shards they are taken from
NUM_NEAREST = 3
_PLACE = re.compile(r"(\d+):(\d*)")
_ESCAPE = re.compile(rb"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|\\)")


def open_at(path: str) -> tuple[Dataset, str]:
    """(data set, word): `path` is its folder, or a file in it, whose path below the folder is the word then.

    Raises:
        SourceNotFound: no data set.
    """
    if is_remote(path):
        return _open_at_url(path)
    if os.path.isfile(path) and os.path.basename(path) != MANIFEST:
        folder = os.path.dirname(os.path.abspath(path))
        while folder != os.path.dirname(folder):
            if os.path.exists(os.path.join(folder, MANIFEST)):
                return Dataset.open(folder), os.path.relpath(os.path.abspath(path), folder)
            folder = os.path.dirname(folder)
    return Dataset.open(path), ""


def _open_at_url(url: str) -> tuple[Dataset, str]:
    place, name = split_file(url)
    if "." in name and name != MANIFEST and exists(place, name):
        folder = place.url
        while folder.count("/") > 2:  # s3://bucket
            if exists(open_place(folder), MANIFEST):
                return Dataset.open(folder), url[len(folder) + 1 :]
            folder = folder.rpartition("/")[0]
    return Dataset.open(url), ""


def key_bytes(word: str) -> bytes:
    """The key that `word` shows: `\\xNN`, `\\uNNNN` and a doubled backslash undone, where any is there."""
    return _ESCAPE.sub(_unescaped, os.fsencode(word))


def _unescaped(match: re.Match[bytes]) -> bytes:
    byte, short, long = match.groups()
    if byte:
        return bytes.fromhex(byte.decode())
    number = int(short or long or b"5c", 16)
    return chr(number).encode("utf-8", "surrogatepass") if number < 0x110000 else match[0]


def split_member(member: bytes) -> tuple[bytes, bytes]:
    """(key, part) of `cats/0001.seg.png`: cut at the first dot of the last component; part b"" where none is."""
    folder, slash, name = member.rpartition(b"/")
    stem, _, part = name.partition(b".") if name[:1] != b"." else (name, b"", b"")
    return folder + slash + stem, part


def shard_number(dataset: Dataset, word: str) -> int | None:
    """The shard that `word` names: its number, path, file name or stem; None where it is none of them."""
    if word.isdecimal():
        return int(word) if int(word) < dataset.num_shards else None
    wanted = word.removeprefix("./")
    for number, shard in enumerate(dataset.manifest.shards):
        names = [record.path for record in shard.files] + ([shard.index.path] if shard.index else [])
        for path in names:
            name = path.rpartition("/")[2]
            if wanted in (path, name, name.partition(".")[0]):
                return number
    return None


def resolve(dataset: Dataset, word: str, split: str = "") -> tuple[int, int | None]:
    """(shard, sample) that `word` names, sample None where it names a shard. A key goes before a shard's number.

    Raises:
        SourceNotFound: there is no such sample and no such shard.
    """
    place = _PLACE.fullmatch(word)
    if place and not place[2]:
        return _checked_place(dataset, int(place[1]), 0)[0], None
    number = shard_number(dataset, word)
    if number is not None and not word.isdecimal():
        return number, None
    try:
        return find_sample(dataset, word, split)
    except SourceNotFound as error:
        if number is not None:
            return number, None
        near = difflib.get_close_matches(word.rpartition("/")[2], _shard_names(dataset), 1, 0.8)
        if near:
            error.hint = f"did you mean {near[0]}?"
        raise


def _shard_names(dataset: Dataset) -> list[str]:
    return [shard.path.rpartition("/")[2] for shard in dataset.manifest.shards[:MAX_COMPARED]]


def find_sample(dataset: Dataset, word: str, split: str = "") -> tuple[int, int]:
    """(shard, sample) of a key, of a key with a part behind it, or of `SHARD:N`.

    Raises:
        SourceNotFound: no such sample; the nearest keys are named.
    """
    key = key_bytes(word)
    for candidate in dict.fromkeys((os.fsencode(word), key, split_member(key)[0])):
        try:
            return dataset.find(candidate, split)
        except SourceNotFound:
            continue
    place = _PLACE.fullmatch(word)
    if place and place[2]:
        return _checked_place(dataset, int(place[1]), int(place[2]))
    raise no_such_key(dataset, key, split)


def _checked_place(dataset: Dataset, shard: int, sample: int) -> tuple[int, int]:
    shards = dataset.manifest.shards
    if shard >= len(shards):
        raise SourceNotFound(
            f"{dataset.path} has no shard {shard}", hint=f"shards are 0 .. {len(shards) - 1}", where={"shard": shard}
        )
    if sample >= shards[shard].num_samples:
        raise SourceNotFound(
            f"shard {shard} has no sample {sample}",
            hint=f"its samples are 0 .. {shards[shard].num_samples - 1}",
            where={"shard": shard},
        )
    return shard, sample


def no_such_key(dataset: Dataset, key: bytes, split: str = "") -> SourceNotFound:
    """The error for a key that is not there, with those that are like it."""
    shown = key.decode("utf-8", "backslashreplace")
    near = nearest_keys(dataset, split_member(key)[0], split)
    where = f" in {split}" if split else ""
    hint = f"did you mean {', '.join(near)}?" if near else f"shardtool ls {dataset.path} --samples lists the keys"
    return SourceNotFound(
        f"{dataset.path} has no sample {shown!r}{where}", hint=hint, where={"path": dataset.path, "key": shown}
    )


def nearest_keys(dataset: Dataset, key: bytes, split: str = "") -> list[str]:
    """Up to three keys like `key`, the nearest first: among those of its name and folder, else the first ones."""
    folder, slash, name = key.rpartition(b"/")
    first, mates, namesakes = (list[bytes]() for _ in range(3))
    for number, shard in enumerate(dataset.manifest.shards):
        if split not in ("", shard.split) or len(mates) >= MAX_COMPARED or number >= MAX_SHARDS:
            continue
        keys = dataset.index(number).keys
        if len(first) < MAX_COMPARED:
            first += columns.to_list(keys)
        if slash:
            mates += columns.to_list(keys.filter(pc.starts_with(keys, folder + slash)))
            namesakes += columns.to_list(keys.filter(pc.ends_with(keys, slash + name)))
    known = _shown(dict.fromkeys([*namesakes[:MAX_COMPARED], *(mates or first)[:MAX_COMPARED]]))
    close = difflib.get_close_matches(_shown([key])[0], known, NUM_NEAREST)
    return close or _shown(namesakes[:NUM_NEAREST])


def _shown(keys: Iterable[bytes]) -> list[str]:
    return [key.decode("utf-8", "backslashreplace") for key in keys]


def check_split(dataset: Dataset, split: str) -> str:
    """`split` itself, where the data set has it.

    Raises:
        UsageProblem: it has not.
    """
    known = list(dataset.manifest.splits())
    if split and split not in known:
        near = difflib.get_close_matches(split, known, 1)
        raise UsageProblem(
            f"--split: {dataset.path} has no split {split!r}, it has {', '.join(known)}",
            hint=f"did you mean {near[0]}?" if near else f"--split {known[0]}" if known else "",
            where={"option": "--split"},
        )
    return split
