"""A page of ListObjectsV2, parsed: XML in, columns out. No object per key is kept.

Stores differ in the order of elements, in how they escape the quotes of an ETag, and in what they URL-encode (AWS
leaves `/`, Ceph does not; a blank is `+` here and `%20` there). Keys come back as the bytes that they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import unescape
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa

from shardtool import columns
from shardtool.heap import give_back

if TYPE_CHECKING:
    from shardtool.model import BinaryArray, Int64Array

_KEY = re.compile(rb"<Key>([^<]*)</Key>")
_SIZE = re.compile(rb"<Size>\s*([0-9]+)\s*</Size>")
_ETAG = re.compile(rb"<ETag>([^<]*)</ETag>")
_TIME = re.compile(rb"<LastModified>([^<]*)</LastModified>")
_CONTENTS = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
_PREFIX = re.compile(rb"<CommonPrefixes>\s*<Prefix>([^<]*)</Prefix>")
_TOKEN = re.compile(rb"<NextContinuationToken>([^<]*)</NextContinuationToken>")
_IS_TRUNCATED = re.compile(rb"<IsTruncated>\s*true\s*</IsTruncated>", re.IGNORECASE)
_IS_ENCODED = re.compile(rb"<EncodingType>\s*url\s*</EncodingType>", re.IGNORECASE)
_QUOTES = re.compile(rb"&quot;|&#34;|&#x22;|\"")


@dataclass(frozen=True)
class Objects:
    """Columns of a listing, a row an object; 28 bytes a row, its key and its ETag.

    Keys and ETags may be in chunks: `chunks_of` takes them apart. ETags may be `columns.packed`.
    """

    keys: BinaryArray  # large_binary[n], as stored in the bucket
    sizes: Int64Array  # bytes, int64[n]
    mtimes_ns: Int64Array  # int64[n]; 0 where the store tells none
    etags: BinaryArray  # binary[n], without quotes; b"" where the store tells none

    @property
    def num_rows(self) -> int:
        """Objects."""
        return len(self.sizes)

    def where(self, keep: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Objects:
        """The rows where `keep`, bool[n], is true."""
        mask = pa.array(keep)
        return Objects(self.keys.filter(mask), self.sizes[keep], self.mtimes_ns[keep], self.etags.filter(mask))


@dataclass(frozen=True)
class Page:
    """What one answer holds. `token` is "" at the end; `is_truncated` without a token is a store's mistake."""

    objects: Objects
    prefixes: list[bytes]  # CommonPrefixes
    token: str
    is_truncated: bool
    first: bytes  # key, to tell a page from the one before it; b"" for none


def parse_page(body: bytes) -> Page:
    """The page that `body` holds.

    Raises:
        ValueError: it is no listing, or an object has no key, size or sensible time.
    """
    if b"<ListBucketResult" not in body:
        raise ValueError("the answer is no listing")
    keys, sizes = _KEY.findall(body), _SIZE.findall(body)
    etags, times = _ETAG.findall(body), _TIME.findall(body)
    if not len(keys) == len(sizes) == len(etags) == len(times):
        keys, sizes, etags, times = _one_by_one(body)
    is_encoded = _IS_ENCODED.search(body) is not None
    keys = _decoded(keys, is_encoded=is_encoded)
    tokens = _TOKEN.findall(body)
    objects = Objects(
        pa.array(keys, pa.large_binary()), np.array(sizes, np.bytes_).astype(np.int64), _times(times), _etags(etags)
    )
    return Page(
        objects,
        _decoded(_PREFIX.findall(body), is_encoded=is_encoded),
        unescape(tokens[0].decode("utf-8", "surrogateescape")) if tokens else "",
        _IS_TRUNCATED.search(body) is not None,
        keys[0] if keys else b"",
    )


def no_objects() -> Objects:
    """An empty table."""
    nothing = np.zeros(0, np.int64)
    return Objects(pa.array([], pa.large_binary()), nothing, nothing, pa.array([], pa.binary()))


