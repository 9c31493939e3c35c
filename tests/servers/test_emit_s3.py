"""Side files of a data set in an object store are those of the same data set in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from helpers import pack, run_cli
from store import packed, tree_of

from shardtool.emitted import EMITTED

if TYPE_CHECKING:
    from s3_servers import Bucket

PETS = Path(__file__).parent.parent.parent / "fixtures" / "pets"
ALL = "wids,sizes,list,dali,energon,hf-card"


def test_a_bucket_gets_the_same_files_as_a_folder(tmp_path: Path, seaweedfs_bucket: Bucket) -> None:
    out = tmp_path / "out"
    pack(PETS, out, shard_size=60_000, split="train=0.7,validation=0.3")
    seaweedfs_bucket.put(
        {str(path.relative_to(tmp_path)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    )
    done = run_cli("index", seaweedfs_bucket.url("out"), "--emit", ALL)
    assert done.code == 0, done.err
    assert run_cli("index", out, "--emit", ALL).code == 0
    names = [path.relative_to(tmp_path) for path in out.rglob("*") if path.is_file()]
    assert {str(name) for name in names} == set(seaweedfs_bucket.keys())
    for name in names:
        assert seaweedfs_bucket.get(str(name)) == (tmp_path / name).read_bytes(), name


def test_an_object_that_we_did_not_write_stays(tmp_path: Path, seaweedfs_bucket: Bucket) -> None:
    packed(tree_of(tmp_path / "tree"), tmp_path / "out")
    seaweedfs_bucket.put(
        {str(p.relative_to(tmp_path)): p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    )
    seaweedfs_bucket.put({"out/README.md": b"mine"})
    done = run_cli("index", seaweedfs_bucket.url("out"), "--emit", "list,hf-card")
    assert (done.code, "README.md" in done.err) == (6, True)
    assert seaweedfs_bucket.get("out/README.md") == b"mine"
    keys = seaweedfs_bucket.keys()
    assert f"out/{EMITTED}" not in keys
