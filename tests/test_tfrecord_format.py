from __future__ import annotations

import os
import random
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from helpers import make_tree, pack, run_cli, shard_paths
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.errors import BadKey, UsageProblem
from shardtool.formats import crc32c
from shardtool.formats.records import GLUE_SAMPLES, SLAB_BYTES, RecordCheck, varints, write_records, write_simple
from shardtool.formats.tfrecord import records_of
from shardtool.planning.plan_file import load_plan, read_rows
from shardtool.samples import member_names
from shardtool.sources.reader import LocalReader

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.formats.records import Records
    from shardtool.model import ShardRows

SMALL = settings(max_examples=200, derandomize=True, deadline=None)
KNOWN = [  # RFC 3720, appendix B.4
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


class Sink:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        self.data += data


def first_shard(out: Path) -> tuple[ShardRows, LocalReader]:
    stored = load_plan(os.fspath(out))
    assert stored is not None
    rows = read_rows(os.fspath(out), 0)
    return rows, LocalReader(stored.roots, rows, member_names(rows))


# CRC-32C


@pytest.mark.parametrize(("data", "wanted"), KNOWN)
def test_both_ways_give_the_values_of_the_standard(data: bytes, wanted: int) -> None:
    assert crc32c.crc32c(data) == crc32c.extend_numpy(0, data) == wanted


@SMALL
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_numpy_goes_on_where_hardware_stopped(one: bytes, two: bytes) -> None:
    assert crc32c.google_crc32c is not None
    assert crc32c.extend_numpy(crc32c.crc32c(one), two) == crc32c.crc32c(one + two)


@SMALL
@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 2000)), min_size=1, max_size=30), st.integers(0, 99))
def test_many_buffers_at_once_are_each_of_them(places: list[tuple[int, int]], seed: int) -> None:
    data = np.frombuffer(random.Random(seed).randbytes(5000), np.uint8)
    starts, sizes = (np.array(column, np.int64) for column in zip(*places, strict=True))
    wanted = [crc32c.crc32c(data[start : start + size].tobytes()) for start, size in places]
    assert crc32c.crc32c_many_numpy(data, starts, sizes).tolist() == wanted
    assert crc32c.crc32c_many(data, starts, sizes).tolist() == wanted


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 300_000])
def test_long_buffers_are_folded_in_pieces(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert crc32c.extend_numpy(0, data) == crc32c.crc32c(data)
    array = np.frombuffer(data, np.uint8)
    assert crc32c.crc32c_many_numpy(array, np.array([0]), np.array([size])).tolist() == [crc32c.crc32c(data)]


@SMALL
@given(st.integers(1, 40), st.integers(1, 20), st.integers(0, 9))
def test_rows_of_one_width_are_each_of_them(width: int, count: int, seed: int) -> None:
    rows = np.frombuffer(random.Random(seed).randbytes(width * count), np.uint8).reshape(count, width)
    assert crc32c.crc32c_rows(rows).tolist() == [crc32c.crc32c(row.tobytes()) for row in rows]


def test_the_mask_is_that_of_tensorflow() -> None:
    assert crc32c.masked(0) == 0xA282EAD8
    assert crc32c.masked(0xFFFFFFFF) == 0xA282EAD7
    values = [0, 1, 0xE3069283, 0xFFFFFFFF]
    assert crc32c.masked(np.array(values, np.uint32)).tolist() == [crc32c.masked(value) for value in values]


# Layout


@SMALL
@given(st.lists(st.one_of(st.integers(0, 300), st.integers(0, (1 << 35) - 1)), min_size=1))
def test_varints_are_seven_bits_a_byte(values: list[int]) -> None:
    def plain(value: int) -> bytes:
        found = bytearray()
        while value >= 128:
            found.append(value & 127 | 128)
            value >>= 7
        return bytes([*found, value])

    sizes, joined = varints(np.array(values, np.int64))
    assert joined.tobytes() == b"".join(map(plain, values))
    assert sizes.tolist() == [len(plain(value)) for value in values]


def odd_sizes(root: Path) -> Path:
    """Samples of every size at which a length takes another byte, and around the size of a slab."""
    rng = random.Random(3)
    sizes = [0, 1, 100, 126, 127, 128, 129, 16_200, 16_383, 16_384, 16_385, 70_000]
    sizes += [SLAB_BYTES - 200, SLAB_BYTES - 70, SLAB_BYTES, SLAB_BYTES + 1, 2 * SLAB_BYTES + 5]
    files = {f"k{n:02d}.{part}": rng.randbytes(size) for n, size in enumerate(sizes) for part in ("a", "b.c")}
    return make_tree(root, files)


def written(rows: ShardRows, records: Records, reader: LocalReader) -> tuple[bytes, bytes]:
    slab, simple = Sink(), Sink()
    ours, oracle = write_records(rows, records, reader, slab), write_simple(rows, records, reader, simple)
    assert np.array_equal(ours, oracle)
    return bytes(slab.data), bytes(simple.data)


def test_the_slab_writes_what_the_simple_writer_writes(tmp_path: Path) -> None:
    pack(odd_sizes(tmp_path / "in"), tmp_path / "out", format="tfrecord", shards=1)
    rows, reader = first_shard(tmp_path / "out")
    slab, simple = written(rows, records_of(rows), reader)
    assert slab == simple == shard_paths(tmp_path / "out")[0].read_bytes()
    reader.close()


def test_slabs_of_few_samples_share_their_container_bytes_over_hundreds_of_samples(tmp_path: Path) -> None:
    rng = random.Random(5)
    files = {f"k{n:04d}.a": rng.randbytes(rng.choice((0, 7, 130, 9_000, 17_000))) for n in range(2 * GLUE_SAMPLES + 9)}
    files[f"k{GLUE_SAMPLES // 2:04d}.b"] = rng.randbytes(SLAB_BYTES + 1)  # is written by itself, between two slabs
    pack(make_tree(tmp_path / "in", files), tmp_path / "out", format="tfrecord", shards=1)
    rows, reader = first_shard(tmp_path / "out")
    slab, simple = written(rows, records_of(rows), reader)
    assert slab == simple == shard_paths(tmp_path / "out")[0].read_bytes()
    reader.close()


def test_records_follow_one_another_with_both_checksums(tmp_path: Path) -> None:
    pack(odd_sizes(tmp_path / "in"), tmp_path / "out", format="tfrecord", shards=1)
    data, at, count = shard_paths(tmp_path / "out")[0].read_bytes(), 0, 0
    while at < len(data):
        size, check = struct.unpack_from("<QI", data, at)
        assert check == crc32c.masked(crc32c.crc32c(data[at : at + 8]))
        body = data[at + 12 : at + 12 + size]
        assert struct.unpack_from("<I", data, at + 12 + size) == (crc32c.masked(crc32c.crc32c(body)),)
        at, count = at + 16 + size, count + 1
    assert (at, count) == (len(data), 17)


def test_every_wrong_byte_of_the_container_is_told_with_its_sample(tmp_path: Path) -> None:
    files = {f"k{n}.{part}": b"payload" * n for n in range(4) for part in ("jpg", "txt")}
    pack(make_tree(tmp_path / "in", files), tmp_path / "out", format="tfrecord", shards=1)
    rows, reader = first_shard(tmp_path / "out")
    reader.close()
    records = records_of(rows)
    whole = shard_paths(tmp_path / "out")[0].read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x41
        for step in (len(whole), 61):  # in one piece, and in pieces that cut records anywhere
            check = RecordCheck(rows, records)
            for base in range(0, len(whole), step):
                check.look(base, memoryview(bytes(damaged[base : base + step])))
            sample = int(np.searchsorted(records.start, place, side="right")) - 1
            assert check.bad_parts("") == [int(rows.part_start[sample])], (place, step)


# Refusals


@pytest.mark.parametrize("name", [b"a.__key__", b"a.\xff"])
def test_part_names_that_no_feature_can_have_are_refused(tmp_path: Path, name: bytes) -> None:
    make_tree(tmp_path / "in", {name: b"x"})
    with pytest.raises(BadKey, match="1 part names cannot be TFRecord features"):
        pack(tmp_path / "in", tmp_path / "out", format="tfrecord")


def test_keys_of_any_bytes_are_held(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {b"\xff\xfe.jpg": b"x"})
    pack(tmp_path / "in", tmp_path / "out", format="tfrecord")
    assert b"\xff\xfe" in shard_paths(tmp_path / "out")[0].read_bytes()


def test_compression_is_refused_with_another_way(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.jpg": b"x"})
    with pytest.raises(UsageProblem, match="TFRecord shards are not compressed") as caught:
        pack(tmp_path / "in", tmp_path / "out", format="tfrecord", compress="zstd")
    assert "--format tar --compress zstd" in caught.value.hint


def test_damage_is_reported_with_shard_and_key(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {f"k{n}.jpg": b"x" * 50 for n in range(9)})
    pack(tmp_path / "in", tmp_path / "out", format="tfrecord", shuffle="none")
    path = shard_paths(tmp_path / "out")[0]
    data = bytearray(path.read_bytes())
    data[data.index(b"k4") - 1] ^= 1  # the length of the key
    path.write_bytes(data)
    ran = run_cli("verify", tmp_path / "out", "--deep", "--json")
    assert ran.code == 4
    assert [(problem["kind"], problem["key"]) for problem in ran.json["problems"]] == [("structure", "k4")]
    assert "record around 'k4.jpg'" in ran.json["problems"][0]["message"]
