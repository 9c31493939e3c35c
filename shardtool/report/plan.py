"""A plan and its costs -> text of at most 80 columns, and the document `shardtool/plan/1`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardtool.planning.plan import shard_limit
from shardtool.report.stats import advice_lines, filled
from shardtool.report.text import printable, table, to_ascii
from shardtool.units import format_bytes, format_duration, format_range, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.model import ShardSpec
    from shardtool.planning.compress_choice import Choice
    from shardtool.planning.plan import Plan
    from shardtool.planning.plan_file import Ledger
    from shardtool.statistics.advice import PlanFigures
    from shardtool.statistics.probe import Speed

SCHEMA = "shardtool/plan/1"
_INDENT = 8
_ALL_SHARDS = 12  # up to so many are all listed
_FIRST, _LAST = 6, 3


@dataclass(frozen=True)
class PlanReport:
    """All that is said about a plan."""

    plan: Plan
    plan_id: str
    ledger: Ledger
    figures: PlanFigures
    advice: tuple[str, ...]
    num_workers: int
    worker_bytes: int
    planning_bytes: int
    speed: Speed | None
    choice: Choice | None = None  # of a compression, with what it is expected to give

    @property
    def compressed_bytes(self) -> int | None:
        """Estimated bytes of all shards; None where they are not compressed, or nothing could be read."""
        if self.choice is None or self.choice.compress == "none" or self.choice.ratio is None:
            return None
        return round(self.plan.num_bytes * self.choice.ratio)

    @property
    def seconds(self) -> float | None:
        """Estimated time to pack; None where nothing could be read."""
        if self.speed is None:
            return None
        return self.speed.seconds(len(self.plan.samples.part_entry), self.plan.payload_bytes, self.num_workers)


def plan_document(report: PlanReport) -> dict[str, Any]:
    """The JSON document `shardtool/plan/1`."""
    plan, figures, seconds = report.plan, report.figures, report.seconds
    return {
        "schema": SCHEMA,
        "plan_id": report.plan_id,
        "format": plan.options.format,
        "seed": plan.options.seed,
        "samples": len(plan.order),
        "bytes": plan.num_bytes,
        "payload_bytes": plan.payload_bytes,
        "overhead_bytes": figures.overhead_bytes,
        "overhead": figures.overhead,
        "splits": _splits(plan.shards),
        "shards": [
            {"split": spec.split, "path": spec.path, "samples": spec.num_samples, "bytes": spec.num_bytes}
            for spec in plan.shards
        ],
        "ledger": report.ledger.document(),
        "inodes": {"before": figures.inodes_before, "after": figures.inodes_after},
        "estimate": {
            "workers": report.num_workers,
            "worker_bytes": report.worker_bytes,
            "planning_bytes": report.planning_bytes,
            "seconds": None if seconds is None else round(seconds, 3),
            "files_read": report.speed.files if report.speed else 0,
            "compressed_bytes": report.compressed_bytes,
        },
        "advice": list(report.advice),
    }


def plan_text(report: PlanReport, sources: Sequence[str], out: str, *, every_shard: bool, ascii_only: bool) -> str:
    """The plan for the terminal, no line break at the end."""
    lines = _head(report, sources, out)
    lines += [
        "",
        table(_rows(report.plan, every_shard), header=("shard", "samples", "bytes"), align="lrr", indent="  "),
    ]
    for advice in report.advice:
        lines += advice_lines(advice)
    text = "\n".join(lines)
    return to_ascii(text) if ascii_only else text


def _head(report: PlanReport, sources: Sequence[str], out: str) -> list[str]:
    plan, figures = report.plan, report.figures
    share = figures.overhead_bytes / max(plan.num_bytes, 1)
    places = f"{', '.join(map(printable, sources))} -> {printable(out)}"
    counts = [plural(len(plan.order), "sample"), plural(figures.num_parts, "part"), f"plan {report.plan_id[:8]}"]
    causes = [f"{cause} {format_bytes(size)}" for cause, size in figures.overhead.items() if size]
    return [
        *_line("plan", places, *counts),
        *_line("shards", *_shard_fields(plan)),
        *_split_lines(plan.shards),
        *_line(
            "bytes",
            f"{format_bytes(plan.num_bytes)} = payload {format_bytes(plan.payload_bytes)} + overhead"
            f" {format_bytes(figures.overhead_bytes)} ({100 * share:.1f} %)",
        ),
        *_line("", *causes),
        *_compression_lines(report),
        *_line("inodes", f"{figures.inodes_before:,} become {figures.inodes_after:,}"),
        *_need_lines(report),
        *_line("ledger", *ledger_fields(report.ledger.document())),
    ]


def _shard_fields(plan: Plan) -> list[str]:
    sizes = [spec.num_bytes for spec in plan.shards]
    limit, counts = shard_limit(plan.options), [spec.num_samples for spec in plan.shards]
    order = f"shuffled, seed {plan.options.seed}" if plan.options.shuffle == "global" else "in source order"
    if plan.options.stratify:
        order += ", stratified"
    return [
        f"{len(sizes):,} {plan.options.format} of {format_range(min(sizes), max(sizes))}",
        *([f"at most {format_bytes(limit)}"] if limit else []),
        f"{_range(min(counts), max(counts))} samples each" if len(sizes) > 1 else plural(counts[0], "sample"),
        order,
    ]


def _range(low: int, high: int) -> str:
    return f"{high:,}" if low == high else f"{low:,} .. {high:,}"


def _splits(shards: Sequence[ShardSpec]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for spec in shards:
        entry = found.setdefault(spec.split, {"samples": 0, "shards": 0, "bytes": 0})
        entry["samples"] += spec.num_samples
        entry["shards"] += 1
        entry["bytes"] += spec.num_bytes
    return found


def _split_lines(shards: Sequence[ShardSpec]) -> list[str]:
    splits = _splits(shards)
    if len(splits) < 2:
        return []
    fields = [f"{name} {entry['samples']:,} in {plural(entry['shards'], 'shard')}" for name, entry in splits.items()]
    return _line("splits", *fields)


def _compression_lines(report: PlanReport) -> list[str]:
    choice, size = report.choice, report.compressed_bytes
    if choice is None:
        return []
    expected = [f"about {format_bytes(size)} on disk, an estimate from a sample"] if size is not None else []
    return _line("zstd", *expected, *choice.why)


def _need_lines(report: PlanReport) -> list[str]:
    workers = plural(report.num_workers, "worker")
    memory = f"{format_bytes(report.worker_bytes)} for each of {workers}, {format_bytes(report.planning_bytes)} to plan"
    if report.speed is None or report.seconds is None:
        return _line("needs", memory)
    rate = f"{report.speed.files_per_s:,.0f} files/s from reading {report.speed.files:,} of them just now"
    return _line("needs", memory, f"about {format_duration(report.seconds)}", f"({rate})")


def ledger_fields(ledger: dict[str, Any]) -> list[str]:
    """`seen 10,416 = packed 10,412 + ignored 4 (junk 3, special 1) + failed 0`, as pieces that may be broken apart."""
    reasons = ", ".join(f"{printable(reason)} {count:,}" for reason, count in ledger["ignored"].items() if count)
    ignored = f"ignored {sum(ledger['ignored'].values()):,}" + (f" ({reasons})" if reasons else "")
    return [f"seen {ledger['seen']:,} = packed {ledger['packed']:,} + {ignored} + failed {ledger['failed']:,}"]


def _rows(plan: Plan, every_shard: bool) -> list[list[str]]:
    shards = plan.shards
    rows = [[spec.path, f"{spec.num_samples:,}", format_bytes(spec.num_bytes)] for spec in shards]
    if every_shard or len(rows) <= _ALL_SHARDS:
        return rows
    return [*rows[:_FIRST], [f"... {len(rows) - _FIRST - _LAST:,} more (-v shows all)"], *rows[-_LAST:]]


def _line(verb: str, *fields: str) -> list[str]:
    return filled(verb, fields, gap="   ", indent=_INDENT) if fields else []
