"""shardtool.torch beside torch's own DataLoader and samplers. Tests answer complaints listed in docs/internals."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from peer_data import keys_of, packed_numbers, packed_pets
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from shardtool.errors import PlanMismatch, UsageProblem
from shardtool.loading.files import ShardFiles
from shardtool.loading.telemetry import Telemetry
from shardtool.torch import Repeated, ResumableLoader, ShardBatchSampler, ShardDataset, ShardStream

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 101
KINDS = ["map", "stream"]
ELASTIC = (4, 3, 2)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    return packed_numbers(tmp_path_factory.mktemp("numbers"), COUNT)


def make(data: str, kind: str, *, num_workers: int = 0, loader: dict[str, Any] | None = None, **options: Any) -> Any:
    dataset = ShardDataset(data)
    choices = {"global_batch": 12, "seed": 3, "elastic": ELASTIC, **options}
    more = {"num_workers": num_workers, "collate_fn": keys_of, **(loader or {})}
    if kind == "stream":
        return ResumableLoader(ShardStream(dataset, **choices), **more)
    return ResumableLoader(dataset, batch_sampler=ShardBatchSampler(dataset, **choices), **more)


def global_batches(data: str, kind: str, world_size: int, num_workers: int, epochs: int = 1) -> list[list[str]]:
    """The batches of all ranks together, each sorted."""
    options: dict[str, Any] = {"world_size": world_size, "num_workers": num_workers, "global_batch": 16}
    ranks = [make(data, kind, rank=rank, **options) for rank in range(world_size)]
    return [sorted(key for part in parts for key in part) for _ in range(epochs) for parts in zip(*ranks, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_global_batches_do_not_depend_on_ranks_or_workers(numbers: str, kind: str) -> None:
    wanted = global_batches(numbers, "map", 1, 0)
    assert len(wanted) == 7
    for world_size in range(2, 17):
        assert global_batches(numbers, kind, world_size, 0) == wanted
    for num_workers in (1, 2, 5):
        assert global_batches(numbers, kind, 2, num_workers) == wanted


def test_streams_of_any_number_of_ranks_and_workers_give_the_same_batches(
    numbers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of 1 to 16 ranks with 0 to 5 workers, which here are told apart without being processes."""
    dataset = ShardDataset(numbers, parts=["txt"])
    wanted = global_batches(numbers, "map", 1, 0)

    def batches(rank: int, world_size: int, num_workers: int) -> list[list[str]]:
        stream = ShardStream(dataset, rank=rank, world_size=world_size, global_batch=16, seed=3, elastic=ELASTIC)
        readers = []
        for worker in range(max(1, num_workers)):
            info = SimpleNamespace(id=worker, num_workers=num_workers) if num_workers else None
            monkeypatch.setattr("shardtool.torch.stream.get_worker_info", lambda info=info: info)
            readers.append(iter(stream))
        found = [keys_of(next(readers[step % len(readers)])) for step in range(len(stream))]
        assert [batch for reader in readers for batch in reader] == []
        return found

    for num_workers in range(6):
        for world_size in range(1, 17):
            ranks = [batches(rank, world_size, num_workers) for rank in range(world_size)]
            assert [sorted(key for part in parts for key in part) for parts in zip(*ranks, strict=True)] == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_three_epochs_read_each_sample_three_times_in_three_orders(numbers: str, kind: str) -> None:
    """pytorch/pytorch#31771: set_epoch forgotten. Nobody sets an epoch here."""
    loader = make(numbers, kind, global_batch=101)
    epochs = [next(iter(loader)) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [sorted(epochs[0])] * 3
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_that_persist_follow_the_epoch(numbers: str, kind: str, start: str) -> None:
    """ByteDance-Seed/VeOmni#940: persistent workers keep the old epoch."""
    wanted = [tuple(batch) for loader in [make(numbers, "map")] for _ in range(3) for batch in loader]
    persistent = {"persistent_workers": True, "multiprocessing_context": start}
    loader = make(numbers, kind, num_workers=2, loader=persistent)
    assert [tuple(batch) for _ in range(3) for batch in loader] == wanted
    loader.load_state_dict({**loader.state_dict(), "position": 24})
    assert [tuple(batch) for batch in loader] == wanted[2:9], "also after a state was loaded"


@pytest.mark.parametrize("kind", KINDS)
def test_resume_after_every_batch_with_other_workers(numbers: str, kind: str) -> None:
    """huggingface/datasets#7447, #8308: epochs shortened after a resume, the second resume starts over."""
    wanted = [tuple(batch) for loader in [make(numbers, "map")] for _ in range(2) for batch in loader]
    state = make(numbers, kind).state_dict()
    found = []
    for turn in range(len(wanted)):  # every step in a new process's loader
        loader = make(numbers, kind, num_workers=turn % 3 if turn % 5 == 0 else 0)
        loader.load_state_dict(json.loads(json.dumps(state)))
        found.append(tuple(next(iter(loader))))
        state = loader.state_dict()
    assert found == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_views_are_decoded_in_the_workers(numbers: str, kind: str) -> None:
    def decoded(sample: dict[str, Any]) -> tuple[str, bytes]:
        return sample["__key__"], bytes(sample["txt"])

    def batches(io: str, num_workers: int) -> list[Any]:
        dataset = ShardDataset(numbers, io=io, transform=decoded)
        options: dict[str, Any] = {"num_workers": num_workers, "collate_fn": tuple}
        if kind == "stream":
            return list(ResumableLoader(ShardStream(dataset, global_batch=12), **options))
        return list(ResumableLoader(dataset, batch_sampler=ShardBatchSampler(dataset, global_batch=12), **options))

    wanted = batches("pread", 0)
    assert len(wanted) == 9
    assert batches("map", 0) == batches("map", 2) == wanted


def test_views_arrive_from_a_worker_as_views_of_a_copy(numbers: str) -> None:
    def batches(io: str) -> list[Any]:
        stream = ShardStream(ShardDataset(numbers, io=io), global_batch=12)
        return list(ResumableLoader(stream, num_workers=1, collate_fn=list))

    found = batches("map")
    assert found == batches("pread")
    assert all(type(sample["txt"]) is memoryview for batch in found for sample in batch)


@pytest.mark.parametrize("kind", KINDS)
def test_prefetched_batches_are_not_in_the_state(numbers: str, kind: str) -> None:
    loader = make(numbers, kind, num_workers=2, loader={"prefetch_factor": 3})
    for number, _ in enumerate(loader):
        assert loader.state_dict()["position"] == 12 * (number + 1)
        if number == 4:
            break
    assert loader.position == 60
    assert isinstance(loader, Stateful)


def test_a_plain_loader_does_not_leak_its_prefetch_into_the_state(numbers: str) -> None:
    dataset = ShardDataset(numbers)
    sampler = ShardBatchSampler(dataset, global_batch=12, seed=3)
    template = sampler.state_dict()
    for number, _ in enumerate(DataLoader(dataset, batch_sampler=sampler, num_workers=2, collate_fn=keys_of)):
        if number == 0:
            with pytest.raises(UsageProblem, match="position is not known") as caught:
                sampler.state_dict()
            assert "advance()" in caught.value.hint
        sampler.advance()
        assert sampler.state_dict() == {**template, "position": 12 * (number + 1)}
        if number == 4:
            break


def test_a_plain_loader_goes_on_to_the_next_epoch_by_itself(numbers: str) -> None:
    dataset = ShardDataset(numbers)
    wanted = [tuple(batch) for loader in [make(numbers, "map", elastic=())] for _ in range(3) for batch in loader]
    sampler = ShardBatchSampler(dataset, global_batch=12, seed=3)
    plain = DataLoader(dataset, batch_sampler=sampler, num_workers=1, collate_fn=keys_of)
    assert [tuple(batch) for _ in range(3) for batch in plain] == wanted


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_in_a_plain_loader_never_repeats_in_silence(numbers: str, num_workers: int) -> None:
    stream = ShardStream(ShardDataset(numbers), global_batch=12, seed=3)
    plain = DataLoader(stream, batch_size=None, num_workers=num_workers, collate_fn=keys_of)
    first = [tuple(batch) for batch in plain]
    with pytest.raises(UsageProblem, match="second pass"):
        list(plain)
    with pytest.raises(UsageProblem, match="position is not known"):
        stream.state_dict()
    stream.advance(len(first))
    assert stream.state_dict()["position"] == 108
    assert [tuple(batch) for batch in plain] != first


@pytest.mark.parametrize("policy", ["pad", "drop"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_without_order_ranks_read_what_torchs_distributed_sampler_gives(
    numbers: str, policy: Any, world_size: int
) -> None:
    dataset = ShardDataset(numbers)
    for rank in range(world_size):
        theirs = DistributedSampler(
            dataset, num_replicas=world_size, rank=rank, shuffle=False, drop_last=policy == "drop"
        )
        ours = ShardBatchSampler(
            dataset, global_batch=world_size, rank=rank, world_size=world_size, mode="none", policy=policy
        )
        assert [number for batch in ours for number in batch] == list(theirs)


def test_torchs_distributed_sampler_reads_through_the_dataset_unchanged(numbers: str) -> None:
    dataset = ShardDataset(numbers)
    found = []
    for rank in range(3):
        sampler = DistributedSampler(dataset, num_replicas=3, rank=rank, shuffle=True, seed=1)
        for batch in DataLoader(dataset, batch_size=5, sampler=sampler, collate_fn=keys_of):
            found += batch
    assert set(found) == {f"s{number:05d}" for number in range(COUNT)}


def key_and_mark(sample: dict[str, Any]) -> tuple[str, bool]:
    return sample["__key__"], sample["is_valid"]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_what_pad_repeats_is_marked(numbers: str, kind: str, num_workers: int) -> None:
    """pytorch/pytorch#25162: duplicates from padding corrupt validation metrics."""
    keys: list[str] = []
    repeated = 0
    for rank in range(4):
        dataset = ShardDataset(
            numbers, valid="is_valid", transform=lambda sample: (sample["__key__"], sample["is_valid"])
        )
        options: dict[str, Any] = {"global_batch": 8, "rank": rank, "world_size": 4, "policy": "pad"}
        if kind == "stream":
            loader = ResumableLoader(ShardStream(dataset, **options), num_workers=num_workers, collate_fn=list)
        else:
            sampler = ShardBatchSampler(dataset, **options)
            loader = ResumableLoader(dataset, batch_sampler=sampler, num_workers=num_workers, collate_fn=list)
        for batch in loader:
            keys += [key for key, is_valid in batch if is_valid]
            repeated += sum(not is_valid for _, is_valid in batch)
    assert len(keys) == len(set(keys)) == COUNT
    assert repeated == 3


@pytest.mark.parametrize("kind", KINDS)
def test_an_uneven_tail_ends_every_rank_at_the_same_position(numbers: str, kind: str) -> None:
    loaders = [
        make(numbers, kind, policy="uneven", rank=rank, world_size=12, elastic=(), num_workers=rank % 2)
        for rank in range(12)
    ]
    keys = [key for loader in loaders for batch in loader for key in batch]
    assert sorted(keys) == [f"s{number:05d}" for number in range(COUNT)]
    assert {loader.position for loader in loaders} == {COUNT}


def test_repeated_numbers_travel_to_workers() -> None:
    import pickle

    copy = pickle.loads(pickle.dumps([Repeated(5), 6]))
    assert (copy, [type(number) for number in copy]) == ([5, 6], [Repeated, int])


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_is_broken_off_goes_on_where_it_stopped(numbers: str, kind: str) -> None:
    wanted = [tuple(batch) for batch in make(numbers, "map")]
    loader = make(numbers, kind, num_workers=2, loader={"persistent_workers": True})
    found: list[tuple[str, ...]] = []
    while len(found) < 9:
        for batch in loader:
            found.append(tuple(batch))
            if len(found) % 2 == 0:
                break
    assert found[:9] == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_the_length_is_the_batches_of_the_pass(numbers: str, kind: str) -> None:
    loader = make(numbers, kind)
    assert len(loader) == 9
    assert [len(loader) for _ in loader] == [9] * 9
    assert len(loader) == 8, "the first batch of the next epoch was filled from it"


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_another_data_set_is_refused(numbers: str, kind: str, tmp_path: Path) -> None:
    other = make(packed_numbers(tmp_path, 50), kind)
    with pytest.raises(PlanMismatch, match="with 50 samples, this is"):
        make(numbers, kind).load_state_dict(other.state_dict())
    with pytest.raises(PlanMismatch, match="belongs to data set"):
        other.load_state_dict(make(numbers, kind).state_dict())


def test_a_loader_needs_something_with_a_position(numbers: str) -> None:
    with pytest.raises(UsageProblem, match="ShardStream"):
        ResumableLoader(ShardDataset(numbers), batch_size=4)
    with pytest.raises(UsageProblem, match="go together"):
        ShardBatchSampler(ShardDataset(numbers), global_batch=4, rank=1)


def test_torch_collates_decoded_samples(tmp_path: Path) -> None:
    dataset = ShardDataset(packed_pets(tmp_path), parts=["cls", "txt"], decode=True)
    loader = ResumableLoader(ShardStream(dataset, global_batch=16), num_workers=1)
    batch = next(iter(loader))
    assert batch["cls"].shape == (16,)
    assert all(isinstance(text, str) for text in batch["txt"])


def test_the_global_generator_is_left_alone(numbers: str) -> None:
    import torch

    before = torch.random.get_rng_state()
    list(make(numbers, "map", num_workers=1))
    assert bool((torch.random.get_rng_state() == before).all())


@pytest.mark.parametrize("kind", KINDS)
def test_telemetry_counts_what_was_delivered(numbers: str, kind: str, tmp_path: Path) -> None:
    telemetry = Telemetry(str(tmp_path / "loader"), 2, every_s=1000)
    loader = make(numbers, kind, num_workers=1, loader={"telemetry": telemetry})
    delivered = sum(len(batch) for batch in loader)
    (line,) = (json.loads(text) for text in (tmp_path / "loader" / "rank-00002.jsonl").read_text().splitlines())
    assert (line["samples"], line["batches"], line["position"]) == (delivered, 9, 108)
    assert line["bytes"] > 108 * 1024
    assert 0 < line["wait_s"]["p50"] <= line["wait_s"]["p99"] <= line["wait_s"]["max"]


LATENCY_S = 0.03
STEP_S = 0.12


def waits(data: str, monkeypatch: pytest.MonkeyPatch, *, io: str, read_ahead: int) -> list[float]:
    """Seconds that a trainer with steps of 120 ms waits for each batch of a medium with 30 ms latency."""
    plain = ShardFiles.read

    def slow(self: ShardFiles, shard: int, offset: int, size: int) -> bytes:
        time.sleep(LATENCY_S)
        return plain(self, shard, offset, size)

    monkeypatch.setattr(ShardFiles, "read", slow)
    loader = ResumableLoader(
        ShardStream(ShardDataset(data, io=io), global_batch=16, read_ahead=read_ahead), collate_fn=keys_of
    )
    found, began = [], time.perf_counter()
    for _ in loader:
        found.append(time.perf_counter() - began)
        time.sleep(STEP_S)
        began = time.perf_counter()
    return found[2:]  # the first ones fill the pipeline


def test_read_ahead_hides_a_latency_of_30_ms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = packed_numbers(tmp_path, 224, per_shard=8)
    without = waits(data, monkeypatch, io="pread", read_ahead=0)
    threads = waits(data, monkeypatch, io="threads:8", read_ahead=0)
    ahead = waits(data, monkeypatch, io="threads:8", read_ahead=3)
    assert sum(threads) < 0.5 * sum(without), "reads of a batch go side by side"
    assert sum(ahead) < 0.15 * sum(without), "the wait is nearly gone"  # 0.06 on two busy cores
