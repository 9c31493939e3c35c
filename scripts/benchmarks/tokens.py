"""`bench tokens`: ids to pairs, text to pairs, and merging, beside Megatron's builder and datatrove's writer.

Peers run in the environments of scripts/test-peers: megatron, datatrove. What is common to all sides of `ids`, reading
Parquet, is a side of its own, and ratios are given with and without it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import HERE, RESULTS, SHARDTOOL, Side, compare, environment, save, say

sys.path.insert(0, str(HERE.parent.parent / "tests"))
ENVS = Path(os.environ.get("SHARDTOOL_CACHE") or Path.home() / ".cache" / "shardtool") / "envs"
PEER = str(HERE / "tokens_peer.py")
DOCUMENTS, FILES = 60_000, 2
PAIRS, PAIR_DOCUMENTS = 200, 200  # Megatron needs minutes for 2,000


def python_of(peer: str) -> str:
    return str(ENVS / peer / "bin" / "python")


def ids_data(work: Path) -> tuple[Path, int]:
    """Parquet files of list<int32>, lengths 50 to 1,000, ids as skewed as those of text."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder, total = work / "ids", 0
    rng = np.random.default_rng(0)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number in range(FILES):
        lengths = rng.integers(50, 1000, DOCUMENTS)
        count = int(lengths.sum())
        ids = (rng.zipf(1.3, count) % 50_000).astype(np.int32)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
        pq.write_table(pa.table({"input_ids": column}), folder / f"{number}.parquet", row_group_size=10_000)
        total += count
    return folder, total


def pairs_data(work: Path) -> Path:
    """Many small pairs."""
    import numpy as np

    from shardtool.formats.bin_index import encode_idx

    folder = work / "pairs"
    rng = np.random.default_rng(1)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number in range(PAIRS):
        lengths = rng.integers(50, 1000, PAIR_DOCUMENTS)
        ids = rng.integers(0, 50_000, int(lengths.sum()), dtype=np.uint16)
        (folder / f"p{number:05d}.bin").write_bytes(ids.tobytes())
        (folder / f"p{number:05d}.idx").write_bytes(b"".join(encode_idx(lengths, "uint16")))
    return folder


def text_data(work: Path) -> tuple[Path, Path]:
    """Lines of JSON with pieces of the standard library's sources; the BPE of the tests."""
    import sysconfig

    from bpe import tokenizer_file

    folder = work / "text"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    library = Path(sysconfig.get_paths()["stdlib"])
    rng = random.Random(0)
    texts = []
    for path in sorted(library.glob("*.py")) + sorted(library.glob("*/*.py")):
        content = path.read_text(encoding="utf-8", errors="ignore")
        texts += [content[at : at + 3000] for at in range(0, len(content), 6000)]  # half: peers take long
    rng.shuffle(texts)
    for number in range(2):
        lines = (json.dumps({"text": text}) + "\n" for text in texts[number::2])
        (folder / f"{number}.jsonl").write_text("".join(lines))
    return folder, tokenizer_file(8000)


def bench_ids(work: Path, rounds: int) -> dict[str, Any]:
    source, total = ids_data(work)
    small = work / "small"
    shutil.rmtree(small, ignore_errors=True)
    small.mkdir()
    _first_rows(source / "0.parquet", small / "0.parquet")
    pack = ["--format", "bin", "--tokenizer", "none", "--workers", "1", "--durability", "none", "-q"]
    out = work / "out"
    sides = [
        Side(
            "shardtool",
            [*SHARDTOOL, "pack", str(source), str(out), *pack],
            [out],
            startup=[*SHARDTOOL, "pack", str(small), str(out), *pack],
        )
    ]
    for peer in ("decode", "megatron", "datatrove"):
        python = python_of("datatrove" if peer == "decode" else peer)
        if Path(python).exists():
            command = [python, PEER, peer]
            sides.append(Side(peer, [*command, str(source), str(out)], [out], startup=[*command, str(small), str(out)]))
    report = compare(sides, rounds=rounds)
    for name, side in report["sides"].items():
        ours = report["sides"]["shardtool"]
        net = max(side["cpu_ratio"] * max(ours["cpu_s"] - _startup_cpu(sides[0], ours), 1e-3), 1e-3)
        side["mtok_per_cpu_s"] = round(total / net / 1e6, 1)
        del name
    return {"tokens": total, **report}


