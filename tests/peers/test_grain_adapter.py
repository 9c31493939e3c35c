"""shardtool.grain beside Grain itself."""

from __future__ import annotations

import json
import multiprocessing
from typing import TYPE_CHECKING, Any

import grain
import pytest
from peer_data import complaints_about, packed_numbers

from shardtool.errors import UsageProblem
from shardtool.grain import ShardSampler, ShardSource, mixed, ordered
from shardtool.loading.mixed import MixedReader, start_mixed_cursor
from shardtool.loading.telemetry import Telemetry

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 101


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ShardSource:
    return ShardSource(packed_numbers(tmp_path_factory.mktemp("numbers"), COUNT), decode=True)


class Key(grain.transforms.Map):  # type: ignore[misc]
    def map(self, element: Any) -> str:
        return str(element["__key__"])


def make_loader(source: ShardSource, rank: int = 0, world_size: int = 1, **options: Any) -> grain.DataLoader:
    return grain.DataLoader(
        data_source=source,
        sampler=ShardSampler(source, seed=7, elastic=(4, 3), num_epochs=2),
        operations=[Key()],
        shard_options=grain.sharding.ShardOptions(rank, world_size),
        **options,
    )


def test_two_epochs_hold_each_sample_once_in_two_orders(source: ShardSource) -> None:
    keys = list(make_loader(source))
    first, second = keys[:COUNT], keys[COUNT:]
    assert sorted(first) == sorted(second) == [f"s{number:05d}" for number in range(COUNT)]
    assert first != second


def test_the_global_order_does_not_depend_on_the_world_size(source: ShardSource) -> None:
    whole = list(make_loader(source))
    for world_size in (2, 3, 4):
        parts = [list(make_loader(source, rank, world_size)) for rank in range(world_size)]
        dealt = list(zip(*parts, strict=False))
        assert [key for keys in dealt for key in keys] == whole[: len(dealt) * world_size]


@pytest.mark.parametrize("position", [0, 1, 60, 150])
def test_a_loader_goes_on_where_its_state_says(source: ShardSource, position: int) -> None:
    whole = list(make_loader(source))
    iterator = iter(make_loader(source))
    for _ in range(position):
        next(iterator)
    resumed = iter(make_loader(source))
    resumed.set_state(iterator.get_state())
    assert list(resumed) == whole[position:]


def test_workers_read_the_same(source: ShardSource) -> None:
    assert list(make_loader(source, 1, 2, worker_count=2)) == list(make_loader(source, 1, 2))


def test_a_map_dataset_repeats_in_another_order(source: ShardSource) -> None:
    whole = list(make_loader(source))
    dataset = ordered(source, seed=7, elastic=(4, 3)).map(Key())
    assert len(dataset) == COUNT
    assert [dataset[position] for position in range(2 * COUNT)] == whole
    batches = list(dataset.repeat(2)[1::4].batch(5))
    assert [key for batch in batches for key in batch] == whole[1::4]


def test_an_elastic_iterator_goes_on_with_fewer_ranks(source: ShardSource) -> None:
    """google/grain: ElasticIterator deals one global order; its state is one integer."""
    from grain.experimental import ElasticIterator

    def make(rank: int, world_size: int) -> Any:
        dataset = ordered(source, seed=7, elastic=(4, 2)).map(Key()).repeat(2)
        options = grain.sharding.ShardOptions(rank, world_size)
        return iter(ElasticIterator(dataset, global_batch_size=8, shard_options=options))

    whole = list(make_loader(source))
    four = [make(rank, 4) for rank in range(4)]
    seen = [key for _ in range(3) for iterator in four for key in next(iterator)]
    two = [make(rank, 2) for rank in range(2)]
    for iterator in two:
        iterator.set_state(four[0].get_state())
    seen += [key for iterator in two for key in next(iterator)]
    reference = ordered(source, seed=7, elastic=(4, 2)).map(Key())
    assert sorted(seen) == sorted(reference[position] for position in range(32))
    assert len(whole) == 2 * COUNT


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> ShardSource:
    return ShardSource(packed_numbers(tmp_path_factory.mktemp("small"), 40), parts=["txt"])


def numbers_of(source: ShardSource, small: ShardSource, positions: int) -> list[tuple[str, str]]:
    """(data set, key) at each position of a mixture of 3 to 1; the small one has no decoded text."""
    dataset = mixed([source, small], (3, 1), seed=7, elastic=(4, 2), mixture_seed=5)
    found = [dataset[position] for position in range(positions)]
    return [("small" if isinstance(sample["txt"], bytes) else "large", sample["__key__"]) for sample in found]


def test_a_mixture_has_its_proportions_and_every_sample_before_one_comes_again(
    source: ShardSource, small: ShardSource
) -> None:
    found = numbers_of(source, small, 160)
    for first in range(0, 160, 4):
        assert sorted(name for name, _ in found[first : first + 4]) == ["large"] * 3 + ["small"]
    assert sorted(key for name, key in found if name == "small") == [f"s{number:05d}" for number in range(40)]
    large = [key for name, key in found if name == "large"]
    assert len(set(large[:COUNT])) == COUNT < len(large)


