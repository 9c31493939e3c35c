"""`bench pack`: shardtool against GNU tar, a two-thread C loop and webdataset's ShardWriter."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import REPOSITORY, SHARDTOOL, Side, can_drop_caches, compare, remove, save_rows, say

COUNTS = {"tiny": 300_000, "photo": 20_000, "large": 200}
SHARD = "64MiB"
# (goal, floor) of ratio other / shardtool
BARS = {
    ("phase", "tiny"): {"tar": (1.8, 1.5), "climit": (0.7, 0.55), "shardwriter": (12, 8)},
    ("phase", "photo"): {"tar": (3.0, 2.2), "climit": (0.9, 0.7), "shardwriter": (7, 4)},
    ("phase", "large"): {"tar": (3.0, 2.2), "climit": (0.9, 0.7)},
    ("whole", "tiny"): {"tar": (1.4, 1.15), "two-tars": (1.0, 0)},
    ("whole", "photo"): {"tar": (3.0, 2.2)},
    ("whole", "large"): {"tar": (3.0, 2.2)},
    ("cold", "tiny"): {"tar": (3.5, 2.8)},
    ("cold", "photo"): {"tar": (3.0, 2.2)},
}


def data_set(work: Path, name: str, count: int) -> Path:
    """The generated data set; made once and kept in `work`."""
    path = work / f"{name}-{count}"
    if not path.exists():
        say(f"making {path.name}")
        subprocess.run(
            ["python3", str(REPOSITORY / "scripts" / "gen_data.py"), name, str(path), "--count", str(count)], check=True
        )
    return path


def write_list(source: Path, out: Path, listing: Path, *, is_shuffled: bool) -> None:
    """`size path` lines in the order of a packed data set, or of the folders."""
    if is_shuffled:
        import pyarrow as pa

        lines = []
        for index in sorted((out / "index").glob("*.arrow")):
            table = pa.ipc.open_file(pa.memory_map(str(index))).get_batch(0)
            for key, parts in zip(table.column("key").to_pylist(), table.column("parts").to_pylist(), strict=True):
                lines += [f"{part['bytes']} {key.decode()}.{part['name'].decode()}" for part in parts]
    else:
        paths = sorted(path for path in source.rglob("*") if path.is_file())
        lines = [f"{path.stat().st_size} {path.relative_to(source)}" for path in paths]
    listing.write_text("".join(f"{line}\n" for line in lines))


def pack_seconds(stdout: str) -> float:
    """Seconds of the pack phase of `shardtool pack --json`, which tells the start of worker processes apart."""
    seconds: float = json.loads(stdout)["phase_seconds"]["pack"]
    return seconds


def sides_of(kind: str, work: Path, source: Path, one: Path, durability: str) -> list[Side]:
    """The commands of one comparison; every output lies in `work`."""
    out, tar, folder = work / "out", work / "out.tar", work / "c"
    pack = [
        *SHARDTOOL,
        "pack",
        str(source),
        str(out),
        "--workers",
        "2",
        "--shard-size",
        SHARD,
        "--durability",
        durability,
        "-q",
    ]
    tar_command = ["tar", "-cf", str(tar), "-C", str(source.parent), source.name]
    if durability == "full":
        tar_command = ["sh", "-c", f"tar -cf {tar} -C {source.parent} {source.name} && sync {tar}"]
    gnu_tar = Side("tar", tar_command, [tar], startup=["tar", "-cf", str(tar), "-C", str(one.parent), one.name])
    if kind != "phase":
        small = [str(one) if word == str(source) else word for word in pack]
        sides = [Side("shardtool", pack, [out], startup=small), gnu_tar]
        if kind == "whole":
            listing, halves = work / "two", work / "halves"
            first, second = (
                f"tar -cf {work}/h{part}.tar -C {source} -T {halves}.a{letter}" for part, letter in enumerate("ab")
            )
            split = f"split -n l/2 {listing} {halves}. && ({first} & {second}; wait)"
            find = f"cd {source} && find . -type f > {listing} && {split}"
            sides.append(Side("two-tars", ["sh", "-c", find], [work / "h0.tar", work / "h1.tar"]))
        return sides
    # The pack phase alone, as `pack --json` says it; its CPU seconds are those of the whole run.
    shardtool = Side("shardtool", [*pack, "--json"], [out], wall_of=pack_seconds)
    listing = work / "list"
    subprocess.run(pack, check=True, stdout=subprocess.DEVNULL)
    write_list(source, out, listing, is_shuffled=True)
    few = work / "list-of-one"
    write_list(one, out, few, is_shuffled=False)
    sides = [shardtool, gnu_tar]
    program = work / "climit"
    subprocess.run(["gcc", "-O2", "-o", str(program), str(Path(__file__).parent / "climit.c"), "-lpthread"], check=True)
    loop, small_loop = (
        [str(program), str(names), str(root), str(folder), "2"] for names, root in ((listing, source), (few, one))
    )
    sides.append(Side("climit", loop, [folder], folder.mkdir, startup=small_loop))
    if ("phase", source.name.partition("-")[0]) in BARS and "shardwriter" in BARS[
        "phase", source.name.partition("-")[0]
    ]:
        writers = [sys.executable, str(Path(__file__).parent / "shardwriter.py")]
        writer, small_writer = (
            [*writers, str(names), str(root), str(folder), "2"] for names, root in ((listing, source), (few, one))
        )
        sides.append(Side("shardwriter", writer, [folder], startup=small_writer))
    return sides


def judge(kind: str, name: str, report: dict[str, Any]) -> None:
    """Put goal, floor and verdict beside each ratio."""
    for other, (goal, floor) in BARS.get((kind, name), {}).items():
        side = report["sides"][other]
        ratio = side["wall_ratio"]
        side.update(goal=goal, floor=floor, verdict="goal" if ratio >= goal else "floor" if ratio >= floor else "below")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench pack")
    parser.add_argument("--kinds", default="phase,whole,cold")
    parser.add_argument("--data", default="tiny,photo,large")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--durability", choices=("none", "full"), default="none")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "shardtool-bench")
    chosen = parser.parse_args(arguments)
    chosen.work.mkdir(parents=True, exist_ok=True)
    one = chosen.work / "one"
    one.mkdir(exist_ok=True)
    (one / "a.txt").write_text("a")
    results: dict[str, Any] = {}
    for name in chosen.data.split(","):
        source = data_set(chosen.work, name, COUNTS[name])
        for kind in chosen.kinds.split(","):
            if (kind, name) not in BARS or (kind == "cold" and not can_drop_caches()):
                say(f"{kind} {name}: skipped")
                continue
            say(f"{kind} {name}")
            sides = sides_of("whole-cold" if kind == "cold" else kind, chosen.work, source, one, chosen.durability)
            report = compare(sides, rounds=chosen.rounds, is_cold=kind == "cold")
            judge(kind, name, report)
            results[f"{kind}-{name}"] = report
    remove(chosen.work / "out")
    rows = {row: {"durability": chosen.durability, **report} for row, report in results.items()}
    save_rows(f"pack-{chosen.durability}", rows)
