"""ustar headers: exact sizes before a byte is read, and a matrix of headers in one numpy pass.

Layout (POSIX.1-1988 ustar, POSIX.1-2001 pax): 512-byte header, data padded to 512 bytes, two zero blocks at the end.
A member name is up to 100 bytes, or up to 155 + "/" + 100 where a slash allows the cut; a longer one gets a pax
extended header (type x) with one `path` record, and one of 8 GiB or more a `size` record. Owner, group, time and names
are constants: no clock and no user reaches a shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.model import Int64Array

BLOCK = 512
TRAILER_BYTES = 2 * BLOCK
NAME_BYTES, PREFIX_BYTES = 100, 155
LONGEST_USTAR = PREFIX_BYTES + 1 + NAME_BYTES
MAX_USTAR_SIZE = 8 << 30  # 11 octal digits
_PAX_NAME = b"././@PaxHeader"


def _template() -> NDArray[np.uint8]:
    header = bytearray(BLOCK)
    header[100:124] = b"0000644\x00" + 2 * b"0000000\x00"  # mode, uid, gid
    header[136:148] = b"00000000000\0"  # mtime
    header[148:156] = b" " * 8  # checksum counts as spaces
    header[156:157] = b"0"  # regular file
    header[257:265] = b"ustar\x0000"
    return np.frombuffer(bytes(header), np.uint8)


_TEMPLATE = _template()
_TEMPLATE_SUM = int(_TEMPLATE.sum())


def padded(sizes: Any) -> Any:
    """Bytes that `sizes` take in a tar: up to the next multiple of 512. Scalars and arrays."""
    return (sizes + (BLOCK - 1)) // BLOCK * BLOCK


def split_name(name: bytes) -> tuple[bytes, bytes] | None:
    """(prefix, name) as ustar stores them; None where neither fits."""
    if len(name) <= NAME_BYTES:
        return b"", name
    if len(name) > LONGEST_USTAR:
        return None
    slash = name.find(b"/", len(name) - NAME_BYTES - 1, PREFIX_BYTES + 1)
    if slash <= 0 or slash == len(name) - 1:
        return None
    return name[:slash], name[slash + 1 :]


def extension_bytes(name: bytes, size: int) -> int:
    """Bytes of the pax header that this member needs; 0 for most."""
    body = _pax_body(name, size)
    return BLOCK + int(padded(len(body))) if body else 0


def extension(name: bytes, size: int) -> bytes:
    """The pax extended header and its body, padded; b"" where ustar suffices."""
    body = _pax_body(name, size)
    if not body:
        return b""
    header = headers([_PAX_NAME], np.array([len(body)], np.int64))
    header[0, 156] = ord("x")
    _store_checksums(header, _sums(header))
    return header.tobytes() + body.ljust(int(padded(len(body))), b"\0")


def _pax_body(name: bytes, size: int) -> bytes:
    records = [] if split_name(name) else [(b"path", name)]
    if size >= MAX_USTAR_SIZE:
        records.append((b"size", b"%d" % size))
    return b"".join(_pax_record(key, value) for key, value in records)


def _pax_record(key: bytes, value: bytes) -> bytes:
    """`len key=value` and a newline, where len counts itself."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    if len(str(length)) != len(str(rest)):
        length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def headers(names: list[bytes], sizes: Int64Array) -> NDArray[np.uint8]:
    """uint8[n, 512]: the ustar headers of n members, checksums included; about 0.3 us each.

    A name or size that ustar cannot hold is stored cut short: its pax header, written before, has the whole.
    """
    matrix = np.empty((len(names), BLOCK), np.uint8)
    matrix[:] = _TEMPLATE
    short = np.array(names, dtype=f"S{NAME_BYTES}").view(np.uint8).reshape(len(names), NAME_BYTES)
    matrix[:, :NAME_BYTES] = short
    total = short.sum(axis=1, dtype=np.int64) + _TEMPLATE_SUM
    digits = _octal(np.where(sizes < MAX_USTAR_SIZE, sizes, 0), 11)
    matrix[:, 124:135] = digits
    _store_checksums(matrix, total + digits.sum(axis=1, dtype=np.int64))
    for row in [row for row, name in enumerate(names) if len(name) > NAME_BYTES]:
        _store_long_name(matrix[row], names[row])
        _store_checksums(matrix[row : row + 1], _sums(matrix[row : row + 1]))
    return matrix


def _octal(values: Int64Array, width: int) -> NDArray[np.uint8]:
    """uint8[n, width]: octal digits as ASCII."""
    shifts = 3 * np.arange(width - 1, -1, -1)
    return (((values[:, None] >> shifts) & 7) + ord("0")).astype(np.uint8)


def _sums(matrix: NDArray[np.uint8]) -> Int64Array:
    """int64[n]: byte sums of headers with the checksum field taken as spaces."""
    matrix[:, 148:156] = ord(" ")
    totals: Int64Array = matrix.sum(axis=1, dtype=np.int64)
    return totals


def _store_checksums(matrix: NDArray[np.uint8], totals: Int64Array) -> None:
    matrix[:, 148:154] = _octal(totals, 6)
    matrix[:, 154] = 0
    matrix[:, 155] = ord(" ")


def _store_long_name(header: NDArray[np.uint8], name: bytes) -> None:
    prefix, short = split_name(name) or (b"", name[:NAME_BYTES])
    header[:NAME_BYTES] = np.frombuffer(short.ljust(NAME_BYTES, b"\0"), np.uint8)
    header[345 : 345 + len(prefix)] = np.frombuffer(prefix, np.uint8)
