"""Compressed tar: frames, seek table, foreign readers, random access, damage, what the index holds."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import struct
import subprocess
import tarfile
from typing import TYPE_CHECKING

import pytest
import webdataset as wds
import zstandard
from helpers import make_tree, pack, run_cli, shard_paths

from shardtool.errors import CorruptShard
from shardtool.formats.frames import FRAME_BYTES, FrameCache, Frames, frames_of_file, most_bytes
from shardtool.hashing import digest_chunks
from shardtool.index_file import open_index
from shardtool.manifest import load_manifest
from shardtool.reading.reading import Dataset

if TYPE_CHECKING:
    from pathlib import Path

ZSTD = shutil.which("zstd")


def text_tree(root: Path) -> Path:
    """Seven MiB that compress well, in samples of two parts; one of them spans three frames."""
    rng = random.Random(11)
    words = [rng.randbytes(3).hex() for _ in range(500)]
    files = {f"d/{n:04d}.{part}": " ".join(rng.choices(words, k=700)) for n in range(400) for part in ("txt", "json")}
    files["d/long.txt"] = " ".join(rng.choices(words, k=350_000))
    return make_tree(root, files)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tree, plain and compressed."""
    folder = tmp_path_factory.mktemp("zst")
    text_tree(folder / "in")
    pack(folder / "in", folder / "plain", shards=1)
    pack(folder / "in", folder / "zst", shards=1, compress="zstd")
    return folder


def test_it_decompresses_to_the_plain_shard(packed: Path) -> None:
    (plain,), (zst,) = shard_paths(packed / "plain"), shard_paths(packed / "zst")
    assert zst.name == plain.name + ".zst"
    assert zst.stat().st_size < plain.stat().st_size / 2
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(zst.read_bytes()), read_across_frames=True)
    assert reader.read() == plain.read_bytes()


@pytest.mark.skipif(ZSTD is None, reason="no zstd program here")
def test_zstd_and_tar_read_it(packed: Path) -> None:
    (plain,), (zst,) = shard_paths(packed / "plain"), shard_paths(packed / "zst")
    assert ZSTD is not None
    assert subprocess.run([ZSTD, "-dc", zst], check=True, capture_output=True).stdout == plain.read_bytes()
    subprocess.run([ZSTD, "-tq", zst], check=True)
    listed = subprocess.run(["tar", "--zstd", "-tf", zst], check=True, capture_output=True, text=True).stdout
    with tarfile.open(plain) as archive:
        assert listed.splitlines() == archive.getnames()


@pytest.mark.skipif(ZSTD is None, reason="no zstd program here")
def test_webdataset_reads_the_samples(packed: Path) -> None:
    dataset = wds.WebDataset(f"pipe:{ZSTD} -dc {shard_paths(packed / 'zst')[0]}", shardshuffle=False)
    found = {sample["__key__"]: sample for sample in dataset}
    assert len(found) == 401
    for key, sample in found.items():
        assert sample["txt"] == (packed / "in" / f"{key}.txt").read_bytes()


def test_verify_reads_it_back_through_webdataset(packed: Path) -> None:
    ran = run_cli("verify", packed / "zst", "--reader", "webdataset")
    assert (ran.code, ran.err) == (0, "")


def test_the_seek_table_is_that_of_the_seekable_format(packed: Path) -> None:
    data = shard_paths(packed / "zst")[0].read_bytes()
    count, descriptor, magic = struct.unpack("<IBI", data[-9:])
    assert (descriptor, magic) == (0, 0x8F92EAB1)
    table = data[-9 - 8 * count : -9]
    assert struct.unpack("<II", data[-9 - 8 * count - 8 : -9 - 8 * count]) == (0x184D2A5E, 8 * count + 9)
    raw, at = b"", 0
    for packed_size, raw_size in struct.iter_unpack("<II", table):
        raw += zstandard.ZstdDecompressor().decompress(data[at : at + packed_size])
        at += packed_size
        assert len(raw) % FRAME_BYTES == 0 or len(raw) == shard_paths(packed / "plain")[0].stat().st_size
        assert raw_size <= FRAME_BYTES
    assert raw == shard_paths(packed / "plain")[0].read_bytes()


