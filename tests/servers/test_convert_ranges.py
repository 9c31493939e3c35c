"""Shards in a bucket as a source of `convert`: read by range, never unpacked, and the same as local ones."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest
from fault_proxy import Fault, FaultProxy
from groups import start, until
from helpers import make_tree, pack, run_cli
from test_convert import files_of, samples_of, tar_of

from shardtool.manifest import load_manifest
from shardtool.planning.plan_file import load_plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from s3_servers import Bucket, S3Server

SIZE = ("--shard-size", "24KiB")
SHARD = r"GET \S*/data/\S*\.(tar|tfrecord|mds|bin|arrow)\b"  # a request for bytes of a shard
BY_RANGE = ("tar", "tfrecord", "mds", "litdata", "arrow")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "src", files_of())


@pytest.fixture
def proxy(seaweedfs_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """Between shardtool and the server."""
    with FaultProxy(seaweedfs_bucket.server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


@pytest.fixture
def unspooled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is to be unpacked ends the run."""

    def refuse(_job: object, task: tuple[int, Any]) -> None:
        raise AssertionError(f"{task[1].path} is unpacked")

    for module in ("shardtool.shard_sources", "shardtool.shard_sources.spool"):
        monkeypatch.setattr(f"{module}.unpack", refuse)


