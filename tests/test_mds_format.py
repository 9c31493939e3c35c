"""MDS shards and litData chunks: the table of offsets, columns, missing parts, index.json, limits."""

from __future__ import annotations

import json
import os
import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers import make_tree, pack, run_cli, shard_paths
from test_tfrecord_format import first_shard, odd_sizes, written

from shardtool.errors import BadKey, PlanError, UsageProblem
from shardtool.formats import get_format
from shardtool.formats.litdata import LitDataFormat
from shardtool.formats.mds import MdsFormat, config_of
from shardtool.formats.offset_table import records_of
from shardtool.formats.records import RecordCheck
from shardtool.manifest import load_manifest
from shardtool.names import shard_path
from shardtool.planning.plan_file import load_plan

if TYPE_CHECKING:
    from pathlib import Path

both = pytest.mark.parametrize("name", ["mds", "litdata"])


def parsed(path: Path, num_columns: int, config: bytes) -> list[list[bytes]]:
    """Columns of each sample, by the layout as it is documented and nothing else."""
    data = path.read_bytes()
    (count,) = struct.unpack_from("<I", data)
    offsets = struct.unpack_from(f"<{count + 1}I", data, 4)
    head = 4 * (count + 2)
    assert data[head : head + len(config)] == config
    assert offsets[0] == head + len(config)
    assert offsets[-1] == len(data)
    rows = []
    for begin, end in pairwise(offsets):
        sizes = struct.unpack_from(f"<{num_columns}I", data, begin)
        at, row = begin + 4 * num_columns, []
        for size in sizes:
            row.append(data[at : at + size])
            at += size
        assert at == end
        rows.append(row)
    return rows


def settings_of(out: Path) -> Any:
    stored = load_plan(os.fspath(out))
    assert stored is not None
    return stored.settings


@both
def test_samples_are_sizes_and_columns_in_the_order_of_their_names(tmp_path: Path, name: str) -> None:
    files: dict[Any, bytes | str] = {"k1.jpg": b"J1", "k1.TXT": "grün", "k2.jpg": b"", "k2.TXT": "", "k2.cls": "7"}
    make_tree(tmp_path / "in", files)
    pack(tmp_path / "in", tmp_path / "out", format=name, shuffle="none", keep_case=True)
    config = config_of(settings_of(tmp_path / "out")) if name == "mds" else b""
    rows = parsed(shard_paths(tmp_path / "out")[0], 5, config)
    # TXT, __key__, __missing__, cls, jpg
    assert rows == [
        ["grün".encode(), b"k1", b'["cls"]', b"", b"J1"],
        [b"", b"k2", b"[]", b"7", b""],
    ]


@both
def test_the_slab_writes_what_the_simple_writer_writes(tmp_path: Path, name: str) -> None:
    pack(odd_sizes(tmp_path / "in"), tmp_path / "out", format=name, shards=1)
    rows, reader = first_shard(tmp_path / "out")
    settings = settings_of(tmp_path / "out")
    records = records_of(rows, settings, config_of(settings) if name == "mds" else b"")
    slab, simple = written(rows, records, reader)
    assert slab == simple == shard_paths(tmp_path / "out")[0].read_bytes()
    reader.close()


@both
def test_every_wrong_byte_of_the_container_is_told(tmp_path: Path, name: str) -> None:
    files = {f"k{n}.{part}": b"payload" for n in range(4) for part in ("a", "b") if n or part == "a"}
    pack(make_tree(tmp_path / "in", files), tmp_path / "out", format=name, shards=1, shuffle="none")
    rows, reader = first_shard(tmp_path / "out")
    reader.close()
    shard_format = get_format(name, settings_of(tmp_path / "out"))
    whole = shard_paths(tmp_path / "out")[0].read_bytes()
    assert isinstance(shard_format, MdsFormat | LitDataFormat)
    records = records_of(rows, shard_format.settings, config_of(shard_format.settings) if name == "mds" else b"")
    inside = np.zeros(len(whole), bool)
    for start, size in zip(records.part_offset.tolist(), rows.sizes.tolist(), strict=True):
        inside[start : start + size] = True
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x41
        for step in (len(whole), 61):
            check = RecordCheck(rows, records)
            for base in range(0, len(whole), step):
                check.look(base, memoryview(bytes(damaged[base : base + step])))
            sample = max(int(np.searchsorted(records.start, place, side="right")) - 1, 0)
            assert check.bad_parts("") == ([] if inside[place] else [int(rows.part_start[sample])]), (place, step)


