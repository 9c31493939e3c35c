"""Sizes, counts and durations: text in, numbers out, and back. Binary (`MiB`) and decimal (`MB`) are kept apart."""

from __future__ import annotations

import re

from shardtool.errors import UsageProblem

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_FACTORS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtpe", start=1):
    _FACTORS[_letter] = _FACTORS[_letter + "b"] = 1000**_power
    _FACTORS[_letter + "ib"] = _FACTORS[_letter + "i"] = 1024**_power

_SIZE = re.compile(r"^\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*$")


def parse_size(text: str) -> int:
    """Bytes meant by `text`: `256MiB` = 268,435,456, `10GB` = 10,000,000,000, a plain integer is bytes.

    Raises:
        UsageProblem: not a size, zero, or a fraction of a byte.
    """
    match = _SIZE.match(text)
    factor = _FACTORS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise UsageProblem(
            f"{text!r} is not a size", hint="write it like 256MiB, 1GiB, 500MB, or as plain bytes: 268435456"
        )
    number = match.group(1).replace(",", "").replace("_", "")
    value = round(float(number) * factor) if "." in number else int(number) * factor
    if value <= 0:
        raise UsageProblem(f"{text!r} is not a size above zero", hint="write it like 256MiB")
    return value


def format_bytes(value: float) -> str:
    """`value` bytes for people, binary units, three figures: `244 MiB`, `1.86 GiB`, `640 B`."""
    size, unit = float(value), 0
    while abs(size) >= 1000 and unit < len(_BINARY) - 1:
        size, unit = size / 1024, unit + 1
    if unit == 0:
        return f"{int(size):,} B"
    digits = 0 if abs(size) >= 100 else 1 if abs(size) >= 10 else 2
    return f"{size:.{digits}f} {_BINARY[unit]}"


def show_size(value: int) -> str:
    """`value` bytes exactly, as `parse_size` takes them: `256MiB`, `10GB`, `65537`."""
    for unit in ("EiB", "PiB", "TiB", "GiB", "GB", "MiB", "MB", "KiB", "KB"):
        if value % _FACTORS[unit.lower()] == 0 and value:
            return f"{value // _FACTORS[unit.lower()]}{unit}"
    return str(value)


def format_range(low: float, high: float) -> str:
    """`low .. high` in bytes with one unit where both share it: `243.0 .. 243.4 MiB`."""
    unit = 0
    while high / 1024**unit >= 1000 and unit < len(_BINARY) - 1:
        unit += 1
    scale = 1024**unit
    digits = 0 if unit == 0 else 1
    if f"{low / scale:.{digits}f}" == f"{high / scale:.{digits}f}":
        return format_bytes(high)
    return f"{low / scale:,.{digits}f} .. {high / scale:,.{digits}f} {_BINARY[unit]}"


def format_duration(seconds: float) -> str:
    """`seconds` as `0:01.2`, `2:05` or `1:02:05`."""
    if seconds < 10:
        return f"0:{seconds:04.1f}"
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def plural(count: int, noun: str, many: str = "") -> str:
    """`1 shard`, `7,034 samples`."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"
