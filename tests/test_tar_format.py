from __future__ import annotations

import io
import os
import random
import tarfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xxhash
from helpers import make_tree, pack, read_tar, read_webdataset, shard_paths
from hypothesis import given, settings
from hypothesis import strategies as st
from places import read_ahead

from shardtool.errors import BadKey
from shardtool.formats.tar import SLAB_BYTES, TarFormat, layout_of, write_simple
from shardtool.formats.tar_header import (
    LONGEST_USTAR,
    MAX_USTAR_SIZE,
    TRAILER_BYTES,
    extension,
    extension_bytes,
    headers,
    padded,
    split_name,
)
from shardtool.hashing import digest_chunks
from shardtool.index_file import open_index
from shardtool.manifest import load_manifest
from shardtool.planning.plan_file import load_plan, read_rows
from shardtool.samples import member_names
from shardtool.sources.reader import LocalReader
from shardtool.storage.shard_file import ShardFile

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.model import ShardRows

SMALL = settings(max_examples=200, derandomize=True, deadline=None)
MIB = 1 << 20
MIXED = (0, 1, 511, 512, 513, 1023, 1024, MIB - 513, MIB - 512, MIB - 1, MIB, MIB + 1, 3 * MIB, 3 * MIB + 7)
LENGTHS = (99, 100, 101, 154, 155, 156, 157, 255, 256, 257, 300)
GOLDEN = "96d4106e2e11f06a82f2412e579a716a"  # of the small shard below; another value is another byte layout
PIECE = st.binary(min_size=1, max_size=130).map(lambda name: name.replace(b"/", b"_").replace(b"\0", b"_"))
NAMES = st.lists(PIECE, min_size=1, max_size=3).map(b"/".join)


