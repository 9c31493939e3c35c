from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.formats.scatter import copy_runs, windows, words

RUNS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 90), st.integers(0, 70)), max_size=40)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(RUNS)
def test_runs_arrive_as_slices_would(runs: list[tuple[int, int, int]]) -> None:
    source = np.random.default_rng(len(runs)).integers(0, 256, 160, np.uint8)
    gaps, starts, sizes = (
        (np.array(column, np.int64) for column in zip(*runs, strict=True)) if runs else [np.zeros(0, np.int64)] * 3
    )
    places = np.cumsum(gaps + sizes) - sizes
    target = np.zeros(int((gaps + sizes).sum()) + 2, np.uint8)
    wanted = target.copy()
    for place, start, size in zip(places.tolist(), starts.tolist(), sizes.tolist(), strict=True):
        wanted[place : place + size] = source[start : start + size]
    copy_runs(target, places, source, starts, sizes)
    assert target.tolist() == wanted.tolist()


def test_large_runs_are_copied_beside_small_ones() -> None:
    source = np.random.default_rng(1).integers(0, 256, 3 << 20, np.uint8)
    sizes = np.array([(1 << 20) + 5, 1, (1 << 20) - 1, 0, 64])
    places, starts = np.cumsum(sizes) - sizes, np.array([7, 0, 100_000, 3 << 20, 5])
    target = np.zeros(int(sizes.sum()), np.uint8)
    copy_runs(target, places, source, starts, sizes)
    pieces = zip(starts.tolist(), sizes.tolist(), strict=True)
    assert target.tobytes() == b"".join(source[start : start + size].tobytes() for start, size in pieces)


@pytest.mark.parametrize(("place", "start"), [(2, 0), (0, 2)])
def test_no_run_goes_beyond_an_end(place: int, start: int) -> None:
    with pytest.raises(IndexError):
        copy_runs(np.zeros(4, np.uint8), np.array([place]), np.zeros(4, np.uint8), np.array([start]), np.array([3]))


def test_windows_begin_at_every_byte() -> None:
    array = np.arange(10, dtype=np.uint8)
    assert [item.tobytes() for item in windows(array, 8)] == [bytes(range(k, k + 8)) for k in range(3)]
    assert words(array).tolist() == [int.from_bytes(range(k, k + 8), "little") for k in range(3)]
    assert len(windows(array, 11)) == len(words(array[:7])) == 0
