"""What `index` made, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.units import format_bytes, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.emitted import Emitted
    from shardtool.indexing.rebuild import RebuildResult
    from shardtool.tokens.mend import Looked

_SHOWN = 2


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


def emitted_text(one: Emitted) -> str:
    """One dialect: its files, and the lines that load the data set."""
    paths = [record.path for record in one.files]
    shown = ", ".join(paths[:_SHOWN]) + (f" and {len(paths) - _SHOWN:,} more" if len(paths) > _SHOWN else "")
    size = format_bytes(sum(record.num_bytes for record in one.files))
    state = "" if one.num_new else "   as they were"
    if not paths:
        shown = "nothing to write: the data set has them"
    lines = [f"emit   {one.emission.dialect:<8} {plural(len(paths), 'file')}, {size}{state}", f"       {shown}"]
    lines += [f"       kept as you have it: {path}" for path in one.kept]
    return "\n".join([*lines, *(f"         {line}" for line in one.emission.recipe.split("\n"))])


def skipped_text(skipped: dict[str, int]) -> str:
    """`part of no sample, and not indexed: 3 members of the shards (no_dot 2, hidden 1)`; "" for none."""
    if not skipped:
        return ""
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in skipped.items())
    return f"part of no sample, and not indexed: {plural(sum(skipped.values()), 'member')} of the shards ({reasons})"


def repair_text(pairs: Sequence[Looked]) -> str:
    """A line for each pair that was mended, with what was wrong and where the old `.idx` is; the sound ones counted."""
    lines = []
    for pair in pairs:
        if pair.mended:
            holds = f"{plural(pair.num_documents, 'document')}, {plural(pair.num_tokens, 'token')}"
            kept = f"as it was: {pair.kept}" if pair.kept else "again what the manifest says"
            lines += [f"mended {pair.prefix}.idx   {', '.join(pair.mended)}   {holds}", f"       {kept}"]
    sound = sum(not pair.mended for pair in pairs)
    return "\n".join(lines + ([f"sound  {plural(sound, 'pair')}; nothing to mend"] if sound else []))