def test_index_and_manifest_hold_both_sizes_and_digests(packed: Path) -> None:
    plain, zst = shard_paths(packed / "plain")[0].read_bytes(), shard_paths(packed / "zst")[0].read_bytes()
    (shard,) = load_manifest(os.fspath(packed / "zst")).shards
    assert (shard.num_bytes, shard.raw_bytes) == (len(zst), len(plain))
    assert (shard.files[0].xxh3_128, shard.raw_xxh3_128) == (digest_chunks([zst]), digest_chunks([plain]))
    index = open_index(os.fspath(packed / "zst/index/00000.arrow"))
    other = open_index(os.fspath(packed / "plain/index/00000.arrow"))
    assert index.offset.tolist() == other.offset.tolist()
    assert index.part_offset.tolist() == other.part_offset.tolist()
    assert index.meta["frames"][0] == 0
    assert len(index.meta["frames"]) == -(-len(plain) // FRAME_BYTES) + 1
    found = frames_of_file(len(zst), lambda size, offset: zst[offset : offset + size])
    assert found is not None
    assert list(found.offsets) == index.meta["frames"]


def test_any_range_is_read_as_from_the_plain_shard(packed: Path) -> None:
    plain, rng = shard_paths(packed / "plain")[0].read_bytes(), random.Random(2)
    with Dataset.open(os.fspath(packed / "zst")) as dataset:
        places = [(0, 0), (0, len(plain)), (FRAME_BYTES - 1, 2), (FRAME_BYTES, FRAME_BYTES), (len(plain) - 1, 1)]
        places += [(rng.randrange(len(plain) - 5000), rng.randrange(5000)) for _ in range(200)]
        for offset, size in places:
            assert dataset.read_range(0, offset, size) == plain[offset : offset + size]
        with pytest.raises(CorruptShard, match="ends at byte"):
            dataset.read_range(0, len(plain) - 1, 2)


def test_a_sample_costs_the_frames_that_it_lies_in(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    plain = Frames.decode

    def counted(self: Frames, frame: int, data: bytes) -> bytes:
        decoded.append(frame)
        return plain(self, frame, data)

    monkeypatch.setattr(Frames, "decode", counted)
    with Dataset.open(os.fspath(packed / "zst")) as dataset:
        shard, sample = dataset.find(b"d/0007")
        parts = [dataset.read_part(shard, dataset.part_row(shard, sample, name)) for name in (b"txt", b"json")]
    assert parts[0] == (packed / "in/d/0007.txt").read_bytes()
    assert 1 <= len(decoded) <= 2


def test_frames_that_are_kept_stay_few() -> None:
    frames = Frames(tuple(range(101)), 10, 1000)

    class Plain(Frames):
        def decode(self, frame: int, data: bytes | memoryview) -> bytes:
            assert bytes(data) == bytes([frame])
            return bytes([frame]) * 10

    cache, reads = FrameCache(), []

    def read_file(offset: int, size: int) -> bytes:
        reads.append((offset, size))
        return bytes(range(offset, offset + size))

    plain = Plain(frames.offsets, 10, 1000)
    assert cache.read(0, plain, 5, 10, read_file) == b"\0" * 5 + b"\1" * 5
    assert cache.read(0, plain, 0, 20, read_file) == b"\0" * 10 + b"\1" * 10
    assert reads == [(0, 2)]
    assert cache.read(0, plain, 150, 10, read_file) == b"\x0f" * 10
    reads.clear()
    assert cache.read(0, plain, 0, 1000, read_file) == b"".join(bytes([frame]) * 10 for frame in range(100))
    assert len(cache._kept) == 16
    assert reads == [(2, 13), *((first, 16) for first in range(16, 96, 16)), (96, 4)]


def test_a_damaged_frame_is_told_with_the_samples_in_it(packed: Path, tmp_path: Path) -> None:
    shutil.copytree(packed / "zst", tmp_path / "out")
    path = shard_paths(tmp_path / "out")[0]
    index = open_index(os.fspath(tmp_path / "out/index/00000.arrow"))
    place = index.meta["frames"][2] + 1000
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)
    ran = run_cli("verify", tmp_path / "out", "--deep", "--json")
    (problem,) = ran.json["problems"]
    assert (ran.code, problem["kind"], problem["offset"]) == (4, "altered", index.meta["frames"][2])
    assert "the frame at byte" in problem["message"]
    with Dataset.open(os.fspath(tmp_path / "out")) as dataset, pytest.raises(CorruptShard, match="cannot be decomp"):
        dataset.read_range(0, 2 * FRAME_BYTES, 1)


def test_a_damaged_seek_table_is_found(packed: Path, tmp_path: Path) -> None:
    shutil.copytree(packed / "zst", tmp_path / "out")
    path = shard_paths(tmp_path / "out")[0]
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    assert run_cli("verify", tmp_path / "out", "--deep").code == 4
    data[-20] ^= 1
    data[-1] ^= 1
    path.write_bytes(data)
    assert run_cli("verify", tmp_path / "out").code == 4  # seen without reading all of it


def test_frames_that_claim_more_than_they_should_are_not_decompressed() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 24))
    with pytest.raises(CorruptShard, match="does not hold"):
        Frames((0, len(bomb)), FRAME_BYTES, 100).decode(0, bomb)


