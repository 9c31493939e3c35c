"""Parquet shards as pyarrow sees them: columns, kinds, row groups, bounds of sizes, and what is refused."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import make_tree, pack, run_cli, shard_paths
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.errors import BadKey, PlanError, UsageProblem
from shardtool.formats import Column, Settings, column_kinds
from shardtool.formats.columnar import Layout, group_bounds, row_bytes
from shardtool.formats.parquet import ParquetFormat
from shardtool.index_file import open_index
from shardtool.manifest import load_manifest
from shardtool.planning.plan_file import load_plan, read_rows
from shardtool.reading.reading import Dataset

SMALL = settings(max_examples=60, derandomize=True, deadline=None)
PARQUET: dict[str, Any] = {"format": "parquet"}


def table_of(out: Path, shard: int = 0) -> Any:
    return pq.read_table(shard_paths(out)[shard])


def feature_types(schema: Any) -> dict[str, str]:
    features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    return {name: feature.get("dtype") or feature["_type"] for name, feature in features.items()}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of column, some parts in every third sample only."""
    folder = tmp_path_factory.mktemp("parquet")
    files: dict[Any, bytes | str] = {}
    for number in range(30):
        stem = f"d/{number:02d}"
        files |= {f"{stem}.jpg": b"jpeg%d" % number, f"{stem}.txt": f"Text № {number}", f"{stem}.cls": str(number - 9)}
        files |= {f"{stem}.npy": bytes(number), f"{stem}.json": json.dumps({"n": number})}
        if number % 3 == 0:
            files |= {f"{stem}.wav": b"riff", f"{stem}.mp4": b"film", f"{stem}.seg.png": b"png"}
    pack(make_tree(folder / "src", files), folder / "out", **PARQUET, shuffle="none")
    return folder / "out"


def test_a_column_is_of_the_kind_of_its_part(packed: Path) -> None:
    table = table_of(packed)
    medium = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    assert {field.name: field.type for field in table.schema} == {
        "key": pa.string(),
        "cls": pa.int64(),
        "jpg": medium,
        "json": pa.string(),
        "mp4": medium,
        "npy": pa.binary(),
        "seg.png": medium,
        "txt": pa.string(),
        "wav": medium,
    }
    assert table.column("key").to_pylist() == [f"d/{number:02d}" for number in range(30)]
    assert table.column("cls").to_pylist() == list(range(-9, 21))
    assert table.column("jpg").to_pylist()[7] == {"bytes": b"jpeg7", "path": None}
    assert table.column("txt").to_pylist()[3] == "Text № 3"


def test_a_part_that_a_sample_lacks_is_null(packed: Path) -> None:
    column = table_of(packed).column("wav").to_pylist()
    assert [value is not None for value in column] == [number % 3 == 0 for number in range(30)]


def test_the_schema_tells_hugging_face_what_to_decode(packed: Path) -> None:
    assert feature_types(pq.read_schema(shard_paths(packed)[0])) == {
        "key": "string",
        "cls": "int64",
        "jpg": "Image",
        "json": "string",
        "mp4": "Video",
        "npy": "binary",
        "seg.png": "Image",
        "txt": "string",
        "wav": "Audio",
    }


def test_row_groups_pages_and_statistics_are_as_documented(packed: Path) -> None:
    footer = pq.ParquetFile(shard_paths(packed)[0]).metadata
    group = footer.row_group(0)
    chunks = {group.column(number).path_in_schema: group.column(number) for number in range(footer.num_columns)}
    assert all(chunk.compression == "UNCOMPRESSED" and not chunk.has_dictionary_page for chunk in chunks.values())
    assert {path for path, chunk in chunks.items() if chunk.is_stats_set} == {"cls"}
    assert all(chunk.has_offset_index for chunk in chunks.values())
    assert footer.created_by == f"parquet-cpp-arrow version {pa.__version__}"


def test_only_columns_that_are_no_media_are_compressed(tmp_path: Path) -> None:
    files = {f"{number}.{part}": b"same " * 400 for number in range(20) for part in ("jpg", "txt", "npy")}
    pack(make_tree(tmp_path / "src", files), tmp_path / "out", **PARQUET, compress="auto", shards=1)
    footer = pq.ParquetFile(shard_paths(tmp_path / "out")[0]).metadata
    group = footer.row_group(0)
    codecs = {group.column(n).path_in_schema: group.column(n).compression for n in range(footer.num_columns)}
    wanted = dict.fromkeys(("key", "npy", "txt"), "ZSTD") | dict.fromkeys(("jpg.bytes", "jpg.path"), "UNCOMPRESSED")
    assert codecs == wanted
    manifest = load_manifest(os.fspath(tmp_path / "out"))
    shard = manifest.shards[0]
    assert manifest.compression == "zstd:3"
    assert shard.num_bytes < shard.raw_bytes
    assert 20 * 3 * 2000 < shard.raw_bytes <= load(tmp_path / "out").shards[0].num_bytes


def load(out: Path) -> Any:
    stored = load_plan(os.fspath(out))
    assert stored is not None
    return stored


