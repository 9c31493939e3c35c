"""What `shardtool pack` refuses before it does anything, and how it counts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from helpers import make_tree, run_cli

from shardtool.executors.local import LocalExecutor
from shardtool.model import FileRecord, Receipt
from shardtool.workers import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

FILE = FileRecord("data/train-00000-of-00001.tar", 1024, "0" * 32)
RECEIPT = Receipt("plan", 0, "train", (FILE,), FILE, 1, 1, {})


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


def test_twice_as_many_workers_once_a_shard_waited_for_the_device() -> None:
    class Pool(WorkerPool):
        def run(self, *_: Any, **__: Any) -> Generator[tuple[Any, Any], None, None]:
            for waited in (False, True, True):
                yield 0, replace(RECEIPT, waited=waited)
                seen.append(self.num_workers)

    seen: list[int] = []
    job: Any = None
    assert len(list(LocalExecutor(Pool(2), may_grow=True).run(job, [0, 1, 2]))) == 3
    assert seen == [2, 4, 4]
    seen.clear()
    list(LocalExecutor(Pool(2)).run(job, [0, 1, 2]))
    assert seen == [2, 2, 2]
