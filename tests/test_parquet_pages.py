from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import make_tree, pack, shard_paths
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.formats import KINDS, Column, Settings, parquet, thrift
from shardtool.formats.parquet_pages import PAGE_VALUES, encode_levels

if TYPE_CHECKING:
    from pathlib import Path

SMALL = settings(max_examples=60, derandomize=True, deadline=None)
PARQUET: dict[str, Any] = {"format": "parquet", "shards": 1}
HAS_PAGES = parquet.writes_like_pyarrow(Settings(tuple(Column(kind.encode(), kind, False) for kind in KINDS)))
with_pages = pytest.mark.skipif(
    not HAS_PAGES, reason=f"pyarrow {pa.__version__} writes other metadata: it writes such shards itself"
)
PARTS = ["a", "jpg", "txt", "cls", "seg.png", "id"]


def both(source: Path, out: Path, **options: Any) -> tuple[bytes, bytes]:
    """(the shard as we write it, as pyarrow does)."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        by_pyarrow: list[str] = []
        plain = parquet.ParquetFormat._write_by_pyarrow

        def noted(*arguments: Any) -> int:
            by_pyarrow.append("pyarrow")
            return plain(*arguments)

        patch.setattr(parquet.ParquetFormat, "_write_by_pyarrow", noted)
        for name, limit in (("ours", PAGE_VALUES), ("theirs", 0)):
            patch.setattr(parquet, "PAGE_VALUES", limit)
            pack(source, out / name, **PARQUET, **options)
            found.append(shard_paths(out / name)[0].read_bytes())
            assert not HAS_PAGES or len(by_pyarrow) == (name == "theirs")
            by_pyarrow.clear()
    return found[0], found[1]


@SMALL
@given(
    st.lists(st.dictionaries(st.sampled_from(PARTS), st.integers(0, 400), min_size=1), min_size=1, max_size=60),
    st.integers(1, 20),
)
def test_a_shard_has_the_bytes_that_pyarrow_writes(
    tmp_path_factory: pytest.TempPathFactory, samples: list[dict[str, int]], group_rows: int
) -> None:
    folder = tmp_path_factory.mktemp("pages")
    files = {
        f"{number}.{part}": str(size - 200) if part in ("cls", "id") else "é" * size
        for number, parts in enumerate(samples)
        for part, size in parts.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "GROUP_ROWS", group_rows)
        ours, theirs = both(make_tree(folder / "src", files), folder, shuffle="none")
    assert ours == theirs


def test_row_groups_of_real_size_too(tmp_path: Path) -> None:
    rng = random.Random(7)
    files: dict[Any, bytes | str] = {}
    for number in range(300):
        files[f"{number:03d}.jpg"] = rng.randbytes(rng.choice((0, 1, 40_000, 90_000, 200_000)))
        if number % 3:
            files[f"{number:03d}.cls"] = str(rng.randrange(-5, 2**62))
        if number < 100:
            files[f"{number:03d}.npy"] = rng.randbytes(number)
    files["large.jpg"] = rng.randbytes(10 << 20)  # a row group of its own, beyond the slab
    ours, theirs = both(make_tree(tmp_path / "src", files), tmp_path)
    assert ours == theirs
    assert pq.ParquetFile(pa.BufferReader(ours)).metadata.num_row_groups > 3


@with_pages
def test_a_group_of_more_rows_than_a_page_takes_is_left_to_pyarrow(tmp_path: Path) -> None:
    for count, by_pyarrow in ((PAGE_VALUES, False), (PAGE_VALUES + 1, True)):
        source = make_tree(tmp_path / f"{count}", {f"{number:04d}.a": b"" for number in range(count)})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parquet, "pages_of", refused)
            if by_pyarrow:
                pack(source, tmp_path / f"out{count}", **PARQUET)
                continue
            with pytest.raises(AssertionError, match="our pages"):
                pack(source, tmp_path / f"out{count}", **PARQUET)


def refused(*_: Any) -> None:
    raise AssertionError("our pages")


@with_pages
def test_a_footer_that_could_be_cut_in_two_places_is_left_to_pyarrow() -> None:
    names = (b"a", b"a\x16\0\x19\x0cb")
    assert [parquet.writes_like_pyarrow(Settings((Column(name, "binary", True),))) for name in names] == [True, False]


@with_pages
@pytest.mark.parametrize("kind", KINDS)
def test_a_pyarrow_that_writes_otherwise_is_left_to_itself(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = Settings((Column(b"a", kind, False),))
    assert parquet.writes_like_pyarrow(columns)
    parquet.writes_like_pyarrow.cache_clear()
    monkeypatch.setattr("shardtool.formats.parquet_pages.Chunk.offset_index", lambda _: b"\0")
    assert not parquet.writes_like_pyarrow(columns)
    parquet.writes_like_pyarrow.cache_clear()


# Levels


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30)), min_size=1, max_size=60), st.sampled_from([1, 2]))
def test_levels_are_those_of_pyarrow(runs: list[tuple[bool, int]], depth: int) -> None:
    present = [flag for flag, count in runs for _ in range(count)][:PAGE_VALUES]
    values: list[Any] = [b"" if flag else None for flag in present]
    kind: Any = pa.binary()
    if depth == 2:
        values, kind = [None if value is None else {"x": value} for value in values], pa.struct([("x", pa.binary())])
    sink = pa.BufferOutputStream()
    table = pa.table({"c": pa.array(values, kind)})
    pq.write_table(table, sink, compression="none", use_dictionary=False, write_statistics=False)
    levels = np.array(present, np.uint8) * np.uint8(depth)
    assert encode_levels(levels, depth) + bytes(4 * sum(present)) in sink.getvalue().to_pybytes()


@pytest.mark.parametrize("count", [503, 504, 505, 512, 1024])
def test_a_packed_run_ends_after_sixty_three_groups(count: int) -> None:
    levels = np.arange(count, dtype=np.uint8) % 2
    encoded = encode_levels(levels, 1)
    assert encoded[4] == min(-(-count // 8), 63) << 1 | 1
    assert int.from_bytes(encoded[:4], "little") == len(encoded) - 4 == -(-count // 8) + -(-count // 504)


# Thrift


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(0, b"\0"), (-1, b"\1"), (1, b"\2"), (63, b"~"), (64, b"\x80\1"), (-(1 << 31), b"\xff" * 4 + b"\x0f")],
)
def test_numbers_are_zigzag_varints(value: int, wanted: bytes) -> None:
    assert thrift.integer(value) == wanted


def test_lists_of_fifteen_say_their_length_apart() -> None:
    assert thrift.list_(thrift.I32, [b"\0"] * 14) == b"\xe5" + bytes(14)
    assert thrift.list_(thrift.I32, [b"\0"] * 15) == b"\xf5\x0f" + bytes(15)


def test_fields_are_counted_from_the_one_before() -> None:
    encoded = thrift.struct((1, thrift.I32, b"\2"), (3, thrift.TRUE, b""), (16, thrift.BINARY, thrift.binary(b"ab")))
    assert encoded == b"\x15\2" + b"\x21" + b"\xd8\2ab" + b"\0"
