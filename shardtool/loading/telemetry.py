"""What a loader did, as JSON Lines: one file a rank, one line every few seconds. Fields: docs/formats/telemetry.md.

    telemetry = Telemetry("run/loader", rank=3)
    telemetry.waited(0.002); telemetry.add(samples=256, num_bytes=28_000_000); telemetry.tick(position)

Memory: the waits of one interval, 8 bytes a batch.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SCHEMA", "Telemetry"]

SCHEMA = "shardtool/telemetry/1"


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