def test_index_json_of_mds_names_every_shard_with_its_hash(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {f"k{n}.{part}": str(n) for n in range(20) for part in ("cls", "txt", "bin")})
    pack(tmp_path / "in", tmp_path / "out", format="mds", samples_per_shard=6, split="train=0.8,validation=0.2")
    manifest = load_manifest(os.fspath(tmp_path / "out"))
    document = json.loads((tmp_path / "out/data/train/index.json").read_bytes())
    shards = [shard for shard in manifest.shards if shard.split == "train"]
    assert document["version"] == 2
    assert [entry["samples"] for entry in document["shards"]] == [shard.num_samples for shard in shards]
    for number, (entry, shard) in enumerate(zip(document["shards"], shards, strict=True)):
        assert entry["raw_data"] == {
            "basename": f"shard.{number:05d}.mds",
            "bytes": shard.num_bytes,
            "hashes": {"xxh3_128": shard.files[0].xxh3_128},
        }
        assert (entry["column_names"], entry["column_encodings"]) == (
            ["__key__", "bin", "cls", "txt"],
            ["str", "bytes", "str_int", "str"],
        )
    assert [record.path for record in manifest.side_files] == [
        "data/train/index.json",
        "data/validation/index.json",
    ]


def test_index_json_of_compressed_mds_tells_both_sizes(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {f"k{n}.txt": "text " * 200 for n in range(20)})
    pack(tmp_path / "in", tmp_path / "out", format="mds", compress="zstd:5")
    (shard,) = load_manifest(os.fspath(tmp_path / "out")).shards
    (entry,) = json.loads((tmp_path / "out/data/train/index.json").read_bytes())["shards"]
    assert entry["compression"] == "zstd:5"
    assert entry["raw_data"]["basename"] + ".zstd" == entry["zip_data"]["basename"] == "shard.00000.mds.zstd"
    assert (entry["raw_data"]["bytes"], entry["zip_data"]["bytes"]) == (shard.raw_bytes, shard.num_bytes)
    assert entry["raw_data"]["hashes"] == {"xxh3_128": shard.raw_xxh3_128}
    assert shard.num_bytes < shard.raw_bytes / 5


def test_index_json_of_litdata_tells_the_leaves(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {f"k{n}.{part}": str(n) for n in range(20) for part in ("cls", "txt", "bin")})
    pack(tmp_path / "in", tmp_path / "out", format="litdata", samples_per_shard=9)
    document = json.loads((tmp_path / "out/data/train/index.json").read_bytes())
    assert [chunk["filename"] for chunk in document["chunks"]] == [f"chunk-0-{n}.bin" for n in range(3)]
    assert [chunk["chunk_size"] for chunk in document["chunks"]] == [9, 9, 2]
    assert document["config"]["data_format"] == ["str", "bytes", "str", "str"]
    spec = json.loads(document["config"]["data_spec"])
    assert json.loads(spec[1]["context"]) == ["__key__", "bin", "cls", "txt"]


@both
def test_an_index_json_that_is_gone_is_damage(tmp_path: Path, name: str) -> None:
    make_tree(tmp_path / "in", {"a.bin": b"x"})
    pack(tmp_path / "in", tmp_path / "out", format=name)
    (tmp_path / "out/data/train/index.json").unlink()
    ran = run_cli("verify", tmp_path / "out", "--json")
    assert (ran.code, [problem["kind"] for problem in ran.json["problems"]]) == (4, ["side_file"])


@both
def test_many_shards_lie_in_folders_of_a_thousand(name: str) -> None:
    assert shard_path("train", 12_345, 20_000, ".x", total=20_000, shard_format=name) in (
        "data/train/012/shard.12345.x",
        "data/train/012/chunk-0-12345.x",
    )


@both
def test_a_shard_beyond_four_gib_is_refused_when_planned(tmp_path: Path, name: str) -> None:
    tree = make_tree(tmp_path / "in", {f"k{n}.bin": b"" for n in range(3)})
    for path in tree.iterdir():
        os.truncate(path, 2 << 30)  # no blocks: nothing is read to plan
    with pytest.raises(PlanError, match="32-bit offsets reach") as caught:
        pack(tree, tmp_path / "out", format=name, shards=1)
    assert "--shard-size" in caught.value.hint
    assert not (tmp_path / "out").exists()


@both
@pytest.mark.parametrize(
    ("name_of_file", "part"), [("b.txt", b"\xff\xfe"), ("b.txt", b"\x80"), ("b.txt", b"x" * (2 << 20) + b"\xc3")]
)
def test_a_text_that_is_none_is_refused_with_the_cure(
    tmp_path: Path, name: str, name_of_file: str, part: bytes
) -> None:
    make_tree(tmp_path / "in", {"a.txt": "grün", name_of_file: part})
    with pytest.raises(UsageProblem, match=r"b\.txt is not UTF-8 text") as caught:
        pack(tmp_path / "in", tmp_path / "out", format=name)
    assert caught.value.hint.startswith("--schema txt=binary")
    pack(tmp_path / "in", tmp_path / "out2", format=name, schema=("txt=binary",))


