"""Token data sets for the tests beside trainers."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from pairs import read_pair

from shardtool.executors.local import LocalExecutor
from shardtool.manifest import load_manifest
from shardtool.packing.build import PackRequest, build
from shardtool.planning.plan import PlanOptions
from shardtool.reading.reading import Dataset
from shardtool.tokens.provenance import provenance_path
from shardtool.workers import WorkerPool

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.token_options import TokenOptions

NUM_DOCUMENTS = 200


class Quiet:
    """Says nothing."""

    def step(self, verb: str, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def advance(self, shards: int, nbytes: int, samples: int) -> None: ...

    def progress(self, total_shards: int, total_bytes: int, total_samples: int) -> Any:
        from contextlib import nullcontext

        return nullcontext(self)


def pack_lines(folder: Path, tokens: TokenOptions, **options: Any) -> Path:
    """A data set of 200 short documents."""
    rng = random.Random(3)
    source = folder / "in"
    source.mkdir(exist_ok=True)
    texts = ["".join(rng.choices("abcdefgh ", k=rng.randrange(1, 60))) for _ in range(NUM_DOCUMENTS)]
    (source / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    out = folder / "out"
    pool = WorkerPool(0)
    plan = PlanOptions(format="bin", tokens=tokens, **options)
    build(PackRequest((str(source),), str(out), plan, durable=False), pool, LocalExecutor(pool), Quiet())
    return out


def pairs_of(out: Path) -> list[tuple[Path, list[list[int]]]]:
    """(prefix, sequences) of each shard."""
    found = [out / shard.path.removesuffix(".bin") for shard in load_manifest(str(out)).shards]
    return [(prefix, read_pair(prefix)) for prefix in found]


def predicted(out: Path, end: int = 256) -> dict[str, dict[Path, list[list[int]]]]:
    """{split: {prefix: sequences}} as manifest, indexes and provenance of a data set of bytes tell them.

    No `.bin` and no `.idx` is read: tokens are the bytes of the documents in the source, cut as provenance says, and
    where they lie is what the index says.
    """
    documents = {}
    for path in (out.parent / "in").glob("*.jsonl"):
        at = 0
        for line in path.read_bytes().splitlines(keepends=True):
            documents[f"{path.name}#{at}".encode()] = [*json.loads(line)["text"].encode(), end]
            at += len(line)
    found: dict[str, dict[Path, list[list[int]]]] = {}
    used = []
    with Dataset.open(str(out)) as dataset:
        shards = dataset.manifest.shards
        for number, shard in enumerate(shards):
            sequences: list[list[int]] = [[] for _ in range(shard.num_samples)]
            for row in pq.read_table(out / provenance_path(number, len(shards))).to_pylist():
                piece = documents[row["document"]][row["start"] : row["start"] + row["tokens"]]
                assert row["at"] == len(sequences[row["sequence"]]), "no room between pieces"
                assert len(piece) == row["tokens"]
                sequences[row["sequence"]] += piece
                used += piece
            sizes = (dataset.index(number).num_bytes // 2).tolist()
            sequences = [ids + [end] * (size - len(ids)) for ids, size in zip(sequences, sizes, strict=True)]
            starts = dataset.index(number).offset.tolist()
            assert starts == [2 * sum(sizes[:place]) for place in range(len(sizes))]
            found.setdefault(shard.split, {})[out / shard.path.removesuffix(".bin")] = sequences
    assert sorted(used) == sorted(token for ids in documents.values() for token in ids), "every token once"
    return found
