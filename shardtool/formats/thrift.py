"""The compact protocol of Apache Thrift, as far as the metadata of Parquet need it: values to bytes.

Source: apache/thrift:doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TRUE, I32, I64, BINARY, LIST, STRUCT = 1, 5, 6, 8, 9, 12  # types of fields
FALSE = 2
_LONG_LIST = 15  # elements from which on their number stands apart


def varint(value: int) -> bytes:
    """An unsigned number, seven bits a byte."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def integer(value: int) -> bytes:
    """A value of type I32 or I64."""
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def binary(data: bytes) -> bytes:
    """A value of type BINARY."""
    return varint(len(data)) + data


def list_(kind: int, values: Sequence[bytes]) -> bytes:
    """A list of encoded values of one type."""
    if len(values) < _LONG_LIST:
        return bytes([len(values) << 4 | kind]) + b"".join(values)
    return bytes([_LONG_LIST << 4 | kind]) + varint(len(values)) + b"".join(values)


def integers(kind: int, values: Iterable[int]) -> bytes:
    """A list of numbers."""
    return list_(kind, [integer(value) for value in values])


def struct(*fields: tuple[int, int, bytes]) -> bytes:
    """Fields (id, type, encoded value) in ascending order of ids, at most 15 apart; a flag is its type and no value."""
    found, last = bytearray(), 0
    for number, kind, value in fields:
        found.append((number - last) << 4 | kind)
        found += value
        last = number
    found.append(0)
    return bytes(found)
