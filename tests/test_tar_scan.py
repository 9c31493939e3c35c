"""Strict reading of tar archives: what others wrote comes back exact, what is damaged is found and placed."""

from __future__ import annotations

import io
import mmap
import os
import random
import shutil
import subprocess
import tarfile
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.errors import CorruptShard, FormatError
from shardtool.formats.tar_scan import TarMembers, find_damage, scan_members, show_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
GNU_TAR = shutil.which("tar")
needs_tar = pytest.mark.skipif(
    GNU_TAR is None
    or b"GNU tar" not in subprocess.run([GNU_TAR, "--version"], capture_output=True, check=False).stdout,
    reason="no GNU tar here",
)


def archive(files: Iterable[tuple[str, bytes]], code: int = tarfile.USTAR_FORMAT, mtime: float = 0) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=code, errors="surrogateescape") as target:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), mtime
            target.addfile(info, io.BytesIO(data))
    return out.getvalue()


def small() -> bytes:
    whole = archive([("a/1.jpg", b"x" * 700), ("a/1.cls", b"3"), ("a/2.jpg", b""), ("a/2.cls", b"4" * 512)])
    return whole[: 512 * 10]  # 1.jpg 3 blocks, 1.cls 2, 2.jpg 1, 2.cls 2, two of zeros


