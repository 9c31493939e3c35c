"""Which requests bring the parts of a shard: every part by exactly one, near ones together, none longer than asked."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardtool.shard_sources.members import Members
from shardtool.shard_sources.objects import Object, object_root
from shardtool.shard_sources.runs import MAX_GAP, RUN_BYTES, Run, batch_bounds, runs_of
from shardtool.shard_sources.small import requests_of, small_samples

KIB = 1 << 10
PLACES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 40 << 20), st.sampled_from((1, 100, 64 * KIB, RUN_BYTES))), max_size=40
)


def runs(*places: tuple[int, int, int]) -> list[Run]:
    roots, offsets, sizes = (np.array(column, np.int64) for column in zip(*places, strict=True))
    return runs_of(np.arange(len(places)), roots, offsets, sizes)


@given(PLACES)
def test_every_part_lies_in_one_run_of_its_object(places: list[tuple[int, int, int]]) -> None:
    found = runs(*places) if places else []
    assert sorted(part for run in found for part in run.parts) == list(range(len(places)))
    for run in found:
        assert all(
            (run.root, run.begin <= offset, offset + size <= run.end) == (root, True, True)
            for root, offset, size in (places[part] for part in run.parts)
        )
        assert run.end - run.begin <= RUN_BYTES
        assert run.begin == min(places[part][1] for part in run.parts)
    for one, two in pairwise(found):
        assert (one.root, one.begin) <= (two.root, two.begin)


def test_parts_are_one_run_up_to_a_gap() -> None:
    assert runs((0, 0, 10), (0, 10 + MAX_GAP, 5)) == [Run(0, 0, 15 + MAX_GAP, [0, 1])]
    assert runs((0, 0, 10), (0, 11 + MAX_GAP, 5)) == [Run(0, 0, 10, [0]), Run(0, 11 + MAX_GAP, 16 + MAX_GAP, [1])]


def test_neighbours_in_an_object_need_not_be_neighbours_in_the_shard() -> None:
    assert runs((0, 20, 5), (1, 0, 5), (0, 0, 10), (0, 10, 10)) == [Run(0, 0, 25, [2, 3, 0]), Run(1, 0, 5, [1])]


def test_one_part_may_stand_for_another_that_lies_inside_it() -> None:
    assert runs((0, 0, 100), (0, 0, 100), (0, 40, 10), (0, 200, 1)) == [Run(0, 0, 201, [0, 1, 2, 3])]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60))
def test_batches_are_full_and_hold_large_parts_alone(sizes: list[int]) -> None:
    bounds = batch_bounds(np.array(sizes, np.int64), batch_bytes=40, large_bytes=30)
    assert bounds[-1] == len(sizes)
    assert bounds[0] == 0
    batches = [sizes[first:last] for first, last in pairwise(bounds)]
    assert all(batches)
    for batch, after in zip(batches, [*batches[1:], None], strict=True):
        assert len(batch) == 1 or (sum(batch) <= 40 and max(batch) <= 30)
        if after is not None and max(batch) <= 30 and after[0] <= 30:
            assert sum(batch) + after[0] > 40


def test_a_root_names_an_object_in_a_version_or_a_path() -> None:
    url = "s3://bucket/a b/x:s3://y.tar"
    assert Object.of(object_root(url, "0f-2")) == Object("bucket", "a b/x:s3://y.tar", "0f-2")
    assert Object.of(object_root(url, "")) == Object("bucket", "a b/x:s3://y.tar", "")
    assert Object.of("range:/data/a.tar") is None


def shard_of(samples: int, size: int, root: str = "range:e:s3://bucket/a.tar") -> Members:
    """A shard of samples of one part each."""
    sizes = np.full(samples, size, np.int64)
    return Members(root, "a.tar", [], sizes, sizes, 0, num_samples=samples)


def test_requests_are_a_sample_each_or_read_through_what_is_dense() -> None:
    assert requests_of(1 << 20, 1 << 30) == (2048, 16 << 30), "16 batches, each of them all over 1 GiB"
    assert requests_of(10_000, 10_000 * 128 * KIB) == (10_000, 10_000 * 128 * KIB)


def test_small_samples_in_a_bucket_are_told_and_large_or_local_ones_are_not() -> None:
    told = small_samples([shard_of(10_000_000, 2 * KIB)])
    assert [problem.kind for problem in told] == ["small_samples"]
    assert "2.00 KiB on average" in told[0].message
    assert "10,000,000 requests" in told[0].message
    assert "shardtool stage" in told[0].hint
    assert small_samples([shard_of(1_000_000, 256 * KIB)]) == ()
    assert small_samples([shard_of(5_000, 2 * KIB)]) == ()
    assert small_samples([shard_of(10_000_000, 2 * KIB, "range:/data/a.tar")]) == ()
    assert small_samples([]) == ()
