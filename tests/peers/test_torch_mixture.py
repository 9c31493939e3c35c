"""Mixtures of packed data sets through torch's DataLoader, and telemetry that counts tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from helpers import make_tree, pack, run_cli
from peer_data import keys_of

from shardtool.errors import UsageProblem
from shardtool.loading.telemetry import Telemetry
from shardtool.torch import ResumableLoader, ShardBatchSampler, ShardDataset, ShardMixture, ShardStream

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ["map", "stream"]
SIZES = {"a": 40, "b": 20}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("mixture")
    for name, size in SIZES.items():
        files = {f"{name}{number:03d}.txt": str(number).encode() for number in range(size)}
        pack(make_tree(folder / name, files), folder / f"{name}-out", samples_per_shard=8)
    return {name: str(folder / f"{name}-out") for name in SIZES}


def make(data: dict[str, str], kind: str, *, loader: dict[str, Any] | None = None, **options: Any) -> Any:
    mixture = ShardMixture([ShardDataset(path) for path in data.values()], (3, 1))
    choices = {"global_batch": 12, "seed": 3, "elastic": (3, 2), **options}
    more = {"collate_fn": keys_of, **(loader or {})}
    if kind == "stream":
        return ResumableLoader(ShardStream(mixture, **choices), **more)
    return ResumableLoader(mixture, batch_sampler=ShardBatchSampler(mixture, **choices), **more)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_mixed_in_proportion_for_any_ranks_and_workers(data: dict[str, str], kind: str) -> None:
    wanted = list(make(data, "map"))
    assert len(wanted) == 5, "60 samples, as many as both have together"
    assert [sum(key[0] == "a" for key in batch) for batch in wanted] == [9] * 5
    for world_size, num_workers in ((3, 0), (2, 2)):
        ranks = [
            make(data, kind, rank=rank, world_size=world_size, loader={"num_workers": num_workers})
            for rank in range(world_size)
        ]
        found = [sorted(key for part in parts for key in part) for parts in zip(*ranks, strict=True)]
        assert found == [sorted(batch) for batch in wanted]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_change_between_passes_also_for_workers_that_persist(data: dict[str, str], kind: str) -> None:
    def batches(num_workers: int) -> list[list[str]]:
        more = {"num_workers": num_workers, "persistent_workers": num_workers > 0}
        loader = make(data, kind, loader=more)
        first = list(loader)
        loader.reweigh((1, 1))
        second = []
        for batch in loader:
            second.append(batch)
            if len(second) == 2:
                loader.reweigh((0, 1))
                break
        third = next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
        assert state["phases"] == "0:3,1;60:1,1;84:0,1"
        again = make(data, kind)
        with pytest.warns(UserWarning, match="weights"):
            again.load_state_dict(state)
        assert next(iter(again)) == next(iter(loader))
        return [*first, *second, third]

    found = batches(0)
    assert [sum(key[0] == "a" for key in batch) for batch in found] == [9] * 5 + [6] * 2 + [0]
    assert batches(1) == found


def test_a_loop_does_not_go_on_with_batches_drawn_before_the_weights_changed(data: dict[str, str]) -> None:
    loader = make(data, "map")
    batches = iter(loader)
    next(batches)
    loader.reweigh((1, 1))
    with pytest.raises(UsageProblem, match="while a loop was under way"):
        next(batches)


def test_wrong_mixtures_are_refused(data: dict[str, str]) -> None:
    datasets = [ShardDataset(path) for path in data.values()]
    with pytest.raises(UsageProblem, match="whole numbers"):
        ShardMixture(datasets, (0.7, 0.3))  # type: ignore[arg-type]
    with pytest.raises(UsageProblem, match="1 weights for 2 data sets"):
        ShardStream(ShardMixture(datasets, (1,)), global_batch=4)
    with pytest.raises(UsageProblem, match="one data set"):
        ShardStream(datasets[0], global_batch=4).reweigh((1,))
    assert ShardMixture(datasets).weights == (667, 333), "as many as they have samples"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_telemetry_counts_tokens(tmp_path: Path, num_workers: int) -> None:
    lines = "".join(json.dumps({"text": "abcdefgh"}) + "\n" for _ in range(24))
    source = make_tree(tmp_path / "in", {"a.jsonl": lines})
    assert run_cli("pack", source, tmp_path / "out", "--format", "bin", "-q").code == 0
    telemetry = Telemetry(str(tmp_path / "loader"))
    stream = ShardStream(ShardDataset(str(tmp_path / "out"), decode=True), global_batch=8)
    ids = [batch["tokens"] for batch in ResumableLoader(stream, telemetry=telemetry, num_workers=num_workers)]
    assert [tuple(batch.shape) for batch in ids] == [(8, 9)] * 3
    (line,) = map(json.loads, (tmp_path / "loader" / "rank-00000.jsonl").read_text().splitlines())
    assert (line["samples"], line["tokens"]) == (24, 24 * 9)
    assert line["tokens_per_s"] > 0


def test_telemetry_counts_what_the_user_calls_tokens(data: dict[str, str], tmp_path: Path) -> None:
    more = {"telemetry": Telemetry(str(tmp_path)), "count_tokens": lambda batch: sum(map(len, batch))}
    assert len(list(make(data, "stream", loader=more))) == 5
    (line,) = map(json.loads, (tmp_path / "rank-00000.jsonl").read_text().splitlines())
    assert line["tokens"] == 60 * 4
