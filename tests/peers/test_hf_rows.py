"""Rows that `assign --emit rows` names are the rank's samples in Hugging Face datasets, exactly once over all ranks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import datasets
import pytest
from helpers import make_tree, pack, run_cli

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 60


@pytest.mark.parametrize("shard_format", ["parquet", "arrow"])
def test_ranks_select_their_rows(tmp_path: Path, shard_format: str) -> None:
    tree = make_tree(tmp_path / "in", {f"s{number:03d}.txt": str(number) for number in range(COUNT)})
    out = tmp_path / "out"
    pack(tree, out, format=shard_format, samples_per_shard=8)
    whole = datasets.load_dataset(str(out), split="train", cache_dir=str(tmp_path / "cache"))
    keys = []
    for rank in range(4):
        done = run_cli("assign", out, "--world-size", "4", "--rank", str(rank), "--emit", "rows")
        rows = [json.loads(line) for line in done.out.splitlines()]
        wanted = [
            datasets.load_dataset(
                shard_format,
                data_files=str(out / row["file"]),
                split=datasets.ReadInstruction("train", from_=row["first"], to=row["first"] + row["count"], unit="abs"),
                cache_dir=str(tmp_path / "cache"),
            )["key"]
            for row in rows[:2]
            if row["step"] == 1
        ]
        chosen = whole.select([row["row"] + row["step"] * turn for row in rows for turn in range(row["count"])])
        found = list(chosen["key"])
        flat = [key for part in wanted for key in part]
        assert flat == found[: len(flat)], "the same rows, read out of one file"
        keys += found
    assert len(keys) == COUNT == len(set(keys))
