"""Stage from object stores, over a wire that goes wrong: the log of the wire says what was asked for, and how often."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from fault_proxy import Fault, FaultProxy
from groups import HOME, until
from helpers import run_cli
from s3_servers import use
from staged import large_data_set, num_blocks_of, only, run_stage, shard_bytes

from shardtool.errors import CorruptShard, SourceChanged
from shardtool.hashing import BLOCK_BYTES
from shardtool.staging import wait
from shardtool.staging.lock import is_held

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from s3_servers import Bucket, S3Server

QUICK = ("--durability", "none")
BLOCK = re.compile(r"GET .*\.tar\b.*bytes=(\d+)-")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large_data_set(tmp_path_factory.mktemp("s3"))


@pytest.fixture(scope="module")
def bucket(seaweedfs: S3Server, out: Path) -> Bucket:
    """A bucket that holds the data set at `sets/out`."""
    found = seaweedfs.make_bucket()
    files = (path for path in out.rglob("*") if path.is_file() and ".shardtool" not in path.parts)
    found.put({f"sets/out/{path.relative_to(out)}": path.read_bytes() for path in files})
    return found


@pytest.fixture
def proxy(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A wire to the bucket."""
    use(bucket.server, monkeypatch)
    with FaultProxy(bucket.server.endpoint) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.endpoint)
        yield found


@pytest.fixture
def url(bucket: Bucket) -> str:
    return bucket.url("sets/out")


def block_reads(proxy: FaultProxy) -> Counter[str]:
    """How often each range of a shard was asked for."""
    return Counter(seen.what for seen in proxy.requests if BLOCK.search(seen.what))


def test_a_bucket_is_staged_with_few_requests_and_no_listing(
    proxy: FaultProxy, url: str, out: Path, tmp_path: Path
) -> None:
    proxy.clear()
    result = run_stage(url, tmp_path)
    assert shard_bytes(only(tmp_path)) == shard_bytes(out)
    assert result.fetched_bytes == result.num_bytes
    reads = block_reads(proxy)
    assert (len(reads), set(reads.values())) == (num_blocks_of(out), {1})
    assert proxy.count(r"list-type") == 0
    assert proxy.count("HEAD ") == 0  # the answer to the first block tells version and size
    assert proxy.count("GET .*manifest.json") == 1
    assert proxy.count(r"\.arrow") == 2
    assert run_cli("verify", only(tmp_path), "--deep").code == 0
    proxy.clear()
    run_stage(url, tmp_path)
    assert [seen.what.split("/")[-1] for seen in proxy.requests] == ["manifest.json|"]


STORMS = {
    "slow down": Fault("status", status=503, code="SlowDown"),
    "an error of the server": Fault("status", status=500, code="InternalError"),
    "a reset before the answer": Fault("refuse"),
    "a reset inside a block": Fault("reset", at=3_000_000),
    "a body cut short": Fault("close", at=5_000_000),
    "an error in the place of a block": Fault("error200", code="InternalError"),
}


@pytest.mark.parametrize("storm", STORMS)
def test_a_wire_that_breaks_is_mended(proxy: FaultProxy, url: str, out: Path, tmp_path: Path, storm: str) -> None:
    proxy.add(BLOCK.pattern, STORMS[storm], skip=1, times=4)
    run_stage(url, tmp_path)
    assert shard_bytes(only(tmp_path)) == shard_bytes(out)


def test_a_bit_flipped_on_the_wire_costs_one_block(proxy: FaultProxy, url: str, out: Path, tmp_path: Path) -> None:
    proxy.clear()
    proxy.add(rf"GET .*00001-of-00002\.tar.*bytes={BLOCK_BYTES}-", Fault("flip", at=1_234_567), times=1)
    result = run_stage(url, tmp_path)
    assert result.refetched_blocks == 1
    reads = block_reads(proxy)
    assert [what for what, count in reads.items() if count == 2] == [
        what for what in reads if "00001-of-00002.tar" in what and f"bytes={BLOCK_BYTES}-" in what
    ]
    assert shard_bytes(only(tmp_path)) == shard_bytes(out)


