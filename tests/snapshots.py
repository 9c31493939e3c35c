"""A small data set, begun or finished, and seen from outside: bytes, identities of files, what is left over."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

from helpers import make_tree, pack

from shardtool.packing.receipts import read_receipts
from shardtool.storage.local import TEMP_PREFIX

if TYPE_CHECKING:
    from pathlib import Path

SHARED = ("data", "index")
NUM_SHARDS = 4


def small_tree(root: Path) -> Path:
    """24 samples of two parts in three folders."""
    rng = random.Random(5)
    files: dict[str, bytes] = {}
    for number in range(24):
        stem = f"{'abc'[number % 3]}/{number:03d}"
        files[f"{stem}.bin"] = rng.randbytes(200 + 90 * number)
        files[f"{stem}.txt"] = b"caption %d" % number
    return make_tree(root, files)


def begin(tree: Path, out: Path) -> set[int]:
    """An unfinished data set: every second shard is there."""
    assert pack(tree, out, shards=NUM_SHARDS, part=(0, 2)).manifest is None
    return set(read_receipts(os.fspath(out)))


def finish(tree: Path, out: Path) -> dict[str, bytes]:
    """A finished data set, and its content."""
    pack(tree, out, shards=NUM_SHARDS)
    return content(out)


def rewrite(path: Path) -> None:
    """Other contents of the same size, and another mtime."""
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    touch(path)


def touch(path: Path) -> None:
    """A later mtime."""
    later = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(later, later))


def files_below(folder: Path) -> list[Path]:
    """Every file, hidden ones too."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def content(out: Path) -> dict[str, bytes]:
    """All that a data set is for its readers: shards, indexes, labels, manifest, as bytes."""
    found = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    for name in SHARED:
        found |= {os.fspath(path.relative_to(out)): path.read_bytes() for path in files_below(out / name)}
    return found


def stamps(out: Path) -> dict[str, tuple[int, int]]:
    """{file of a shard or index: (inode, mtime_ns)}: equal only where it was not written again."""
    found = {}
    for name in SHARED:
        for path in files_below(out / name):
            status = path.stat()
            found[os.fspath(path.relative_to(out))] = (status.st_ino, status.st_mtime_ns)
    return found


def rewritten(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> set[str]:
    """Files that are new, or were written again."""
    return {path for path in after if before.get(path) != after[path]}


def temps(out: Path) -> list[Path]:
    """Temp files anywhere in `out`."""
    return [path for path in files_below(out) if path.name.startswith(TEMP_PREFIX)]


def leftovers(out: Path) -> list[str]:
    """Files of a finished data set that should not be there: temps, locks, loose receipts."""
    hidden = {"failed.jsonl", "ignored.jsonl", "plan.json", "receipts.jsonl"}
    names = [
        os.fspath(path.relative_to(out / ".shardtool"))
        for path in files_below(out / ".shardtool")
        if path.parent.name != "plan"
    ]
    return [name for name in names if name not in hidden] + [os.fspath(path) for path in temps(out)]
