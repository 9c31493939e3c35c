"""CRC-32C (Castagnoli), masked as TFRecord wants it: of one buffer, of a long one in pieces, of many in one numpy pass.

google-crc32c (the extra `tfrecord`) does it in hardware, about 19 GB/s; without it numpy does, some 200 times slower.
Each is the oracle of the other in the tests.

The numpy way: without its start and end values a CRC is linear. Every pair of bytes becomes 32 bits by a table; then
neighbours are folded, left half shifted over the length of the right by another table, until one value is left. Zeros
in front change nothing, so that buffers of any length share one matrix, padded on the left.

Source: RFC 3720 appendix B.4 (polynomial, test values); tensorflow/core/lib/hash/crc32c.h (mask).
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.model import Int64Array

POLYNOMIAL = 0x82F63B78  # reflected
MASK_DELTA = 0xA282EAD8
PIECE_BYTES = 1 << 16  # folded at once; the tables for it are made once, 2 x 256 KiB a doubling
_START = 0xFFFFFFFF

google_crc32c: Any = None  # where the extra is installed
with suppress(ImportError):
    google_crc32c = import_module("google_crc32c")
    if google_crc32c.implementation != "c":  # a loop over bytes, slower than numpy
        google_crc32c = None


def crc32c(data: bytes | memoryview) -> int:
    """CRC-32C of `data`."""
    return extend(0, data)


def extend(crc: int, data: bytes | memoryview) -> int:
    """CRC-32C of what `crc` covers, followed by `data`; 0 covers nothing."""
    if google_crc32c is not None:
        return int(google_crc32c.extend(crc, bytes(data)))
    return extend_numpy(crc, data)


def extend_numpy(crc: int, data: bytes | memoryview) -> int:
    """As `extend`, by numpy alone."""
    raw = np.frombuffer(data, np.uint8)
    state = crc ^ _START
    for begin in range(0, len(raw), PIECE_BYTES):
        piece = raw[begin : begin + PIECE_BYTES]
        state = _shift(state, len(piece)) ^ int(_fold(_padded(piece[None, :]))[0])
    return state ^ _START


def crc32c_many(data: NDArray[np.uint8], starts: Int64Array, sizes: Int64Array) -> NDArray[np.uint32]:
    """uint32[n]: CRC-32C of data[starts[i] : starts[i] + sizes[i]]."""
    if google_crc32c is None:
        return crc32c_many_numpy(data, starts, sizes)
    value, ends = google_crc32c.value, (starts + sizes).tolist()
    found = [value(data[a:b]) for a, b in zip(starts.tolist(), ends, strict=True)]  # arrays: of views it wants copies
    return np.array(found, np.uint32)


def crc32c_many_numpy(data: NDArray[np.uint8], starts: Int64Array, sizes: Int64Array) -> NDArray[np.uint32]:
    """As `crc32c_many`, by numpy alone: buffers whose sizes need equally many bits share a matrix, at most half full
    of zeros."""
    found = np.zeros(len(starts), np.uint32)
    bits = np.ceil(np.log2(np.maximum(sizes, 2))).astype(np.int64)
    for power in np.unique(bits).tolist():
        rows = np.flatnonzero(bits == power)
        if 1 << power > PIECE_BYTES:
            view = data.data
            for row in rows.tolist():
                begin = int(starts[row])
                found[row] = extend_numpy(0, view[begin : begin + int(sizes[row])])
            continue
        for some in np.array_split(rows, -(-len(rows) << power >> 21) or 1):
            found[some] = _of_width(data, starts[some], sizes[some], 1 << power)
    return found


def crc32c_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """uint32[n]: CRC-32C of each row of uint8[n, width]; for few bytes a row."""
    width = rows.shape[1]
    found = _fold(_padded(rows)) ^ np.uint32(_shift(_START, width)) ^ np.uint32(_START)
    return found.astype(np.uint32)


def masked(crc: Any) -> Any:
    """As stored in a TFRecord: rotated right by 15 bits, plus a constant; an int or an uint32 array."""
    if isinstance(crc, int):
        return (((crc >> 15) | (crc << 17)) + MASK_DELTA) & 0xFFFFFFFF
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(MASK_DELTA)


def _of_width(data: NDArray[np.uint8], starts: Int64Array, sizes: Int64Array, width: int) -> NDArray[np.uint32]:
    """CRCs of buffers of at most `width` bytes, a power of two."""
    matrix = np.zeros((len(starts), width), np.uint8)
    places = np.arange(width) - (width - sizes)[:, None]
    is_inside = places >= 0
    matrix[is_inside] = data[(starts[:, None] + places)[is_inside]]
    ends = np.array([_shift(_START, size) ^ _START for size in np.unique(sizes).tolist()], np.uint32)
    found: NDArray[np.uint32] = _fold(matrix) ^ ends[np.unique(sizes, return_inverse=True)[1]]
    return found


def _padded(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """uint8[n, power of two], zeros in front."""
    width = max(1 << max(rows.shape[1] - 1, 0).bit_length(), 2)
    if rows.shape[1] == width:
        return np.ascontiguousarray(rows)
    matrix = np.zeros((len(rows), width), np.uint8)
    matrix[:, width - rows.shape[1] :] = rows
    return matrix


def _fold(matrix: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """uint32[n]: CRC without start and end values of each row; the width is a power of two, 2 at least."""
    values: NDArray[np.uint32] = _pairs()[matrix.view("<u2")]
    length = 2
    while values.shape[1] > 1:
        left, right = values[:, 0::2], values[:, 1::2]
        low, high = _shift_tables(length)
        values = low[left & 0xFFFF] ^ high[left >> 16] ^ right
        length *= 2
    return values[:, 0]


@cache
def _bytes_table() -> NDArray[np.uint32]:
    """uint32[256]: the remainder of one byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & 1, np.uint32(POLYNOMIAL), np.uint32(0))
    return table


@cache
def _pairs() -> NDArray[np.uint32]:
    """uint32[65536]: the remainder of two bytes, by their little-endian value."""
    both = np.arange(1 << 16, dtype=np.uint32)
    table = _bytes_table()
    first = table[both & 0xFF]
    pairs: NDArray[np.uint32] = (first >> np.uint32(8)) ^ table[(first ^ (both >> np.uint32(8))) & 0xFF]
    return pairs


@cache
def _shift_tables(length: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """uint32[65536] each: what the low and the high half of a remainder become after `length` zero bytes."""
    columns = [_shift(1 << bit, length) for bit in range(32)]
    return _linear(columns[:16]), _linear(columns[16:])


def _linear(columns: list[int]) -> NDArray[np.uint32]:
    """uint32[65536]: xor of the columns whose bit is set."""
    table = np.zeros(1, np.uint32)
    for column in columns:
        table = np.concatenate([table, table ^ np.uint32(column)])
    return table


def _shift(state: int, length: int) -> int:
    """The remainder `state` after `length` zero bytes."""
    power = 0
    while length >> power:
        if length >> power & 1:
            state = _apply(_zeros(power), state)
        power += 1
    return state


def _apply(columns: tuple[int, ...], state: int) -> int:
    found = 0
    for bit, column in enumerate(columns):
        if state >> bit & 1:
            found ^= column
    return found


@cache
def _zeros(power: int) -> tuple[int, ...]:
    """What each of 32 bits becomes after 2**power zero bytes."""
    if power:
        half = _zeros(power - 1)
        return tuple(_apply(half, column) for column in half)
    table = _bytes_table()
    states = [1 << bit for bit in range(32)]
    return tuple((state >> 8) ^ int(table[state & 0xFF]) for state in states)
