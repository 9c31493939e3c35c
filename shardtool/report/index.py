"""What `index` made, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.units import plural

if TYPE_CHECKING:
    from shardtool.rebuild import RebuildResult


def index_text(result: RebuildResult) -> str:
    """The `done` line."""
    manifest = result.manifest
    dataset = f"dataset {manifest.dataset_id[:8]}"
    if result.is_unchanged:
        return f"done   {result.out} is complete ({dataset}); nothing to do"
    holds = f"{plural(len(manifest.shards), 'shard')}, {plural(manifest.num_samples, 'sample')}"
    return f"done   {result.out}   {dataset}   {holds}\n       made {', '.join(_made(result))}"


def _made(result: RebuildResult) -> list[str]:
    made = [plural(result.num_indexes, "index", "indexes")] if result.num_indexes else []
    made += [plural(result.num_receipts, "receipt")] if result.num_receipts else []
    made += ["labels.json"] if result.are_labels_new else []
    return made + (["manifest.json"] if result.is_manifest_new else [])


def skipped_text(skipped: dict[str, int]) -> str:
    """`part of no sample, and not indexed: 3 members of the shards (no_dot 2, hidden 1)`; "" for none."""
    if not skipped:
        return ""
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in skipped.items())
    return f"part of no sample, and not indexed: {plural(sum(skipped.values()), 'member')} of the shards ({reasons})"