def test_a_bit_that_always_flips_ends_the_copy(proxy: FaultProxy, url: str, tmp_path: Path) -> None:
    proxy.add(rf"GET .*00001-of-00002\.tar.*bytes={BLOCK_BYTES}-", Fault("flip", at=7), times=-1)
    with pytest.raises(CorruptShard, match="block 1") as caught:
        run_stage(url, tmp_path)
    assert caught.value.where["path"].startswith(url)


@pytest.mark.parametrize("change", [-1, 1])
def test_an_object_of_another_size_than_the_manifest_says_is_named(
    proxy: FaultProxy, url: str, bucket: Bucket, out: Path, tmp_path: Path, change: int
) -> None:
    shard = out / "data" / "train-00001-of-00002.tar"
    data = shard.read_bytes()
    key = f"sets/out/data/{shard.name}"
    bucket.put({key: data[:change] if change < 0 else data + b"x"})
    try:
        with pytest.raises(CorruptShard, match=f"{len(data) + change:,} bytes, the manifest says {len(data):,}"):
            run_stage(url, tmp_path)
    finally:
        bucket.put({key: data})
    assert not (only(tmp_path) / "data" / shard.name).exists()


def test_an_object_that_is_replaced_meanwhile_is_an_error(
    proxy: FaultProxy, url: str, bucket: Bucket, out: Path, tmp_path: Path
) -> None:
    shard = out / "data" / "train-00000-of-00002.tar"
    other = bytes(shard.stat().st_size)
    key, replaced = f"sets/out/data/{shard.name}", list[int]()

    class Replacing:
        is_local = False

        def __init__(self) -> None:
            from shardtool.storage import open_place

            self.inner: Any = open_place(url)
            self.url = url

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def read_through(self, *args: Any, **options: Any) -> Any:
            found = self.inner.read_through(*args, **options)
            if not replaced:
                replaced.append(1)
                bucket.put({key: other})
            return found

    try:
        with pytest.raises(SourceChanged) as caught:
            run_stage(Replacing(), tmp_path, jobs=1)
    finally:
        bucket.put({key: shard.read_bytes()})
    assert caught.value.hint
    assert not list((only(tmp_path) / "data").glob("*")) if (only(tmp_path) / "data").exists() else True


def command(*args: str | Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "shardtool", "stage", *[os.fspath(arg) for arg in args], *QUICK],
        env={**os.environ, "PYTHONPATH": os.fspath(HOME)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def test_eight_commands_ask_for_each_block_once(proxy: FaultProxy, url: str, out: Path, tmp_path: Path) -> None:
    proxy.clear()
    runs = [command(url, tmp_path) for _ in range(8)]
    for run in runs:
        _, err = run.communicate(timeout=90)
        assert run.returncode == 0, err.decode()
    reads = block_reads(proxy)
    assert (len(reads), set(reads.values())) == (num_blocks_of(out), {1})
    assert shard_bytes(only(tmp_path)) == shard_bytes(out)


def test_the_background_reads_from_the_bucket_too(proxy: FaultProxy, url: str, out: Path, tmp_path: Path) -> None:
    done = run_cli("stage", url, tmp_path, *QUICK, "--ready-after", "1", "--json")
    assert done.code == 0, done.err
    folder = os.fspath(only(tmp_path))
    for shard in range(2):
        assert os.path.exists(wait(folder, shard, timeout=60))
    until(lambda: not is_held(os.path.join(folder, ".stage", "lock")))
    assert shard_bytes(only(tmp_path)) == shard_bytes(out)


@pytest.mark.parametrize("case", ["no bucket", "no data set", "denied"])
def test_what_is_not_there_is_said(
    proxy: FaultProxy, url: str, tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "denied":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not it")
    places = {"no bucket": "s3://no-such-bucket-here/out", "no data set": url + "/nowhere", "denied": url}
    done = run_cli("stage", places[case], tmp_path, "--json")
    assert done.code == 5, done.err
    assert done.error["hint"]
    assert list(tmp_path.iterdir()) == []