def test_a_mixture_is_the_stream_that_other_loaders_read(source: ShardSource, small: ShardSource) -> None:
    reader = MixedReader([source.reader, small.reader])
    cursor = start_mixed_cursor(
        reader, weights=(3, 1), num_samples=141, mixture_seed=5, global_batch=141, seed=7, elastic=(4, 2)
    )
    batches = [cursor.turn(position).batch(0) for position in (0, 141)]
    samples = [sample for batch in batches for sample in reader.read(reader.numbers(batch.shards, batch.rows))]
    assert [key for _, key in numbers_of(source, small, 282)] == [sample["__key__"] for sample in samples]


def test_a_mixture_is_dealt_batched_and_resumed_as_any_map_dataset(source: ShardSource, small: ShardSource) -> None:
    dataset = mixed([source, small], seed=7)
    assert len(dataset) == COUNT + 40, "as many as both have"
    keys = [sample["__key__"] for sample in (dataset[position] for position in range(2 * len(dataset)))]
    assert keys[: len(dataset)] != keys[len(dataset) :]
    ranks = [dataset.map(Key()).repeat(2)[rank::3].batch(7) for rank in range(3)]
    for rank, batches in enumerate(ranks):
        assert [key for batch in batches for key in batch] == keys[rank::3]
    iterator = iter(ranks[1].to_iter_dataset())
    for _ in range(4):
        next(iterator)
    resumed = iter(ranks[1].to_iter_dataset())
    resumed.set_state(iterator.get_state())
    assert [key for batch in resumed for key in batch] == keys[1::3][28:]


def test_mixtures_that_make_no_sense_are_refused(source: ShardSource, small: ShardSource) -> None:
    with pytest.raises(UsageProblem, match="no whole numbers"):
        mixed([source, small], (0.7, 0.3))  # type: ignore[arg-type]
    with pytest.raises(UsageProblem, match="3 weights for 2 data sets"):
        mixed([source, small], (1, 1, 1))
    with pytest.raises(UsageProblem, match="no data set"):
        mixed([])


def test_indices_past_the_end_are_refused(source: ShardSource) -> None:
    sampler = ShardSampler(source, num_epochs=1)
    assert len(sampler) == COUNT
    assert sampler[COUNT - 1].rng.integers(1000) == ShardSampler(source, num_epochs=1)[COUNT - 1].rng.integers(1000)
    for index in (-1, COUNT):
        with pytest.raises(IndexError):
            sampler[index]
    with pytest.raises(UsageProblem, match="num_epochs"):
        ShardSampler(source, num_epochs=0)


@pytest.mark.parametrize("worker_count", [0, 2])
def test_telemetry_of_a_loader_counts_what_it_gave_and_changes_nothing(
    source: ShardSource, tmp_path: Path, worker_count: int
) -> None:
    lines, seen = [], 0
    for rank in range(3):
        plain = list(make_loader(source, rank, 3, worker_count=worker_count))
        iterator = iter(make_loader(source, rank, 3, worker_count=worker_count))
        telemetry, found, workers = Telemetry(str(tmp_path), rank), [], 0
        for key in telemetry.watch(iterator, samples=lambda _: 1, num_samples=COUNT, world_size=3, num_bytes=len):
            found.append(key)
            workers = max(workers, len(multiprocessing.active_children()))
        assert found == plain
        assert workers >= worker_count, "their CPU seconds are counted, too"
        (line,) = (json.loads(text) for text in (tmp_path / f"rank-{rank:05d}.jsonl").read_text().splitlines())
        assert (line["rank"], line["samples"], line["bytes"]) == (rank, len(plain), sum(map(len, plain)))
        assert 0 < line["wait_s"]["p50"] <= line["wait_s"]["max"] <= line["wait_s"]["total"] <= line["seconds"]
        seen += line["samples"]
        lines.append(line)
    assert [(line["position"], line["epoch"]) for line in lines] == [(201, 1)] * 3
    assert seen == 3 * 67, "of 2 x 101 positions Grain gives each rank as many as the others"


def test_telemetry_goes_on_at_a_state_that_the_loader_keeps(source: ShardSource, tmp_path: Path) -> None:
    dataset = ordered(source, seed=7).map(Key()).repeat(2)[1::2].batch(5)
    iterator, telemetry = iter(dataset.to_iter_dataset()), Telemetry(str(tmp_path), 1)
    watched = telemetry.watch(iterator, samples=len, num_samples=COUNT, world_size=2)
    begun = [next(watched) for _ in range(3)]
    state = iterator.get_state()
    watched.close()  # type: ignore[attr-defined]
    resumed = iter(dataset.to_iter_dataset())
    resumed.set_state(state)
    rest = list(telemetry.watch(resumed, samples=len, num_samples=COUNT, world_size=2, position=30))
    assert [key for batch in (*begun, *rest) for key in batch] == [
        key for batch in dataset.to_iter_dataset() for key in batch
    ]
    lines = [json.loads(text) for text in (tmp_path / "rank-00001.jsonl").read_text().splitlines()]
    assert [(line["samples"], line["position"], line["epoch"]) for line in lines] == [(15, 30, 0), (86, 202, 2)]


def test_the_page_is_true(tmp_path: Path) -> None:
    assert complaints_about("grain.md", "needs grain", tmp_path) == []


def test_large_seeds_differ_in_their_last_bit(source: ShardSource) -> None:
    drawn = {ShardSampler(source, seed=seed)[3].rng.integers(1 << 60) for seed in range(2**64 - 8, 2**64)}
    assert len(drawn) == 8
