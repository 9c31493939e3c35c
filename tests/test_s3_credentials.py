"""Credentials, region and endpoint come from where AWS tools look for them; and which engine a bucket gets."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import botocore.session
import pytest

from shardtool.errors import AccessDenied, RemoteError
from shardtool.storage.s3.boto import operation_of
from shardtool.storage.s3.client import S3Client
from shardtool.storage.s3.credentials import CredentialChain, credentials_in
from shardtool.storage.s3.engines import engine_for
from shardtool.storage.s3.exchange import Request
from shardtool.storage.s3.retry import Pace
from shardtool.storage.s3.settings import S3Settings
from shardtool.storage.s3.signing import Credentials

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
[profile lab]
region = eu-lab-1
endpoint_url = https://general.example
services = lab-services
[profile plain]
endpoint_url = https://plain.example/
[services lab-services]
s3 =
  endpoint_url = https://store.example:9000/
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of this machine's: files of the test's own, no instance metadata."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    (tmp_path / "config").write_text(CONFIG)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path


def write(home: Path, profile: str, key: str, token: str = "") -> None:
    line = f"aws_session_token = {token}\n" if token else ""
    (home / "credentials").write_text(
        f"[{profile}]\naws_access_key_id = {key}\naws_secret_access_key = secret-{key}\n{line}"
    )


def test_a_profile_gives_credentials_region_and_endpoint(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, "lab", "AKLAB", "token")
    monkeypatch.setenv("AWS_PROFILE", "lab")
    chain = CredentialChain(S3Settings())
    found = chain.current()
    assert found is not None
    assert (found.access_key, found.secret_key, found.token) == ("AKLAB", "secret-AKLAB", "token")
    assert (chain.region(), chain.endpoint_url()) == ("eu-lab-1", "https://store.example:9000")


def test_an_endpoint_for_all_services_counts_where_there_is_none_for_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "plain")
    assert CredentialChain(S3Settings()).endpoint_url() == "https://plain.example"
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert CredentialChain(S3Settings()).endpoint_url() == ""


def test_settings_come_before_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "lab")
    chain = CredentialChain(S3Settings(endpoint_url="http://mine:1", region="here-1"))
    assert (chain.region(), chain.endpoint_url()) == ("here-1", "http://mine:1")


def test_keys_in_the_environment_are_those_that_botocore_takes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, "default", "FILE")
    for names in (
        {},
        {"AWS_SESSION_TOKEN": "t"},
        {"AWS_SECURITY_TOKEN": "s"},
        {"AWS_SECURITY_TOKEN": "s", "AWS_SESSION_TOKEN": "t"},
        {"AWS_PROFILE": "lab"},
    ):
        for name in ("AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"AWS_ACCESS_KEY_ID": "ENV", "AWS_SECRET_ACCESS_KEY": "secret", **names}.items():
            monkeypatch.setenv(name, value)
        oracle = botocore.session.Session().get_credentials().get_frozen_credentials()
        found = credentials_in(os.environ)
        assert found == Credentials(oracle.access_key, oracle.secret_key, oracle.token or "")
        assert CredentialChain(S3Settings()).current() == found


@pytest.mark.parametrize("missing", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_half_a_pair_of_keys_is_left_to_botocore(missing: str) -> None:
    whole = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    assert credentials_in({name: value for name, value in whole.items() if name != missing}) is None
    assert credentials_in({**whole, "AWS_CREDENTIAL_EXPIRATION": "2030-01-01T00:00:00Z"}) is None


def test_a_request_with_keys_from_the_environment_imports_no_botocore(home: Path) -> None:
    code = """
import sys
from shardtool.storage.s3.credentials import CredentialChain
from shardtool.storage.s3.settings import S3Settings
chain = CredentialChain(S3Settings())
print(chain.current().access_key, chain.region(), chain.endpoint_url() == "", "botocore" in sys.modules)
"""
    keys = {"AWS_ACCESS_KEY_ID": "ENV", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_CONFIG_FILE": os.devnull}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **keys}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["ENV", "us-east-1", "True", "False"]


def test_no_credentials_is_an_error_that_says_how_to_give_some() -> None:
    with pytest.raises(AccessDenied, match="no AWS credentials found") as raised:
        CredentialChain(S3Settings()).current()
    assert "--no-sign-request" in raised.value.hint


def test_an_unknown_profile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    chain = CredentialChain(S3Settings())
    for ask in (chain.current, chain.region, chain.endpoint_url):
        with pytest.raises(AccessDenied, match="nobody"):
            ask()


def test_unsigned_requests_ask_for_no_credentials() -> None:
    assert CredentialChain(S3Settings(no_sign_request=True)).current() is None


def test_credentials_that_the_store_calls_expired_are_looked_up_again(home: Path) -> None:
    write(home, "default", "OLD")
    chain = CredentialChain(S3Settings())
    old = chain.current()
    assert not chain.renew(old)  # there are no others yet
    write(home, "default", "NEW")
    assert chain.renew(old)
    found = chain.current()
    assert found is not None
    assert found.access_key == "NEW"
    assert chain.renew(old)  # another thread's request, signed before: nothing to look up, but worth another try


@pytest.mark.parametrize("bucket", ["arn:aws:s3:us-west-2:123456789012:accesspoint/ap", "fast--usw2-az1--x-s3"])
def test_buckets_that_need_more_go_to_boto3_and_it_is_said_once(
    bucket: str, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(home, "default", "KEY")
    engine = engine_for(S3Settings(region="us-west-2"))
    with caplog.at_level(logging.WARNING, "shardtool.s3"):
        for _ in range(3):
            assert engine.endpoint(bucket) == "https://s3.us-west-2.amazonaws.com"
        assert engine.endpoint("plain-bucket") == "https://plain-bucket.s3.us-west-2.amazonaws.com"
    assert [record.getMessage().split(" because")[0] for record in caplog.records] == [
        f"note: {bucket} is read by boto3,"
    ]
    engine.close()


def test_every_request_of_ours_is_an_operation_of_botocore() -> None:
    assert operation_of(Request("GET", "b", "k")) == ("get_object", {"Bucket": "b", "Key": "k"})
    assert operation_of(Request("PUT", "b", "é".encode(), (("partNumber", "3"), ("uploadId", "u")))) == (
        "upload_part",
        {"Bucket": "b", "Key": "é", "Body": b"", "PartNumber": 3, "UploadId": "u"},
    )
    assert operation_of(Request("GET", "b", query=(("list-type", "2"), ("prefix", "p/"), ("max-keys", "1000")))) == (
        "list_objects_v2",
        {"Bucket": "b", "Prefix": "p/", "MaxKeys": 1000},
    )


def test_a_host_that_does_not_exist_is_told_soon() -> None:
    settings = S3Settings(endpoint_url="http://no-such-host.invalid", no_sign_request=True)
    slept: list[float] = []
    client = S3Client(settings, pace=Pace(sleep=slept.append))
    with pytest.raises(RemoteError) as raised:
        client.request("GET", "b", "k")
    assert len(slept) <= 9
    assert "no-such-host.invalid" in raised.value.message
    assert "--endpoint-url" in raised.value.hint
