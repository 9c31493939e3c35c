"""What the bytes of a part are, by their first bytes alone, with the few facts that their header tells.

Nothing is decoded or executed; at most the first MiB is read, of MP4 the headers of its boxes.
"""

from __future__ import annotations

import ast
import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Read = Callable[[int, int], bytes]  # (offset, size) -> bytes, fewer at the end

HEAD_BYTES = 1 << 20
TEXT_CHARS, HEX_BYTES, JSON_LINES = 300, 64, 24
_MAX_BOXES = 64


@dataclass(frozen=True)
class Preview:
    """What a part is: a word for its kind, facts in words, and text to show below them."""

    kind: str
    facts: str = ""
    text: str = ""


def describe(size: int, read: Read) -> Preview:
    """The preview of a part of `size` bytes."""
    if size == 0:
        return Preview("empty")
    head = read(0, min(size, HEAD_BYTES))
    for magic, offset, kind, facts in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            try:
                return Preview(kind, facts(head, size, read))
            except (struct.error, ValueError, IndexError, SyntaxError, KeyError, TypeError):
                return Preview(kind, "its header is damaged")
    return _text(head, size) or Preview("binary", "", _hex(head[:HEX_BYTES]))


def _text(head: bytes, size: int) -> Preview | None:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if size <= len(head) or error.start < len(head) - 4:
            return None
        text = head[: error.start].decode("utf-8")  # a character cut by the end of the head
    if any(ord(char) < 32 and char not in "\t\n\r\f" for char in text[:4096]):
        return None
    if size == len(head) and text.lstrip()[:1] in ("{", "["):
        try:
            lines = json.dumps(json.loads(text), indent=2, ensure_ascii=False).split("\n")
        except (ValueError, RecursionError):
            lines = []
        if lines:
            more = [f"... {len(lines) - JSON_LINES:,} more lines"] if len(lines) > JSON_LINES else []
            return Preview("json", "", "\n".join([*lines[:JSON_LINES], *more]))
    return Preview("text", "", text[:TEXT_CHARS] + ("..." if len(text) > TEXT_CHARS else ""))


def _hex(data: bytes) -> str:
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:04x}  {row.hex(' '):<47}  {shown}")
    return "\n".join(lines)


def _png(head: bytes, size: int, read: Read) -> str:
    width, height, depth, color = struct.unpack(">IIBB", head[16:26])
    names = {0: "grey", 2: "RGB", 3: "palette", 4: "grey with alpha", 6: "RGBA"}
    return f"{width} x {height}, {depth} bit {names[color]}"


def _jpeg(head: bytes, size: int, read: Read) -> str:
    at = 2
    while at + 9 < len(head):
        marker, length = head[at + 1], int.from_bytes(head[at + 2 : at + 4], "big")
        if head[at] != 0xFF or length < 2:
            break
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            bits, height, width, channels = struct.unpack(">BHHB", head[at + 4 : at + 10])
            return f"{width} x {height}, {bits} bit, {channels} channels"
        at += 2 + length
    raise ValueError("no frame header")


def _gif(head: bytes, size: int, read: Read) -> str:
    width, height = struct.unpack("<HH", head[6:10])
    return f"{width} x {height}"


def _webp(head: bytes, size: int, read: Read) -> str:
    kind = head[12:16]
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", head[26:30])
        return f"{width & 0x3FFF} x {height & 0x3FFF}"
    if kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return f"{(bits & 0x3FFF) + 1} x {((bits >> 14) & 0x3FFF) + 1}, lossless"
    if kind == b"VP8X" and len(head) >= 30:
        width, height = (int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27))
        return f"{width} x {height}"
    raise ValueError("no image chunk")


def _riff(head: bytes, size: int, read: Read) -> str:
    if head[8:12] != b"WAVE":
        return ""
    at, rate, block, facts = 12, 0, 0, ""
    while at + 8 <= len(head):
        name, length = head[at : at + 4], int.from_bytes(head[at + 4 : at + 8], "little")
        if name == b"fmt ":
            _, channels, rate, _, block, bits = struct.unpack("<HHIIHH", head[at + 8 : at + 24])
            facts = f"{rate:,} Hz, {channels} channel{'' if channels == 1 else 's'}, {bits} bit"
        elif name == b"data" and rate and block:
            return f"{facts}, {min(length, size) / block / rate:.2f} s"
        at += 8 + length + length % 2
    if not facts:
        raise ValueError("no format chunk")
    return facts


