"""Arrow shards as pyarrow sees them, and where their cells lie."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import xxhash
from helpers import Said, make_tree, pack, run_cli, shard_paths
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.assignment.files import extents_of
from shardtool.errors import PlanError
from shardtool.formats import CELLS, ROWS, Column, Settings
from shardtool.formats.arrow import ArrowFormat
from shardtool.index_file import open_index
from shardtool.manifest import load_manifest
from shardtool.planning.plan_file import load_plan
from shardtool.reading.reading import Dataset
from shardtool.verification.verify import verify
from shardtool.workers import WorkerPool

if TYPE_CHECKING:
    from pathlib import Path

SMALL = settings(max_examples=60, derandomize=True, deadline=None)
ARROW: dict[str, Any] = {"format": "arrow"}


def small_batches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("shardtool.formats.arrow.BATCH_BYTES", 600)
    patch.setattr("shardtool.formats.arrow.BATCH_ROWS", 5)


def planned_bytes(out: Path) -> int:
    stored = load_plan(os.fspath(out))
    assert stored is not None
    return stored.shards[0].num_bytes


def test_pyarrow_reads_rows_in_the_order_of_the_index(tmp_path: Path) -> None:
    files = {f"{n:02d}.{part}": f"{part} № {n}" for n in range(40) for part in ("txt", "jpg") if part == "txt" or n % 2}
    pack(make_tree(tmp_path / "src", files), tmp_path / "out", **ARROW, shards=1)
    with pa.ipc.open_file(shard_paths(tmp_path / "out")[0]) as reader:
        table = reader.read_all()
    table.validate(full=True)
    index = open_index(os.fspath(tmp_path / "out/index/00000.arrow"))
    assert [key.encode() for key in table.column("key").to_pylist()] == [index.key(row) for row in range(40)]
    assert table.column("txt").to_pylist() == [f"txt № {int(key)}" for key in table.column("key").to_pylist()]
    pictures = {
        int(k): v for k, v in zip(table.column("key").to_pylist(), table.column("jpg").to_pylist(), strict=True)
    }
    assert all((picture is not None) == bool(number % 2) for number, picture in pictures.items())


@SMALL
@given(
    st.lists(
        st.dictionaries(st.sampled_from(["a", "jpg", "txt", "seg.png"]), st.integers(0, 300), min_size=1),
        min_size=1,
        max_size=40,
    )
)
def test_every_part_lies_where_names_and_sizes_say(
    tmp_path_factory: pytest.TempPathFactory, samples: list[dict[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("cells")
    files = {
        f"{number}.{part}": f"{number}{part}"[:size].ljust(size, "-")
        for number, parts in enumerate(samples)
        for part, size in parts.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        small_batches(patch)
        pack(make_tree(folder / "src", files), folder / "out", **ARROW, shards=1)
        assert verify(os.fspath(folder / "out"), WorkerPool(0), Said(), is_deep=True).faults == ()
    index = open_index(os.fspath(folder / "out/index/00000.arrow"))
    assert index.addressing == CELLS
    data = shard_paths(folder / "out")[0].read_bytes()
    assert len(data) <= planned_bytes(folder / "out")
    for part, owner in enumerate(index.owners().tolist()):
        start, size = int(index.part_offset[part]), int(index.part_bytes[part])
        member = (index.key(owner) + b"." + index.part_names[part].as_py()).decode()
        assert data[start : start + size] == files[member].encode()
        assert xxhash.xxh3_64_intdigest(data[start : start + size]) == int(index.part_xxh3_64[part])


@SMALL
@given(
    st.lists(
        st.dictionaries(st.sampled_from(["a", "jpg", "txt", "cls"]), st.integers(0, 300), min_size=1),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from(["none", "zstd:1"]),
)
def test_no_shard_is_larger_than_its_bound(
    tmp_path_factory: pytest.TempPathFactory, samples: list[dict[str, int]], compress: str
) -> None:
    folder = tmp_path_factory.mktemp("bound")
    files = {
        f"{number}.{part}": str(size) if part == "cls" else "x" * size
        for number, parts in enumerate(samples)
        for part, size in parts.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        small_batches(patch)
        pack(make_tree(folder / "src", files), folder / "out", **ARROW, compress=compress, shards=1)
    shard = load_manifest(os.fspath(folder / "out")).shards[0]
    assert (shard.raw_bytes or shard.num_bytes) <= planned_bytes(folder / "out")


@pytest.mark.parametrize(
    ("kinds", "compress", "wanted"),
    [
        (["binary", "string", "image"], "none", CELLS),
        (["binary"], "zstd:3", ROWS),
        (["binary", "int64"], "none", ROWS),
    ],
)
def test_cells_have_addresses_where_they_hold_the_bytes_of_parts(kinds: list[str], compress: str, wanted: str) -> None:
    columns = tuple(Column(f"{n}".encode(), kind, True) for n, kind in enumerate(kinds))
    assert ArrowFormat(Settings(columns, compress)).addressing == wanted


@pytest.mark.parametrize("compress", ["none", "zstd:3"])
def test_numbers_come_back_from_many_batches(tmp_path: Path, compress: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small_batches(monkeypatch)
    files = {f"{n:02d}.{part}": text for n in range(40) for part, text in (("cls", str(n - 20)), ("txt", "x" * n))}
    pack(make_tree(tmp_path / "src", files), tmp_path / "out", **ARROW, compress=compress, shards=1)
    with Dataset.open(os.fspath(tmp_path / "out")) as dataset:
        assert dataset.index(0).addressing == ROWS
        found = {sample.key: sample.parts for sample in dataset.samples(0, check=True)}
        assert extents_of(dataset) is None
    wanted = {f"{n:02d}".encode(): {"cls": str(n - 20).encode(), "txt": b"x" * n} for n in range(40)}
    assert found == wanted
    with pa.ipc.open_file(shard_paths(tmp_path / "out")[0]) as reader:
        assert reader.num_record_batches > 4


@pytest.mark.parametrize("shard_format", ["arrow", "arrow-stream"])
def test_a_cell_above_two_gib_is_refused_before_anything_is_read(tmp_path: Path, shard_format: str) -> None:
    make_tree(tmp_path / "src", {"a.bin": ""})
    os.truncate(tmp_path / "src" / "a.bin", 1 << 31)
    with pytest.raises(PlanError, match=r"a\.bin: 2,147,483,648 bytes"):
        pack(tmp_path / "src", tmp_path / "out", format=shard_format)
    assert not (tmp_path / "out").exists()


def test_a_lost_index_of_cells_comes_back_bit_for_bit(tmp_path: Path) -> None:
    files = {f"{n:02d}.{part}": f"{part}{n}" for n in range(40) for part in ("txt", "jpg")}
    pack(make_tree(tmp_path / "src", files), tmp_path / "out", **ARROW, shards=2)
    path = tmp_path / "out/index/00001.arrow"
    before = path.read_bytes()
    path.unlink()
    assert run_cli("index", tmp_path / "out").code == 0
    assert path.read_bytes() == before
