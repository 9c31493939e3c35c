"""What packing would give, from a sample of the source: whole files spread over it, and the first MiB of large ones."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardtool.planning.plan import DEFAULT_BIN_BYTES
from shardtool.tokens.build import check_options, decide_for, inputs_of
from shardtool.tokens.files import opened
from shardtool.tokens.inputs import LINES, PAIR, SHARD
from shardtool.tokens.pairs import first_sequences
from shardtool.tokens.runs import itemsize_of
from shardtool.tokens.stage import run_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.packing.build import PackRequest, Say
    from shardtool.planning.plan_file import Ledger
    from shardtool.tokens.files import InputFile
    from shardtool.tokens.plan import TokenPlan
    from shardtool.workers import WorkerPool

SAMPLE_BYTES = 16 << 20
HEAD_BYTES = 1 << 20  # of a large file of lines
FILES = 64


@dataclass(frozen=True)
class Estimate:
    """A plan of the sample, and how much of the source the sample is."""

    plan: TokenPlan
    ledger: Ledger
    share: float  # of the bytes of the source, 0 to 1
    run_bytes: int  # of ids that a worker holds
    seconds: float  # of reading and tokenizing the sample
    num_files: int
    num_sampled: int
    num_workers: int
    seed: int
    shard_bytes: int
    num_shards: int  # asked for; 0 where sizes decide

    @property
    def worker_bytes(self) -> int:
        """Memory of a worker at most: a run, and what the packages and a batch take."""
        return self.run_bytes + (96 << 20)

    def scaled(self, count: int) -> int:
        """What `count` of the sample means for the source."""
        return count if self.share >= 1 else round(count / self.share)


def estimate(request: PackRequest, pool: WorkerPool, num_workers: int, say: Say) -> Estimate:
    """Plan a sample in a folder for temporary files; nothing else is written.

    Raises:
        SourceError, UsageProblem: as packing would.
    """
    options = request.options
    check_options(options)
    inputs = inputs_of(request, options, pool, say)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shardtool-") as folder:
        files = _sample(inputs.files, folder)
        sampled = replace(inputs, files=tuple(files))
        here = replace(request, out=os.path.join(folder, "out"), durable=False)
        decided = decide_for(here, options, sampled, pool, _Silence())
    assert options.tokens is not None
    by_tokens = options.tokens.shard_tokens * itemsize_of(decided.plan.dtype)
    return Estimate(
        plan=decided.plan,
        ledger=decided.ledger,
        share=min(sum(file.size for file in files) / max(inputs.num_bytes, 1), 1.0),
        run_bytes=run_bytes(inputs.num_bytes),
        seconds=time.monotonic() - began,
        num_files=len(inputs.files),
        num_sampled=len(files),
        num_workers=num_workers,
        seed=options.seed,
        shard_bytes=by_tokens or options.shard_size or DEFAULT_BIN_BYTES,
        num_shards=options.shards,
    )


def _sample(files: Sequence[InputFile], folder: str) -> list[InputFile]:
    """Files spread over the source, about `SAMPLE_BYTES` of them; all of it where it is small."""
    if sum(file.size for file in files) <= SAMPLE_BYTES:
        return list(files)
    chosen: list[InputFile] = []
    size = 0
    for number, file in enumerate(files[:: max(1, len(files) // FILES)]):
        if file.kind == LINES and not file.compression and file.size > HEAD_BYTES:
            file = _head(file, folder, number)
        elif file.kind in (PAIR, SHARD) and file.size > HEAD_BYTES:
            file = first_sequences(file, folder, f"{number:03d}")
        if chosen and size + file.size > SAMPLE_BYTES:
            continue
        chosen.append(file)
        size += file.size
    return chosen


def _head(file: InputFile, folder: str, number: int) -> InputFile:
    """The whole lines in the first MiB of a file, as a file of its own."""
    path = os.path.join(folder, f"{number:03d}.jsonl")
    with opened(file, 0, HEAD_BYTES) as source, open(path, "wb") as target:
        data = source.read(HEAD_BYTES)
        target.write(data + source.readline())
    stat = os.stat(path)
    return replace(
        file,
        root=folder,
        path=os.fsencode(f"{number:03d}.jsonl"),
        size=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        version="",
    )


class _Silence:
    """Nothing is said while a sample is read."""

    def step(self, verb: str, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        pass

    def progress(self, total_shards: int, total_bytes: int, total_samples: int) -> Any:
        return nullcontext(self)

    def advance(self, shards: int, nbytes: int, samples: int) -> None:
        pass
