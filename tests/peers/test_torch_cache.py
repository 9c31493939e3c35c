"""ShardDataset over a data set of which a part is staged: the same samples, each read where it is near."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from peer_data import packed_numbers

from shardtool.errors import PlanMismatch
from shardtool.torch import ResumableLoader, ShardDataset, ShardStream


@pytest.fixture
def data(tmp_path: Path) -> str:
    return packed_numbers(tmp_path / "numbers", 101)


def batches(data: str, num_workers: int, cache: str = "") -> list[Any]:
    stream = ShardStream(ShardDataset(data, cache=cache), global_batch=12, seed=3, rank=0, world_size=1)
    loader = ResumableLoader(stream, num_workers=num_workers, collate_fn=list)
    return [[(sample["__key__"], sorted(sample.items())) for sample in batch] for batch in loader]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_cache_that_holds_some_shards_changes_no_sample(data: str, tmp_path: Path, num_workers: int) -> None:
    wanted = batches(data, num_workers)
    staged = tmp_path / "staged"
    shutil.copytree(data, staged)
    shards = sorted(staged.glob("data/*.tar"))
    for path in shards[::2]:
        os.unlink(path)
    assert batches(data, num_workers, os.fspath(staged)) == wanted


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_whole_cache_leaves_the_shards_alone(data: str, tmp_path: Path, num_workers: int) -> None:
    wanted = batches(data, num_workers)
    staged = tmp_path / "staged"
    shutil.copytree(data, staged)
    shutil.rmtree(Path(data) / "data")
    shutil.rmtree(Path(data) / "index")
    assert batches(data, num_workers, os.fspath(staged)) == wanted


def test_a_cache_of_another_data_set_is_refused(data: str, tmp_path: Path) -> None:
    other = packed_numbers(tmp_path / "other", 50)
    with pytest.raises(PlanMismatch, match="holds data set"):
        ShardDataset(data, cache=other)