def _flac(head: bytes, size: int, read: Read) -> str:
    packed = int.from_bytes(head[18:26], "big")
    rate, channels, bits = packed >> 44, (packed >> 41 & 7) + 1, (packed >> 36 & 31) + 1
    seconds = f", {(packed & (1 << 36) - 1) / rate:.2f} s" if rate else ""
    return f"{rate:,} Hz, {channels} channel{'' if channels == 1 else 's'}, {bits} bit{seconds}"


def _npy(head: bytes, size: int, read: Read) -> str:
    width, start = (2, 10) if head[6] == 1 else (4, 12)
    length = int.from_bytes(head[8 : 8 + width], "little")
    header = ast.literal_eval(head[start : start + length].decode("latin-1").strip())
    shape = " x ".join(str(int(side)) for side in header["shape"]) or "a scalar"
    return f"{shape}, dtype {header['descr']}" + (", Fortran order" if header["fortran_order"] else "")


def _mp4(head: bytes, size: int, read: Read) -> str:
    """Size of the first picture track and the duration, from the `moov` box, wherever it lies."""
    facts = [head[8:12].decode("latin-1").strip()]
    for kind, start, stop in _boxes(read, 0, size):
        if kind == b"moov":
            facts += _movie(read, start, stop)
    return ", ".join(facts)


def _movie(read: Read, start: int, stop: int) -> list[str]:
    facts = []
    for kind, first, last in _boxes(read, start, stop):
        if kind == b"mvhd":
            body = read(first, 32)
            scale, ticks = struct.unpack(">IQ", body[20:32]) if body[0] == 1 else struct.unpack(">II", body[12:20])
            facts += [f"{ticks / scale:.2f} s"] if scale else []
        elif kind == b"trak":
            for name, _, end in _boxes(read, first, last):
                if name == b"tkhd":
                    width, height = struct.unpack(">II", read(end - 8, 8))
                    facts += [f"{width >> 16} x {height >> 16}"] if width and height else []
    return facts


def _boxes(read: Read, start: int, stop: int) -> list[tuple[bytes, int, int]]:
    """(kind, start, end of its content) of the boxes in a range."""
    found: list[tuple[bytes, int, int]] = []
    while start + 8 <= stop and len(found) < _MAX_BOXES:
        header = read(start, 16)
        length, skip = int.from_bytes(header[:4], "big"), 8
        if length == 1:
            length, skip = int.from_bytes(header[8:16], "big"), 16
        end = stop if length == 0 else start + length
        if end < start + skip or end > stop:
            break
        found.append((header[4:8], start + skip, end))
        start = end
    return found


def _nothing(head: bytes, size: int, read: Read) -> str:
    return ""


_MAGIC: tuple[tuple[bytes, int, str, Callable[[bytes, int, Read], str]], ...] = (
    (b"\x89PNG\r\n\x1a\n", 0, "PNG", _png),
    (b"\xff\xd8\xff", 0, "JPEG", _jpeg),
    (b"GIF8", 0, "GIF", _gif),
    (b"WEBP", 8, "WebP", _webp),
    (b"WAVE", 8, "WAV", _riff),
    (b"fLaC", 0, "FLAC", _flac),
    (b"\x93NUMPY", 0, "npy", _npy),
    (b"ftyp", 4, "MP4", _mp4),
    (b"OggS", 0, "Ogg", _nothing),
    (b"ID3", 0, "MP3", _nothing),
    (b"\x1aE\xdf\xa3", 0, "Matroska", _nothing),
    (b"PK\x03\x04", 0, "zip", _nothing),
    (b"\x1f\x8b", 0, "gzip", _nothing),
    (b"(\xb5/\xfd", 0, "zstd", _nothing),
    (b"%PDF", 0, "PDF", _nothing),
    (b"PAR1", 0, "Parquet", _nothing),
    (b"II*\x00", 0, "TIFF", _nothing),
    (b"MM\x00*", 0, "TIFF", _nothing),
)
