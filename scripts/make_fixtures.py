"""Draw fixtures/pets: 64 small pictures of cats, dogs, birds and fish, with captions and metadata.

Standard library only. Every number comes from a digest of the sample's name, so a rerun draws the same pixels;
the compressed bytes may differ with another zlib, which is why the files are kept in the repository.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import zlib
from pathlib import Path
from typing import NamedTuple

PICTURES_PER_CLASS = 16
COLOURS = {
    "orange": (224, 132, 48),
    "grey": (140, 140, 150),
    "brown": (120, 78, 48),
    "white": (240, 236, 228),
    "black": (48, 46, 52),
    "golden": (226, 184, 84),
    "blue": (72, 120, 210),
    "red": (204, 64, 60),
}
GROUNDS = {
    "a meadow": (126, 176, 96),
    "the sofa": (168, 104, 120),
    "sand": (222, 204, 160),
    "a night sky": (36, 40, 84),
}
EYES = {"green": (96, 200, 96), "amber": (232, 176, 40), "dark": (20, 20, 20)}
KINDS = {"cats": "cat", "dogs": "dog", "birds": "bird", "fish": "fish"}
NAMES = ("Ada", "Bo", "Cleo", "Dot", "Emil", "Fips", "Gus", "Hana", "Ivo", "Juno", "Kiki", "Lou", "Mo", "Nell")

Pixel = tuple[int, int, int]


class Shape(NamedTuple):
    """An ellipse, or with `is_triangle` an upright triangle that fills the same box; in parts of the picture."""

    colour: Pixel
    x: float
    y: float
    rx: float
    ry: float
    is_triangle: bool = False

    def covers(self, u: float, v: float) -> bool:
        """Whether the point (u, v), both 0 .. 1, lies inside."""
        dx, dy = (u - self.x) / self.rx, (v - self.y) / self.ry
        if self.is_triangle:
            return -1 <= dy <= 1 and abs(dx) <= (dy + 1) / 2
        return dx * dx + dy * dy <= 1


def dice(*words: object) -> bytes:
    """64 bytes that follow from the words alone."""
    return hashlib.blake2b("/".join(map(str, words)).encode()).digest()


def pick(table: dict[str, Pixel], byte: int) -> tuple[str, Pixel]:
    """One row of a colour table."""
    name = list(table)[byte % len(table)]
    return name, table[name]


def animal(kind: str, fur: Pixel, eye: Pixel, wobble: float) -> list[Shape]:
    """Shapes from back to front."""
    shade: Pixel = (fur[0] * 2 // 3, fur[1] * 2 // 3, fur[2] * 2 // 3)
    x, y = 0.5 + wobble, 0.55 - wobble / 2
    eyes = [Shape(eye, x + side * 0.12, y - 0.05, 0.05, 0.06) for side in (-1, 1)]
    head = Shape(fur, x, y, 0.3, 0.28)
    nose = Shape((230, 130, 140), x, y + 0.08, 0.04, 0.03)
    if kind == "cats":
        return [Shape(shade, x + side * 0.19, y - 0.27, 0.1, 0.13, True) for side in (-1, 1)] + [head, *eyes, nose]
    if kind == "dogs":
        return [head] + [Shape(shade, x + side * 0.28, y, 0.08, 0.2) for side in (-1, 1)] + [*eyes, nose]
    if kind == "birds":
        beak = Shape((240, 170, 40), x, y + 0.1, 0.07, 0.08, True)
        wings = [Shape(shade, x + side * 0.3, y + 0.05, 0.14, 0.09) for side in (-1, 1)]
        return [*wings, Shape(fur, x, y, 0.22, 0.3), *eyes, beak]
    tail = Shape(shade, x - 0.3, y, 0.12, 0.17, True)
    bubbles = [Shape((210, 230, 250), 0.85, 0.1 + 0.12 * row, 0.03, 0.03) for row in range(3)]
    return [tail, Shape(fur, x, y, 0.32, 0.19), Shape(eye, x + 0.18, y - 0.04, 0.04, 0.05), *bubbles]


def draw(width: int, height: int, ground: Pixel, shapes: list[Shape], grain: bytes) -> bytes:
    """RGB rows, each behind PNG's filter byte 0; `grain` roughens the ground as a camera would."""
    rows = bytearray()
    for row in range(height):
        rows.append(0)
        for column in range(width):
            u, v = (column + 0.5) / width, (row + 0.5) / height
            pixel = next((shape.colour for shape in reversed(shapes) if shape.covers(u, v)), None)
            noise = grain[(row * 31 + column * 17 + row * column) % len(grain)] % 12
            rows += bytes(pixel or (max(c - noise, 0) for c in ground))
    return bytes(rows)


def png(width: int, height: int, rows: bytes) -> bytes:
    """A PNG file, 8 bit RGB (W3C PNG specification, sections 5 and 11)."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def write_sample(folder: Path, kind: str, number: int) -> None:
    """One picture, its caption, and for most its metadata."""
    throw = dice(kind, number)
    colour, fur = pick(COLOURS, throw[0])
    place, ground = pick(GROUNDS, throw[1])
    look, eye = pick(EYES, throw[2])
    width, height = 32 + 8 * (throw[3] % 5), 32 + 8 * (throw[4] % 5)
    shapes = animal(kind, fur, eye, (throw[5] - 128) / 1600)
    stem = folder / f"{number:04}"
    stem.with_suffix(".png").write_bytes(png(width, height, draw(width, height, ground, shapes, throw)))
    article = "an" if colour == "orange" else "a"
    caption = f"{article} {colour} {KINDS[kind]} with {look} eyes before {place}\n"
    stem.with_suffix(".txt").write_text(caption, encoding="utf-8")
    if throw[6] % 4:
        facts = {"name": NAMES[throw[7] % len(NAMES)], "age_years": throw[8] % 15, "width": width, "height": height}
        stem.with_suffix(".json").write_text(json.dumps(facts) + "\n", encoding="utf-8")


def main() -> None:
    """Write the data set to the folder given, or to fixtures/pets."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "fixtures" / "pets"
    for kind in KINDS:
        folder = target / kind
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, PICTURES_PER_CLASS + 1):
            write_sample(folder, kind, number)


if __name__ == "__main__":
    main()
