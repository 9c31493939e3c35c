"""`index` publishes, makes again what was lost, and indexes shards that other tools wrote; it never writes a shard."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import subprocess
import tarfile
from io import BytesIO
from typing import TYPE_CHECKING

import pytest
from helpers import Said, make_tree, pack, read_members, run_cli, shard_paths

from shardtool.manifest import load_manifest
from shardtool.reading.reading import Dataset

if TYPE_CHECKING:
    from pathlib import Path

LONG = "n" * 180


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 samples with labels and names whose case was changed, in several shards."""
    top = tmp_path_factory.mktemp("rebuild")
    drawn = random.Random(2)
    files = {f"{'ab'[n % 2]}/{n:03d}.{part}": drawn.randbytes(n * 31) for n in range(40) for part in ("JPG", "txt")}
    files[f"a/{LONG}.JPG"] = b"long"
    pack(make_tree(top / "src", files), top / "out", samples_per_shard=9, label_from="parent", durable=True)
    return top / "out"


@pytest.fixture
def out(packed: Path, tmp_path: Path) -> Path:
    """A copy to take things from."""
    return shutil.copytree(packed, tmp_path / "out")


def contents(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {os.fspath(path.relative_to(folder)): path.read_bytes() for path in paths}


def write_tar(path: Path, members: list[tuple[str, bytes]], tar_format: int = tarfile.USTAR_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tar_format) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, BytesIO(data))
    return path


LOSSES = {
    "manifest": ["manifest.json"],
    "labels": ["labels.json"],
    "one index": ["index/00001.arrow"],
    "all indexes": ["index"],
    "receipts": [".shardtool/receipts.jsonl"],
    "manifest and indexes": ["manifest.json", "index"],
    "all but plan and shards": ["manifest.json", "labels.json", "index", ".shardtool/receipts.jsonl"],
}


@pytest.mark.parametrize("loss", LOSSES)
def test_what_was_lost_comes_back_bit_for_bit_with_the_plan(packed: Path, out: Path, loss: str) -> None:
    for name in LOSSES[loss]:
        path = out / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    ran = run_cli("index", out)
    assert ran.code == 0, ran.err
    assert contents(out) == contents(packed)
    assert "nothing to do" in run_cli("index", out).out


def test_a_damaged_index_or_manifest_is_made_again(packed: Path, out: Path) -> None:
    for name in ("index/00002.arrow", "manifest.json", "labels.json"):
        data = (out / name).read_bytes()
        (out / name).write_bytes(data[:-3] + b"???")
    assert run_cli("index", out).code == 0
    assert contents(out) == contents(packed)


def test_worker_processes_make_the_same(packed: Path, out: Path) -> None:
    shutil.rmtree(out / "index")
    (out / "manifest.json").unlink()
    assert run_cli("index", out, workers=2).code == 0
    assert contents(out) == contents(packed)


