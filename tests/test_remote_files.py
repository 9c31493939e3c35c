"""Objects read as streams and by ranges: every byte once, little that nobody asked for, and never half of one."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.errors import SourceChanged
from shardtool.storage import files
from shardtool.storage.base import Stat
from shardtool.storage.files import RangedFile, RemoteStream
from shardtool.tokens.files import InputFile
from shardtool.tokens.inputs import _with_distinct_names

if TYPE_CHECKING:
    from shardtool.storage.base import Place


@dataclass
class OneObject:
    """A place that holds one object, and writes down what it was asked for."""

    data: bytes
    version: str = "v1"
    asked: list[tuple[int, int, str]] = field(default_factory=list)  # offset, bytes, version

    def shown(self, path: str) -> str:
        return f"s3://bucket/{path}"

    def stat(self, path: str) -> Stat:
        return Stat(path, len(self.data), self.version)

    def read_into(self, path: str, offset: int, view: memoryview, *, version: str = "") -> int:
        self.asked.append((offset, len(view), version))
        found = self.data[offset : offset + len(view)]
        view[: len(found)] = found
        return len(found)


@given(
    size=st.integers(0, 300),
    bounds=st.tuples(st.integers(0, 320), st.integers(-1, 320)),
    pieces=st.lists(st.integers(1, 90), min_size=1, max_size=6),
)
def test_a_stream_gives_every_byte_from_where_it_begins(size: int, bounds: tuple[int, int], pieces: list[int]) -> None:
    data = bytes(number % 251 for number in range(size))
    place, (begin, end) = OneObject(data), bounds
    with (
        patch.object(files, "WINDOW_BYTES", 32),
        patch.object(files, "TAIL_BYTES", 4),
        RemoteStream(cast("Place", place), "x", begin=begin, end=end) as stream,
    ):
        found, turn = b"", 0
        while True:
            buffer = bytearray(pieces[turn % len(pieces)])
            count = stream.readinto(memoryview(buffer))
            found, turn = found + buffer[:count], turn + 1
            if not count:
                break
    assert found == data[begin:]
    assert sum(count for _, count, _ in place.asked) == len(found), "no byte twice"
    assert {version for _, _, version in place.asked} <= {"v1"}


def test_nothing_behind_a_stretch_is_fetched_before_it_is_asked_for() -> None:
    place = OneObject(bytes(10_000))
    with (
        patch.object(files, "WINDOW_BYTES", 100),
        patch.object(files, "TAIL_BYTES", 10),
        RemoteStream(cast("Place", place), "x", begin=500, end=1000) as stream,
    ):
        reader = io.BufferedReader(stream, 50)
        assert len(reader.read(500)) == 500
        assert max(offset + count for offset, count, _ in place.asked) == 1000
        assert len(reader.read(60)) == 60
    behind = [(offset, count) for offset, count, _ in place.asked if offset >= 1000]
    assert behind == [(1000, 10), (1010, 20), (1030, 40)], "twice as much each time"


def test_an_object_that_was_listed_is_not_looked_up_again() -> None:
    place = OneObject(b"0123456789", version="v2")
    with RangedFile(cast("Place", place), "x", Stat("x", 10, "v1")) as ranges:
        ranges.seek(4)
        assert ranges.read(3) == b"456"
    assert place.asked == [(4, 3, "v1")]


def test_an_object_that_is_shorter_than_listed_is_an_error_and_no_short_answer() -> None:
    place, listed = cast("Place", OneObject(b"0123")), Stat("x", 10, "")
    with RangedFile(place, "x", listed) as ranges, pytest.raises(SourceChanged, match="x ends at byte 4"):
        ranges.read(10)
    with RemoteStream(place, "x", known=listed) as stream, pytest.raises(SourceChanged, match="x ends at byte 4"):
        stream.readinto(memoryview(bytearray(10)))


@pytest.mark.parametrize("path", ["a.txt", "/lead.txt", "a//b.txt", "../b", "a/./b", "trailing /"])
@pytest.mark.parametrize("root", ["s3://bucket", "s3://bucket/p", "s3://bucket/p/"])
def test_an_object_is_found_whatever_slashes_are_in_its_key(root: str, path: str) -> None:
    file = InputFile(root, path.encode(), 1, 0, "text")
    place, name = file.place()
    assert f"{place.url}/{name}" == file.full_path == f"{root}/{path}"


def test_objects_and_files_of_one_path_are_told_apart_by_what_is_before_it() -> None:
    places = [
        ("/home/corpus", b"x.txt"),
        ("s3://corpus", b"x.txt"),
        ("s3://b/corpus", b"x.txt"),
        ("s3://b/c", b"y.txt"),
    ]
    found = _with_distinct_names([InputFile(root, path, 1, 0, "text") for root, path in places])
    assert [file.path for file in found] == [b"home/corpus/x.txt", b"corpus/x.txt", b"b/corpus/x.txt", b"y.txt"]
    assert [file.full_path for file in found] == [f"{root}/{path.decode()}" for root, path in places]
