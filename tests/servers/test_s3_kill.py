"""A run that is killed while it writes leaves nothing that is seen, and nothing at all after the next run."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from fault_proxy import FaultProxy

from shardtool.storage.s3.client import forget_clients
from shardtool.storage.s3.journal import open_uploads
from shardtool.storage.s3.place import S3Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from s3_servers import Bucket

WRITER = """
import sys
from shardtool.storage.s3.place import S3Place
file = S3Place(sys.argv[1]).create("data/x.tar", "plan-7")
for n in range(40):
    file.write(bytes([n]) * (1 << 20))
file.publish(durable=True)
"""


@pytest.fixture(autouse=True)
def fresh_clients() -> Iterator[None]:
    forget_clients()
    yield
    forget_clients()


@pytest.mark.parametrize("after", range(9))
def test_a_killed_writer_leaves_nothing_after_the_sweep(
    bucket: Bucket, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed right when the request number `after` reaches the store: note, begin, note, parts, completion."""
    rng = random.Random(after)
    with FaultProxy(bucket.server.endpoint) as proxy:
        environ = {**os.environ, "AWS_ENDPOINT_URL": proxy.endpoint}
        with subprocess.Popen([sys.executable, "-c", WRITER, bucket.url("out")], env=environ) as writer:
            while len(proxy.requests) <= after and writer.poll() is None:
                os.sched_yield()
            for _ in range(rng.randrange(2000)):
                os.sched_yield()
            writer.kill()
        arrive(proxy)
    place = S3Place(bucket.url("out"))
    seen = {stat.path: stat.num_bytes for stat in place.list()}
    assert seen in ({}, {"data/x.tar": 40 << 20})
    place.sweep("plan-7", ["data/x.tar"])
    assert list(open_uploads(place.client, place.bucket, place.key("data/x.tar"))) == []
    place.sweep_all()
    left = bucket.keys()
    assert [key for key in left if "uploads" in key] == []


def arrive(proxy: FaultProxy) -> None:
    """Let requests that the killed writer had sent whole reach the store, as they would reach a real one."""
    deadline = time.monotonic() + 1.0
    while any(seen.status == 0 for seen in proxy.requests) and time.monotonic() < deadline:
        os.sched_yield()
