"""`bench loader`: samples a second in a training process, bytes without decoding, in the default reading order.

The reader under ShardStream and ShardDataset, driven batch after batch, against webdataset on the same tar shards, the
loose files in random order, and a bare sequential read of the shards; warm, and cold where the cache can be dropped.
Beside it the same reader with a `transform` that uses each sample once it was read, as the loop over webdataset does,
and with `io="map"`, whose views nobody copies; webdataset in lists of a batch, which holds as many bytes as ours; and
bare preads of the parts, shuffled and held a batch at a time: no loader that hands over bytes of a batch can take less.
Once more with a digest of every part, of which a view saves no byte (`-digest`).
Where an environment has torch (`--torch PYTHON`, by default the one of scripts/test-peers), also ShardStream and
ShardDataset themselves, through ResumableLoader without workers. Where one has mosaicml-streaming (`--mosaic PYTHON`),
its StreamingDataset in its default shuffle and in order, over MDS shards of the same samples, against webdataset.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import SHARDTOOL, Side, can_drop_caches, compare, save_rows, say
from pack import COUNTS, data_set

PREAMBLE = """
import sys
path, batch = sys.argv[1], int(sys.argv[2])
count = size = 0
"""
LOOK, DIGEST = (
    "use = len",
    """
from xxhash import xxh3_64_intdigest
def use(data):
    if type(data) is not str:
        xxh3_64_intdigest(data)
    return len(data)
""",
)
READER = """
from shardtool.loading.ahead import PiecesAhead
from shardtool.loading.cursor import start_cursor
from shardtool.loading.memory import reuse_freed_memory
from shardtool.loading.reader import SampleReader
reuse_freed_memory()
reader = SampleReader(path, **OPTIONS)
turn = start_cursor(reader.shards, reader.dataset_id, global_batch=min(batch, len(reader)), policy="uneven").turn()
ahead = PiecesAhead(turn.order, reader.shards.mean_bytes, turn.order.params.lanes)
for part in turn.batches(range(turn.num_steps)):
    reader.hint(*ahead.next_pieces(part.positions))
    for sample in reader.read(reader.numbers(part.shards, part.rows)):
        count += 1
        size += sample if type(sample) is int else sum(map(use, sample.values()))
print(count, size)
"""
BYTES, VIEWS = "OPTIONS = {}", "OPTIONS = {'io': 'map'}"
ONE_BY_ONE = "OPTIONS = {'transform': lambda sample: sum(map(use, sample.values()))}"
TORCH = """
from shardtool.loading.memory import reuse_freed_memory
from shardtool.torch import ResumableLoader, ShardBatchSampler, ShardDataset, ShardStream
reuse_freed_memory()
dataset = ShardDataset(path, **OPTIONS)
options = {"global_batch": min(batch, len(dataset)), "policy": "uneven"}
if KIND == "ShardStream":
    loader = ResumableLoader(ShardStream(dataset, **options), collate_fn=list)
else:
    loader = ResumableLoader(dataset, batch_sampler=ShardBatchSampler(dataset, **options), collate_fn=list)
for samples in loader:
    for sample in samples:
        count += 1
        size += sum(map(use, sample.values()))
print(count, size)
"""
WEBDATASET = """
from pathlib import Path
import webdataset as wds
urls = sorted(map(str, Path(path).glob("data/*.tar")))
for sample in wds.WebDataset(urls, shardshuffle=False, empty_check=False):
    count += 1
    size += sum(use(value) for value in sample.values() if isinstance(value, bytes))
print(count, size)
"""
WEBDATASET_BATCHES = """
from pathlib import Path
import webdataset as wds
urls = sorted(map(str, Path(path).glob("data/*.tar")))
for samples in wds.WebDataset(urls, shardshuffle=False, empty_check=False).batched(batch, collation_fn=list):
    for sample in samples:
        count += 1
        size += sum(use(value) for value in sample.values() if isinstance(value, bytes))
print(count, size)
"""
LOOSE = """
import os
names = [folder + "/" + name for folder, _, files in os.walk(path) for name in files]
import random
random.Random(7).shuffle(names)
for name in names:
    fd = os.open(name, os.O_RDONLY)
    size += use(os.read(fd, 1 << 24))
    os.close(fd)
    count += 1
