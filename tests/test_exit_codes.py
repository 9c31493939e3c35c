"""One test per exit code (design, section 5), each with the error document that programs get."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, NoReturn

import pytest
from helpers import Ran, make_tree, pack, run_cli
from snapshots import NUM_SHARDS, content, finish, small_tree

from shardtool.manifest import load_manifest

if TYPE_CHECKING:
    from pathlib import Path

SHARDS = ("--shards", str(NUM_SHARDS))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return small_tree(tmp_path / "src")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def check_error(ran: Ran, exit_code: int, code: str) -> None:
    """The run ended with `exit_code`, nothing on stdout, and an error document as the last line of stderr."""
    assert ran.code == exit_code, ran.err
    assert ran.out == ""
    document = ran.error
    assert document["schema"] == "shardtool/error/1"
    assert (document["exit_code"], document["code"]) == (exit_code, code)
    assert document["message"]
    assert document["hint"]
    assert isinstance(document["where"], dict)
    assert exit_code == 1 or "Traceback" not in ran.err


def test_0_done(tree: Path, out: Path) -> None:
    ran = run_cli("pack", tree, out, "--json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.json["ledger"] == {"seen": 48, "packed": 48, "ignored": {}, "failed": 0}


def test_0_ignored_junk_is_no_failure(tree: Path, out: Path) -> None:
    make_tree(tree, {".DS_Store": b"x", "a/Thumbs.db": b"y"})
    assert run_cli("pack", tree, out).code == 0


def test_1_a_bug_of_ours_shows_its_traceback(tree: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise RuntimeError("the moon is full")

    monkeypatch.setattr("shardtool.packing.build.prepare", fail)
    ran = run_cli("pack", tree, out, "--json")
    check_error(ran, 1, "RuntimeError")
    assert "Traceback" in ran.err
    assert "bug in shardtool" in ran.error["hint"]


def test_2_a_bad_option(tree: Path, out: Path) -> None:
    ran = run_cli("pack", tree, out, "--shufle", "none", "--json")
    check_error(ran, 2, "UsageProblem")
    assert "--shuffle" in ran.error["hint"]
    assert not out.exists()


def test_3_an_entry_was_skipped_by_a_policy(tree: Path, out: Path) -> None:
    (tree / "a" / "gone.bin").symlink_to("nowhere")
    ran = run_cli("pack", tree, out, "--on-error", "skip", "--json")
    assert ran.code == 3, ran.err
    assert ran.json["ledger"]["failed"] == 1  # the result is there, and so is the error
    assert ran.error["exit_code"] == 3
    assert "failed.jsonl" in ran.error["hint"]
    assert run_cli("pack", tree, out, "--on-error", "skip").code == 3


def test_4_damage_was_found(tree: Path, out: Path) -> None:
    finish(tree, out)
    path = out / load_manifest(os.fspath(out)).shards[1].path
    os.truncate(path, path.stat().st_size - 512)
    ran = run_cli("verify", out, "--json")
    assert ran.code == 4, ran.err
    assert ran.json["ok"] is False
    assert ran.error["exit_code"] == 4


def test_5_the_input_is_not_there(tmp_path: Path, out: Path) -> None:
    (tmp_path / "photos").mkdir()
    ran = run_cli("pack", tmp_path / "fotos", out, "--json")
    check_error(ran, 5, "SourceNotFound")
    assert ran.error["hint"] == f"did you mean {tmp_path}/photos?"
    assert not out.exists()


def test_5_the_input_holds_nothing(tmp_path: Path, out: Path) -> None:
    check_error(run_cli("pack", make_tree(tmp_path / "empty", {}), out, "--json"), 5, "GroupError")
    assert not out.exists()


def test_6_the_output_holds_another_data_set(tree: Path, out: Path) -> None:
    whole = finish(tree, out)
    check_error(run_cli("pack", tree, out, *SHARDS, "--seed", "1", "--json"), 6, "PlanMismatch")
    assert content(out) == whole


def test_6_the_output_is_not_ours(tree: Path, out: Path) -> None:
    make_tree(out, {"thesis.tex": "mine"})
    check_error(run_cli("pack", tree, out, "--json"), 6, "DestinationExists")


def test_7_no_space(tree: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardtool.packing.destination.free_space", lambda folder: (1_000, 1 << 40))
    check_error(run_cli("pack", tree, out, "--json"), 7, "NoSpace")
    assert not out.exists()


def test_8_a_remote_store_kept_failing(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]  # nobody listens there once this ends
    for name, value in unreachable_store(port, tmp_path).items():
        monkeypatch.setenv(name, value)
    began = time.monotonic()
    for command in (("pack", tree, "s3://bucket/out"), ("stats", "s3://bucket/out"), ("verify", "s3://bucket/out")):
        ran = run_cli(*command, "--json")
        check_error(ran, 8, "RemoteError")
        assert f"127.0.0.1:{port}" in ran.error["message"]
        assert "never-shown" not in ran.err
    assert time.monotonic() - began < 10


def unreachable_store(port: int, tmp_path: Path) -> dict[str, str]:
    """The environment of a store that is not there, and of a user who does not want to wait for it."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "never-shown",
        "AWS_REGION": "us-east-1",
        "SHARDTOOL_S3_RETRY_SECONDS": "0.5",
        "SHARDTOOL_CACHE": os.fspath(tmp_path / "cache"),
    }


def test_130_interrupted_and_resumable(tree: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(tree, out, shards=NUM_SHARDS, part=(0, 2))

    def interrupt(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shardtool.packing.pack.read_rows", interrupt)
        check_error(run_cli("pack", tree, out, *SHARDS, "--json"), 130, "Interrupted")
    assert run_cli("pack", tree, out, *SHARDS, "--json").json["resumed_shards"] == 2


def test_143_terminated_and_resumable(tree: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals reach the main thread only")
    pack(tree, out, shards=NUM_SHARDS, part=(0, 2))
    with monkeypatch.context() as patched:
        patched.setattr("shardtool.packing.pack.read_rows", lambda *_: signal.raise_signal(signal.SIGTERM))
        check_error(run_cli("pack", tree, out, *SHARDS, "--json"), 143, "Interrupted")
    assert run_cli("pack", tree, out, *SHARDS, "--json").json["resumed_shards"] == 2
