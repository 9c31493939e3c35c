"""The same token ids as other trainers want them: small files beside a payload, and headers before one.

| layout | payload | side files | read by |
|---|---|---|---|
| ds | `X.ds`, `<u2` or `<u4`, no header | `X.ds.index`, `X.ds.metadata` | datatrove, nanotron |
| olmo | `X.npy`, the same bytes and no npy header | `X.csv.gz` | OLMo-core, dolma |
| nanogpt | `train.bin`, `val.bin`, `<u2`, no header | | nanoGPT |
| llmc | 1,024 bytes of header, then `<u2` | | llm.c, modded-nanogpt |
| npy | npy header of version 1, then `<u2` | | build-nanogpt |

Pure functions from lengths and counts to bytes.
"""

from __future__ import annotations

import gzip
import io
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.errors import FormatError, UsageProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

LLMC_MAGIC, LLMC_VERSION = 20240520, 1  # karpathy/llm.c:llmc/dataloader.h
LLMC_HEADER_BYTES = 1024
LLMC_MAX_TOKENS = 1_073_741_311  # its loader keeps byte offsets in an int
_PREFIXES = "kMGTPE"


def ds_index(lengths: NDArray[Any]) -> bytes:
    """`.ds.index`: end of each document in tokens, `<u8[num_documents]` (huggingface/datatrove:tokenizer.py)."""
    return np.cumsum(lengths, dtype=np.int64).astype("<u8").tobytes()


def ds_metadata(tokenizer: str, itemsize: int, num_tokens: int) -> bytes:
    """`.ds.metadata`: tokenizer and bytes a token, tokens, tokens for people; no newline at the end.

    Raises:
        UsageProblem: the name has the separator in it.
    """
    if "|" in tokenizer or "\n" in tokenizer:
        raise UsageProblem(
            f"tokenizer name {tokenizer!r} has a | in it, which splits its readers' line", hint="rename it"
        )
    return f"{tokenizer}|{itemsize}\n{num_tokens}\n{metric(num_tokens)}".encode()


def metric(count: int) -> str:
    """`4.64 kT`: three figures with an SI prefix, as `humanize.metric(count, unit="T")` says it."""
    exponent = len(str(count)) - 1
    step = exponent // 3
    digits = 2 - exponent % 3
    prefix = _PREFIXES[step - 1] if step else ""
    return f"{count / 1000**step:.{digits}f} {prefix}T"


def olmo_csv(lengths: NDArray[Any], ids: Sequence[str], sources: Sequence[str], places: Sequence[int]) -> bytes:
    """`.csv.gz`: start, end, id, source, place (from 1) of each document, in tokens (allenai/dolma:tokenizer).

    The same bytes on every machine: gzip carries no time and no name.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    rows = zip((ends - lengths).tolist(), ends.tolist(), ids, sources, places, strict=True)
    text = "".join(f"{start},{end},{_cell(name)},{_cell(src)},{at}\r\n" for start, end, name, src, at in rows)
    sink = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=sink, mtime=0, compresslevel=6) as file:
        file.write(text.encode("utf-8", "backslashreplace"))
    return sink.getvalue()


def _cell(text: str) -> str:
    if any(letter in text for letter in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def llmc_header(num_tokens: int) -> bytes:
    """256 `<i4`: magic, version, tokens, zeros.

    Raises:
        UsageProblem: more tokens than the reader can address.
    """
    if num_tokens > LLMC_MAX_TOKENS:
        raise UsageProblem(
            f"{num_tokens:,} tokens in a shard; the llm.c loader reads at most {LLMC_MAX_TOKENS:,}",
            hint="--shard-tokens 100M, as its own scripts do",
        )
    return struct.pack("<iii", LLMC_MAGIC, LLMC_VERSION, num_tokens).ljust(LLMC_HEADER_BYTES, b"\0")


def llmc_tokens(header: bytes, num_bytes: int) -> int:
    """Tokens that an llm.c file of `num_bytes` says it has.

    Raises:
        FormatError: no such file, or its size is another.
    """
    magic, version, tokens = struct.unpack_from("<iii", header.ljust(12, b"\0"))
    if (magic, version) != (LLMC_MAGIC, LLMC_VERSION):
        raise FormatError(f"magic {magic}, version {version}: no file of llm.c", hint="expected 20240520 and 1")
    if num_bytes != LLMC_HEADER_BYTES + 2 * tokens:
        raise FormatError(
            f"{tokens:,} tokens take {LLMC_HEADER_BYTES + 2 * tokens:,} bytes, the file has {num_bytes:,}",
            hint="copy it again",
        )
    return int(tokens)


def npy_header(num_tokens: int, dtype: str) -> bytes:
    """Header of a one-dimensional `.npy` of version 1.0."""
    sink = io.BytesIO()
    description = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (num_tokens,)}
    np.lib.format.write_array_header_1_0(sink, description)
    return sink.getvalue()
