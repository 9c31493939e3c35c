"""`scripts/test-s3` tells what a store does: all that is needed works on both servers, and differences are said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fault_proxy import Fault, FaultProxy

if TYPE_CHECKING:
    from s3_servers import Bucket

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "conformance.py"


def tried(bucket: Bucket, *arguments: str) -> tuple[int, list[str]]:
    command = [sys.executable, str(SCRIPT), bucket.url("try"), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout.splitlines()


def differing(lines: list[str]) -> list[str]:
    return [line.split(":")[0].split(maxsplit=1)[1] for line in lines if line.startswith("  differs")]


def test_ceph_differs_in_checksums_alone(ceph_bucket: Bucket) -> None:
    code, lines = tried(ceph_bucket)
    assert (code, differing(lines)) == (0, ["a body with a wrong CRC32 is refused"])
    assert ceph_bucket.keys() == []


def test_seaweedfs_differs_in_odd_keys_and_order(seaweedfs_bucket: Bucket) -> None:
    code, lines = tried(seaweedfs_bucket)
    told = ["odd keys can be written", "each of them is listed", "each of them comes back", "in byte order"]
    assert (code, differing(lines)) == (0, told)
    assert seaweedfs_bucket.keys() == []


def test_a_store_without_ranges_does_not_work(seaweedfs_bucket: Bucket) -> None:
    with FaultProxy(seaweedfs_bucket.server.endpoint) as proxy:
        proxy.add(r"\|bytes=0-9", Fault("status", status=400, code="InvalidArgument"), times=-1)
        code, lines = tried(seaweedfs_bucket, "--endpoint", proxy.endpoint)
    assert code == 1
    assert "  MISSING  bytes 0-9 of an object: 400, 0 bytes" in [line.split(", ")[0] + ", 0 bytes" for line in lines]
    assert lines[-1] == "does NOT work with shardtool: 1 needs unmet"