def header(name: bytes = b"a.jpg", size: bytes = b"00000000003\0", kind: bytes = b"0", **fields: bytes) -> bytes:
    block = bytearray(tarfile.TarInfo("x").tobuf(tarfile.USTAR_FORMAT))
    block[:100] = name.ljust(100, b"\0")
    block[124:136] = size
    block[156:157] = kind
    for place, value in fields.items():
        at = int(place[1:])
        block[at : at + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pax(*records: bytes) -> bytes:
    payload = b"".join(records)
    size = b"%011o\0" % len(payload)
    return header(b"pax", size, b"x") + payload.ljust(-(-len(payload) // 512) * 512, b"\0")


def record(key: bytes, value: bytes) -> bytes:
    size = len(key) + len(value) + 3
    while len(str(size)) + len(key) + len(value) + 3 != size:
        size += 1
    return b"%d %s=%s\n" % (size, key, value)


FILE = header() + b"abc".ljust(512, b"\0")
END = bytes(1024)


def same_on_both_paths(data: bytes) -> TarMembers:
    fast, slow = scan_members(data, "x.tar"), find_damage(data, is_fast=False)[0]
    assert fast.names == slow.names
    assert fast.link_targets == slow.link_targets
    assert fast.end_offset == slow.end_offset
    for column in ("header_offset", "data_offset", "sizes", "types"):
        np.testing.assert_array_equal(getattr(fast, column), getattr(slow, column))
        assert getattr(fast, column).dtype == (np.uint8 if column == "types" else np.int64)
    return fast


def assert_equals_tarfile(data: bytes) -> TarMembers:
    found = same_on_both_paths(data)
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as source:
        infos = source.getmembers()
    assert [name.rstrip(b"/") for name in found.names] == [os.fsencode(info.name) for info in infos]
    assert found.sizes.tolist() == [info.size for info in infos]
    assert found.data_offset.tolist() == [info.offset_data for info in infos]
    assert found.header_offset.tolist() == [info.offset for info in infos]
    assert bytes(found.types) == b"".join(info.type if info.type != tarfile.AREGTYPE else b"0" for info in infos)
    assert found.link_targets == {
        row: os.fsencode(info.linkname) for row, info in enumerate(infos) if info.islnk() or info.issym()
    }
    return found


def refusal(data: bytes) -> FormatError:
    with pytest.raises(FormatError) as caught:
        scan_members(data, "x.tar")
    error = caught.value
    assert error.where["path"] == "x.tar"
    assert find_damage(data)[1] == find_damage(data, is_fast=False)[1]
    return error


# ---------------------------------------------------------------- what others wrote


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("length", [1, 99, 100, 101, 155, 156, 255, 256, 300])
@pytest.mark.parametrize("has_folders", [False, True])
def test_names_of_every_length_come_back(form: str, length: int, has_folders: bool) -> None:
    name = "n" * length
    if has_folders:
        name = "/".join("f" * 49 for _ in range(length // 50 + 1))[: length - 2].rstrip("/") + "/b"
    try:
        data = archive([("first.jpg", b"1"), (name, b"22" * 400), ("last.jpg", b"")], FORMATS[form])
    except ValueError:
        pytest.skip(f"{form} cannot hold this name")
    found = assert_equals_tarfile(data)
    assert found.names[1] == name.encode()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "name", [b"caf\xe9\x92.jpg", "f\u00fc\u00df.jpg".encode(), b"new\nline.jpg", b"tab\tand space .jpg", b"\\x.jpg"]
)
def test_names_of_any_bytes_come_back(form: str, name: bytes) -> None:
    data = archive([(os.fsdecode(name), b"abc")] * 40, FORMATS[form])
    assert assert_equals_tarfile(data).names == [name] * 40


@pytest.mark.parametrize("form", FORMATS)
def test_every_type_of_member_is_reported(form: str) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[form]) as target:
        for number in range(30):
            for kind in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE,
                         tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE):  # fmt: skip
                info = tarfile.TarInfo(f"m{number}{kind[0]}")
                info.type, info.linkname = kind, "m00" if kind in (tarfile.LNKTYPE, tarfile.SYMTYPE) else ""
                target.addfile(info)
    found = same_on_both_paths(out.getvalue())
    assert bytes(found.types) == b"000125634" * 30
    assert len(found.link_targets) == 60


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_long_link_targets_come_back(form: str) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[form]) as target:
        for length in (99, 100, 101, 300):
            info = tarfile.TarInfo("l" * length)
            info.type, info.linkname = tarfile.SYMTYPE, "t" * length
            target.addfile(info)
    assert assert_equals_tarfile(out.getvalue()).link_targets[3] == b"t" * 300


@pytest.mark.parametrize("mtime", [1.5, 1690000000.1234567, -3.25, 10.0**11])
def test_pax_time_records_of_every_member_are_read_over(mtime: float) -> None:
    files = [(f"{number:06}.{part}", b"x" * number) for number in range(700) for part in ("cls", "jpg")]
    found = assert_equals_tarfile(archive(files, tarfile.PAX_FORMAT, mtime))
    assert (found.data_offset - found.header_offset == 1536).sum() >= 1399


def test_archives_of_the_webdataset_writer_come_back(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    for options in ({}, {"mtime": 1.25}, {"mtime": 0, "user": "u" * 40}):
        path = tmp_path / "w.tar"
        with webdataset.TarWriter(str(path), **options) as writer:
            for number in range(300):
                writer.write({"__key__": f"{number:06}", "jpg": b"j" * number, "cls": b"3"})
        assert assert_equals_tarfile(path.read_bytes()).num_members == 600


def gnu_tar(tmp_path: Path, *options: str) -> bytes:
    done = subprocess.run(
        ["tar", *options, "-cf", "-", "-C", str(tmp_path), "."], capture_output=True, check=True, timeout=60
    )
    return done.stdout


@needs_tar
@pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_archives_of_gnu_tar_come_back(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number:04}.jpg").write_bytes(b"j" * number * 20)
    os.link(folder / "0001.jpg", folder / "hard.jpg")
    (folder / "soft.jpg").symlink_to("0002.jpg")
    os.mkfifo(folder / "fifo") if form != "v7" else None
    if form in ("oldgnu", "gnu", "posix"):
        for length in (99, 100, 101, 155, 156, 255):
            (folder / ("n" * (length - 4) + ".txt")).write_bytes(b"n")
        (tmp_path / os.fsdecode(b"caf\xe9\x92.jpg")).write_bytes(b"e")
    assert_equals_tarfile(gnu_tar(tmp_path, f"--format={form}"))


@needs_tar
@pytest.mark.parametrize(
    "options",
    [["--format=gnu"], ["--format=posix", "--sparse-version=1.0"], ["--format=posix", "--sparse-version=0.1"]],
)
def test_sparse_members_are_refused_by_name(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "a.jpg").write_bytes(b"a")
    with (tmp_path / "holes.bin").open("wb") as file:
        file.truncate(4 << 20)
        file.seek(2 << 20)
        file.write(b"x")
    data = gnu_tar(tmp_path, "--sparse", *options)
    if b"GNU.sparse" not in data and b"\0 S" not in data:
        pytest.skip("this file system does not tell of holes")
    error = refusal(data)
    assert not isinstance(error, CorruptShard)
    assert "holes.bin" in error.message
    assert "sparse" in error.message


def test_sizes_beyond_eight_gib_are_read_from_base_256_and_pax() -> None:
    huge = 9 << 30
    for data in (
        header(size=b"\x80" + huge.to_bytes(11, "big")),
        pax(record(b"size", b"%d" % huge)) + header(),
    ):
        members, damage = find_damage(data)
        assert damage is not None
        assert str(huge) in damage.message
        assert members.num_members == 0
    small_base_256 = header(size=b"\x80" + bytes(10) + b"\x03") + b"abc".ljust(512, b"\0")
    assert same_on_both_paths(small_base_256 * 50 + END).sizes.tolist() == [3] * 50
    assert same_on_both_paths(pax(record(b"size", b"3")) + header(size=b"0" * 11 + b"\0") + FILE[512:] + END).sizes == [
        3
    ]


@pytest.mark.parametrize(
    ("checksum", "is_valid"),
    [(b"%06o\0 ", True), (b"%06o \0", True), (b"%07o\0", True), (b"%06o  ", False), (b"%06o\0\0", False)],
)
def test_checksums_are_read_in_the_forms_that_tar_writers_make(checksum: bytes, is_valid: bool) -> None:
    block = bytearray(FILE)
    block[148:156] = checksum % int(FILE[148:154], 8)
    data = bytes(block) * 40 + END
    if is_valid:
        assert same_on_both_paths(data).num_members == 40
    else:
        refusal(data)


def test_numbers_filled_with_spaces_are_read() -> None:
    block = bytearray(header(size=b"          3 "))
    total = sum(block) - sum(block[148:156]) + 256
    block[148:156] = b"%6o\0 " % total
    assert same_on_both_paths((bytes(block) + FILE[512:]) * 20 + END).sizes.tolist() == [3] * 20


def test_signed_checksums_of_old_writers_are_accepted() -> None:
    block = bytearray(header(b"\xe9\xe9.jpg"))
    signed = int(bytes(block[148:154]), 8) - 2 * 256
    block[148:156] = b"%06o\0 " % signed
    assert same_on_both_paths((bytes(block) + FILE[512:]) * 20 + END).num_members == 20


def test_a_prefix_counts_under_posix_magic_only() -> None:
    posix = header(x345=b"some/folder") + FILE[512:]
    gnu = header(x345=b"14567654321", x257=b"ustar  \0") + FILE[512:]
    star = header(x345=b"p" * 131 + b"13000000000", x508=b"tar\0") + FILE[512:]
    found = same_on_both_paths((posix + gnu + star) * 20 + END)
    assert found.names[:3] == [b"some/folder/a.jpg", b"a.jpg", b"p" * 131 + b"/a.jpg"]


def test_a_tar_inside_a_tar_is_one_member() -> None:
    inner = archive([(f"{number}.jpg", b"u" * 300) for number in range(50)])
    found = assert_equals_tarfile(archive([(f"in{number}.tar", inner) for number in range(20)]))
    assert found.num_members == 20


def test_payload_that_looks_like_headers_is_passed_over() -> None:
    files = [(f"{number}.bin", FILE[:512] * (number % 4)) for number in range(3000)]
    assert assert_equals_tarfile(archive(files)).num_members == 3000


def test_large_and_tiny_members_mix() -> None:
    rng = random.Random(5)
    sizes = [rng.choice((0, 1, 511, 512, 513, 9000, 40_000)) for _ in range(400)]
    assert_equals_tarfile(archive((f"{place:05}.bin", b"u" * size) for place, size in enumerate(sizes)))


def test_an_archive_without_members_is_whole() -> None:
    found = same_on_both_paths(END)
    assert (found.num_members, found.end_offset) == (0, 0)
    assert same_on_both_paths(bytes(10_240)).num_members == 0


def test_padding_of_zeros_after_the_end_is_harmless() -> None:
    whole = small()
    for extra in (0, 1, 511, 512, 9000, 200_000):
        assert scan_members(whole + bytes(extra), "x.tar").end_offset == len(whole) - 1024


def test_a_mapped_file_can_be_closed_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    for data in (small(), small()[:-700]):
        path.write_bytes(data)
        with path.open("rb") as file:
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        found, damage = find_damage(view)
        try:
            scan_members(view, "x.tar")
        except CorruptShard as error:
            kept: Any = error
            assert kept.where["offset"]
        view.close()
        assert found.num_members == 4
        assert (damage is None) == (len(data) == len(small()))


def test_any_buffer_is_read() -> None:
    for kind in (bytes, bytearray, memoryview):
        assert scan_members(kind(small()), "x.tar").num_members == 4


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.integers(0, 1500)), max_size=12),
    st.sampled_from(sorted(FORMATS)),
    st.sampled_from([0, 1.5]),
)
def test_random_archives_come_back(files: list[tuple[bytes, int]], form: str, mtime: float) -> None:
    kept = []
    for raw, size in files:
        name = os.fsdecode(raw.replace(b"\0", b"0").strip(b"/") or b"0")
        try:
            archive([(name, b"")], FORMATS[form])
        except ValueError:
            continue
        kept.append((name, b"u" * size))
    found = same_on_both_paths(archive(kept, FORMATS[form], mtime))
    assert found.names == [os.fsencode(name) for name, _ in kept]
    assert found.sizes.tolist() == [len(data) for _, data in kept]


