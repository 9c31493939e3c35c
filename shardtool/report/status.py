"""`Status` -> text of at most 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.report.plan import ledger_fields
from shardtool.report.stats import filled
from shardtool.report.text import printable
from shardtool.units import format_bytes, format_duration, plural

if TYPE_CHECKING:
    from shardtool.packing.status import Rate, Status

_INDENT = 8


def status_text(status: Status) -> str:
    """How far a data set is; no line break at the end."""
    done, planned = status.done, status.planned
    lines = _line("status", printable(status.out), *_state_fields(status))
    if planned.shards:
        share = 100 * done.num_bytes / max(planned.num_bytes, 1)
        lines += _line(
            "shards",
            f"{done.shards:,}/{planned.shards:,}",
            f"{format_bytes(done.num_bytes)} of {format_bytes(planned.num_bytes)} ({share:.0f} %)",
            f"{done.samples:,}/{planned.samples:,} samples",
        )
    if status.rate:
        lines += _line("speed", *_rate_fields(status.rate, status.left_s))
    if status.ledger:
        lines += _line("ledger", *ledger_fields(status.ledger))
    if status.failed:
        reasons = [f"{count:,} {printable(reason)}" for reason, count in status.failed.items()]
        retried = [f"in {plural(status.failed_shards, 'shard')}"] if status.failed_shards else []
        lines += _line("failed", *reasons, *retried, "(.shardtool/failed.jsonl)" if not retried else "")
    if status.temps.shards:
        lines += _line("temp", plural(status.temps.shards, "file"), format_bytes(status.temps.num_bytes), _fate(status))
    for path in status.missing_files[:5]:
        lines += _line("missing", path)
    if len(status.missing_files) > 5:
        lines += _line("", f"and {len(status.missing_files) - 5:,} more")
    return "\n".join(lines)


def _state_fields(status: Status) -> list[str]:
    state = status.state
    if status.is_running:
        state = "planning now" if state == "planning" else "packing now"
    elif state == "planning":
        state = "planning was interrupted"
    elif state == "unfinished":
        state = "unfinished" if status.done.shards else "planned"
        state += ", nothing is running" if status.is_running is False else ""
    elif status.missing_files:
        state = f"finished, but {plural(len(status.missing_files), 'file is', 'files are')} gone"
    ids = [f"dataset {status.dataset_id[:8]}"] if status.dataset_id else []
    ids += [f"plan {status.plan_id[:8]}"] if status.plan_id and not ids else []
    return [state, *ids]


def _rate_fields(rate: Rate, left_s: float | None) -> list[str]:
    fields = [f"{format_bytes(rate.bytes_per_s)}/s", f"over {plural(rate.shards, 'shard')}"]
    return [*fields, *([f"ETA {format_duration(left_s)}"] if left_s is not None else [])]


def _fate(status: Status) -> str:
    if status.is_running:
        return "being written"
    return "of a run that was stopped; the next one removes them"


def _line(verb: str, *fields: str) -> list[str]:
    return filled(verb, [field for field in fields if field], gap="   ", indent=_INDENT)
