"""What `shardtool pack` refuses before it does anything, and how it counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import make_tree, run_cli

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    tree = make_tree(tmp_path / "src", {"a.txt": "a", "b.txt": "b", "b.json": "{}"})
    assert run_cli("pack", tree, tmp_path / "out", "--durability", "none").code == 0
    return tmp_path / "out"


@pytest.mark.parametrize("option", [("--seed", "5"), ("--shard-size", "1MiB"), ("--group-by", "file"), ("--rescan",)])
def test_an_option_that_needs_the_source_is_refused_without_one(packed: Path, option: tuple[str, ...]) -> None:
    ran = run_cli("pack", packed, *option)
    assert ran.code == 2
    assert option[0] in ran.err
    assert "shardtool pack SRC" in ran.err


def test_how_to_run_may_be_said_without_a_source(packed: Path) -> None:
    assert run_cli("pack", packed, "--deep", "--workers", "1").code == 0


def test_one_file_that_is_left_out_is_one_file(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", {"a.txt": "a", "b.txt": "b", "b.json": "{}"})
    ran = run_cli("pack", tree, tmp_path / "out", "--require", "json", "--on-missing", "skip", "--durability", "none")
    assert ran.code == 3
    assert "1 file not packed" in ran.err
