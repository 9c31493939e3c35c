"""Options of object stores: shown in their own group, put into the environment before the command runs."""

from __future__ import annotations

import os
from typing import Any

import click
import pytest
from click.testing import CliRunner

from shardtool.cli.options import Command, Output, output_options
from shardtool.cli.s3_options import s3_options

NAMES = ("AWS_ENDPOINT_URL_S3", "SHARDTOOL_NO_SIGN_REQUEST", "SHARDTOOL_S3_ENGINE", "SHARDTOOL_S3_CHECKSUMS")


@click.command(cls=Command, examples=("a", "b", "c"))
@click.argument("url")
@s3_options
@output_options
def probe(output: Output, url: str, **chosen: Any) -> None:
    """Show what a command sees."""
    click.echo(f"{url} {sorted(chosen)} {[os.environ.get(name, '-') for name in NAMES]}")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that what the command sets is taken back after the test
        monkeypatch.delenv(name)


def run(*words: str) -> str:
    ran = CliRunner().invoke(probe, words)
    return ran.output if ran.exception is None else str(ran.exception)


def test_options_reach_the_environment_and_not_the_command() -> None:
    words = (
        "s3://b",
        "--endpoint-url",
        "http://h:1/",
        "--no-sign-request",
        "--s3-engine=thin",
        "--s3-checksums=required",
    )
    assert run(*words) == "s3://b [] ['http://h:1', '1', 'thin', 'required']\n"


def test_without_options_nothing_is_set() -> None:
    assert run("out") == "out [] ['-', '-', '-', '-']\n"


def test_a_bad_endpoint_is_told_before_anything_runs() -> None:
    assert "expected http:// or https://" in run("s3://b", "--endpoint-url", "store.example")


def test_help_shows_them_as_a_group() -> None:
    text = run("--help")
    group = text[text.index("Object storage") :]
    for option in ("--endpoint-url", "--no-sign-request", "--s3-engine", "--s3-checksums"):
        assert option in group
