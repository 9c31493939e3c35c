"""Compressed tar shards without a manifest: verified and indexed by their frames, refused where nothing can seek."""

from __future__ import annotations

import os
import random
import shutil
from typing import TYPE_CHECKING

import pytest
import zstandard
from helpers import make_tree, pack, run_cli

from shardtool.index_file import open_index
from shardtool.manifest import load_manifest
from shardtool.reading.reading import Dataset

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three compressed shards of two frames each, one sample over the border."""
    folder = tmp_path_factory.mktemp("zstd")
    rng = random.Random(5)
    files = {f"d/{number:04d}.txt": rng.randbytes(3).hex() * 1700 for number in range(450)}
    make_tree(folder / "src", files)
    pack(folder / "src", folder / "out", shards=3, compress="zstd:5")
    return folder / "out"


@pytest.fixture
def bare(packed: Path, tmp_path: Path) -> Path:
    shutil.copytree(packed / "data", tmp_path / "bare" / "data")
    return tmp_path / "bare"


def shards_of(folder: Path) -> list[Path]:
    return sorted((folder / "data").iterdir())


def foreign(path: Path, to: Path) -> Path:
    """The same tar in one frame of the ordinary compressor."""
    reader = zstandard.ZstdDecompressor().stream_reader(path.read_bytes(), read_across_frames=True)
    to.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(reader.read()))
    return to


def test_our_shards_are_checked_and_counted(bare: Path) -> None:
    ran = run_cli("verify", bare, "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["shards"], ran.json["samples"]) == (3, 450)
    assert run_cli("verify", shards_of(bare)[1]).code == 0


def test_a_shard_of_another_compressor_is_checked_as_a_stream(bare: Path, tmp_path: Path) -> None:
    other = foreign(shards_of(bare)[0], tmp_path / "other.tar.zst")
    ran = run_cli("verify", other, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["samples"] == 150


@pytest.mark.parametrize("by_us", [True, False])
@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_damage_in_a_frame_is_found(bare: Path, tmp_path: Path, place: float, by_us: bool) -> None:
    path = shards_of(bare)[0] if by_us else foreign(shards_of(bare)[0], tmp_path / "other.tar.zst")
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 0x55
    path.write_bytes(data)
    ran = run_cli("verify", path, "--json")
    assert ran.code == 4
    assert path.name in ran.json["problems"][0]["message"]


@pytest.mark.parametrize("end", [4, 12, 100, 900])
def test_a_stream_that_was_cut_short_is_damage(bare: Path, tmp_path: Path, end: int) -> None:
    path = foreign(shards_of(bare)[0], tmp_path / "other.tar.zst")
    os.truncate(path, path.stat().st_size - end)
    ran = run_cli("verify", path)
    assert ran.code == 4
    assert "cut short" in ran.out + ran.err


def test_a_table_of_other_frames_is_damage(bare: Path) -> None:
    path = shards_of(bare)[0]
    data = bytearray(path.read_bytes())
    first, second = data[-25:-21], data[-17:-13]
    sizes = [int.from_bytes(size, "little") for size in (first, second)]
    data[-25:-21] = (sizes[0] - 1).to_bytes(4, "little")
    data[-17:-13] = (sizes[1] + 1).to_bytes(4, "little")
    path.write_bytes(data)
    ran = run_cli("verify", path)
    assert ran.code == 4
    assert "seek table" in ran.out + ran.err


def test_our_shards_get_their_index_and_manifest_again(bare: Path, packed: Path) -> None:
    ran = run_cli("index", bare)
    assert ran.code == 0, ran.err
    manifest, before = load_manifest(os.fspath(bare)), load_manifest(os.fspath(packed))
    assert manifest.dataset_id == before.dataset_id
    assert manifest.compression == "zstd"
    assert [(s.raw_bytes, s.raw_xxh3_128) for s in manifest.shards] == [
        (s.raw_bytes, s.raw_xxh3_128) for s in before.shards
    ]
    assert run_cli("verify", bare, "--deep").code == 0
    with Dataset.open(os.fspath(bare)) as dataset, Dataset.open(os.fspath(packed)) as original:
        for shard in range(3):
            assert list(dataset.samples(shard, check=True)) == list(original.samples(shard))
            index = open_index(os.fspath(bare / f"index/{shard:05d}.arrow"))
            assert index.meta["frames"] == original.index(shard).meta["frames"]
    assert run_cli("cat", bare, "d/0007", "--part", "txt").out == run_cli("cat", packed, "d/0007", "--part", "txt").out


def test_damage_after_indexing_is_found(bare: Path) -> None:
    assert run_cli("index", bare).code == 0
    path = shards_of(bare)[2]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert run_cli("verify", bare, "--deep").code == 4


def test_a_stream_without_a_table_is_not_indexed_and_the_way_out_works(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    other = foreign(shards_of(bare)[0], tmp_path / "in" / "other.tar.zst")
    ran = run_cli("index", other)
    assert ran.code == 2
    assert "no seek table" in ran.err
    assert "shardtool convert" in ran.err
    assert os.listdir(tmp_path / "in") == ["other.tar.zst"]
    assert run_cli("convert", other, tmp_path / "again", "--compress", "zstd", "-q").code == 0
    assert run_cli("stats", tmp_path / "again", "--json").json["samples"] == 150


def test_plain_and_compressed_shards_are_not_one_data_set(bare: Path) -> None:
    first = shards_of(bare)[0]
    reader = zstandard.ZstdDecompressor().stream_reader(first.read_bytes(), read_across_frames=True)
    (first.parent / "train-plain.tar").write_bytes(reader.read())
    ran = run_cli("index", bare)
    assert ran.code == 2
    assert "3 of 4 shards are compressed" in ran.err
