"""A survey of a source -> text of at most 80 columns, and the document `shardtool/scan/1`."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from shardtool.report.stats import COLUMNS, advice_lines, clip, filled
from shardtool.report.text import escape_key, json_key, printable, sparkline, to_ascii, width
from shardtool.units import format_bytes, format_duration, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.model import Tally
    from shardtool.statistics.survey import Duplicate, PartSizes, Survey

SCHEMA = "shardtool/scan/1"
_INDENT = 11
_MAX_PARTS, _MAX_SIZES, _MAX_NAMES = 8, 3, 3
_KEY_COLUMNS = 34


def scan_document(found: Survey, sources: Sequence[str], seconds: float) -> dict[str, Any]:
    """The JSON document `shardtool/scan/1`."""
    return {
        "schema": SCHEMA,
        "sources": list(sources),
        "seen": found.seen,
        "entries": found.entries,
        "samples": found.samples,
        "bytes": found.num_bytes,
        "parts": {_name(name): _part_document(part) for name, part in found.parts.items()},
        "classes": vars(found.classes) if found.classes else None,
        "ignored": dict(sorted(found.ignored.counts.items())),
        "failed": dict(sorted(found.failed.counts.items())),
        "links": found.links,
        "tables": [escape_key(table) for table in found.tables],
        "problems": [
            {
                "kind": problem.kind,
                "count": problem.count,
                "examples": list(problem.examples),
                "message": problem.message,
                "hint": problem.hint,
                "is_fatal": problem.is_fatal,
            }
            for problem in found.problems
        ],
        "preview": [
            {**json_key(key), "parts": {_name(name): size for name, size in parts}} for key, parts in found.preview
        ],
        "advice": list(advise(found, sources)),
        "seconds": round(seconds, 3),
    }


def _part_document(part: PartSizes) -> dict[str, int]:
    return {"entries": part.entries, "bytes": part.num_bytes, "p50": part.p50, "p95": part.p95, "max": part.largest}


def scan_text(found: Survey, sources: Sequence[str], seconds: float, *, ascii_only: bool) -> str:
    """The survey for the terminal, no line break at the end."""
    lines = [*_head(found, sources, seconds), *_fields(found)]
    if found.preview:
        lines += ["preview", *_preview_lines(found)]
    for advice in advise(found, sources):
        lines += advice_lines(advice)
    text = "\n".join(lines)
    return to_ascii(text) if ascii_only else text


def _head(found: Survey, sources: Sequence[str], seconds: float) -> list[str]:
    samples = [plural(found.samples, "sample")] if found.samples else []
    counts = "  ".join([plural(found.entries, "file"), *samples, format_bytes(found.num_bytes)])
    places, took = ", ".join(map(printable, sources)), format_duration(seconds)
    fits = width(f"{places}  {counts}   {took}") <= COLUMNS
    above, last = ([], f"{places}  {counts}") if fits else ([places], f"  {counts}")
    return [*above, last + " " * max(COLUMNS - width(last) - len(took), 3) + took]


def _fields(found: Survey) -> Iterator[str]:
    parts = [
        f"{clip(printable(_name(name)), 20)} {part.entries:,} ({format_bytes(part.num_bytes)})"
        for name, part in list(found.parts.items())[:_MAX_PARTS]
    ]
    rest = len(found.parts) - _MAX_PARTS
    yield from _line("parts", *parts, *([f"and {rest:,} more"] if rest > 0 else []))
    if found.classes:
        given = found.classes
        samples = f"{given.most:,}" if given.fewest == given.most else f"{given.fewest:,} .. {given.most:,}"
        yield from _line("classes", f"{given.count:,} folders, {samples} samples", "(as labels: --label-from parent)")
    yield from _line("skipped", *_tally_fields(found.ignored))
    yield from _line("failed", *_tally_fields(found.failed))
    if found.links:
        yield from _line("links", f"{found.links:,} followed")
    for number, (name, part) in enumerate(list(found.parts.items())[:_MAX_SIZES]):
        graph = [sparkline(part.octaves)] if len(part.octaves) > 1 else []
        quantiles = (("p50", part.p50), ("p95", part.p95), ("max", part.largest))
        figures = "  ".join(f"{title} {format_bytes(size)}" for title, size in quantiles)
        yield from _line("" if number else "sizes", f"{clip(printable(_name(name)), 20)}  {figures}", *graph)


def _tally_fields(tally: Tally) -> list[str]:
    return [
        f"{count:,} {printable(reason)}{_names_of(tally, reason)}" for reason, count in sorted(tally.counts.items())
    ]


def _names_of(tally: Tally, reason: str) -> str:
    """The names, or for special files the kinds, that are met most often: ` (.DS_Store 2, Thumbs.db 1)`."""
    if reason in ("no_extension", "not_included"):
        return ""
    rows = [entry for entry in tally.entries if entry[0] == reason]
    words = Counter(
        detail if reason in ("special", "excluded") and detail else escape_key(os.path.basename(path.rstrip(b"/")))
        for _, path, detail in rows
    )
    common = words.most_common(_MAX_NAMES)
    if len(words) > _MAX_NAMES and common[0][1] == 1:
        return f" ({clip(common[0][0], 24)}, ...)"
    shown = ", ".join(clip(word, 24) + (f" {count:,}" if len(words) > 1 or count > 1 else "") for word, count in common)
    return f" ({shown}{', ...' if len(words) > _MAX_NAMES else ''})"


def _preview_lines(found: Survey) -> Iterator[str]:
    keys = [clip(escape_key(key), _KEY_COLUMNS) for key, _ in found.preview]
    column = max(map(width, keys)) + 4
    for key, (_, parts) in zip(keys, found.preview, strict=True):
        shown = [f"{clip(printable(_name(name)), 20)} {format_bytes(size)}" for name, size in parts[:_MAX_PARTS]]
        shown += [f"and {len(parts) - _MAX_PARTS:,} more"] if len(parts) > _MAX_PARTS else []
        yield from filled("  " + key + " " * (column - width(key) - 2), shown, gap="   ", indent=column)


def advise(found: Survey, sources: Sequence[str] = ()) -> Iterator[str]:
    """What deserves a look before packing, one sentence each: what it costs, and what to type."""
    if found.incomplete:
        yield _ragged(found)
    if count := found.ignored.counts.get("no_extension", 0):
        verb = "files have" if count > 1 else "file has"
        yield f"{count:,} {verb} no extension and would be left out. Pack such files as part data with: --no-ext data"
    for table in found.tables[:3]:
        name, path = escape_key(os.path.basename(table)), escape_key(_as_given(table, sources))
        yield f"{name} looks like a table about the other files. Add its columns to the samples with: --join {path}"
    if b"jpg" in found.parts and b"jpeg" in found.parts:
        yield "parts jpg and jpeg are kept apart: code that looks for one misses the other. One name: --alias jpg=jpeg"
    if found.split_folders:
        names = ", ".join(found.split_folders)
        yield f"the top folders are named like splits ({names}). Keep them apart with: --split-by dir"
    if found.empty:
        yield f"{plural(found.empty, 'file')} of 0 bytes: a decoder fails on them. Leave them out with: --exclude GLOB"
    if found.not_utf8:
        yield (
            f"{plural(found.not_utf8, 'name is', 'names are')} not UTF-8, and some loaders stop at such keys."
            " Write them as %XX with: --escape-names"
        )
    for problem in found.problems:
        if not problem.is_fatal:
            shown = f": {', '.join(problem.examples)}" if problem.examples else ""
            yield f"{problem.message}{shown}" + (f"; {problem.hint}" if problem.hint else "")


def _as_given(path: bytes, sources: Sequence[str]) -> bytes:
    """`path` below the source as it was typed, so that it can be pasted."""
    for source in sources:
        base = os.path.join(os.fsencode(os.path.abspath(source)), b"")
        if path.startswith(base):
            return os.path.join(os.fsencode(source), path[len(base) :])
    return path


def _ragged(found: Survey) -> str:
    part = min(found.incomplete, key=lambda name: found.incomplete[name])
    others = len(found.incomplete) - 1
    more = f" ({plural(others, 'more part')} not in every sample)" if others else ""
    return (
        f"{plural(found.incomplete[part], 'sample has', 'samples have')} no {_name(part)}{more}: fine for tar,"
        " ragged for Hugging Face (first 5 must agree). See: shardtool scan --explain ragged"
    )


def duplicates_text(duplicates: Sequence[Duplicate]) -> str:
    """One block a duplicate: the member or key, then each path that claims it."""
    lines = []
    for found in duplicates:
        name = escape_key(found.key) + (f".{escape_key(found.part)}" if found.part is not None else "")
        what = "files claim" if found.part is not None else "names become key"
        lines.append(f"{len(found.paths):,} {what} {name}")
        lines += [f"  {escape_key(path)}" for path in found.paths]
    return "\n".join(lines)


def duplicates_document(duplicates: Sequence[Duplicate]) -> list[dict[str, Any]]:
    """The same for `shardtool/scan/1`, field `duplicates`."""
    return [
        {
            **json_key(found.key),
            "part": None if found.part is None else _name(found.part),
            "paths": [escape_key(path) for path in found.paths],
        }
        for found in duplicates
    ]


def left_out_document(entries: Sequence[tuple[str, bytes, str]]) -> list[dict[str, str]]:
    """Entries that are not packed, for `shardtool/scan/1`, field `listed`."""
    return [{"reason": reason, **json_key(path, "path"), "detail": detail} for reason, path, detail in entries]


def left_out_text(entries: Sequence[tuple[str, bytes, str]], *, with_reason: bool) -> str:
    """One path a line, its reason in front where several are listed."""
    rows = [(reason if with_reason else "", escape_key(path), detail) for reason, path, detail in entries]
    column = max((len(reason) for reason, _, _ in rows), default=0)
    prefix = [f"{reason:<{column}}  " if column else "" for reason, _, _ in rows]
    return "\n".join(
        start + path + (f"   ({printable(detail)})" if detail else "")
        for start, (_, path, detail) in zip(prefix, rows, strict=True)
    )


def _name(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _line(verb: str, *fields: str) -> list[str]:
    return filled(f"  {verb}", fields, gap="   ", indent=_INDENT) if fields else []
