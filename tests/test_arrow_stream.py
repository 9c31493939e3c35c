"""Streams of record batches: found by their heads, and the files of state beside them."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from helpers import make_tree, pack, run_cli, shard_paths
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.formats.arrow_stream import StreamBatches

if TYPE_CHECKING:
    from pathlib import Path

STREAM: dict[str, Any] = {"format": "arrow-stream"}
SMALL = settings(max_examples=60, derandomize=True, deadline=None)


def stream_of(batch_rows: list[int], columns: int = 2) -> bytes:
    """A stream of batches with so many rows each."""
    schema = pa.schema([(f"column {number}", pa.string()) for number in range(columns)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for rows in batch_rows:
            arrays = [pa.array([f"{number} {row}" for row in range(rows)]) for number in range(columns)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


@SMALL
@given(st.lists(st.integers(0, 40), max_size=5), st.sampled_from([1, 2, 300]))
def test_batches_are_those_that_pyarrow_reads_in_any_order(rows: list[int], columns: int) -> None:
    data = stream_of(rows, columns)
    found = StreamBatches(pa.BufferReader(data))
    wanted = list(pa.ipc.open_stream(data))
    assert found.num_record_batches == len(wanted) == len(rows)
    for number in reversed(range(len(rows))):
        assert found.get_batch(number).equals(wanted[number])


def test_a_stream_that_is_cut_anywhere_is_refused() -> None:
    data = stream_of([3, 5])
    for end in range(len(data)):
        with pytest.raises(ValueError, match=r"end|head"):
            StreamBatches(pa.BufferReader(data[:end]))


def test_bytes_behind_the_end_are_refused() -> None:
    with pytest.raises(ValueError, match="end"):
        StreamBatches(pa.BufferReader(stream_of([3]) + b"more"))


@SMALL
@given(st.integers(0, 10_000), st.binary(min_size=4, max_size=4))
def test_damaged_heads_are_refused_or_read_and_nothing_else(place: int, value: bytes) -> None:
    data = bytearray(stream_of([3, 5]))
    place %= len(data) - 4
    data[place : place + 4] = value
    try:
        found = StreamBatches(pa.BufferReader(bytes(data)))
    except (ValueError, pa.ArrowException, OSError):
        return
    assert found.num_record_batches <= 2


def test_a_body_of_less_than_nothing_does_not_send_the_walk_back() -> None:
    data = bytearray(stream_of([3]))
    (length,) = struct.unpack_from("<i", data, 4)
    batch = 8 + length
    where = data.index(struct.pack("<q", len(data) - 8 - batch - 8 - struct.unpack_from("<i", data, batch + 4)[0]))
    data[where : where + 8] = struct.pack("<q", -batch)
    with pytest.raises(ValueError, match="below zero"):
        StreamBatches(pa.BufferReader(bytes(data)))


def test_shards_lie_by_split_with_the_files_of_state_beside_them(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "in", {f"{n:02d}.txt": f"text {n}" for n in range(20)})
    pack(tree, tmp_path / "out", **STREAM, samples_per_shard=6, split="train=0.7,validation=0.3")
    data = tmp_path / "out" / "data"
    assert [str(path.relative_to(data)) for path in shard_paths(tmp_path / "out")] == [
        "train/data-00000-of-00003.arrow",
        "train/data-00001-of-00003.arrow",
        "train/data-00002-of-00003.arrow",
        "validation/data-00000-of-00001.arrow",
    ]
    assert json.loads((data / "dataset_dict.json").read_bytes()) == {"splits": ["train", "validation"]}
    for split, shards in (("train", 3), ("validation", 1)):
        state = json.loads((data / split / "state.json").read_bytes())
        files = [entry["filename"] for entry in state["_data_files"]]
        assert files == [path.name for path in sorted((data / split).glob("*.arrow"))]
        assert (len(files), state["_split"]) == (shards, split)
        features = json.loads((data / split / "dataset_info.json").read_bytes())["features"]
        assert features["txt"] == {"_type": "Value", "dtype": "string"}
    (data / "train" / "state.json").unlink()
    assert run_cli("verify", tmp_path / "out").code == 4


def test_every_part_lies_where_the_index_says(tmp_path: Path) -> None:
    files = {
        f"{n:02d}.{part}": f"{part} {n}" * n for n in range(30) for part in ("txt", "jpg") if part == "txt" or n % 2
    }
    pack(make_tree(tmp_path / "in", files), tmp_path / "out", **STREAM, shards=2)
    shards = [path.read_bytes() for path in shard_paths(tmp_path / "out")]
    for name, content in files.items():
        key, part = name.split(".")
        found = run_cli("inspect", tmp_path / "out", key, "--json").json
        place = next(each for each in found["parts"] if each["name"] == part)
        data = shards[found["shard"]]
        assert data[place["offset"] : place["offset"] + place["bytes"]].decode() == content


def test_a_folder_that_has_files_of_state_is_a_source(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "in", {f"{n:02d}.txt": f"text {n}" for n in range(20)})
    pack(tree, tmp_path / "out", **STREAM, samples_per_shard=6, split="train=0.7,validation=0.3")
    (tmp_path / "out" / "data").rename(tmp_path / "saved")
    assert run_cli("convert", tmp_path / "saved", tmp_path / "tars", "-q").code == 0
    listed = run_cli("ls", tmp_path / "tars", "--samples", "--json").json["samples"]
    assert sorted(sample["key"] for sample in listed) == [f"{n:02d}" for n in range(20)]
    assert {sample["split"] for sample in listed} == {"train", "validation"}