print(count, size)
"""
MOSAIC = """
import torch
operators = torch.library.Library("torchvision", "DEF")  # a CUDA build of torchvision beside a CPU torch lacks them
for name in ("nms", "qnms"):
    operators.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from streaming import StreamingDataset
data = StreamingDataset(local=path + "/data/train", batch_size=batch, shuffle=SHUFFLE)
for sample in data:
    count += 1
    size += sum(len(value) for value in sample.values() if isinstance(value, (bytes, str)))
print(count, size)
"""
PREADS = """
import os, random
from pathlib import Path
import pyarrow as pa
places = []
for shard, index in zip(sorted(Path(path).glob("data/*.tar")), sorted(Path(path).glob("index/*.arrow"))):
    fd = os.open(shard, os.O_RDONLY)
    parts = pa.ipc.open_file(pa.memory_map(str(index))).read_all().column("parts").combine_chunks().flatten()
    offsets, sizes = (parts.field(name).to_pylist() for name in ("offset", "bytes"))
    places += [(fd, length, offset) for offset, length in zip(offsets, sizes)]
random.Random(7).shuffle(places)
from shardtool.loading.memory import reuse_freed_memory
reuse_freed_memory()
for first in range(0, len(places), batch):
    held = [os.pread(*place) for place in places[first : first + batch]]
    size += sum(map(use, held))
print(len(places), size)
"""
SEQUENTIAL = """
import os
from pathlib import Path
for name in sorted(map(str, Path(path).glob("data/*.tar"))):
    fd = os.open(name, os.O_RDONLY)
    while data := os.read(fd, 1 << 20):
        size += use(data)
    os.close(fd)
