"""Two ranks of a node share one copy of the node's shards in memory; nothing of the other node's is there."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from helpers import make_tree, pack
from peer_data import keys_of

from shardtool.errors import UsageProblem
from shardtool.loading.files import ShardFiles
from shardtool.reading.reading import Dataset
from shardtool.torch import ResumableLoader, ShardBatchSampler, ShardDataset, ShardStream

COUNT, SHARDS, NODES, RANKS = 512, 16, 2, 4  # two ranks a node: data rank = local rank * nodes + node

RANK = """
import json, os, sys
from shardtool.torch import ShardDataset, ShardStream

data, node, local = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def blocks():
    return int(next(line for line in open("/proc/self/io") if line.startswith("read_bytes")).split()[1])


def mapped():
    # {file: [resident bytes, this process's part of them]}
    found, name = {}, ""
    for line in open("/proc/self/smaps"):
        words = line.split()
        if "-" in words[0]:
            name = words[-1] if words[-1].endswith(".tar") else ""
        elif name and words[0] in ("Rss:", "Pss:"):
            found.setdefault(os.path.basename(name), [0, 0])[words[0] == "Pss:"] += int(words[1]) << 10
    return found


stream = ShardStream(ShardDataset(data), global_batch=16, rank=local * 2 + node, world_size=4, seed=5)
size = stream.preload(2, node)
print("ready", flush=True)
sys.stdin.readline()
before = blocks()
keys = [sample["__key__"] for batch in stream for sample in batch]
print(json.dumps({"size": size, "mapped": mapped(), "blocks": blocks() - before, "keys": keys}), flush=True)
sys.stdin.readline()
"""


@dataclass
class Told:
    """What a rank said of itself."""

    size: int
    mapped: dict[str, list[int]]
    blocks: int
    keys: list[str]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Shards of about 300 KB, so that pages at their borders do not matter."""
    folder = tmp_path_factory.mktemp("preload")
    tree = make_tree(folder / "tree", {f"s{number:05d}.bin": number.to_bytes(2) * 4096 for number in range(COUNT)})
    pack(tree, folder / "out", shards=SHARDS)
    return str(folder / "out")


def run_node(data: str, node: int) -> list[Told]:
    """Both ranks of a node, reading an epoch while the other one still has its maps."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, data, str(node), str(local)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for local in range(RANKS // NODES)
    ]
    try:
        for rank in ranks:
            assert said(rank) == "ready"
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write("\n")
        return [Told(**json.loads(said(rank))) for rank in ranks]
    finally:
        for rank in ranks:
            rank.communicate("\n")


def said(rank: subprocess.Popen[str]) -> str:
    assert rank.stdout is not None
    return rank.stdout.readline().strip()


def shards_of(data: str, keys: list[str]) -> set[str]:
    """Names of the files that hold some keys."""
    with Dataset.open(data) as dataset:
        return {dataset.manifest.shards[dataset.find(key.encode())[0]].path.rpartition("/")[2] for key in keys}


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_two_ranks_of_a_node_share_one_copy_of_its_share(packed: str) -> None:
    nodes = [run_node(packed, node) for node in range(NODES)]
    shares = [set(ranks[0].mapped) for ranks in nodes]
    for ranks, share in zip(nodes, shares, strict=True):
        keys = [key for rank in ranks for key in rank.keys]
        assert shards_of(packed, keys) == share, "what the node's ranks read is what it keeps, and no more"
        assert len(share) < SHARDS
        for rank in ranks:
            resident, charged = (sum(column) for column in zip(*rank.mapped.values(), strict=True))
            assert set(rank.mapped) == share
            assert rank.size == sum(Dataset.open(packed).manifest.shards[at].num_bytes for at in places(packed, share))
            assert resident >= 0.95 * rank.size, "each rank sees all of the share in memory"
            assert charged <= 0.55 * resident, "and is charged for half of it"
            assert rank.blocks == 0, "nothing is read from the disk any more"
    assert len(shares[0] & shares[1]) <= 1, "lanes that are neighbours cut one shard at most"
    everything = sorted(key for ranks in nodes for rank in ranks for key in rank.keys)
    assert everything == [f"s{number:05d}" for number in range(COUNT)]


def places(data: str, names: set[str]) -> list[int]:
    """The places in the manifest of shard files."""
    records = Dataset.open(data).manifest.shards
    return [place for place, record in enumerate(records) if record.path.rpartition("/")[2] in names]


@pytest.mark.parametrize("kind", ["map", "stream"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_of_a_rank_read_its_preloaded_share_by_no_call(
    packed: str, kind: str, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The maps are there in forked workers too: a shard that is preloaded is never asked of the file system."""
    dataset = ShardDataset(packed)
    options: dict[str, Any] = {"global_batch": 16, "rank": 1, "world_size": RANKS, "seed": 5}
    source = ShardStream(dataset, **options) if kind == "stream" else ShardBatchSampler(dataset, **options)
    assert source.preload(NODES, 1) > 0
    monkeypatch.setattr(ShardFiles, "_file", None)  # what opens a shard: calling it fails
    if isinstance(source, ShardStream):
        loader = ResumableLoader(source, num_workers=num_workers, collate_fn=keys_of)
    else:
        loader = ResumableLoader(dataset, batch_sampler=source, num_workers=num_workers, collate_fn=keys_of)
    assert sum(len(batch) for batch in loader) == COUNT // RANKS


def test_a_share_that_does_not_fit_is_refused(packed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardtool.loading.files.available_memory", lambda: 100 << 10)
    stream = ShardStream(ShardDataset(packed), global_batch=16, rank=1, world_size=RANKS)
    with pytest.raises(UsageProblem, match="do not fit into 100 KiB"):
        stream.preload(NODES, 1)
    with pytest.raises(UsageProblem, match="do not fit into 100 KiB"):
        ShardDataset(packed, preload=True)
