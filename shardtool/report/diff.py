"""`DatasetDiff` -> text of at most 80 columns: a line a kind of change, with examples, then what deserves attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.report.stats import clip, filled
from shardtool.report.text import escape_key, printable, to_ascii
from shardtool.units import format_bytes, plural

if TYPE_CHECKING:
    from shardtool.statistics.dataset_diff import Change, DatasetDiff, Example

_INDENT = 9
_KEY_COLUMNS = 40
_MAX_PARTS = 6


def render_diff(diff: DatasetDiff, *, before: str, after: str, ascii_only: bool = False) -> str:
    """The difference for the terminal, lines of at most 80 columns, no line break at the end.

    Args:
        diff: from `shardtool.statistics.dataset_diff.compare`.
        before: name of the first data set.
        after: name of the second one.
        ascii_only: spell dots and ellipses in ASCII.
    """
    lines = _line("diff", f"{printable(before)} -> {printable(after)}", *_totals(diff))
    for verb, change in (("added", diff.added), ("removed", diff.removed)):
        lines += _change(verb, change)
    lines += _change("moved", diff.moved, f"{diff.other_split:,} to another split" if diff.other_split else "")
    lines += _change("changed", diff.changed, _part_counts(diff))
    lines += _line("same", plural(diff.same, "sample"), _order(diff))
    for advice in advise(diff):
        lines += filled("!", advice.split(" "), gap=" ", indent=2)
    text = "\n".join(lines)
    return to_ascii(text) if ascii_only else text


def advise(diff: DatasetDiff) -> list[str]:
    """What the differences may cost, then what to type; empty where there is nothing to say."""
    found = []
    if diff.other_split:
        found.append(
            f"{plural(diff.other_split, 'sample')} changed split: scores of a model trained on the first data set are"
            " not comparable on the second. Fix a sample's split by its name or folder: --split-by dir"
        )
    if not diff.is_by_digest:
        found.append(
            "contents were compared by size alone, because one side records no digests: changes that keep the size"
            " are not seen. Record them with: shardtool index OUT"
        )
    return found


def _totals(diff: DatasetDiff) -> list[str]:
    old, new = diff.before, diff.after
    return [
        _arrow(f"{old.samples:,}", f"{new.samples:,}") + " samples",
        _arrow(f"{old.shards:,}", f"{new.shards:,}") + " shards",
        _arrow(format_bytes(old.bytes), format_bytes(new.bytes)),
    ]


def _change(verb: str, change: Change, detail: str = "") -> list[str]:
    if not change.count:
        return []
    lines = _line(verb, plural(change.count, "sample"), format_bytes(change.bytes), *([detail] if detail else []))
    for example in change.examples:
        lines += _line("", "  " + clip(escape_key(example.key), _KEY_COLUMNS), _places(example))
    rest = change.count - len(change.examples)
    return [*lines, *(_line("", f"  and {rest:,} more") if rest else [])]


def _places(example: Example) -> str:
    old, new = example.before, example.after
    if example.parts:
        names = ", ".join(clip(printable(name), 20) for name in example.parts[:_MAX_PARTS])
        return names + (", ..." if len(example.parts) > _MAX_PARTS else "")
    if old is None or new is None:
        shard, split = old or new or (0, "")
        return f"{split} shard {shard}"
    split = old[1] if old[1] == new[1] else f"{old[1]} -> {new[1]}"
    return f"{split} shard {old[0]} -> {new[0]}"


def _part_counts(diff: DatasetDiff) -> str:
    ranked = sorted(diff.changed_parts.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{clip(printable(name), 20)} {count:,}" for name, count in ranked[:_MAX_PARTS])
    return shown + (f", {len(ranked) - _MAX_PARTS} more parts" if len(ranked) > _MAX_PARTS else "")


def _order(diff: DatasetDiff) -> str:
    if diff.is_equal:
        return "the data sets are equal"
    return "common samples keep their order" if diff.is_order_kept else "common samples come in another order"


def _arrow(old: str, new: str) -> str:
    return old if old == new else f"{old} -> {new}"


def _line(verb: str, *fields: str) -> list[str]:
    return filled(verb, fields, gap="   ", indent=_INDENT)