def concat(parts: list[Objects]) -> Objects:
    """All rows, in the order of the parts."""
    if not parts:
        return no_objects()
    if len(parts) == 1:
        return parts[0]
    return Objects(
        pa.concat_arrays([part.keys for part in parts]),
        np.concatenate([part.sizes for part in parts]),
        np.concatenate([part.mtimes_ns for part in parts]),
        pa.concat_arrays([part.etags for part in parts]),
    )


def chunks_of(column: BinaryArray) -> list[BinaryArray]:
    """The chunks of a column: whoever pops them from the list as they are used holds none of it twice."""
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]


def joined(parts: list[Int64Array]) -> Int64Array:
    """One column of all parts, which are let go one by one."""
    whole, end = np.empty(sum(map(len, parts)), np.int64), 0
    for at, part in enumerate(parts):
        whole[end : end + len(part)], end = part, end + len(part)
        parts[at] = part[:0].copy()
    give_back()
    return whole


class Columns:
    """Gathers tables, and gives them as one whose keys and ETags are in chunks: no column of it is there twice.

    ETags are packed meanwhile, and stay so where all of them can be.
    """

    def __init__(self) -> None:
        self._keys: list[BinaryArray] = []
        self._sizes: list[Int64Array] = []
        self._mtimes_ns: list[Int64Array] = []
        self._etags: list[BinaryArray] = []

    def add(self, part: Objects) -> None:
        """The next rows."""
        self._keys.append(part.keys)
        self._sizes.append(part.sizes)
        self._mtimes_ns.append(part.mtimes_ns)
        self._etags.append(columns.packed(part.etags))

    def take(self) -> Objects:
        """All rows, in the order they came; none are left here."""
        keys, self._keys = pa.chunked_array(self._keys, pa.large_binary()), []
        etags, self._etags = _of_one_type(self._etags), []
        sizes, self._sizes = joined(self._sizes), []
        mtimes_ns, self._mtimes_ns = joined(self._mtimes_ns), []
        return Objects(keys, sizes, mtimes_ns, etags)


def _of_one_type(chunks: list[BinaryArray]) -> BinaryArray:
    if not chunks or any(chunk.type != columns.PACKED for chunk in chunks):
        return pa.chunked_array([columns.unpacked(chunk) for chunk in columns.used_up(chunks)], pa.binary())
    return pa.chunked_array(chunks, columns.PACKED)


def _one_by_one(body: bytes) -> tuple[list[bytes], list[bytes], list[bytes], list[bytes]]:
    """Columns of a page whose elements do not all have the same fields; what is missing of ETag and time is b""."""
    found_in: tuple[list[bytes], ...] = ([], [], [], [])
    for element in _CONTENTS.findall(body):
        for column, pattern in zip(found_in, (_KEY, _SIZE, _ETAG, _TIME), strict=True):
            found = pattern.search(element)
            if found is None and pattern in (_KEY, _SIZE):
                raise ValueError("an object of the listing has no key or no size")
            column.append(found.group(1) if found else b"")
    keys, sizes, etags, times = found_in
    return keys, sizes, etags, times


def _decoded(names: list[bytes], *, is_encoded: bool) -> list[bytes]:
    blob = b"\n".join(names)
    if b"&" in blob:
        names = [_unescaped(name) if b"&" in name else name for name in names]
    if is_encoded and (b"%" in blob or b"+" in blob):
        names = [unquote_to_bytes(name.replace(b"+", b" ")) if b"%" in name or b"+" in name else name for name in names]
    return names


def _unescaped(name: bytes) -> bytes:
    return unescape(name.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _etags(etags: list[bytes]) -> BinaryArray:
    """Without their quotes, however those are written."""
    return pa.array(_QUOTES.sub(b"", b"\n".join(etags)).split(b"\n") if etags else [], pa.binary())


def _times(times: list[bytes]) -> Int64Array:
    """int64[n] nanoseconds since 1970 of `2025-01-31T12:00:00.000Z`; 0 where there is none."""
    texts = [time.rstrip(b"Zz").decode("ascii") or "1970-01-01" for time in times]
    found: Int64Array = np.array(texts, "datetime64[ns]").astype(np.int64) if texts else np.zeros(0, np.int64)
    return found
