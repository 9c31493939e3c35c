"""A store that answers 503: a storm that ends is sat out, one that does not ends the command with 8, in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pytest
from fault_proxy import Fault, FaultProxy
from groups import error_of, start
from snapshots import files_below
from staged import only
from store import OPTIONS, contents, files_of, packed, tree_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from s3_servers import Bucket

BUDGET_S = 1.5
SLOW_DOWN = Fault("status", status=503, code="SlowDown")


class Storm(NamedTuple):
    """What a command asks for, and from when on it is refused."""

    command: str
    match: str
    skip: int


STORMS = {
    "stage, manifest": Storm("stage", r"GET .*manifest\.json", 0),
    "stage, shards": Storm("stage", r"GET .*/data/.*bytes=", 1),
    "pack, objects": Storm("pack from", r"GET .*/src/[abc]/", 20),
    "pack, uploads": Storm("pack to", r"(PUT|POST) .*/out/data/", 1),
}


@dataclass(frozen=True)
class Work:
    """A tree and its data set, here and in a bucket, behind a proxy."""

    bucket: Bucket
    proxy: FaultProxy
    folder: Path

    def run(self, command: str) -> tuple[int, str]:
        """A command from or to the bucket, in a process of its own: (exit code, stderr)."""
        src, sets, target = self.bucket.url("src"), self.bucket.url("sets/out"), self.folder / "target"
        args = {
            "stage": ("stage", sets, target, "--all", "--jobs", "2", "--durability", "none"),
            "pack from": ("pack", src, target, *OPTIONS, "--workers", "2"),
            "pack to": ("pack", self.folder / "src", self.bucket.url("out"), *OPTIONS, "--workers", "2"),
        }
        return start(*args[command], "--json").end()

    def check_whole(self, command: str) -> None:
        """It made what it makes in fair weather."""
        wanted = files_of(self.folder / "wanted")
        if command == "pack to":
            found = contents(self.bucket, "out/")
        else:
            found = files_of(only(self.folder / "target") if command == "stage" else self.folder / "target")
        assert {path: found[path] for path in wanted if path.startswith("data/")} == {
            path: data for path, data in wanted.items() if path.startswith("data/")
        }

    def check_visible(self) -> None:
        """No shard is seen that is not whole."""
        wanted = {path.name: path.read_bytes() for path in files_below(self.folder / "wanted" / "data")}
        for path in (self.folder / "target").rglob("data/*.tar"):
            assert path.read_bytes() == wanted[path.name]
        for name, data in contents(self.bucket, "out/data/").items():
            assert data == wanted[name]


@pytest.fixture
def work(seaweedfs_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    tree = tree_of(tmp_path / "src")
    local = packed(tree, tmp_path / "wanted")
    seaweedfs_bucket.put({f"src/{path.relative_to(tree)}": path.read_bytes() for path in files_below(tree)})
    seaweedfs_bucket.put({f"sets/out/{path}": data for path, data in files_of(local).items()})
    with FaultProxy(seaweedfs_bucket.server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield Work(seaweedfs_bucket, proxy, tmp_path)


@pytest.mark.parametrize("storm", STORMS.values(), ids=STORMS)
def test_503_for_ever_ends_with_8_within_the_budget_and_a_storm_that_ends_is_sat_out(
    work: Work, storm: Storm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDTOOL_S3_RETRY_SECONDS", str(BUDGET_S))
    work.proxy.add(storm.match, SLOW_DOWN, skip=storm.skip, times=-1)
    code, err = work.run(storm.command)
    error = error_of(err)
    assert (code, error["code"]) == (8, "RemoteError"), err
    assert "503 SlowDown" in error["message"]
    assert "later" in error["hint"]
    refused = [seen.began_s for seen in work.proxy.requests if seen.fault]
    assert len(refused) > 2
    assert refused[-1] - refused[0] <= 4 * BUDGET_S  # not 300; who waits for a turn begins later
    work.check_visible()

    work.proxy.clear()
    monkeypatch.delenv("SHARDTOOL_S3_RETRY_SECONDS")
    work.proxy.add(storm.match, SLOW_DOWN, times=4)
    code, err = work.run(storm.command)
    assert code == 0, err
    assert work.proxy.faults() == 4
    work.check_whole(storm.command)
