"""Memory that grew without bound elsewhere: per file, per member, per shard. see docs/internals/traps.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from helpers import make_tree

MIB = 1 << 20
MEASURE = Path(__file__).parent.parent / "scripts" / "benchmarks" / "measure.py"
GROWTH = """
import resource, sys
from shardtool.scan import scan
scan([sys.argv[1]])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = scan([sys.argv[2]]).entries
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(found.num_entries, 1024 * (after - before))
"""


def peak_of(*words: str) -> int:
    """Bytes of the largest process of a command."""
    command = [sys.executable, str(MEASURE), sys.executable, "-m", "shardtool", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stderr.splitlines()[-1])["peak_bytes"])


def test_millions_of_files_would_be_scanned_within_a_gigabyte(tmp_path: Path) -> None:
    few = make_tree(tmp_path / "few", {f"{n}.txt": b"" for n in range(100)})
    many = tmp_path / "many"
    for folder in range(20):
        (many / f"{folder:02d}").mkdir(parents=True)
        for number in range(1_000):
            os.close(os.open(many / f"{folder:02d}" / f"{number:06d}.txt", os.O_CREAT | os.O_WRONLY))
    command = [sys.executable, "-c", GROWTH, os.fspath(few), os.fspath(many)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count, grown = map(int, done.stdout.split())
    assert count == 20_000
    assert grown < count * 333  # 3 million in 1 GB


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted by a call of Linux")
def test_members_of_a_tar_are_columns_and_no_objects(tmp_path: Path) -> None:
    peaks = {}
    for count in (100, 30_000):
        (tmp_path / str(count)).mkdir()
        with tarfile.open(tmp_path / str(count) / "a.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
            for number in range(count):
                archive.addfile(tarfile.TarInfo(f"{number:08d}.txt"))
                archive.members = []  # type: ignore[attr-defined]  # it would keep them, too
        peaks[count] = peak_of("index", str(tmp_path / str(count)), "--workers", "1", "-q")
    assert peaks[30_000] - peaks[100] < 30_000 * 500


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted by a call of Linux")
def test_memory_does_not_grow_with_the_number_of_shards(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "in", {f"{n:03d}.npy": b"" for n in range(48)})
    for path in tree.iterdir():
        os.truncate(path, 8 * MIB)  # no blocks: holes are read as zeros
    words = ["pack", str(tree), str(tmp_path / "out"), "--shards", "48", "--workers", "1", "-q"]
    assert peak_of(*words, "--durability", "none") < 240 * MIB  # of 384 MiB in 48 shards


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted, and pages are given back, by calls of Linux")
def test_a_shard_of_many_documents_is_not_held(tmp_path: Path) -> None:
    peaks = {}
    for count in (2_000, 25_000):
        tree = make_tree(tmp_path / str(count), {f"{n:02d}.jsonl": b'{"text": "a"}\n' * count for n in range(16)})
        words = ["pack", str(tree), str(tmp_path / f"out-{count}"), "--format", "bin", "--tokenizer", "bytes"]
        peaks[count] = peak_of(*words, "--workers", "2", "--durability", "none", "-q")
    assert peaks[25_000] - peaks[2_000] < 16 * 23_000 * 60
