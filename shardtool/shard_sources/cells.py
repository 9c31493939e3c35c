"""A value of a table's cell -> part name and bytes, the way trainers expect them back."""

from __future__ import annotations

import base64
import json
from typing import Any


def part_of(column: str, value: Any) -> tuple[bytes, bytes] | None:
    """(part name, bytes) of one cell; None for null.

    Bytes and text are taken as they are, numbers as decimal text, `{"bytes": ..., "path": "x.jpg"}` (images and audio
    of Hugging Face `datasets`) as those bytes under the extension of the path, anything else as JSON.
    """
    if value is None:
        return None
    name = _name(column)
    if isinstance(value, dict) and set(value) == {"bytes", "path"} and isinstance(value["bytes"], bytes):
        extension = str(value["path"] or "").rpartition("/")[2].partition(".")[2].lower()
        return (extension.encode("utf-8", "surrogateescape") or name), value["bytes"]
    if isinstance(value, bytes):
        return name, value
    if isinstance(value, str):
        return name, value.encode("utf-8", "surrogateescape")
    if isinstance(value, bool):
        return name, b"true" if value else b"false"
    if isinstance(value, int):
        return name, b"%d" % value
    if isinstance(value, float):
        return name, repr(value).encode()
    return name, json.dumps(value, ensure_ascii=False, default=_plain).encode("utf-8", "surrogateescape")


def _plain(value: Any) -> Any:
    """What JSON has no word for: bytes as base64, times and decimals as text."""
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else str(value)


def _name(column: str) -> bytes:
    """A column's name as a part name: no slash, no leading or trailing dot, never empty."""
    name = column.replace("/", "_").strip(".")
    return (name or "data").encode("utf-8", "surrogateescape")
