"""shardtool.grain beside Grain itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grain
import pytest
from peer_data import complaints_about, packed_numbers

from shardtool.errors import UsageProblem
from shardtool.grain import ShardSampler, ShardSource, ordered

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


def test_indices_past_the_end_are_refused(source: ShardSource) -> None:
    sampler = ShardSampler(source, num_epochs=1)
    assert len(sampler) == COUNT
    assert sampler[COUNT - 1].rng.integers(1000) == ShardSampler(source, num_epochs=1)[COUNT - 1].rng.integers(1000)
    for index in (-1, COUNT):
        with pytest.raises(IndexError):
            sampler[index]
    with pytest.raises(UsageProblem, match="num_epochs"):
        ShardSampler(source, num_epochs=0)


def test_the_page_is_true(tmp_path: Path) -> None:
    assert complaints_about("grain.md", "needs grain", tmp_path) == []


def test_large_seeds_differ_in_their_last_bit(source: ShardSource) -> None:
    drawn = {ShardSampler(source, seed=seed)[3].rng.integers(1 << 60) for seed in range(2**64 - 8, 2**64)}
    assert len(drawn) == 8
