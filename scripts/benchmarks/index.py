"""`bench index`: `shardtool index` of tars that GNU tar wrote, against a loop over the standard library's tarfile."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from common import SHARDTOOL, Side, compare, environment, save
from pack import COUNTS, data_set

LOOP = """
import sys, tarfile
from pathlib import Path
for path in sorted(Path(sys.argv[1]).glob("*.tar")):
    with tarfile.open(path) as archive:
        rows = [(member.name, member.offset_data, member.size) for member in archive]
"""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench index")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "shardtool-bench")
    chosen = parser.parse_args(arguments)
    chosen.work.mkdir(parents=True, exist_ok=True)
    source = data_set(chosen.work, "tiny", COUNTS["tiny"])
    shards, small = chosen.work / "foreign", chosen.work / "foreign-one"
    for folder in (shards, small):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    names = sorted(path.name for path in source.iterdir())
    for number in range(4):
        chunk = names[number * len(names) // 4 : (number + 1) * len(names) // 4]
        target = shards / f"{number:05d}.tar"
        subprocess.run(["tar", "--sort=name", "-cf", str(target), "-C", str(source), *chunk], check=True)
    (small / "a.txt").write_text("a")
    subprocess.run(["tar", "-cf", str(small / "00000.tar"), "-C", str(small), "a.txt"], check=True)
    (small / "a.txt").unlink()

    def clear() -> None:
        for folder in (shards, small):
            for made in ("manifest.json", "index", ".shardtool"):
                path = folder / made
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    ours = Side(
        "shardtool",
        [*SHARDTOOL, "index", str(shards), "-q"],
        before=clear,
        startup=[*SHARDTOOL, "index", str(small), "-q"],
    )
    loop = [sys.executable, "-c", LOOP]
    theirs = Side("tarfile", [*loop, str(shards)], startup=[*loop, str(small)])
    listing = Side("tar -tR", ["sh", "-c", f"for f in {shards}/*.tar; do tar -tRf $f; done"])
    results = {"tiny": compare([ours, theirs, listing], rounds=chosen.rounds)}
    results["tiny"]["sides"]["tarfile"].update(goal=12, floor=8)
    save("index", {"environment": environment(), "results": results})
