"""A damaged `.idx` -> its arrays, as far as the rest of the pair still tells them. The files are never touched.

Lengths are believed where they add up to the `.bin`; pointers are then their running sum. Where lengths are gone, sound
pointers give them. The document index is believed where it is whole; else each sequence is a document.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.errors import CorruptShard
from shardtool.formats.bin_index import CODES, MAX_SEQUENCE_TOKENS, IdxHeader

if TYPE_CHECKING:
    from shardtool.formats.bin_pairs import PairReport
    from shardtool.model import Int64Array

_LOST = {"header", "dtype"}


def repaired(report: PairReport) -> tuple[Any, Int64Array, IdxHeader]:
    """(lengths int32[n], document entries int64[d + 1], header) of a pair with faults.

    Raises:
        CorruptShard: what is missing cannot be told from what is there.
    """
    header = report.header
    if header is None:
        raise _is_lost(report, "its header cannot be read")
    size = os.stat(f"{report.prefix}.bin").st_size
    header = _fitting_type(report, header, size)
    lengths = _lengths(report, header, size)
    if lengths is None:
        raise _is_lost(report, "neither lengths nor pointers agree with the size of the .bin")
    documents = _documents(report, header)
    return lengths, documents, header


def _fitting_type(report: PairReport, header: IdxHeader, size: int) -> IdxHeader:
    """The header with the type whose size fits the `.bin`, where it is the type that is wrong."""
    if "dtype" not in report.kinds:
        return header
    for code in (8, 4, 1):
        if np.dtype(CODES[code]).itemsize * report.num_tokens == size:
            return replace(header, code=code)
    raise _is_lost(report, "no type of ids fits the size of the .bin")


def _lengths(report: PairReport, header: IdxHeader, size: int) -> Any:
    found = _array(report, header.lengths_at, header.num_sequences, "<i4")
    if found is not None and (found >= 0).all() and _fits(found, header, size, report):
        return found
    pointers = _array(report, header.pointers_at, header.num_sequences, "<i8")
    if pointers is None or len(pointers) == 0 or pointers[0] != 0:
        return None
    steps = np.diff(np.append(pointers, size))
    if (steps < 0).any() or (steps % header.itemsize).any() or steps.max() // header.itemsize > MAX_SEQUENCE_TOKENS:
        return None
    return (steps // header.itemsize).astype(np.int32)


def _fits(lengths: Any, header: IdxHeader, size: int, report: PairReport) -> bool:
    """The lengths add up to the `.bin`; bytes after its last token are left out of what is written."""
    wanted = int(lengths.sum(dtype=np.int64)) * header.itemsize
    return wanted == size or (wanted < size and "oversized" in report.kinds and "pointers" not in report.kinds)


def _documents(report: PairReport, header: IdxHeader) -> Int64Array:
    found = _array(report, header.documents_at, header.num_entries, "<i8")
    if found is not None and "documents" not in report.kinds:
        return np.asarray(found, np.int64)
    return np.arange(header.num_sequences + 1)


def _array(report: PairReport, offset: int, count: int, dtype: str) -> Any:
    """An array of the `.idx`; None where the file ends before it does."""
    path = f"{report.prefix}.idx"
    if os.stat(path).st_size < offset + count * np.dtype(dtype).itemsize:
        return None
    return np.fromfile(path, dtype, count, offset=offset)


def _is_lost(report: PairReport, why: str) -> CorruptShard:
    faults = "\n".join(f"  {fault.kind}: {fault.message}" for fault in report.faults)
    return CorruptShard(
        f"{report.prefix} cannot be mended: {why}\n{faults}",
        hint="bytes that are gone come back from a copy, or from packing the text again",
        where={"path": report.prefix},
    )
