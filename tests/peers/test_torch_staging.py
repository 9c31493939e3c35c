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

from shardtool.reading.reading import Dataset
from shardtool.staging.folder import read_staged
from shardtool.torch import ResumableLoader, ShardBatchSampler, ShardDataset, ShardStream

EPOCHS, SAMPLES = 2, 512
BATCH = 8
WISH = ("--num-nodes", "2", "--local-world-size", "1", "--epochs", f"0:{EPOCHS}", "--seed", "5", "--batch-size", "8")


def read_on_nodes(rank: int, world_size: int, folders: list[str], log: str, kind: str) -> None:
    """As `read`, under what torchrun tells processes of two nodes of two ranks."""
    node, local = divmod(rank, 2)
    told = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": 2}
    nodes = {"GROUP_RANK": node, "GROUP_WORLD_SIZE": 2}
    os.environ.update({name: str(value) for name, value in {**told, **nodes}.items()})
    read(rank, world_size, folders, log, kind)


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


@pytest.mark.parametrize("kind", ["stream", "sampler"])
def test_ranks_of_two_nodes_read_what_was_staged_there_and_all_of_it(tmp_path: Path, kind: str) -> None:
    data = packed_numbers(tmp_path, SAMPLES, per_shard=16)
    words = ("--num-nodes", "2", "--local-world-size", "2", "--epochs", "0:2", "--seed", "5", "--batch-size", "8")
    folders = []
    for node in range(2):
        target = tmp_path / f"nvme{node}"
        done = run_cli("stage", data, target, "--node-rank", str(node), *words, "--durability", "none", "-q")
        assert done.code == 0, done.err
        folders += [os.fspath(next(target.iterdir()))] * 2
    os.rename(data, tmp_path / "gone")
    run_ranks(4, tmp_path, read_on_nodes, folders, os.fspath(tmp_path / "read"), kind)
    for node in range(2):
        keys = {
            key
            for local in range(2)
            for batch in json_lines(tmp_path / f"read-{2 * node + local}.jsonl")
            for key in batch
        }
        with Dataset.open(os.fspath(tmp_path / "gone")) as dataset:
            shards = {dataset.find(key.encode())[0] for key in keys}
        assert shards == set(read_staged(folders[2 * node]).shards)  # type: ignore[union-attr]
        assert len(shards) < SAMPLES // 16
