"""A tar kept without contents tells a walk over its headers what the whole one tells."""

from __future__ import annotations

import errno
import io
import os
import random
import tarfile
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import zstandard
from helpers import run_cli
from test_fuzz_tar import fuzz

from shardtool.formats.tar_scan import find_damage
from shardtool.indexing.headers_only import HeadersOnly

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["fuzz"]  # a fixture


def kept(data: bytes, path: Path, rng: random.Random) -> bytes:
    """`data` as it is kept, given in pieces of any length."""
    with path.open("wb") as file:
        target, at = HeadersOnly(file), 0
        while at < len(data):
            step = rng.choice((1, 7, 511, 512, 513, 4000))
            target.write(data[at : at + step])
            at += step
        target.finish()
    return path.read_bytes()


def test_a_walk_finds_in_altered_archives_what_it_finds_in_the_whole(fuzz: Any, tmp_path: Path) -> None:
    rng = random.Random(3)
    archives = fuzz.corpus(3)
    words = set()
    for number in range(1500):
        data = archives[number] if number < len(archives) else fuzz.mutate(archives, rng)
        short = kept(data, tmp_path / "kept.tar", rng)
        members, damage = find_damage(data)
        found, found_damage = find_damage(short)
        assert len(short) == len(data)
        assert found_damage == damage, number
        assert fuzz.same(found, members), number
        words.add("whole" if damage is None else damage.kind)
    assert words == {"whole", "damage", "unsupported"}


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_names_like_size_records_and_stated_sizes_lead_nobody_astray(tmp_path: Path, form: int) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, size in ((f"{'a' * 120} size=3\n.txt", 5000), ("b.txt", 700), ("c.txt", 3), ("ü" * 90 + ".d", 900)):
            info = tarfile.TarInfo(name)
            info.size = size
            if form == tarfile.PAX_FORMAT and name == "b.txt":
                info.pax_headers = {"size": "700", "comment": "x size=9\n"}
            archive.addfile(info, io.BytesIO(b"\xff" * size))
    data = out.getvalue()
    short = kept(data, tmp_path / "kept.tar", random.Random(1))
    assert find_damage(short)[0].names == find_damage(data)[0].names
    assert find_damage(short)[1] is find_damage(data)[1] is None
    assert short.count(b"\xff") == 3  # of the part of three bytes


def test_large_contents_take_no_space(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number in range(4):
            info = tarfile.TarInfo(f"{number}.bin")
            info.size = 4 << 20
            archive.addfile(info, io.BytesIO(b"\xaa" * info.size))
    path = tmp_path / "kept.tar"
    with path.open("wb") as file:
        target = HeadersOnly(file)
        target.write(out.getvalue())
        target.finish()
    assert path.stat().st_size == len(out.getvalue())
    assert path.stat().st_blocks * 512 < 1 << 20
    assert 0xAA not in path.read_bytes()


def test_zeros_without_end_take_no_space(tmp_path: Path) -> None:
    with (tmp_path / "kept.tar").open("wb") as file:
        target = HeadersOnly(file)
        for _ in range(64):
            target.write(bytes(1 << 20))
        target.finish()
    assert (tmp_path / "kept.tar").stat().st_size == 64 << 20
    assert (tmp_path / "kept.tar").stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize("command", ["verify", "index"])
def test_a_full_temporary_folder_is_said_to_be_full_and_no_damage(tmp_path: Path, command: str) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"), io.BytesIO())
    path = tmp_path / "a.tar.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(out.getvalue()))
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    skips_tables = patch("shardtool.indexing.rebuild_shard.frames_of", lambda *_: None)
    with patch("shardtool.indexing.headers_only.os.pwrite", side_effect=full), skips_tables:
        ran = run_cli(command, path, "--json")
    assert (ran.code, ran.error["code"]) == (7, "NoSpace")
    assert "TMPDIR=" in ran.error["hint"]
    assert path.name in ran.error["message"]
