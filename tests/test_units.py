"""Sizes and durations, in and out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.errors import UsageProblem
from shardtool.units import format_bytes, format_duration, format_range, parse_size, plural


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256MiB", 268_435_456),
        ("1GiB", 1 << 30),
        ("1GB", 1_000_000_000),
        ("500 MB", 500_000_000),
        ("64k", 64_000),
        ("64Ki", 65_536),
        ("1.5MiB", 1_572_864),
        ("268,435,456", 268_435_456),
        ("1_000", 1000),
        ("7", 7),
        ("7B", 7),
        ("2TIB", 2 << 40),
    ],
)
def test_sizes_mean_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1XB", "-1", "1e9", "1 G i B", "1..5GB", "0", "0.0001B", "٣MB"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        parse_size(text)
    assert "256MiB" in caught.value.hint


@given(st.integers(1, 1 << 62))
def test_a_plain_integer_is_bytes_exactly(size: int) -> None:
    assert parse_size(str(size)) == size
    assert parse_size(f"{size:,}") == size


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (640, "640 B"), (999, "999 B"), (1000, "0.98 KiB"), (256 << 20, "256 MiB"), (2 << 30, "2.00 GiB")],
)
def test_bytes_are_shown_with_three_figures(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(1000, 1 << 62))
def test_shown_bytes_read_back_as_nearly_the_same(size: int) -> None:
    assert abs(parse_size(format_bytes(size)) - size) <= size * 0.006


def test_a_range_shares_its_unit() -> None:
    assert format_range(243 << 20, 244 << 20) == "243.0 .. 244.0 MiB"
    assert format_range(244 << 20, 244 << 20) == "244 MiB"


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.2, "0:01.2"), (59.6, "1:00"), (125, "2:05"), (3725, "1:02:05"), (0, "0:00.0")]
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_plural() -> None:
    assert [plural(1, "shard"), plural(7034, "sample"), plural(2, "entry", "entries")] == [
        "1 shard",
        "7,034 samples",
        "2 entries",
    ]