# ---------------------------------------------------------------- damage


def test_a_cut_at_any_byte_is_found() -> None:
    whole = small()
    for length in range(len(whole)):
        members, damage = find_damage(whole[:length])
        assert damage is not None, length
        assert damage.kind == "damage"
        assert damage.offset <= length
        assert members.num_members == sum(length >= end for end in (512 + 700, 1536 + 513, 2560 + 512, 3072 + 1024))


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_a_cut_at_any_byte_of_an_archive_with_extension_headers_is_found(form: str) -> None:
    whole = archive([("n" * 120 + ".jpg", b"1"), ("b.jpg", b"2")], FORMATS[form], 1.5)
    whole = whole[: len(whole.rstrip(b"\0")) // 512 * 512 + 512 + 1024]
    assert_equals_tarfile(whole)
    for length in range(len(whole)):
        assert find_damage(whole[:length])[1] is not None, length
        assert find_damage(whole[:length])[1] == find_damage(whole[:length], is_fast=False)[1]


@pytest.mark.parametrize("form", FORMATS)
def test_a_flipped_bit_in_any_header_is_found(form: str) -> None:
    files = [(f"{number}.jpg", b"abc") for number in range(1)] + [("n" * 90 + "/" + "m" * 90, b"abc")]
    whole = archive(files, FORMATS[form], 0 if form == "ustar" else 1.5)
    found = scan_members(whole, "x.tar")
    headers = set((found.data_offset - 512).tolist()) | set(found.header_offset.tolist())
    for start in headers | {found.end_offset, found.end_offset + 512}:
        for bit in range(512 * 8):
            damaged = bytearray(whole)
            damaged[start + bit // 8] ^= 1 << bit % 8
            members, damage = find_damage(damaged)
            assert damage is not None, (start, bit)
            assert damage.offset in (start, found.end_offset), (start, bit)
            assert members.num_members <= found.num_members


def test_a_flipped_bit_among_many_members_is_placed() -> None:
    whole = archive((f"{number:05}.jpg", b"abc") for number in range(5000))
    rng = random.Random(3)
    for _ in range(50):
        row, bit = rng.randrange(5000), rng.randrange(4096)
        damaged = bytearray(whole)
        damaged[row * 1024 + bit // 8] ^= 1 << bit % 8
        members, damage = find_damage(damaged)
        assert damage is not None
        assert (members.num_members, damage.offset, damage.last_end) == (row, row * 1024, row * 1024)


def test_an_error_names_offset_and_last_whole_member() -> None:
    error = refusal(small()[:-1024])
    assert isinstance(error, CorruptShard)
    assert error.where == {"path": "x.tar", "offset": 4096, "key": "a/2.cls"}
    assert "without its two blocks of zeros" in error.message
    assert "'a/2.cls', which ends at byte 4096" in error.message
    assert error.exit_code == 4
    assert error.hint


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "without its two blocks of zeros"),
        (FILE, "without its two blocks of zeros"),
        (FILE + bytes(512), "lone block of zeros"),
        (FILE + bytes(512) + FILE + END, "lone block of zeros"),
        (FILE + bytes(700), "lone block of zeros"),
        (FILE + END + FILE + END, "bytes after the end-of-archive"),
        (FILE + END + bytes(70_000) + b"\1", "bytes after the end-of-archive"),
        (b"PK\3\4" + bytes(600), "no tar header"),
        (header(size=b"77777777777\0"), "states 8589934591 bytes"),
        (header(size=b"           \0") + END, "is not a number"),
        (header(size=bytes(12)) + END, "is not a number"),
        (header(size=b"-0000000001\0") + END, "is not a number"),
        (header(size=b"0000000001_\0") + END, "is not a number"),
        (header(size=b"00000000008\0") + END, "is not a number"),
        (header(size=b"\xff" * 12) + END, "is not a number"),
        (header(size=b"\x80" + b"\xff" * 11) + END, "larger than any file"),
        (header(b"") + FILE[512:] + END, "empty, or with a zero byte"),
        (header(kind=b"x", size=b"77777777777\0") + END, "extension header states"),
        (pax(record(b"path", b"")) + FILE + END, "empty, or with a zero byte"),
        (pax(record(b"path", b"a\0b")) + FILE + END, "empty, or with a zero byte"),
        (pax(b"99 path=a\n") + FILE + END, "does not follow LENGTH KEY=VALUE"),
        (pax(b"0 path=a\n") + FILE + END, "does not follow LENGTH KEY=VALUE"),
        (pax(b"-9 path=a\n") + FILE + END, "does not follow LENGTH KEY=VALUE"),
        (pax(b"10 path:aa\n") + FILE + END, "does not follow LENGTH KEY=VALUE"),
        (pax(b"9" * 400) + FILE + END, "does not follow LENGTH KEY=VALUE"),
        (pax(record(b"size", b"1e3")) + FILE + END, "is not a number of bytes"),
        (pax(record(b"size", b"9" * 19)) + FILE + END, "is not a number of bytes"),
        (pax(record(b"path", b"b")) + pax(record(b"mtime", b"1.5")) + FILE + END, "two pax extension headers"),
        (pax(record(b"mtime", b"1.5")) + pax(record(b"mtime", b"1.5")) + FILE + END, "two pax extension headers"),
        (pax(record(b"mtime", b"1.5")) + END, "without its member"),
        (header(kind=b"2", size=b"00000000000\0") + END, "names no target"),
    ],
)  # fmt: skip
def test_damage_is_told_apart(data: bytes, text: str) -> None:
    error = refusal(data)
    assert isinstance(error, CorruptShard)
    assert text in error.message
    assert text in refusal(FILE * 40 + data).message


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (header(kind=b"S") + FILE[512:], "'a.jpg' is sparse"),
        (header(kind=b"M") + FILE[512:], "'a.jpg' continues from another volume"),
        (pax(record(b"GNU.sparse.major", b"1"), record(b"GNU.sparse.name", b"b.bin")) + FILE, "'b.bin' is sparse"),
        (pax(record(b"SCHILY.realsize", b"9")) + FILE, "'a.jpg' is sparse"),
        (pax(record(b"hdrcharset", b"KOI8")) + FILE, "charset 'KOI8'"),
        (header(b"g", b"%011o\0" % 9, b"g") + record(b"path", b"a").ljust(512, b"\0") + FILE, "global header"),
        (header(kind=b"5") + FILE[512:], "type '5' states 3 bytes"),
        (header(kind=b"1", x157=b"b.jpg") + FILE[512:], "type '1' states 3 bytes"),
        (header(b"folder/") + FILE[512:], "'folder/' of type '0' states 3 bytes"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_as_written_is_refused_by_name(data: bytes, text: str) -> None:
    for before in (b"", FILE * 40):
        error = refusal(before + data + END)
        assert not isinstance(error, CorruptShard)
        assert text in error.message


def test_an_extension_header_larger_than_any_name_is_refused() -> None:
    size = (1 << 20) + 1
    data = header(b"L", b"%011o\0" % size, b"L") + bytes(-(-size // 512) * 512) + FILE + END
    assert "more than 1048576" in refusal(data).message


def test_global_comments_are_read_over() -> None:
    comment = record(b"comment", b"0" * 40)
    data = header(b"g", b"%011o\0" % len(comment), b"g") + comment.ljust(512, b"\0") + FILE * 30 + END
    found = same_on_both_paths(data)
    assert found.header_offset[0] == 1024
    assert found.num_members == 30


def test_names_in_messages_are_escaped_and_short() -> None:
    assert show_name(b"a\x1b[31m\n\xff") == r"'a\x1b[31m\n\\xff'"
    assert len(show_name(b"n" * 10_000)) < 220


def test_reading_time_grows_with_the_size_only() -> None:
    odd = header(size=b"\x80" + bytes(10) + b"\x03") + FILE[512:]
    data = (odd + FILE * 3 + pax(record(b"path", b"b.jpg")) + FILE) * 3000 + END
    began = time.process_time()
    assert scan_members(data, "x.tar").num_members == 15_000
    assert time.process_time() - began < 3


@pytest.mark.parametrize(("form", "mtime", "name"), [
    ("ustar", 0, "d/{:05}.jpg"), ("gnu", 0, "d/{:05}.jpg"), ("pax", 1.5, "d/{:05}.jpg"),
    ("gnu", 0, "n" * 120 + "/{:05}.jpg"), ("pax", 0, "n" * 120 + "/{:05}.jpg"), ("ustar", 0, "n" * 90 + "/{:020}.jpg"),
])  # fmt: skip
def test_runs_of_common_members_take_the_fast_path(
    form: str, mtime: float, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = archive(((name.format(number), b"u" * 300) for number in range(5000)), FORMATS[form], mtime)
    assert_equals_tarfile(data)
    monkeypatch.delattr("shardtool.formats.tar_scan._member")
    assert scan_members(data, "x.tar").num_members == 5000
