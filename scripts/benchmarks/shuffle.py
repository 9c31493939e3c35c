"""`bench shuffle`: what the global shuffle costs: packing in shuffled order against the order of the folders."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from common import SHARDTOOL, Side, can_drop_caches, compare, environment, save
from pack import COUNTS, data_set


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench shuffle")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "shardtool-bench")
    chosen = parser.parse_args(arguments)
    chosen.work.mkdir(parents=True, exist_ok=True)
    source = data_set(chosen.work, "tiny", COUNTS["tiny"])

    def side(shuffle: str) -> Side:
        out = chosen.work / f"out-{shuffle}"
        flags = ["--shuffle", shuffle, "--workers", "2", "--durability", "none", "-q"]
        return Side(shuffle, [*SHARDTOOL, "pack", str(source), str(out), *flags], [out])

    sides = [side("none"), side("global")]
    results = {"warm": compare(sides, rounds=chosen.rounds)}
    results["warm"]["sides"]["global"].update(at_most=1.15)
    if can_drop_caches():
        results["cold"] = compare(sides, rounds=3, is_cold=True)
        results["cold"]["sides"]["global"].update(at_most=1.8)
    save("shuffle", {"environment": environment(), "results": results})
