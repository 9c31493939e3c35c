"""Sources of `convert` in an object store: data sets, shards, archives and tables there give what they give locally."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from helpers import make_tree, pack, run_cli
from test_convert import ARCHIVES, files_of

from shardtool.manifest import load_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from s3_servers import Bucket


def dataset_id(out: Path) -> str:
    return load_manifest(os.fspath(out)).dataset_id


@pytest.fixture
def direct(tmp_path: Path) -> Path:
    pack(make_tree(tmp_path / "src", files_of()), tmp_path / "direct", shard_size=16 << 10)
    return tmp_path / "direct"


@pytest.mark.parametrize("name", ["a.tar", "a.tgz", "a.tar.zst", "a.zip"])
def test_an_archive_in_a_bucket_gives_what_its_files_give(
    direct: Path, tmp_path: Path, seaweedfs_bucket: Bucket, name: str
) -> None:
    archive = ARCHIVES[name](tmp_path / name, files_of())
    seaweedfs_bucket.put({f"in/{name}": archive.read_bytes()})
    done = run_cli("convert", seaweedfs_bucket.url(f"in/{name}"), tmp_path / "out", "--shard-size", "16KiB")
    assert done.code == 0, done.err
    assert dataset_id(tmp_path / "out") == dataset_id(direct)


def test_a_data_set_in_a_bucket_is_converted(direct: Path, tmp_path: Path, seaweedfs_bucket: Bucket) -> None:
    files = {f"set/{path.relative_to(direct)}": path.read_bytes() for path in direct.rglob("*") if path.is_file()}
    seaweedfs_bucket.put({path: data for path, data in files.items() if "/." not in path})
    done = run_cli("convert", seaweedfs_bucket.url("set"), tmp_path / "out", "--shard-size", "16KiB")
    assert done.code == 0, done.err
    assert dataset_id(tmp_path / "out") == dataset_id(direct)


def test_labels_of_a_data_set_in_a_bucket_are_kept(tmp_path: Path, seaweedfs_bucket: Bucket) -> None:
    tree = make_tree(tmp_path / "src", files_of())
    pack(tree, tmp_path / "direct", shard_size=16 << 10, label_from="parent")
    done = run_cli("pack", tree, seaweedfs_bucket.url("set"), "--shard-size", "16KiB", "--label-from", "parent")
    assert done.code == 0, done.err
    done = run_cli("convert", seaweedfs_bucket.url("set"), tmp_path / "out", "--shard-size", "16KiB")
    assert done.code == 0, done.err
    assert dataset_id(tmp_path / "out") == dataset_id(tmp_path / "direct")


def test_tables_below_a_prefix_are_found(tmp_path: Path, seaweedfs_bucket: Bucket) -> None:
    lines = {f"t/{n}.jsonl": json.dumps({"key": f"k{n}", "txt": str(n)}).encode() for n in range(3)}
    seaweedfs_bucket.put({**lines, "t/readme.md": b"no table"})
    done = run_cli("convert", seaweedfs_bucket.url("t"), tmp_path / "out", "--json")
    assert (done.code, done.json["samples"]) == (0, 3), done.err


def test_a_prefix_that_holds_nothing_is_named(tmp_path: Path, seaweedfs_bucket: Bucket) -> None:
    done = run_cli("convert", seaweedfs_bucket.url("nothing"), tmp_path / "out")
    assert done.code == 5
    assert seaweedfs_bucket.url("nothing") in done.err