def test_what_is_in_a_shard_has_one_digest_whatever_the_level(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", {f"{number}.txt": "text " * number for number in range(50)})
    found = set()
    for level in (1, 9):
        pack(tree, tmp_path / f"{level}", **PARQUET, compress=f"zstd:{level}", shards=1)
        found.add(load_manifest(os.fspath(tmp_path / f"{level}")).shards[0].raw_xxh3_128)
    assert len(found) == 1
    assert all(found)


def test_schema_overrides_what_names_tell(tmp_path: Path) -> None:
    files = {"a.cls": "7\n", "a.jpg": "x", "a.bin": "text", "a.pic": "y"}
    schema = ("cls=binary", "jpg=binary", "bin=string", "pic=image")
    pack(make_tree(tmp_path / "src", files), tmp_path / "out", **PARQUET, schema=schema)
    table = table_of(tmp_path / "out")
    assert [str(field.type).partition("<")[0] for field in table.schema] == [
        "string",
        "string",
        "binary",
        "binary",
        "struct",
    ]
    assert table.column("cls").to_pylist() == [b"7\n"]


def test_a_part_called_key_gets_its_column(tmp_path: Path) -> None:
    pack(make_tree(tmp_path / "src", {"a.key": "1", "a.__key__": "2"}), tmp_path / "out", **PARQUET)
    names = table_of(tmp_path / "out").schema.names
    assert len(set(names)) == 3
    assert {"key", "__key__"} < set(names)


# What does not fit


@pytest.mark.parametrize("value", ["7\n", "07", "+7", "seven", "", "1.0", "9223372036854775808", "-0"])
def test_a_number_that_is_none_is_refused_with_its_cure(tmp_path: Path, value: str) -> None:
    files = {f"{number}.cls": str(number) for number in range(5)} | {"bad.cls": value}
    make_tree(tmp_path / "src", files)
    ran = run_cli("pack", tmp_path / "src", tmp_path / "out", "--format", "parquet", "--json")
    assert ran.code == 2
    assert ran.error["message"].startswith(f"bad.cls is {value.encode()!r}")
    assert "--schema cls=binary" in ran.error["hint"]
    assert not list((tmp_path / "out").glob("data/*"))
    ran = run_cli(
        "pack", tmp_path / "src", tmp_path / "out", "--format", "parquet", "--schema", "cls=binary", "--overwrite"
    )
    assert ran.code == 0, ran.err


@pytest.mark.parametrize("value", ["0", "-1", "9223372036854775807", "-9223372036854775808"])
def test_every_int64_fits(tmp_path: Path, value: str) -> None:
    pack(make_tree(tmp_path / "src", {"a.cls": value}), tmp_path / "out", **PARQUET)
    with Dataset.open(os.fspath(tmp_path / "out")) as dataset:
        assert dataset.read_part(0, 0) == value.encode()


def test_text_that_is_not_utf8_is_refused_with_its_cure(tmp_path: Path) -> None:
    make_tree(tmp_path / "src", {"good.txt": "gut", "bad.txt": b"caf\xe9"})
    with pytest.raises(PlanError, match=r"bad.txt is b'caf\\xe9'.*string") as caught:
        pack(tmp_path / "src", tmp_path / "out", **PARQUET)
    assert "--schema txt=binary" in caught.value.hint


def test_a_number_that_is_too_long_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    make_tree(tmp_path / "src", {"a.cls": "1" * 21})
    with pytest.raises(PlanError, match=r"a\.cls: 21 bytes") as caught:
        pack(tmp_path / "src", tmp_path / "out", **PARQUET)
    assert "--schema cls=binary" in caught.value.hint


def test_a_cell_above_two_gib_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    make_tree(tmp_path / "src", {"a.bin": ""})
    os.truncate(tmp_path / "src" / "a.bin", 1 << 31)
    with pytest.raises(PlanError, match=r"a\.bin: 2,147,483,648 bytes"):
        pack(tmp_path / "src", tmp_path / "out", **PARQUET)


@pytest.mark.parametrize("name", [b"caf\xe9.txt", b"a.caf\xe9"])
def test_names_that_are_no_text_are_refused_with_their_cure(tmp_path: Path, name: bytes) -> None:
    make_tree(tmp_path / "src", {name: "x"})
    with pytest.raises(BadKey, match="not UTF-8") as caught:
        pack(tmp_path / "src", tmp_path / "out", **PARQUET)
    assert "--escape-names" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"format": "parquet", "schema": ("nope=int64",)}, "no sample has"),
        ({"format": "parquet", "schema": ("txt=float",)}, "PART=KIND"),
        ({"format": "tar", "schema": ("txt=string",)}, "--schema is for formats with columns"),
        ({"format": "parquet", "compress": "gzip"}, "--compress 'gzip'"),
        ({"format": "parquet", "compress": "zstd:99"}, "--compress 'zstd:99'"),
    ],
)
def test_a_wrong_option_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    make_tree(tmp_path / "src", {"a.txt": "x"})
    with pytest.raises(UsageProblem, match=said):
        pack(tmp_path / "src", tmp_path / "out", **options)


