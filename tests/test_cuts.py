from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardtool.errors import PlanError
from shardtool.planning.cuts import (
    apportion,
    cut_by_bytes,
    cut_by_count,
    cut_evenly,
    cut_stratified,
    stratified_positions,
)

SMALL = settings(max_examples=200, derandomize=True, deadline=None)
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=12).map(lambda sizes: np.array(sizes, np.int64))
ROWS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=25)  # (bytes, class)
LABELS = st.lists(st.integers(0, 3), min_size=1, max_size=40).map(lambda labels: np.array(labels, np.int32))


def loads(sizes: Any, bounds: Any) -> list[int]:
    """Bytes of each shard; checks on the way that the bounds are a partition into shards that hold something."""
    assert bounds[0] == 0
    assert bounds[-1] == len(sizes)
    assert (np.diff(bounds) > 0).all()
    return [int(sizes[start:stop].sum()) for start, stop in pairwise(bounds)]


def fewest(sizes: list[int], capacity: int) -> int:
    """The least number of contiguous shards that fit, by trying all; larger samples stand alone."""
    best = [0] + [len(sizes)] * len(sizes)
    for stop in range(1, len(sizes) + 1):
        for start in range(stop):
            if sum(min(size, capacity) for size in sizes[start:stop]) <= capacity:
                best[stop] = min(best[stop], best[start] + 1)
    return best[-1]


@SMALL
@given(SIZES, st.integers(1, 60))
def test_the_number_of_shards_is_the_least_that_fits(sizes: Any, capacity: int) -> None:
    bounds = cut_by_bytes(sizes, capacity)
    assert len(bounds) - 1 == fewest(sizes.tolist(), capacity)


@SMALL
@given(SIZES, st.integers(1, 60), st.integers(0, 12))
def test_no_shard_is_over_the_limit_save_a_single_sample(sizes: Any, capacity: int, more: int) -> None:
    least = fewest(sizes.tolist(), capacity)
    wanted = min(least + more, len(sizes))
    bounds = cut_by_bytes(sizes, capacity, num_shards=wanted)
    assert len(bounds) - 1 == wanted
    for load, count in zip(loads(sizes, bounds), np.diff(bounds), strict=True):
        assert load <= capacity or count == 1


@SMALL
@given(st.lists(st.integers(50, 100), min_size=8, max_size=60), st.integers(1, 8))
def test_cuts_are_within_half_a_sample_of_equal_bytes(values: list[int], num_shards: int) -> None:
    sizes = np.array(values, np.int64)
    assume(len(sizes) >= 4 * num_shards)
    ends = np.concatenate([[0], np.cumsum(sizes)])
    bounds = cut_evenly(sizes, num_shards)
    shares = ends[-1] * np.arange(num_shards + 1) / num_shards
    assert (np.abs(ends[bounds] - shares) <= max(values) / 2).all()


@given(st.integers(1, 200), st.integers(1, 20), st.integers(1, 9))
@SMALL
def test_equal_samples_are_dealt_evenly_within_one(count: int, num_shards: int, size: int) -> None:
    assume(num_shards <= count)
    counts = np.diff(cut_evenly(np.full(count, size, np.int64), num_shards))
    assert counts.max() - counts.min() <= 1


def test_the_last_shard_is_not_a_tiny_rest() -> None:
    assert np.diff(cut_by_bytes(np.full(101, 10, np.int64), 1000)).tolist() in ([50, 51], [51, 50])


def test_a_sample_larger_than_a_shard_stands_alone() -> None:
    sizes = np.array([3, 50, 3, 3], np.int64)
    assert loads(sizes, cut_by_bytes(sizes, 10)) == [3, 50, 6]


def test_wanted_numbers_that_cannot_be_are_refused_with_the_nearest() -> None:
    sizes = np.full(4, 6, np.int64)
    with pytest.raises(PlanError, match="4 are needed") as caught:
        cut_by_bytes(sizes, 10, num_shards=3)
    assert "--shards 4" in caught.value.hint
    with pytest.raises(PlanError, match="empty") as caught:
        cut_by_bytes(sizes, 100, num_shards=5)
    assert "--shards 4" in caught.value.hint


@SMALL
@given(st.integers(1, 50), st.integers(1, 12))
def test_samples_per_shard_holds_in_all_but_the_last(count: int, each: int) -> None:
    counts = np.diff(cut_by_count(count, each)).tolist()
    assert counts[:-1] == [each] * (len(counts) - 1)
    assert 1 <= counts[-1] <= each
    assert sum(counts) == count


