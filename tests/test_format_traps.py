"""Traps of formats that others fell into: schemas, sizes, memory, damage. See docs/internals/traps.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from helpers import json_lines, make_tree, pack, run_cli, shard_paths

MIB = 1 << 20
MEASURE = Path(__file__).parent.parent / "scripts" / "benchmarks" / "measure.py"


def test_pictures_of_two_suffixes_become_one_column_where_that_is_asked_for(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "in", {"cats/1.jpg": b"a", "dogs/2.png": b"b", "cats/3.jpg": b"c", "dogs/4.png": b"d"})
    pack(tree, tmp_path / "apart", format="parquet")
    parts = run_cli("stats", tmp_path / "apart", "--json").json["parts"]
    assert {name: part["samples"] for name, part in parts.items()} == {"jpg": 2, "png": 2}
    words = ("--format", "parquet", "--alias", "image=jpg,png", "--schema", "image=image", "-q")
    assert run_cli("pack", tree, tmp_path / "one", *words).code == 0
    (table,) = (pq.read_table(path) for path in shard_paths(tmp_path / "one"))
    assert table.column_names == ["key", "image"]
    assert table.column("image").null_count == 0


def test_a_column_takes_its_type_from_all_rows_and_not_from_the_first(tmp_path: Path) -> None:
    rows = [{"key": f"{n:05d}", "note": None if n < 12_000 else "late", "text": f"t{n}"} for n in range(12_003)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("--format", "parquet", "--shuffle", "none", "--shards", "3", "--schema", "note=string", "-q")
    assert run_cli("convert", tmp_path / "rows.jsonl", tmp_path / "out", *words).code == 0
    tables = [pq.read_table(path) for path in shard_paths(tmp_path / "out")]
    assert {table.schema.field("note").type for table in tables} == {tables[0].schema.field("text").type}
    notes = {key: note for table in tables for key, note in zip(*map(table.column, ("key", "note")), strict=True)}
    found = [key.as_py() for key, note in notes.items() if note.as_py() is not None]
    assert found == ["12000", "12001", "12002"]


def test_samples_of_more_parts_than_the_first_ones_keep_all_of_them(tmp_path: Path) -> None:
    files = {f"{n:02d}.p{part}.jpg": f"{n} {part}" for n in range(20) for part in range(1, 3 if n < 10 else 5)}
    pack(make_tree(tmp_path / "in", files), tmp_path / "out", format="parquet", shuffle="none", shards=2)
    first, second = (pq.read_table(path) for path in shard_paths(tmp_path / "out"))
    assert first.schema == second.schema
    assert first.column_names == ["key", *(f"p{part}.jpg" for part in range(1, 5))]
    assert first.column("p4.jpg").null_count == 10
    assert second.column("p4.jpg").null_count == 0


def test_samples_without_a_required_part_are_left_out_and_listed(tmp_path: Path) -> None:
    files = {f"{n:03d}.{part}": part for n in range(100) for part in ("jpg", "txt") if (n, part) != (37, "txt")}
    tree = make_tree(tmp_path / "in", files)
    stopped = run_cli("pack", tree, tmp_path / "out", "--format", "parquet", "--require", "jpg,txt")
    assert stopped.code == 5
    assert "037" in stopped.err
    words = ("--format", "parquet", "--require", "jpg,txt", "--on-missing", "skip", "-q")
    run_cli("pack", tree, tmp_path / "out", *words)
    listed = [
        entry for name in ("ignored", "failed") for entry in json_lines(tmp_path / f"out/.shardtool/{name}.jsonl")
    ]
    assert [entry["path"].endswith("037.jpg") for entry in listed] == [True]
    assert run_cli("stats", tmp_path / "out", "--json").json["samples"] == 99


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted by a call of Linux")
@pytest.mark.parametrize("name", ["tar", "tfrecord", "mds", "parquet", "arrow", "arrow-stream"])
def test_memory_does_not_grow_with_the_shard(tmp_path: Path, name: str) -> None:
    tree = make_tree(tmp_path / "in", {f"{n:03d}.npy": b"" for n in range(48)})
    for path in tree.iterdir():
        os.truncate(path, 8 * MIB)  # no blocks: holes are read as zeros
    words = ["pack", str(tree), str(tmp_path / "out"), "--format", name, "--shards", "1", "--workers", "1", "-q"]
    command = [sys.executable, str(MEASURE), sys.executable, "-m", "shardtool", *words, "--durability", "none"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr.splitlines()[-1])["peak_bytes"] < 240 * MIB  # of a shard of 384 MiB


def test_row_groups_end_by_bytes_and_by_rows(tmp_path: Path) -> None:
    large = make_tree(tmp_path / "large", {f"{n:02d}.npy": b"x" * MIB for n in range(40)})
    pack(large, tmp_path / "out", format="parquet", shards=1)
    footer = pq.ParquetFile(shard_paths(tmp_path / "out")[0]).metadata
    sizes = [footer.row_group(number).total_byte_size for number in range(footer.num_row_groups)]
    assert len(sizes) == 6
    assert max(sizes) <= 8 * MIB
    rows = "".join(json.dumps({"key": f"{n:06d}", "a": "b"}) + "\n" for n in range(70_000))
    (tmp_path / "rows.jsonl").write_text(rows)
    words = ("--format", "parquet", "--shards", "1", "-q")
    assert run_cli("convert", tmp_path / "rows.jsonl", tmp_path / "many", *words).code == 0
    footer = pq.ParquetFile(shard_paths(tmp_path / "many")[0]).metadata
    assert [footer.row_group(n).num_rows for n in range(footer.num_row_groups)] == [65_536, 70_000 - 65_536]


def test_records_that_are_compressed_under_a_plain_name_are_an_error_of_ours(tmp_path: Path) -> None:
    import gzip

    pack(make_tree(tmp_path / "in", {f"{n}.txt": f"text {n}" for n in range(9)}), tmp_path / "out", format="tfrecord")
    (shard,) = shard_paths(tmp_path / "out")
    (tmp_path / "s.tfrecord").write_bytes(gzip.compress(shard.read_bytes()))
    ran = run_cli("convert", tmp_path / "s.tfrecord", tmp_path / "again")
    assert ran.code in (2, 4)
    assert "s.tfrecord" in ran.err
    (tmp_path / "s.tfrecord.gz").write_bytes(gzip.compress(shard.read_bytes()))
    assert run_cli("convert", tmp_path / "s.tfrecord.gz", tmp_path / "again", "-q").code == 0


def test_a_slash_at_the_end_of_a_folder_changes_nothing(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "in", {f"{n}.txt": f"text {n}" for n in range(9)})
    for name, slash in (("one", ""), ("two", "/")):
        out = f"{tmp_path / name}{slash}"
        assert run_cli("pack", f"{tree}{slash}", out, "--format", "mds", "--shards", "3", "-q").code == 0
        (tmp_path / name / "manifest.json").unlink()
        assert run_cli("index", out, "-q").code == 0
        assert run_cli("verify", out, "--deep").code == 0
    manifests = [json.loads((tmp_path / name / "manifest.json").read_bytes()) for name in ("one", "two")]
    assert manifests[0]["dataset_id"] == manifests[1]["dataset_id"]
    assert (tmp_path / "one/data/train/index.json").read_bytes() == (
        tmp_path / "two/data/train/index.json"
    ).read_bytes()


@pytest.mark.parametrize("command", ["index", "verify", "convert"])
def test_a_pattern_that_matches_nothing_is_an_error(tmp_path: Path, command: str) -> None:
    words = [str(tmp_path / "out")] if command == "convert" else []
    ran = run_cli(command, str(tmp_path / "train-*.tar"), *words)
    assert ran.code == 5
    assert "train-*.tar" in ran.err
