"""A data set packed to a folder and to a bucket from the same tree, and what both look like."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

from helpers import make_tree, pack
from snapshots import files_below

if TYPE_CHECKING:
    from pathlib import Path

    from s3_servers import Bucket

NUM_SHARDS = 4
OPTIONS = ("--shards", str(NUM_SHARDS), "--label-from", "parent")


def tree_of(root: Path, num_samples: int = 60, largest: int = 4_000) -> Path:
    """Samples of two parts in three folders; the second part is text."""
    rng = random.Random(num_samples)
    files: dict[str, bytes] = {}
    for number in range(num_samples):
        stem = f"{'abc'[number % 3]}/{number:04d}"
        files[f"{stem}.bin"] = rng.randbytes(rng.randrange(largest // 2, largest))
        files[f"{stem}.txt"] = b"caption %d" % number
    return make_tree(root, files)


def packed(tree: Path, out: Path) -> Path:
    """The data set in a folder."""
    pack(tree, out, shards=NUM_SHARDS, label_from="parent")
    return out


def contents(bucket: Bucket, prefix: str) -> dict[str, bytes]:
    """{path below the prefix: bytes} of every object."""
    keys = [key for key in bucket.keys() if key.startswith(prefix)]  # noqa: SIM118 - no dict
    return {key.removeprefix(prefix): bucket.get(key) for key in keys}


def files_of(out: Path) -> dict[str, bytes]:
    """The same of a folder."""
    return {os.fspath(path.relative_to(out)): path.read_bytes() for path in files_below(out)}


def uploads(bucket: Bucket) -> list[str]:
    """Keys of multipart uploads that nobody ended."""
    answer = bucket.server.client().list_multipart_uploads(Bucket=bucket.name)
    return [upload["Key"] for upload in answer.get("Uploads", [])]
