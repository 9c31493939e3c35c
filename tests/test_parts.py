"""Several runs on one output: `--part i/n` in any order and side by side, and who is kept out."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from helpers import make_tree, pack, run_cli
from snapshots import NUM_SHARDS, begin, content, finish, leftovers, small_tree, stamps

from shardtool.errors import (
    DestinationError,
    PlanMismatch,
)
from shardtool.packing.destination import locked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return small_tree(tmp_path / "src")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_parts_in_any_order_are_the_whole(tree: Path, out: Path, tmp_path: Path, order: tuple[int, ...]) -> None:
    whole = finish(tree, tmp_path / "whole")
    results = [pack(tree, out, shards=NUM_SHARDS, part=(number, 3)) for number in order]
    assert [result.manifest is None for result in results] == [True, True, False]
    assert sum(result.num_packed for result in results) == NUM_SHARDS
    assert content(out) == whole
    assert leftovers(out) == []


def test_a_part_that_is_done_has_nothing_to_do(tree: Path, out: Path) -> None:
    begin(tree, out)
    before = stamps(out)
    result = pack(tree, out, shards=NUM_SHARDS, part=(0, 2))
    assert (result.num_packed, result.num_missing) == (0, 2)
    assert stamps(out) == before


def test_more_parts_than_shards(tree: Path, out: Path, tmp_path: Path) -> None:
    for number in range(9):
        pack(tree, out, shards=NUM_SHARDS, part=(number, 9))
    assert content(out) == finish(tree, tmp_path / "whole")


def test_index_publishes_what_all_parts_have_packed(tree: Path, out: Path) -> None:
    whole = finish(tree, out)
    (out / "manifest.json").unlink()
    assert run_cli("index", out).code == 0
    assert content(out) == whole


def test_a_part_with_other_options_is_refused(tree: Path, out: Path) -> None:
    begin(tree, out)
    with pytest.raises(PlanMismatch, match="seed 0, now 3"):
        pack(tree, out, shards=NUM_SHARDS, seed=3, part=(1, 2))


def test_parts_that_start_at_once_agree_on_one_plan(tree: Path, out: Path, tmp_path: Path) -> None:
    whole = finish(tree, tmp_path / "whole")
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "shardtool",
        "pack",
        tree,
        out,
        "--shards",
        str(NUM_SHARDS),
        "--json",
        "-j1",
    ]
    runs = [
        subprocess.Popen([*command, "--part", f"{number}/3"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for number in range(3)
    ]
    ended = [(*run.communicate(timeout=60), run.returncode) for run in runs]
    assert [code for _, _, code in ended] == [0, 0, 0], ended
    assert len({json.loads(result)["plan_id"] for result, _, _ in ended}) == 1
    assert content(out) == whole
    assert leftovers(out) == []


@pytest.fixture
def held(out: Path) -> Iterator[None]:
    """Another run packs to `out`."""
    with locked(os.fspath(out), None):
        yield


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("part", [None, (0, 2)])
def test_a_second_pack_on_one_target_is_refused(tree: Path, out: Path, part: tuple[int, int] | None) -> None:
    for _ in range(2):  # being refused must not take the lock away
        with pytest.raises(DestinationError, match="another shardtool is packing"):
            pack(tree, out, shards=NUM_SHARDS, part=part)
    assert sorted(os.listdir(out)) == [".shardtool"]


def test_parts_go_side_by_side_but_not_beside_a_whole_run(tree: Path, out: Path) -> None:
    with locked(os.fspath(out), (0, 2)):
        with pytest.raises(DestinationError, match="another shardtool"):
            pack(tree, out, shards=NUM_SHARDS)
        with pytest.raises(DestinationError, match="another shardtool"):
            pack(tree, out, shards=NUM_SHARDS, part=(0, 2))
        pack(tree, out, shards=NUM_SHARDS, part=(1, 2))
    assert pack(tree, out, shards=NUM_SHARDS).num_resumed == 2
    assert leftovers(out) == []


def test_a_lock_left_by_a_killed_run_locks_nobody_out(tree: Path, out: Path) -> None:
    for name in ("lock", "lock-part-0-of-2"):
        make_tree(out, {f".shardtool/{name}": b""})
    pack(tree, out, shards=NUM_SHARDS)
    assert leftovers(out) == []


def test_a_refused_run_leaves_no_folder_behind(tree: Path, tmp_path: Path) -> None:
    (tree / "a" / "bad").symlink_to("nowhere")
    assert run_cli("pack", tree, tmp_path / "x" / "y").code == 5
    assert not (tmp_path / "x").exists()
