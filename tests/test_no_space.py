"""No bytes, no inodes, no descriptors left: told early where it can be foreseen, and made good later."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import make_tree, pack, read_members, run_cli
from places import limited, mounted
from snapshots import content, finish, leftovers, small_tree, temps

from shardtool.errors import NoSpace
from shardtool.packing.receipts import read_receipts


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return small_tree(tmp_path / "src")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """3 MiB in 60 files."""
    rng = random.Random(1)
    return make_tree(tmp_path / "large", {f"{n % 4}/{n:03d}.bin": rng.randbytes(52_000) for n in range(60)})


def test_a_target_that_is_too_small_is_refused_before_anything_is_written(large: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=1m") as disk:
        ran = run_cli("pack", large, disk / "out", "--json")
        assert (ran.code, ran.error["code"]) == (7, "NoSpace")
        assert "MiB are needed" in ran.error["message"]
        assert list(disk.iterdir()) == []


def test_a_target_with_too_few_inodes_is_refused(large: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=20m,nr_inodes=40") as disk:
        with pytest.raises(NoSpace, match="inodes are needed") as caught:
            pack(large, disk / "out", shards=20)
        assert "--shard-size" in caught.value.hint
        assert list(disk.iterdir()) == []


@pytest.mark.parametrize("durable", [False, True])
def test_a_target_that_fills_up_keeps_finished_shards_and_goes_on_after_room_is_made(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    pack(large, tmp_path / "whole", shards=10)
    with mounted(tmp_path / "disk", "size=4m") as disk:
        monkeypatch.setattr("shardtool.packing.build.check_space", lambda *args, **kinds: None)
        (disk / "other").write_bytes(bytes(2 << 20))
        ran = run_cli("pack", large, disk / "out", "--shards", "10", "--durability", "full" if durable else "none")
        assert ran.code == 7, ran.err
        assert "finished shards are kept" in ran.err
        assert temps(disk / "out") == []
        done = read_receipts(os.fspath(disk / "out"))
        assert 1 < len(done) < 10
        (disk / "other").unlink()
        assert pack(large, disk / "out", shards=10).num_resumed == len(done)
        assert content(disk / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize("room_kib", [0, 4, 8, 16, 32, 64, 128, 256])
def test_a_target_may_fill_up_at_any_time(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_kib: int
) -> None:
    monkeypatch.setattr("shardtool.packing.build.check_space", lambda *args, **kinds: None)
    with mounted(tmp_path / "disk", "size=2m") as disk:
        (disk / "other").write_bytes(bytes((2048 - room_kib) << 10))
        ran = run_cli("pack", tree, disk / "out", "--shards", "4")
        assert ran.code in (0, 7), ran.err
        assert temps(disk) == []
        (disk / "other").unlink()
        pack(tree, disk / "out", shards=4)
        assert content(disk / "out") == finish(tree, tmp_path / "whole")
        assert leftovers(disk / "out") == []


def test_overwrite_counts_the_room_that_it_frees(large: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=4m") as disk:
        pack(large, disk / "out", shards=4)
        pack(large, disk / "out", shards=5, overwrite=True)
        before = content(disk / "out")
        make_tree(large, {"9/more.bin": bytes(3 << 20)})
        with pytest.raises(NoSpace):
            pack(large, disk / "out", shards=5, overwrite=True)
        assert content(disk / "out") == before


def test_a_limit_on_file_size_is_no_space(large: Path, tmp_path: Path) -> None:
    pack(large, tmp_path / "whole", shards=10)
    with limited(resource.RLIMIT_FSIZE, 200_000):
        ran = run_cli("pack", large, tmp_path / "out", "--shards", "10", "--json")
    assert (ran.code, ran.error["code"]) == (7, "NoSpace")
    assert "--shard-size" in ran.error["hint"]
    assert temps(tmp_path / "out") == []
    pack(large, tmp_path / "out", shards=10)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def many(root: Path) -> Path:
    return make_tree(root, {f"{n % 40}/{n}.bin": b"%d" % n for n in range(400)})


@pytest.mark.parametrize("workers", ["1", "2"])
def test_64_descriptors_are_enough(tmp_path: Path, workers: str) -> None:
    tree = many(tmp_path / "many")
    command: list[Any] = [
        sys.executable,
        "-m",
        "shardtool",
        "pack",
        tree,
        tmp_path / "out",
        "--shards",
        "3",
        "-j",
        workers,
    ]
    environment = {**os.environ, "PYTHONPATH": os.fspath(Path(__file__).parent.parent)}
    shell = ["bash", "-c", 'ulimit -n 64 && exec "$@"', "bash"]
    ran = subprocess.run(
        [*shell, *command, "-j", workers], env=environment, capture_output=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr.decode()
    assert len(read_members(tmp_path / "out")) == 400


def test_64_descriptors_are_enough_to_read_ahead(tmp_path: Path) -> None:
    """In a process of its own: this one holds those of other tests."""
    code = """
import sys
from pathlib import Path
import pytest
from helpers import pack
from places import read_ahead
read_ahead(pytest.MonkeyPatch())
pack(Path(sys.argv[1]), Path(sys.argv[2]), shards=3, durable=True)
"""
    tree = many(tmp_path / "many")
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.fspath, (here, here.parent)))}
    command: list[Any] = [
        "bash",
        "-c",
        'ulimit -n 64 && exec "$@"',
        "bash",
        sys.executable,
        "-c",
        code,
        tree,
        tmp_path / "out",
    ]
    ran = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    assert len(read_members(tmp_path / "out")) == 400