@pytest.mark.parametrize(
    "meta",
    [
        {"frames": [0, 5, 3], "frame_bytes": 10, "raw_bytes": 20},
        {"frames": [0, 5], "frame_bytes": 10, "raw_bytes": 20},
        {"frames": [0, -1, 5], "frame_bytes": 10, "raw_bytes": 20},
        {"frames": [0, 5, 9], "frame_bytes": 0, "raw_bytes": 20},
        {"frames": [0, "5", 9], "frame_bytes": 10, "raw_bytes": 20},
        {"frames": [0, 5, 9], "raw_bytes": 20},
        {"frames": 7, "frame_bytes": 10, "raw_bytes": 20},
    ],
)
def test_a_table_of_frames_that_makes_no_sense_is_refused(meta: dict[str, object]) -> None:
    with pytest.raises(CorruptShard, match="table of frames"):
        Frames.from_meta(meta)


def test_a_lost_index_is_made_again_from_the_seek_table(packed: Path, tmp_path: Path) -> None:
    shutil.copytree(packed / "zst", tmp_path / "out")
    place = tmp_path / "out/index/00000.arrow"
    wanted = place.read_bytes()
    place.unlink()
    assert run_cli("index", tmp_path / "out").code == 0
    assert place.read_bytes() == wanted


def test_what_does_not_compress_hardly_grows(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {f"{n}.bin": random.Random(n).randbytes(300_000) for n in range(10)})
    result = pack(tmp_path / "in", tmp_path / "out", compress="zstd:1")
    (spec,), (path,) = result.stored.shards, shard_paths(tmp_path / "out")
    assert path.stat().st_size <= most_bytes(spec.num_bytes) < 1.01 * spec.num_bytes


def test_long_names_are_verified_too(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {f"{'l' * 180}/{'n' * 170}{n}.txt": "x" for n in range(5)})
    pack(tmp_path / "in", tmp_path / "out", compress="zstd")
    assert run_cli("verify", tmp_path / "out", "--deep").code == 0


def test_the_level_is_part_of_the_plan(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {"a.txt": "x" * 1000})
    ids = {
        json.loads(run_cli("plan", tmp_path / "in", tmp_path / "out", "--compress", text, "--json").out)["plan_id"]
        for text in ("none", "zstd", "zstd:3", "zstd:9")
    }
    assert len(ids) == 3
