"""What other readers make of a data set: text of at most 80 columns, and the list `compat` of JSON documents."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

from shardtool.compat import EVEN, LOWER_CASE, UNSEEN
from shardtool.dialects.rules import NOT_ARROW, NOT_TEXT, NOT_UTF8
from shardtool.report.text import escape_key, json_key, to_ascii
from shardtool.units import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.compat import Finding, Verdict

_COLUMNS, _INDENT = 80, 14
_WHOLE = "--require PART,... --on-missing skip: whole samples only"
_CURES = {  # what to pack with, where an option helps
    EVEN: _WHOLE,
    UNSEEN: _WHOLE,
    LOWER_CASE: "leave --keep-case out",
    NOT_TEXT: "--escape-names writes such bytes as %XX",
    NOT_UTF8: "--escape-names writes such bytes as %XX",
    NOT_ARROW: "--escape-names writes such bytes as %XX",
}
_VERBS = {"dropped": "drops", "rejected": "stops at", "renamed": "renames", "split": "splits", "merged": "merges"}


def compat_document(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """One object a reader."""
    return [
        {
            "reader": verdict.reader,
            "ok": verdict.is_clean,
            "findings": [_finding_document(finding) for finding in verdict.findings.values()],
        }
        for verdict in verdicts
    ]


def _finding_document(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "why": finding.why,
        "unit": finding.unit,
        "count": finding.count,
        "hint": _CURES.get(finding.why, ""),
        "examples": [json_key(example, "name") for example in finding.examples],
    }


def compat_text(verdicts: Sequence[Verdict], num_samples: int, *, ascii_only: bool) -> str:
    """A line a reader; findings hang under it."""
    lines = [f"compat {plural(num_samples, 'sample')}, as readers of tar shards see them"]
    for verdict in verdicts:
        lines += _verdict_lines(verdict)
    text = "\n".join(lines)
    return to_ascii(text) if ascii_only else text


def _verdict_lines(verdict: Verdict) -> list[str]:
    if verdict.is_clean:
        return [f"  {verdict.reader:<{_INDENT - 4}}  reads all as packed"]
    blocks = [line for finding in verdict.findings.values() for line in _finding_lines(finding)]
    return [f"  {verdict.reader:<{_INDENT - 4}}  {blocks[0]}", *(" " * _INDENT + line for line in blocks[1:])]


def _finding_lines(finding: Finding) -> list[str]:
    head = f"{_VERBS[finding.kind]} {plural(finding.count, finding.unit)}: {finding.why}"
    lines = wrap(head, _COLUMNS - _INDENT)
    room = _COLUMNS - _INDENT - 4
    lines += [
        f"  {text if len(text) <= room else text[: room - 3] + '...'}" for text in map(escape_key, finding.examples)
    ]
    more = finding.count - len(finding.examples)
    lines += [f"  and {more:,} more"] if more > 0 else []
    cure = _CURES.get(finding.why)
    return [*lines, f"hint  {cure}"] if cure else lines
