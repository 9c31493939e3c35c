"""Packing to a bucket: the same bytes as to a folder, resumed, shared, replaced and refused by the same rules."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from helpers import make_tree, pack, run_cli
from store import NUM_SHARDS, OPTIONS, contents, files_of, packed, tree_of, uploads

from shardtool.errors import DestinationError
from shardtool.hashing import BLOCK_BYTES
from shardtool.packing.destination import locked, state_of
from shardtool.planning.plan_file import read_rows
from shardtool.storage.s3 import upload

if TYPE_CHECKING:
    from pathlib import Path

    from s3_servers import Bucket


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return tree_of(tmp_path / "src")


def to_store(tree: Path, bucket: Bucket, *options: str, out: str = "out") -> int:
    return run_cli("pack", tree, bucket.url(out), *OPTIONS, *options).code


def test_a_bucket_holds_the_bytes_that_a_folder_would(bucket: Bucket, tree: Path, tmp_path: Path) -> None:
    local = packed(tree, tmp_path / "local")
    assert to_store(tree, bucket) == 0
    assert contents(bucket, "out/") == files_of(local)
    assert uploads(bucket) == []


def test_shards_of_many_parts_are_the_same_too(bucket: Bucket, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", {"a.bin": os.urandom(BLOCK_BYTES * 2 + 5), "b.bin": os.urandom(BLOCK_BYTES)})
    pack(tree, tmp_path / "local", shards=1)
    assert run_cli("pack", tree, bucket.url("out"), "--shards", "1").code == 0
    assert contents(bucket, "out/") == files_of(tmp_path / "local")
    assert uploads(bucket) == []


def test_workers_pack_side_by_side(seaweedfs_bucket: Bucket, tree: Path, tmp_path: Path) -> None:
    local = packed(tree, tmp_path / "local")
    assert run_cli("pack", tree, seaweedfs_bucket.url("out"), *OPTIONS, workers=2).code == 0
    assert contents(seaweedfs_bucket, "out/") == files_of(local)


def test_the_root_of_a_bucket_holds_a_data_set(seaweedfs_bucket: Bucket, tree: Path, tmp_path: Path) -> None:
    local = packed(tree, tmp_path / "local")
    assert to_store(tree, seaweedfs_bucket, out="") == 0
    assert contents(seaweedfs_bucket, "") == files_of(local)
    assert run_cli("verify", seaweedfs_bucket.url(""), "--deep").code == 0


def test_the_same_command_again_has_nothing_to_do(bucket: Bucket, tree: Path) -> None:
    url = bucket.url("out")
    first = run_cli("pack", tree, url, *OPTIONS, "--json").json
    again = run_cli("pack", tree, url, *OPTIONS, "--json").json
    assert (again["dataset_id"], again["resumed_shards"]) == (first["dataset_id"], NUM_SHARDS)
    assert state_of(url) == "finished"


def test_only_lost_shards_are_packed_again(bucket: Bucket, tree: Path) -> None:
    assert to_store(tree, bucket) == 0
    whole = contents(bucket, "out/")
    lost = next(path for path in whole if path.endswith("2-of-00004.tar"))
    bucket.server.client().delete_object(Bucket=bucket.name, Key=f"out/{lost}")
    ran = run_cli("pack", tree, bucket.url("out"), *OPTIONS, "--json")
    assert ran.json["resumed_shards"] == NUM_SHARDS - 1
    assert contents(bucket, "out/") == whole


def test_damage_is_found_and_mended_with_deep(seaweedfs_bucket: Bucket, tree: Path) -> None:
    bucket = seaweedfs_bucket
    assert to_store(tree, bucket) == 0
    whole = contents(bucket, "out/")
    damaged = next(path for path in whole if path.endswith("1-of-00004.tar"))
    bucket.put({f"out/{damaged}": bytes([whole[damaged][0] ^ 1]) + whole[damaged][1:]})
    assert to_store(tree, bucket) == 0
    assert contents(bucket, "out/") != whole
    assert to_store(tree, bucket, "--deep") == 0
    assert contents(bucket, "out/") == whole


def test_other_options_are_refused(seaweedfs_bucket: Bucket, tree: Path) -> None:
    assert to_store(tree, seaweedfs_bucket) == 0
    whole = contents(seaweedfs_bucket, "out/")
    ran = run_cli("pack", tree, seaweedfs_bucket.url("out"), *OPTIONS, "--seed", "1", "--json")
    assert (ran.code, ran.error["code"]) == (6, "PlanMismatch")
    assert contents(seaweedfs_bucket, "out/") == whole


def test_objects_of_others_are_left_alone(bucket: Bucket, tree: Path) -> None:
    bucket.put({"out/thesis.tex": b"mine", "outer/notes": b"mine, too"})
    ran = run_cli("pack", tree, bucket.url("out"), *OPTIONS, "--json")
    assert (ran.code, ran.error["code"]) == (6, "DestinationExists")
    assert "thesis.tex" in ran.error["message"]
    assert contents(bucket, "") == {"out/thesis.tex": b"mine", "outer/notes": b"mine, too"}


def test_overwrite_removes_what_was_packed_and_nothing_else(bucket: Bucket, tree: Path, tmp_path: Path) -> None:
    assert to_store(tree, bucket) == 0
    bucket.put({"out/thesis.tex": b"mine", "out/data/notes.txt": b"mine"})
    other = tree_of(tmp_path / "other", num_samples=21)
    assert run_cli("pack", other, bucket.url("out"), "--shards", "2", "--overwrite").code == 0
    pack(other, tmp_path / "local", shards=2)
    theirs = {"thesis.tex": b"mine", "data/notes.txt": b"mine"}
    assert contents(bucket, "out/") == {**files_of(tmp_path / "local"), **theirs}


def test_parts_on_several_machines_make_one_data_set(
    bucket: Bucket, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = packed(tree, tmp_path / "local")
    for number in range(3):
        monkeypatch.setenv("SHARDTOOL_CACHE", os.fspath(tmp_path / f"machine-{number}"))
        ran = run_cli("pack", tree, bucket.url("out"), *OPTIONS, "--part", f"{number}/3", "--json")
        assert ran.code == 0
        assert (ran.json["missing_shards"] == 0) == (number == 2)
    assert contents(bucket, "out/") == files_of(local)


def test_an_unfinished_data_set_says_how_far_it_is(seaweedfs_bucket: Bucket, tree: Path) -> None:
    url = seaweedfs_bucket.url("out")
    assert to_store(tree, seaweedfs_bucket, "--part", "0/2") == 0
    assert state_of(url) == "unfinished"
    status = run_cli("status", url, "--json").json
    assert (status["state"], status["is_running"], status["done"]["shards"]) == ("unfinished", False, 2)
    ran = run_cli("index", url, "--json")
    assert (ran.code, ran.error["code"]) == (3, "Incomplete")
    assert run_cli("pack", url, "--json").json["resumed_shards"] == 2
    assert run_cli("status", url, "--json").json["state"] == "finished"


def test_one_run_at_a_time_on_a_machine(seaweedfs_bucket: Bucket, tree: Path) -> None:
    url = seaweedfs_bucket.url("out")
    with locked(url, None):
        assert run_cli("pack", tree, url + "/", *OPTIONS, "--json").error["code"] == "DestinationError"
        with pytest.raises(DestinationError, match="another shardtool"), locked(url, (0, 2)):
            pass
    assert to_store(tree, seaweedfs_bucket) == 0


def test_rewritten_files_are_packed_by_update(seaweedfs_bucket: Bucket, tree: Path, tmp_path: Path) -> None:
    bucket = seaweedfs_bucket
    assert to_store(tree, bucket) == 0
    path = tree / "a" / "0003.txt"
    path.write_bytes(b"CAPTION 3")
    os.utime(path, ns=(1, 1))
    assert to_store(tree, bucket) == 6
    assert to_store(tree, bucket, "--update") == 0
    assert contents(bucket, "out/") == files_of(packed(tree, tmp_path / "local"))


def test_a_source_that_holds_the_output_is_refused(seaweedfs_bucket: Bucket) -> None:
    seaweedfs_bucket.put({"src/a.txt": b"a"})
    for source, out in (("src", "src/out"), ("src/in", "src"), ("src", "src/"), ("", "out")):
        ran = run_cli("pack", seaweedfs_bucket.url(source), seaweedfs_bucket.url(out), "--json")
        assert (ran.code, ran.error["code"]) == (2, "UsageProblem"), (source, out, ran.err)
        assert "overlap" in ran.error["message"]
    assert run_cli("pack", seaweedfs_bucket.url("src"), seaweedfs_bucket.url("src-packed")).code == 0


def test_planned_rows_are_read_by_few_requests(seaweedfs_bucket: Bucket, tree: Path, tmp_path: Path) -> None:
    local = packed(tree, tmp_path / "local")
    assert to_store(tree, seaweedfs_bucket) == 0
    for shard in range(NUM_SHARDS):
        there, here = read_rows(seaweedfs_bucket.url("out"), shard), read_rows(os.fspath(local), shard)
        assert there.keys.equals(here.keys)
        assert there.names.equals(here.names)
        assert (there.sizes == here.sizes).all()


def test_memory_of_a_shard_being_written_is_bounded() -> None:
    assert (upload.PARTS_IN_FLIGHT + 1) * BLOCK_BYTES <= 128 << 20
