"""What `extract` wrote, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.report.text import printable
from shardtool.units import format_bytes, format_duration, plural

if TYPE_CHECKING:
    from shardtool.reading.extract import ExtractResult

MAX_LINES = 20


def extract_text(result: ExtractResult) -> str:
    """The `done` line, and one a part that is damaged."""
    report = result.report
    lines = [f"DAMAGE {printable(message)}" for _, message in report.damaged[:MAX_LINES]]
    rest = len(report.damaged) - MAX_LINES
    lines += [f"       and {rest:,} more; --json lists all"] if rest > 0 else []
    holds = f"{plural(report.num_samples, 'sample')}, {plural(report.num_parts, 'file')}"
    took = f"{format_bytes(report.num_bytes)} in {format_duration(result.seconds)}"
    return "\n".join([*lines, f"done   {result.target}   {holds}   {took}"])


def left_out_text(result: ExtractResult) -> str:
    """`left out 64 cls, which packing made`; "" for none."""
    counts = sorted(result.report.left_out.items())
    if not counts:
        return ""
    names = ", ".join(f"{count:,} {printable(name)}" for name, count in counts)
    return f"{names} left out: packing made these parts, no file held them (--all-parts writes them too)"
