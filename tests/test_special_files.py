"""FIFOs where files should be: every command says so, and none waits for a writer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from helpers import make_tree, run_cli, shard_paths

from shardtool.storage.regular import check_regular, open_regular

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 20  # far above what any of these needs


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    out = tmp_path / "out"
    tree = make_tree(tmp_path / "tree", {f"{number}.txt": f"text {number}" for number in range(8)})
    assert run_cli("pack", tree, out, "--shards", "2").code == 0
    return out


def run_alone(*args: str | Path) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, which is ended where it hangs."""
    command = [sys.executable, "-m", "shardtool", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "jsonl", "mds", "tfrecord", "parquet", "arrow", "zip", "csv"])
def test_convert_of_a_fifo_is_refused(tmp_path: Path, suffix: str) -> None:
    os.mkfifo(tmp_path / f"pipe.{suffix}")
    ran = run_alone("convert", tmp_path / f"pipe.{suffix}", tmp_path / "out")
    assert (ran.returncode, "is a FIFO" in ran.stderr) == (5, True), ran.stderr


@pytest.mark.parametrize("command", ["verify", "index"])
@pytest.mark.parametrize("name", ["a.tar", "{0..1}.tar"])
def test_shards_that_are_fifos_are_refused(tmp_path: Path, command: str, name: str) -> None:
    for one in ("a", "0", "1"):
        os.mkfifo(tmp_path / f"{one}.tar")
    ran = run_alone(command, tmp_path / name)
    assert ran.returncode == 5
    assert "is a FIFO" in ran.stderr


@pytest.mark.parametrize("command", ["verify", "convert"])
def test_a_fifo_in_a_folder_of_shards_is_none_of_them(packed: Path, tmp_path: Path, command: str) -> None:
    os.mkfifo(packed / "data" / "aa.tar")
    ran = run_alone(command, packed / "data", *([tmp_path / "new"] if command == "convert" else []))
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("command", "code"), [("verify", 4), ("index", 3), ("extract", 4), ("cat", 4), ("convert", 4), ("stats", 0)]
)
def test_a_shard_of_a_data_set_that_became_a_fifo_is_damage(
    packed: Path, tmp_path: Path, command: str, code: int
) -> None:
    replace_by_fifo(shard_paths(packed)[1])
    with_first = {"extract": [tmp_path / "new"], "convert": [tmp_path / "new"]}
    keys = [f"{number}.txt" for number in range(8)] if command == "cat" else []
    ran = run_alone(command, packed, *with_first.get(command, []), *keys)
    assert ran.returncode == code, ran.stderr


@pytest.mark.parametrize("command", ["verify", "stats", "extract", "ls", "index"])
def test_an_index_that_became_a_fifo_is_damage_and_built_again(packed: Path, tmp_path: Path, command: str) -> None:
    replace_by_fifo(packed / "index" / "00001.arrow")
    ran = run_alone(command, packed, *([tmp_path / "new"] if command == "extract" else []))
    assert ran.returncode in (0, 4), ran.stderr
    if command == "index":
        assert run_cli("verify", packed, "--deep").code == 0


@pytest.mark.parametrize("name", ["manifest.json", ".shardtool/plan.json", ".shardtool/plan/000.arrow"])
@pytest.mark.parametrize("command", ["verify", "status", "pack", "ls"])
def test_a_fifo_in_the_place_of_a_file_of_ours_never_blocks(packed: Path, name: str, command: str) -> None:
    replace_by_fifo(packed / name)
    shutil.rmtree(packed / ".shardtool" / "receipts", ignore_errors=True)
    ran = run_alone(command, *([packed.parent / "tree"] if command == "pack" else []), packed)
    assert ran.returncode in range(9), ran.stderr
    assert "bug of shardtool" not in ran.stderr


def test_a_regular_file_is_opened_and_all_else_is_said_to_be_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    os.mkfifo(tmp_path / "pipe")
    fd = open_regular(os.fspath(tmp_path / "file"))
    assert os.read(fd, 9) == b"abc"
    os.close(fd)
    for path, kind in ((tmp_path / "pipe", "a FIFO"), (tmp_path, "a folder"), ("/dev/null", "a device")):
        for check in (open_regular, check_regular):
            with pytest.raises(OSError, match=f"it is {kind}, not a file"):
                check(os.fspath(path))
