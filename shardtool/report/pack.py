"""How a pack run ended, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardtool.names import HIDDEN, compact_braces
from shardtool.storage import is_remote
from shardtool.units import format_bytes, format_duration, plural

if TYPE_CHECKING:
    from shardtool.packing.build import PackResult


def pack_text(result: PackResult, out: str) -> str:
    """The `done` line."""
    if result.manifest is None:
        return (
            f"done   {plural(result.num_packed, 'shard')} of this part; {plural(result.num_missing, 'shard')} of {out} "
            f"are still missing"
        )
    dataset = f"dataset {result.manifest.dataset_id[:8]}"
    if result.num_packed == 0:
        return f"done   {out} is complete ({dataset}); nothing to do"
    speed = result.manifest.num_bytes / max(sum(result.seconds.values()), 1e-9)
    took = f"{format_bytes(result.manifest.num_bytes)} in {format_duration(sum(result.seconds.values()))}"
    took += f", {format_bytes(speed)}/s" if result.num_resumed == 0 else ""
    lines = [f"done   {out}   {dataset}   {ledger_text(result.manifest.ledger)}", f"       {took}"]
    return "\n".join(lines + left_out(result.manifest.ledger, out))


def left_out(ledger: dict[str, Any], out: str) -> list[str]:
    """What was ignored or failed, by reason, and the file that lists it."""
    folder = out.rstrip("/")
    lines = []
    if ledger["ignored"]:
        reasons = ", ".join(f"{reason.replace('_', ' ')} {count:,}" for reason, count in ledger["ignored"].items())
        lines.append(f"       ignored: {reasons}   listed in {folder}/{HIDDEN}/ignored.jsonl")
    if ledger["failed"]:
        lines.append(f"       failed: {ledger['failed']:,}   listed in {folder}/{HIDDEN}/failed.jsonl")
    return lines


def ledger_text(ledger: dict[str, Any]) -> str:
    """`seen 10,416 = packed 10,412 + ignored 4 + failed 0`."""
    ignored = sum(ledger["ignored"].values())
    return f"seen {ledger['seen']:,} = packed {ledger['packed']:,} + ignored {ignored:,} + failed {ledger['failed']:,}"


READER_LINES = {
    "tar": "wds.WebDataset({urls}, shardshuffle=False)",
    "parquet": "datasets.load_dataset({folder!r}, split={split!r})",
    "arrow": "datasets.load_dataset({folder!r}, split={split!r})",
    "arrow-stream": "datasets.load_from_disk('{folder}/data')[{split!r}]",
    "tfrecord": "tf.data.TFRecordDataset(sorted(glob.glob('{folder}/data/{split}-*.tfrecord')))",
    "mds": "streaming.StreamingDataset(local='{folder}/data/{split}', batch_size=32)",
    "litdata": "litdata.StreamingDataset('{folder}/data/{split}')",
}


def next_steps(result: PackResult, out: str) -> list[str]:
    """What to type after a run that did something."""
    folder = out.rstrip("/") or "/"
    if result.manifest is None:
        return [f"shardtool index {folder}   once all parts are done"]
    if result.num_packed == 0:
        return []
    steps = [f"shardtool verify {folder} --deep · shardtool stats {folder}", reader_line(result, folder)]
    return [step for step in steps if step]


def reader_line(result: PackResult, folder: str) -> str:
    """A line of Python that reads the first split with the format's own reader, ready to paste; "" where none fits."""
    manifest = result.manifest
    if manifest is None or not manifest.shards:
        return ""
    split = manifest.shards[0].split
    if is_remote(folder):  # the formats' own readers know no s3 URLs, or each another way to them
        return f"python: shardtool.torch.ShardDataset({folder!r}, split={split!r})"
    paths = [f"{folder}/{shard.path}" for shard in manifest.shards if shard.split == split]
    is_piped = manifest.format == "tar" and manifest.compression != "none"  # tarfile reads no zstd before Python 3.14
    patterns = [f"pipe:zstd -dc {pattern}" if is_piped else pattern for pattern in compact_braces(paths)]
    urls = repr(patterns[0]) if len(patterns) == 1 else repr(patterns)
    line = READER_LINES.get(manifest.format, "")
    return f"python: {line.format(urls=urls, folder=folder, split=split)}" if line else ""
