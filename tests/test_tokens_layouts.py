"""Bytes of `.bin/.idx` and of the layouts beside it: golden vectors, limits, what a reader with struct alone sees."""

from __future__ import annotations

import csv
import gzip
import io
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.errors import CorruptShard, FormatError, SampleTooLarge, UnknownFormat, UsageProblem
from shardtool.formats import bin_dialects, bin_index
from shardtool.formats.bin_index import (
    DTYPES,
    check_ids,
    decode_header,
    dtype_for,
    encode_idx,
    idx_bytes,
    integer_header,
    pointers_of,
    read_idx,
)

if TYPE_CHECKING:
    from pathlib import Path

GOLDEN = bytes.fromhex(
    "4d4d49444944580000" "0100000000000000" "08" "0300000000000000" "0400000000000000"
    "040000000200000005000000" "00000000000000000800000000000000" "0c00000000000000"
    "0000000000000000010000000000000002000000000000000300000000000000"
)  # fmt: skip
lengths_strategy = st.lists(st.integers(0, 70_000), max_size=40)


def encoded(lengths: list[int], dtype: str = "uint16", documents: list[int] | None = None) -> bytes:
    entries = None if documents is None else np.array(documents)
    return b"".join(encode_idx(np.array(lengths, np.int64), dtype, entries))


def plain_read(data: bytes) -> dict[str, Any]:
    """The layout read by struct, a number at a time."""
    magic, version, code, count, entries = struct.unpack_from("<9sQBQQ", data)
    at = 34
    lengths = struct.unpack_from(f"<{count}i", data, at)
    pointers = struct.unpack_from(f"<{count}q", data, at + 4 * count)
    documents = struct.unpack_from(f"<{entries}q", data, at + 12 * count)
    assert at + 12 * count + 8 * entries == len(data)
    return {
        "magic": magic, "version": version, "code": code,
        "lengths": lengths, "pointers": pointers, "documents": documents,
    }  # fmt: skip


def test_three_documents_give_the_golden_102_bytes() -> None:
    assert encoded([4, 2, 5]) == GOLDEN
    assert len(GOLDEN) == idx_bytes(3, 3) == 102


def test_four_byte_ids_change_the_code_and_the_pointers_alone() -> None:
    data = plain_read(encoded([4, 2, 5], "int32"))
    assert (data["code"], data["pointers"]) == (4, (0, 16, 24))


def test_an_empty_index_has_42_bytes() -> None:
    assert len(encoded([])) == 42


@given(lengths_strategy, st.sampled_from(sorted(DTYPES)))
def test_a_reader_with_struct_sees_lengths_their_running_sum_and_documents(lengths: list[int], dtype: str) -> None:
    data = plain_read(encoded(lengths, dtype))
    itemsize = np.dtype(DTYPES[dtype]).itemsize
    assert data["magic"] == b"MMIDIDX\0\0"
    assert data["version"] == 1
    assert list(data["lengths"]) == lengths
    assert list(data["pointers"]) == [itemsize * sum(lengths[:n]) for n in range(len(lengths))]
    assert list(data["documents"]) == list(range(len(lengths) + 1))


def test_documents_of_several_sequences_keep_their_entries(tmp_path: Path) -> None:
    path = tmp_path / "x.idx"
    path.write_bytes(encoded([2, 1], documents=[0, 1, 1, 2]))
    assert path.stat().st_size == 90
    assert read_idx(str(path)).documents.tolist() == [0, 1, 1, 2]


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6))
def test_pointers_do_not_wrap_where_the_lengths_are_int32(lengths: list[int]) -> None:
    found = pointers_of(np.array(lengths, np.int32), 4)
    assert found.tolist() == [4 * sum(lengths[:n]) for n in range(len(lengths))]


def test_an_index_written_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, entries = [5, 0, 7, 1, 9, 2, 2], [0, 3, 3, 7]
    whole = [encoded(lengths), encoded(lengths, documents=entries)]
    for chunk in (1, 2, 3, 7):
        monkeypatch.setattr(bin_index, "_CHUNK", chunk)
        assert [encoded(lengths), encoded(lengths, documents=entries)] == whole


def test_a_sequence_beyond_31_bits_is_refused() -> None:
    with pytest.raises(SampleTooLarge, match="2,147,483,648 tokens"):
        encoded([2**31])


@pytest.mark.parametrize(
    ("largest", "rule", "wanted"),
    [
        (65_499, "auto", "uint16"), (65_500, "auto", "uint16"), (65_535, "auto", "uint16"), (65_536, "auto", "int32"),
        (65_498, "megatron", "uint16"), (65_499, "megatron", "int32"), (65_535, "megatron", "int32"),
        (255, "uint8", "uint8"), (3, "int32", "int32"),
    ],
)  # fmt: skip
def test_the_type_follows_the_largest_id(largest: int, rule: str, wanted: str) -> None:
    assert dtype_for(largest, rule) == wanted


