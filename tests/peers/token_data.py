"""Token data sets for the tests beside trainers."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from pairs import read_pair

from shardtool.executors.local import LocalExecutor
from shardtool.manifest import load_manifest
from shardtool.packing.build import PackRequest, build
from shardtool.planning.plan import PlanOptions
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
