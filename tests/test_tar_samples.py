"""Foreign members become samples by webdataset's rule; whatever such a reader drops or merges is a finding."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.formats.tar_samples import ERROR_KINDS, SKIP_KINDS, Finding, TarSamples, group_members, normal_name
from shardtool.formats.tar_scan import scan_members

if TYPE_CHECKING:
    from collections.abc import Iterable


def pack(members: Iterable[str | tuple[str, bytes, str]]) -> bytes:
    """An archive of files (a name; its data is the name), or of (name, type, link target)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            info = tarfile.TarInfo(member if isinstance(member, str) else member[0])
            if isinstance(member, str):
                info.size = len(member.encode())
                archive.addfile(info, io.BytesIO(member.encode()))
            else:
                info.type, info.linkname = member[1], member[2]
                archive.addfile(info)
    return out.getvalue()


def group(members: Iterable[str | tuple[str, bytes, str]], **options: bool) -> TarSamples:
    return group_members(scan_members(pack(members), "x.tar"), **options)


def as_dict(samples: TarSamples) -> list[tuple[bytes, list[bytes]]]:
    bounds = samples.part_start.tolist()
    return [(key, samples.part_names[bounds[row] : bounds[row + 1]]) for row, key in enumerate(samples.keys)]


def kinds(samples: TarSamples) -> list[tuple[str, bytes]]:
    return [(finding.kind, finding.key) for finding in samples.findings]


def test_neighbours_with_one_key_are_one_sample() -> None:
    samples = group(["a/1.jpg", "a/1.seg.png", "a/2.jpg", "b/2.jpg", "c.jpg"])
    assert as_dict(samples) == [
        (b"a/1", [b"jpg", b"seg.png"]),
        (b"a/2", [b"jpg"]),
        (b"b/2", [b"jpg"]),
        (b"c", [b"jpg"]),
    ]
    assert samples.findings == []
    assert samples.num_samples == 4


def test_offsets_and_sizes_lead_to_the_bytes() -> None:
    data = pack(["README", "d/1.jpg", "d", "d/1.cls", "n" * 150 + ".txt"])
    samples = group_members(scan_members(data, "x.tar"))
    places = zip(samples.offsets.tolist(), samples.sizes.tolist(), strict=True)
    found = [data[offset : offset + size] for offset, size in places]
    assert found == [b"d/1.jpg", b"d/1.cls", b"n" * 150 + b".txt"]
    assert samples.rows.tolist() == [1, 3, 4]


def test_a_dot_in_a_folder_is_no_part_of_the_key_split() -> None:
    samples = group(["some/22.0/1.1.png", "d.v1/x.jpg", "d.v1/noext"])
    assert as_dict(samples) == [(b"some/22.0/1", [b"1.png"]), (b"d.v1/x", [b"jpg"])]
    assert kinds(samples) == [("no_dot", b"d.v1/noext")]


def test_part_names_are_lower_case_unless_kept() -> None:
    members = ["a.JPG", "a.Cls"]
    assert group(members).part_names == [b"jpg", b"cls"]
    assert group(members, keep_case=True).part_names == [b"JPG", b"Cls"]


def test_parts_that_differ_in_case_only_are_duplicates() -> None:
    assert kinds(group(["a.JPG", "a.jpg"])) == [("duplicate_part", b"a")]
    assert kinds(group(["a.JPG", "a.jpg"], keep_case=True)) == []


def test_names_are_normalised() -> None:
    samples = group(["./a/1.jpg", "a//1.cls", "a/./1.txt", "././b.jpg"])
    assert as_dict(samples) == [(b"a/1", [b"jpg", b"cls", b"txt"]), (b"b", [b"jpg"])]
    assert samples.findings == []


@pytest.mark.parametrize(
    ("name", "normal"),
    [(b"a/b.c", b"a/b.c"), (b"./a", b"a"), (b"a//b", b"a/b"), (b"/a", None), (b"../a", None), (b"a/../b", None),
     (b".", None), (b"./", None), (b"a/..", None), (b"..a/b..", b"..a/b.."), (b"a/", b"a")],
)  # fmt: skip
def test_normal_names(name: bytes, normal: bytes | None) -> None:
    assert normal_name(name) == normal


@pytest.mark.parametrize("name", ["/abs/a.jpg", "../a.jpg", "a/../../b.jpg", "/abs/../../a.jpg"])
def test_names_that_lead_out_of_the_archive_are_errors(name: str) -> None:
    samples = group(["x.jpg", name, "y.jpg"])
    assert kinds(samples) == [("bad_name", name.encode())]
    assert samples.keys == [b"x", b"y"]
    assert kinds(group(["x.jpg", ("/abs", tarfile.DIRTYPE, ""), ("../up", tarfile.FIFOTYPE, "")])) == [
        ("bad_name", b"/abs/"),
        ("bad_name", b"../up"),
    ]


def test_what_is_no_part_of_a_sample_is_reported_with_its_reason() -> None:
    samples = group(
        [
            ("./", tarfile.DIRTYPE, ""),
            ("d", tarfile.DIRTYPE, ""),
            "d/1.jpg",
            "__meta__",
            "__meta__/x.json",
            "__info__.json",
            "README",
            "d/.hidden.jpg",
            ".DS_Store",
            "a.",
            ("fifo.jpg", tarfile.FIFOTYPE, ""),
            ("null.jpg", tarfile.CHRTYPE, ""),
        ]
    )
    assert samples.keys == [b"d/1", b"__info__"]
    assert [kind for kind, _ in kinds(samples)] == [
        "directory", "directory", "metadata", "metadata", "no_dot", "hidden", "hidden", "empty_part",
        "special", "special",
    ]  # fmt: skip
    assert all(finding.kind in SKIP_KINDS and finding.message for finding in samples.findings)


