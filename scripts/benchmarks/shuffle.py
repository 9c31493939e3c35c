"""`bench shuffle`: what the global shuffle costs: packing in shuffled order against the order of the folders."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from common import SHARDTOOL, Side, can_drop_caches, compare, save_rows, say
from pack import COUNTS, data_set

AT_MOST = {"warm": 1.15, "cold": 1.8}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench shuffle")
    parser.add_argument("--data", default="tiny,photo,large")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "shardtool-bench")
    chosen = parser.parse_args(arguments)
    chosen.work.mkdir(parents=True, exist_ok=True)
    one = chosen.work / "one"
    one.mkdir(exist_ok=True)
    (one / "a.txt").write_text("a")
    for name in chosen.data.split(","):
        source = data_set(chosen.work, name, COUNTS[name])
        sides = [side_of(chosen.work, source, one, shuffle) for shuffle in ("none", "global")]
        for kind in ("warm", "cold") if can_drop_caches() and name == "tiny" else ("warm",):
            say(f"{name} {kind}")
            report = compare(sides, rounds=chosen.rounds if kind == "warm" else 3, is_cold=kind == "cold")
            report["sides"]["global"].update(at_most=AT_MOST[kind])
            save_rows("shuffle", {f"{name}-{kind}": report})


def side_of(work: Path, source: Path, one: Path, shuffle: str) -> Side:
    """Packing in one of the orders; start-up is subtracted."""
    out = work / f"out-{shuffle}"
    flags = ["--shuffle", shuffle, "--workers", "2", "--durability", "none", "-q"]
    whole, small = ([*SHARDTOOL, "pack", str(root), str(out), *flags] for root in (source, one))
    return Side(shuffle, whole, [out], startup=small)
