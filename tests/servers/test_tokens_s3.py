"""Token data packed to a bucket: part files stay on this machine, everything else is as in a folder."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from fault_proxy import FaultProxy
from groups import start, until
from helpers import make_tree, run_cli
from store import contents, files_of, uploads

if TYPE_CHECKING:
    from pathlib import Path

    from s3_servers import Bucket

LAYOUTS = "ds,olmo,llmc,npy,megatron"
OPTIONS = ("--format", "bin", "--shards", "4", "--tokenizer", "bytes")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    rng = random.Random(5)
    files = {
        f"{number}.jsonl": "".join(json.dumps({"text": "word " * rng.randrange(1, 40)}) + "\n" for _ in range(200))
        for number in range(6)
    }
    return make_tree(tmp_path / "text", files)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARDTOOL_CACHE", os.fspath(tmp_path / "cache"))
    return tmp_path / "cache"


def part_files(cache: Path) -> list[Path]:
    return [path for path in cache.glob("spool/**/parts/*") if path.is_file()]


def in_folder(text: Path, out: Path, *more: str) -> dict[str, bytes]:
    assert run_cli("pack", text, out, *OPTIONS, *more).code == 0
    return files_of(out)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("requests", [4, 12, 20, 30])
def test_a_killed_run_goes_on_to_the_same_objects_and_no_part_file_stays(
    seaweedfs_bucket: Bucket, text: Path, cache: Path, requests: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, url = in_folder(text, tmp_path / "out"), seaweedfs_bucket.url("out")
    with FaultProxy(seaweedfs_bucket.server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        run = start("pack", text, url, *OPTIONS, "--workers", "2")
        until(lambda: run.is_over or len(proxy.requests) >= requests)
        run.signal(signal.SIGKILL, group=True)
        run.end()
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs_bucket.server.endpoint)
    ran = run_cli("pack", text, url, *OPTIONS)
    assert ran.code == 0, ran.err
    assert contents(seaweedfs_bucket, "out/") == wanted
    assert uploads(seaweedfs_bucket) == []
    assert not list(cache.glob("spool/*"))


def test_machines_that_share_nothing_but_the_bucket_pack_their_parts(
    seaweedfs_bucket: Bucket, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, url = in_folder(text, tmp_path / "out"), seaweedfs_bucket.url("out")
    caches = [tmp_path / "one", tmp_path / "two"]
    for number, cache in enumerate(caches):
        monkeypatch.setenv("SHARDTOOL_CACHE", os.fspath(cache))
        ran = run_cli("pack", text, url, *OPTIONS, "--part", f"{number}/2")
        assert ran.code == 0, ran.err
    assert contents(seaweedfs_bucket, "out/") == wanted
    assert part_files(caches[0]), "it cannot know that the other one has finished"
    assert not part_files(caches[1])
    monkeypatch.setenv("SHARDTOOL_CACHE", os.fspath(caches[0]))
    assert run_cli("pack", text, url, *OPTIONS).code == 0
    assert not part_files(caches[0])


def test_layouts_of_other_trainers_become_objects_of_their_own(
    seaweedfs_bucket: Bucket, text: Path, cache: Path, tmp_path: Path
) -> None:
    wanted = in_folder(text, tmp_path / "out", "--emit", LAYOUTS)
    ran = run_cli("pack", text, seaweedfs_bucket.url("out"), *OPTIONS, "--emit", LAYOUTS)
    assert ran.code == 0, ran.err
    found = contents(seaweedfs_bucket, "out/")
    assert found.keys() == wanted.keys()
    payloads = [path for path in wanted if path.endswith((".ds", ".npy", ".bin"))]
    assert len(payloads) == 20
    assert {path: found[path] for path in payloads} == {path: wanted[path] for path in payloads}
    assert not list(cache.glob("spool/*"))
    prefixes = json.loads(found["megatron/sequences.json"])
    assert {prefix.partition("/data/")[0] for prefix in prefixes} == {seaweedfs_bucket.url("out")}
