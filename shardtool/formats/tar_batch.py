"""Runs of plain tar headers found and verified by numpy: a piece of an archive in, the columns of its headers out.

The fast path of `tar_scan`, which alone decides what is damage: a run simply ends before a header that is not valid in
the commonest spelling.

Layout: POSIX.1-2017 `pax`, section "ustar Interchange Format"; GNU tar manual, "Basic Tar Format".
Memory: at most 2,048 headers (1 MiB) and a few arrays of that size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.model import Int64Array

MAX_HEADERS: Final = 2048  # gathered at once: 1 MiB, stays in the cache

_Bytes: TypeAlias = NDArray[np.uint8]
_Bools: TypeAlias = NDArray[np.bool_]

_BLOCK: Final = 512
_POSIX, _GNU = (np.frombuffer(magic, np.uint64)[0] for magic in (b"ustar\x0000", b"ustar  \0"))
_FILE, _EMPTY, _EXTENSION = 1, 2, 3
_CLASSES: Final = np.zeros(256, np.uint8)  # 0: a type left to the slow path
for _codes, _class in ((b"0\x007", _FILE), (b"125", _EMPTY), (b"xL", _EXTENSION)):
    _CLASSES[list(_codes)] = _class
_SIZE_WEIGHTS: Final = 8 ** np.arange(10, -1, -1, dtype=np.int64)
_CHECKSUM_WEIGHTS: Final = 8 ** np.arange(5, -1, -1, dtype=np.int64)


@dataclass(frozen=True)
class HeaderRun:
    """Valid headers, each beginning where the data of the one before ends.

    Pax headers and long names are rows too, never two in a row; a pax header that only states a time is not one.
    """

    firsts: Int64Array  # block number of the first header, int64[n]: `starts`, or that of the folded pax header
    starts: Int64Array  # block number of the header, int64[n]
    sizes: Int64Array  # bytes of data, int64[n]
    nexts: Int64Array  # block number after the padded data, int64[n]
    types: _Bytes  # type flag, files always "0", uint8[n]
    names: list[bytes]
    link_targets: dict[int, bytes]  # row -> target of a link

    @property
    def has_extensions(self) -> bool:
        """Whether some rows are pax headers or long names, not members."""
        return bool(_is_extension(self.types).any())

    def rows(self) -> Iterator[tuple[int, int, int, int, bytes]]:
        """(first block, header block, bytes of data, type flag, name) of each row."""
        columns = (column.tolist() for column in (self.firsts, self.starts, self.sizes, self.types))
        return zip(*columns, self.names, strict=True)


def find_run(view: memoryview, blocks: _Bytes, pos: int, reach: int, is_dense: bool) -> HeaderRun | None:
    """The plain headers from byte `pos` on, or None when the first one is not plain.

    Args:
        view: the archive.
        blocks: its whole blocks, uint8[n, 512].
        pos: byte of a header.
        reach: blocks to look at (dense), or headers to jump to (not dense).
        is_dense: look at every block, cheapest for tiny members; otherwise touch headers only.
    """
    at = pos // _BLOCK
    starts = _candidates(blocks, at, reach) if is_dense else _jump(view, pos, min(reach, MAX_HEADERS))
    heads = blocks[starts]
    is_plain, sizes = _judge(heads)
    nexts = starts + 1 + ((sizes + (_BLOCK - 1)) >> 9)
    is_plain &= nexts <= len(blocks)
    rows = _follow(starts, nexts, is_plain, at)
    kinds = heads[rows, 156]
    firsts = starts[rows]
    if _is_extension(kinds).any():
        kept, folded = _fold_times(blocks, firsts, sizes[rows], kinds)
        firsts = firsts[kept - folded]
        rows = rows[kept]
    if not len(rows):
        return None
    heads = heads if len(rows) == len(heads) else heads[rows]
    types = np.where(_CLASSES[heads[:, 156]] == _FILE, np.uint8(ord("0")), heads[:, 156])
    return HeaderRun(firsts, starts[rows], sizes[rows], nexts[rows], types, _names(heads), _link_targets(heads, types))


def _candidates(blocks: _Bytes, at: int, reach: int) -> Int64Array:
    """Numbers of blocks that may be headers: byte 257, where the magic begins, is a `u`."""
    found = np.flatnonzero(blocks[at : at + reach, 257] == ord("u"))[:MAX_HEADERS]
    return at + found.astype(np.int64, copy=False)


def _jump(view: memoryview, pos: int, count: int) -> Int64Array:
    """Block numbers of up to `count` headers from byte `pos` on, by size fields that `_judge` has yet to check."""
    found: list[int] = []
    last = len(view) - _BLOCK
    while pos <= last and len(found) < count:
        found.append(pos >> 9)
        try:
            size = int(bytes(view[pos + 124 : pos + 135]), 8)
        except ValueError:
            break
        if size < 0:
            break
        pos += _BLOCK + ((size + (_BLOCK - 1)) & -_BLOCK)
    return np.array(found, np.int64)


def _judge(heads: _Bytes) -> tuple[_Bools, Int64Array]:
    """Which of `heads` (uint8[n, 512]) are valid headers in the commonest spelling, and their sizes in bytes."""
    magic = np.ascontiguousarray(heads[:, 257:265]).view(np.uint64)[:, 0]
    is_posix = magic == _POSIX
    digits = np.concatenate([heads[:, 124:135], heads[:, 148:154]], axis=1) - np.uint8(48)
    sizes: Int64Array = (digits[:, :11] * _SIZE_WEIGHTS).sum(axis=1)
    stated = (digits[:, 11:] * _CHECKSUM_WEIGHTS).sum(axis=1)
    kinds = _CLASSES[heads[:, 156]]
    is_plain = (
        (is_posix | (magic == _GNU))
        & (digits < 8).all(axis=1)
        & (_checksums(heads) == stated)
        & ((heads[:, 135] & 0xDF) == 0)  # NUL or space
        & (heads[:, 154] + heads[:, 155] == 0x20)
        & (heads[:, 154] * heads[:, 155] == 0)  # NUL and space, in either order
        & (kinds > 0)
        & ((kinds != _EMPTY) | (sizes == 0))
        & ((kinds != _FILE) | ~_ends_with_slash(heads[:, :100]))
        & ((kinds != _EMPTY) | (heads[:, 156] == ord("5")) | (heads[:, 157] != 0))
        & (heads[:, 0] != 0)
        & ~(is_posix & (heads[:, 345] != 0) & (heads[:, 508] != 0))  # star's shorter prefix
    )
    return is_plain, sizes


def _checksums(heads: _Bytes) -> Int64Array:
    """Sum of all bytes of each header, the checksum field taken as spaces."""
    halves = np.add.reduce(heads.reshape(-1, 256), axis=1, dtype=np.uint16).astype(np.int64)  # 256 x 255 fits
    field = heads[:, 148:156].sum(axis=1, dtype=np.int64)
    sums: Int64Array = halves[0::2] + halves[1::2] - field + 8 * 32
    return sums


def _ends_with_slash(names: _Bytes) -> _Bools:
    ends: _Bools = ((names[:, :-1] == 0x2F) & (names[:, 1:] == 0)).any(axis=1) | (names[:, -1] == 0x2F)
    return ends


def _follow(starts: Int64Array, nexts: Int64Array, is_plain: _Bools, at: int) -> Int64Array:
    """Rows that make a chain from block `at` on, each member ending where the next begins; lookalikes drop out."""
    if not len(starts) or starts[0] != at:
        return np.zeros(0, np.int64)
    if is_plain.all() and (nexts[:-1] == starts[1:]).all():
        return np.arange(len(starts))
    follower = np.searchsorted(starts, nexts)
    is_met = (follower < len(starts)) & (starts[np.minimum(follower, len(starts) - 1)] == nexts)
    rows, row = [], 0
    for _ in range(len(starts)):
        if not is_plain[row]:
            break
        rows.append(row)
        if not is_met[row]:
            break
        row = int(follower[row])
    return np.array(rows, np.int64)


def _is_extension(types: _Bytes) -> _Bools:
    found: _Bools = _CLASSES[types] == _EXTENSION
    return found


def _fold_times(blocks: _Bytes, starts: Int64Array, sizes: Int64Array, kinds: _Bytes) -> tuple[Int64Array, Int64Array]:
    """Rows left when pax headers that only state a modification time join the member after them.

    Such a header (tarfile, and with it webdataset, write one a member) holds the one record `NN mtime=...\\n`.
    Returns the rows kept, and for each 1 where the row before was folded into it, else 0.
    """
    is_extension = _is_extension(kinds)
    is_time = (kinds == ord("x")) & (sizes > 9) & (sizes < 100)
    rows = np.flatnonzero(is_time)
    text = blocks[starts[rows] + 1, :100]
    digits = text[:, :2] - np.uint8(48)
    stated = digits[:, 0].astype(np.int64) * 10 + digits[:, 1]
    has_key = (text[:, 2:9] == np.frombuffer(b" mtime=", np.uint8)).all(axis=1)
    is_time[rows] = (
        has_key
        & (digits < 10).all(axis=1)
        & (stated == sizes[rows])
        & (text[np.arange(len(rows)), sizes[rows] - 1] == 10)
    )
    is_lost = is_extension & np.append(is_extension[1:], True)  # no member follows here: the run ends before it
    count = int(is_lost.argmax()) if is_lost.any() else len(is_time)
    kept = np.flatnonzero(~is_time[:count])
    return kept, ((kept > 0) & is_time[kept - 1]).astype(np.int64)


def _names(heads: _Bytes) -> list[bytes]:
    """Names of the headers, prefixes joined on (POSIX magic only: GNU keeps times there)."""
    names = _texts(heads[:, :100])
    with_prefix = np.flatnonzero((heads[:, 345] != 0) & (heads[:, 263] == ord("0")))
    if len(with_prefix):
        for row, prefix in zip(with_prefix.tolist(), _texts(heads[with_prefix, 345:500]), strict=True):
            names[row] = prefix + b"/" + names[row]
    return names


def _link_targets(heads: _Bytes, types: _Bytes) -> dict[int, bytes]:
    rows = np.flatnonzero((types == ord("1")) | (types == ord("2")))
    return dict(zip(rows.tolist(), _texts(heads[rows, 157:257]), strict=True)) if len(rows) else {}


def _texts(column: _Bytes) -> list[bytes]:
    """Each row of `column` (uint8[n, width]) up to its first zero byte."""
    texts: list[bytes] = np.ascontiguousarray(column).view(f"S{column.shape[1]}")[:, 0].tolist()
    if b"\0" in b"".join(texts):
        texts = [text.split(b"\0", 1)[0] for text in texts]
    return texts