print(size)
"""
BARS = {  # ratio to the first side, wall: at least
    "tiny": {"webdataset": 8, "loose files": 1.3},
    "photo": {"webdataset": 4, "loose files": 1.3, "sequential": 0.8},
}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench loader")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual number of files")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "shardtool-bench")
    parser.add_argument("--only", choices=list(BARS), help="one data set")
    parser.add_argument("--warm", action="store_true", help="leave the cold runs out")
    parser.add_argument(
        "--torch", type=Path, default=peer_python("torch"), help="a Python that has torch and shardtool"
    )
    parser.add_argument("--mosaic", type=Path, default=peer_python("mosaic"), help="one that has mosaicml-streaming")
    chosen = parser.parse_args(arguments)
    chosen.work.mkdir(parents=True, exist_ok=True)
    one, small = one_sample(chosen.work)
    results: dict[str, Any] = {}
    for name, bars in BARS.items():
        if chosen.only not in (None, name):
            continue
        source = data_set(chosen.work, name, max(2, int(COUNTS[name] * chosen.scale)))
        packed = chosen.work / f"loader-{name}"
        pack(source, packed)
        sides = sides_of(source, packed, one, small, chosen.batch)
        results[name] = report(compare(sides, rounds=chosen.rounds), bars)
        used = digest_sides(source, packed, one, small, chosen.batch)
        results[f"{name}-digest"] = report(compare(used, rounds=chosen.rounds), bars)
        if can_drop_caches() and not chosen.warm:
            results[f"{name}-cold"] = compare(sides, rounds=max(1, chosen.rounds // 2), is_cold=True)
        if chosen.torch.exists():
            results[f"{name}-torch"] = compare(
                torch_sides(chosen.torch, packed, small, chosen.batch), rounds=chosen.rounds
            )
        else:
            say(f"  no torch at {chosen.torch}: scripts/test-peers torch makes it")
        if chosen.mosaic.exists():
            results[f"{name}-mosaic"] = compare(mosaic_sides(chosen, source, packed, one, small), rounds=chosen.rounds)
        else:
            say(f"  no mosaicml-streaming at {chosen.mosaic}: scripts/test-peers mosaic makes it")
    size = {"batch": chosen.batch, "scale": chosen.scale}
    save_rows("loader", {row: {**size, **result} for row, result in results.items()})


def peer_python(name: str) -> Path:
    cache = Path(os.environ.get("SHARDTOOL_CACHE", Path.home() / ".cache" / "shardtool"))
    return cache / "envs" / name / "bin" / "python"


def one_sample(work: Path) -> tuple[Path, Path]:
    """A folder with one file, and its data set: what start-up costs."""
    one, small = work / "one", work / "one-packed"
    one.mkdir(exist_ok=True)
    (one / "a.txt").write_text("a")
    pack(one, small)
    return one, small


def pack(source: Path, packed: Path, shard_format: str = "tar") -> None:
    options = ["-q", "--durability", "none", "--overwrite", "--format", shard_format]
    command = [*SHARDTOOL, "pack", str(source), str(packed), *options]
    subprocess.run(command, check=True)


def side(
    label: str, code: str, places: tuple[Path, Path], batch: int, python: str = sys.executable, use: str = LOOK
) -> Side:
    command = [python, "-c", f"{PREAMBLE}\n{use}\n{code}"]
    return Side(label, [*command, str(places[0]), str(batch)], startup=[*command, str(places[1]), str(batch)])


def sides_of(source: Path, packed: Path, one: Path, small: Path, batch: int) -> list[Side]:
    return [
        side("shardtool", f"{BYTES}\n{READER}", (packed, small), batch),
        side("shardtool, one by one", f"{ONE_BY_ONE}\n{READER}", (packed, small), batch),
        side("shardtool, views", f"{VIEWS}\n{READER}", (packed, small), batch),
        side("webdataset", WEBDATASET, (packed, small), batch),
        side("webdataset, batches", WEBDATASET_BATCHES, (packed, small), batch),
        side("loose files", LOOSE, (source, one), batch),
        side("preads, batches", PREADS, (packed, small), batch),
        side("sequential", SEQUENTIAL, (packed, small), batch),
    ]


def digest_sides(source: Path, packed: Path, one: Path, small: Path, batch: int) -> list[Side]:
    """Every byte of every sample is looked at: then a view is no better off than a copy."""
    places = (packed, small)
    return [
        side("shardtool, views", f"{VIEWS}\n{READER}", places, batch, use=DIGEST),
        side("shardtool", f"{BYTES}\n{READER}", places, batch, use=DIGEST),
        side("shardtool, one by one", f"{ONE_BY_ONE}\n{READER}", places, batch, use=DIGEST),
        side("webdataset", WEBDATASET, places, batch, use=DIGEST),
        side("loose files", LOOSE, (source, one), batch, use=DIGEST),
        side("sequential", SEQUENTIAL, places, batch, use=DIGEST),
    ]


def torch_sides(python: Path, packed: Path, small: Path, batch: int) -> list[Side]:
    places, program = (packed, small), str(python)
    return [
        *(
            side(f"{name}{more}", f"{options}\nKIND = '{name}'\n{TORCH}", places, batch, program)
            for options, more in ((BYTES, ""), (VIEWS, ", views"))
            for name in ("ShardStream", "ShardDataset")
        ),
        side("webdataset", WEBDATASET, places, batch, program),
    ]


def mosaic_sides(chosen: argparse.Namespace, source: Path, packed: Path, one: Path, small: Path) -> list[Side]:
    """Our reader over tar, and StreamingDataset over MDS of the same samples."""
    mds, small_mds = packed.with_name(f"{packed.name}-mds"), small.with_name(f"{small.name}-mds")
    pack(source, mds, "mds")
    pack(one, small_mds, "mds")
    python = str(chosen.mosaic)
    sides = [side("shardtool", f"{BYTES}\n{READER}", (packed, small), chosen.batch)]
    for name, shuffles in (("streaming", True), ("streaming in order", False)):
        sides.append(side(name, f"SHUFFLE = {shuffles}\n{MOSAIC}", (mds, small_mds), chosen.batch, python))
    return sides


def report(result: dict[str, Any], bars: dict[str, float]) -> dict[str, Any]:
    """A result with what each ratio should be at least."""
    for name, floor in bars.items():
        result["sides"][name]["floor"] = floor
    return result
