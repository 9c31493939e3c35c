"""What every command should tell of a data set: reckoned from its source, by the standard library and digests alone.

A check a command, in CHECKS: it gets the JSON document of the command and the cell that it ran on.
"""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
import zstandard
from helpers import shard_paths

if TYPE_CHECKING:
    from collections.abc import Callable

    Samples = dict[str, dict[str, bytes]]
    Document = dict[str, Any]

NUM_SHARDS = 2


@dataclass(frozen=True)
class Cell:
    """A data set in one place.

    Args:
        folder: the data set, or the folder that the one in the bucket was copied from.
        samples: what it was packed from.
        has_ranges: a sample is a range of bytes of its shard, before compression.
        files: where `extract` put the parts.
        cache: where `stage` put the copy.
    """

    folder: Path
    samples: Samples
    has_ranges: bool
    files: Path
    cache: Path

    @property
    def key(self) -> str:
        """The key that commands are asked for: one in the middle."""
        return sorted(self.samples)[len(self.samples) // 2]

    @property
    def part(self) -> str:
        """The part of it that `cat` is asked for."""
        return min(self.samples[self.key])

    @property
    def payload_bytes(self) -> int:
        """Of all parts."""
        return sum(len(data) for parts in self.samples.values() for data in parts.values())

    @property
    def num_bytes(self) -> int:
        """Of all files of shards."""
        shards = json.loads((self.folder / "manifest.json").read_text())["shards"]
        return sum((self.folder / file["path"]).stat().st_size for shard in shards for file in shard["files"])

    @property
    def num_parts(self) -> int:
        """Of all samples."""
        return sum(map(len, self.samples.values()))


def samples_of_tree(tree: Path) -> Samples:
    """The samples of a folder: a part is what follows the first dot."""
    found: Samples = {}
    for path in tree.rglob("*"):
        if path.is_file():
            stem, _, part = path.name.partition(".")
            found.setdefault(os.fspath((path.parent / stem).relative_to(tree)), {})[part] = path.read_bytes()
    return found


def samples_of_lines(path: Path) -> Samples:
    """The documents of a JSON Lines file as `--tokenizer bytes` makes them: a byte is an id, 256 ends a document."""
    found: Samples = {}
    place = 0
    for line in path.read_bytes().splitlines(keepends=True):
        ids = [*json.loads(line)["text"].encode(), 256]
        found[f"{path.name}#{place}"] = {"tokens": np.array(ids, "<u2").tobytes()}
        place += len(line)
    return found


def summary(samples: Samples) -> Document:
    """{part: its samples, bytes, smallest, largest}."""
    sizes: dict[str, list[int]] = {}
    for parts in samples.values():
        for name, data in parts.items():
            sizes.setdefault(name, []).append(len(data))
    return {
        name: {"samples": len(found), "bytes": sum(found), "min": min(found), "max": max(found)}
        for name, found in sizes.items()
    }


def sizes_of(samples: Samples) -> dict[str, dict[str, int]]:
    """{key: {part: bytes}}."""
    return {key: {name: len(data) for name, data in parts.items()} for key, parts in samples.items()}


def check_verify(told: Document, cell: Cell) -> None:
    assert (told["ok"], told["problems"]) == (True, [])
    assert (told["shards"], told["samples"], told["parts"]) == (NUM_SHARDS, len(cell.samples), cell.num_parts)
    assert told["bytes"] == cell.num_bytes


def check_stats(told: Document, cell: Cell) -> None:
    assert (told["samples"], told["shards"], told["payload_bytes"]) == (
        len(cell.samples),
        NUM_SHARDS,
        cell.payload_bytes,
    )
    assert told["parts"] == summary(cell.samples)
    assert told["overhead_bytes"] == told["bytes"] - told["payload_bytes"]


def check_ls(told: Document, cell: Cell) -> None:
    for shard in told["shards"]:
        assert shard["xxh3_128"] == xxhash.xxh3_128_hexdigest((cell.folder / shard["path"]).read_bytes())
    assert sum(shard["samples"] for shard in told["shards"]) == len(cell.samples)
    assert sum(shard["payload_bytes"] for shard in told["shards"]) == cell.payload_bytes


def check_ls_samples(told: Document, cell: Cell) -> None:
    assert len(told["samples"]) == len(cell.samples)
    assert {row["key"]: row["parts"] for row in told["samples"]} == sizes_of(cell.samples)


def check_cat(told: Document, cell: Cell) -> None:
    (part,) = told["parts"]
    data = base64.b64decode(part["data_b64"]) if "data_b64" in part else part["text"].encode()
    assert (part["key"], part["part"], data) == (cell.key, cell.part, cell.samples[cell.key][cell.part])


def check_inspect(told: Document, cell: Cell) -> None:
    found = {part["name"]: (part["bytes"], part["xxh3_64"]) for part in told["parts"]}
    assert found == {name: (len(data), xxhash.xxh3_64_hexdigest(data)) for name, data in cell.samples[cell.key].items()}


def check_inspect_shard(told: Document, cell: Cell) -> None:
    ends = [row["key"] for row in told["first"] + told["last"]]
    assert (len(ends), len(set(ends)), set(ends) <= cell.samples.keys()) == (6, 6, True)
    wanted = summary(cell.samples)
    assert told["parts"].keys() == wanted.keys()
    for name, part in told["parts"].items():
        assert wanted[name]["min"] <= part["min"] <= part["p50"] <= part["max"] <= wanted[name]["max"]
    assert told["payload_bytes"] == sum(part["bytes"] for part in told["parts"].values())


def check_status(told: Document, cell: Cell) -> None:
    assert (told["state"], told["done"]["samples"], told["failed"]) == ("finished", len(cell.samples), {})


def check_index(told: Document, cell: Cell) -> None:
    assert (told["samples"], told["payload_bytes"]) == (len(cell.samples), cell.payload_bytes)
    assert not any(told["made"].values())


def check_diff(told: Document, cell: Cell) -> None:
    assert (told["equal"], told["same"], told["order_kept"]) == (True, len(cell.samples), True)


def check_assign(told: Document, cell: Cell) -> None:
    read: Counter[tuple[int, int]] = Counter()
    held = b""
    for rank in told["ranks"]:
        rows = [
            (segment["shard"], segment["first"] + number * segment["step"])
            for segment in rank["segments"]
            for number in range(segment["count"])
        ]
        assert len(rows) == rank["samples"] == len(cell.samples) / 2
        read.update(rows)
        held += b"".join(ranges_of(rank["segments"], cell.folder))
    assert len(read) == len(cell.samples)
    assert set(read.values()) == {1}
    assert bool(held) == cell.has_ranges
    if held:
        assert all(data in held for parts in cell.samples.values() for data in parts.values())


def ranges_of(segments: list[Document], folder: Path) -> list[bytes]:
    """The bytes of shards that these segments name; none where samples are rows."""
    shards = [raw_bytes(path) for path in shard_paths(folder)]
    return [
        shards[segment["shard"]][segment["offset"] :][: segment["bytes"]]
        for segment in segments
        if segment["offset"] is not None
    ]


def raw_bytes(path: Path) -> bytes:
    """A shard before compression."""
    if path.suffix != ".zst":
        return path.read_bytes()
    with path.open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()


def check_where(told: Document, cell: Cell) -> None:
    assert told["key"] == cell.key
    assert 0 <= told["position"] < len(cell.samples)
    assert [reading["rank"] for reading in told["readings"]] == [told["position"] % 2]


def check_extract(told: Document, cell: Cell) -> None:
    assert (told["samples"], told["parts"], told["bytes"]) == (len(cell.samples), cell.num_parts, cell.payload_bytes)
    found = {os.fspath(path.relative_to(cell.files)): path for path in cell.files.rglob("*") if path.is_file()}
    assert {path: file.read_bytes() for path, file in found.items()} == {
        f"{key}.{name}": data for key, parts in cell.samples.items() for name, data in parts.items()
    }


def check_stage(told: Document, cell: Cell) -> None:
    staged = Path(told["path"])
    assert (staged.parent, told["shards"], told["is_complete"]) == (cell.cache, NUM_SHARDS, True)
    wanted = {path.relative_to(cell.folder): path for path in (cell.folder / "data").rglob("*") if path.is_file()}
    assert all((staged / path).read_bytes() == file.read_bytes() for path, file in wanted.items())


CHECKS: dict[str, Callable[[Document, Cell], None]] = {
    "verify": check_verify,
    "verify --deep": check_verify,
    "stats": check_stats,
    "ls": check_ls,
    "ls --samples": check_ls_samples,
    "cat": check_cat,
    "inspect": check_inspect,
    "inspect SHARD": check_inspect_shard,
    "status": check_status,
    "index": check_index,
    "diff": check_diff,
    "assign": check_assign,
    "where": check_where,
    "extract": check_extract,
    "stage": check_stage,
}
