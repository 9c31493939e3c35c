"""`bench verify`: GiB a second and core of `verify --deep` on warm shards of 8 MiB files."""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from common import SHARDTOOL, Side, compare, environment, save
from pack import COUNTS, data_set


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench verify")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "shardtool-bench")
    chosen = parser.parse_args(arguments)
    chosen.work.mkdir(parents=True, exist_ok=True)
    results = {}
    for name in ("large", "tiny"):
        source = data_set(chosen.work, name, COUNTS[name])
        packed = chosen.work / f"packed-{name}"
        subprocess.run([*SHARDTOOL, "pack", str(source), str(packed), "-q", "--durability", "none"], check=True)
        size = sum(path.stat().st_size for path in (packed / "data").glob("*.tar"))
        command = [*SHARDTOOL, "verify", str(packed), "-q"]
        report = compare([Side("deep", [*command, "--deep"], startup=command)], rounds=chosen.rounds)
        side = report["sides"]["deep"]
        net = side["cpu_s"] - report["sides"]["deep"]["startup_wall_s"]
        side["gib_per_cpu_s"] = round(size / 2**30 / max(net, 1e-3), 2)
        results[name] = report
    results["large"]["sides"]["deep"].update(goal=1.0, floor=1.0)
    save("verify", {"environment": environment(), "results": results})