@both
@pytest.mark.parametrize("text", ["", "x" * 64, "x" * 65, "ü", "\x7f\0"])
def test_texts_of_any_length_and_script_are_held(tmp_path: Path, name: str, text: str) -> None:
    make_tree(tmp_path / "in", {"a.txt": "one", "b.txt": text, "c.txt": "three"})
    pack(tmp_path / "in", tmp_path / "out", format=name)
    assert text.encode() in shard_paths(tmp_path / "out")[0].read_bytes()


def test_a_number_that_is_none_is_refused_by_mds_and_a_text_to_litdata(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.cls": "1", "b.cls": "dog"})
    with pytest.raises(UsageProblem, match=r"b\.cls is not a number"):
        pack(tmp_path / "in", tmp_path / "out", format="mds")
    pack(tmp_path / "in", tmp_path / "lit", format="litdata")


@pytest.mark.parametrize("number", ["0", " 12\n", "+5", "-7", "1_000", "9" * 18, "9" * 19])
def test_whatever_python_reads_as_a_number_is_one(tmp_path: Path, number: str) -> None:
    make_tree(tmp_path / "in", {"a.cls": "1", "b.cls": number, "c.cls": "23"})
    pack(tmp_path / "in", tmp_path / "out", format="mds")
    assert number.encode() in shard_paths(tmp_path / "out")[0].read_bytes()


@pytest.mark.parametrize("number", ["", "1a", "/", ":", "1.5", "0x10"])
@pytest.mark.parametrize("beside", [10, 3 << 20])
def test_what_python_does_not_read_as_a_number_is_none(tmp_path: Path, number: str, beside: int) -> None:
    make_tree(tmp_path / "in", {"a.cls": "1", "b.cls": number, "b.jpg": bytes(beside), "c.cls": "23"})
    with pytest.raises(UsageProblem, match=r"b\.cls is not a number"):
        pack(tmp_path / "in", tmp_path / "out", format="mds")


@both
def test_every_sample_tells_which_of_many_columns_it_lacks(tmp_path: Path, name: str) -> None:
    parts = [f"p{number:02d}" for number in range(19)]
    has = {f"k{sample:02d}": [part for n, part in enumerate(parts) if sample * 31 >> n % 7 & 1] for sample in range(40)}
    make_tree(tmp_path / "in", {f"{key}.{part}": part for key, some in has.items() for part in [*some, "all"]})
    pack(tmp_path / "in", tmp_path / "out", format=name, shuffle="none")
    config = config_of(settings_of(tmp_path / "out")) if name == "mds" else b""
    for row in parsed(shard_paths(tmp_path / "out")[0], 3 + len(parts), config):
        key, missing = row[0].decode(), json.loads(row[1])
        assert missing == [part for part in parts if part not in has[key]]


def test_numbers_that_some_samples_lack_are_texts(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.cls": "1", "a.bin": "", "b.bin": ""})
    pack(tmp_path / "in", tmp_path / "out", format="mds")
    (entry,) = json.loads((tmp_path / "out/data/train/index.json").read_bytes())["shards"]
    assert dict(zip(entry["column_names"], entry["column_encodings"], strict=True))["cls"] == "str"


@both
def test_keys_that_are_no_text_are_refused_with_the_cure(tmp_path: Path, name: str) -> None:
    make_tree(tmp_path / "in", {b"\xff.bin": b"x"})
    with pytest.raises(BadKey, match="1 keys are not UTF-8") as caught:
        pack(tmp_path / "in", tmp_path / "out", format=name)
    assert "--escape-names" in caught.value.hint
    pack(tmp_path / "in", tmp_path / "out", format=name, escape_names=True)


@both
@pytest.mark.parametrize("compress", ["none", "zstd"])
def test_empty_parts_at_the_end_and_side_by_side_are_verified(tmp_path: Path, name: str, compress: str) -> None:
    if (name, compress) == ("litdata", "zstd"):
        pytest.skip("litData chunks are not compressed")
    files = {f"{n}.{part}": b"" for n in range(3) for part in ("a", "b", "c")}
    make_tree(tmp_path / "in", {**files, "1.b": b"x"})
    pack(tmp_path / "in", tmp_path / "out", format=name, shuffle="none", compress=compress)
    ran = run_cli("verify", tmp_path / "out", "--deep")
    assert (ran.code, ran.err) == (0, "")
    (tmp_path / "out/index/00000.arrow").unlink()
    assert run_cli("index", tmp_path / "out").code == 0
    assert run_cli("verify", tmp_path / "out", "--deep").code == 0


def test_litdata_is_not_compressed(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.bin": b"x"})
    with pytest.raises(UsageProblem, match="litData chunks are not compressed"):
        pack(tmp_path / "in", tmp_path / "out", format="litdata", compress="zstd")
