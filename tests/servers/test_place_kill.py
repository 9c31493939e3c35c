"""Runs that write to a bucket and are killed at random moments: nothing partial is seen, nothing is left at the end."""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from fault_proxy import FaultProxy
from groups import start, until
from helpers import make_tree, pack, run_cli
from store import contents, files_of, uploads

if TYPE_CHECKING:
    from pathlib import Path

    from groups import Run
    from s3_servers import Bucket

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

KILLS = int(os.environ.get("SHARDTOOL_TORTURE", "5"))  # of each kind on each store; scripts/test-full asks for more
SMALL = ("--shards", "12", "--workers", "2")
LARGE = ("--shards", "3", "--workers", "2")  # of several parts of 16 MiB each


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(3)
    files = {f"{n % 7}/{n:04d}.{part}": rng.randbytes(rng.randrange(20_000)) for n in range(120) for part in ("a", "b")}
    return make_tree(tmp_path_factory.mktemp("small") / "tree", files)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(4)
    return make_tree(tmp_path_factory.mktemp("large") / "tree", {f"{n}.bin": rng.randbytes(3 << 20) for n in range(36)})


def killed_at(run: Run, proxy: FaultProxy, count: int, rng: random.Random) -> tuple[int, str]:
    """Kill the run when it has sent so many requests, the whole group or the command alone."""
    until(lambda: run.is_over or len(proxy.requests) >= count)
    for _ in range(rng.randrange(20_000)):  # up to about a millisecond, so that no moment is privileged
        pass
    run.signal(signal.SIGKILL, group=rng.random() < 0.6)
    return run.end()


def check_nothing_partial(bucket: Bucket, wanted: dict[str, bytes]) -> None:
    """Shards and indexes that are seen are whole."""
    for path, data in contents(bucket, "out/").items():
        if path.startswith(("data/", "index/", "manifest")):
            assert data == wanted[path], path


@pytest.mark.parametrize(("which", "options"), [("small", SMALL), ("large", LARGE)])
def test_any_number_of_kills_leaves_nothing_behind(
    bucket: Bucket,
    which: str,
    options: tuple[str, ...],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree: Path = request.getfixturevalue(which)
    pack(tree, tmp_path / "wanted", shards=int(options[1]))
    wanted = files_of(tmp_path / "wanted")
    seed = random.randrange(1 << 32)
    rng, kills, url = random.Random(seed), 0, bucket.url("out")
    with FaultProxy(bucket.server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        while kills < KILLS:
            proxy.requests.clear()
            code, err = killed_at(start("pack", tree, url, *options), proxy, rng.randrange(1, 40), rng)
            assert code in (0, -signal.SIGKILL), (seed, err)
            kills += code != 0
            check_nothing_partial(bucket, wanted)
            if code == 0:  # it was done before
                for path in contents(bucket, "out/"):
                    bucket.server.client().delete_object(Bucket=bucket.name, Key=f"out/{path}")
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.server.endpoint)
    ran = run_cli("pack", tree, url, *options)
    assert ran.code == 0, (seed, ran.err)
    assert contents(bucket, "out/") == wanted, seed
    assert uploads(bucket) == [], seed


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"])
def test_an_interrupted_run_aborts_what_it_uploads(
    seaweedfs_bucket: Bucket, large: Path, number: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = seaweedfs_bucket.url("out")
    with FaultProxy(seaweedfs_bucket.server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        run = start("pack", large, url, *LARGE)
        until(lambda: run.is_over or sum("partNumber" in seen.path for seen in proxy.requests) > 1)
        run.signal(number)
        ended, err = run.end()
    assert ended == code, err
    assert "Traceback" not in err
    assert uploads(seaweedfs_bucket) == []
