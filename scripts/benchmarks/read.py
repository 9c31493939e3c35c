"""`bench read`: samples of packed tar shards through the index, against webdataset's raw reading of the same shards."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from common import SHARDTOOL, Side, compare, environment, save
from pack import COUNTS, data_set

OURS = """
import sys
from shardtool.reading.reading import Dataset
count = size = 0
with Dataset.open(sys.argv[1]) as dataset:
    for shard in range(dataset.num_shards):
        for sample in dataset.samples(shard):
            count += 1
            size += sum(map(len, sample.parts.values()))
print(count, size)
"""
WEBDATASET = """
import sys
from pathlib import Path
import webdataset as wds
count = size = 0
urls = sorted(map(str, Path(sys.argv[1]).glob("data/*.tar")))
for sample in wds.WebDataset(urls, shardshuffle=False, empty_check=False):
    count += 1
    size += sum(len(value) for value in sample.values() if isinstance(value, bytes))
print(count, size)
"""
LOOSE = """
import os, sys
count = size = 0
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        fd = os.open(folder + "/" + name, os.O_RDONLY)
        size += len(os.read(fd, 1 << 20))
        os.close(fd)
        count += 1
print(count, size)
"""
BARS = {"tiny": (15, 10), "photo": (5, 3.5)}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench read")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "shardtool-bench")
    chosen = parser.parse_args(arguments)
    chosen.work.mkdir(parents=True, exist_ok=True)
    one = chosen.work / "one"
    one.mkdir(exist_ok=True)
    (one / "a.txt").write_text("a")
    small = chosen.work / "one-packed"
    subprocess.run([*SHARDTOOL, "pack", str(one), str(small), "-q", "--overwrite"], check=True)
    results = {}
    for name, (goal, floor) in BARS.items():
        source = data_set(chosen.work, name, COUNTS[name])
        packed = chosen.work / f"packed-{name}"
        subprocess.run([*SHARDTOOL, "pack", str(source), str(packed), "-q", "--durability", "none"], check=True)

        def side(label: str, code: str, place: Path, nothing: Path) -> Side:
            return Side(
                label, [sys.executable, "-c", code, str(place)], startup=[sys.executable, "-c", code, str(nothing)]
            )

        sides = [
            side("shardtool", OURS, packed, small),
            side("webdataset", WEBDATASET, packed, small),
            side("loose files", LOOSE, source, one),
        ]
        results[name] = compare(sides, rounds=chosen.rounds)
        results[name]["sides"]["webdataset"].update(goal=goal, floor=floor)
    save("read", {"environment": environment(), "results": results})
