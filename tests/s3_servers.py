"""Real S3 servers for tests: one SeaweedFS and one Ceph gateway a test session, started when the first test asks.

SeaweedFS checks signatures, checksums and conditions; Ceph has S3's keys and list order. They run as children of
`scripts/s3-server` and `scripts/ceph-server` and end with the session, however it ends. A server that runs already is
used when SHARDTOOL_SEAWEEDFS or SHARDTOOL_CEPH holds "ENDPOINT ACCESS_KEY SECRET_KEY".
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
SKIPPED = 77  # as in scripts/throwaway.py


@dataclass(frozen=True)
class S3Server:
    """A running server and the credentials it takes."""

    name: str  # "seaweedfs" or "ceph"
    endpoint: str
    access_key: str
    secret_key: str
    region: str = "us-east-1"

    def environment(self) -> dict[str, str]:
        """What S3 clients read; files and services that could name other credentials are shut out."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        """A boto3 client: the oracle that tests fill buckets with."""
        import boto3
        from botocore.config import Config

        config = Config(
            s3={"addressing_style": "path"},
            max_pool_connections=32,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=config,
        )

    def make_bucket(self) -> Bucket:
        """A new empty bucket."""
        name = f"b-{uuid.uuid4().hex[:16]}"
        self.client().create_bucket(Bucket=name)
        return Bucket(self, name)


@dataclass(frozen=True)
class Bucket:
    """A bucket of a test's own."""

    server: S3Server
    name: str

    def url(self, key: str = "") -> str:
        """`s3://bucket/key`."""
        return f"s3://{self.name}/{key}"

    def put(self, contents: Mapping[str, bytes]) -> None:
        """One object a key."""
        client = self.server.client()
        for key, body in contents.items():
            client.put_object(Bucket=self.name, Key=key, Body=body)

    def get(self, key: str) -> bytes:
        """The bytes of one object."""
        body: bytes = self.server.client().get_object(Bucket=self.name, Key=key)["Body"].read()
        return body

    def keys(self) -> list[str]:
        """Every key, in the server's order."""
        pages = self.server.client().get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


@contextmanager
def running(name: str, script: str) -> Iterator[S3Server]:
    """The server of a script, or one that runs already; skips the test where it cannot be had."""
    if given := os.environ.get(f"SHARDTOOL_{name.upper()}"):
        yield S3Server(name, *given.split())
        return
    command = [sys.executable, os.fspath(SCRIPTS / script), "--until-eof"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        try:
            yield started(name, process)
        finally:
            process.stdin.close()  # its end is the sign to stop; a session that is killed gives it, too
            process.wait()


def started(name: str, process: subprocess.Popen[str]) -> S3Server:
    assert process.stdout is not None
    assert process.stderr is not None
    values = {}
    for line in process.stdout:
        key, _, value = line.strip().partition("=")
        values[key] = value
        if key == "AWS_EC2_METADATA_DISABLED":  # the last one
            return S3Server(
                name, values["AWS_ENDPOINT_URL"], values["AWS_ACCESS_KEY_ID"], values["AWS_SECRET_ACCESS_KEY"]
            )
    said = process.stderr.read().strip()
    if process.wait() == SKIPPED:
        pytest.skip(said)
    raise RuntimeError(said)


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[S3Server]:
    """A SeaweedFS."""
    with running("seaweedfs", "s3-server") as server:
        yield server


@pytest.fixture(scope="session")
def ceph() -> Iterator[S3Server]:
    """A Ceph RADOS Gateway."""
    with running("ceph", "ceph-server") as server:
        yield server


@pytest.fixture(params=["seaweedfs", "ceph"])
def server(request: pytest.FixtureRequest) -> S3Server:
    """Each server in turn."""
    found: S3Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that one test connected to, fetched or locked is met by another."""
    from shardtool.storage.s3.client import forget_clients

    monkeypatch.setenv("SHARDTOOL_CACHE", os.fspath(tmp_path_factory.mktemp("cache")))
    forget_clients()
    yield
    forget_clients()


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A fresh bucket on each server in turn; the environment leads S3 clients of the test there."""
    use(server, monkeypatch)
    return server.make_bucket()


@pytest.fixture
def seaweedfs_bucket(seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A fresh bucket on SeaweedFS; the environment leads S3 clients of the test there."""
    use(seaweedfs, monkeypatch)
    return seaweedfs.make_bucket()


@pytest.fixture
def ceph_bucket(ceph: S3Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A fresh bucket on Ceph; the environment leads S3 clients of the test there."""
    use(ceph, monkeypatch)
    return ceph.make_bucket()


def use(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lead S3 clients of the test to `server`."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