def test_parts_that_are_not_adjacent_are_errors_with_both_positions() -> None:
    samples = group(["a.jpg", "b.jpg", "a.cls", "b.cls"])
    assert [(finding.kind, finding.offset, finding.key) for finding in samples.findings] == [
        ("not_adjacent", 2048, b"a"),
        ("not_adjacent", 3072, b"b"),
    ]
    assert "at byte 2048" in samples.findings[0].message
    assert "began at byte 0" in samples.findings[0].message
    assert samples.keys == [b"a", b"b", b"a", b"b"]


def test_a_key_that_comes_again_is_a_duplicate() -> None:
    samples = group(["a.jpg", "a.cls", "b.jpg", "a.jpg"])
    assert [(finding.kind, finding.offset, finding.key) for finding in samples.findings] == [
        ("duplicate_key", 3072, b"a")
    ]


def test_a_part_that_comes_again_is_told_with_both_offsets_and_sizes() -> None:
    data = pack(["x.jpg", "a.jpg", "a.jpg", "a.cls"])
    samples = group_members(scan_members(data, "x.tar"))
    assert kinds(samples) == [("duplicate_part", b"a")]
    finding = samples.findings[0]
    assert finding.offset == 2048
    assert "at byte 2048" in finding.message
    assert "at byte 1024 already, 5 bytes" in finding.message
    assert samples.num_samples == 2


def test_hard_links_to_an_earlier_file_have_its_data() -> None:
    data = pack(["a.jpg", ("b.jpg", tarfile.LNKTYPE, "./a.jpg"), ("c.jpg", tarfile.LNKTYPE, "b.jpg")])
    samples = group_members(scan_members(data, "x.tar"))
    assert samples.keys == [b"a", b"b", b"c"]
    assert samples.offsets.tolist() == [512, 512, 512]
    assert samples.sizes.tolist() == [5, 5, 5]
    assert samples.findings == []


def test_symbolic_links_are_followed_inside_the_archive() -> None:
    samples = group(
        [
            "d/a.jpg",
            ("d/b.jpg", tarfile.SYMTYPE, "a.jpg"),
            ("e/c.jpg", tarfile.SYMTYPE, "../d/./a.jpg"),
        ]
    )
    assert samples.offsets.tolist() == [512] * 3
    assert samples.findings == []


@pytest.mark.parametrize(
    "link",
    [
        (tarfile.LNKTYPE, "later.jpg"),
        (tarfile.LNKTYPE, "/etc/passwd"),
        (tarfile.LNKTYPE, "../a.jpg"),
        (tarfile.LNKTYPE, "l.jpg"),
        (tarfile.SYMTYPE, "/a.jpg"),
        (tarfile.SYMTYPE, "../a.jpg"),
        (tarfile.SYMTYPE, "l.jpg"),
        (tarfile.SYMTYPE, "missing"),
    ],
)
def test_links_to_no_earlier_file_are_errors_by_name(link: tuple[bytes, str]) -> None:
    samples = group(["a.jpg", ("l.jpg", *link), "later.jpg"])
    assert kinds(samples) == [("link", b"l.jpg")]
    assert "'l.jpg' at byte 1024" in samples.findings[0].message
    assert link[1] in samples.findings[0].message
    assert samples.keys == [b"a", b"later"]


def test_links_to_folders_and_devices_are_errors() -> None:
    samples = group([("d", tarfile.DIRTYPE, ""), ("l.jpg", tarfile.SYMTYPE, "d"), ("z", tarfile.CHRTYPE, ""),
                     ("m.jpg", tarfile.LNKTYPE, "z")])  # fmt: skip
    assert [kind for kind, _ in kinds(samples)] == ["directory", "link", "special", "link"]


def test_a_target_that_was_replaced_counts_as_it_was_when_the_link_was_written() -> None:
    samples = group(["a.jpg", ("b.jpg", tarfile.LNKTYPE, "a.jpg"), "a.jpg"])
    assert samples.offsets.tolist() == [512, 512, 2048]


def test_an_empty_archive_has_no_samples() -> None:
    samples = group([])
    assert samples.num_samples == 0
    assert samples.part_start.tolist() == [0]
    assert samples.findings == []
    assert group(["README"]).num_samples == 0


def test_findings_come_in_archive_order_and_every_kind_has_a_sentence() -> None:
    samples = group(["a.jpg", "README", "a.cls", "b.x", "b.x", "a.jpg", "/c.x"])
    offsets = [finding.offset for finding in samples.findings]
    assert offsets == sorted(offsets)
    assert {finding.kind for finding in samples.findings} <= SKIP_KINDS.keys() | ERROR_KINDS.keys()
    assert isinstance(samples.findings[0], Finding)


def read_by_webdataset(data: bytes) -> list[tuple[bytes, list[bytes]]]:
    reader: Any = pytest.importorskip("webdataset.tariterators")
    members = [member | {"__url__": ""} for member in reader.tar_file_iterator(io.BytesIO(data))]
    return [
        (sample["__key__"].encode(), [part.encode() for part in sample if not part.startswith("__")])
        for sample in reader.group_by_keys(members)
    ]


PIECES = st.lists(
    st.sampled_from(["a", "b", "d.1", "x.jpg", "x.JPG", "y.cls", "y.seg.png", "noext", "__m__"]), min_size=1, max_size=3
)


@settings(max_examples=60, deadline=None)
@given(names=st.lists(PIECES.map("/".join), max_size=12))
def test_samples_are_those_that_webdataset_reads(names: list[str]) -> None:
    samples = group(names)
    if not any(finding.kind == "duplicate_part" for finding in samples.findings):  # that reader gives up there
        assert as_dict(samples) == read_by_webdataset(pack(names))