@pytest.mark.parametrize(
    ("low", "high", "dtype"), [(0, 65_536, "uint16"), (-1, 5, "int32"), (0, 256, "uint8"), (0, 2**31, "int32")]
)
def test_an_id_that_would_wrap_is_refused_by_name(low: int, high: int, dtype: str) -> None:
    with pytest.raises(UsageProblem, match=f"{low if low < 0 else high:,} does not fit {dtype}"):
        check_ids(low, high, dtype)


def test_a_vocabulary_that_does_not_fit_is_refused_even_where_the_ids_would() -> None:
    assert dtype_for(10, "auto", vocab_size=65_537) == "int32"
    with pytest.raises(UsageProblem, match="does not fit uint16"):
        dtype_for(65_536, "uint16")


def test_fast_llm_versions_without_flags_are_read(tmp_path: Path) -> None:
    for version, flags in ((2, 1), (3, 2)):
        path = tmp_path / f"{version}.idx"
        path.write_bytes(GOLDEN[:9] + version.to_bytes(8, "little") + bytes(flags) + GOLDEN[17:])
        assert read_idx(str(path)).lengths.tolist() == [4, 2, 5]


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"TNTIDX\0\0" + bytes(40), UnknownFormat, "TNTIDX"),
        (GOLDEN[:9] + b"\2" + bytes(7) + b"\1" + bytes(20), UnknownFormat, "loss masks"),
        (GOLDEN[:9] + b"\x07" + bytes(30), UnknownFormat, "version 7"),
        (b"not an index at all, but long enough", UnknownFormat, "no .idx"),
        (GOLDEN[:4], CorruptShard, "cut short"),
        (GOLDEN[:20], CorruptShard, "cut short in its header"),
        (GOLDEN[:17] + b"\x09" + GOLDEN[18:40], CorruptShard, "dtype code 9"),
    ],
)
def test_what_is_no_plain_index_is_named(data: bytes, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        decode_header(data, "x.idx")


@pytest.mark.parametrize("code", [6, 7])
def test_floats_are_refused_with_the_ambiguity_of_their_codes(tmp_path: Path, code: int) -> None:
    path = tmp_path / "x.idx"
    path.write_bytes(GOLDEN[:17] + bytes([code]) + GOLDEN[18:])
    with pytest.raises(UnknownFormat) as caught:
        integer_header(str(path))
    assert "gpt-neox" in caught.value.hint


@given(st.integers(0, 101))
def test_an_index_cut_anywhere_is_refused_before_memory_is_taken(cut: int) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".idx") as file:
        file.write(GOLDEN[:cut])
        file.flush()
        with pytest.raises((CorruptShard, UnknownFormat)):
            read_idx(file.name)


def test_ds_side_files() -> None:
    assert bin_dialects.ds_index(np.array([4, 2, 5])) == struct.pack("<3Q", 4, 6, 11)
    assert bin_dialects.ds_metadata("tok", 2, 4637) == b"tok|2\n4637\n4.64 kT"
    with pytest.raises(UsageProblem):
        bin_dialects.ds_metadata("a|b", 2, 1)


@pytest.mark.parametrize(
    ("count", "wanted"),
    [(0, "0.00 T"), (7, "7.00 T"), (42, "42.0 T"), (999, "999 T"), (1000, "1.00 kT"), (123_456_789, "123 MT"),
     (5_000_000_000, "5.00 GT"), (12_345_678_901_234, "12.3 TT")],
)  # fmt: skip
def test_counts_for_people_have_three_figures(count: int, wanted: str) -> None:
    assert bin_dialects.metric(count) == wanted


def test_olmo_rows_are_csv_whatever_the_names_hold() -> None:
    data = bin_dialects.olmo_csv(np.array([4, 2]), ["a,b", 'q"'], ["s\n", "t"], [1, 2])
    assert data == bin_dialects.olmo_csv(np.array([4, 2]), ["a,b", 'q"'], ["s\n", "t"], [1, 2])
    text = gzip.decompress(data).decode()
    assert list(csv.reader(io.StringIO(text, newline=""))) == [
        ["0", "4", "a,b", "s\n", "1"],
        ["4", "6", 'q"', "t", "2"],
    ]
    assert text.endswith("\r\n")


def test_llmc_header_holds_what_its_loader_checks() -> None:
    header = bin_dialects.llmc_header(7)
    assert len(header) == 1024
    assert struct.unpack("<256i", header)[:4] == (20240520, 1, 7, 0)
    assert bin_dialects.llmc_tokens(header, 1024 + 14) == 7
    with pytest.raises(FormatError, match="has 1,039"):
        bin_dialects.llmc_tokens(header, 1039)
    with pytest.raises(FormatError, match="magic"):
        bin_dialects.llmc_tokens(bytes(1024), 1024)
    with pytest.raises(UsageProblem, match="loader reads at most"):
        bin_dialects.llmc_header(2**30)


def test_npy_header_is_read_by_numpy() -> None:
    ids = np.arange(9, dtype="<u2")
    found = np.load(io.BytesIO(bin_dialects.npy_header(9, "<u2") + ids.tobytes()), allow_pickle=False)
    assert found.tolist() == ids.tolist()
