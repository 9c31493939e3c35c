"""`shardtool stage s3://... DST`, killed at random moments and repeated: the log of the wire says what came twice."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from fault_proxy import Fault, FaultProxy
from groups import TIMEOUT_S, start, until
from helpers import run_cli
from s3_servers import use
from snapshots import files_below
from staged import large_data_set, only, shard_bytes

from shardtool.hashing import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fault_proxy import Seen
    from s3_servers import S3Server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

KILLS = int(os.environ.get("SHARDTOOL_TORTURE", "5"))  # scripts/test-full asks for more
JOBS = 3
BLOCK = re.compile(r"GET .*\.tar\b.*bytes=")
BYTES_PER_S = 30e6  # of a connection: a second for the whole


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large_data_set(tmp_path_factory.mktemp("kill"))


@pytest.fixture
def wire(seaweedfs: S3Server, out: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FaultProxy, str]]:
    """A slow wire to a bucket that holds the data set, and its URL."""
    use(seaweedfs, monkeypatch)
    bucket = seaweedfs.make_bucket()
    bucket.put({f"sets/out/{path.relative_to(out)}": path.read_bytes() for path in files_below(out)})
    with FaultProxy(seaweedfs.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        proxy.add(BLOCK.pattern, Fault("slow", bytes_per_s=BYTES_PER_S), times=-1)
        yield proxy, bucket.url("sets/out")


@dataclass
class Copy:
    """A copy, by as many runs of the command as it takes."""

    url: str
    target: Path
    proxy: FaultProxy
    runs: list[list[Seen]] = field(default_factory=list)  # what each asked for of blocks

    def run(self, kill_after_s: float | None = None) -> bool:
        """Go on with it; whether this run was killed."""
        self.proxy.requests.clear()
        options = ("--all", "--jobs", str(JOBS), "--durability", "none", "-q")
        run = start("stage", self.url, self.target, *options)
        try:
            run.process.wait(TIMEOUT_S if kill_after_s is None else kill_after_s)
        except subprocess.TimeoutExpired:
            run.signal(signal.SIGKILL)
        code, err = run.end()
        assert code == 0 or (code == -signal.SIGKILL and kill_after_s is not None), err
        until(self.proxy.is_idle)  # what a dead one had asked for comes to its end
        self.runs.append([seen for seen in self.proxy.requests if BLOCK.search(seen.what)])
        return code != 0

    def check_visible(self, out: Path) -> None:
        """Whatever is seen in the target is a whole file of the source."""
        for folder in self.target.iterdir() if self.target.exists() else ():
            for path in files_below(folder):
                name = path.relative_to(folder)
                if name.parts[0] not in (".stage", "staged.json"):
                    assert path.read_bytes() == (out / name).read_bytes(), name

    def check_whole(self, out: Path) -> None:
        """It is the source, and nothing else is left."""
        folder = only(self.target)
        assert shard_bytes(folder) == shard_bytes(out)
        assert not [name for _, _, names in os.walk(folder / ".stage" / "parts") for name in names]

    def check_requests(self, out: Path) -> int:
        """Every kill cost the blocks on their way, and no others; bytes that were sent again."""
        again = [
            [seen for seen in run if seen.what in {other.what for later in self.runs[number:] for other in later}]
            for number, run in enumerate(self.runs, 1)
        ]
        assert max(map(len, again)) <= JOBS
        sent_again = sum(seen.sent_bytes for run in again for seen in run)
        assert sent_again <= sum(map(len, again)) * BLOCK_BYTES
        sent = sum(seen.sent_bytes for run in self.runs for seen in run)
        assert sent == sum(map(len, shard_bytes(out).values())) + sent_again
        return sent_again


def test_kills_at_random_moments_cost_the_blocks_on_their_way(
    wire: tuple[FaultProxy, str], out: Path, tmp_path: Path
) -> None:
    (proxy, url), kills, copies = wire, 0, 0
    began = time.monotonic()
    Copy(url, tmp_path / "unharmed", proxy).run()
    whole_s = time.monotonic() - began
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    while kills < KILLS:
        copies += 1
        copy = Copy(url, tmp_path / f"seed-{seed}-{copies}", proxy)
        while kills < KILLS and copy.run(rng.uniform(0, whole_s)):
            kills += 1
            copy.check_visible(out)
        copy.run()
        copy.check_whole(out)
        copy.check_requests(out)
        assert run_cli("verify", only(copy.target), "--deep").code == 0, seed
        shutil.rmtree(copy.target)
