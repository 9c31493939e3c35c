"""Binary columns in chunks become one, in any order, and are let go on the way."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import columns
from shardtool.columns import gathered, used_up

VALUES = st.lists(st.lists(st.binary(max_size=5), max_size=40), max_size=5)
KINDS = st.sampled_from([pa.binary(), pa.large_binary()])


@given(VALUES, KINDS, KINDS, st.randoms(use_true_random=False), st.integers(1, 20))
def test_chunks_are_gathered_where_each_row_belongs(
    values: list[list[bytes]], source: pa.DataType, kind: pa.DataType, random: object, run: int
) -> None:
    flat = [value for chunk in values for value in chunk]
    runs = [list(range(first, min(first + run, len(flat)))) for first in range(0, len(flat), run)]
    random.shuffle(runs)  # type: ignore[attr-defined]
    order = [row for rows in runs for row in rows]
    position = np.empty(len(flat), np.int32)
    position[order] = np.arange(len(flat), dtype=np.int32)
    chunks = [pa.array([b"before", *chunk], source)[1:] for chunk in values]
    found = gathered(list(chunks), kind, position)
    assert (found.type, found.to_pylist()) == (kind, [flat[row] for row in order])
    found.validate(full=True)
    assert gathered(chunks, kind).to_pylist() == flat
    assert chunks == []


def test_chunks_that_are_used_up_come_in_order_and_leave_the_list() -> None:
    chunks = [pa.array([b"a"]), pa.array([b"b"]), pa.array([b"c"])]
    left = [(chunk[0].as_py(), len(chunks)) for chunk in used_up(chunks)]
    assert left == [(b"a", 2), (b"b", 1), (b"c", 0)]


def test_more_than_a_binary_column_holds_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_BINARY_BYTES", 3)
    values = pa.array([b"ab", b"cd"], pa.large_binary())
    assert gathered([values], pa.large_binary()).equals(values)
    with pytest.raises(OverflowError, match="4 bytes in a column of at most 3"):
        gathered([values], pa.binary())


DIGESTS = st.binary(min_size=16, max_size=16).map(lambda raw: raw.hex().encode())
OTHERS = st.one_of(st.binary(max_size=40), DIGESTS.map(bytes.upper), DIGESTS.map(lambda text: text + b"-2"))


@given(st.lists(st.lists(st.one_of(DIGESTS, OTHERS), max_size=6), max_size=4), KINDS)
def test_digests_are_held_as_half_their_digits_and_come_back_as_they_were(
    values: list[list[bytes]], source: pa.DataType
) -> None:
    chunks = [columns.packed(pa.array([b"before", *chunk, b"after"], source)[1:-1]) for chunk in values]
    for chunk, given_values in zip(chunks, values, strict=True):
        is_digests = all(
            len(value) == 32 and value == value.lower() and value.strip(b"0123456789abcdef") == b""
            for value in given_values
        )
        assert (chunk.type == columns.PACKED) == (is_digests and len(given_values) > 0)
        assert columns.unpacked(chunk).to_pylist() == given_values
        assert columns.unpacked(chunk[1:]).to_pylist() == given_values[1:]
    assert gathered(chunks, pa.binary()).to_pylist() == [value for chunk in values for value in chunk]


def test_a_digest_is_packed() -> None:
    text = b"00112233445566778899aabbccddeeff"
    found = columns.packed(pa.array([text], pa.binary()))
    assert (found.type, found[0].as_py().hex()) == (columns.PACKED, text.decode())
