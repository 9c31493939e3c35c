"""`pack` dies at every single change it makes to the disk, and the same command then gives what it always gives."""

from __future__ import annotations

import os
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from crashes import Disk, crashing
from helpers import make_tree, pack
from snapshots import content, leftovers, rewrite, rewritten, stamps

from shardtool.packing.destination import state_of
from shardtool.packing.pack import _background
from shardtool.packing.receipts import is_valid, read_receipts
from shardtool.storage import open_place
from shardtool.storage.files import Sizes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NUM_SHARDS = 3


def tiny_tree(root: Path) -> Path:
    """Six samples of two parts."""
    rng = random.Random(2)
    return make_tree(root, {f"{n % 2}/{n}.{part}": rng.randbytes(40 + n) for n in range(6) for part in ("a", "b")})


def nothing(tree: Path, out: Path) -> None:
    """A new data set."""


def half(tree: Path, out: Path) -> None:
    pack(tree, out, shards=NUM_SHARDS, part=(0, 2))


def damaged(tree: Path, out: Path) -> None:
    pack(tree, out, shards=NUM_SHARDS)
    next((out / "data").iterdir()).unlink()


def edited(tree: Path, out: Path) -> None:
    pack(tree, out, shards=NUM_SHARDS)
    rewrite(tree / "1" / "3.a")


def other(tree: Path, out: Path) -> None:
    pack(tree, out, shards=NUM_SHARDS + 2, seed=9)
    make_tree(out, {"mine.txt": "mine", "data/mine.tar": "mine"})


SCENES: list[tuple[Callable[[Path, Path], None], dict[str, Any]]] = [
    (nothing, {}),
    (half, {}),
    (half, {"rescan": True}),
    (damaged, {}),
    (edited, {"update": True}),
    (other, {"overwrite": True}),
]
NAMES = ["new", "resume", "rescan", "repair", "update", "overwrite"]


def valid_files(out: Path) -> set[str]:
    """Files that a receipt vouches for."""
    sizes = Sizes(open_place(os.fspath(out)))
    receipts = [r for r in read_receipts(os.fspath(out)).values() if is_valid(os.fspath(out), r, sizes)]
    return {record.path for receipt in receipts for record in (*receipt.files, receipt.index)}


def attempt(tree: Path, out: Path, options: dict[str, Any], disk: Disk) -> None:
    with crashing(disk):
        pack(tree, out, shards=NUM_SHARDS, **options)
    _background.cache_clear()  # its thread may have met the crash


@pytest.mark.parametrize("durable", [False, True], ids=["killed", "power-lost"])
@pytest.mark.parametrize(("scene", "options"), SCENES, ids=NAMES)
def test_a_crash_at_any_change_is_made_good_by_the_same_command(
    tmp_path: Path, scene: Callable[[Path, Path], None], options: dict[str, Any], durable: bool
) -> None:
    tree, begun, out = tiny_tree(tmp_path / "src"), tmp_path / "begun", tmp_path / "out"
    scene(tree, begun)
    mine = {path for path in ("mine.txt", "data/mine.tar") if (begun / path).exists()}
    pack(tree, tmp_path / "whole", shards=NUM_SHARDS)
    wanted = content(tmp_path / "whole") | dict.fromkeys(mine, b"mine")
    options = options | {"durable": durable}
    count = Disk()
    copy(begun, out)
    attempt(tree, out, options, count)
    assert content(out) == wanted
    assert count.changes > 10
    for last in range(count.changes):
        copy(begun, out)
        attempt(tree, out, options, Disk(last, loses_power=durable))
        check_resumed(tree, out, options, wanted, last)


def check_resumed(tree: Path, out: Path, options: dict[str, Any], wanted: dict[str, bytes], last: int) -> None:
    before, proven = stamps(out) if out.exists() else {}, valid_files(out)
    if not proven and not (out / "data").exists():
        assert state_of(os.fspath(out)) != "finished"
    pack(tree, out, shards=NUM_SHARDS, **options | {"durable": False})
    assert content(out) == wanted, f"crash at change {last}"
    assert leftovers(out) == [], f"crash at change {last}"
    if not options.get("overwrite"):
        assert not rewritten(before, stamps(out)) & proven & before.keys() - changed_by(options, proven)


def changed_by(options: dict[str, Any], proven: set[str]) -> set[str]:
    """An update may write again what a receipt of the old contents proves."""
    return proven if options.get("update") else set()


def copy(begun: Path, out: Path) -> None:
    """`out` as it was before the attempt, with the same times."""
    shutil.rmtree(out, ignore_errors=True)
    if begun.exists():
        shutil.copytree(begun, out)
