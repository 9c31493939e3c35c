"""Small tools for arrow binary columns: to and from Python bytes, joined, and as canonical bytes for a digest."""

from __future__ import annotations

import binascii
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.heap import give_back

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.model import BinaryArray, Int64Array

MAX_BINARY_BYTES = (1 << 31) - 1  # of a `binary` array, whose offsets are int32
HEX_DIGITS = 32  # of an MD5
PACKED = pa.binary(HEX_DIGITS // 2)
RUN_ROWS = 16  # shorter runs of neighbours are copied byte by byte


def to_list(array: BinaryArray) -> list[Any]:
    """Python bytes (None for null) of a binary array; through numpy, several times faster than `to_pylist`."""
    values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return values


def binary(values: list[bytes] | list[bytes | None]) -> BinaryArray:
    """binary array of Python bytes."""
    return pa.array(values, pa.binary())


def nulls(length: int) -> BinaryArray:
    """binary array of `length` nulls."""
    return pa.nulls(length, pa.binary())


def take(array: BinaryArray, rows: Any) -> BinaryArray:
    """`array[rows]` as binary, nulls kept."""
    return array.take(pa.array(rows)).cast(pa.binary())


def joined(left: BinaryArray, right: BinaryArray, between: bytes) -> BinaryArray:
    """left + between + right, element by element."""
    return pc.binary_join_element_wise(left, right, pa.scalar(between, pa.binary()))


def null_where_equal(array: BinaryArray, other: BinaryArray) -> BinaryArray:
    """`array`, null where it equals `other`; no byte of what equals is kept below a null."""
    is_equal = pc.equal(array, other).to_numpy(zero_copy_only=False)
    return array.take(pa.array(np.arange(len(array)), mask=is_equal))


def where(flags: BinaryArray, value: bytes, other: BinaryArray) -> BinaryArray:
    """`value` where `flags` is not null, else `other`."""
    if flags.null_count == len(flags):
        return other
    return pc.if_else(flags.is_valid(), pa.scalar(value, pa.binary()), other)


def canonical(array: BinaryArray) -> Iterator[bytes | memoryview]:
    """The content of a binary array as bytes that depend on nothing else: lengths (-1 for null) as int64, then data."""
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    lengths = pc.fill_null(pc.binary_length(array), -1).to_numpy(zero_copy_only=False).astype("<i8")
    yield lengths.tobytes()
    if len(array):
        offsets = offsets_of(array)
        data = array.buffers()[2]
        if data is not None:
            yield memoryview(data)[int(offsets[0]) : int(offsets[-1])]


def heads(array: BinaryArray, lengths: Any) -> BinaryArray:
    """binary[n]: the first lengths[i] bytes of each element; lengths are not above those of the elements."""
    offsets, data = buffers_of(array)
    lengths = lengths.astype(np.int64)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    places = np.repeat(offsets[:-1] - (ends - lengths), lengths) + np.arange(total)
    starts = np.zeros(len(lengths) + 1, np.int32)
    starts[1:] = ends
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(np.ascontiguousarray(data[places]))]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def tails(array: BinaryArray, starts: Any) -> BinaryArray:
    """large_binary[n]: each element without its first starts[i] bytes; starts are not above the lengths."""
    offsets, data = buffers_of(array)
    lengths = np.diff(offsets) - starts
    new = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    places = np.repeat(offsets[:-1] + starts - new[:-1], lengths) + np.arange(new[-1])
    buffers = [None, pa.py_buffer(new), pa.py_buffer(np.ascontiguousarray(data[places]))]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)


def buffers_of(array: BinaryArray) -> tuple[Int64Array, NDArray[np.uint8]]:
    """(int64[n + 1] offsets, uint8 data) of a binary array without nulls."""
    data = array.buffers()[2]
    return offsets_of(array), np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)


def from_offsets(offsets: Any, data: Any) -> BinaryArray:
    """binary[n] without nulls from its int32[n + 1] offsets and its bytes, views of them."""
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def copied(array: BinaryArray) -> BinaryArray:
    """The same values as binary in memory of their own; there are no nulls."""
    offsets, data = buffers_of(array)
    first = int(offsets[0])
    return from_offsets((offsets - first).astype(np.int32), data[first : int(offsets[-1])].copy())


