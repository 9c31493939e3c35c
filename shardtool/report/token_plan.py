"""What `pack --format bin --dry-run` says: exact where all was read, else scaled up from a sample, and said so."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from shardtool.names import shard_path
from shardtool.report.pack import ledger_text
from shardtool.units import format_bytes, plural

if TYPE_CHECKING:
    from shardtool.tokens.estimate import Estimate


def plan_document(found: Estimate) -> dict[str, Any]:
    """`shardtool/plan/1`, with `is_estimate` and `tokens`."""
    shards = _shards(found)
    num_bytes = sum(shard["bytes"] for shard in shards)
    payload = found.scaled(sum(spec.payload_bytes for spec in found.plan.specs))
    splits: dict[str, dict[str, int]] = {}
    for shard in shards:
        entry = splits.setdefault(shard["split"], {"samples": 0, "shards": 0, "bytes": 0})
        entry["samples"] += shard["samples"]
        entry["shards"] += 1
        entry["bytes"] += shard["bytes"]
    return {
        "schema": "shardtool/plan/1",
        "plan_id": found.plan.plan_id,
        "format": "bin",
        "seed": found.seed,
        "samples": sum(shard["samples"] for shard in shards),
        "tokens": found.scaled(found.plan.num_tokens),
        "is_estimate": found.share < 1,
        "sampled_share": round(found.share, 6),
        "bytes": num_bytes,
        "payload_bytes": payload,
        "overhead_bytes": num_bytes - payload,
        "overhead": {"index": num_bytes - payload},
        "splits": splits,
        "shards": shards,
        "ledger": _ledger(found),
        "inodes": {"before": found.num_files, "after": 4 * len(shards) + 8},
        "estimate": {
            "workers": found.num_workers,
            "worker_bytes": found.worker_bytes,
            "planning_bytes": 40 * found.scaled(found.plan.documents),
            "seconds": round(found.seconds / found.share / max(found.num_workers, 1), 3),
            "files_read": found.num_sampled,
            "compressed_bytes": None,
        },
        "advice": list(found.plan.notices),
        "is_written": False,
    }


def _ledger(found: Estimate) -> dict[str, Any]:
    """Scaled counts that still add up."""
    ledger = found.ledger.document()
    ignored = {reason: found.scaled(count) for reason, count in ledger["ignored"].items()}
    packed, failed = found.scaled(ledger["packed"]), found.scaled(ledger["failed"])
    seen = packed + failed + sum(ignored.values())
    return {"seen": seen, "packed": packed, "ignored": ignored, "failed": failed}


def _shards(found: Estimate) -> list[dict[str, Any]]:
    """The shards as planned, or as many of equal size as the scaled bytes of each split need."""
    if found.share >= 1:
        return [
            {"split": spec.split, "path": spec.path, "samples": spec.num_samples, "bytes": spec.num_bytes}
            for spec in found.plan.specs
        ]
    sums: dict[str, list[int]] = {}
    for spec in found.plan.specs:
        entry = sums.setdefault(spec.split, [0, 0])
        entry[0] += spec.num_samples
        entry[1] += spec.num_bytes
    counts = {
        split: found.num_shards or max(1, math.ceil(found.scaled(size) / found.shard_bytes))
        for split, (_, size) in sums.items()
    }
    total = sum(counts.values())
    return [
        {
            "split": split,
            "path": shard_path(split, number, counts[split], ".bin", total=total),
            "samples": found.scaled(samples) // counts[split],
            "bytes": found.scaled(size) // counts[split],
        }
        for split, (samples, size) in sums.items()
        for number in range(counts[split])
    ]


def plan_text(document: dict[str, Any], sources: tuple[str, ...], out: str) -> str:
    """The same for the terminal."""
    about = "about " if document["is_estimate"] else ""
    sequences = plural(document["samples"], "sequence")
    lines = [
        f"plan   {', '.join(sources)} -> {out}",
        f"tokens {about}{document['tokens']:,} in {about}{sequences}",
        f"shards {about}{plural(len(document['shards']), 'shard')}, {about}{format_bytes(document['bytes'])}",
        f"ledger {about}{ledger_text(document['ledger'])}",
    ]
    if document["is_estimate"]:
        share = 100 * document["sampled_share"]
        lines.append(
            f"       estimated from {plural(document['estimate']['files_read'], 'file')}, {share:.2g} % of the source"
        )
    return "\n".join(lines)
