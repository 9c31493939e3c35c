"""Every command that reads a data set says of a bucket what it says of a folder, damage included."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from helpers import make_tree, run_cli
from snapshots import files_below
from store import NUM_SHARDS, contents, files_of, packed, tree_of

from shardtool.indexing.bare_shards import find_shards

if TYPE_CHECKING:
    from pathlib import Path

    from s3_servers import Bucket

SHARD = "data/train-00001-of-00004.tar"
INDEX = "index/00001.arrow"


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return packed(tree_of(tmp_path / "src"), tmp_path / "local")


@pytest.fixture
def url(seaweedfs_bucket: Bucket, local: Path) -> str:
    """The same data set in a bucket."""
    seaweedfs_bucket.put({f"out/{path}": data for path, data in files_of(local).items()})
    return seaweedfs_bucket.url("out")


def documents(url: str, local: Path, *command: str) -> tuple[Any, Any]:
    """(what --json tells of the bucket, what it tells of the folder), places and times aside."""
    found = []
    for place in (url, os.fspath(local)):
        ran = run_cli(*(word.replace("OUT", place) for word in command), "--json")
        assert ran.code == 0, ran.err
        document = json.loads(ran.out.replace(place, "OUT"))
        found.append({name: value for name, value in document.items() if name not in ("seconds", "measured")})
    return found[0], found[1]


@pytest.mark.parametrize(
    "command",
    [
        ("verify", "OUT"),
        ("verify", "OUT", "--deep"),
        ("verify", "OUT", "--reader", "webdataset"),
        ("stats", "OUT"),
        ("stats", "OUT", "--world-size", "4"),
        ("ls", "OUT"),
        ("ls", "OUT", "--samples"),
        ("ls", "OUT", "--braces"),
        ("cat", "OUT", "a/0003.txt", "b/0004.bin"),
        ("inspect", "OUT"),
        ("inspect", "OUT", "a/0003"),
        ("inspect", "OUT", "1"),
        ("inspect", f"OUT/{SHARD}"),
        ("status", "OUT"),
        ("index", "OUT"),
        ("assign", "OUT", "--world-size", "3"),
        ("where", "OUT", "a/0003", "--world-size", "2"),
        ("verify", "OUT/data/*.tar"),
        ("verify", "OUT/data/train-{00000..00003}-of-00004.tar"),
        ("verify", "OUT/data"),
    ],
    ids=" ".join,
)
def test_a_command_says_the_same_of_a_bucket(url: str, local: Path, command: tuple[str, ...]) -> None:
    there, here = documents(url, local, *command)
    assert there == here


def test_samples_are_extracted_from_a_bucket(url: str, local: Path, tmp_path: Path) -> None:
    assert run_cli("extract", url, tmp_path / "x").code == 0
    src = tmp_path / "src"
    assert {path.relative_to(tmp_path / "x"): path.read_bytes() for path in files_below(tmp_path / "x")} == {
        path.relative_to(src): path.read_bytes() for path in files_below(src)
    }


def test_files_are_not_extracted_to_a_bucket(url: str, local: Path) -> None:
    ran = run_cli("extract", local, url + "-files", "--json")
    assert (ran.code, ran.error["code"]) == (2, "UsageProblem")


def test_a_bucket_and_a_folder_are_compared(url: str, local: Path, tmp_path: Path) -> None:
    assert run_cli("diff", url, local, "--json").json["equal"]
    other = packed(tree_of(tmp_path / "more", num_samples=61), tmp_path / "other")
    assert run_cli("diff", url, other, "--json").json["added"]["count"] > 0


def test_an_assignment_is_written_for_readers_of_a_bucket(url: str, tmp_path: Path) -> None:
    target = tmp_path / "ranks"
    assert run_cli("assign", url, "--world-size", "2", "--emit", "urls", "-o", target).code == 0
    lines = [line for path in files_below(target) if path.suffix == ".urls" for line in path.read_text().splitlines()]
    assert lines
    assert all(line.startswith((url, f"pipe:aws s3 cp {url}")) for line in lines)


def faults(url: str, *options: str) -> set[str]:
    ran = run_cli("verify", url, *options, "--json")
    assert ran.code in (0, 4), ran.err
    return {problem["kind"] for problem in ran.json["problems"]}


def test_damage_in_a_bucket_is_found(url: str, seaweedfs_bucket: Bucket) -> None:
    bucket, shard, index = seaweedfs_bucket, f"out/{SHARD}", f"out/{INDEX}"
    data, columns = bucket.get(shard), bucket.get(index)
    middle = len(data) // 2
    bucket.put({shard: data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]})
    assert faults(url) == set()
    assert faults(url, "--deep") & {"altered", "structure"}
    bucket.put({shard: data[:-512]})
    assert faults(url) == {"truncated"}
    bucket.server.client().delete_object(Bucket=bucket.name, Key=shard)
    assert faults(url) == {"missing"}
    bucket.put({shard: data, index: columns[:-8] + bytes(8)})
    assert faults(url) == {"index"}
    bucket.put({index: columns, "out/data/stray.tar": b"x", "out/labels.json": b"[]"})
    assert faults(url) == {"stranger", "labels"}


def test_a_damaged_index_is_never_taken_from_the_cache_for_whole(url: str, seaweedfs_bucket: Bucket) -> None:
    assert run_cli("cat", url, "a/0003.txt").code == 0  # the cache holds indexes now
    for path in contents(seaweedfs_bucket, "out/index/"):
        seaweedfs_bucket.put({f"out/index/{path}": b"gone bad"})
    assert faults(url) == {"index"}


def test_a_damaged_copy_in_the_cache_is_fetched_again(url: str) -> None:
    assert run_cli("cat", url, "a/0003.txt").code == 0
    folder = os.path.join(os.environ["SHARDTOOL_CACHE"], "indexes")
    kept = [os.path.join(folder, name) for name in os.listdir(folder)]
    assert kept
    for path in kept:
        with open(path, "r+b") as file:
            file.write(b"garbage")
    assert run_cli("cat", url, "a/0003.txt").out == "caption 3"


def test_an_index_that_is_another_on_the_store_is_refused(url: str, seaweedfs_bucket: Bucket) -> None:
    indexes = contents(seaweedfs_bucket, "out/index/")
    seaweedfs_bucket.put({f"out/index/{path}": data[:-1] + b"!" for path, data in indexes.items()})
    ran = run_cli("stats", url, "--json")
    assert (ran.code, ran.error["code"]) == (4, "CorruptShard")
    assert url in ran.error["message"]


@pytest.mark.parametrize("lost", [("manifest.json",), (INDEX,), (INDEX, ".shardtool/receipts.jsonl", "manifest.json")])
def test_what_is_lost_in_a_bucket_is_made_again(url: str, seaweedfs_bucket: Bucket, lost: tuple[str, ...]) -> None:
    whole = contents(seaweedfs_bucket, "out/")
    for path in lost:
        seaweedfs_bucket.server.client().delete_object(Bucket=seaweedfs_bucket.name, Key=f"out/{path}")
    ran = run_cli("index", url)
    assert ran.code == 0, ran.err
    assert contents(seaweedfs_bucket, "out/") == whole


def test_lost_indexes_come_back_without_a_plan(url: str, seaweedfs_bucket: Bucket) -> None:
    client = seaweedfs_bucket.server.client()
    gone = [path for path in contents(seaweedfs_bucket, "out/") if path.startswith((".shardtool", INDEX))]
    for path in gone:
        client.delete_object(Bucket=seaweedfs_bucket.name, Key=f"out/{path}")
    assert run_cli("index", url).code == 0
    assert faults(url, "--deep") == set()


def test_foreign_shards_in_a_bucket_become_a_data_set(seaweedfs_bucket: Bucket, local: Path, tmp_path: Path) -> None:
    shards = {path: data for path, data in files_of(local).items() if path.endswith(".tar")}
    seaweedfs_bucket.put({f"bare/{path}": data for path, data in shards.items()})
    for path, data in shards.items():
        make_tree(tmp_path / "bare", {path: data})
    url = seaweedfs_bucket.url("bare")
    there, here = run_cli("index", url, "--json"), run_cli("index", tmp_path / "bare", "--json")
    assert there.code == here.code == 0, there.err
    assert there.json["dataset_id"] == here.json["dataset_id"]
    assert contents(seaweedfs_bucket, "bare/") == files_of(tmp_path / "bare")
    assert faults(url, "--deep") == set()


def test_foreign_shards_are_found_as_the_shell_would(seaweedfs_bucket: Bucket) -> None:
    names = ("s/a-2.tar", "s/a-10.tar", "s/in/a-3.tar", "s/b.txt", "t/data/x/0.tar", "t/data/1.tar", "t/9.tar")
    seaweedfs_bucket.put(dict.fromkeys(names, b""))
    url = seaweedfs_bucket.url
    assert find_shards([url("s")]) == [url("s/a-2.tar"), url("s/a-10.tar")]
    assert find_shards([url("s/")]) == [url("s/a-2.tar"), url("s/a-10.tar")]
    assert find_shards([url("s/*-*.tar")]) == [url("s/a-2.tar"), url("s/a-10.tar")]
    assert find_shards([url("*/in/*.tar")]) == [url("s/in/a-3.tar")]
    assert find_shards([url("t")]) == [url("t/data/1.tar"), url("t/data/x/0.tar")]
    assert find_shards([url("s/a-{2..3}.tar")]) == [url("s/a-2.tar"), url("s/a-3.tar")]


def test_links_to_foreign_shards_in_a_bucket_are_refused(url: str, tmp_path: Path) -> None:
    ran = run_cli("index", url + "/data", "--out-dir", tmp_path / "index", "--json")
    assert (ran.code, ran.error["code"]) == (2, "UsageProblem")
    ran = run_cli("index", f"{url}/{SHARD}", tmp_path, "--json")
    assert ran.code in (2, 5)


@pytest.mark.parametrize("command", [("stats",), ("verify",), ("status",), ("ls",), ("extract", "x")], ids=" ".join)
def test_what_is_not_there_is_said(seaweedfs_bucket: Bucket, command: tuple[str, ...], tmp_path: Path) -> None:
    name, *rest = command
    for url in (seaweedfs_bucket.url("nothing"), "s3://no-such-bucket-here/out"):
        ran = run_cli(name, url, *(tmp_path / word for word in rest), "--json")
        assert (ran.code, ran.error["code"]) == (5, "SourceNotFound"), ran.err
        assert (url if "nothing" in url else "no-such-bucket-here") in ran.error["message"]


def test_the_number_of_shards_is_that_of_the_folder(url: str) -> None:
    assert run_cli("ls", url, "-q").out.splitlines() == [
        f"{url}/data/train-{number:05d}-of-{NUM_SHARDS:05d}.tar" for number in range(NUM_SHARDS)
    ]
