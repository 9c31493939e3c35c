"""README.md with the splits in its head, so that Hugging Face `datasets` and its hub find the shards and nothing else.

Without a card `datasets` finds `data/train-00000-of-00008.tar` by its name; it needs one where shards have other names
or index files beside them, and is told by it of shards in many folders without a search.
Head: huggingface.co/docs/hub/datasets-manual-configuration.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

from shardtool.compat import examine_dataset
from shardtool.dialects import Emission, SideFile
from shardtool.dialects.rules import READERS
from shardtool.errors import UsageProblem
from shardtool.units import format_bytes, plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.manifest import Manifest
    from shardtool.reading.reading import Dataset

CARD = "README.md"
_READABLE = ("tar", "parquet", "arrow", "arrow-stream")  # formats that datasets loads by the suffix of the files
_WILD = set("*?[]{}!")


def emit(dataset: Dataset, shares: str = "") -> Emission:
    """The card.

    Raises:
        UsageProblem: shards that `datasets` does not read, or tar with samples that it would lose or stop at.
    """
    found = emission(dataset.path, dataset.manifest)
    if dataset.manifest.format == "tar":
        _refuse_losses(dataset)
    return found


def _refuse_losses(dataset: Dataset) -> None:
    (verdict,) = examine_dataset(dataset, [READERS["hf"]])
    for finding in verdict.findings.values():
        examples = "".join(f"\n  {name.decode('utf-8', 'backslashreplace')!r}" for name in finding.examples)
        raise UsageProblem(
            f"--emit hf-card: Hugging Face datasets would not read all of {dataset.path}:"
            f" {plural(finding.count, finding.unit)} {finding.kind}, {finding.why}{examples}",
            hint=f"shardtool convert {dataset.path} NEW --format parquet keeps them; shardtool inspect {dataset.path}"
            " --compat hf tells all",
            where={"path": dataset.path},
        )


def emission(path: str, manifest: Manifest) -> Emission:
    """As `emit`, for the data set of `manifest` in the folder `path`."""
    if manifest.format not in _READABLE:
        raise UsageProblem(
            f"--emit hf-card: Hugging Face datasets reads {', '.join(_READABLE)}; {path} holds {manifest.format}",
            hint="shardtool convert writes the data set in another format",
            where={"path": path},
        )
    if manifest.format == "tar" and manifest.compression not in ("", "none"):
        raise UsageProblem(
            f"--emit hf-card: Hugging Face datasets opens no compressed tar, and those in {path} are"
            f" {manifest.compression}",
            hint=f"shardtool convert {path} PLAIN --format tar; Parquet is read compressed, too",
            where={"path": path},
        )
    first = next(iter(split_patterns(manifest)))
    recipe = (
        "from datasets import load_dataset\n"
        f'dataset = load_dataset("{path.rstrip("/")}", split="{first}", streaming=True)\n'
        "print(next(iter(dataset)).keys())"
    )
    return Emission("hf-card", (SideFile(CARD, lambda: [card(manifest)]),), recipe)


def card(manifest: Manifest) -> bytes:
    """README.md of a data set."""
    return "\n".join(_lines(manifest)).encode() + b"\n"


def _lines(manifest: Manifest) -> Iterator[str]:
    yield from ("---", "configs:", "- config_name: default", "  data_files:")
    for split, patterns in split_patterns(manifest).items():
        yield f"  - split: {json.dumps(split)}"
        yield f"    path: {json.dumps(patterns[0] if len(patterns) == 1 else patterns)}"
    yield from ("---", "", "# Data set", "")
    shards = plural(len(manifest.shards), f"{manifest.format} shard")
    yield f"{plural(manifest.num_samples, 'sample')} in {shards}, {format_bytes(manifest.num_bytes)}."
    yield from ("", "| split | samples | shards | bytes |", "|---|---:|---:|---:|")
    for split, figures in manifest.splits().items():
        yield f"| {split} | {figures['samples']:,} | {figures['shards']:,} | {figures['bytes']:,} |"
    parts = ", ".join(f"`{name}` {part.samples:,}" for name, part in manifest.parts.items())
    yield from ("", f"Parts: {parts}.", "", f"Packed by shardtool, dataset_id `{manifest.dataset_id}`.")


def split_patterns(manifest: Manifest) -> dict[str, list[str]]:
    """{split: globs that match its shards and no other file of ours}; the paths themselves where no glob would do."""
    paths = [record.path for shard in manifest.shards for record in shard.files]
    found: dict[str, list[str]] = {}
    for shard in manifest.shards:
        found.setdefault(shard.split, []).append(shard.path)
    return {split: _patterns(split, own, paths) for split, own in found.items()}


def _patterns(split: str, own: list[str], paths: list[str]) -> list[str]:
    suffix = os.path.splitext(own[0])[1]
    folder = os.path.dirname(own[0])
    parent = os.path.dirname(folder)
    candidates = (
        f"{folder}/{split}-*{suffix}",
        f"{parent}/{split}-*/{split}-*{suffix}",
        f"{folder}/*{suffix}",
    )
    for pattern in candidates:
        matches = re.compile("[^/]*".join(map(re.escape, pattern.lstrip("/").split("*")))).fullmatch
        if not _WILD & set(pattern.replace("*", "")) and {path for path in paths if matches(path)} == set(own):
            return [pattern.lstrip("/")]
    return own
