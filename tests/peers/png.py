"""Pictures without a picture library: the PNG files of fixtures/pets (8 bit, RGB, not interlaced) as tensors."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import torch


def decode_png(data: bytes) -> torch.Tensor:
    """float32[3, height, width] in 0 .. 1."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    width = height = 0
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", body)
            assert (depth, colour, interlace) == (8, 2, 0)
        elif kind == b"IDAT":
            packed += body
        at += 12 + length
    flat, width = zlib.decompress(packed), 3 * width
    before, rows = bytes(width), []
    for y in range(height):
        start = y * (1 + width)
        before = _unfilter(flat[start], flat[start + 1 : start + 1 + width], before)
        rows.append(before)
    pixels = np.frombuffer(b"".join(rows), np.uint8).reshape(height, width // 3, 3)
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy()).float() / 255


def _unfilter(kind: int, raw: bytes, above: bytes) -> bytes:
    """One line of pixels; section 9 of the PNG specification."""
    out = bytearray(raw)
    for x in range(len(raw)):
        left, corner = (out[x - 3], above[x - 3]) if x >= 3 else (0, 0)
        up = above[x]
        base = (0, left, up, (left + up) // 2, _paeth(left, up, corner))[kind]
        out[x] = (raw[x] + base) & 255
    return bytes(out)


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    return min((left, up, corner), key=lambda value: abs(guess - value))