def offsets_of(array: BinaryArray) -> Int64Array:
    """int64[n + 1]: offsets into the data buffer."""
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    offsets = array.buffers()[1]
    if offsets is None or not offsets.size:
        return np.zeros(1, np.int64)
    raw = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1]
    return raw.astype(np.int64, copy=False)


def packed(array: BinaryArray) -> BinaryArray:
    """`array` as `PACKED`, half as large, where each value is 32 lower case hexadecimal digits; else itself."""
    offsets, data = buffers_of(array)
    if len(array) == 0 or (np.diff(offsets) != HEX_DIGITS).any():
        return array
    digits = data[int(offsets[0]) : int(offsets[-1])].tobytes()
    try:
        raw = binascii.unhexlify(digits)
    except binascii.Error:
        return array
    if binascii.hexlify(raw) != digits:  # upper case
        return array
    return pa.Array.from_buffers(PACKED, len(array), [None, pa.py_buffer(raw)])


def unpacked(array: BinaryArray) -> BinaryArray:
    """What `packed` was given, as binary, which holds 67 million of them."""
    if array.type != PACKED:
        return array
    width = HEX_DIGITS // 2
    raw = memoryview(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]
    digits = binascii.hexlify(raw)
    return from_offsets(np.arange(0, len(digits) + 1, HEX_DIGITS, dtype=np.int32), digits)


def used_up(chunks: list[BinaryArray]) -> Iterator[BinaryArray]:
    """Each chunk in turn; the list lets go of it, and its memory goes back to the system before the next but one."""
    chunks.reverse()
    while chunks:
        yield chunks.pop()
        give_back()


def gathered(chunks: list[BinaryArray], kind: Any, position: Any = None) -> BinaryArray:
    """One array of all chunks, which are let go one by one: the column is never there twice.

    Args:
        chunks: binary, large_binary or PACKED without nulls; used up.
        kind: the type of the result.
        position: int[n], the place of each row in the result; None where rows stay as they are.

    Raises:
        OverflowError: more bytes than a `binary` array can hold.
    """
    num_rows = sum(map(len, chunks))
    offsets, start = np.zeros(num_rows + 1, np.int64), 0
    for chunk in chunks:
        rows = slice(start, start + len(chunk))
        sizes = HEX_DIGITS if chunk.type == PACKED else np.diff(offsets_of(chunk))
        offsets[1:][rows if position is None else position[rows]] = sizes
        start += len(chunk)
    np.cumsum(offsets, out=offsets)
    if kind == pa.binary():
        if offsets[-1] > MAX_BINARY_BYTES:
            raise OverflowError(f"{offsets[-1]:,} bytes in a column of at most {MAX_BINARY_BYTES:,}")
        offsets = offsets.astype(np.int32)
    data, start = np.empty(int(offsets[-1]), np.uint8), 0
    for chunk in used_up(chunks):
        end = start + len(chunk)
        _place(unpacked(chunk), np.arange(start, end) if position is None else position[start:end], offsets, data)
        start = end
    return pa.Array.from_buffers(kind, num_rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _place(chunk: BinaryArray, places: Any, offsets: Int64Array, data: NDArray[np.uint8]) -> None:
    """Copy the values of a chunk to their places; rows that stay neighbours are copied together."""
    starts, source = buffers_of(chunk)
    cuts = np.flatnonzero(np.diff(places) != 1) + 1
    if len(cuts) * RUN_ROWS > len(chunk):
        shifts = np.repeat(offsets[places].astype(np.int64) - starts[:-1], np.diff(starts))
        data[shifts + np.arange(starts[0], starts[-1])] = source[starts[0] : starts[-1]]
        return
    edges = [0, *cuts.tolist(), len(chunk)]
    for first, end in itertools.pairwise(edges):
        if first < end:
            begin, size = int(offsets[places[first]]), int(starts[end] - starts[first])
            data[begin : begin + size] = source[starts[first] : starts[end]]