def content(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def packed_rows(out: Path) -> tuple[ShardRows, LocalReader, Path]:
    """The rows, a reader of them and the file of the first shard."""
    stored = load_plan(os.fspath(out))
    assert stored is not None
    rows = read_rows(os.fspath(out), 0)
    return rows, LocalReader(stored.roots, rows, member_names(rows)), shard_paths(out)[0]


def written(folder: Path, rows: ShardRows, reader: LocalReader, write: Any) -> tuple[bytes, Any]:
    file = ShardFile(os.fspath(folder), "x.tar", "test")
    found = write(rows, member_names(rows), reader, file)
    file.publish(durable=False)
    return (folder / "x.tar").read_bytes(), found


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of one shard with sizes around every boundary, files and generated parts."""
    folder = tmp_path_factory.mktemp("mixed")
    files: dict[Any, bytes | str] = {f"c{n % 3}/{n:02d}.bin": content(size, n) for n, size in enumerate(MIXED)}
    files |= {f"c0/{n:02d}.txt": "x" * n for n in range(0, len(MIXED), 3)}
    make_tree(folder / "in", files)
    pack(folder / "in", folder / "out", label_from="parent")
    return folder


def test_the_slab_writes_what_the_simple_writer_writes(
    mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, reader, shard = packed_rows(mixed / "out")
    slab, simple = (written(tmp_path, rows, reader, write) for write in (TarFormat().write, write_simple))
    assert slab[0] == simple[0] == shard.read_bytes()
    for column in ("sample_offset", "sample_bytes", "part_offset", "part_xxh3_64"):
        assert np.array_equal(getattr(slab[1], column), getattr(simple[1], column))
    read_ahead(monkeypatch)
    assert written(tmp_path, rows, reader, TarFormat().write)[0] == slab[0]
    reader.close()


def test_tarfile_reads_every_byte_back_and_nothing_of_the_machine(mixed: Path) -> None:
    shard = shard_paths(mixed / "out")[0]
    for name, data in read_tar(shard):
        if not name.endswith(b".cls"):
            assert data == (mixed / "in" / os.fsdecode(name)).read_bytes()
    with tarfile.open(shard) as archive:
        members = archive.getmembers()
    assert len(members) == 2 * len(MIXED) + 5
    for member in members:
        assert (member.mtime, member.uid, member.gid, member.uname, member.gname) == (0, 0, 0, "", "")
        assert (member.mode, member.type, member.linkname) == (0o644, b"0", "")


def test_the_index_says_where_each_part_lies(mixed: Path) -> None:
    index = open_index(os.fspath(mixed / "out/index/00000.arrow"))
    data = shard_paths(mixed / "out")[0].read_bytes()
    members = dict(read_tar(shard_paths(mixed / "out")[0]))
    for part, owner in enumerate(index.owners().tolist()):
        start, stop = int(index.part_offset[part]), int(index.part_offset[part] + index.part_bytes[part])
        name = index.key(owner) + b"." + index.part_names[part].as_py()
        assert data[start:stop] == members[name]
        assert xxhash.xxh3_64_intdigest(data[start:stop]) == int(index.part_xxh3_64[part])
        assert int(index.offset[owner]) < start
        assert stop <= int(index.offset[owner] + index.num_bytes[owner])
    for sample in range(index.num_samples):
        start, size = int(index.offset[sample]), int(index.num_bytes[sample])
        with tarfile.open(fileobj=io.BytesIO(data[start : start + size] + bytes(TRAILER_BYTES))) as archive:
            assert {os.fsencode(name).partition(b".")[0] for name in archive.getnames()} == {index.key(sample)}


def test_webdataset_reads_the_samples_in_the_order_of_the_index(mixed: Path) -> None:
    index = open_index(os.fspath(mixed / "out/index/00000.arrow"))
    samples = read_webdataset(shard_paths(mixed / "out")[0])
    assert [sample["__key__"].encode() for sample in samples] == [index.key(row) for row in range(index.num_samples)]
    for sample in samples:
        assert sample["bin"] == (mixed / "in" / f"{sample['__key__']}.bin").read_bytes()


def long_names() -> dict[bytes, bytes | str]:
    """Names of every length that matters, flat and in folders, some not UTF-8 where ustar can hold them."""
    names = [b"f" * (length - 4) + b".txt" for length in LENGTHS if length <= 255]
    for length in LENGTHS:
        for folder in (7, 90, 150, 155, 160):
            rest = length - folder - 1 - 4
            if 1 <= rest <= 240:
                names.append(b"d" * folder + b"/" + b"%d" % (length % 10) + b"g" * (rest - 1) + b".txt")
    names += [
        "é".encode() * 60 + b".txt",
        b"caf\xe9.txt",
        b"caf\xe9/" * 12 + b"x" * 60 + b".txt",
        b"new\nline \\t\x01.txt",
    ]
    return {name: os.fsdecode(name[-20:]).encode("utf-8", "replace") for name in names}


def test_names_of_any_length_and_bytes_come_back(tmp_path: Path) -> None:
    files = long_names()
    make_tree(tmp_path / "in", files)
    result = pack(tmp_path / "in", tmp_path / "out")
    shard = shard_paths(tmp_path / "out")[0]
    assert dict(read_tar(shard)) == files
    assert shard.stat().st_size == result.stored.shards[0].num_bytes
    index = open_index(os.fspath(tmp_path / "out/index/00000.arrow"))
    assert {index.key(row) + b".txt" for row in range(index.num_samples)} == set(files)
    rows, reader, _ = packed_rows(tmp_path / "out")
    assert written(tmp_path, rows, reader, write_simple)[0] == shard.read_bytes()
    reader.close()


def test_webdataset_reads_long_names_too(tmp_path: Path) -> None:
    names = {name: text for name, text in long_names().items() if name.isascii() and b"\n" not in name}
    make_tree(tmp_path / "in", names)
    pack(tmp_path / "in", tmp_path / "out")
    samples = read_webdataset(shard_paths(tmp_path / "out")[0])
    assert {sample["__key__"].encode() + b".txt": sample["txt"] for sample in samples} == names


def test_a_name_that_no_header_can_hold_is_refused_with_the_cure(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {b"\xe9" * 97 + b".jpg": b""})
    with pytest.raises(BadKey, match="1 names are neither UTF-8 nor short enough") as caught:
        pack(tmp_path / "in", tmp_path / "out")
    assert "--escape-names" in caught.value.hint
    pack(tmp_path / "in", tmp_path / "out", escape_names=True)
    assert read_tar(shard_paths(tmp_path / "out")[0]) == [(b"%E9" * 97 + b".jpg", b"")]


def test_a_generated_part_whose_name_no_header_can_hold_is_refused_too(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", {b"\xe9" * 97 + b".j": b""})
    (tmp_path / "t.csv").write_bytes(b"key,a\n" + b"\xe9" * 97 + b",1\n")
    with pytest.raises(BadKey, match="1 names are neither UTF-8 nor short enough"):
        pack(tmp_path / "in", tmp_path / "out", join=os.fspath(tmp_path / "t.csv"))


def test_one_small_shard_has_the_golden_digest(tmp_path: Path) -> None:
    files = {"cat/1.jpg": "one", "cat/1.txt": "", "dog/2.jpg": "x" * 600, "e" * 60 + "/" + "f" * 120 + ".jpg": "long"}
    make_tree(tmp_path / "in", files)
    pack(tmp_path / "in", tmp_path / "out", label_from="parent")
    shard = load_manifest(os.fspath(tmp_path / "out")).shards[0]
    assert shard.files[0].xxh3_128 == digest_chunks([(tmp_path / "out" / shard.path).read_bytes()])
    assert shard.files[0].xxh3_128 == GOLDEN


# Headers


@SMALL
@given(NAMES, st.integers(0, MAX_USTAR_SIZE - 1))
def test_a_header_is_read_by_tarfile_as_it_was_meant(name: bytes, size: int) -> None:
    raw = headers([name], np.array([size], np.int64)).tobytes()
    info = tarfile.TarInfo.frombuf(raw, "utf-8", "surrogateescape")
    assert (info.size, info.mode, info.mtime) == (size, 0o644, 0)
    if split_name(name) is not None:
        assert os.fsencode(info.name) == name.rstrip(b"/")


@SMALL
@given(NAMES)
def test_a_name_is_split_where_ustar_allows(name: bytes) -> None:
    found = split_name(name)
    cuts = [at for at in range(1, len(name) - 1) if name[at : at + 1] == b"/" and at <= 155 and len(name) - at <= 101]
    if len(name) <= 100:
        assert found == (b"", name)
    elif found is None:
        assert not cuts or len(name) > LONGEST_USTAR
    else:
        assert b"/".join(found) == name
        assert len(found[0]) in cuts


@SMALL
@given(st.integers(101, 400), st.sampled_from([0, 1, MAX_USTAR_SIZE - 1, MAX_USTAR_SIZE, 10**12]))
def test_an_extension_holds_what_ustar_cannot(length: int, size: int) -> None:
    name = b"n" * length
    record = extension(name, size)
    assert len(record) == extension_bytes(name, size)
    head = record + headers([name], np.array([size], np.int64)).tobytes()
    with tarfile.open(fileobj=io.BytesIO(head + bytes(TRAILER_BYTES)), mode="r|") as archive:
        info = archive.next()
    assert info is not None
    assert (info.name.encode(), info.size) == (name, size)


def test_plain_members_have_no_extension() -> None:
    assert extension(b"a/b.txt", 5) == b""
    assert extension_bytes(b"a/b.txt", MAX_USTAR_SIZE - 1) == 0


@SMALL
@given(st.lists(st.tuples(NAMES, st.integers(0, 5 * MIB)), min_size=1, max_size=20))
def test_many_headers_are_those_of_each_alone(members: list[tuple[bytes, int]]) -> None:
    sizes = np.array([size for _, size in members], np.int64)
    together = headers([name for name, _ in members], sizes)
    alone = [headers([name], sizes[row : row + 1]) for row, (name, _) in enumerate(members)]
    assert np.array_equal(together, np.concatenate(alone))


@SMALL
@given(st.integers(0, 1 << 40))
def test_padding_goes_up_to_the_next_block(size: int) -> None:
    assert 0 <= padded(size) - size < 512
    assert padded(size) % 512 == 0


def test_a_layout_has_no_gap_and_no_overlap(mixed: Path) -> None:
    rows, reader, shard = packed_rows(mixed / "out")
    reader.close()
    layout = layout_of(rows, member_names(rows))
    assert int(layout.member_start[-1]) + TRAILER_BYTES == shard.stat().st_size
    assert np.array_equal(layout.sample_offset[1:], (layout.sample_offset + layout.sample_bytes)[:-1])
    ends = layout.part_offset + padded(rows.sizes)
    assert np.array_equal(ends, layout.member_start[1:])
    assert SLAB_BYTES % 512 == 0
