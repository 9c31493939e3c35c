"""`bench tokens`: ids to pairs, merging, text to pairs and memory, beside Megatron's builder and datatrove's writer.

Peers run in the environments of scripts/test-peers: megatron, datatrove. What is common to all sides of `ids`, reading
the source, is a side of its own (`decode`), and ratios are given with and without it. shardtool shuffles, indexes,
digests and notes where each document came from; the others append.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from common import HERE, SHARDTOOL, Side, compare, run_once, save_rows, say
from tokens_data import few_ids, fresh, ids_data, large_text, pairs_data, some_pairs, text_data, write_lines
from tokens_memory import peaks

sys.path.insert(0, str(HERE.parent.parent / "tests"))
ENVS = Path(os.environ.get("SHARDTOOL_CACHE") or Path.home() / ".cache" / "shardtool") / "envs"
PEER = str(HERE / "tokens_peer.py")
DOCUMENTS = 100_000
PAIRS, PAIR_DOCUMENTS = 2000, 50
PEER_PAIRS = 100  # Megatron collects garbage at each pair: 2,000 take it minutes (--patient)
GIGABYTES = (1, 4)
QUICK = ["--durability", "none", "-q"]


def pack(source: Path, out: Path, tokenizer: str | Path, workers: int, *more: str) -> list[str]:
    """The command of shardtool."""
    options = ["--format", "bin", "--tokenizer", str(tokenizer), "--workers", str(workers), *QUICK]
    return [*SHARDTOOL, "pack", str(source), str(out), *options, *more]


def peer(environment: str, *arguments: object) -> list[str] | None:
    """The command of a peer; None where its environment is not there."""
    python = ENVS / environment / "bin" / "python"
    return [str(python), PEER, *map(str, arguments)] if python.exists() else None


def told(name: str, stdout: str) -> float:
    """What a peer says of itself on its last line."""
    return float(json.loads(stdout.strip().rsplit("\n", 1)[-1])[name])


def timed(name: str, command: list[str] | None, *clear: Path) -> list[Side]:
    """[a side that tells its own seconds], or nothing where there is no command."""
    if command is None:
        return []
    return [Side(name, command, list(clear), wall_of=partial(told, "wall_s"), cpu_of=partial(told, "cpu_s"))]


def side(name: str, command: list[str] | None, startup: list[str] | None, *clear: Path) -> list[Side]:
    """[a side], or nothing where there is no command."""
    return [] if command is None else [Side(name, command, list(clear), startup=startup)]


def bench_ids(work: Path, rounds: int) -> dict[str, Any]:
    """Ids in Parquet, and in Arrow, whose reading costs next to nothing."""
    folders, total = ids_data(work, DOCUMENTS)
    few = few_ids(folders, work)
    results: dict[str, Any] = {"tokens": total, "documents": DOCUMENTS}
    out = work / "out"
    for kind, source in folders.items():
        small = few[kind]
        sides = side("shardtool", pack(source, out, "none", 1), pack(small, out, "none", 1), out)
        for name, home in (("decode", "datatrove"), ("megatron", "megatron"), ("datatrove", "datatrove")):
            sides += timed(name, peer(home, name, source, out), out)
        if kind == "parquet":
            sides += timed("megatron-arrays", peer("megatron", "megatron_arrays", source, out), out)
        report = compare(sides, rounds=rounds)
        _add_rates(report["sides"], total)
        results[kind] = report
    results["same_bytes"] = _same_bytes(folders["parquet"], work)
    return results


def _add_rates(sides: dict[str, Any], total: int) -> None:
    """Tokens a CPU second, and how much more than ours the others take for what is not reading the source."""
    net = {name: max(found["cpu_s"] - found["startup_cpu_s"], 1e-3) for name, found in sides.items()}
    for name, found in sides.items():
        found["ns_per_token"] = round(net[name] / total * 1e9, 2)
        found["mtok_per_cpu_s"] = round(total / net[name] / 1e6, 1)
        if "decode" in net and name != "decode":
            ours = max(net["shardtool"] - net["decode"], 1e-3)
            found["cpu_ratio_beyond_decode"] = round((net[name] - net["decode"]) / ours, 2)


def _same_bytes(source: Path, work: Path) -> dict[str, bool]:
    """{peer: whether it and shardtool, without its shuffle, write the same two files}, of peers that are there."""
    theirs, ours = work / "theirs", work / "ours"
    found: dict[str, bool] = {}
    shutil.rmtree(ours, ignore_errors=True)
    subprocess.run(pack(source, ours, "none", 1, "--shuffle", "none"), check=True, stdout=subprocess.DEVNULL)
    for name in ("megatron", "datatrove"):
        command = peer(name, name, source, theirs)
        if command is None:
            continue
        shutil.rmtree(theirs, ignore_errors=True)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found[name] = all(
            filecmp.cmp(theirs / f"x.{suffix}", ours / "data" / f"train-00000-of-00001.{suffix}", shallow=False)
            for suffix in ("bin", "idx")
        )
        shutil.rmtree(theirs)
    shutil.rmtree(ours)
    return found


def bench_merge(work: Path, rounds: int, *, is_patient: bool) -> dict[str, Any]:
    """2,000 small pairs. Megatron's loop takes 100 of them, once: its cost a pair only grows with their number."""
    source = pairs_data(work, PAIRS, PAIR_DOCUMENTS)
    places = [str(path.with_suffix("")) for path in sorted(source.glob("*.bin"))]
    ours = [work / f"merged{suffix}" for suffix in (".bin", ".idx")]
    command = [*SHARDTOOL, "merge", *QUICK, "-o", str(work / "merged")]
    results: dict[str, Any] = {"pairs": PAIRS, "documents": PAIRS * PAIR_DOCUMENTS}
    for count in (PAIRS, PEER_PAIRS):  # the second for its memory
        one = Side("shardtool", [*command, *places[:count]], ours, startup=[*command, places[0]])
        report = compare([one], rounds=rounds)["sides"]["shardtool"]
        results[f"shardtool-{count}"] = {**report, "cpu_ms_per_pair": _per_pair(report, count)}
    count = PAIRS if is_patient else PEER_PAIRS
    theirs = peer("megatron", "merge", some_pairs(source, work / "few-pairs", count), work / "theirs")
    if theirs is not None:
        run = run_once(theirs, cpu_of=partial(told, "cpu_s"), wall_of=partial(told, "wall_s"))
        results["megatron"] = {"pairs": count, **run, "cpu_ms_per_pair": round(run["cpu_s"] / count * 1e3, 3)}
        mine = results[f"shardtool-{PAIRS}"]["cpu_ms_per_pair"]
        results["cpu_ratio_per_pair"] = round(results["megatron"]["cpu_ms_per_pair"] / mine, 1)
        for suffix in (".bin", ".idx"):
            (work / f"theirs{suffix}").unlink()
    return results


