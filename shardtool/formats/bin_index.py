"""The `.idx` beside a `.bin`: where each sequence of token ids lies, as Megatron and its relatives read it.

Layout (NVIDIA/Megatron-LM:megatron/core/datasets/indexed_dataset.py), every number little-endian:

    0   9   b"MMIDIDX\\0\\0"          26  8        u64: document entries, documents + 1
    9   8   u64: version, 1          34  4 * S    i32: tokens of each sequence
    17  1   u8: dtype code           +   8 * S    i64: byte offset of each sequence in the .bin
    18  8   u64: sequences, S        +   8 * (D+1) i64: sequences before each document; first 0, last S

Arrays begin at offset 34, unaligned. Byte layout in words: docs/formats/bin.md.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.errors import CorruptShard, SampleTooLarge, UnknownFormat, UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.model import Int32Array, Int64Array

MAGIC = b"MMIDIDX\x00\x00"
OLD_MAGIC = b"TNTIDX\x00\x00"  # fairseq's format before memory maps
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
HEADER_BYTES = HEADER.size
SEQUENCE_BYTES = 12  # length and pointer
DOCUMENT_BYTES = 8
MAX_SEQUENCE_TOKENS = (1 << 31) - 1
MAX_SEQUENCES = (1 << 31) - 1  # readers number documents with int32
CODES: dict[int, str] = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
CODE_OF = {"uint8": 1, "uint16": 8, "int32": 4}  # what is written; there is no code for uint32
DTYPES = {"uint8": "<u1", "uint16": "<u2", "int32": "<i4"}
MEGATRON_SMALL_VOCAB = 65_500  # below it Megatron's own tools write uint16
_CHUNK = 1 << 17  # array elements read at a time: with what is computed from them, a few MiB
_FLAG_BYTES = {2: 1, 3: 2}  # Fast-LLM: flags of loss masks, and of preferences, before the dtype code


@dataclass(frozen=True)
class IdxHeader:
    """What the first bytes of an `.idx` say."""

    version: int
    code: int
    num_sequences: int
    num_entries: int  # document entries: documents + 1
    start: int = HEADER_BYTES  # byte where the arrays begin

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the ids in the `.bin`."""
        return np.dtype(CODES[self.code])

    @property
    def itemsize(self) -> int:
        """Bytes of one id."""
        return self.dtype.itemsize

    @property
    def lengths_at(self) -> int:
        """Byte offset of the sequence lengths."""
        return self.start

    @property
    def pointers_at(self) -> int:
        """Byte offset of the sequence pointers."""
        return self.start + 4 * self.num_sequences

    @property
    def documents_at(self) -> int:
        """Byte offset of the document entries."""
        return self.start + SEQUENCE_BYTES * self.num_sequences

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole file; a multimodal one has a byte a sequence more."""
        return self.documents_at + DOCUMENT_BYTES * self.num_entries


@dataclass(frozen=True)
class BinIndex:
    """An `.idx` in memory."""

    header: IdxHeader
    lengths: Int32Array  # tokens, int32[num_sequences]
    pointers: Int64Array  # bytes, int64[num_sequences]
    documents: Int64Array  # sequences before each document, int64[num_documents + 1]


def idx_bytes(num_sequences: int, num_documents: int) -> int:
    """Bytes of an `.idx`; `42 + 20 * n` with one sequence a document."""
    return HEADER_BYTES + SEQUENCE_BYTES * num_sequences + DOCUMENT_BYTES * (num_documents + 1)


def dtype_for(max_id: int, rule: str = "auto", *, vocab_size: int = 0) -> str:
    """`uint8`, `uint16` or `int32`: what ids up to `max_id` are stored as.

    Args:
        rule: `auto` is uint16 iff the largest id fits; `megatron` is uint16 iff the vocabulary is below 65,500;
            a name is itself.
        vocab_size: ids that the tokenizer can give, where it is known; else max_id + 1.

    Raises:
        UsageProblem: ids do not fit what was asked for.
    """
    vocab_size = vocab_size or max_id + 1
    largest = max(max_id, vocab_size - 1)
    if rule == "auto":
        chosen = "uint16" if largest <= 0xFFFF else "int32"
    elif rule == "megatron":
        chosen = "uint16" if vocab_size < MEGATRON_SMALL_VOCAB else "int32"
    else:
        chosen = rule
    check_ids(0, largest if chosen == "int32" else max_id, chosen)
    return chosen


def check_ids(smallest: int, largest: int, dtype: str) -> None:
    """Refuse ids that `dtype` would wrap.

    Raises:
        UsageProblem: naming the id.
    """
    limit = int(np.iinfo(DTYPES[dtype]).max)
    if smallest < 0 or largest > limit:
        wrong = smallest if smallest < 0 else largest
        raise UsageProblem(
            f"token id {wrong:,} does not fit {dtype}: ids from 0 to {limit:,} do",
            hint="--dtype auto picks the type by the largest id; a negative id is no token",
        )


def encode_header(code: int, num_sequences: int, num_documents: int) -> bytes:
    """The 34 bytes before the arrays."""
    return HEADER.pack(MAGIC, VERSION, code, num_sequences, num_documents + 1)


def pointers_of(lengths: NDArray[Any], itemsize: int, first: int = 0) -> Int64Array:
    """int64[n]: byte offset of each sequence, the first at `first`. In 64 bits: a sum of int32 wraps at 2 GiB."""
    pointers = np.empty(len(lengths), np.int64)
    if len(lengths):
        pointers[0] = first
        np.cumsum(lengths[:-1], dtype=np.int64, out=pointers[1:])
        pointers[1:] *= itemsize
        pointers[1:] += first
    return pointers


def encode_idx(lengths: NDArray[Any], dtype: str, documents: NDArray[Any] | None = None) -> Iterator[bytes]:
    """An `.idx` in pieces of at most 2^17 sequences: header, lengths, pointers, documents.

    Args:
        lengths: tokens of each sequence.
        documents: sequences before each document, int64[num_documents + 1]; None where each document is one sequence.

    Raises:
        SampleTooLarge: more sequences, or a longer one, than readers can number.
    """
    count = len(lengths)
    if count > MAX_SEQUENCES:
        raise _too_large(f"{count:,} sequences")
    yield encode_header(CODE_OF[dtype], count, count if documents is None else len(documents) - 1)
    for piece in _pieces(lengths):
        if (longest := int(piece.max())) > MAX_SEQUENCE_TOKENS:
            raise _too_large(f"a sequence of {longest:,} tokens")
        yield piece.astype("<i4").tobytes()
    position, itemsize = 0, np.dtype(DTYPES[dtype]).itemsize
    for piece in _pieces(lengths):
        yield pointers_of(piece, itemsize, position).astype("<i8", copy=False).tobytes()
        position += int(piece.sum(dtype=np.int64)) * itemsize
    if documents is None:
        for first in range(0, count + 1, _CHUNK):
            yield np.arange(first, min(first + _CHUNK, count + 1)).astype("<i8", copy=False).tobytes()
    else:
        for piece in _pieces(documents):
            yield piece.astype("<i8").tobytes()


def _pieces(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for first in range(0, len(values), _CHUNK):
        yield values[first : first + _CHUNK]


def _too_large(what: str) -> SampleTooLarge:
    return SampleTooLarge(f"{what} is more than an .idx can hold (2^31 - 1)", hint="--max-doc-tokens, or more shards")


def read_header(path: str) -> IdxHeader:
    """The header of the `.idx` at `path`; its arrays are not touched.

    Raises:
        CorruptShard: cut short, or a dtype code that nobody writes.
        UnknownFormat: no `.idx`, or a kind that is recognised and not read here.
    """
    with open(path, "rb") as file:
        return decode_header(file.read(HEADER_BYTES + 2), path)


def decode_header(data: bytes, path: str) -> IdxHeader:
    """The header in the first 36 bytes of an `.idx`; `path` is for messages."""
    where = {"path": path}
    if data.startswith(OLD_MAGIC):
        raise UnknownFormat(
            f"{path} is of the format before memory maps (TNTIDX), which no current trainer reads",
            hint="write it anew from the text: shardtool pack SRC OUT --format bin",
            where=where,
        )
    if not data.startswith(MAGIC):
        if MAGIC.startswith(data[: len(MAGIC)]):
            raise CorruptShard(f"{path} is cut short: {len(data)} bytes", hint="copy it again", where=where)
        raise UnknownFormat(f"{path} is no .idx: it begins with {data[:9]!r}", hint=f"expected {MAGIC!r}", where=where)
    version = int.from_bytes(data[9:17], "little")
    if version not in (VERSION, *_FLAG_BYTES):
        raise UnknownFormat(f"{path} has version {version}, expected 1", hint="is it an .idx at all?", where=where)
    flags = _FLAG_BYTES.get(version, 0)
    if any(data[17 : 17 + flags]):
        raise UnknownFormat(
            f"{path} is a Fast-LLM index of version {version} with loss masks or preferences",
            hint="shardtool reads the plain kind (version 1, or 2 and 3 without them)",
            where=where,
        )
    rest = data[17 + flags : HEADER_BYTES + flags]
    if len(rest) < 17:
        raise CorruptShard(f"{path} is cut short in its header: {len(data)} bytes", hint="copy it again", where=where)
    code, sequences, entries = struct.unpack("<BQQ", rest)
    if code not in CODES:
        raise CorruptShard(f"{path} has dtype code {code}, expected 1 to 8", hint="copy it again", where=where)
    return IdxHeader(version, code, sequences, entries, HEADER_BYTES + flags)


def integer_header(path: str) -> IdxHeader:
    """The header, where it is of token ids.

    Raises:
        UnknownFormat: floats; codes 6 and 7 even mean different ones to different tools.
    """
    header = read_header(path)
    if header.dtype.kind == "f":
        raise UnknownFormat(
            f"{path} holds floats (dtype code {header.code}), not token ids",
            hint="codes 6 and 7 are float64 and float32 to Megatron, the other way round to gpt-neox and Fast-LLM",
            where={"path": path},
        )
    return header


def read_idx(path: str) -> BinIndex:
    """The `.idx` at `path`, whole: 20 bytes a sequence.

    Raises:
        CorruptShard: cut short.
        UnknownFormat: see `read_header`.
    """
    header = read_header(path)
    with open(path, "rb") as file:
        check_room(header, os.fstat(file.fileno()).st_size, path)
        file.seek(header.start)
        lengths = np.fromfile(file, "<i4", header.num_sequences)
        pointers = np.fromfile(file, "<i8", header.num_sequences)
        documents = np.fromfile(file, "<i8", header.num_entries)
    return BinIndex(header, lengths, pointers, documents)


def check_room(header: IdxHeader, size: int, path: str) -> None:
    """Refuse an `.idx` whose arrays would go beyond its end, before memory is taken for them."""
    if header.num_bytes > size:
        raise CorruptShard(
            f"{path} is cut short: {header.num_sequences:,} sequences and {header.num_entries:,} document entries take "
            f"{header.num_bytes:,} bytes, it has {size:,}",
            hint=f"copy it again, or: shardtool index --repair {os.path.splitext(path)[0]}",
            where={"path": path},
        )


def array_chunks(path: str, offset: int, count: int, dtype: str) -> Iterator[NDArray[Any]]:
    """An array of a file, 2^17 elements at a time."""
    with open(path, "rb") as file:
        file.seek(offset)
        for first in range(0, count, _CHUNK):
            yield np.fromfile(file, dtype, min(_CHUNK, count - first))