def test_a_finished_data_set_is_left_alone(packed: Path, out: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    ran = run_cli("index", out, "--json")
    assert ran.code == 0
    assert ran.json["made"] == {"indexes": 0, "receipts": 0, "labels": False, "manifest": False}
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before


def test_missing_shards_are_named_and_nothing_is_published(out: Path) -> None:
    lost = shard_paths(out)[1]
    lost.unlink()
    (out / "manifest.json").unlink()
    ran = run_cli("index", out)
    assert ran.code == 3
    assert f"data/{lost.name}" in ran.err
    assert f"shardtool pack {out}" in ran.err
    assert not (out / "manifest.json").exists()


def test_parts_packed_one_by_one_are_published(packed: Path, tmp_path: Path) -> None:
    out, source = tmp_path / "parts", packed.parent / "src"
    for part in range(3):
        options = ("--samples-per-shard", "9", "--label-from", "parent", "--durability", "none")
        assert run_cli("pack", source, out, *options, "--part", f"{part}/3").code == 0
        (out / "manifest.json").unlink(missing_ok=True)
        assert run_cli("index", out).code == (0 if part == 2 else 3)
    assert load_manifest(os.fspath(out)).dataset_id == load_manifest(os.fspath(packed)).dataset_id


def test_a_damaged_shard_is_never_made_official(out: Path) -> None:
    path = shard_paths(out)[0]
    data = path.read_bytes()
    place = data.index(b"ustar") + 300
    path.write_bytes(data[:place] + b"X" + data[place + 1 :])
    (out / "index/00000.arrow").unlink()
    ran = run_cli("index", out)
    assert ran.code == 4
    assert "pack" in ran.err
    assert not (out / "index/00000.arrow").exists()


def test_without_any_digest_left_contents_are_taken_as_they_are_and_that_is_said(out: Path) -> None:
    shutil.rmtree(out / "index")
    for name in ("manifest.json", ".shardtool/receipts.jsonl"):
        (out / name).unlink()
    assert "no digest was left of" in run_cli("index", out).err


def test_samples_left_out_by_a_policy_stay_left_out(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "src", {f"{n}.txt": b"x" * 100 for n in range(20)})
    out = tmp_path / "out"
    assert run_cli("plan", source, out, "--write", "--samples-per-shard", "7").code == 0
    (source / "3.txt").write_bytes(b"longer than planned" * 50)
    run_cli("pack", source, out, "--samples-per-shard", "7", "--on-changed", "skip", "--durability", "none")
    before = contents(out)
    assert load_manifest(os.fspath(out)).num_samples == 19
    (out / "manifest.json").unlink()
    shutil.rmtree(out / "index")
    assert run_cli("index", out).code == 0
    assert contents(out) == before


def test_with_a_manifest_alone_lost_indexes_come_from_the_shards(packed: Path, out: Path) -> None:
    shutil.rmtree(out / ".shardtool")
    (out / "index/00001.arrow").unlink()
    assert run_cli("index", out).code == 0
    assert run_cli("verify", out, "--deep").code == 0
    with Dataset.open(os.fspath(out)) as dataset, Dataset.open(os.fspath(packed)) as before:
        assert dataset.manifest.dataset_id == before.manifest.dataset_id
        assert list(dataset.samples(1, check=True)) == list(before.samples(1))


def test_with_a_manifest_alone_a_damaged_shard_is_refused(out: Path) -> None:
    shutil.rmtree(out / ".shardtool")
    (out / "index/00001.arrow").unlink()
    path = shard_paths(out)[1]
    data = path.read_bytes()
    path.write_bytes(data[:600] + bytes([data[600] ^ 1]) + data[601:])
    ran = run_cli("index", out)
    assert ran.code == 4
    assert "its digest is not" in ran.err


def test_bare_shards_tell_all_but_the_plan(packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "bare"
    shutil.copytree(packed / "data", out / "data")
    shutil.copy(packed / "labels.json", out)
    assert run_cli("index", out).code == 0
    manifest, before = load_manifest(os.fspath(out)), load_manifest(os.fspath(packed))
    assert manifest.dataset_id == before.dataset_id
    assert manifest.parts == before.parts
    assert manifest.membership == {"shuffled": None}
    assert run_cli("verify", out, "--deep").code == 0
    with Dataset.open(os.fspath(out)) as dataset, Dataset.open(os.fspath(packed)) as original:
        for shard in range(dataset.num_shards):
            assert list(dataset.samples(shard, check=True)) == list(original.samples(shard))
            key = dataset.index(shard).key(3)
            assert dataset.find(key) == original.find(key)


def test_shards_of_ours_without_changed_names_give_the_same_index(tmp_path: Path) -> None:
    pack(make_tree(tmp_path / "src", {f"{n}.txt": b"x" * n for n in range(30)}), tmp_path / "out", samples_per_shard=8)
    shutil.copytree(tmp_path / "out/data", tmp_path / "bare/data")
    assert run_cli("index", tmp_path / "bare").code == 0
    assert contents(tmp_path / "bare/index") == contents(tmp_path / "out/index")


def test_shards_of_webdatasets_writer_are_indexed(tmp_path: Path) -> None:
    import webdataset

    drawn = random.Random(1)
    samples = {f"k{n:03d}": drawn.randbytes(n * 13) for n in range(50)}
    with webdataset.ShardWriter(os.fspath(tmp_path / "train-%03d.tar"), maxcount=20, verbose=0) as writer:
        for key, data in samples.items():
            writer.write({"__key__": key, "bin": data, "cls": b"3"})
    ran = run_cli("index", tmp_path, "--json")
    assert ran.code == 0
    assert (ran.json["shards"], ran.json["samples"]) == (3, 50)
    assert run_cli("verify", tmp_path, "--deep", "--reader", "webdataset").code == 0
    with Dataset.open(os.fspath(tmp_path)) as dataset:
        read = {sample.key.decode(): sample.parts["bin"] for k in range(3) for sample in dataset.samples(k, check=True)}
    assert read == samples
    assert sorted(path.name for path in tmp_path.glob("*.tar")) == [f"train-{n:03d}.tar" for n in range(3)]


@pytest.mark.parametrize("tar_format", ["gnu", "pax", "v7", "ustar"])
def test_shards_of_gnu_tar_are_indexed_with_links_and_long_names(tmp_path: Path, tar_format: str) -> None:
    tree = tmp_path / "src"
    make_tree(tree, {f"a/{n}.{part}": f"{n}{part}" for n in range(6) for part in ("jpg", "TXT")})
    os.link(tree / "a/1.jpg", tree / "a/z1.jpg")
    names = 6
    if tar_format in ("gnu", "pax"):
        make_tree(tree, {f"b/{LONG}.jpg": b"long"})
        os.symlink("1.jpg", tree / "a/z2.jpg")
        names += 1
    command = [
        "tar",
        "--sort=name",
        f"--format={tar_format}",
        "-cf",
        os.fspath(tmp_path / "s.tar"),
        "-C",
        os.fspath(tree),
        ".",
    ]
    subprocess.run(command, check=True)
    ran = run_cli("index", tmp_path / "s.tar", "--json")
    assert ran.code == 0, ran.err
    assert run_cli("verify", tmp_path, "--deep").code == 0
    with Dataset.open(os.fspath(tmp_path)) as dataset:
        read = {sample.key: sample.parts for sample in dataset.samples(0, check=True)}
    assert read[b"a/1"] == {"jpg": b"1jpg", "txt": b"1TXT"}
    assert read[b"a/z1"] == {"jpg": b"1jpg"}
    if tar_format in ("gnu", "pax"):
        assert read[b"a/z2"] == {"jpg": b"1jpg"}
        assert read[f"b/{LONG}".encode()] == {"jpg": b"long"}
    assert ran.json["ledger"]["ignored"]["directory"] >= 2


def test_a_sparse_member_is_refused_by_name(tmp_path: Path) -> None:
    with (tmp_path / "big.bin").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
    subprocess.run(["tar", "-S", "-cf", tmp_path / "s.tar", "-C", tmp_path, "big.bin"], check=True)
    ran = run_cli("index", tmp_path)
    assert ran.code == 4
    assert "'big.bin' is sparse" in ran.err


def test_a_link_to_nowhere_is_refused_by_name(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        info = tarfile.TarInfo("a.jpg")
        info.type, info.linkname = tarfile.SYMTYPE, "../elsewhere.jpg"
        archive.addfile(info)
    ran = run_cli("index", tmp_path)
    assert ran.code == 5
    assert "'a.jpg'" in ran.err
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (["0.a", "1.a", "0.b", "1.b"], "side by side"),
        (["0.a", "0.a"], "already has"),
        (["0.a", "1.a", "0.a"], "second sample"),
        (["../0.a"], "`..`"),
        (["README"], "no samples"),
    ],
)
def test_what_readers_would_merge_or_lose_is_refused(tmp_path: Path, names: list[str], word: str) -> None:
    write_tar(tmp_path / "s.tar", [(name, b"x") for name in names])
    ran = run_cli("index", tmp_path)
    assert ran.code == 5
    assert word in ran.err
    assert sorted(os.listdir(tmp_path)) == ["s.tar"]


def test_a_key_in_two_shards_is_refused_and_nothing_is_left_behind(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_tar(tmp_path / f"{name}.tar", [("same.jpg", b"x"), (f"{name}.jpg", b"y")])
    ran = run_cli("index", tmp_path)
    assert ran.code == 5
    assert "'same'" in ran.err
    assert sorted(os.listdir(tmp_path)) == ["a.tar", "b.tar"]


def test_all_bad_shards_are_told_at_once(tmp_path: Path) -> None:
    for number in range(4):
        write_tar(tmp_path / f"{number}.tar", [(f"{number}.a", b"x")])
    for number in (1, 3):
        os.truncate(tmp_path / f"{number}.tar", 700)
    ran = run_cli("index", tmp_path)
    assert ran.code == 4
    assert "1.tar" in ran.err
    assert "3.tar" in ran.err
    assert not (tmp_path / "index").exists()


def test_a_compressed_tar_says_so(tmp_path: Path) -> None:
    (tmp_path / "s.tar").write_bytes(gzip.compress(b"x" * 2000))
    ran = run_cli("index", tmp_path)
    assert ran.code == 2
    assert "gzip" in ran.err


def test_another_folder_gets_links_to_the_shards(tmp_path: Path) -> None:
    shards = [write_tar(tmp_path / f"ro/{n}.tar", [(f"{n}.jpg", b"x%d" % n)]) for n in range(3)]
    ran = run_cli("index", tmp_path / "ro", "--out-dir", tmp_path / "out")
    assert ran.code == 0
    assert sorted(os.listdir(tmp_path / "ro")) == ["0.tar", "1.tar", "2.tar"]
    assert [path.resolve() for path in shard_paths(tmp_path / "out")] == [path.resolve() for path in shards]
    assert run_cli("verify", tmp_path / "out", "--deep").code == 0
    assert len(read_members(tmp_path / "out")) == 3
    assert run_cli("index", tmp_path / "ro", "--out-dir", tmp_path / "out").code == 6


def test_splits_follow_from_the_names_of_shards(tmp_path: Path) -> None:
    for name in ("val-0", "train-1", "train-0", "test-0"):
        write_tar(tmp_path / f"{name}.tar", [(f"{name}.jpg", b"x")])
    assert run_cli("index", tmp_path).code == 0
    document = json.loads((tmp_path / "manifest.json").read_bytes())
    found = [(shard["split"], shard["files"][0]["path"]) for shard in document["shards"]]
    wanted = [("train", "train-0"), ("train", "train-1"), ("validation", "val-0"), ("test", "test-0")]
    assert found == [(split, f"{name}.tar") for split, name in wanted]


def test_an_unfinished_data_set_is_not_taken_for_bare_shards(packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run_cli("plan", packed.parent / "src", out, "--write").code == 0
    assert run_cli("index", out).code == 3


def test_places_without_shards_are_an_input_problem(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place in ("absent", "empty", "*.tar"):
        assert run_cli("index", tmp_path / place).code == 5


def test_the_notice_names_what_is_not_indexed(tmp_path: Path) -> None:
    write_tar(tmp_path / "s.tar", [("a.jpg", b"x"), ("README", b"y"), ("dir/.hidden", b"z")])
    ran = run_cli("index", tmp_path)
    assert ran.code == 0
    assert "2 members of the shards (hidden 1, no_dot 1)" in ran.err
    assert Said().warnings == []
