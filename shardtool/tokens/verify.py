"""Pairs of `.bin` and `.idx` without a manifest: is their structure what readers believe it to be."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from shardtool.formats.bin_pairs import check_pair, is_pair, prefix_of
from shardtool.verification.shard import Fault
from shardtool.verification.verify import VerifyResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.packing.build import Say
    from shardtool.workers import WorkerPool

CHECK = "shardtool.tokens.verify:check_one"


def pair_prefixes(places: Sequence[str]) -> list[str]:
    """Prefixes of the pairs at `places`: prefixes, their files, or folders of them; [] where any holds none."""
    found: list[str] = []
    for place in places:
        if os.path.isdir(place):
            names = sorted(name for name in os.listdir(place) if name.endswith(".idx"))
            pairs = [prefix_of(os.path.join(place, name)) for name in names]
        else:
            pairs = [prefix_of(place)] if is_pair(place) else []
        if not pairs:
            return []
        found += pairs
    return list(dict.fromkeys(found))


def check_one(is_deep: bool, prefix: str) -> tuple[list[Fault], int, int, int]:
    """(faults, sequences, documents, bytes) of one pair."""
    report = check_pair(prefix, deep=is_deep)
    faults = [Fault(f.kind, f"{f.path}: {f.message}", f.path, None, f.offset) for f in report.faults]
    header = report.header
    size = sum(os.stat(f"{prefix}{suffix}").st_size for suffix in (".bin", ".idx"))
    if header is None:
        return faults, 0, 0, size
    return faults, header.num_sequences, max(header.num_entries - 1, 0), size


def verify_pairs(prefixes: Sequence[str], pool: WorkerPool, say: Say, *, is_deep: bool) -> VerifyResult:
    """Check each pair: sizes, lengths against pointers, documents; `is_deep`: every id is 0 or above.

    Raises:
        SourceNotFound: half of a pair is not there.
    """
    began = time.monotonic()
    results = {}
    with say.progress(len(prefixes), 0, 0) as progress:
        for prefix, result in pool.run(CHECK, list(prefixes), context=is_deep, describe=str):
            results[prefix] = result
            progress.advance(1, result[3], result[1])
    ordered = [results[prefix] for prefix in prefixes]
    return VerifyResult(
        path=prefixes[0] if len(prefixes) == 1 else f"{len(prefixes):,} pairs",
        dataset_id="",
        is_deep=is_deep,
        reader="",
        num_shards=len(prefixes),
        num_samples=sum(result[1] for result in ordered),
        num_parts=sum(result[2] for result in ordered),
        num_bytes=sum(result[3] for result in ordered),
        faults=tuple(fault for result in ordered for fault in result[0]),
        seconds=time.monotonic() - began,
    )
