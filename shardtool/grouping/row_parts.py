"""Parts that rows of a table become: what `--join-part` means, and values as bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.errors import GroupError, UsageProblem
from shardtool.grouping.group import is_odd_part
from shardtool.model import GeneratedPart
from shardtool.samples import has_part
from shardtool.sources.table import check_column

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.model import Int64Array, SampleTable
    from shardtool.sources.table import Table

CHUNK = 1 << 14  # rows held as Python objects at a time
JSON_PART = "json"


@dataclass(frozen=True)
class PartSpec:
    """A part to make: of one column as it is, or of several (None: all that are chosen) as a JSON object."""

    name: str
    column: str | None = None


def parse_parts(text: str) -> tuple[PartSpec, ...]:
    """The parts that `--join-part` asks for.

    Pieces are separated by commas: PART=COLUMN is a part with the bare value of one column; PART alone holds the other
    chosen columns, as one JSON object where it is called `json` or ends in `.json`, else the value of the only one.
    Nothing is `json`, and `none` makes no part.

    Raises:
        UsageProblem: malformed, a part twice, or a name that readers would not take.
    """
    if text == "none":
        return ()
    found: list[PartSpec] = []
    for piece in (text or JSON_PART).split(","):
        name, equals, column = (word.strip() for word in piece.partition("="))
        if not name or (equals and not column):
            raise UsageProblem(f"--join-part {text!r}: {piece!r} is not PART or PART=COLUMN", hint="txt=caption,json")
        if is_odd_part(name.encode()) or name != name.lower():
            raise UsageProblem(
                f"--join-part {text!r}: readers will not take a part called {name!r}",
                hint="use lower-case letters and digits, such as --join-part txt=caption",
            )
        found.append(PartSpec(name, column or None))
    names = [spec.name for spec in found]
    if len(set(names)) < len(names) or sum(spec.column is None for spec in found) > 1:
        raise UsageProblem(
            f"--join-part {text!r} names a part twice, or two parts for the same columns", hint="txt=caption,json"
        )
    return tuple(found)


def _is_json(spec: PartSpec) -> bool:
    return spec.column is None and (spec.name == JSON_PART or spec.name.endswith(".json"))


def wanted_columns(parts: tuple[PartSpec, ...], columns: tuple[str, ...], label: str) -> list[str] | None:
    """Columns to read; None for all."""
    takes_rest = any(spec.column is None for spec in parts)
    if takes_rest and not columns:
        return None
    named = [spec.column for spec in parts if spec.column]
    return [*named, *columns, *([label] if label else [])]


def settle_parts(
    table: Table, parts: tuple[PartSpec, ...], columns: tuple[str, ...], label: str
) -> tuple[tuple[PartSpec, ...], list[str]]:
    """(parts, columns of the JSON part), now that the columns of the table are known.

    Raises:
        UsageProblem: columns that are not there or go nowhere, or several for a part that holds one.
    """
    rest = next((spec for spec in parts if spec.column is None), None)
    if columns and rest is None:
        raise UsageProblem(
            f"--join-columns {','.join(columns)} go to no part", hint="add one for them: --join-part txt=caption,json"
        )
    used = {spec.column for spec in parts if spec.column} | ({label} if label else set())
    for name in sorted(used):
        check_column(table.path, table.names, name)
    names = list(columns) or [name for name in table.names if name not in used | {table.key_name}]
    if rest is None or (not names and rest.name == JSON_PART):
        return tuple(spec for spec in parts if spec is not rest), []
    if _is_json(rest):
        return parts, names
    if len(names) != 1:
        raise _several_columns(rest, names)
    return tuple(PartSpec(spec.name, names[0]) if spec is rest else spec for spec in parts), []


def _several_columns(spec: PartSpec, names: list[str]) -> UsageProblem:
    first = names[0] if names else "COLUMN"
    return UsageProblem(
        f"--join-part {spec.name} holds the bare value of one column, and {len(names)} are chosen: {', '.join(names)}",
        hint=f"--join-part {spec.name}={first} takes one of them; --join-part {spec.name}={first},json all",
    )


def add_parts(
    samples: SampleTable, table: Table, row_of: Int64Array, parts: tuple[PartSpec, ...], names: list[str]
) -> SampleTable:
    """`samples` with a generated part for each of `parts`."""
    _check_collisions(samples, parts)
    wanted = sorted({name for spec in parts for name in ([spec.column] if spec.column else names)})
    values: list[list[bytes]] = [[] for _ in parts]
    codes = [np.full(samples.num_samples, -1, np.int32) for _ in parts]
    for chosen, records in _records(table, row_of, wanted) if parts else ():
        for place, spec in enumerate(parts):
            found = [_value(spec, names, record) for record in records]
            has = chosen[[value is not None for value in found]]
            codes[place][has] = np.arange(len(values[place]), len(values[place]) + len(has))
            values[place] += [value for value in found if value is not None]
    for place, spec in enumerate(parts):
        codes[place][row_of < 0] = len(values[place])
        values[place].append(b"{}" if _is_json(spec) else b"")
    made = [GeneratedPart(spec.name.encode(), values[at], codes[at]) for at, spec in enumerate(parts)]
    return replace(samples, generated=(*samples.generated, *made))


def _check_collisions(samples: SampleTable, parts: tuple[PartSpec, ...]) -> None:
    for spec in parts:
        count = int(has_part(samples, spec.name.encode()).sum())
        if count:
            raise GroupError(
                f"--join makes a part {spec.name!r}, but {count:,} samples have a file of that name already",
                hint=f"give another name with --join-part, or leave the files out: --exclude '*.{spec.name}'",
            )


def _records(table: Table, row_of: Int64Array, names: list[str]) -> Iterator[tuple[Int64Array, list[dict[str, Any]]]]:
    """(samples, the records of their rows), a chunk at a time; samples without a row are left out."""
    has_row = np.flatnonzero(row_of >= 0)
    for start in range(0, len(has_row), CHUNK):
        chosen = has_row[start : start + CHUNK]
        yield chosen, table.records(row_of[chosen], names)


def _value(spec: PartSpec, names: list[str], record: dict[str, Any]) -> bytes | None:
    if spec.column is not None:
        return bare_value(record.get(spec.column))
    return json_object({name: record[name] for name in names if name in record})


def bare_value(value: Any) -> bytes | None:
    """Text and bytes as they are, anything else as JSON; None for null, which makes no part."""
    if value is None or isinstance(value, bytes):
        return value
    return value.encode("utf-8", "backslashreplace") if isinstance(value, str) else json_object(value)


def json_object(value: Any) -> bytes:
    """JSON with sorted names and no blanks, UTF-8; numbers that JSON does not have (NaN, infinite) are null."""
    try:
        text = _ENCODER.encode(value)
    except ValueError:
        text = _ENCODER.encode(_without_nan(value))
    return text.encode("utf-8", "backslashreplace")  # half a surrogate pair stays the escape that it was


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _as_text(value: Any) -> str:
    """Times as ISO 8601, decimals as they are written."""
    if isinstance(value, bytes):
        raise UsageProblem(
            "a column of the joined table holds bytes, which JSON cannot hold",
            hint="give it a part of its own: --join-part png=COLUMN, or choose others with --join-columns",
        )
    return str(value.isoformat() if hasattr(value, "isoformat") else value)


_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_as_text
)
