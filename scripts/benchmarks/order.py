"""`bench order`: the reading order of 10^9 samples in 10^6 shards: set-up, memory, seeks, batches; a process a mode.

A rank of 64 locates its batches of 64 samples, as a loader does before it reads; then one process alone goes on with
the order that was made for 64. Set-up ends when the first batch is located; the columns of the manifest are there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any, get_args

from common import environment, save, say

from shardtool.order.params import Mode

RANKS = 64
BARS = {
    "setup_s": 1.0,
    "setup_peak_bytes": 64_000_000,
    "seek_worst_ms": 50,
    "batches_m_per_s": 2,
    "alone_batches_m_per_s": 2,
}
CODE = """
import json, sys, time
import numpy as np
from shardtool.assignment.assignment import SplitShards
from shardtool.loading.cursor import start_cursor

mode, num_shards, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
num_samples, batch, epochs = 1000 * num_shards, 64, 1_000_000
rng = np.random.default_rng(0)
counts = rng.integers(500, 1501, num_shards)
missing = num_samples - int(counts.sum())
counts[: abs(missing)] += 1 if missing > 0 else -1
shards = SplitShards("train", np.arange(num_shards), counts, 100_000 * counts)


def memory(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(field))


def begin(world_size):
    return start_cursor(
        shards, "", global_batch=batch * world_size, rank=world_size // 2, world_size=world_size,
        elastic=(ranks,), mode=mode, seed=7,
    )


def time_seeks(cursor, count=300):
    # a place of an epoch that was never read, begins and ends of some; milliseconds until its first batch is there
    places = [int(place) for place in rng.integers(0, epochs * num_samples, count)]
    places += [int(epoch) * num_samples + near for epoch in rng.integers(1, epochs, count // 15) for near in (-1, 0, 1)]
    found = []
    for place in places:
        began, cpu = time.perf_counter(), time.process_time()
        cursor.seek(place)
        cursor.turn().batch(0)
        found.append((1000 * (time.perf_counter() - began), 1000 * (time.process_time() - cpu)))
    return np.array(found)


def batches_per_s(cursor, wanted=1 << 22):
    # millions of indices a CPU second, from the middle of an epoch on, first tables included
    turn = cursor.turn(5 * num_samples + num_samples // 3)
    began, steps = time.process_time(), range(wanted // batch)
    got = sum(len(each.rows) for each in turn.batches(steps))
    assert got == wanted
    return got / (time.process_time() - began) / 1e6


with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak begins anew
resident, peak, began, cpu = memory("VmRSS"), memory("VmHWM"), time.perf_counter(), time.process_time()
cursor = begin(ranks)
cursor.turn().batch(0)
found = {"setup_s": time.perf_counter() - began, "setup_cpu_s": time.process_time() - cpu}
found["setup_peak_bytes"], found["setup_kept_bytes"] = memory("VmHWM") - peak, memory("VmRSS") - resident
found["batches_m_per_s"] = batches_per_s(cursor)
found["read_kept_bytes"] = memory("VmRSS") - resident
seeks = time_seeks(cursor)
found["seek_median_ms"], found["seek_median_cpu_ms"] = np.median(seeks, axis=0).tolist()
found["seek_worst_ms"], found["seek_worst_cpu_ms"] = seeks.max(axis=0).tolist()
found["seeks_kept_bytes"] = memory("VmRSS") - resident
del cursor
alone = begin(1)
found["alone_seek_median_cpu_ms"] = float(np.median(time_seeks(alone, 20)[:, 1]))
found["alone_batches_m_per_s"] = batches_per_s(alone)
found["lanes"] = alone.order.params.lanes
print(json.dumps(found))
"""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench order")
    parser.add_argument("--shards", type=int, default=1_000_000, help="of 500 to 1,500 samples, 1,000 on average")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args(arguments)
    results = {}
    for mode in get_args(Mode):
        command = [sys.executable, "-c", CODE, mode, str(chosen.shards), str(RANKS)]
        rounds = []
        for _ in range(chosen.rounds):
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rounds.append(json.loads(done.stdout))
        results[mode] = _summary(rounds)
        say(f"  {mode}: {results[mode]}")
    head = {"shards": chosen.shards, "samples": 1000 * chosen.shards, "ranks": RANKS, "rounds": chosen.rounds}
    save("order", {"environment": environment(), **head, "results": results, "bars": BARS})


def _summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Medians; of peaks, and of the slowest seek, the worst too."""
    found: dict[str, Any] = {}
    for name in rounds[0]:
        values = [each[name] for each in rounds]
        found[name] = round(statistics.median(values), 3)
        if name in ("setup_peak_bytes", "seek_worst_ms"):
            found[f"{name}_of_all_rounds"] = round(max(values), 3)
    return found
