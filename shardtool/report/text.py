"""Text for people: aligned tables, sparklines, keys made safe to show.

Takes strings, bytes and numbers, gives strings back. Which glyphs a stream can carry is the caller's
business: `to_ascii` gives the plain form of any text made here.
"""

from __future__ import annotations

import base64
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SPARKS = "▁▂▃▄▅▆▇█"
ASCII_SPARKS = "_.:-=+*#"
_PLAIN = str.maketrans(
    dict(zip(SPARKS, ASCII_SPARKS, strict=True))
    | {"·": "|", "→": "->", "…": "...", "×": "x", "≤": "<=", "≥": ">=", "–": "-", "—": "-", "µ": "u", "✓": "ok"}
)
_SURROGATE = re.compile("[\udc80-\udcff]")
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def table(rows: Iterable[Sequence[object]], *, header: Sequence[str] = (), align: str = "", indent: str = "") -> str:
    """Rows as aligned columns, two spaces between them, no trailing blanks.

    Args:
        rows: cells; anything but a string is shown by `str`, integers with thousands separated.
        header: column names, if any.
        align: `l` or `r` a column; without it, columns of numbers go right and all others left.
        indent: put before every line.
    """
    given = [list(row) for row in rows]
    cells = [[_cell(value) for value in row] for row in given]
    lines = ([list(header)] if header else []) + cells
    if not lines:
        return ""
    num_columns = max(map(len, lines))
    sides = align or "".join("r" if _is_numeric(given, column) else "l" for column in range(num_columns))
    widths = [max((width(line[c]) for line in lines if c < len(line)), default=0) for c in range(num_columns)]
    return "\n".join((indent + _aligned(line, widths, sides)).rstrip() for line in lines)


def sparkline(values: Sequence[float], *, ascii_only: bool = False) -> str:
    """One of eight levels a value, the largest value at full height; empty for no values."""
    levels = ASCII_SPARKS if ascii_only else SPARKS
    top = max(values, default=0)
    if top <= 0:
        return levels[0] * len(values)
    return "".join(levels[min(int(max(value, 0) / top * len(levels)), len(levels) - 1)] for value in values)


def escape_key(key: bytes) -> str:
    r"""`key` for the terminal: bytes that are not UTF-8 and control characters as `\xNN`, a backslash doubled.

    The result is printable, and two different keys never look the same.
    """
    text = key.decode("utf-8", "surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_escape_char, text))


def json_key(key: bytes, name: str = "key") -> dict[str, str]:
    """`{"key": text}`, and `key_b64` beside the escaped text when `key` is not UTF-8; `name` replaces `key`."""
    try:
        return {name: key.decode("utf-8")}
    except UnicodeDecodeError:
        return {name: escape_key(key), f"{name}_b64": base64.b64encode(key).decode("ascii")}


def to_ascii(text: str) -> str:
    """`text` with our glyphs spelled out; characters that have no plain form become escapes."""
    return text.translate(_PLAIN).encode("ascii", "backslashreplace").decode("ascii")


def printable(text: str) -> str:
    """`text` without characters that could steer a terminal: controls but newline and tab, and undecoded bytes."""
    return _UNSAFE.sub(lambda match: _escape_char(match.group()), text)


def without_surrogates(text: str) -> str:
    r"""`text` that any UTF-8 stream takes: bytes of a path that could not be decoded shown as `\xNN`."""
    return _SURROGATE.sub(lambda match: _escape_char(match.group()), text)


def width(text: str) -> int:
    """Terminal columns that `text` takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _escape_char(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if char == "\\":
        return "\\\\"
    if char.isprintable():
        return char
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _is_numeric(rows: list[list[object]], column: int) -> bool:
    values = [row[column] for row in rows if column < len(row) and row[column] != ""]
    return bool(values) and all(isinstance(value, (int, float)) for value in values)


def _aligned(line: list[str], widths: list[int], sides: str) -> str:
    padded = []
    for column, text in enumerate(line):
        blanks = " " * (widths[column] - width(text))
        is_right = column < len(sides) and sides[column] == "r"
        padded.append(blanks + text if is_right else text + blanks)
    return "  ".join(padded)
