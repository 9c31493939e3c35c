"""The page index of Parquet shards, read by the specification: every page lies where it says, with the rows it says.

Sources: apache/parquet-format:src/main/thrift/parquet.thrift, PageIndex.md; apache/thrift:doc/specs/
thrift-compact-protocol.md. pyarrow tells whether there is an index, but not what is in it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from helpers import make_tree, pack, shard_paths

from shardtool.formats import parquet
from shardtool.formats.parquet_pages import PAGE_VALUES

if TYPE_CHECKING:
    from pathlib import Path

BOOLEANS, I8, INTEGERS, DOUBLE, BINARY, LISTS, STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12
INT64_BYTES = 8


@dataclass
class Compact:
    """Reads values of Thrift's compact protocol: structs are {id of field: value}."""

    data: bytes
    place: int = 0

    def take(self, count: int) -> bytes:
        self.place += count
        assert self.place <= len(self.data)
        return self.data[self.place - count : self.place]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def integer(self) -> int:
        value = self.varint()
        return value >> 1 ^ -(value & 1)

    def value(self, kind: int) -> Any:
        if kind in INTEGERS:
            return self.integer()
        if kind in LISTS:
            head = self.take(1)[0]
            count = self.varint() if head >> 4 == 15 else head >> 4
            return [self.element(head & 0x0F) for _ in range(count)]
        sizes = {I8: 1, DOUBLE: 8}
        if kind == STRUCT:
            return self.struct()
        return self.take(self.varint() if kind == BINARY else sizes[kind])

    def element(self, kind: int) -> Any:
        """Of a list, where a flag takes a byte."""
        return self.take(1) == b"\1" if kind in BOOLEANS else self.value(kind)

    def struct(self) -> dict[int, Any]:
        found: dict[int, Any] = {}
        number = 0
        while head := self.take(1)[0]:
            number = number + (head >> 4) if head >> 4 else self.integer()
            kind = head & 0x0F
            found[number] = kind == BOOLEANS[0] if kind in BOOLEANS else self.value(kind)
        return found


def footer_of(data: bytes) -> dict[int, Any]:
    """FileMetaData."""
    (size,) = struct.unpack("<I", data[-8:-4])
    assert data[-4:] == b"PAR1"
    return Compact(data, len(data) - 8 - size).struct()


def check_pages(data: bytes, chunk: dict[int, Any], num_rows: int) -> list[int]:
    """First rows of the pages of a column chunk and its number of rows, after comparing them with the pages."""
    metadata = chunk[3]
    pages = Compact(data, chunk[4]).struct()[1]
    place, rows = metadata[9], 0
    for page in pages:
        assert (page[1], page[3]) == (place, rows)
        reader = Compact(data, place)
        header = reader.struct()
        assert page[2] == reader.place - place + header[3]
        place += page[2]
        rows += header[5][1]  # no lists: a value a row
    assert place == metadata[9] + metadata[7]
    assert rows == num_rows
    return [*(page[3] for page in pages), num_rows]


@pytest.mark.parametrize(("compress", "group_rows"), [("none", PAGE_VALUES), ("zstd:3", 2 * PAGE_VALUES)])
def test_every_page_lies_where_its_index_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: str, group_rows: int
) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", group_rows)
    monkeypatch.setattr(parquet, "PAGE_BYTES", 64 << 10)
    count = 2 * PAGE_VALUES + 300
    files: dict[str, str] = {}
    for n in range(count):
        files |= {f"{n:04d}.txt": f"text {n} " * 30, f"{n:04d}.cls": str((n * 37) % 101 - 50)}
        files |= {f"{n:04d}.png": "p" * (n % 50)} if n % 3 == 0 else {}
    pack(make_tree(tmp_path / "in", files), tmp_path / "out", format="parquet", compress=compress, shards=1)
    (path,) = shard_paths(tmp_path / "out")
    data, numbers = path.read_bytes(), pq.read_table(path, columns=["cls"]).column(0).to_pylist()
    groups = footer_of(data)[4]
    assert len(groups) > 1
    starts, counts = [0], set[int]()
    for group in groups:
        starts.append(starts[-1] + group[3])
        for chunk in group[1]:
            rows = check_pages(data, chunk, group[3])
            counts.add(len(rows) - 1)
            if chunk[3][3] == [b"cls"]:
                check_bounds(data, chunk, [numbers[starts[-2] :][one:two] for one, two in pairwise(rows)])
    assert starts[-1] == count
    assert (max(counts) > 1) == (compress != "none")  # a row group that is one page we write ourselves


def check_bounds(data: bytes, chunk: dict[int, Any], pages: list[list[int]]) -> None:
    """The column index of numbers has the smallest and largest of each page."""
    index = Compact(data, chunk[6]).struct()
    assert index[1] == [False] * len(pages)
    for number, page in enumerate(pages):
        assert index[2][number] == min(page).to_bytes(INT64_BYTES, "little", signed=True)
        assert index[3][number] == max(page).to_bytes(INT64_BYTES, "little", signed=True)
