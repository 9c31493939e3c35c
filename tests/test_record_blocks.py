"""Records of an object, window by window: the cells that the whole file has, at the same bytes, in bounded memory."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pytest
from helpers import make_tree, run_cli

from shardtool.errors import ShardtoolError
from shardtool.shard_sources import record_blocks
from shardtool.shard_sources.record_blocks import remote_blocks, whole_block
from shardtool.storage import open_place
from shardtool.storage.base import Stat

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.storage.base import Place

NAMES = ("tfrecord", "mds", "litdata")


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """{format: one shard of it}; what is read by the name of an object is this folder's file."""
    rng = random.Random(1)
    files = {f"{n:03d}.{part}": rng.randbytes(rng.choice((0, 9, 700))) for n in range(90) for part in ("bin", "dat")}
    tree, found = make_tree(tmp_path / "src", {**files, "large.bin": rng.randbytes(30_000)}), {}
    for name in NAMES:
        assert run_cli("pack", tree, tmp_path / name, "--format", name).code == 0
        paths = [path for path in (tmp_path / name / "data").rglob("*") if path.is_file()]
        found[name] = next(path for path in paths if path.suffix != ".json")

    def split(path: str) -> tuple[Place, str]:
        folder, _, last = path.rpartition("/")
        return open_place(folder), last

    monkeypatch.setattr(record_blocks, "place_of", split)
    monkeypatch.setattr(record_blocks, "BLOCK_BYTES", 2_000)
    return found


def cells(path: Path, name: str) -> list[list[tuple[bytes, int, int, bytes]]]:
    """(name, byte of the file, size, text) of every value, record by record, through windows."""
    blocks = remote_blocks(str(path), name, Stat(path.name, path.stat().st_size, ""))
    found = []
    for block in blocks:
        assert len(block.view) < 33_000
        found += [[(c.name, block.base + c.offset, c.size, c.text) for c in record] for record in block.records]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_windows_hold_the_cells_of_the_whole(shards: dict[str, Path], name: str) -> None:
    path = shards[name]
    whole = whole_block(memoryview(path.read_bytes()), str(path), name)
    wanted = [[tuple(cell) for cell in record] for record in whole.records]
    assert len(wanted) == 91
    assert cells(path, name) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_damage_is_told_at_its_byte_of_the_file(shards: dict[str, Path], tmp_path: Path, name: str) -> None:
    path = shards[name]
    data = path.read_bytes()
    rng = random.Random(2)
    hurt = tmp_path / "hurt" / path.name
    hurt.parent.mkdir()
    if (path.parent / "index.json").exists():
        shutil.copy(path.parent / "index.json", hurt.parent)
    for trial in range(60):
        altered = bytearray(data)
        altered[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        hurt.write_bytes(altered[: rng.randrange(1, len(data))] if trial % 2 else altered)
        wanted = got = None
        try:
            list(whole_block(memoryview(hurt.read_bytes()), str(hurt), name).records)
        except ShardtoolError as error:
            wanted = error.where.get("offset")
        try:
            cells(hurt, name)
        except ShardtoolError as error:
            got = error.where.get("offset")
        assert got == wanted, trial
