"""`.bin/.idx` pairs for tests: written a number at a time, and read back by struct alone."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

CODES = {"<u1": 1, "<u2": 8, "<i4": 4}


def write_pair(prefix: Path, docs: Sequence[Sequence[int]], dtype: str = "<u2") -> Path:
    """A pair with one sequence a document; gives `prefix`."""
    ids = [np.array(doc, dtype) for doc in docs]
    prefix.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{prefix}.bin").write_bytes(b"".join(doc.tobytes() for doc in ids))
    itemsize = np.dtype(dtype).itemsize
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, CODES[dtype], len(docs), len(docs) + 1)
    lengths = b"".join(struct.pack("<i", len(doc)) for doc in docs)
    pointers = b"".join(struct.pack("<q", itemsize * sum(map(len, docs[:n]))) for n in range(len(docs)))
    documents = b"".join(struct.pack("<q", n) for n in range(len(docs) + 1))
    Path(f"{prefix}.idx").write_bytes(head + lengths + pointers + documents)
    return prefix


def read_pair(prefix: Path) -> list[list[int]]:
    """Documents of a pair with one sequence a document, by pointer and length."""
    data = Path(f"{prefix}.idx").read_bytes()
    _, _, code, count, entries = struct.unpack_from("<9sQBQQ", data)
    dtype = {code: dtype for dtype, code in CODES.items()}[code]
    lengths = struct.unpack_from(f"<{count}i", data, 34)
    pointers = struct.unpack_from(f"<{count}q", data, 34 + 4 * count)
    documents = struct.unpack_from(f"<{entries}q", data, 34 + 12 * count)
    assert documents == tuple(range(count + 1))
    payload = Path(f"{prefix}.bin").read_bytes()
    itemsize = np.dtype(dtype).itemsize
    assert len(payload) == itemsize * sum(lengths)
    pairs = zip(pointers, lengths, strict=True)
    return [np.frombuffer(payload, dtype, length, pointer).tolist() for pointer, length in pairs]
