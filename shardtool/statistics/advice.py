"""What a plan costs and what is worth changing before it is packed. A plan in, figures and sentences out; no IO.

A sentence says what the finding costs, and ends with what to type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardtool.formats.tar_header import BLOCK, padded
from shardtool.names import FAN_OUT, FAN_OUT_ABOVE
from shardtool.planning.plan_file import SHARDS_A_FILE
from shardtool.samples import has_part
from shardtool.statistics.overhead import overhead_by_cause
from shardtool.units import format_bytes, plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.model import Int64Array, SampleTable, ShardSpec
    from shardtool.planning.plan import Plan

NOTABLE_OVERHEAD = 0.20
NOTABLE_CONTAINER_BYTES = 64 << 20
NOTABLE_TINY = 0.01  # tiny parts below this share of all bytes are not worth a word
FIRST_SAMPLES = 5  # Hugging Face takes the columns of a split from its first five samples (datasets 5.2.0)
_ROOT_FILES = ("manifest.json", "plan.json", "receipts.jsonl", "ignored.jsonl", "failed.jsonl")
_FOLDERS = ("OUT", "data", "index", ".shardtool", ".shardtool/plan")


@dataclass(frozen=True)
class PartCost:
    """One part name over the planned samples: how many have it, its payload, and what tar adds to that, in bytes."""

    name: bytes
    samples: int
    payload_bytes: int
    cost_bytes: int

    @property
    def is_tiny(self) -> bool:
        """Whether headers and padding take more than the payload."""
        return self.cost_bytes > self.payload_bytes


@dataclass(frozen=True)
class PlanFigures:
    """What a plan costs, beside its shards."""

    overhead: dict[str, int]  # bytes by cause
    parts: tuple[PartCost, ...]
    inodes_before: int
    inodes_after: int

    @property
    def overhead_bytes(self) -> int:
        """Bytes of the shards that are not payload."""
        return sum(self.overhead.values())

    @property
    def num_parts(self) -> int:
        """Parts of all samples."""
        return sum(part.samples for part in self.parts)


def figures_of(plan: Plan, num_seen: int) -> PlanFigures:
    """The costs of `plan`.

    Args:
        num_seen: entries that the scan met, packed or not.
    """
    sizes = _sizes_by_part(plan)
    every = np.concatenate([size for _, size in sizes]) if sizes else np.zeros(0, np.int64)
    return PlanFigures(
        overhead=overhead_by_cause(plan.options.format, every, plan.num_bytes, len(plan.shards)),
        parts=tuple(_part_cost(name, size) for name, size in sizes if len(size)),
        inodes_before=num_seen + num_folders(plan.samples),
        inodes_after=inodes_of(plan.shards, has_labels=bool(plan.samples.label_names)),
    )


def _sizes_by_part(plan: Plan) -> list[tuple[bytes, Int64Array]]:
    """(part name, bytes of each such part) over the samples of the plan, by name."""
    table = plan.samples
    kept = np.zeros(table.num_samples, bool)
    kept[plan.order] = True
    is_kept = np.repeat(kept, table.parts_per_sample())
    names, sizes = table.part_name[is_kept], table.entries.sizes[table.part_entry[is_kept]]
    found = {name: sizes[names == number] for number, name in enumerate(table.part_names)}
    for part in table.generated:
        codes = part.codes[kept & (part.codes >= 0)]
        lengths = np.array([len(value) for value in part.values], np.int64)
        found[part.name] = np.concatenate([found.get(part.name, lengths[:0]), lengths[codes]])
    return sorted(found.items())


def _part_cost(name: bytes, sizes: Int64Array) -> PartCost:
    payload = int(sizes.sum())
    return PartCost(name, len(sizes), payload, BLOCK * len(sizes) + int(padded(sizes).sum()) - payload)


def num_folders(table: SampleTable) -> int:
    """Folders of the source, the roots among them, that hold files of the table or lie above one that does."""
    found = set()
    for folder, root in zip(table.entries.dirs, table.entries.dir_root.tolist(), strict=True):
        while (root, folder) not in found:
            found.add((root, folder))
            folder = folder.rpartition(b"/")[0]
    return len(found)


def inodes_of(shards: tuple[ShardSpec, ...], *, has_labels: bool) -> int:
    """Files and folders of the finished data set: two a shard, and a few that do not grow with it."""
    num_shards = len(shards)
    folders = len(_FOLDERS)
    if num_shards > FAN_OUT_ABOVE:
        folders += len({spec.path.rpartition("/")[0] for spec in shards}) + -(-num_shards // FAN_OUT)
    plan_files = -(-num_shards // SHARDS_A_FILE)
    return 2 * num_shards + folders + len(_ROOT_FILES) + plan_files + int(has_labels)


def advise(plan: Plan, figures: PlanFigures, *, world_size: int = 0, loader_workers: int = 0) -> list[str]:
    """Notices of the plan, then what is worth changing; empty where nothing is.

    Args:
        world_size: ranks that will read; 0: unknown.
        loader_workers: loader processes of each; 0: one.
    """
    if not plan.shards:
        return list(plan.notices)
    return [
        *plan.notices,
        *_about_overhead(plan, figures),
        *_about_readers(plan, world_size, max(loader_workers, 1)),
        *_about_ragged(plan, figures),
    ]


def _about_overhead(plan: Plan, figures: PlanFigures) -> Iterator[str]:
    if plan.options.format != "tar":
        yield from _about_container(plan, figures)
        return
    cure = "--format parquet keeps such parts in columns"
    tiny = [part for part in figures.parts if part.is_tiny]
    cost = sum(part.cost_bytes for part in tiny)
    share = figures.overhead_bytes / max(plan.num_bytes, 1)
    if tiny and cost > NOTABLE_TINY * plan.num_bytes:
        names = ", ".join(f"{_show(part.name)} {_mean(part)}" for part in tiny[:3])
        names += f" and {len(tiny) - 3} more" if len(tiny) > 3 else ""
        payload = sum(part.payload_bytes for part in tiny)
        yield (
            f"tiny parts ({names} on average) take {format_bytes(cost)} of headers and padding for"
            f" {format_bytes(payload)} of payload. {cure}"
        )
    elif share > NOTABLE_OVERHEAD:
        yield (
            f"{100 * share:.0f} % of the bytes are headers and padding, {format_bytes(figures.overhead_bytes)} to"
            f" store and to read. {cure}"
        )


def _about_container(plan: Plan, figures: PlanFigures) -> Iterator[str]:
    """Of formats whose overhead is keys, lengths and metadata, all told as one sum."""
    share = figures.overhead_bytes / max(plan.num_bytes, 1)
    if share > NOTABLE_OVERHEAD and figures.overhead_bytes > NOTABLE_CONTAINER_BYTES:
        packed = "" if plan.options.compress != "none" else ", before --compress auto"
        yield (
            f"{100 * share:.0f} % of the bytes are keys, lengths and metadata of {plan.options.format}{packed}:"
            f" {format_bytes(figures.overhead_bytes)}. Samples of more bytes, or shorter keys, cost less"
        )


def _mean(part: PartCost) -> str:
    return format_bytes(part.payload_bytes / max(part.samples, 1))


def _about_readers(plan: Plan, world_size: int, loader_workers: int) -> Iterator[str]:
    num_shards, num_samples = len(plan.shards), len(plan.order)
    readers = world_size * loader_workers
    who = f"{plural(world_size, 'rank')} x {plural(loader_workers, 'worker')}"
    if readers > num_samples:
        yield f"{plural(num_samples, 'sample')} for {who}: some readers get none, whatever the shards. Use fewer ranks"
    elif num_shards < readers:
        yield (
            f"{plural(num_shards, 'shard')} {'is' if num_shards == 1 else 'are'} few for {who}: readers share shards or"
            f" idle. {readers:,} or more shuffle better and start faster: {_smaller(plan, readers)}"
            f"--shards-multiple-of {readers}"
        )
    elif readers > 1 and -(-num_shards // readers) > 1.1 * num_shards / readers:
        most, least = -(-num_shards // readers), num_shards // readers
        yield (
            f"{num_shards:,} shards over {who} are {least:,} for some readers and {most:,} for others: loaders that"
            f" deal whole shards wait for the slowest. Even it out with: --shards-multiple-of {readers}"
        )
    elif num_shards == 1 and num_samples > 1 and not world_size:
        yield (
            "one shard only: several ranks or workers cannot read it side by side."
            f" More of them with: {_smaller(plan, 8)}--shards {min(8, num_samples)}"
        )


def _smaller(plan: Plan, num_shards: int) -> str:
    """`--shard-size 32MiB, or `: the largest power of two that gives so many shards; empty below 1 MiB."""
    size = plan.num_bytes // num_shards
    return f"--shard-size {1 << (size.bit_length() - 21)}MiB, or " if size >= 1 << 20 else ""


def _about_ragged(plan: Plan, figures: PlanFigures) -> Iterator[str]:
    rare = [part for part in figures.parts if part.samples < len(plan.order)]
    if not rare:
        return
    rarest = min(rare, key=lambda part: part.samples)
    lacking = plural(len(plan.order) - rarest.samples, "sample")
    has_columns = bool(plan.settings.columns)
    split = "" if has_columns else _first_ragged_split(plan, [part.name for part in rare])
    fate = (
        "its column is null there"
        if has_columns
        else f"Hugging Face datasets refuses the split {split}, whose first {FIRST_SAMPLES} samples differ"
        if split
        else "code that expects it must cope"
    )
    yield (
        f"{lacking} without {_show(rarest.name)}: {fate}. Whole samples only:"
        f" --require {_show(rarest.name)} --on-missing skip"
    )


def _first_ragged_split(plan: Plan, names: list[bytes]) -> str:
    present = {name: has_part(plan.samples, name) for name in names}
    seen = set()
    for shard, spec in enumerate(plan.shards):
        if spec.split in seen:
            continue
        seen.add(spec.split)
        rows = plan.samples_of(shard)[:FIRST_SAMPLES]
        if any(len(set(has[rows].tolist())) > 1 for has in present.values()):
            return spec.split
    return ""


def _show(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