def upload(bucket: Bucket, folder: Path, prefix: str) -> None:
    """A folder as objects, without what is hidden."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    bucket.put({f"{prefix}/{name}": path.read_bytes() for name, path in paths.items() if not name.startswith(".")})


def dataset_id(out: Path) -> str:
    return load_manifest(os.fspath(out)).dataset_id


def converted(source: str | Path, out: Path, *options: str) -> dict[str, Any]:
    done = run_cli("convert", source, out, *SIZE, "--json", *options)
    assert done.code == 0, done.err
    return done.json


def shard_requests(proxy: FaultProxy) -> list[tuple[str, str]]:
    """(range, If-Match) of each request for bytes of a shard."""
    return [(seen.range, seen.if_match) for seen in proxy.requests if re.search(SHARD, seen.what)]


@pytest.mark.usefixtures("unspooled")
@pytest.mark.parametrize("name", BY_RANGE)
def test_a_data_set_is_read_by_range_in_the_version_that_was_listed(
    tree: Path, tmp_path: Path, seaweedfs_bucket: Bucket, proxy: FaultProxy, name: str
) -> None:
    labels = () if name == "arrow" else ("--label-from", "parent")  # as numbers they are no runs of bytes in Arrow
    assert run_cli("pack", tree, tmp_path / "set", "--format", name, *SIZE, *labels).code == 0
    upload(seaweedfs_bucket, tmp_path / "set", "set")
    here = converted(tmp_path / "set", tmp_path / "here", "--seed", "3")
    there = converted(seaweedfs_bucket.url("set"), tmp_path / "there", "--seed", "3")
    assert (there["dataset_id"], there["plan_id"]) == (here["dataset_id"], here["plan_id"])
    asked = shard_requests(proxy)
    assert asked
    assert all(wanted.startswith("bytes=") and version for wanted, version in asked)
    stored = load_plan(os.fspath(tmp_path / "there"))
    assert stored is not None
    assert all(root.startswith("range:") and ":s3://" in root for root in stored.roots)


@pytest.mark.usefixtures("unspooled")
def test_a_plan_counts_the_memory_for_what_is_on_its_way(tree: Path, tmp_path: Path, seaweedfs_bucket: Bucket) -> None:
    pack(tree, tmp_path / "set", shards=1)
    upload(seaweedfs_bucket, tmp_path / "set", "set")
    here, there = (
        run_cli("convert", source, tmp_path / "out", "--dry-run", "--json").json["estimate"]["worker_bytes"]
        for source in (tmp_path / "set", seaweedfs_bucket.url("set"))
    )
    assert there - here == 96 << 20


@pytest.mark.usefixtures("unspooled")
def test_parts_that_are_neighbours_come_by_one_request(
    tree: Path, tmp_path: Path, seaweedfs_bucket: Bucket, proxy: FaultProxy
) -> None:
    pack(tree, tmp_path / "set", shards=3)
    upload(seaweedfs_bucket, tmp_path / "set", "set")
    converted(
        seaweedfs_bucket.url("set"), tmp_path / "out", "--shuffle", "none", "--shards", "1", "--shard-size", "1MiB"
    )
    assert len(shard_requests(proxy)) == 3


@pytest.mark.usefixtures("unspooled")
@pytest.mark.parametrize("name", ["tar", "tfrecord", "mds", "litdata"])
def test_loose_shards_are_planned_from_what_they_say_of_themselves(
    tree: Path, tmp_path: Path, seaweedfs_bucket: Bucket, name: str
) -> None:
    options = ("--format", name, *SIZE, "--split", "train=0.8,test=0.2")
    assert run_cli("pack", tree, tmp_path / "set", *options).code == 0
    shutil.copytree(tmp_path / "set/data", tmp_path / "bare/data")
    upload(seaweedfs_bucket, tmp_path / "bare", "bare")
    here, there = (
        converted(source, tmp_path / out)
        for source, out in ((tmp_path / "bare", "here"), (seaweedfs_bucket.url("bare"), "there"))
    )
    assert there["dataset_id"] == here["dataset_id"]
    assert samples_of(tmp_path / "there") == samples_of(tmp_path / "set")


@pytest.mark.usefixtures("unspooled")
def test_large_members_of_a_tar_are_passed_over_and_read_in_pieces(
    tmp_path: Path, seaweedfs_bucket: Bucket, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardtool.shard_sources.remote_headers.SKIP_BYTES", 4 << 20)
    monkeypatch.setattr("shardtool.storage.files.WINDOW_BYTES", 1 << 20)
    rng = random.Random(5)
    files = {f"{n}.bin": rng.randbytes(size) for n, size in enumerate((40 << 20, 10, 20 << 20, 0))}
    tar_of(tmp_path / "a.tar", files, "w")
    upload(seaweedfs_bucket, tmp_path, "data")
    url = seaweedfs_bucket.url("data/a.tar")
    assert run_cli("convert", url, tmp_path / "out", "--dry-run").code == 0
    looked = proxy.sent_bytes(SHARD)
    assert looked < 10 << 20, "60 MiB of contents have nothing to tell"
    converted(url, tmp_path / "out", "--shard-size", "100MiB")
    assert samples_of(tmp_path / "out") == {("train", str(n).encode()): {"bin": files[f"{n}.bin"]} for n in range(4)}


@pytest.mark.usefixtures("unspooled")
@pytest.mark.parametrize("name", ["tar", "mds"])
def test_keys_may_have_any_slashes_and_signs(
    tree: Path, tmp_path: Path, ceph: S3Server, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for variable, value in ceph.environment().items():
        monkeypatch.setenv(variable, value)
    bucket = ceph.make_bucket()
    assert run_cli("pack", tree, tmp_path / "set", "--format", name, "--shards", "1").code == 0
    (shard,) = (path for path in (tmp_path / "set/data").rglob(f"*.{name}"))
    key = f"in//a b/../é#?&%41.{name}"
    bucket.put({key: shard.read_bytes()})
    for number, url in enumerate((bucket.url("in"), bucket.url(key))):
        converted(url, tmp_path / str(number))
        found = samples_of(tmp_path / str(number))
        assert list(found.values()) == list(samples_of(tmp_path / "set").values())


@pytest.mark.usefixtures("unspooled")
def test_local_and_remote_shards_are_merged(tmp_path: Path, seaweedfs_bucket: Bucket) -> None:
    files = files_of()
    pictures = {name: data for name, data in files.items() if name.endswith(".jpg")}
    others = {name: data for name, data in files.items() if not name.endswith(".jpg")}
    pack(make_tree(tmp_path / "p", pictures), tmp_path / "here", shards=2)
    pack(make_tree(tmp_path / "o", others), tmp_path / "there", shards=2)
    upload(seaweedfs_bucket, tmp_path / "there", "there")
    pack(make_tree(tmp_path / "all", files), tmp_path / "direct", shard_size=24 << 10)
    done = run_cli("convert", tmp_path / "here", seaweedfs_bucket.url("there"), tmp_path / "out", *SIZE)
    assert done.code == 0, done.err
    assert dataset_id(tmp_path / "out") == dataset_id(tmp_path / "direct")


def test_an_object_that_was_replaced_since_the_plan_is_noticed(
    tree: Path, tmp_path: Path, seaweedfs_bucket: Bucket
) -> None:
    pack(tree, tmp_path / "set", shards=1)
    upload(seaweedfs_bucket, tmp_path / "set", "set")
    url, key = seaweedfs_bucket.url("set"), "set/data/train-00000-of-00001.tar"
    assert run_cli("convert", url, tmp_path / "out", *SIZE, "--part", "0/2").code == 0
    data = seaweedfs_bucket.get(key)
    replaced = data.replace(b"text of 7", b"TEXT of 7")
    seaweedfs_bucket.put({key: replaced})
    done = run_cli("convert", url, tmp_path / "out", *SIZE, "--json")
    assert (done.code, done.error["code"]) == (5, "SourceChanged")
    assert key in done.error["message"]
    assert "--rescan" in done.error["hint"]
    skipping = run_cli("convert", url, tmp_path / "out", *SIZE, "--on-changed", "skip")
    assert skipping.code in (3, 5)  # 5 where a whole shard comes of what is gone
    seaweedfs_bucket.put({key: data})
    assert run_cli("convert", url, tmp_path / "out", *SIZE).code == 0
    assert len(samples_of(tmp_path / "out")) == 60


def test_a_replaced_object_with_the_same_parts_is_taken_by_a_rescan(
    tree: Path, tmp_path: Path, seaweedfs_bucket: Bucket
) -> None:
    """Uploaded again in two parts, its ETag is another; its index says that its parts are the same."""
    rng = random.Random(1)
    make_tree(tree, {"large/0.bin": rng.randbytes(6 << 20)})
    pack(tree, tmp_path / "set", shards=1)
    upload(seaweedfs_bucket, tmp_path / "set", "set")
    url, key = seaweedfs_bucket.url("set"), "set/data/train-00000-of-00001.tar"
    assert run_cli("convert", url, tmp_path / "out", "--shards", "4", "--part", "0/2").code == 0
    client, body = seaweedfs_bucket.server.client(), seaweedfs_bucket.get(key)
    where = {"Bucket": seaweedfs_bucket.name, "Key": key}
    begun = client.create_multipart_upload(**where)["UploadId"]
    pieces = [
        {
            "PartNumber": number,
            "ETag": client.upload_part(**where, UploadId=begun, PartNumber=number, Body=piece)["ETag"],
        }
        for number, piece in ((1, body[: 5 << 20]), (2, body[5 << 20 :]))
    ]
    client.complete_multipart_upload(**where, UploadId=begun, MultipartUpload={"Parts": pieces})
    assert run_cli("convert", url, tmp_path / "out", "--shards", "4").code == 5
    done = run_cli("convert", url, tmp_path / "out", "--shards", "4", "--rescan")
    assert done.code == 0, done.err
    assert samples_of(tmp_path / "out") == samples_of(tmp_path / "set")


def test_damage_on_the_way_is_fetched_again_and_damage_that_stays_is_an_error(
    tree: Path, tmp_path: Path, seaweedfs_bucket: Bucket, proxy: FaultProxy
) -> None:
    pack(tree, tmp_path / "set", shards=2)
    upload(seaweedfs_bucket, tmp_path / "set", "set")
    url = seaweedfs_bucket.url("set")
    proxy.add(SHARD, Fault("flip", at=3))
    assert converted(url, tmp_path / "out")["retries"] >= 1
    assert samples_of(tmp_path / "out") == samples_of(tmp_path / "set")
    proxy.add(SHARD, Fault("flip", at=3), times=-1)
    done = run_cli("convert", url, tmp_path / "again", *SIZE, "--json")
    assert (done.code, done.error["code"]) == (5, "SourceError")
    assert "damaged" in done.error["message"]
    assert seaweedfs_bucket.name in done.error["where"]["path"]


def test_faults_on_the_wire_change_nothing(
    tree: Path, tmp_path: Path, seaweedfs_bucket: Bucket, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardtool.shard_sources.runs.MAX_GAP", 0)  # many requests
    make_tree(tree, {f"more/{n:04d}.txt": b"%d" % n * 50 for n in range(400)})
    pack(tree, tmp_path / "set", shards=3)
    upload(seaweedfs_bucket, tmp_path / "set", "set")
    for number, fault in enumerate((Fault("status"), Fault("close", at=20), Fault("reset", at=9), Fault("flip", at=5))):
        proxy.add(SHARD, fault, times=-1, probability=0.0125, seed=number)
    document = converted(seaweedfs_bucket.url("set"), tmp_path / "out", "--seed", "9")
    assert proxy.faults() > 0
    assert document["retries"] > 0
    assert document["dataset_id"] == converted(tmp_path / "set", tmp_path / "here", "--seed", "9")["dataset_id"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_run_goes_on_where_it_was(
    tree: Path, tmp_path: Path, seaweedfs_bucket: Bucket, proxy: FaultProxy
) -> None:
    pack(tree, tmp_path / "set", shards=3)
    upload(seaweedfs_bucket, tmp_path / "set", "set")
    url, out = seaweedfs_bucket.url("set"), tmp_path / "out"
    proxy.add(SHARD, Fault("latency", seconds=0.2), skip=30, times=-1)
    run = start("convert", url, out, "--shards", "20", "--shard-size", "1MiB", "--workers", "1")
    until(lambda: run.is_over or len(list(out.glob(".shardtool/receipts/[!.]*.json"))) > 2)
    run.signal(signal.SIGKILL)
    assert run.end()[0] == -signal.SIGKILL
    proxy.clear()
    done = run_cli("convert", url, out, "--shards", "20", "--shard-size", "1MiB", "--json")
    assert done.code == 0, done.err
    assert done.json["resumed_shards"] > 0
    assert samples_of(out) == samples_of(tmp_path / "set")


def test_what_must_be_decoded_is_refused_before_it_is_fetched_where_there_is_no_room(
    tree: Path, tmp_path: Path, seaweedfs_bucket: Bucket, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_cli("pack", tree, tmp_path / "set", "--format", "parquet", *SIZE).code == 0
    upload(seaweedfs_bucket, tmp_path / "set", "set")
    planned = run_cli("convert", seaweedfs_bucket.url("set"), tmp_path / "out", "--dry-run", "--json").json
    assert [text for text in planned["advice"] if "must be decoded" in text]
    proxy.clear()
    monkeypatch.setattr("shardtool.shard_sources.room.free_space", lambda _: (1000, 1000))
    done = run_cli("convert", seaweedfs_bucket.url("set"), tmp_path / "out", "--json")
    assert (done.code, done.error["code"]) == (7, "NoSpace")
    payload = load_manifest(os.fspath(tmp_path / "set")).payload_bytes
    assert f"{payload / 1024:.1f} KiB are needed" in done.error["message"]
    assert proxy.count(r"GET \S*\.parquet") == 0