def test_kinds_follow_from_the_last_suffix() -> None:
    names = [b"cls", b"seg.png", b"JPG", b"x.json", b"npy", b"mp3", b"webm"]
    assert column_kinds(names, {}, has_media=True) == ["int64", "image", "image", "string", "binary", "audio", "video"]
    assert column_kinds(names, {}) == ["int64", "binary", "binary", "string", "binary", "binary", "binary"]


# Sizes


@SMALL
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=200), st.integers(1, 4000), st.integers(1, 50))
def test_groups_are_as_long_as_they_can_be(sizes: list[int], max_bytes: int, max_rows: int) -> None:
    bounds = group_bounds(np.array(sizes, np.int64), max_bytes, max_rows)
    assert (bounds[0], bounds[-1]) == (0, len(sizes))
    for low, high in pairwise(bounds):
        assert low < high
        assert high == low + 1 or (sum(sizes[low:high]) <= max_bytes and high - low <= max_rows)
        if high < len(sizes):
            assert sum(sizes[low : high + 1]) > max_bytes or high - low == max_rows
    assert len(bounds) - 1 <= 2 * sum(sizes) / max_bytes + len(sizes) / max_rows + 2


@SMALL
@given(
    st.lists(
        st.dictionaries(st.sampled_from(["a", "jpg", "txt", "cls", "seg.png"]), st.integers(0, 300), min_size=1),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from(["none", "zstd:1"]),
)
def test_no_shard_is_larger_than_its_bound(
    tmp_path_factory: pytest.TempPathFactory, samples: list[dict[str, int]], compress: str
) -> None:
    folder = tmp_path_factory.mktemp("bound")
    files = {
        f"{number}.{part}": str(size) if part == "cls" else "x" * size
        for number, parts in enumerate(samples)
        for part, size in parts.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardtool.formats.parquet.GROUP_BYTES", 2048)
        patch.setattr("shardtool.formats.parquet.GROUP_ROWS", 7)
        pack(make_tree(folder / "src", files), folder / "out", **PARQUET, compress=compress, shards=1)
    shard = load_manifest(os.fspath(folder / "out")).shards[0]
    assert (shard.raw_bytes or shard.num_bytes) <= load(folder / "out").shards[0].num_bytes
    rows = read_rows(os.fspath(folder / "out"), 0)
    stored = load(folder / "out")
    assert int(row_bytes(rows, Layout.of(stored.settings)).sum()) < stored.shards[0].num_bytes


def test_rows_are_found_in_their_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardtool.formats.parquet.GROUP_ROWS", 4)
    files = {f"{number:02d}.{part}": f"{part}{number}" for number in range(19) for part in ("a", "b")}
    pack(make_tree(tmp_path / "src", files), tmp_path / "out", **PARQUET, shuffle="none", shards=1)
    footer = pq.ParquetFile(shard_paths(tmp_path / "out")[0]).metadata
    assert [footer.row_group(n).num_rows for n in range(footer.num_row_groups)] == [4, 4, 4, 4, 3]
    index = open_index(os.fspath(tmp_path / "out/index/00000.arrow"))
    assert index.offset.tolist() == [number // 4 for number in range(19)]
    assert index.num_bytes.tolist() == [number % 4 for number in range(19)]
    assert index.part_offset.tolist() == [0, 1] * 19
    with Dataset.open(os.fspath(tmp_path / "out")) as dataset:
        assert dataset.read_parts(0, 5, 11) == [b"b2", b"a3", b"b3", b"a4", b"b4", b"a5"]


def test_a_reader_keeps_no_more_columns_than_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardtool.formats.parquet.GROUP_ROWS", 4)
    monkeypatch.setattr("shardtool.formats.cells.CACHE_BYTES", 100)
    files = {f"{number:02d}.a": str(number) * 20 for number in range(19)}
    pack(make_tree(tmp_path / "src", files), tmp_path / "out", **PARQUET, shuffle="none", shards=1)
    with Dataset.open(os.fspath(tmp_path / "out")) as dataset:
        for part in (0, 18, 3, 9, 0):
            assert dataset.read_part(0, part) == f"{part}".encode() * 20
        reader: Any = dataset._rows(0)
        assert len(reader._cells) == 1
        assert reader._num_bytes == next(iter(reader._cells.values())).num_bytes


def test_another_version_of_pyarrow_is_another_layout() -> None:
    assert ParquetFormat(Settings((Column(b"a", "binary", True),))).layout == f"parquet/1 pyarrow/{pa.__version__}"


def test_folders_whose_names_are_not_utf8_are_read_like_others(tmp_path: Path) -> None:
    out = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    pack(make_tree(tmp_path / "src", {"a.jpg": b"1", "b.jpg": b"22"}), out, format="parquet")
    assert run_cli("verify", out, "--deep").code == 0
    assert run_cli("cat", out, "b.jpg").out == "22"
    assert run_cli("extract", out, tmp_path / "back").code == 0
    assert (tmp_path / "back/b.jpg").read_bytes() == b"22"