def _startup_cpu(side: Side, ours: dict[str, Any]) -> float:
    from common import startup_of

    return startup_of(side, 3)["cpu_s"]


def _first_rows(source: Path, target: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(pq.read_table(source).slice(0, 10), target)


def bench_merge(work: Path, rounds: int) -> dict[str, Any]:
    source = pairs_data(work)
    places = [str(path.with_suffix("")) for path in sorted(source.glob("*.bin"))]
    ours, theirs = work / "merged", work / "theirs"
    ours_files = [Path(f"{ours}{suffix}") for suffix in (".bin", ".idx")]
    command = [*SHARDTOOL, "merge", "-q", "--durability", "none", "-o", str(ours)]
    sides = [Side("shardtool", [*command, *places], ours_files, startup=[*command, places[0]])]
    if Path(python_of("megatron")).exists():
        one = work / "one"
        one.mkdir(exist_ok=True)
        for suffix in (".bin", ".idx"):
            shutil.copy(f"{places[0]}{suffix}", one)
        peer = [python_of("megatron"), PEER, "merge"]
        their_files = [Path(f"{theirs}{suffix}") for suffix in (".bin", ".idx")]
        sides.append(
            Side("megatron", [*peer, str(source), str(theirs)], their_files, startup=[*peer, str(one), str(theirs)])
        )
    return {"pairs": PAIRS, "documents": PAIRS * PAIR_DOCUMENTS, **compare(sides, rounds=rounds)}


def bench_text(work: Path, rounds: int) -> dict[str, Any]:
    source, tokenizer = text_data(work)
    size = sum(path.stat().st_size for path in source.iterdir())
    tiny = work / "tiny"
    tiny.mkdir(exist_ok=True)
    (tiny / "0.jsonl").write_text('{"text": "x"}\n')
    out = work / "out-text"
    results = {}
    for workers in (1, 2):
        pack = [
            "--format",
            "bin",
            "--tokenizer",
            str(tokenizer),
            "--workers",
            str(workers),
            "--durability",
            "none",
            "-q",
        ]
        sides = [
            Side(
                "shardtool",
                [*SHARDTOOL, "pack", str(source), str(out), *pack],
                [out],
                startup=[*SHARDTOOL, "pack", str(tiny), str(out), *pack],
            )
        ]
        if workers == 1:
            bare = [sys.executable, PEER, "bare"]
            sides.append(
                Side("encode_batch", [*bare, str(source), str(out), str(tokenizer)], [out],
                     startup=[*bare, str(tiny), str(out), str(tokenizer)])
            )  # fmt: skip
        python = python_of("datatrove")
        if Path(python).exists():
            peer = [python, PEER, "text"]
            end = [str(tokenizer), str(workers)]
            clear = [out, Path(f"{out}-logs")]
            sides.append(
                Side(
                    "datatrove", [*peer, str(source), str(out), *end], clear, startup=[*peer, str(tiny), str(out), *end]
                )
            )
        results[f"workers-{workers}"] = compare(sides, rounds=rounds)
    return {"bytes": size, **results}


def _known() -> dict[str, Any]:
    """What was measured before, of which `--only` replaces a part."""
    path = RESULTS / "tokens.json"
    return dict(json.loads(path.read_text())["results"]) if path.exists() else {}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("ids", "merge", "text"))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "shardtool-bench-tokens")
    chosen = parser.parse_args(arguments)
    chosen.work.mkdir(parents=True, exist_ok=True)
    results = _known() if chosen.only else {}
    for name, run in (("ids", bench_ids), ("merge", bench_merge), ("text", bench_text)):
        if chosen.only in (None, name):
            say(name)
            results[name] = run(chosen.work, chosen.rounds)
    save("tokens", {"environment": environment(), "results": results})