def _per_pair(found: dict[str, Any], count: int) -> float:
    return float(round(max(found["cpu_s"] - found["startup_cpu_s"], 1e-3) / count * 1e3, 3))


def bench_text(work: Path, rounds: int) -> dict[str, Any]:
    """Text with the same tokenizer.json: bare `encode_batch`, which keeps nothing, and datatrove."""
    from bpe import tokenizer_file

    source, tokenizer = text_data(work), tokenizer_file(8000)
    tiny = fresh(work / "tiny-text")
    for number in range(2):  # so that the start-up of two workers is that of two
        write_lines(tiny / f"{number}.jsonl", ["x"])
    out = work / "out-text"
    results: dict[str, Any] = {"bytes": sum(path.stat().st_size for path in source.iterdir())}
    for workers in (1, 2):
        sides = side("shardtool", pack(source, out, tokenizer, workers), pack(tiny, out, tokenizer, workers), out)
        bare = [
            [sys.executable, PEER, "bare", str(where), str(out), str(tokenizer), str(workers)]
            for where in (source, tiny)
        ]
        sides += side("encode_batch", bare[0], bare[1], out)
        theirs = [peer("datatrove", "text", where, out, tokenizer, workers) for where in (source, tiny)]
        sides += side("datatrove", theirs[0], theirs[1], out, Path(f"{out}-logs"))
        results[f"workers-{workers}"] = compare(sides, rounds=rounds)
    return results


def bench_memory(work: Path, _rounds: int) -> dict[str, Any]:
    """1 and 4 GB of text as bytes: the peak of every process."""
    results: dict[str, Any] = {}
    out = work / "out-memory"
    for gigabytes in GIGABYTES:
        source = large_text(work, gigabytes)
        shutil.rmtree(out, ignore_errors=True)
        needed = 2 * 4 * gigabytes * 10**9  # two bytes a byte, part files and shards
        if shutil.disk_usage(work).free < needed:
            say(f"  {gigabytes} GB: not enough space for {needed:,} bytes")
            continue
        results[f"{gigabytes}GB"] = peaks(pack(source, out, "bytes", 2))
        say(f"  {gigabytes} GB: {results[f'{gigabytes}GB']}")
        shutil.rmtree(out)
        shutil.rmtree(source)
    (work / "large-1.jsonl").unlink()
    return results


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=("ids", "merge", "text", "memory"))
    parser.add_argument("--patient", action="store_true", help="let Megatron merge all pairs, too")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "shardtool-bench-tokens")
    chosen = parser.parse_args(arguments)
    chosen.work.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    for name in chosen.only or ("ids", "merge", "text", "memory"):
        say(name)
        if name == "merge":
            results[name] = bench_merge(chosen.work, chosen.rounds, is_patient=chosen.patient)
        else:
            results[name] = {"ids": bench_ids, "text": bench_text, "memory": bench_memory}[name](
                chosen.work, chosen.rounds
            )
    save_rows("tokens", results)
