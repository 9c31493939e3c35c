"""`bench plan`: group and plan 1 and 10 million synthetic entries: CPU, peak memory, bytes an entry."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from common import environment, save

CODE = """
import json, resource, sys, time
import numpy as np, pyarrow as pa
from shardtool.grouping.group import group
from shardtool.keys import KeyRule
from shardtool.model import EntryTable
from shardtool.planning.plan import PlanOptions, make_plan
from shardtool.planning.plan_file import plan_identity

n = int(sys.argv[1])
per = 200
rng = np.random.default_rng(0)
sizes = rng.integers(500, 8000, n)
folders = -(-n // per)
names = []
for folder in range(folders):
    count = min(per, n - folder * per)
    parts = (b"cls", b"jpg")
    names.append(pa.array([b"sample_%07d.%s" % (row // 2, parts[row % 2]) for row in range(count)], pa.large_binary()))
table = pa.concat_arrays(names)
del names
starts = np.minimum(np.arange(folders + 1) * per, n)
dirs = [b"folder_%06d" % folder for folder in range(folders)]
roots = np.zeros(folders, np.int32)
entries = EntryTable(("/source",), dirs, roots, starts, table, sizes, np.zeros(n, np.int64))

def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

before, began = rss(), time.process_time()
samples = group(entries, KeyRule()).samples
plan = make_plan(samples, PlanOptions())
planned = time.process_time() - began
after = rss()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
columns = (samples.key_hash, samples.key_bytes, samples.part_start, samples.part_entry, samples.part_name, plan.order)
kept = sum(column.nbytes for column in columns) + 2 * sizes.nbytes + 8 * n  # and size, mtime, offset of the name
began = time.process_time()
plan_identity(plan)
print(json.dumps({"entries": n, "cpu_s": planned, "identity_cpu_s": time.process_time() - began, "peak_bytes": peak,
    "kept_bytes_an_entry": kept / n, "grown_bytes_an_entry": (after - before) / n,
    "peak_bytes_an_entry": (peak - before) / n,
    "shards": len(plan.shards)}))
"""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench plan")
    parser.add_argument("--entries", default="1000000,10000000")
    chosen = parser.parse_args(arguments)
    results: list[dict[str, Any]] = []
    for count in chosen.entries.split(","):
        done = subprocess.run([sys.executable, "-c", CODE, count], check=True, capture_output=True, text=True)
        results.append(json.loads(done.stdout))
    per_entry = [result["cpu_s"] / result["entries"] for result in results]
    document = {
        "environment": environment(),
        "results": results,
        "growth": round(per_entry[-1] / per_entry[0], 2),
        "bars": {
            "cpu_s": 60,
            "peak_bytes": 2 << 30,
            "growth": 1.4,
            "kept_bytes_an_entry": 48,
            "peak_bytes_an_entry": 90,
        },
    }
    save("plan", document)
