"""A value of a table's cell -> part name and bytes, the way trainers expect them back."""

from __future__ import annotations

import base64
import json
from typing import Any

from shardtool.errors import BadKey
from shardtool.formats.tar_samples import normal_name
from shardtool.keys import KeyRule

_RULE = KeyRule()


def part_of(column: str, value: Any) -> tuple[bytes, bytes] | None:
    """(part name, bytes) of one cell; None for null.

    Bytes and text are taken as they are, numbers as decimal text, `{"bytes": ..., "path": "x.jpg"}` (images and audio
    of Hugging Face `datasets`) as those bytes under the extension of the path, anything else as JSON.
    """
    if value is None:
        return None
    name = part_name(column.encode("utf-8", "surrogateescape"))
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


def part_name(column: bytes) -> bytes:
    """A column's name as a part name: no slash, no leading or trailing dot, never empty."""
    return column.replace(b"/", b"_").strip(b".") or b"data"


def key_of(value: Any) -> bytes:
    """A value as a key: dots of its last component as `_`, as all keys have it.

    Raises:
        BadKey: empty, absolute, or with `..`.
    """
    key = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
    place = normal_name(key)
    if place is None:
        shown = key.decode("utf-8", "backslashreplace")
        raise BadKey(f"{shown!r} is no key: empty, absolute, or with `..`", hint="--key-column names another column")
    return _RULE.key(place)
