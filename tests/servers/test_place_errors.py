"""What a person is told when the store, the bucket or the credentials are not what they thought."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from fault_proxy import Fault, FaultProxy
from helpers import run_cli
from store import NUM_SHARDS, OPTIONS, contents, files_of, packed, tree_of

if TYPE_CHECKING:
    from pathlib import Path

    from helpers import Ran
    from s3_servers import Bucket

BUDGET_S = 2.0


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return tree_of(tmp_path / "src")


def check(ran: Ran, exit_code: int, code: str, *words: str) -> None:
    assert (ran.code, ran.error["code"]) == (exit_code, code), ran.err
    assert all(word in ran.error["message"] for word in words), ran.error["message"]
    assert ran.error["hint"]
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in ran.err
    assert "Traceback" not in ran.err


def test_a_bucket_that_does_not_exist(bucket: Bucket, tree: Path) -> None:
    url = "s3://no-such-bucket-here/out"
    check(run_cli("pack", tree, url, "--json"), 6, "DestinationError", "no-such-bucket-here", bucket.server.endpoint)
    check(run_cli("stats", url, "--json"), 5, "SourceNotFound", "no-such-bucket-here")


def test_a_wrong_secret(bucket: Bucket, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-of-this-key")
    check(run_cli("pack", tree, bucket.url("out"), "--json"), 6, "DestinationError", bucket.url("out"), "403")
    check(run_cli("verify", bucket.url("out"), "--json"), 5, "AccessDenied", bucket.url(), "403")


def test_an_access_key_that_is_unknown(bucket: Bucket, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    check(run_cli("pack", tree, bucket.url("out"), "--json"), 6, "DestinationError", "403")
    check(run_cli("ls", bucket.url("out"), "--json"), 5, "AccessDenied", "403")


def test_no_bucket_and_no_such_scheme(seaweedfs_bucket: Bucket, tree: Path) -> None:
    check(run_cli("pack", tree, "s3://", "--json"), 2, "UsageProblem", "names no bucket")
    check(run_cli("pack", tree, "gs://bucket/out", "--json"), 2, "UsageProblem", "gs://")
    check(run_cli("stats", "https://host/out", "--json"), 2, "UsageProblem", "https://")


@pytest.mark.parametrize("command", [("verify", "--deep"), ("stats",), ("extract",), ("status",)], ids=" ".join)
def test_a_store_that_goes_away_ends_reading_within_the_budget(
    seaweedfs_bucket: Bucket, tree: Path, tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    local = packed(tree, tmp_path / "local")
    seaweedfs_bucket.put({f"out/{path}": data for path, data in files_of(local).items()})
    name, *rest = command
    target = [tmp_path / "x"] if name == "extract" else []
    monkeypatch.setenv("SHARDTOOL_S3_RETRY_SECONDS", str(BUDGET_S))
    with FaultProxy(seaweedfs_bucket.server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        proxy.add("", Fault("reset"), skip=2, times=-1)
        began = time.monotonic()
        ran = run_cli(name, seaweedfs_bucket.url("out"), *target, *rest, "--json")
        check(ran, 8, "RemoteError", proxy.endpoint)
        assert time.monotonic() - began < 5 * BUDGET_S


def test_a_store_that_goes_away_while_packing_leaves_what_is_done(
    seaweedfs_bucket: Bucket, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, local = seaweedfs_bucket, packed(tree, tmp_path / "local")
    monkeypatch.setenv("SHARDTOOL_S3_RETRY_SECONDS", str(BUDGET_S))
    with FaultProxy(bucket.server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        proxy.add(r"PUT .*/data/train-00002", Fault("refuse"), times=-1)
        began = time.monotonic()
        check(run_cli("pack", tree, bucket.url("out"), *OPTIONS, "--json"), 8, "RemoteError", "train-00002")
        assert time.monotonic() - began < 5 * BUDGET_S
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.server.endpoint)
    ran = run_cli("pack", tree, bucket.url("out"), *OPTIONS, "--json")
    assert 0 < ran.json["resumed_shards"] < NUM_SHARDS
    assert contents(bucket, "out/") == files_of(local)


def test_a_shard_that_is_replaced_while_it_is_read_is_noticed(
    seaweedfs_bucket: Bucket, tree: Path, tmp_path: Path
) -> None:
    from shardtool.errors import SourceChanged
    from shardtool.reading.reading import Dataset

    local = packed(tree, tmp_path / "local")
    seaweedfs_bucket.put({f"out/{path}": data for path, data in files_of(local).items()})
    with Dataset.open(seaweedfs_bucket.url("out")) as dataset:
        first = dataset.read_part(0, 0)
        assert first
        path = dataset.manifest.shards[0].path
        data = seaweedfs_bucket.get(f"out/{path}")
        seaweedfs_bucket.put({f"out/{path}": data[:-1] + b"x"})
        with pytest.raises(SourceChanged, match=path):
            dataset.read_part(0, 0)
