"""`bench formats`: the pack phase of shardtool, format by format, against other writers of that format.

Wall seconds are those of the pack phase and of the writers' loops. CPU seconds are those of the whole commands less the
same commands on ten files, so that scan, plan and index count, and interpreters and imports do not.

Both sides write the same samples in the same order, that of the packed shards: a writer gets its list shuffled. Plain
loops do not shuffle, so theirs is in the order of the folders; how fast the others are in that order is told beside.
`c-loop` is climit.c on the shuffled list, two threads that open, read and write without a digest: what no writer beats.
A row is kept as soon as it is measured; one whose writer fails is said, and the rest goes on.

A row of PEERS is (format, data, writer): (goal, floor) of the ratio other / shardtool. Writers are functions of
format_peers.py; one whose library is not installed here runs in the environment that scripts/test-peers made.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import SHARDTOOL, Side, compare, remove, save_rows, say
from pack import COUNTS, data_set, pack_seconds, write_list

ENVS = Path(os.environ.get("SHARDTOOL_CACHE") or Path.home() / ".cache" / "shardtool") / "envs"
SHARD = "64MiB"
# (format, data set, writer): (goal, floor)
PEERS = {
    ("parquet", "photo", "plain-parquet"): (1.0, 0.85),
    ("parquet", "photo", "datasets-parquet"): (3.0, 3.0),
    ("parquet", "tiny", "plain-parquet"): (1.0, 0.85),
    ("parquet", "tiny", "datasets-parquet"): (3.0, 3.0),
    ("arrow", "photo", "plain-arrow"): (1.0, 0.85),
    ("arrow", "tiny", "plain-arrow"): (1.0, 0.85),
    ("tfrecord", "photo", "loop-tfrecord"): (2.0, 2.0),
    ("tfrecord", "tiny", "loop-tfrecord"): (2.0, 2.0),
    ("mds", "photo", "mds-writer"): (5.0, 5.0),
    ("mds", "tiny", "mds-writer"): (5.0, 5.0),
    ("litdata", "photo", "litdata-optimize"): (10.0, 10.0),
    ("litdata", "tiny", "litdata-optimize"): (10.0, 10.0),
}
PLAIN = ("plain-parquet", "plain-arrow")  # loops that do not shuffle
IN_SOURCE_ORDER = " in source order"
ENV_OF = {
    "datasets-parquet": "datasets",
    "mds-writer": "mosaic",
    "litdata-optimize": "litdata",
}  # environment of scripts/test-peers


def python_of(writer: str) -> str | None:
    """The interpreter that has the library of a writer; None where none has."""
    if writer not in ENV_OF:
        return sys.executable
    path = ENVS / ENV_OF[writer] / "bin" / "python"
    return str(path) if path.exists() else None


def sides_of(shard_format: str, writers: list[str], work: Path, source: Path) -> list[Side]:
    """shardtool first, then every writer that can run, in both orders where its list is shuffled."""
    out, folder, few = work / "out", work / "peer", data_set(work, "tiny", 10)

    def pack(root: Path) -> list[str]:
        command = [*SHARDTOOL, "pack", str(root), str(out), "--format", shard_format, "--workers", "2"]
        return [*command, "--shard-size", SHARD, "--durability", "none", "--json", "-q"]

    for root, name in ((few, "few"), (source, "list")):
        remove(out)
        subprocess.run(pack(root), check=True, stdout=subprocess.DEVNULL)
        write_list(root, out, work / f"{name}-shuffled", is_shuffled=True)
        write_list(root, out, work / f"{name}-in-order", is_shuffled=False)
    program = str(Path(__file__).parent / "format_peers.py")

    def side(name: str, python: str, writer: str, order: str) -> Side:
        start, command = (
            [python, program, writer, str(work / f"{listing}-{order}"), str(root), str(folder), "2"]
            for root, listing in ((few, "few"), (source, "list"))
        )
        return Side(name, command, [folder], startup=start, wall_of=float)

    sides = [Side("shardtool", pack(source), [out], startup=pack(few), wall_of=pack_seconds)]
    loop = work / "climit"
    subprocess.run(["gcc", "-O2", "-o", str(loop), str(Path(__file__).parent / "climit.c"), "-lpthread"], check=True)
    few_loop, all_loop = (
        [str(loop), str(work / f"{listing}-shuffled"), str(root), str(folder), "2"]
        for root, listing in ((few, "few"), (source, "list"))
    )
    sides.append(Side("c-loop", all_loop, [folder], folder.mkdir, startup=few_loop))
    for writer in writers:
        python = python_of(writer)
        if python is None:
            say(f"{writer}: skipped, scripts/test-peers {ENV_OF[writer]} makes its environment")
            continue
        if writer not in PLAIN:
            sides.append(side(writer, python, writer, "shuffled"))
        name = writer if writer in PLAIN else writer + IN_SOURCE_ORDER
        sides.append(side(name, python, writer, "in-order"))
    return sides


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench formats")
    parser.add_argument("--formats", default=",".join(dict.fromkeys(row[0] for row in PEERS)))
    parser.add_argument("--data", default="photo,tiny")
    parser.add_argument("--count", type=int, default=0, help="files of each data set")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "shardtool-bench")
    chosen = parser.parse_args(arguments)
    chosen.work.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    for shard_format in chosen.formats.split(","):
        for name in chosen.data.split(","):
            bars = {writer: bar for (f, d, writer), bar in PEERS.items() if (f, d) == (shard_format, name)}
            if not bars:
                continue
            say(f"{shard_format} {name}")
            source = data_set(chosen.work, name, chosen.count or COUNTS[name])
            try:
                report = compare(sides_of(shard_format, list(bars), chosen.work, source), rounds=chosen.rounds)
            except SystemExit as error:
                say(str(error))
                failed.append(f"{shard_format} {name}")
                continue
            for writer, (goal, floor) in bars.items():
                side = report["sides"].get(writer)
                if side:
                    ratio = side["wall_ratio"]
                    verdict = "goal" if ratio >= goal else "floor" if ratio >= floor else "below"
                    side.update(goal=goal, floor=floor, verdict=verdict)
            save_rows("formats", {f"{shard_format}-{name}": report})
    remove(chosen.work / "out")
    if failed:
        raise SystemExit(f"not measured: {', '.join(failed)}")
