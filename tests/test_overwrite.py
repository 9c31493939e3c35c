"""`--overwrite` replaces a data set of ours, and touches nothing else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from helpers import pack, run_cli
from snapshots import NUM_SHARDS, begin, content, finish, small_tree

from shardtool.errors import (
    SourceNotFound,
    UsageProblem,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return small_tree(tmp_path / "src")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def strangers_in(out: Path) -> dict[Path, str]:
    """Files of the user in and beside ours, such as names that resemble ours."""
    names = ["notes.md", "data/my.tar", "data/.tmp-mine", "index/extra.arrow", "mine/x.txt", ".shardtool/mine"]
    found = {out / name: f"mine: {name}" for name in names}
    for path, text in found.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return found


def test_overwrite_removes_only_what_shardtool_wrote(tree: Path, out: Path, tmp_path: Path) -> None:
    finish(tree, out)
    strangers = strangers_in(out)
    pack(tree, out, shards=3, seed=7, overwrite=True)
    pack(tree, tmp_path / "whole", shards=3, seed=7)
    assert {path: path.read_text() for path in strangers} == strangers
    mine = {os.fspath(path.relative_to(out)) for path in strangers}
    assert {path: data for path, data in content(out).items() if path not in mine} == content(tmp_path / "whole")


def test_overwrite_of_an_unfinished_data_set_leaves_no_shard_of_it(tree: Path, out: Path) -> None:
    begin(tree, out)
    next((out / ".shardtool" / "receipts").iterdir()).unlink()  # killed between the rename and the receipt
    pack(tree, out, shards=3, overwrite=True)
    assert len(list((out / "data").iterdir())) == len(list((out / "index").iterdir())) == 3


def test_overwrite_with_a_bad_source_keeps_the_old_data_set(tree: Path, out: Path, tmp_path: Path) -> None:
    whole = finish(tree, out)
    with pytest.raises(SourceNotFound):
        pack(tmp_path / "missing", out, overwrite=True)
    (tree / "a" / "bad").symlink_to("nowhere")
    assert run_cli("pack", tree, out, "--overwrite").code == 5
    assert content(out) == whole


def test_overwrite_alone_or_in_parts_is_refused(tree: Path, out: Path) -> None:
    whole = finish(tree, out)
    with pytest.raises(UsageProblem, match="names no source"):
        pack([], out, overwrite=True)
    with pytest.raises(UsageProblem, match="exclude one another"):
        pack(tree, out, overwrite=True, part=(0, 2))
    assert content(out) == whole


def test_overwrite_of_a_new_folder_packs(tree: Path, out: Path) -> None:
    assert pack(tree, out, shards=NUM_SHARDS, overwrite=True).num_packed == NUM_SHARDS
