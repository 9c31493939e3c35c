"""Two nodes train from what each has staged: the source is gone, and the batches are those of a run on the whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from gloo import run_ranks
from helpers import json_lines, run_cli
from peer_data import packed_numbers

from shardtool.torch import ResumableLoader, ShardBatchSampler, ShardDataset, ShardStream

EPOCHS, SAMPLES = 2, 512
BATCH = 8
WISH = ("--num-nodes", "2", "--local-world-size", "1", "--epochs", f"0:{EPOCHS}", "--seed", "5", "--batch-size", "8")


def read(rank: int, world_size: int, folders: list[str], log: str, kind: str) -> None:
    """Write down the keys of every batch of two epochs."""
    dataset = ShardDataset(folders[rank])
    options: dict[str, Any] = {"global_batch": BATCH, "seed": 5}
    if kind == "stream":
        loader = ResumableLoader(ShardStream(dataset, **options), num_workers=1, collate_fn=list)
    else:
        loader = ResumableLoader(dataset, batch_sampler=ShardBatchSampler(dataset, **options), collate_fn=list)
    with open(f"{log}-{rank}.jsonl", "w") as file:
        while loader.position < EPOCHS * len(dataset):
            file.writelines(json.dumps([sample["__key__"] for sample in batch]) + "\n" for batch in loader)


@pytest.mark.parametrize("kind", ["stream", "sampler"])
def test_two_epochs_from_two_staged_targets_ask_the_source_for_nothing(tmp_path: Path, kind: str) -> None:
    data = packed_numbers(tmp_path, SAMPLES, per_shard=16)
    targets = [tmp_path / f"nvme{node}" for node in range(2)]
    for node, target in enumerate(targets):
        done = run_cli("stage", data, target, "--node-rank", str(node), *WISH, "--durability", "none", "-q")
        assert done.code == 0, done.err
    folders = [os.fspath(next(target.iterdir())) for target in targets]
    run_ranks(2, tmp_path, read, [data, data], os.fspath(tmp_path / "whole"), kind)
    os.rename(data, tmp_path / "gone")
    run_ranks(2, tmp_path, read, folders, os.fspath(tmp_path / "staged"), kind)
    for rank in range(2):
        staged = json_lines(tmp_path / f"staged-{rank}.jsonl")
        assert staged == json_lines(tmp_path / f"whole-{rank}.jsonl")
        assert len(staged) >= EPOCHS * SAMPLES // BATCH - 1
    shares = [len(list((Path(folder) / "data").iterdir())) for folder in folders]
    assert max(shares) < SAMPLES // 16, "each node has a part of the shards only"
