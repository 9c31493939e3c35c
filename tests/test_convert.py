"""Data sets, archives and tables become data sets: nothing is lost in silence; damage is never carried over."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import os
import shutil
import tarfile
import zipfile
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from helpers import json_lines, make_tree, pack, run_cli
from hypothesis import given, settings
from hypothesis import strategies as st
from places import read_ahead

from shardtool import columns
from shardtool.errors import NoSpace
from shardtool.formats import FORMATS
from shardtool.manifest import load_manifest
from shardtool.packing.pack import job_for, pack_shard
from shardtool.planning.plan_file import load_plan
from shardtool.reading.reading import Dataset
from shardtool.shard_sources.cells import part_of
from shardtool.shard_sources.members import cut_paths

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KINDS = [*(name for name in FORMATS if name != "bin"), "tar.zst", "mds.zst", "parquet.zst", "arrow.zst"]


def files_of(count: int = 60) -> dict[str, bytes]:
    """Pictures with text beside most of them, in two folders; one part is empty, one sample has an odd part name."""
    files: dict[str, bytes] = {}
    for number in range(count):
        stem = f"{'cats' if number % 3 else 'dogs'}/{number:04d}"
        files[f"{stem}.jpg"] = bytes([number]) * (number * 37 % 900)
        files[f"{stem}.txt"] = f"text of {number}".encode()
    files["cats/0001.seg.png"] = b"mask"
    return files


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "src", files_of())


def samples_of(out: Path) -> dict[tuple[str, bytes], dict[str, bytes]]:
    """{(split, key): parts} of a data set, every digest checked."""
    found = {}
    with Dataset.open(os.fspath(out)) as dataset:
        for shard, record in enumerate(dataset.manifest.shards):
            for sample in dataset.samples(shard, check=True):
                found[record.split, sample.key] = sample.parts
    return found


def convert(*args: str | Path, **options: Any) -> Any:
    words = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    done = run_cli("convert", *args, *words, "--json")
    assert done.code == 0, done.err
    return done.json


def test_an_unfinished_data_set_is_refused_and_not_taken_for_what_is_there(tmp_path: Path, tree: Path) -> None:
    pack(tree, tmp_path / "out", shards=3)
    (tmp_path / "out" / "manifest.json").unlink()
    refused = run_cli("convert", tmp_path / "out", tmp_path / "again", "--json")
    assert (refused.code, "is unfinished" in refused.error["message"]) == (5, True)
    assert not (tmp_path / "again").exists()


def test_a_data_set_converted_holds_the_same_samples(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "a", shard_size=16 << 10)
    document = convert(tmp_path / "a", tmp_path / "b", shard_size=40 << 10)
    assert samples_of(tmp_path / "a") == samples_of(tmp_path / "b")
    assert document["ledger"] == {"seen": 121, "packed": 121, "ignored": {}, "failed": 0}
    assert run_cli("verify", tmp_path / "b", "--deep").code == 0


def test_a_converted_data_set_is_the_one_that_packing_the_files_gives(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "a", shard_size=16 << 10)
    pack(tree, tmp_path / "direct", shard_size=40 << 10, seed=5)
    convert(tmp_path / "a", tmp_path / "b", shard_size=40 << 10, seed=5)
    direct, again = (load_manifest(os.fspath(tmp_path / name)) for name in ("direct", "b"))
    assert (direct.plan_id, direct.dataset_id) == (again.plan_id, again.dataset_id)


def test_ranges_are_asked_for_ahead_once_each_and_hold_the_same_samples(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(tree, tmp_path / "a", shard_size=16 << 10)
    convert(tmp_path / "a", tmp_path / "b", shard_size=40 << 10)
    before = tuple(file for shard in load_manifest(os.fspath(tmp_path / "b")).shards for file in shard.files)
    asked: list[tuple[int, int, int]] = []
    advise = os.posix_fadvise

    def note(fd: int, offset: int, size: int, advice: int) -> None:
        asked.append((os.fstat(fd).st_ino, offset, size))
        advise(fd, offset, size, advice)

    read_ahead(monkeypatch)
    monkeypatch.setattr("shardtool.shard_sources.ranges.WINDOW_BYTES", 4_000)
    monkeypatch.setattr(os, "posix_fadvise", note)
    out, stored = os.fspath(tmp_path / "b"), load_plan(os.fspath(tmp_path / "b"))
    assert stored is not None
    job = job_for(out, stored, on_changed="error", on_error="error", durable=False)
    again = [pack_shard(job, shard).result() for shard in range(len(stored.shards))]
    assert tuple(file for receipt in again for file in receipt.files) == before
    parts = sum(len(sample) for sample in samples_of(tmp_path / "b").values())
    assert len(asked) == len(set(asked)) == parts


def test_splits_and_labels_are_kept(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "a", split="train=0.7,validation=0.3", label_from="parent")
    convert(tmp_path / "a", tmp_path / "b", shard_size=20 << 10)
    assert samples_of(tmp_path / "a") == samples_of(tmp_path / "b")
    assert load_manifest(os.fspath(tmp_path / "b")).labels == load_manifest(os.fspath(tmp_path / "a")).labels
    with Dataset.open(os.fspath(tmp_path / "b")) as dataset:
        labels = {sample.key.split(b"/")[0]: sample.label for shard in range(2) for sample in dataset.samples(shard)}
    assert labels == {b"cats": 0, b"dogs": 1}


def test_new_splits_replace_those_of_the_source(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "a", split="train=0.7,validation=0.3")
    convert(tmp_path / "a", tmp_path / "b", split="train=0.5,test=0.5")
    assert set(load_manifest(os.fspath(tmp_path / "b")).splits()) == {"train", "test"}


def test_without_shuffle_the_order_of_the_source_stays(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "a", shard_size=16 << 10)
    convert(tmp_path / "a", tmp_path / "b", shuffle="none", shard_size=40 << 10)
    assert list(samples_of(tmp_path / "a")) == list(samples_of(tmp_path / "b"))


def test_data_sets_with_other_parts_of_the_same_keys_are_laid_over_one_another(tmp_path: Path) -> None:
    files = files_of()
    for suffix in ("jpg", "txt"):
        make_tree(tmp_path / suffix, {path: data for path, data in files.items() if path.endswith(suffix)})
        pack(tmp_path / suffix, tmp_path / f"{suffix}-set")
    convert(tmp_path / "jpg-set", tmp_path / "txt-set", tmp_path / "both")
    assert all(set(parts) == {"jpg", "txt"} for parts in samples_of(tmp_path / "both").values())


def test_equal_keys_of_two_sources_are_refused(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "a")
    pack(tree, tmp_path / "b", seed=1)
    done = run_cli("convert", tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert done.code == 5
    assert "are there twice" in done.err


def test_a_key_in_two_sources_is_told_with_both_files(tmp_path: Path) -> None:
    one = tar_of(tmp_path / "one.tar", {"a/1.txt": b"x", "a/2.txt": b"y"}, "w")
    row = {"key": "a/2", "txt": "z"}
    (tmp_path / "two.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "three.jsonl").write_text(json.dumps(row) + "\n")
    for sources in ((one, tmp_path / "two.jsonl"), (tmp_path / "two.jsonl", tmp_path / "three.jsonl")):
        ran = run_cli("convert", *sources, tmp_path / "out")
        assert ran.code == 5
        first, second = (f"{source}/a/2.txt" for source in sources)
        assert f"{first} and {second}" in ran.err
    ran = run_cli("convert", one, tmp_path / "two.jsonl", tmp_path / "out", "--on-duplicate", "first", "-q")
    assert ran.code == 0
    *_, entry = json_lines(tmp_path / "out" / ".shardtool" / "ignored.jsonl")
    assert entry["path"] == f"{tmp_path}/two.jsonl/a/2.txt"


def test_include_chooses_parts(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "a")
    document = convert(tmp_path / "a", tmp_path / "b", include="*.txt")
    assert document["ledger"] == {"seen": 121, "packed": 60, "ignored": {"not_included": 61}, "failed": 0}
    assert all(set(parts) == {"txt"} for parts in samples_of(tmp_path / "b").values())


def tar_of(path: Path, files: dict[str, bytes], mode: Any) -> Path:
    with tarfile.open(path, mode) as archive:
        archive.addfile(_folder("./cats"))
        for name, data in files.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def _folder(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE
    return info


def zip_of(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cats/", b"")
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def zst_of(path: Path, files: dict[str, bytes]) -> Path:
    plain = tar_of(path.with_suffix(".plain"), files, "w")
    path.write_bytes(zstandard.ZstdCompressor().compress(plain.read_bytes()))
    return path


ARCHIVES: dict[str, Callable[[Path, dict[str, bytes]], Path]] = {
    "a.tar": lambda path, files: tar_of(path, files, "w"),
    "a.tgz": lambda path, files: tar_of(path, files, "w:gz"),
    "a.tar.bz2": lambda path, files: tar_of(path, files, "w:bz2"),
    "a.tar.xz": lambda path, files: tar_of(path, files, "w:xz"),
    "a.tar.zst": zst_of,
    "a.zip": zip_of,
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_gives_what_its_files_give(tree: Path, tmp_path: Path, name: str) -> None:
    archive = ARCHIVES[name](tmp_path / name, files_of())
    pack(tree, tmp_path / "direct", shard_size=16 << 10)
    document = convert(archive, tmp_path / "out", shard_size=16 << 10)
    assert document["ledger"] == {"seen": 122, "packed": 121, "ignored": {"directory": 1}, "failed": 0}
    assert document["dataset_id"] == load_manifest(os.fspath(tmp_path / "direct")).dataset_id
    assert not (tmp_path / "out/.shardtool/spool").exists()


def test_names_that_lead_out_of_an_archive_are_left_out_and_listed(tmp_path: Path) -> None:
    archive = zip_of(tmp_path / "a.zip", {"a.txt": b"1", "../../b.txt": b"2", "/c.txt": b"3"})
    document = convert(archive, tmp_path / "out")
    assert document["ledger"]["ignored"] == {"bad_name": 2, "directory": 1}
    assert {entry["path"] for entry in json_lines(tmp_path / "out/.shardtool/ignored.jsonl")} >= {"../../b.txt"}


def test_hard_links_in_a_tar_are_the_files_that_they_name(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo("a.txt")
        info.size = 5
        archive.addfile(info, io.BytesIO(b"hello"))
        link = tarfile.TarInfo("b.txt")
        link.type, link.linkname = tarfile.LNKTYPE, "a.txt"
        archive.addfile(link)
    convert(tmp_path / "a.tar", tmp_path / "out")
    assert samples_of(tmp_path / "out") == {("train", b"a"): {"txt": b"hello"}, ("train", b"b"): {"txt": b"hello"}}


@pytest.mark.parametrize("name", ["a.tgz", "a.tar.xz", "a.tar.zst", "a.zip"])
@pytest.mark.parametrize("share", [0.3, 0.97])
def test_a_cut_archive_is_an_error_and_leaves_nothing(tmp_path: Path, name: str, share: float) -> None:
    rng = np.random.default_rng(0)
    files = {f"{n}.bin": rng.bytes(2000) for n in range(50)}
    whole = ARCHIVES[name](tmp_path / name, files).read_bytes()
    (tmp_path / name).write_bytes(whole[: int(len(whole) * share)])
    done = run_cli("convert", tmp_path / name, tmp_path / "out")
    assert done.code in (4, 5), done.err
    assert not (tmp_path / "out/manifest.json").exists()
    assert not list((tmp_path / "out").rglob("*.bin"))


ROWS: list[dict[str, Any]] = [
    {"key": f"a/{n}", "txt": f"größe {n}", "n": n, "x": n / 4, "tags": ["a", n], "opt": None if n % 3 else "o"}
    for n in range(40)
]
WANTED = {
    ("train", row["key"].encode()): {
        "txt": str(row["txt"]).encode(),
        "n": b"%d" % row["n"],
        "x": repr(row["x"]).encode(),
        "tags": json.dumps(row["tags"]).encode(),
        **({"opt": b"o"} if row["opt"] else {}),
    }
    for row in ROWS
}


def parquet_of(path: Path) -> None:
    rows = [{**row, "tags": [str(tag) for tag in row["tags"]]} for row in ROWS]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)


def jsonl_of(path: Path) -> None:
    text = "".join(json.dumps(row) + "\n\n" for row in ROWS).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_rows_of_json_lines_become_samples(tmp_path: Path, name: str) -> None:
    jsonl_of(tmp_path / name)
    convert(tmp_path / name, tmp_path / "out")
    assert samples_of(tmp_path / "out") == WANTED


def test_rows_of_parquet_become_samples(tmp_path: Path) -> None:
    parquet_of(tmp_path / "t.parquet")
    convert(tmp_path / "t.parquet", tmp_path / "out")
    found = samples_of(tmp_path / "out")
    assert {key: parts["txt"] for key, parts in found.items()} == {key: parts["txt"] for key, parts in WANTED.items()}
    assert found["train", b"a/3"]["tags"] == b'["a", "3"]'
    assert "opt" not in found["train", b"a/1"]


def test_rows_without_a_key_are_numbered_behind_the_name_of_their_file(tmp_path: Path) -> None:
    with open(tmp_path / "t.csv", "w", newline="") as file:
        csv.writer(file).writerows([["caption", "n"], ["a, b", "1"], ["c", "2"]])
    convert(tmp_path / "t.csv", tmp_path / "out")
    assert samples_of(tmp_path / "out") == {
        ("train", b"t-00000000"): {"caption": b"a, b", "n": b"1"},
        ("train", b"t-00000001"): {"caption": b"c", "n": b"2"},
    }


def test_the_column_of_keys_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"name": "x.y", "txt": "1"}\n{"name": "z", "txt": "2"}\n')
    convert(tmp_path / "t.jsonl", tmp_path / "out", key_column="name")
    assert {key for _, key in samples_of(tmp_path / "out")} == {b"x_y", b"z"}


def test_a_row_without_its_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"key": "a", "txt": "1"}\n{"txt": "2"}\n')
    done = run_cli("convert", tmp_path / "t.jsonl", tmp_path / "out", "--key-column", "key")
    assert done.code == 5
    assert "row 1 has no 'key'" in done.err


def test_pictures_of_hugging_face_rows_get_their_extension() -> None:
    assert part_of("image", {"bytes": b"x", "path": "a/b.JPG"}) == (b"jpg", b"x")
    assert part_of("image", {"bytes": b"x", "path": None}) == (b"image", b"x")
    assert part_of("a/b", True) == (b"a_b", b"true")
    assert part_of("n", None) is None


def test_a_damaged_part_is_never_carried_over(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "a")
    shard = tmp_path / "a/data/train-00000-of-00001.tar"
    stat = shard.stat()
    data = bytearray(shard.read_bytes())
    data[data.index(b"text of 7")] ^= 1
    shard.write_bytes(data)
    os.utime(shard, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    done = run_cli("convert", tmp_path / "a", tmp_path / "b")
    assert done.code == 5
    assert "0007.txt' at byte" in done.err
    assert "damaged" in done.err
    skipping = run_cli("convert", tmp_path / "a", tmp_path / "c", "--on-error", "skip", "--json")
    assert (skipping.code, skipping.json["ledger"]["failed"]) == (3, 2)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_source_file_that_is_damaged_and_skipped_is_counted_and_listed(tmp_path: Path, mode: str) -> None:
    (tmp_path / "in").mkdir()
    names = [f"{name}.{'tar' if mode == 'w' else 'tgz'}" for name in ("good", "cut")]
    for name in names:
        files = {f"{name[0]}{number}.bin": os.urandom(2_000) for number in range(5)}
        tar_of(tmp_path / "in" / name, files, mode)
    cut = tmp_path / "in" / names[1]
    os.truncate(cut, cut.stat().st_size // 2)
    assert run_cli("convert", tmp_path / "in", tmp_path / "no").code == 4

    done = run_cli("convert", tmp_path / "in", tmp_path / "out", "--on-error", "skip", "--json")
    assert done.code == 3, done.err
    assert (done.json["samples"], done.json["ledger"]["packed"], done.json["ledger"]["failed"]) == (5, 5, 1)
    assert done.json["ledger"]["seen"] == 6 + done.json["ledger"]["ignored"]["directory"]
    assert "1 source file left out whole" in done.err
    (listed,) = json_lines(tmp_path / "out/.shardtool/failed.jsonl")
    assert (listed["reason"], listed["path"]) == ("damaged", os.fspath(cut))
    assert os.fspath(cut) in listed["detail"]
    assert run_cli("convert", tmp_path / "in", tmp_path / "out", "--on-error", "skip").code == 3
    plan = run_cli("convert", tmp_path / "in", tmp_path / "dry", "--on-error", "skip", "--dry-run")
    assert "1 source file left out whole" in plan.out + plan.err


def test_where_every_source_file_is_damaged_nothing_is_written(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "a.tar", {"0.bin": bytes(4_000)}, "w")
    os.truncate(path, 2_000)
    done = run_cli("convert", path, tmp_path / "out", "--on-error", "skip")
    assert done.code == 5
    assert f"{path}: not a single part is in there: {path}" in done.err
    assert not (tmp_path / "out/manifest.json").exists()


def test_a_full_disk_while_unpacking_is_no_damage_that_skip_passes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise NoSpace("no space left")

    path = tar_of(tmp_path / "a.tgz", files_of(3), "w:gz")
    monkeypatch.setattr("shardtool.shard_sources.spool.LocalFile.write", full)
    assert run_cli("convert", path, tmp_path / "out", "--on-error", "skip").code == 7


def test_a_source_that_changes_while_it_is_packed_is_noticed(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "a")
    assert run_cli("convert", tmp_path / "a", tmp_path / "b", "--part", "0/2", "--shard-size", "16KiB").code == 0
    (tmp_path / "a/data/train-00000-of-00001.tar").touch()
    done = run_cli("convert", tmp_path / "a", tmp_path / "b", "--shard-size", "16KiB")
    assert done.code == 5
    assert "not the shard that was scanned" in done.err
    again = run_cli("convert", tmp_path / "a", tmp_path / "b", "--shard-size", "16KiB", "--rescan", "--json")
    assert again.code == 0, again.err
    assert again.json["resumed_shards"] > 0
    assert samples_of(tmp_path / "b") == samples_of(tmp_path / "a")


def test_a_second_run_finds_nothing_to_do_and_a_grown_source_is_told(tree: Path, tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tgz", files_of(), "w:gz")
    convert(archive, tmp_path / "out")
    again = run_cli("convert", archive, tmp_path / "out")
    assert (again.code, "nothing to do" in again.out) == (0, True)
    tar_of(archive, files_of(61), "w:gz")
    grown = run_cli("convert", archive, tmp_path / "out")
    assert (grown.code, "2 added" in grown.err) == (6, True)
    assert not (tmp_path / "out/.shardtool/spool").exists()


def test_a_dry_run_measures_and_writes_nothing(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tgz", files_of(), "w:gz")
    planned = run_cli("convert", archive, tmp_path / "out", "--dry-run", "--json").json
    assert not (tmp_path / "out").exists()
    assert convert(archive, tmp_path / "out")["plan_id"] == planned["plan_id"]


def test_a_dry_run_tells_what_the_spool_would_take(tree: Path, tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tgz", files_of(), "w:gz")
    payload = sum(map(len, files_of().values()))
    advice = run_cli("convert", archive, tmp_path / "out", "--dry-run", "--json").json["advice"]
    assert [text for text in advice if f"1 source file must be decoded: {payload / 1024:.1f} KiB" in text]
    pack(tree, tmp_path / "a")
    direct = run_cli("convert", tmp_path / "a", tmp_path / "out", "--dry-run", "--json").json["advice"]
    assert not [text for text in direct if "must be decoded" in text]


@pytest.mark.parametrize(("name", "kind"), [("a.zip", "exactly"), ("a.tgz", "at least")])
def test_what_cannot_fit_into_the_spool_is_refused_first(
    tmp_path: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = ARCHIVES[name](tmp_path / name, files_of())
    payload = sum(map(len, files_of().values()))
    wanted = payload if kind == "exactly" else archive.stat().st_size
    for free, code in ((wanted - 1, 7), (wanted, 0)):
        monkeypatch.setattr("shardtool.shard_sources.room.free_space", lambda _, free=free: (free, 1000))
        done = run_cli("convert", archive, tmp_path / "out", "--json")
        assert done.code == code, done.err
        assert code == 0 or not (tmp_path / "out").exists()


def test_text_holds_more_than_its_payload_and_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"key": "a", "x": 1}))
    monkeypatch.setattr("shardtool.shard_sources.room.free_space", lambda _: (1, 1000))
    assert convert(tmp_path / "rows.jsonl", tmp_path / "out")["payload_bytes"] == 1


def test_an_interrupted_conversion_goes_on_from_its_spool(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tgz", files_of(), "w:gz")
    run_cli("convert", archive, tmp_path / "out", "--part", "0/2", "--shard-size", "16KiB")
    archive.unlink()  # what was unpacked is enough
    done = run_cli("pack", tmp_path / "out")
    assert done.code == 0
    assert len(samples_of(tmp_path / "out")) == 60


def test_a_folder_without_shards_is_told_what_to_do(tree: Path, tmp_path: Path) -> None:
    done = run_cli("convert", tree, tmp_path / "out")
    assert done.code == 5
    assert "shardtool pack" in done.err


def test_a_stranger_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.rar").write_bytes(b"Rar!")
    done = run_cli("convert", tmp_path / "a.rar", tmp_path / "out")
    assert (done.code, "a.rar is none of the kinds" in done.err) == (2, True)


def options_of(kind: str) -> dict[str, Any]:
    """How `kind`, a format or one with `.zst`, is written."""
    return {"format": kind.removesuffix(".zst"), "compress": "zstd:1" if kind.endswith(".zst") else "none"}


@pytest.mark.parametrize("one", KINDS)
@pytest.mark.parametrize("two", KINDS)
def test_all_pairs_of_formats_there_and_back(tree: Path, tmp_path: Path, one: str, two: str) -> None:
    pack(tree, tmp_path / "a", shard_size=32 << 10, **options_of(one))
    there = convert(tmp_path / "a", tmp_path / "b", durability="none", **options_of(two))
    back = convert(tmp_path / "b", tmp_path / "c", durability="none", shard_size=32 << 10, **options_of(one))
    assert samples_of(tmp_path / "a") == samples_of(tmp_path / "b") == samples_of(tmp_path / "c")
    whole = {"seen": 121, "packed": 121, "ignored": {}, "failed": 0}
    assert there["ledger"] == back["ledger"] == whole
    first, last = (load_manifest(os.fspath(tmp_path / name)) for name in "ac")
    assert first.dataset_id == last.dataset_id
    assert samples_of(tmp_path / "a")["train", b"cats/0001"]["seg.png"] == b"mask"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.binary(max_size=4), min_size=1, max_size=4).map(b"/".join), max_size=30))
def test_paths_are_cut_at_their_last_slash(paths: list[bytes]) -> None:
    first, folders, names = cut_paths(columns.binary(paths))
    rows = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(paths))))
    found = [(folders[row], name) for row, name in zip(rows.tolist(), columns.to_list(names), strict=True)]
    assert found == [(path.rpartition(b"/")[0], path.rpartition(b"/")[2]) for path in paths]
    assert all(one != two for one, two in pairwise(folders))


def test_xz_is_read_whole(tmp_path: Path) -> None:
    """Two streams in one file are one archive, as `xz` has it."""
    plain = tar_of(tmp_path / "a.tar", files_of(), "w").read_bytes()
    (tmp_path / "a.tar.xz").write_bytes(lzma.compress(plain[:5000]) + lzma.compress(plain[5000:]))
    assert convert(tmp_path / "a.tar.xz", tmp_path / "out")["samples"] == 60


@pytest.mark.parametrize("name", ["tfrecord", "mds", "litdata"])
def test_records_without_our_manifest_are_read_by_offset(tree: Path, tmp_path: Path, name: str) -> None:
    assert run_cli("pack", tree, tmp_path / "a", "--format", name, "--split", "train=0.8,test=0.2").code == 0
    known = samples_of(tmp_path / "a")
    shutil.copytree(tmp_path / "a/data", tmp_path / "bare/data")
    convert(tmp_path / "bare", tmp_path / "b")
    assert samples_of(tmp_path / "b") == known
    plan = json.loads((tmp_path / "b/.shardtool/plan.json").read_text())
    assert all("bare/data" in root for root in plan["sources"])


HAS_NO_END = ("tfrecord",)  # cut behind a record it is whole


@pytest.mark.parametrize("name", KINDS)
def test_damaged_shards_without_our_manifest_are_errors_of_ours(tree: Path, tmp_path: Path, name: str) -> None:
    pack(tree, tmp_path / "a", **options_of(name))
    shutil.copytree(tmp_path / "a/data", tmp_path / "bare/data")
    shard = next(path for path in (tmp_path / "bare/data").rglob("*") if path.is_file() and path.suffix != ".json")
    whole = shard.read_bytes()
    rng = np.random.default_rng(0)
    for trial in range(30):
        data = bytearray(whole)
        data[int(rng.integers(min(2000, len(data))))] ^= 1 << int(rng.integers(8))
        shard.write_bytes(data[: int(rng.integers(len(data)))] if trial % 3 == 0 else data)
        done = run_cli("convert", tmp_path / "bare", tmp_path / f"out{trial}", "--durability", "none")
        is_told = trial % 3 == 0 and name not in HAS_NO_END
        assert done.code in ((4, 5) if is_told else (0, 4, 5)), (trial, done.err)


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"key": "a", "txt": "1"}\n\n{"key":\n')
    done = run_cli("convert", tmp_path / "t.jsonl", tmp_path / "out")
    assert done.code == 4
    assert "t.jsonl: line 3 is no JSON" in done.err
    assert not (tmp_path / "out").exists()


def table_file(kind: str, path: Path) -> Path:
    """A table or archive that cannot be read without loss."""
    rows = {
        "surrogate.jsonl": b'{"key": "a", "txt": "\\ud83d"}\n',
        "deep.jsonl": b'{"txt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        "cells.csv": b"key,txt\na,1,2\n",
        "short.csv": b"key,txt,n\na,1,2\n\nb,3\n",
        "twice.csv": b"key,txt,txt\na,1,2\n",
        "sum.tar.gz": gzip.compress(b"x" * 999)[:-6] + b"wrong!",
        "none.tar.gz": b"no gzip",
        "none.tar.bz2": b"BZh9 no bzip2 either",
    }
    if kind in rows:
        (path / kind).write_bytes(rows[kind])
    elif kind == "twice.parquet":
        pq.write_table(pa.table([["a"], ["1"], ["2"]], names=["key", "txt", "txt"]), path / kind)
    elif kind == "nanoseconds.parquet":
        pq.write_table(pa.table({"key": ["a"], "at": pa.array([10**18 + 1], pa.timestamp("ns"))}), path / kind)
    else:
        with zipfile.ZipFile(path / kind, "w") as archive:
            archive.writestr("a.txt", "text")
        data = bytearray((path / kind).read_bytes())
        for head, place in ((b"PK\3\4", 8), (b"PK\1\2", 10)):
            data[data.find(head) + place] = 9  # Deflate64
        (path / kind).write_bytes(data)
    return path / kind


@pytest.mark.parametrize(
    ("kind", "code", "word"),
    [
        ("surrogate.jsonl", 4, "row 0 holds half of a surrogate pair"),
        ("deep.jsonl", 4, "line 1 is no JSON"),
        ("cells.csv", 4, "line 2 has 3 cells, the header names 2 columns"),
        ("short.csv", 4, "line 4 has 2 cells, the header names 3 columns"),
        ("twice.csv", 4, "more than one column called 'txt'"),
        ("twice.parquet", 4, "more than one column called 'txt'"),
        ("nanoseconds.parquet", 5, "a value that has no text"),
        ("deflate64.zip", 5, "'a.txt' is compressed by method 9"),
        ("sum.tar.gz", 4, "is damaged"),
        ("none.tar.gz", 4, "is damaged"),
        ("none.tar.bz2", 4, "is damaged"),
    ],
)
def test_what_cannot_be_read_without_loss_is_an_error_that_names_it(
    tmp_path: Path, kind: str, code: int, word: str
) -> None:
    done = run_cli("convert", table_file(kind, tmp_path), tmp_path / "out")
    assert done.code == code
    assert kind in done.err
    assert word in done.err
    assert "hint" in done.err
    assert "Traceback" not in done.err


def test_a_cell_of_a_csv_may_be_large(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(f"key,txt\na,{'x' * 300_000}\n")
    convert(tmp_path / "rows.csv", tmp_path / "out")
    assert samples_of(tmp_path / "out") == {("train", b"a"): {"txt": b"x" * 300_000}}


def test_a_table_may_have_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    table = os.fsencode(tmp_path) + b"/n\xff.jsonl"
    with open(table, "wb") as file:
        file.write(b'{"txt": "one"}\n')
    done = run_cli("convert", os.fsdecode(table), tmp_path / "out", "--escape-names")
    assert done.code == 0, done.err
    assert [key for _, key in samples_of(tmp_path / "out")] == [b"n%FF-00000000"]


def test_links_in_a_compressed_tar_are_counted_as_links(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        for name, kind in (("a.txt", tarfile.REGTYPE), ("b.txt", tarfile.SYMTYPE), ("c.txt", tarfile.FIFOTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "a.txt"
            archive.addfile(member)
    document = convert(tmp_path / "a.tar.gz", tmp_path / "out")
    assert document["ledger"]["ignored"] == {"link": 1, "special": 1}


def test_a_lost_table_of_class_names_is_an_error(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "a", label_from="parent")
    os.unlink(tmp_path / "a" / "labels.json")
    done = run_cli("convert", tmp_path / "a", tmp_path / "b")
    assert done.code == 4
    assert "labels.json is missing" in done.err
    assert "shardtool index" in done.err
