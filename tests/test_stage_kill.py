"""Copies that are killed at random moments, then repeated: little is read twice, nothing partial is ever visible."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from groups import HOME, until
from stage_process import JOBS
from staged import large_data_set, num_blocks_of, run_stage, shard_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

KILLS = int(os.environ.get("SHARDTOOL_TORTURE", "12"))  # scripts/test-full asks for more


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large_data_set(tmp_path_factory.mktemp("kill"), shards=3, blocks=3)


class Copy:
    """A copy in a process of its own."""

    def __init__(self, out: Path, target: Path, log: Path) -> None:
        self.log = log
        self.before = num_reads(log)
        script = Path(__file__).parent / "stage_process.py"
        self.process = subprocess.Popen(
            [sys.executable, *map(os.fspath, (script, out, target, log))],
            env={**os.environ, "PYTHONPATH": os.fspath(HOME)},
            stderr=subprocess.PIPE,
        )

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def kill_after(self, reads: int, spin: int) -> bool:
        """Kill it that many reads later, and a moment; whether it was still alive."""
        until(lambda: self.is_over or num_reads(self.log) - self.before >= reads)
        for _ in range(spin):  # up to some milliseconds, so that no moment is privileged
            pass
        self.process.send_signal(signal.SIGKILL)
        _, err = self.process.communicate()
        assert self.process.returncode in (0, -signal.SIGKILL), err.decode()
        return self.process.returncode != 0


def num_reads(log: Path) -> int:
    return len(log.read_bytes().splitlines()) if log.exists() else 0


def check_visible(out: Path, target: Path) -> None:
    """Whatever has a final name has all its bytes."""
    for folder in target.iterdir() if target.exists() else ():
        found = shard_bytes(folder) if (folder / "data").exists() else {}
        for name, data in found.items():
            assert data == (out / "data" / name).read_bytes(), name


def test_any_number_of_kills_reads_few_blocks_twice(out: Path, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    rng, target, log = random.Random(seed), tmp_path / "nvme", tmp_path / "log"
    kills = kills_of_this_copy = 0
    blocks = num_blocks_of(out)
    while kills < KILLS:
        copy = Copy(out, target, log)
        was_killed = copy.kill_after(rng.randrange(4), rng.randrange(400_000))
        kills += was_killed
        kills_of_this_copy += was_killed
        check_visible(out, target)
        assert num_reads(log) <= blocks + JOBS * kills_of_this_copy, f"seed {seed}"
        if not was_killed:
            shutil.rmtree(target)
            log.unlink()
            kills_of_this_copy = 0
    result = run_stage(out, target)
    (folder,) = target.iterdir()
    assert shard_bytes(folder) == shard_bytes(out)
    assert not [name for _, _, names in os.walk(folder / ".stage" / "parts") for name in names]
    fetched = -(-result.fetched_bytes // (16 << 20))
    assert num_reads(log) + fetched <= blocks + JOBS * kills_of_this_copy, f"seed {seed}"


def test_eight_processes_share_one_copy(out: Path, tmp_path: Path) -> None:
    target, log = tmp_path / "nvme", tmp_path / "log"
    copies = [Copy(out, target, log) for _ in range(8)]
    for copy in copies:
        _, err = copy.process.communicate(timeout=60)
        assert copy.process.returncode == 0, err.decode()
    reads = log.read_bytes().splitlines()
    assert len(reads) == len(set(reads)) == num_blocks_of(out)
    (folder,) = target.iterdir()
    assert shard_bytes(folder) == shard_bytes(out)


def test_a_waiting_process_takes_over_from_a_killed_one(out: Path, tmp_path: Path) -> None:
    target, log = tmp_path / "nvme", tmp_path / "log"
    first = Copy(out, target, log)
    until(lambda: first.is_over or num_reads(log) >= 1)
    second = Copy(out, target, log)
    first.process.send_signal(signal.SIGKILL)
    first.process.communicate()
    _, err = second.process.communicate(timeout=60)
    assert second.process.returncode == 0, err.decode()
    (folder,) = target.iterdir()
    assert shard_bytes(folder) == shard_bytes(out)
    assert num_reads(log) <= num_blocks_of(out) + JOBS