@SMALL
@given(st.integers(0, 1000), st.lists(st.floats(0.01, 10), min_size=1, max_size=6))
def test_shares_become_whole_numbers_by_largest_remainder(count: int, shares: list[float]) -> None:
    found = apportion(count, shares)
    exact = [count * share / sum(shares) for share in shares]
    assert sum(found) == count
    assert all(abs(got - want) < 1 + 1e-9 for got, want in zip(found, exact, strict=True))
    rest = {got - int(want): want - int(want) for got, want in zip(found, exact, strict=True)}
    assert rest.get(1, 1) >= rest.get(0, 0) - 1e-9 or len(rest) == 1


def test_equal_remainders_go_to_the_first() -> None:
    assert apportion(10, [1, 1, 1, 1]) == [3, 3, 2, 2]
    assert apportion(5, [0.9, 0.1]) == [5, 0]
    assert apportion(100, [0.8, 0.1, 0.1]) == [80, 10, 10]


# Stratified


def class_counts(labels: Any, shard: Any) -> Any:
    """int[num_shards, num_classes]."""
    counts = np.zeros((int(shard.max()) + 1, int(labels.max()) + 1), np.int64)
    np.add.at(counts, (shard, labels), 1)
    return counts


@SMALL
@given(LABELS, st.floats(0, 1), st.floats(0, 1))
def test_an_interval_of_places_has_the_class_mix_within_one_sample(labels: Any, one: float, two: float) -> None:
    low, high = sorted((one, two))
    positions = stratified_positions(labels, 4)
    assert ((positions >= 0) & (positions < 1)).all()
    inside = (positions >= low) & (positions < high)
    for label in range(4):
        expected = (high - low) * int((labels == label).sum())
        assert abs(int((labels[inside] == label).sum()) - expected) <= 1 + 1e-9


@SMALL
@given(st.lists(st.integers(4, 60), min_size=1, max_size=4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_shards_of_equal_samples_have_each_class_within_one(counts: list[int], num_shards: int, random: Any) -> None:
    values = [label for label, count in enumerate(counts) for _ in range(count)]
    random.shuffle(values)
    labels = np.array(values, np.int32)
    positions = stratified_positions(labels, len(counts))
    shard = cut_stratified(positions, np.ones(len(labels), np.int64), len(labels), num_shards)
    found = class_counts(labels, shard)
    assert len(found) == num_shards
    assert (np.abs(found - np.array(counts) / num_shards) < 1).all()


@SMALL
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=25), st.integers(1, 60), st.data()
)
def test_stratified_shards_keep_the_limit_and_the_number(rows: list[Any], capacity: int, data: Any) -> None:
    sizes = np.array([size for size, _ in rows], np.int64)
    labels = np.array([label for _, label in rows], np.int32)
    positions = stratified_positions(labels, 4)
    least = fewest(sizes[np.argsort(positions, kind="stable")].tolist(), capacity)
    exact = data.draw(st.booleans())
    wanted = data.draw(st.integers(least, len(sizes))) if exact else 0
    shard = cut_stratified(positions, sizes, capacity, wanted, step=0 if exact else 1)
    counts = np.bincount(shard)
    assert (counts > 0).all()
    assert len(counts) == wanted if exact else least <= len(counts) <= max(least + 1, least * 5 // 4)
    held = np.bincount(shard, weights=sizes)
    assert ((held <= capacity) | (counts == 1)).all()


@SMALL
@given(st.lists(st.integers(1, 40), min_size=12, max_size=40), st.integers(1, 4))
def test_stratified_shards_come_in_multiples(values: list[int], multiple: int) -> None:
    sizes, labels = np.array(values, np.int64), np.arange(len(values), dtype=np.int32) % 3
    shard = cut_stratified(stratified_positions(labels, 3), sizes, 10**6, 0, step=multiple)
    assert (int(shard.max()) + 1) % multiple == 0


def test_stratified_shards_that_cannot_be_are_refused() -> None:
    sizes, labels = np.full(4, 6, np.int64), np.zeros(4, np.int32)
    with pytest.raises(PlanError, match="4 are needed"):
        cut_stratified(stratified_positions(labels, 1), sizes, 10, 3, step=0)
