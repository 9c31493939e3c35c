"""A data set, a shard or a sample in full -> text of at most 80 columns, and the document `shardtool/inspect/1`."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from shardtool.report.plan import ledger_fields
from shardtool.report.stats import COLUMNS, clip, filled
from shardtool.report.text import escape_key, json_key, printable, table, to_ascii
from shardtool.units import format_bytes, plural

if TYPE_CHECKING:
    from shardtool.manifest import Manifest
    from shardtool.reading.looking import PartView, SampleView, ShardView

SCHEMA = "shardtool/inspect/1"
_INDENT = 9
_MAX_LABELS = 8
_TEXT_LINES = 24


def shard_document(view: ShardView) -> dict[str, Any]:
    """A shard as JSON."""
    record = view.record
    return {
        "schema": SCHEMA,
        "kind": "shard",
        "shard": view.number,
        "path": record.path,
        "split": record.split,
        "samples": record.num_samples,
        "parts": {
            _name(part.name): {
                "samples": part.samples,
                "bytes": part.num_bytes,
                "min": part.smallest,
                "p50": part.p50,
                "max": part.largest,
            }
            for part in view.parts
        },
        "labels": view.labels,
        "bytes": record.num_bytes,
        "payload_bytes": record.payload_bytes,
        "overhead": view.overhead,
        "xxh3_128": view.digest,
        "blocks": view.num_blocks,
        "index": {"path": record.index.path, "bytes": record.index.num_bytes} if record.index else None,
        "first": [json_key(key) for key in view.first_keys],
        "last": [json_key(key) for key in view.last_keys],
    }


def shard_text(view: ShardView, *, ascii_only: bool) -> str:
    """A shard for the terminal."""
    record = view.record
    overhead = sum(view.overhead.values())
    causes = [f"{cause} {format_bytes(size)}" for cause, size in view.overhead.items() if size]
    more = f"+ overhead {format_bytes(overhead)} ({100 * overhead / max(record.num_bytes, 1):.1f} %)"
    if overhead < 0:
        more, causes = f"compressed to {100 * record.num_bytes / max(record.payload_bytes, 1):.1f} %", []
    lines = [
        *_line("shard", f"{view.number}", record.path, record.split),
        *_line("holds", plural(record.num_samples, "sample"), plural(view.num_parts, "part")),
        *_line(
            "bytes",
            f"{format_bytes(record.num_bytes)} = payload {format_bytes(record.payload_bytes)} {more}",
            *(causes if len(causes) > 1 else []),
        ),
        *_line("digest", f"xxh3_128 {view.digest}", plural(view.num_blocks, "block") + " of 16 MiB"),
    ]
    if record.index:
        lines += _line("index", record.index.path, format_bytes(record.index.num_bytes))
    if view.labels:
        ranked = sorted(view.labels.items(), key=lambda item: (-item[1], item[0]))
        shown = [f"{clip(printable(name), 24)} {count:,}" for name, count in ranked[:_MAX_LABELS]]
        lines += _line("labels", *shown, *([f"and {len(ranked) - _MAX_LABELS:,} more"] if len(ranked) > 8 else []))
    lines += _line("first", *(clip(escape_key(key), 40) for key in view.first_keys))
    if view.last_keys:
        lines += _line("last", *(clip(escape_key(key), 40) for key in view.last_keys))
    rows = [
        [
            clip(printable(_name(part.name)), 24),
            part.samples,
            *map(format_bytes, (part.num_bytes, part.smallest, part.p50, part.largest)),
        ]
        for part in view.parts
    ]
    lines += ["", table(rows, header=("part", "samples", "bytes", "min", "p50", "max"), align="lrrrrr", indent="  ")]
    return _plain("\n".join(lines), ascii_only)


def sample_document(view: SampleView) -> dict[str, Any]:
    """A sample as JSON."""
    return {
        "schema": SCHEMA,
        "kind": "sample",
        **json_key(view.key),
        "split": view.record.split,
        "shard": view.shard,
        "path": view.record.path,
        "sample": view.sample,
        "addressing": view.addressing,
        "offset": view.offset,
        "bytes": view.num_bytes,
        "label": view.label,
        "label_name": view.label_name or None,
        "parts": [_part_document(part) for part in view.parts],
    }


def _part_document(part: PartView) -> dict[str, Any]:
    return {
        "name": _name(part.name),
        "bytes": part.num_bytes,
        "offset": part.offset,
        "xxh3_64": f"{part.xxh3_64:016x}",
        **({"source": None} if part.source is None else json_key(part.source, "source")),
        "content": part.preview.kind,
        "facts": part.preview.facts,
        "preview": part.preview.text,
    }


def sample_text(view: SampleView, *, ascii_only: bool) -> str:
    """A sample for the terminal: its place, a table of its parts, then what each holds."""
    place = f"sample {view.sample} of {view.record.num_samples:,} in shard {view.shard}"
    lines = [*_line("sample", clip(escape_key(view.key), 60), view.record.split), *_line("", place, view.record.path)]
    extent = f"{view.num_bytes:,} bytes from byte {view.offset:,} on"
    if view.addressing != "bytes":
        extent = f"row {view.num_bytes:,} of group {view.offset:,}"
    label = [f"label {view.label}" + (f" ({printable(view.label_name)})" if view.label_name else "")]
    lines += _line("", extent, *(label if view.label is not None else []))
    rows = [
        [clip(printable(_name(part.name)), 20), part.num_bytes, part.offset, f"{part.xxh3_64:016x}", _what(part, 22)]
        for part in view.parts
    ]
    place = "column" if view.addressing == "rows" else "offset"
    header = ("part", "bytes", place, "xxh3_64", "content")
    lines += ["", table(rows, header=header, align="lrrll", indent="  "), ""]
    for part in view.parts:
        lines += _part_lines(view, part)
    return _plain("\n".join(lines), ascii_only)


def _what(part: PartView, columns: int) -> str:
    facts = part.preview.facts
    both = f"{part.preview.kind} {facts}" if facts else part.preview.kind
    return both if len(both) <= columns else part.preview.kind


def _part_lines(view: SampleView, part: PartView) -> list[str]:
    name, same = clip(printable(_name(part.name)), 20), view.key + b"." + part.name
    origin = "made by packing" if part.source is None else ""
    if part.source not in (None, same):
        origin = f"from {escape_key(part.source or b'')}"
    facts = part.preview.facts if _what(part, 22) == part.preview.kind else ""
    body = _wrapped(part.preview.text)
    if len(body) == 1 and not origin:
        return _line(name, *([facts] if facts else []), body[0])
    fields = [text for text in (facts, origin) if text]
    head = _line(name, *fields) if fields or body else []
    return head + ["  " + line for line in body]


def _wrapped(text: str) -> list[str]:
    """Lines of at most 76 columns; of long text the first 24."""
    lines: list[str] = []
    for line in printable(text).expandtabs(4).rstrip("\n").split("\n") if text else []:
        indent = line[: len(line) - len(line.lstrip())][:20]
        lines += textwrap.wrap(line, COLUMNS - 4, subsequent_indent=indent, drop_whitespace=False) or [""]
    return (
        [*lines[:_TEXT_LINES], f"... {len(lines) - _TEXT_LINES:,} more lines"]
        if len(lines) > _TEXT_LINES + 1
        else lines
    )


def dataset_document(manifest: Manifest) -> dict[str, Any]:
    """A data set as JSON: the manifest without its shards."""
    return {
        "schema": SCHEMA,
        "kind": "dataset",
        "dataset_id": manifest.dataset_id,
        "plan_id": manifest.plan_id,
        "format": manifest.format,
        "compression": manifest.compression,
        "created_by": manifest.created_by,
        "options": manifest.options,
        "membership": manifest.membership,
        "samples": manifest.num_samples,
        "shards": len(manifest.shards),
        "bytes": manifest.num_bytes,
        "payload_bytes": manifest.payload_bytes,
        "splits": manifest.splits(),
        "ledger": manifest.ledger,
    }


def dataset_text(manifest: Manifest, out: str, *, ascii_only: bool) -> str:
    """A data set for the terminal: where it comes from, and how it was made."""
    order = [f"{name} {_option(value)}" for name, value in manifest.membership.items()]
    made = [f"{name} {version}" for name, version in manifest.created_by.items()]
    used = [f"--{name.replace('_', '-')} {_option(value)}" for name, value in manifest.options.items() if value]
    splits = [
        f"{name} {row['samples']:,} in {plural(row['shards'], 'shard')}" for name, row in manifest.splits().items()
    ]
    lines = [
        *_line("dataset", printable(out), manifest.format, manifest.dataset_id),
        *_line("plan", manifest.plan_id),
        *_line(
            "holds",
            f"{plural(manifest.num_samples, 'sample')} in {plural(len(manifest.shards), 'shard')}",
            f"payload {format_bytes(manifest.payload_bytes)}",
            f"files {format_bytes(manifest.num_bytes)}",
        ),
        *_line("splits", *splits),
        *_line("order", *order),
        *_line("options", *used),
        *_line("ledger", *ledger_fields(manifest.ledger)),
        *_line("made by", *made),
    ]
    return _plain("\n".join(lines), ascii_only)


def _option(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(",".join(map(str, value)) if isinstance(value, list) else str(value))


def _plain(text: str, ascii_only: bool) -> str:
    return to_ascii(text) if ascii_only else text


def _name(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _line(verb: str, *fields: str) -> list[str]:
    return filled(verb + ("" if len(verb) < _INDENT else "  "), fields, gap="   ", indent=_INDENT) if fields else [verb]
