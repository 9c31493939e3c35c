"""Objects are packed as files are: the same data set from a folder and from every store, through faults and changes."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import subprocess
import sys
import tarfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from fault_proxy import Fault, FaultProxy
from helpers import make_tree, run_cli

from shardtool.planning.plan_file import read_rows
from shardtool.sources import s3_reader
from shardtool.storage.s3.settings import S3Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from s3_servers import Bucket


def tree_of(seed: int, samples: int) -> dict[str, bytes]:
    """Files of a small data set in several folders, empty ones among them."""
    rng = random.Random(seed)
    files = {}
    for number in range(samples):
        stem = f"{('', 'a/', 'a/b/', 'c-d/')[number % 4]}s{number:05d}"
        files[f"{stem}.jpg"] = rng.randbytes(rng.choice((0, 1, 700, 3000)))
        files[f"{stem}.json"] = b'{"n": %d}' % number
    return files


def fill(bucket: Bucket, files: dict[str, bytes], prefix: str = "data/") -> None:
    """Put them side by side: boto3 takes a millisecond for each."""
    client = bucket.server.client()
    with ThreadPoolExecutor(16) as pool:
        for done in [
            pool.submit(client.put_object, Bucket=bucket.name, Key=prefix + key, Body=body)
            for key, body in files.items()
        ]:
            done.result()


def packed(out: Path) -> dict[str, bytes]:
    """Member name -> content, over all shards."""
    found = {}
    for shard in sorted(out.glob("data/*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                found[member.name] = file.read()
    return found


@pytest.fixture
def proxy(seaweedfs_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """Between shardtool and SeaweedFS."""
    with FaultProxy(seaweedfs_bucket.server.endpoint) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.endpoint)
        yield running


def test_a_folder_and_every_store_give_the_same_data_set(bucket: Bucket, tmp_path: Path) -> None:
    files = {**tree_of(1, 300), ".DS_Store": b"junk", ".hidden/x.jpg": b"h", "__MACOSX/y.jpg": b"m"}
    fill(bucket, files)
    options = ("--json", "--shard-size", "100KiB", "--split", "train=0.8,test=0.2")
    local = run_cli("pack", make_tree(tmp_path / "tree", files), tmp_path / "a", *options)
    remote = run_cli("pack", bucket.url("data"), tmp_path / "b", *options)
    assert (local.code, remote.code) == (0, 0), remote.err
    assert remote.json["dataset_id"] == local.json["dataset_id"]
    assert remote.json["plan_id"] == local.json["plan_id"]
    assert remote.json["ledger"] == local.json["ledger"]
    assert run_cli("verify", tmp_path / "b", "--deep").code == 0


def test_worker_processes_give_the_same_data_set(seaweedfs_bucket: Bucket, tmp_path: Path) -> None:
    fill(seaweedfs_bucket, tree_of(2, 200))
    ids = set()
    for number, workers in enumerate((0, 3)):
        out = tmp_path / str(number)
        ran = run_cli("pack", seaweedfs_bucket.url("data/"), out, "--json", "--shard-size", "50KiB", workers=workers)
        assert ran.code == 0, ran.err
        ids.add(ran.json["dataset_id"])
    assert len(ids) == 1


ODD: tuple[str, ...] = (
    "a b",
    "a//b",
    "a/./b",
    "a/../b",
    "../b",
    "back\\slash",
    "new\nline",
    "ä/ö",
    "日本",
    "k",
    "k.jpg/x",
    "p+%25",
    "x" * 240,
    f"{'y' * 300}/{'z' * 300}",
    "/lead",
    "//lead",
    "$dollar",
    "\u3000",
    "\u00a0",
    "del\x7f",
    "q'\"<>&",
    "trailing ",
    "-dash",
)


def test_odd_keys_come_through_on_a_store_that_keeps_them(ceph_bucket: Bucket, tmp_path: Path) -> None:
    files = {f"{key}.jpg": key.encode() for key in ODD}
    fill(ceph_bucket, {**files, "x/": b"a folder with a body", "x/y/": b"another"})
    ran = run_cli("pack", ceph_bucket.url("data"), tmp_path / "out", "--json", "--hidden")
    assert ran.code == 0, ran.err
    assert packed(tmp_path / "out") == files
    ledger = ran.json["ledger"]
    assert ledger["ignored"] == {"folder_marker": 2}
    assert ledger["seen"] == len(files) + 2


def test_folder_markers_are_ignored_and_counted(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put({"data/": b"", "data/a/": b"", "data/a/x.jpg": b"x", "data/b_$folder$": b""})
    ran = run_cli("pack", bucket.url("data"), tmp_path / "out", "--json")
    assert ran.code == 0, ran.err
    ledger = ran.json["ledger"]
    assert ledger["packed"] == 1
    assert ledger["ignored"]["folder_marker"] >= 2
    assert ledger["seen"] == 1 + sum(ledger["ignored"].values())


def test_a_prefix_means_what_lies_below_it(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put({"data/x.jpg": b"1", "data-old/y.jpg": b"2", "datax.jpg": b"3"})
    assert run_cli("pack", bucket.url("data"), tmp_path / "out").code == 0
    assert packed(tmp_path / "out") == {"x.jpg": b"1"}


def test_a_whole_bucket_is_a_source(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put({"x.jpg": b"1", "a/y.jpg": b"2"})
    assert run_cli("pack", f"s3://{bucket.name}", tmp_path / "out").code == 0
    assert packed(tmp_path / "out") == {"x.jpg": b"1", "a/y.jpg": b"2"}


MIXED = (
    Fault("status", status=503, code="SlowDown"),
    Fault("status", status=500, code="InternalError"),
    Fault("refuse"),
    Fault("reset", at=100),
    Fault("close", at=10),
    Fault("stall", seconds=60),
    Fault("flip"),
    Fault("error200", code="InternalError"),
)
PATIENCE_S = 1.0  # instead of 30: a stall is waited for


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that says nothing is left sooner."""
    from_environ = S3Settings.from_environ
    monkeypatch.setattr(
        S3Settings, "from_environ", lambda *env: replace(from_environ(*env), read_s=PATIENCE_S, stall_s=PATIENCE_S)
    )


