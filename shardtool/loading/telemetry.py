"""What a loader did, as JSON Lines: one file a rank, one line every few seconds. Fields: docs/formats/telemetry.md.

    telemetry = Telemetry("run/loader", rank=3)
    telemetry.waited(0.002); telemetry.add(samples=256, num_bytes=28_000_000); telemetry.tick(position, epoch)
    for batch in telemetry.watch(loader, samples=len, num_samples=60_000, world_size=4): ...     any loader

`ResumableLoader` of shardtool.torch takes it as it is. Memory: the waits of one interval, 8 bytes a batch.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from shardtool.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["SCHEMA", "Telemetry"]

SCHEMA = "shardtool/telemetry/1"
T = TypeVar("T")


class Telemetry:
    """Writes `FOLDER/rank-00003.jsonl`, appending.

    Args:
        folder: where the files of all ranks lie; made if missing.
        rank: of this process.
        every_s: seconds between lines.
        clock: seconds, ascending.
    """

    def __init__(
        self, folder: str, rank: int = 0, *, every_s: float = 10.0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        os.makedirs(folder, exist_ok=True)
        self.path = os.path.join(folder, f"rank-{rank:05d}.jsonl")
        self._rank, self._every, self._clock = rank, every_s, clock
        self._begin()

    def waited(self, seconds: float) -> None:
        """The trainer waited so long for a batch."""
        self._waits.append(seconds)

    def add(self, *, samples: int = 0, num_bytes: int = 0, tokens: int = 0) -> None:
        """Count what a batch brought; `tokens` is for the trainer to tell."""
        self._samples += samples
        self._bytes += num_bytes
        self._tokens += tokens

    def tick(self, position: int, epoch: int) -> None:
        """Write a line if it is time."""
        if self._clock() - self._began >= self._every:
            self.flush(position, epoch)

    def flush(self, position: int, epoch: int) -> None:
        """Write a line, if there was any batch since the last one."""
        if self._waits:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(self._document(position, epoch), separators=(",", ":")) + "\n")
        self._begin()

    def watch(
        self,
        batches: Iterable[T],
        *,
        samples: Callable[[T], int],
        num_samples: int,
        world_size: int = 1,
        position: int = 0,
        num_bytes: Callable[[T], int] | None = None,
        tokens: Callable[[T], int] | None = None,
    ) -> Iterator[T]:
        """The batches of any loader as they come, with lines about them; the last one when the loop ends.

        The loader keeps its state, ask it for that. Positions are counted for all ranks from what this one got, so
        that where ranks do not get equal parts they may differ by less than a batch from those of other ranks.

        Args:
            batches: a loader of this rank; what it is asked for is timed, what the loop does with a batch is not.
            samples: says how many samples a batch holds.
            num_samples: of one epoch, over all ranks.
            world_size: data-parallel ranks.
            position: of the stream, where the loader begins.
            num_bytes: says how many bytes a batch holds; without it none are told.
            tokens: likewise.

        Raises:
            UsageProblem: num_samples or world_size below 1, or a negative position.
        """
        if min(num_samples, world_size) < 1 or position < 0:
            raise UsageProblem(
                f"num_samples {num_samples}, world_size {world_size}, position {position}: nothing to count by",
                hint="num_samples and world_size are 1 or more, position 0 or more",
            )

        def watched(place: int) -> Iterator[T]:
            began = self._clock()
            try:
                for batch in batches:
                    self.waited(self._clock() - began)
                    count = samples(batch)
                    self.add(
                        samples=count,
                        num_bytes=0 if num_bytes is None else num_bytes(batch),
                        tokens=0 if tokens is None else tokens(batch),
                    )
                    place += count * world_size
                    self.tick(place, place // num_samples)
                    yield batch
                    began = self._clock()
            finally:
                self.flush(place, place // num_samples)

        return watched(position)

    def _begin(self) -> None:
        self._waits: list[float] = []
        self._samples = self._bytes = self._tokens = 0
        self._began, self._cpu = self._clock(), cpu_seconds()

    def _document(self, position: int, epoch: int) -> dict[str, Any]:
        seconds = max(self._clock() - self._began, 1e-9)
        p50, p95, p99 = np.percentile(self._waits, (50, 95, 99)).tolist()
        return {
            "schema": SCHEMA,
            "rank": self._rank,
            "position": position,
            "epoch": epoch,
            "seconds": round(seconds, 6),
            "batches": len(self._waits),
            "samples": self._samples,
            "bytes": self._bytes,
            "tokens": self._tokens,
            "samples_per_s": round(self._samples / seconds, 1),
            "tokens_per_s": round(self._tokens / seconds, 1),
            "wait_s": {
                "p50": round(p50, 6),
                "p95": round(p95, 6),
                "p99": round(p99, 6),
                "max": round(max(self._waits), 6),
                "total": round(sum(self._waits), 6),
            },
            "cpu_s": round(max(0.0, cpu_seconds() - self._cpu), 3),
        }


def cpu_seconds() -> float:
    """User and system seconds of this process and of its living child processes (loader workers), as far as known."""
    own = os.times()
    return own.user + own.system + sum(_process_seconds(child.pid) for child in multiprocessing.active_children())


def _process_seconds(pid: int | None) -> float:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0  # gone, or a system without /proc
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
