"""Members of a tar shard as columns: every header walked, every checksum verified, damage located.

Any tar flows in (a mapped file or a buffer: ours, GNU tar, pax, v7, webdataset's writer), `TarMembers` flows out.
Runs of plain members come from `tar_batch`; `_member` reads one member with any extension headers, is the oracle of
that fast path, and the only place that decides what is damage.

Layout: POSIX.1-2017 `pax`, sections "ustar Interchange Format" and "pax Extended Header"; GNU tar manual, "Basic Tar
Format" and "Storing Sparse Files". Nothing is allocated from a number that the archive states: memory is the columns
(about 100 bytes a member and its name), one batch of headers, and one extension header of at most 1 MiB.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from zlib import adler32

import numpy as np
from numpy.typing import NDArray

from shardtool.errors import CorruptShard, FormatError
from shardtool.formats.tar_batch import MAX_HEADERS, HeaderRun, find_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from mmap import mmap

    from shardtool.model import Int64Array

__all__ = ["Damage", "TarMembers", "find_damage", "scan_members", "show_name"]

Buffer: TypeAlias = "bytes | bytearray | memoryview | mmap"
_Bytes: TypeAlias = NDArray[np.uint8]

_BLOCK: Final = 512
_ZEROS: Final = bytes(_BLOCK)
_POSIX, _GNU, _V7 = b"ustar\x0000", b"ustar  \0", bytes(8)  # bytes 257..265: magic and version
_FILE, _DIRECTORY, _LONG_NAME = b"05L"
_REGULAR: Final = b"0\x007"  # file, file of v7, contiguous file
_NO_DATA: Final = b"123456"  # links, devices, directory, fifo
_EXTENSIONS: Final = {b"x": "pax", b"X": "pax", b"g": "global", b"L": "name", b"K": "link"}
_MAX_EXTENSION_BYTES: Final = 1 << 20  # longest path Linux takes is 4 KiB, an extended attribute 64 KiB
_MIN_BATCH: Final = 128  # a batch costs as much as 30 members read singly
_DENSE_BLOCKS: Final = 16  # below this mean member (8 KiB) every page is touched anyway: look at every block
_OCTAL: Final = re.compile(rb"( *)([0-7]+)([ \0]*)")
_CHECKSUM: Final = re.compile(rb"( *)([0-7]+)(?:\0 | \0|\0)")
_LONE_PATH: Final = re.compile(rb"([0-9]{1,5}) path=([^\n]+)\n")
_KEPT_RECORDS: Final = (b"path", b"linkpath", b"size", b"hdrcharset")
_SPARSE_RECORDS: Final = (b"GNU.sparse.", b"SCHILY.realsize", b"SUN.holesdata")


@dataclass(frozen=True)
class Damage:
    """The first place where an archive stops making sense."""

    kind: str  # "damage", or "unsupported": a valid member that no reader of shards returns as written
    offset: int  # byte of the header or block that is wrong
    message: str  # what was expected and found
    last_member: bytes | None  # name of the last whole member; None: not one is whole
    last_end: int  # byte after the padded data of that member


@dataclass(frozen=True)
class TarMembers:
    """All whole members of an archive in their order; row r is one member."""

    names: list[bytes]  # as stored: pax path, GNU long name, or prefix/name
    header_offset: Int64Array  # byte of the first header, extension headers included, int64[n]
    data_offset: Int64Array  # int64[n]
    sizes: Int64Array  # bytes of data, int64[n]
    types: _Bytes  # ASCII code of the type flag, uint8[n]; files are always "0", directories "5"
    link_targets: dict[int, bytes]  # row of a hard ("1") or symbolic ("2") link -> what it names
    end_offset: int  # byte of the first end-of-archive block; -1 when damage comes first

    @property
    def num_members(self) -> int:
        """Rows of the table."""
        return len(self.names)


def scan_members(buffer: Buffer, name: str) -> TarMembers:
    """All members of the tar archive in `buffer`; `name` is its path or URL for messages.

    Strict: a wrong checksum, size or magic, a missing or lone end block and bytes after the end are errors.

    Raises:
        CorruptShard: damage, with `where` = path, offset and the last whole member as key.
        FormatError: a sparse, multi-volume or ambiguous member, refused by name.
    """
    members, damage = find_damage(buffer)
    if damage is None:
        return members
    where = {"path": name, "offset": damage.offset}
    whole = "no member before it is whole"
    if damage.last_member is not None:
        where["key"] = damage.last_member.decode("utf-8", "backslashreplace")
        whole = f"the last whole member is {show_name(damage.last_member)}, which ends at byte {damage.last_end}"
    message = f"{name}: byte {damage.offset}: {damage.message}; {whole}"
    if damage.kind == "unsupported":
        raise FormatError(message, hint="unpack it with the tool that wrote it and pack the folder", where=where)
    raise CorruptShard(message, hint="copy or pack this file again; its whole members can be read", where=where)


def find_damage(buffer: Buffer, *, is_fast: bool = True) -> tuple[TarMembers, Damage | None]:
    """Members up to the first damage, and that damage; never raises for what the archive holds.

    `is_fast=False` reads one member at a time: the oracle of the fast path, with the same result.
    """
    walk = _Walk(buffer)
    try:
        end = walk.run(is_fast)
    except _Stop as stop:
        return walk.table.members(-1), stop.damage(walk)
    return walk.table.members(end), None


def show_name(name: bytes) -> str:
    """`name` quoted and escaped for a message, at most 200 characters of it."""
    text = name[:800].decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= 200 else text[:200] + "...")


class _Header(NamedTuple):
    name: bytes
    type: bytes
    size: int
    link: bytes


class _Stop(Exception):
    """The walk cannot go on; caught by `find_damage`."""

    def __init__(self, offset: int, message: str, kind: str = "damage") -> None:
        super().__init__(message)
        self.offset, self.message, self.kind = offset, message, kind

    def damage(self, walk: _Walk) -> Damage:
        last = walk.table.names[-1] if walk.table.names else None
        end = min(walk.pos, len(walk.view)) if walk.table.names else 0
        return Damage(self.kind, self.offset, self.message, last, end)


@dataclass
class _Table:
    """Columns under construction: arrays from the fast path, single rows from the slow one."""

    names: list[bytes] = field(default_factory=list)
    links: dict[int, bytes] = field(default_factory=dict)
    chunks: list[Int64Array] = field(default_factory=list)  # int64[4, n]: header, data, size, type
    loose: list[tuple[int, int, int, int]] = field(default_factory=list)

    def flush(self) -> None:
        if self.loose:
            self.chunks.append(np.array(self.loose, np.int64).T)
            self.loose = []

    def members(self, end_offset: int) -> TarMembers:
        self.flush()
        rows = np.concatenate(self.chunks, axis=1) if self.chunks else np.zeros((4, 0), np.int64)
        header, data, sizes = (row.copy() for row in rows[:3])
        return TarMembers(self.names, header, data, sizes, rows[3].astype(np.uint8), self.links, end_offset)


class _Walk:
    """One pass over a buffer. `pos` is the byte after the last whole member."""

    def __init__(self, buffer: Buffer) -> None:
        view = memoryview(buffer)
        self.view = view.cast("B") if view.nbytes else view
        self.pos = 0
        self.table = _Table()
        whole = view.nbytes // _BLOCK
        flat = np.frombuffer(self.view, np.uint8, whole * _BLOCK) if whole else np.zeros(0, np.uint8)
        self.blocks: _Bytes = flat.reshape(whole, _BLOCK)

    def run(self, is_fast: bool) -> int:
        """Offset of the end-of-archive blocks.

        Batches double while they succeed; after one that broke off early, ever more members are read singly.
        """
        batch, mean_blocks, singles, pause = _MIN_BATCH, _BLOCK, 0, 1
        while not _is_end(self.view, self.pos):
            if not is_fast or singles:
                self.pos = _member(self)
                singles = max(singles - 1, 0)
                continue
            first, is_dense = self.pos, mean_blocks <= _DENSE_BLOCKS
            run = find_run(self.view, self.blocks, first, batch * mean_blocks if is_dense else batch, is_dense)
            taken = _add_run(self, run) if run else 0
            if taken * 4 >= _MIN_BATCH:
                mean_blocks = -((first - self.pos) // _BLOCK // taken)
                batch, pause = min(batch * 2, MAX_HEADERS), 1
            else:
                batch, mean_blocks, singles, pause = _MIN_BATCH, _BLOCK, pause, min(pause * 2, 256)
        return self.pos


def _add_run(walk: _Walk, run: HeaderRun) -> int:
    """Take the members of a run; how many."""
    table, base = walk.table, len(walk.table.names)
    if run.has_extensions:
        return _add_mixed_run(walk, run)
    table.flush()
    table.chunks.append(np.stack([run.firsts * _BLOCK, (run.starts + 1) * _BLOCK, run.sizes, run.types]))
    table.names.extend(run.names)
    table.links.update((base + row, target) for row, target in run.link_targets.items())
    walk.pos = int(run.nexts[-1]) * _BLOCK
    return len(run.names)


def _add_mixed_run(walk: _Walk, run: HeaderRun) -> int:
    """Take members as far as the extension headers among them only name files; the rest is left to `_member`."""
    table, base = walk.table, len(walk.table.names)
    long_name: bytes | None = None
    end, extension = walk.pos // _BLOCK, 0
    for row, (first, start, size, kind, name) in enumerate(run.rows()):
        data = (start + 1) * _BLOCK
        if kind in b"xL":
            payload = bytes(walk.view[data : data + size]) if size <= _MAX_EXTENSION_BYTES else b""
            extension, long_name = first, payload.rstrip(b"\0") if kind == _LONG_NAME else _lone_path(payload)
            if not long_name or b"\0" in long_name:
                break
            continue
        if long_name is not None:
            if kind != _DIRECTORY and long_name.endswith(b"/"):
                break
            first, name = extension, long_name
        if row in run.link_targets:
            table.links[len(table.names)] = run.link_targets[row]
        table.names.append(name)
        table.loose.append((first * _BLOCK, data, size, kind))
        long_name, end = None, int(run.nexts[row])
    walk.pos = end * _BLOCK
    return len(table.names) - base


def _lone_path(payload: bytes) -> bytes | None:
    """The path when a pax header says nothing else."""
    match = _LONE_PATH.fullmatch(payload)
    return match[2] if match and int(match[1]) == len(payload) else None


def _is_end(view: memoryview, pos: int) -> bool:
    """Whether the end-of-archive blocks start at `pos`: two of zeros, and nothing but zeros after them."""
    if pos >= len(view) or view[pos] or bytes(view[pos : pos + _BLOCK]) != _ZEROS:
        return False
    if bytes(view[pos + _BLOCK : pos + 2 * _BLOCK]) != _ZEROS:
        raise _Stop(pos, "a lone block of zeros where two end the archive: it is cut short or altered")
    for start in range(pos + 2 * _BLOCK, len(view), 1 << 16):
        rest = bytes(view[start : start + (1 << 16)])
        if rest.count(0) != len(rest):
            offset = start + len(rest) - len(rest.lstrip(b"\0"))
            raise _Stop(offset, "bytes after the end-of-archive blocks (an appended archive, or damage)")
    return True


def _member(walk: _Walk) -> int:
    """Take the member at `walk.pos`, with its extension headers; the byte where the next one begins."""
    first = pos = walk.pos
    extra: dict[str, bytes] = {}
    head = _header(walk.view, pos)
    while (word := _EXTENSIONS.get(head.type)) is not None:
        payload, following = _extension(walk.view, pos, head)
        if word == "global":
            if _pax_records(payload, pos).keys() - {b"hdrcharset"}:
                raise _Stop(pos, "a global header names or sizes all members alike", "unsupported")
            first = first if extra else following
        else:
            _merge(extra, word, payload, pos)
        pos = following
        head = _header(walk.view, pos)
    name = extra.get("path", extra.get("name", head.name))
    size, link = int(extra.get("size", head.size)), extra.get("link", head.link)
    return _add_member(walk, first, pos, _Header(name, b"S" if "sparse" in extra else head.type, size, link))


def _add_member(walk: _Walk, first: int, pos: int, head: _Header) -> int:
    kind, left = head.type, len(walk.view) - pos - _BLOCK
    is_directory = kind in _REGULAR and head.name.endswith(b"/")
    if not head.name or b"\0" in head.name:
        raise _Stop(pos, f"a member named {show_name(head.name)}: empty, or with a zero byte in it")
    if kind in b"SM":
        what = "is sparse" if kind == b"S" else "continues from another volume"
        raise _Stop(pos, f"the member {show_name(head.name)} {what}, which is not supported", "unsupported")
    if head.size and (kind in _NO_DATA or is_directory):
        what = f"of type {chr(kind[0])!r} states {head.size} bytes of data; readers differ on what they are"
        raise _Stop(pos, f"the member {show_name(head.name)} {what}", "unsupported")
    if kind in b"12":
        if not head.link or b"\0" in head.link:
            raise _Stop(pos, f"the link {show_name(head.name)} names no target")
        walk.table.links[len(walk.table.names)] = head.link
    if head.size > left:
        what = f"states {head.size} bytes, {max(left, 0)} are left: the archive is cut"
        raise _Stop(pos, f"the member {show_name(head.name)} {what}")
    code = _DIRECTORY if is_directory else _FILE if kind in _REGULAR else kind[0]
    walk.table.names.append(head.name)
    walk.table.loose.append((first, pos + _BLOCK, head.size, code))
    return pos + _BLOCK + (head.size + _BLOCK - 1 & -_BLOCK)


def _header(view: memoryview, pos: int) -> _Header:
    """The header block at `pos`, its magic, checksum and size verified."""
    block = bytes(view[pos : pos + _BLOCK])
    if len(block) < _BLOCK:
        what = "is cut inside a header" if block else "ends without its two blocks of zeros"
        raise _Stop(min(pos, len(view)), f"the archive {what}")
    if block == _ZEROS:
        raise _Stop(pos, "an extension header without its member")
    magic = block[257:265]
    if magic not in (_POSIX, _GNU, _V7):
        raise _Stop(pos, f"no tar header: magic {magic!r} where b'ustar' should be")
    stated = _stated_checksum(block, pos)
    # adler32 keeps 1 + the sum of all bytes modulo 65521 in its low half: exact for 256 bytes
    total = (adler32(block[:256]) & 0xFFFF) + (adler32(block[256:]) & 0xFFFF) - 2 - sum(block[148:156]) + 8 * 32
    if stated != total and stated != total - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
        raise _Stop(pos, f"header checksum {stated} stated, {total} found")
    name = block[:100].split(b"\0", 1)[0]
    if magic == _POSIX and block[345]:
        end = 476 if block[508:] == b"tar\0" else 500  # star keeps two times at the end of the prefix
        name = block[345:end].split(b"\0", 1)[0] + b"/" + name
    return _Header(name, block[156:157], _size_field(block[124:136], pos), block[157:257].split(b"\0", 1)[0])


def _stated_checksum(block: bytes, pos: int) -> int:
    """The checksum field, in forms that tar writers make and no others: it is not part of the sum that it states.

    "oooooo\\0 " POSIX, GNU; "oooooo \\0" npm; "ooooooo\\0" BSD, Rust; spaces in front where other fields have them.
    """
    match = _CHECKSUM.fullmatch(block[148:156])
    is_spaced = b" " in (block[100:101], block[108:109], block[124:125])
    if match is None or (match[1] and not is_spaced):
        raise _Stop(pos, f"no tar header: checksum field {block[148:156]!r}")
    return int(match[2], 8)


def _size_field(text: bytes, pos: int) -> int:
    """Bytes stated by a size field: octal text, or base-256 where bit 7 of the first byte is set (GNU, star)."""
    if text[0] == 0x80:
        size = int.from_bytes(text[1:], "big")
    else:
        match = _OCTAL.fullmatch(text)
        if match is None:
            raise _Stop(pos, f"size field {text!r} is not a number of bytes")
        size = int(match[2], 8)
    if size >= 1 << 62:
        raise _Stop(pos, f"size field {text!r} is larger than any file")
    return size


def _extension(view: memoryview, pos: int, head: _Header) -> tuple[bytes, int]:
    """Data of the extension header at `pos`, and the byte where the next header begins."""
    data = pos + _BLOCK
    if head.size > len(view) - data:
        raise _Stop(pos, f"an extension header states {head.size} bytes, {len(view) - data} are left")
    if head.size > _MAX_EXTENSION_BYTES:
        raise _Stop(pos, f"an extension header of {head.size} bytes, more than {_MAX_EXTENSION_BYTES}", "unsupported")
    return bytes(view[data : data + head.size]), data + (head.size + _BLOCK - 1 & -_BLOCK)


def _merge(extra: dict[str, bytes], kind: str, payload: bytes, pos: int) -> None:
    """Add what one extension header says to what earlier ones said of the same member."""
    if f"has {kind}" in extra:
        raise _Stop(pos, f"two {kind} extension headers before one member")
    extra[f"has {kind}"] = b""
    if kind != "pax":
        extra.setdefault(kind, payload.rstrip(b"\0"))
        return
    records = _pax_records(payload, pos)
    for key, word in ((b"path", "path"), (b"linkpath", "link"), (b"size", "size"), (b"sparse", "sparse")):
        if key in records:
            extra[word] = records[key]
    if not re.fullmatch(rb"[0-9]{1,18}", records.get(b"size", b"0")):
        raise _Stop(pos, f"pax record size={show_name(records[b'size'])} is not a number of bytes")


def _pax_records(payload: bytes, pos: int) -> dict[bytes, bytes]:
    """Records that matter to a reader of bytes, and `sparse` when one tells of holes.

    A record is "LENGTH KEY=VALUE\\n", LENGTH in decimal and of all of it; the last of two with one key counts.
    """
    kept: dict[bytes, bytes] = {}
    for key, value in _split_records(payload, pos):
        if key.startswith(_SPARSE_RECORDS):
            kept[b"sparse"] = key
        if key == b"GNU.sparse.name":
            kept[b"path"] = value
        elif key in _KEPT_RECORDS:
            kept[key] = value
    if kept.get(b"hdrcharset", b"BINARY") not in (b"BINARY", b"ISO-IR 10646 2000 UTF-8"):
        raise _Stop(pos, f"names in the charset {show_name(kept[b'hdrcharset'])}", "unsupported")
    return kept


def _split_records(payload: bytes, pos: int) -> Iterator[tuple[bytes, bytes]]:
    start = 0
    while start < len(payload):
        space = payload.find(b" ", start, start + 20)
        digits = payload[start:space] if space > 0 else b""
        end = start + int(digits) if digits.isdigit() else 0
        equals = payload.find(b"=", space + 2, end)
        if end > len(payload) or equals < 0 or payload[end - 1] != 10:
            raise _Stop(pos, f"a pax record at byte {start} of its header does not follow LENGTH KEY=VALUE")
        yield payload[space + 1 : equals], payload[equals + 1 : end - 1]
        start = end