@pytest.mark.usefixtures("impatient")
def test_many_faults_on_the_wire_change_nothing_but_the_count_of_retries(
    proxy: FaultProxy, seaweedfs_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 % of 5,000 objects, of eight kinds. A flipped bit is known by the MD5 in the listing, and by nothing else."""
    monkeypatch.setenv(s3_reader.CHECK_MD5, "1")
    files = tree_of(3, 2500)
    fill(seaweedfs_bucket, files)
    wanted = run_cli("pack", make_tree(tmp_path / "tree", files), tmp_path / "a", "--json", "--shard-size", "2MiB")
    for number, fault in enumerate(MIXED):
        proxy.add(r"GET .*data/", fault, times=-1, probability=0.05 / len(MIXED), seed=number)
    ran = run_cli("pack", seaweedfs_bucket.url("data"), tmp_path / "b", "--json", "--shard-size", "2MiB")
    assert ran.code == 0, ran.err
    assert ran.json["dataset_id"] == wanted.json["dataset_id"]
    struck = Counter(seen.fault for seen in proxy.requests if seen.fault)
    assert set(struck) == {fault.kind for fault in MIXED}
    assert struck.total() > 150
    assert ran.json["retries"] > struck["status"] + struck["error200"] > 50  # others may strike an empty body


def test_a_store_that_keeps_failing_ends_the_run_with_code_8(
    proxy: FaultProxy, seaweedfs_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(seaweedfs_bucket, tree_of(4, 5))
    monkeypatch.setenv("SHARDTOOL_S3_RETRY_SECONDS", "0.5")
    proxy.add(r"s00003\.jpg", Fault("status", status=500, code="InternalError"), times=-1)
    ran = run_cli("pack", seaweedfs_bucket.url("data"), tmp_path / "out", "--json")
    assert ran.code == 8
    assert "s00003.jpg" in ran.error["message"]
    proxy.clear()
    again = run_cli("pack", seaweedfs_bucket.url("data"), tmp_path / "out", "--json")
    assert again.code == 0, again.err


@pytest.mark.parametrize("change", ["replace", "delete"])
@pytest.mark.parametrize("policy", ["error", "skip"])
def test_an_object_that_changes_after_the_scan_follows_the_policy(
    bucket: Bucket, tmp_path: Path, change: str, policy: str
) -> None:
    fill(bucket, tree_of(5, 40))
    url, out = bucket.url("data"), tmp_path / "out"
    assert run_cli("plan", url, out, "--write").code == 0
    client = bucket.server.client()
    if change == "replace":
        client.put_object(Bucket=bucket.name, Key="data/a/s00001.jpg", Body=b"other")
    else:
        client.delete_object(Bucket=bucket.name, Key="data/a/s00001.jpg")
    ran = run_cli("pack", out, "--json", "--on-changed", policy, "--on-error", policy)
    if policy == "error":
        assert ran.code == 5
        assert "data/a/s00001.jpg" in ran.error["message"]
        return
    assert ran.code == 3, ran.err
    assert ran.json["ledger"]["failed"] == 2
    assert "a/s00001" in (out / ".shardtool" / "failed.jsonl").read_text()
    assert len(packed(out)) == 78


def test_a_replaced_object_of_equal_size_is_noticed(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put({"data/x.jpg": b"one", "data/y.jpg": b"two"})
    assert run_cli("pack", bucket.url("data"), tmp_path / "out").code == 0
    same = run_cli("pack", bucket.url("data"), tmp_path / "out")
    assert (same.code, "nothing to do" in same.out) == (0, True), same.err
    bucket.put({"data/x.jpg": b"two"})
    changed = run_cli("pack", bucket.url("data"), tmp_path / "out", "--json")
    assert changed.code == 6
    assert "x.jpg" in changed.error["message"]
    assert run_cli("pack", bucket.url("data"), tmp_path / "out", "--update").code == 0
    assert packed(tmp_path / "out") == {"x.jpg": b"two", "y.jpg": b"two"}


def test_a_damaged_plan_of_objects_is_mended_where_their_contents_are_the_same(
    seaweedfs_bucket: Bucket, tmp_path: Path
) -> None:
    fill(seaweedfs_bucket, tree_of(6, 40))
    out, options = tmp_path / "out", ("--shards", "3")
    assert run_cli("pack", seaweedfs_bucket.url("data"), out, *options).code == 0
    damage_a_key_of(out)
    inodes = [path.stat().st_ino for path in sorted(out.glob("data/*.tar"))]
    mended = run_cli("pack", seaweedfs_bucket.url("data"), out, *options)
    assert mended.code == 0, mended.err
    assert "the stored rows of 1 shard are damaged: contents are compared" in mended.err
    assert [path.stat().st_ino for path in sorted(out.glob("data/*.tar"))] == inodes
    again = run_cli("pack", seaweedfs_bucket.url("data"), out, *options)
    assert (again.code, "damaged" in again.err) == (0, False)

    key = damage_a_key_of(out)
    seaweedfs_bucket.put({f"data/{key}.json": b'{"n": !}'})
    changed = run_cli("pack", seaweedfs_bucket.url("data"), out, *options)
    assert (changed.code, "files: 1 changed" in changed.err) == (6, True), changed.err


def damage_a_key_of(out: Path) -> str:
    """Flip a bit of the first planned key whose JSON has one digit; that key."""
    rows = read_rows(os.fspath(out), 0)
    key: bytes = next(key for key in rows.keys.to_pylist() if key[-5:-1] == b"0000")
    path = out / ".shardtool/plan/000.arrow"
    data = path.read_bytes()
    path.write_bytes(data.replace(key, bytes([key[0] ^ 1]) + key[1:], 1))
    return key.decode()


def test_a_large_object_comes_in_pieces_each_of_the_same_version(
    proxy: FaultProxy, seaweedfs_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_reader, "PIECE_BYTES", 1 << 20)
    body = random.Random(6).randbytes((5 << 20) + 17)
    seaweedfs_bucket.put({"data/x.bin": body, "data/y.bin": b"y"})
    proxy.add(r"GET .*x\.bin\|bytes=2097152-", Fault("close", at=100_000))
    assert run_cli("pack", seaweedfs_bucket.url("data"), tmp_path / "out").code == 0
    assert packed(tmp_path / "out") == {"x.bin": body, "y.bin": b"y"}
    ranges = [seen for seen in proxy.requests if "x.bin" in seen.path]
    assert len(ranges) == 7  # six pieces, one of which broke
    assert {seen.if_match for seen in ranges} == {f'"{hashlib.md5(body).hexdigest()}"'}


def test_a_flipped_bit_is_found_and_fetched_again_where_md5_is_checked(
    proxy: FaultProxy, seaweedfs_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(s3_reader.CHECK_MD5, "1")
    seaweedfs_bucket.put({"data/x.jpg": b"body", "data/y.jpg": b"why"})
    proxy.add(r"GET .*x\.jpg", Fault("flip", at=2))
    ran = run_cli("pack", seaweedfs_bucket.url("data"), tmp_path / "out", "--json")
    assert ran.code == 0, ran.err
    assert packed(tmp_path / "out") == {"x.jpg": b"body", "y.jpg": b"why"}
    assert ran.json["retries"] == 1


def test_an_object_that_stays_damaged_is_an_error(
    proxy: FaultProxy, seaweedfs_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(s3_reader.CHECK_MD5, "1")
    seaweedfs_bucket.put({"data/x.jpg": b"body", "data/y.jpg": b"why"})
    proxy.add(r"GET .*x\.jpg", Fault("flip", at=2), times=-1)
    ran = run_cli("pack", seaweedfs_bucket.url("data"), tmp_path / "out", "--json")
    assert (ran.code, "another MD5" in ran.error["message"]) == (5, True)
    skipped = run_cli("pack", seaweedfs_bucket.url("data"), tmp_path / "out", "--json", "--on-error", "skip")
    assert skipped.code == 3
    assert packed(tmp_path / "out") == {"y.jpg": b"why"}


def test_a_list_of_keys_names_what_is_packed(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put({"data/x.jpg": b"1", "data/a/.y.jpg": b"2", "data/z.jpg": b"3"})
    listing = tmp_path / "list"
    listing.write_text(f"x.jpg\n{bucket.url('data/a/.y.jpg')}\n")
    ran = run_cli("pack", bucket.url("data"), tmp_path / "out", "--files-from", listing)
    assert ran.code == 0, ran.err
    assert sorted(packed(tmp_path / "out").values()) == [b"1", b"2"]


def test_a_long_list_is_looked_up_in_a_listing(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardtool.sources.s3.MAX_HEADS", 1)
    bucket.put({"data/x.jpg": b"1", "data/y.jpg": b"2", "data/z.jpg": b"3"})
    (tmp_path / "list").write_text("x.jpg\ny.jpg\nnone.jpg\n")
    ran = run_cli("pack", bucket.url("data"), tmp_path / "out", "--files-from", tmp_path / "list", "--json")
    assert ran.code == 5
    assert "none.jpg" in ran.error["message"]
    skipping = ("--files-from", tmp_path / "list", "--on-error", "skip")
    assert run_cli("pack", bucket.url("data"), tmp_path / "out", *skipping).code == 3
    assert packed(tmp_path / "out") == {"x.jpg": b"1", "y.jpg": b"2"}


def test_all_troubles_of_a_list_are_told_at_once(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put({"data/x.jpg": b"1"})
    (tmp_path / "list").write_text("x.jpg\nx.jpg\ngone.jpg\ns3://" + bucket.name + "/other/y.jpg\ns3://another/z.jpg\n")
    ran = run_cli("scan", bucket.url("data"), "--files-from", tmp_path / "list", "--json")
    assert ran.code == 5
    for told in ("gone.jpg", "x.jpg", "other/y.jpg", "another/z.jpg"):
        assert told in ran.error["message"]


def test_a_kept_list_saves_the_next_listing(proxy: FaultProxy, seaweedfs_bucket: Bucket, tmp_path: Path) -> None:
    fill(seaweedfs_bucket, tree_of(7, 20))
    cache = ("--list-cache", tmp_path / "list.arrow", "--json")
    first = run_cli("plan", seaweedfs_bucket.url("data"), tmp_path / "out", *cache)
    assert proxy.count("list-type=2") > 0
    proxy.clear()
    second = run_cli("pack", seaweedfs_bucket.url("data"), tmp_path / "out", *cache)
    assert second.code == 0, second.err
    assert proxy.count("list-type=2") == 0
    assert second.json["plan_id"] == first.json["plan_id"]
    assert "hours old" in second.err


def test_an_inventory_replaces_the_listing(proxy: FaultProxy, seaweedfs_bucket: Bucket, tmp_path: Path) -> None:
    files = tree_of(8, 20)
    fill(seaweedfs_bucket, files)
    name = seaweedfs_bucket.name
    lines = [
        f'"{name}","data/{key}","{len(body)}","{hashlib.md5(body).hexdigest()}"' for key, body in sorted(files.items())
    ]
    part = gzip.compress("\n".join(lines).encode())
    manifest = {
        "sourceBucket": name,
        "destinationBucket": f"arn:aws:s3:::{name}",
        "creationTimestamp": "1769904000000",
        "fileFormat": "CSV",
        "fileSchema": "Bucket, Key, Size, ETag",
        "files": [{"key": "inv/data/1.csv.gz", "size": len(part), "MD5checksum": hashlib.md5(part).hexdigest()}],
    }
    seaweedfs_bucket.server.client().put_object(Bucket=name, Key="inv/data/1.csv.gz", Body=part)
    seaweedfs_bucket.put({"inv/now/manifest.json": json.dumps(manifest).encode()})
    place = seaweedfs_bucket.url("inv/now/manifest.json")
    ran = run_cli("pack", seaweedfs_bucket.url("data"), tmp_path / "out", "--inventory", place, "--json")
    assert ran.code == 0, ran.err
    assert proxy.count("list-type=2") == 0
    assert ran.json["ledger"]["packed"] == 40
    assert "days old" in ran.err


def test_wrong_places_are_told_with_what_to_do(bucket: Bucket) -> None:
    bucket.put({"data/x.jpg": b"1"})
    ran = run_cli("scan", bucket.url("dat"), "--json")
    assert (ran.code, "holds no object" in ran.error["message"]) == (5, True)
    assert f"s3://{bucket.name}/data/" in ran.error["hint"]
    ran = run_cli("scan", bucket.url("data/x.jpg"), "--json")
    assert (ran.code, "is an object" in ran.error["message"]) == (2, True)
    ran = run_cli("scan", "s3://no-such-bucket-here/x", "--json")
    assert (ran.code, "does not exist" in ran.error["message"]) == (5, True)


def test_wrong_credentials_are_refused_and_not_shown(bucket: Bucket) -> None:
    environment = {**os.environ, "AWS_SECRET_ACCESS_KEY": "my-wrong-secret"}
    command = [sys.executable, "-m", "shardtool", "scan", bucket.url("data")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 5
    assert "SignatureDoesNotMatch" in ran.stderr
    assert "my-wrong-secret" not in ran.stderr


def test_folders_and_urls_do_not_mix(bucket: Bucket, tmp_path: Path) -> None:
    ran = run_cli("scan", bucket.url("data"), tmp_path, "--json")
    assert (ran.code, "cannot be packed together" in ran.error["message"]) == (2, True)
    ran = run_cli("scan", bucket.url("data"), bucket.url("data/a"), "--json")
    assert (ran.code, "overlap" in ran.error["message"]) == (2, True)


def test_several_prefixes_are_one_data_set(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put({"a/x.jpg": b"1", "b/y.jpg": b"2"})
    assert run_cli("pack", bucket.url("a"), bucket.url("b"), tmp_path / "out").code == 0
    assert packed(tmp_path / "out") == {"x.jpg": b"1", "y.jpg": b"2"}
