"""`bench convert`: a data set shuffled anew into another one, against `cp` of its shards; durability alike (none).

Goal and floor 0.7: converting reads, digests twice and writes what cp reads and writes, and may take 1.43 times as
long. The time of converting next to nothing (interpreter, workers, plan) is subtracted.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from common import SHARDTOOL, Side, compare, remove, save_rows, say
from pack import COUNTS, data_set

BAR = 0.7


def convert(source: Path, out: Path) -> list[str]:
    """The command that shuffles `source` anew."""
    return [*SHARDTOOL, "convert", str(source), str(out), "--seed", "7", "--workers", "2", "--durability", "none", "-q"]


def packed(work: Path, name: str, count: int) -> Path:
    """A data set of so many files; made once and kept in `work`."""
    out = work / f"packed-{name}-{count}"
    if not (out / "manifest.json").exists():
        source = data_set(work, name, count)
        subprocess.run([*SHARDTOOL, "pack", str(source), str(out), "--durability", "none", "-q"], check=True)
    return out


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench convert")
    parser.add_argument("--data", default="photo")
    parser.add_argument("--count", type=int, default=0, help="files of each data set")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "shardtool-bench")
    chosen = parser.parse_args(arguments)
    chosen.work.mkdir(parents=True, exist_ok=True)
    results = {}
    for name in chosen.data.split(","):
        say(name)
        source, small = packed(chosen.work, name, chosen.count or COUNTS[name]), packed(chosen.work, name, 10)
        out, small_out, copy = (chosen.work / name for name in ("out", "small-out", "copy"))
        sides = [
            Side("shardtool", convert(source, out), [out, small_out], startup=convert(small, small_out)),
            Side("cp", ["cp", "-r", str(source / "data"), str(copy)], [copy]),
        ]
        report = compare(sides, rounds=chosen.rounds)
        side = report["sides"]["cp"]
        side.update(goal=BAR, floor=BAR, verdict="goal" if side["wall_ratio"] >= BAR else "below")
        results[name] = report
        for path in (out, small_out, copy):
            remove(path)
    save_rows("convert", results)
