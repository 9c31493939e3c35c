"""Two ranks train from what their nodes staged out of a bucket: the wire to it is silent for two epochs."""

from __future__ import annotations

import glob
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from doc_examples import complaints
from fault_proxy import FaultProxy
from gloo import run_ranks
from helpers import json_lines, run_cli
from peer_data import packed_numbers
from s3_servers import running, use
from snapshots import files_below
from store_examples import REASON, run_page
from torch.nn.parallel import DistributedDataParallel

from shardtool.torch import ResumableLoader, ShardDataset, ShardStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from s3_servers import Bucket

NODES, EPOCHS, SAMPLES, BATCH, SEED = 2, 2, 512, 8, 5
WISH = ("--num-nodes", str(NODES), "--local-world-size", "1", "--seed", str(SEED), "--batch-size", str(BATCH))


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """A bucket with a data set at `out`."""
    data = Path(packed_numbers(tmp_path_factory.mktemp("data"), SAMPLES))
    with running("seaweedfs", "s3-server") as server:
        bucket = server.make_bucket()
        bucket.put({f"out/{path.relative_to(data)}": path.read_bytes() for path in files_below(data)})
        yield bucket


def collate(batch: list[dict[str, str]]) -> tuple[list[str], torch.Tensor]:
    numbers = torch.tensor([[float(sample["txt"])] for sample in batch])
    return [sample["__key__"] for sample in batch], numbers / SAMPLES


def train(rank: int, _world_size: int, url: str, targets: list[str], way: str, log: str) -> None:
    """Fit a line for two epochs; write down when they began, the keys and the loss of every step."""
    (folder,) = glob.glob(f"{targets[rank]}/out-*")
    place, cache = (folder, "") if way == "folder" else (url, folder)
    dataset = ShardDataset(place, cache=cache, decode=["txt"])
    stream = ShardStream(dataset, global_batch=BATCH, seed=SEED)
    loader = ResumableLoader(stream, num_workers=1, collate_fn=collate)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    dist.barrier()
    with open(f"{log}-{rank}.jsonl", "w") as file:
        file.write(json.dumps({"began_s": time.monotonic()}) + "\n")
        while loader.position < EPOCHS * len(dataset):
            for keys, numbers in loader:
                loss = ((model(numbers) - 2 * numbers) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()  # averages the gradients of the ranks
                optimizer.step()
                file.write(json.dumps({"keys": keys, "loss": loss.item()}) + "\n")


@pytest.mark.parametrize("way", ["folder", "cache"])
def test_two_ranks_train_from_what_is_staged_and_ask_the_store_for_nothing(
    bucket: Bucket, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(bucket.server, monkeypatch)
    monkeypatch.setenv("SHARDTOOL_CACHE", os.fspath(tmp_path / "cache"))
    url, targets = bucket.url("out"), [os.fspath(tmp_path / f"nvme{node}") for node in range(NODES)]
    with FaultProxy(bucket.server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        for node, target in enumerate(targets):
            told = ("--node-rank", str(node), *WISH, "--epochs", f"0:{EPOCHS}", "--durability", "none", "-q")
            done = run_cli("stage", url, target, *told)
            assert done.code == 0, done.err
        assert proxy.count(r"GET .*/data/") >= SAMPLES // 16
        proxy.clear()
        run_ranks(NODES, tmp_path, train, url, targets, way, os.fspath(tmp_path / "log"))
        asked = list(proxy.requests)
    logs = [json_lines(tmp_path / f"log-{rank}.jsonl") for rank in range(NODES)]
    began_s = min(log[0]["began_s"] for log in logs)
    assert [seen.what for seen in asked if way == "folder" or seen.began_s >= began_s] == []
    assert proxy.count(r"/(data|index)/") == 0  # to open the URL its manifest is asked for, before the first epoch
    for epoch in range(EPOCHS):
        steps = SAMPLES // BATCH
        keys = [key for log in logs for step in log[1:][epoch * steps : (epoch + 1) * steps] for key in step["keys"]]
        assert len(set(keys)) == len(keys) == SAMPLES
    assert logs[0][-1]["loss"] < 0.01 * logs[0][1]["loss"], "it learns"
    shares = [len(list(Path(target).glob("out-*/data/*.tar"))) for target in targets]
    assert max(shares) < SAMPLES // 16, "each node has a part of the shards only"


def test_the_example_on_a_store_does_what_the_page_says(bucket: Bucket) -> None:
    _, outcomes = run_page("object-storage.md", bucket.server, REASON, "needs torch and a store")
    found = complaints(outcomes)
    assert not found, "\n\n".join(found)
    assert any("ResumableLoader" in outcome.step.script for outcome in outcomes)
