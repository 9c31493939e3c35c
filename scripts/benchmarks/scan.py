"""`bench scan`: the scan of 300,000 files with two workers against `find -printf '%s'`, net of start-up."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from common import Side, can_drop_caches, compare, environment, save
from pack import COUNTS, data_set

CODE = """
import sys
from shardtool.scan import scan
from shardtool.workers import WorkerPool
with WorkerPool(2, preload=("shardtool.sources.tree",)) as pool:
    pool.warm()
    print(scan([sys.argv[1]], pool=pool).entries.num_entries)
"""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench scan")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "shardtool-bench")
    chosen = parser.parse_args(arguments)
    chosen.work.mkdir(parents=True, exist_ok=True)
    source = data_set(chosen.work, "tiny", COUNTS["tiny"])
    one = chosen.work / "one"
    one.mkdir(exist_ok=True)
    sides = [
        Side("shardtool", [sys.executable, "-c", CODE, str(source)], startup=[sys.executable, "-c", CODE, str(one)]),
        Side("find", ["find", str(source), "-printf", "%s\n"], startup=["find", str(one), "-printf", "%s\n"]),
    ]
    results = {"warm": compare(sides, rounds=chosen.rounds)}
    results["warm"]["sides"]["find"].update(goal=1.1, floor=0.9)
    if can_drop_caches():
        results["cold"] = compare(sides, rounds=3, is_cold=True)
    save("scan", {"environment": environment(), "results": results})
