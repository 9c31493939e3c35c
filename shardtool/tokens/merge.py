"""`.bin/.idx` pairs -> one pair, or several of a wanted size, in memory that does not grow with them.

Header counts come before the arrays, so everything is known from the headers: array regions are streamed with a
constant added, payload is copied by the kernel. The document index is merged, too, and pointers are summed in 64 bits.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from shardtool.errors import CorruptShard, DestinationExists, PlanError, UsageProblem
from shardtool.formats.bin_index import (
    CODE_OF,
    DOCUMENT_BYTES,
    MAX_SEQUENCES,
    SEQUENCE_BYTES,
    IdxHeader,
    array_chunks,
    encode_header,
    idx_bytes,
    pointers_of,
    read_idx,
)
from shardtool.formats.bin_pairs import check_pair, prefix_of
from shardtool.planning import cuts
from shardtool.storage import is_remote
from shardtool.storage.local import new_file, sync_folder
from shardtool.tokens.repair import repaired

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.formats.bin_pairs import PairReport
    from shardtool.model import Int64Array

_COPY_BYTES = 64 << 20


@dataclass(frozen=True)
class Pair:
    """A pair that is sound, or was mended."""

    prefix: str
    header: IdxHeader
    num_tokens: int
    mended: tuple[str, ...] = ()
    arrays: tuple[Any, Any] | None = None  # lengths and document entries, where the .idx on disk is not to be used
    has_modes: bool = False  # a byte a sequence after the documents, of multimodal data

    def lengths(self, low: int, high: int) -> Iterator[Any]:
        """int32 pieces: tokens of the sequences [low, high)."""
        if self.arrays:
            yield self.arrays[0][low:high]
        else:
            yield from array_chunks(f"{self.prefix}.idx", self.header.lengths_at + 4 * low, high - low, "<i4")

    def entries(self, low: int, high: int) -> Iterator[Any]:
        """int64 pieces: document entries [low, high)."""
        if self.arrays:
            yield self.arrays[1][low:high]
        else:
            yield from array_chunks(f"{self.prefix}.idx", self.header.documents_at + 8 * low, high - low, "<i8")

    def modes(self, low: int, high: int) -> Iterator[Any]:
        """uint8 pieces: modes of the sequences [low, high)."""
        if self.has_modes:
            yield from array_chunks(f"{self.prefix}.idx", self.header.num_bytes + low, high - low, "u1")

    @property
    def num_documents(self) -> int:
        """Documents of the pair."""
        return (len(self.arrays[1]) if self.arrays else self.header.num_entries) - 1


@dataclass(frozen=True)
class Run:
    """Documents [first, last) of a pair, with the sequences and tokens that are theirs."""

    pair: Pair
    documents: tuple[int, int]
    sequences: tuple[int, int]
    tokens: tuple[int, int]


@dataclass(frozen=True)
class Merged:
    """A pair that was written."""

    prefix: str
    num_sequences: int
    num_documents: int
    num_tokens: int
    num_bytes: int  # of both files


def open_pairs(places: Sequence[str], *, repair: bool = False) -> list[Pair]:
    """The pairs at `places`, looked through.

    Raises:
        SourceNotFound, CorruptShard: a file is gone or damaged; with `repair`, one whose information is lost.
        UsageProblem: they lie in a bucket, hold different types of ids, or modes of sequences in some of them only.
    """
    pairs = [_open_pair(place, repair=repair) for place in places]
    kinds = {pair.header.dtype.name: pair.prefix for pair in pairs}
    if len(kinds) > 1:
        raise UsageProblem(
            "pairs of different types cannot be merged: " + ", ".join(f"{path} is {k}" for k, path in kinds.items()),
            hint="pack one of them again with --dtype",
        )
    if len({pair.has_modes for pair in pairs}) > 1:
        plain = next(pair.prefix for pair in pairs if not pair.has_modes)
        raise UsageProblem(
            f"{plain} has no modes of its sequences, and other pairs have: they are multimodal",
            hint="merge multimodal pairs with their like",
        )
    return pairs


def _open_pair(place: str, *, repair: bool) -> Pair:
    if is_remote(place):
        raise UsageProblem(f"{place}: pairs are merged on a disk", hint="copy the pairs here first")
    report = check_pair(place)
    if not report.faults and report.header is not None:
        _check_code(report.header, report.prefix)
        return Pair(report.prefix, report.header, report.num_tokens, has_modes=report.has_modes)
    if not repair:
        faults = "\n".join(f"  {fault.kind}: {fault.message}" for fault in report.faults)
        raise CorruptShard(
            f"{report.prefix} is damaged\n{faults}",
            hint=f"where the information is still there: shardtool index --repair {report.prefix} mends it, "
            f"shardtool merge --repair {report.prefix} -o MENDED writes a sound copy",
            where={"path": report.prefix},
        )
    pair = mended_pair(report)
    _check_code(pair.header, report.prefix)
    return pair


def mended_pair(report: PairReport) -> Pair:
    """The pair that has these faults, with arrays that are sound.

    Raises:
        CorruptShard: what is missing cannot be told from what is there.
    """
    lengths, documents, header = repaired(report)
    kinds = tuple(dict.fromkeys(fault.kind for fault in report.faults))
    num_tokens = int(lengths.sum(dtype=np.int64))
    return Pair(report.prefix, header, num_tokens, kinds, (lengths, documents), report.has_modes)


def _check_code(header: IdxHeader, prefix: str) -> None:
    if header.dtype.name not in CODE_OF:
        raise UsageProblem(
            f"{prefix} holds {header.dtype.name}, which only some readers take",
            hint=f"shardtool writes {', '.join(CODE_OF)}",
        )


def merge_pairs(pairs: Sequence[Pair], out: str, *, durable: bool = True) -> Merged:
    """One pair `out.bin`, `out.idx` with all documents of `pairs`, in their order.

    Raises:
        DestinationExists: there is such a file already.
        PlanError: more sequences than readers can number.
    """
    return _write(prefix_of(out), [whole(pair) for pair in pairs], durable=durable)


def cut_pairs(
    pairs: Sequence[Pair], out: str, *, shard_bytes: int = 0, shard_tokens: int = 0, durable: bool = True
) -> list[Merged]:
    """Pairs `out-00000-of-00003` … of at most so many bytes (both files) or tokens; documents stay whole.

    Memory: 24 bytes a document.
    """
    prefix = prefix_of(out)
    tables = [_documents(pair) for pair in pairs]
    tokens = np.concatenate([np.diff(table[1]) for table in tables])
    itemsize = pairs[0].header.itemsize
    if shard_tokens:
        sizes, capacity = tokens, shard_tokens
    else:
        sequences = np.concatenate([np.diff(table[0]) for table in tables])
        each = SEQUENCE_BYTES + pairs[0].has_modes
        sizes, capacity = tokens * itemsize + each * sequences + DOCUMENT_BYTES, shard_bytes - idx_bytes(0, 0)
    if capacity <= 0 or len(sizes) == 0:
        raise PlanError("no document fits such a pair", hint="--shard-size 10GB is what Megatron's authors advise")
    bounds = cuts.cut_by_bytes(sizes, capacity).tolist()
    count = len(bounds) - 1
    return [
        _write(
            f"{prefix}-{number:05d}-of-{count:05d}",
            _runs(pairs, tables, bounds[number], bounds[number + 1]),
            durable=durable,
        )
        for number in range(count)
    ]


def whole(pair: Pair) -> Run:
    """All documents of a pair."""
    return Run(pair, (0, pair.num_documents), (0, pair.header.num_sequences), (0, pair.num_tokens))


def _documents(pair: Pair) -> tuple[Int64Array, Int64Array]:
    """(sequences, tokens) before each document, int64[num_documents + 1] each."""
    lengths = np.concatenate([np.zeros(0, np.int32), *pair.lengths(0, pair.header.num_sequences)])
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    entries = np.concatenate(list(pair.entries(0, pair.num_documents + 1)))
    return entries, ends[entries]


def _runs(pairs: Sequence[Pair], tables: list[Any], low: int, high: int) -> list[Run]:
    """The runs that make up documents [low, high) of all pairs together."""
    runs, base = [], 0
    for pair, (entries, ends) in zip(pairs, tables, strict=True):
        first, last = max(low - base, 0), min(high - base, pair.num_documents)
        if first < last:
            spans = [(int(table[first]), int(table[last])) for table in (entries, ends)]
            runs.append(Run(pair, (first, last), spans[0], spans[1]))
        base += pair.num_documents
    return runs


def _write(prefix: str, runs: list[Run], *, durable: bool) -> Merged:
    _check_new(prefix)
    sequences = sum(run.sequences[1] - run.sequences[0] for run in runs)
    documents = sum(run.documents[1] - run.documents[0] for run in runs)
    tokens = sum(run.tokens[1] - run.tokens[0] for run in runs)
    if sequences > MAX_SEQUENCES:
        raise PlanError(
            f"{sequences:,} sequences are more than readers can number (2^31 - 1)", hint="--shard-size 10GB"
        )
    if tokens == 0:
        raise PlanError(f"{prefix} would hold no token, and readers cannot open an empty .bin", hint="merge others")
    header = runs[0].pair.header
    with new_file(f"{prefix}.bin", "merge", durable=durable) as file:
        for run in runs:
            _copy_payload(run, file)
    with new_file(f"{prefix}.idx", "merge", durable=durable) as file:
        write_idx(file, runs, CODE_OF[header.dtype.name])
    if durable:
        sync_folder(os.path.dirname(os.path.abspath(prefix)))
    size = tokens * header.itemsize + idx_bytes(sequences, documents) + sequences * runs[0].pair.has_modes
    return Merged(prefix, sequences, documents, tokens, size)


def write_idx(file: IO[bytes], runs: Sequence[Run], code: int) -> None:
    """The `.idx` of some runs, one after the other; `code` is that of the type of their ids."""
    sequences = sum(run.sequences[1] - run.sequences[0] for run in runs)
    documents = sum(run.documents[1] - run.documents[0] for run in runs)
    file.write(encode_header(code, sequences, documents))
    itemsize = runs[0].pair.header.itemsize
    for run in runs:
        for lengths in run.pair.lengths(*run.sequences):
            file.write(np.ascontiguousarray(lengths, "<i4").data)
    position = 0
    for run in runs:
        for lengths in run.pair.lengths(*run.sequences):
            file.write(pointers_of(lengths, itemsize, position).astype("<i8", copy=False).data)
            position += int(lengths.sum(dtype=np.int64)) * itemsize
    base = 0
    file.write(bytes(8))
    for run in runs:
        first, last = run.documents
        for entries in run.pair.entries(first + 1, last + 1):
            file.write((entries + (base - run.sequences[0])).astype("<i8", copy=False).data)
        base += run.sequences[1] - run.sequences[0]
    for run in runs:
        for modes in run.pair.modes(*run.sequences):
            file.write(modes.data)


def _copy_payload(run: Run, file: IO[bytes]) -> None:
    """Bytes of the tokens of a run; by the kernel, on some file systems without moving a byte."""
    itemsize = run.pair.header.itemsize
    offset, stop = run.tokens[0] * itemsize, run.tokens[1] * itemsize
    with open(f"{run.pair.prefix}.bin", "rb", buffering=0) as source:
        while offset < stop:
            got = _copy_some(source.fileno(), file.fileno(), min(_COPY_BYTES, stop - offset), offset)
            if not got:
                raise CorruptShard(
                    f"{run.pair.prefix}.bin ended at byte {offset:,} while it was copied",
                    hint="is another program writing to it?",
                    where={"path": f"{run.pair.prefix}.bin", "offset": offset},
                )
            offset += got


def _copy_some(source: int, target: int, count: int, offset: int) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source, target, count, offset)
        except OSError:
            pass  # across file systems, or a kernel that cannot
    data = os.pread(source, min(count, 1 << 20), offset)
    view = memoryview(data)
    while len(view):
        view = view[os.write(target, view) :]
    return len(data)


def _check_new(prefix: str) -> None:
    if "." in os.path.basename(prefix):
        raise UsageProblem(
            f"the prefix {prefix!r} has a dot in its name, which some readers cut off", hint="rename it, without a dot"
        )
    for path in (f"{prefix}.bin", f"{prefix}.idx"):
        if os.path.lexists(path):
            raise DestinationExists(f"{path} exists", hint="choose another name with -o", where={"path": path})


def read_sequence(prefix: str, sequence: int) -> Any:
    """Ids of one sequence of a pair, by its `.idx`."""
    index = read_idx(f"{prefix}.idx")
    dtype = index.header.dtype
    start = int(index.pointers[sequence])
    return np.fromfile(f"{prefix}.bin", dtype, int(index.lengths[sequence]), offset=start)
