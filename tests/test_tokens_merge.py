"""Merging, cutting, checking and mending pairs."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers import run_cli
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import read_pair, write_pair
from test_schemas import check

from shardtool.errors import CorruptShard, DestinationExists, PlanError, SourceNotFound, UsageProblem
from shardtool.formats.bin_pairs import check_pair
from shardtool.tokens.merge import cut_pairs, merge_pairs, open_pairs, read_sequence

DOCS = [[11, 12, 13, 2], [21, 2], [31, 32, 33, 34, 2]]
ids = st.sampled_from([0, 1, 2, 255, 65_535])
documents = st.lists(st.lists(ids, max_size=9), max_size=8)


def both(prefix: Path) -> tuple[bytes, bytes]:
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


@settings(deadline=None, max_examples=60)
@given(st.lists(documents, min_size=1, max_size=4))
def test_merged_parts_equal_what_is_written_at_once(parts: list[list[list[int]]]) -> None:
    everything = [doc for part in parts for doc in part]
    if not any(everything):
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        pairs = [write_pair(root / f"p{number}", part) for number, part in enumerate(parts)]
        merged = merge_pairs(open_pairs(list(map(str, pairs))), str(root / "m"), durable=False)
        assert both(root / "m") == both(write_pair(root / "at_once", everything))
        assert merged.num_documents == len(everything)
        assert merged.num_bytes == sum(map(len, both(root / "m")))


@settings(deadline=None, max_examples=40)
@given(documents, st.integers(60, 160))
def test_cut_and_merged_again_is_the_same(docs: list[list[int]], size: int) -> None:
    if not all(docs) or not docs:
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        whole = write_pair(root / "whole", docs)
        cut = cut_pairs(open_pairs([str(whole)]), str(root / "cut"), shard_bytes=size, durable=False)
        for pair in cut:
            assert pair.num_bytes <= size or pair.num_documents == 1
        merge_pairs(open_pairs([pair.prefix for pair in cut]), str(root / "again"), durable=False)
        assert both(root / "again") == both(whole)


def test_cutting_by_tokens_keeps_documents_whole(tmp_path: Path) -> None:
    whole = write_pair(tmp_path / "w", DOCS)
    cut = cut_pairs(open_pairs([str(whole)]), str(tmp_path / "c"), shard_tokens=6)
    assert [read_pair(Path(pair.prefix)) for pair in cut] == [DOCS[:2], DOCS[2:]]
    assert [Path(pair.prefix).name for pair in cut] == ["c-00000-of-00002", "c-00001-of-00002"]


def test_documents_of_several_sequences_survive_a_merge(tmp_path: Path) -> None:
    first = write_pair(tmp_path / "a", [[1, 2], [3], [4]])
    data = bytearray(Path(f"{first}.idx").read_bytes())
    entries = struct.pack("<QQQ", 0, 2, 3)  # two documents of two and one sequences
    Path(f"{first}.idx").write_bytes(data[:26] + struct.pack("<Q", 3) + data[34 : 34 + 36] + entries)
    merged = merge_pairs(open_pairs([str(first), str(first)]), str(tmp_path / "m"))
    assert (merged.num_documents, merged.num_sequences) == (4, 6)
    tail = Path(f"{merged.prefix}.idx").read_bytes()[34 + 12 * 6 :]
    assert struct.unpack("<5Q", tail) == (0, 2, 3, 5, 6)


def test_different_types_are_not_merged(tmp_path: Path) -> None:
    one, two = write_pair(tmp_path / "a", DOCS), write_pair(tmp_path / "b", DOCS, "<i4")
    with pytest.raises(UsageProblem, match="of different types"):
        open_pairs([str(one), str(two)])


def test_nothing_is_overwritten_and_no_dot_enters_a_prefix(tmp_path: Path) -> None:
    one = write_pair(tmp_path / "a", DOCS)
    with pytest.raises(DestinationExists):
        merge_pairs(open_pairs([str(one)]), str(one))
    with pytest.raises(UsageProblem, match="dot"):
        merge_pairs(open_pairs([str(one)]), str(tmp_path / "a.b"))
    assert read_pair(one) == DOCS


def test_an_empty_bin_is_never_written(tmp_path: Path) -> None:
    empty = write_pair(tmp_path / "a", [[]])
    with pytest.raises(PlanError, match="no token"):
        merge_pairs(open_pairs([str(empty)]), str(tmp_path / "m"))
    assert not list(tmp_path.glob("m*"))


def test_half_a_pair_is_named(tmp_path: Path) -> None:
    one = write_pair(tmp_path / "a", DOCS)
    Path(f"{one}.idx").unlink()
    with pytest.raises(SourceNotFound, match=r"a\.idx"):
        open_pairs([str(one)])


def damage(prefix: Path, kind: str) -> None:
    """Do to a pair what happens to pairs."""
    bin_path, idx_path = Path(f"{prefix}.bin"), Path(f"{prefix}.idx")
    idx = bytearray(idx_path.read_bytes())
    count = struct.unpack_from("<Q", idx, 18)[0]
    if kind == "truncated":
        bin_path.write_bytes(bin_path.read_bytes()[:-3])
    elif kind == "oversized":
        bin_path.write_bytes(bin_path.read_bytes() + b"\0\0")
    elif kind == "dtype":
        idx[17] = 4
    elif kind == "pointers":
        struct.pack_into("<q", idx, 34 + 4 * count + 8, 6)
    elif kind == "documents":
        idx = idx[: 34 + 12 * count] + struct.pack("<QQ", 0, 1)
        struct.pack_into("<Q", idx, 26, 2)
    elif kind == "truncated_index":
        idx = idx[: 34 + 4 * count + 5]
    elif kind == "trailing_bytes":
        idx += b"12345"
    elif kind == "negative_length":
        struct.pack_into("<i", idx, 38, -2)
    elif kind == "header":
        idx[0] = 0
    idx_path.write_bytes(idx)


KINDS = ("truncated", "oversized", "dtype", "pointers", "documents", "truncated_index", "trailing_bytes")


@pytest.mark.parametrize("kind", [*KINDS, "negative_length", "header"])
def test_damage_is_named(tmp_path: Path, kind: str) -> None:
    pair = write_pair(tmp_path / "a", DOCS)
    assert check_pair(str(pair)).faults == []
    damage(pair, kind)
    report = check_pair(str(pair))
    assert kind in report.kinds
    with pytest.raises(CorruptShard, match=kind):
        open_pairs([str(pair)])


@pytest.mark.parametrize(
    "kind", ["oversized", "dtype", "pointers", "documents", "truncated_index", "trailing_bytes", "negative_length"]
)
def test_damage_whose_information_is_elsewhere_is_mended(tmp_path: Path, kind: str) -> None:
    pair = write_pair(tmp_path / "a", DOCS)
    before = both(pair)
    damage(pair, kind)
    damaged = both(pair)
    pairs = open_pairs([str(pair)], repair=True)
    assert kind in pairs[0].mended
    merge_pairs(pairs, str(tmp_path / "mended"))
    assert both(tmp_path / "mended") == before
    assert both(pair) == damaged, "the damaged pair itself is left as it was"


@pytest.mark.parametrize("kind", ["truncated", "header"])
def test_damage_that_lost_information_is_refused(tmp_path: Path, kind: str) -> None:
    pair = write_pair(tmp_path / "a", DOCS)
    damage(pair, kind)
    with pytest.raises(CorruptShard, match="cannot be mended"):
        open_pairs([str(pair)], repair=True)


def test_a_length_beyond_32_bits_is_not_made_up_from_pointers(tmp_path: Path) -> None:
    prefix = tmp_path / "big"
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 1, 2)
    Path(f"{prefix}.idx").write_bytes(head + struct.pack("<iqqq", -1, 0, 0, 1))
    with open(f"{prefix}.bin", "wb") as file:
        file.truncate(5 << 30)
    with pytest.raises(CorruptShard, match="neither lengths nor pointers"):
        open_pairs([str(prefix)], repair=True)


def test_pointers_that_wrapped_at_32_bits_are_told_from_others(tmp_path: Path) -> None:
    """A sparse .bin beyond 4 GiB, as a sum in int32 once made many of them."""
    lengths = np.full(5, 1 << 29, np.int32)
    prefix = tmp_path / "big"
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 5, 6)
    pointers = (np.arange(5, dtype=np.int64) * (2 << 29)).astype(np.int32).astype("<i8")
    assert pointers.min() < 0
    Path(f"{prefix}.idx").write_bytes(head + lengths.tobytes() + pointers.tobytes() + np.arange(6).tobytes())
    with open(f"{prefix}.bin", "wb") as file:
        file.truncate(5 * (2 << 29))
    assert check_pair(str(prefix)).kinds == {"pointer_overflow"}
    mended = open_pairs([str(prefix)], repair=True)[0]
    assert mended.num_tokens == 5 << 29


def test_a_deep_check_reads_every_id(tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "a", DOCS)
    assert check_pair(str(pair), deep=True, vocab_size=35).faults == []
    report = check_pair(str(pair), deep=True, vocab_size=34)
    assert [(fault.kind, fault.offset) for fault in report.faults] == [("ids", 18)]
    assert (report.smallest_id, report.largest_id) == (2, 34)
    wide = write_pair(tmp_path / "b", [[1, -1]], "<i4")
    assert check_pair(str(wide), deep=True).kinds == {"ids"}


def test_one_sequence_is_read_by_its_pointer(tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "a", DOCS)
    assert [read_sequence(str(pair), number).tolist() for number in range(3)] == DOCS


def test_the_command_merges_cuts_and_mends(tmp_path: Path) -> None:
    one, two = write_pair(tmp_path / "a", DOCS), write_pair(tmp_path / "b", DOCS[:1])
    merged = run_cli("merge", one, f"{two}.bin", "-o", tmp_path / "m", "--json")
    check("merge", merged.json)
    assert (merged.json["documents"], merged.json["tokens"], merged.json["sources"]) == (4, 15, 2)
    assert read_pair(tmp_path / "m") == [*DOCS, DOCS[0]]
    cut = run_cli("merge", tmp_path / "m", "-o", tmp_path / "c", "--shard-tokens", "6", "--json").json
    assert [pair["tokens"] for pair in cut["pairs"]] == [6, 5, 4]
    damage(one, "documents")
    refused = run_cli("merge", one, "-o", tmp_path / "n", "--json")
    assert (refused.code, refused.error["code"]) == (4, "CorruptShard")
    mended = run_cli("merge", "--repair", one, "-o", tmp_path / "n")
    assert mended.code == 0
    assert "documents" in mended.err
    assert read_pair(tmp_path / "n") == DOCS
    assert run_cli("merge", one, "-o", tmp_path / "n").code != 0


def test_pairs_in_a_bucket_are_refused(tmp_path: Path) -> None:
    ran = run_cli("merge", "s3://bucket/a", "-o", tmp_path / "m")
    assert ran.code == 2
    assert "pairs are merged on a disk" in ran.err


def test_two_limits_are_one_too_many(tmp_path: Path) -> None:
    one = write_pair(tmp_path / "a", DOCS)
    ran = run_cli("merge", one, "-o", tmp_path / "m", "--shard-tokens", "6", "--shard-size", "1GB")
    assert ran.code == 2
