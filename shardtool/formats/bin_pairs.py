"""Is a `.bin/.idx` pair what its readers believe it to be. They check next to nothing: a cut `.bin` opens in silence.

A prefix flows in, findings flow out; memory is a few MiB whatever the size of the pair.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.errors import FormatError, SourceNotFound
from shardtool.formats.bin_index import CODES, DOCUMENT_BYTES, IdxHeader, array_chunks, integer_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.model import Int64Array

_IDS_A_PIECE = 1 << 22


@dataclass(frozen=True)
class PairFault:
    """One thing that is wrong with a pair: a word for programs, a sentence, and the byte where it shows."""

    kind: str
    message: str
    path: str
    offset: int | None = None


@dataclass
class PairReport:
    """What a pair holds, and what is wrong with it."""

    prefix: str
    header: IdxHeader | None = None
    num_tokens: int = 0
    smallest_id: int | None = None  # looked at by a deep check only
    largest_id: int | None = None
    has_modes: bool = False  # a byte a sequence after the documents, of multimodal data
    faults: list[PairFault] = field(default_factory=list)

    def add(self, kind: str, message: str, path: str, offset: int | None = None) -> None:
        """Note a fault."""
        self.faults.append(PairFault(kind, message, path, offset))

    @property
    def kinds(self) -> set[str]:
        """Words of the faults."""
        return {fault.kind for fault in self.faults}


def prefix_of(place: str) -> str:
    """The prefix that `a/b`, `a/b.bin` and `a/b.idx` share."""
    stem, suffix = os.path.splitext(place)
    return stem if suffix in (".bin", ".idx") else place


def is_pair(place: str) -> bool:
    """True where `place` names a `.bin` with its `.idx`."""
    prefix = prefix_of(place)
    return os.path.isfile(f"{prefix}.bin") and os.path.isfile(f"{prefix}.idx")


def check_pair(place: str, *, deep: bool = False, vocab_size: int = 0) -> PairReport:
    """All that can be told of a pair without the manifest that it belongs to.

    Args:
        deep: read every id, too.
        vocab_size: ids from here on are faults; 0 where it is not known.

    Raises:
        SourceNotFound: one of the two files is not there.
    """
    prefix = prefix_of(place)
    bin_path, idx_path = f"{prefix}.bin", f"{prefix}.idx"
    for path in (bin_path, idx_path):
        if not os.path.isfile(path):
            raise SourceNotFound(
                f"{path} does not exist", hint="name the prefix of a pair, without .bin and .idx", where={"path": path}
            )
    report = PairReport(prefix)
    try:
        header = integer_header(idx_path)
    except FormatError as error:
        report.add("header", error.message, idx_path, 0)
        return report
    report.header = header
    size = os.stat(idx_path).st_size
    if size < header.num_bytes:
        report.add("truncated_index", f"expected {header.num_bytes:,} bytes, found {size:,}", idx_path, size)
    elif size == header.num_bytes + header.num_sequences > header.num_bytes:
        report.has_modes = True
    elif size != header.num_bytes:
        text = f"{size - header.num_bytes:,} bytes after the last array; readers do not notice"
        report.add("trailing_bytes", text, idx_path, header.num_bytes)
    if size >= header.pointers_at:
        _check_lengths(report, header, idx_path)
    if size >= header.num_bytes:
        _check_documents(report, header, idx_path)
    _check_size(report, header, bin_path)
    if deep:
        _check_ids(report, header, bin_path, vocab_size)
    return report


def _check_lengths(report: PairReport, header: IdxHeader, path: str) -> None:
    """Lengths are lengths, and pointers their running sum."""
    count, total = header.num_sequences, 0
    has_pointers = os.stat(path).st_size >= header.documents_at
    pointers = array_chunks(path, header.pointers_at, count if has_pointers else 0, "<i8")
    for number, lengths in enumerate(array_chunks(path, header.lengths_at, count, "<i4")):
        if len(lengths) and lengths.min() < 0:
            at = header.lengths_at + 4 * ((number << 20) + int(lengths.argmin()))
            report.add("negative_length", f"a sequence of {int(lengths.min()):,} tokens", path, at)
            return
        ends = np.cumsum(lengths, dtype=np.int64)
        if has_pointers and report.kinds.isdisjoint({"pointer_overflow", "pointers"}):
            wanted = np.concatenate([[0], ends[:-1]]) + total
            _compare_pointers(report, next(pointers), wanted * header.itemsize, path, header, number << 20)
        total += int(ends[-1]) if len(ends) else 0
    report.num_tokens = total


def _compare_pointers(
    report: PairReport, found: Int64Array, wanted: Int64Array, path: str, header: IdxHeader, first: int
) -> None:
    wrong = np.flatnonzero(found != wanted)
    if len(wrong) == 0:
        return
    place = int(wrong[0])
    at = header.pointers_at + 8 * (first + place)
    text = f"sequence {first + place:,} is at byte {int(wanted[place]):,}, its pointer says {int(found[place]):,}"
    if (found == wanted.astype(np.int32)).all():
        report.add("pointer_overflow", f"{text}: the sum wrapped at 32 bits", path, at)
    else:
        report.add("pointers", text, path, at)


def _check_documents(report: PairReport, header: IdxHeader, path: str) -> None:
    last = 0
    for number, entries in enumerate(array_chunks(path, header.documents_at, header.num_entries, "<i8")):
        at = header.documents_at + DOCUMENT_BYTES * (number << 20)
        if number == 0 and entries[0] != 0:
            report.add("documents", f"the first document begins at sequence {int(entries[0]):,}, expected 0", path, at)
            return
        steps = np.diff(entries, prepend=last)
        if (steps < 0).any():
            place = int(np.flatnonzero(steps < 0)[0])
            report.add("documents", "document entries go backwards", path, at + DOCUMENT_BYTES * place)
            return
        last = int(entries[-1])
    if header.num_entries == 0 or last != header.num_sequences:
        text = (
            f"documents end at sequence {last:,}, the index has {header.num_sequences:,}: "
            "merged by a tool that leaves the document index behind?"
        )
        report.add("documents", text, path, header.documents_at)


def _check_size(report: PairReport, header: IdxHeader, path: str) -> None:
    if not report.kinds.isdisjoint({"negative_length"}):
        return
    size, wanted = os.stat(path).st_size, report.num_tokens * header.itemsize
    if size == wanted:
        return
    tokens = report.num_tokens
    fitting = [np.dtype(CODES[code]) for code in (1, 4, 5, 8) if np.dtype(CODES[code]).itemsize * tokens == size]
    if fitting and tokens:
        text = f"{tokens:,} tokens of {header.dtype.name} take {wanted:,} bytes, it has {size:,}: as {fitting[0].name}"
        report.add("dtype", text, path)
    elif size < wanted:
        report.add("truncated", f"expected {wanted:,} bytes, found {size:,}", path, size)
    else:
        report.add("oversized", f"{size - wanted:,} bytes after the last token", path, wanted)


def _check_ids(report: PairReport, header: IdxHeader, path: str, vocab_size: int) -> None:
    position = 0
    for ids in id_pieces(path, header.dtype):
        low, high = int(ids.min()), int(ids.max())
        report.smallest_id = low if report.smallest_id is None else min(report.smallest_id, low)
        report.largest_id = high if report.largest_id is None else max(report.largest_id, high)
        if (low < 0 or (vocab_size and high >= vocab_size)) and "ids" not in report.kinds:
            place = int(np.flatnonzero((ids < 0) | (ids >= (vocab_size or np.iinfo(ids.dtype).max)))[0])
            limit = f"0 to {vocab_size - 1:,}" if vocab_size else "0 and above"
            text = f"token {position + place:,} has id {int(ids[place]):,}, expected {limit}"
            report.add("ids", text, path, (position + place) * header.itemsize)
        position += len(ids)


def id_pieces(path: str, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    """The ids of a `.bin`, 2^22 at a time; bytes beyond the last whole id are left out."""
    with open(path, "rb") as file:
        while len(ids := np.fromfile(file, dtype, _IDS_A_PIECE)):
            yield ids
