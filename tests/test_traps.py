"""Traps that public reports name and no other test holds; docs/internals/traps.md says which report led here."""

from __future__ import annotations

import gc
import os
import random
import re
import shutil
import stat
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import webdataset
from helpers import Said, make_tree, pack, read_members, read_tar, run_cli, shard_paths
from snapshots import files_below, small_tree

from shardtool.errors import BadKey, GroupError, SourceError
from shardtool.grouping.twins import fold
from shardtool.names import index_path, shard_path

NFC, NFD = "caf\u00e9.txt", "cafe\u0301.txt"


def balanced(ledger: dict[str, Any]) -> bool:
    return bool(ledger["seen"] == ledger["packed"] + sum(ledger["ignored"].values()) + ledger["failed"])


def packed(tree: Path, out: Path, **options: Any) -> dict[bytes, bytes]:
    """Members of a data set, and the ledger balances."""
    result = pack(tree, out, **options)
    assert result.manifest is not None
    assert balanced(result.manifest.ledger)
    return read_members(out)


def read_by_webdataset(out: Path) -> Counter[tuple[str, tuple[str, ...]]]:
    """(key, part names) of each sample, as that package reads the shards."""
    found: Counter[tuple[str, tuple[str, ...]]] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # its streams are closed by the collector
        for sample in webdataset.WebDataset([os.fspath(path) for path in shard_paths(out)], shardshuffle=False):
            found[sample["__key__"], tuple(sorted(name for name in sample if name[0] != "_"))] += 1
        gc.collect()
    return found


# --- names


@pytest.mark.parametrize(
    "name",
    [
        b"a:b.wav", b"D:\\x.jpg", b"back\\slash.jpg", b"$HOME.jpg", b"sp ace.jpg", b" lead.jpg", b"tab\t.jpg",
        b"new\nline.jpg", b"bell\x07.jpg", b"back\x08space.jpg", b"del\x7f.jpg", b"quo\"te'.jpg", b"-rf.jpg", b"*.jpg",
        b"con.jpg", b"~.jpg", b"#.jpg", b"%41.jpg", b"{0,9}.jpg", b"@LongLink.jpg", "\u3000.jpg".encode(),
        "\u00a0nbsp.jpg".encode(), "\u202eltr.jpg".encode(), "日本語.jpg".encode(), "🐈.jpg".encode(), b"latin\xe9.jpg",
        b"\x92.jpg", b"\xff\xfe.jpg", b"__MACOSX.jpg", b"PaxHeader.jpg",
    ],
)  # fmt: skip
def test_any_name_is_packed_byte_for_byte(tmp_path: Path, name: bytes) -> None:
    files = {name: b"payload", b"folder/" + name: b"other"}
    assert packed(make_tree(tmp_path / "src", files), tmp_path / "out") == files
    assert run_cli("verify", tmp_path / "out", "--deep").code == 0


def test_dotted_titles_are_an_error_that_shows_the_cure_which_works(tmp_path: Path) -> None:
    names = ("235 Track 2.0 (Clean).mp3", "235 Track 2.0 (Clean).json", "22.05.png", "22.06.png", "23.05.png")
    tree = make_tree(tmp_path / "src", dict.fromkeys(names, b"x"))
    with pytest.raises(BadKey) as caught:
        pack(tree, tmp_path / "out")
    assert "--group-by last-dot" in caught.value.hint
    pack(tree, tmp_path / "out", group_by="last-dot")
    wanted = {"235 Track 2_0 (Clean)": ("json", "mp3"), "22_05": ("png",), "22_06": ("png",), "23_05": ("png",)}
    assert read_by_webdataset(tmp_path / "out") == Counter(wanted.items())


def test_folders_with_dots_are_no_part_of_the_cut(tmp_path: Path) -> None:
    names = ("train.v1/0001.jpg", "train.v1/0001.json", "train.v1/0002.jpg", "a.b/22.0/1.png")
    pack(make_tree(tmp_path / "src", dict.fromkeys(names, b"x")), tmp_path / "out")
    wanted = {"train.v1/0001": ("jpg", "json"), "train.v1/0002": ("jpg",), "a.b/22.0/1": ("png",)}
    assert read_by_webdataset(tmp_path / "out") == Counter(wanted.items())


def test_equal_names_in_class_folders_stay_apart_and_keep_their_class(tmp_path: Path) -> None:
    names = [f"{folder}/{number:04d}.jpg" for folder in ("pass", "fail") for number in range(5)]
    members = packed(make_tree(tmp_path / "src", {name: name for name in names}), tmp_path / "out", label_from="parent")
    assert {name for name in members if name.endswith(b".jpg")} == {name.encode() for name in names}
    assert {members[name[:-4].encode() + b".cls"] for name in names if name.startswith("fail")} == {b"0"}


def test_two_files_of_one_type_become_two_parts_by_a_regex(tmp_path: Path) -> None:
    files = {f"{side}/{number:04d}.png": f"{side}{number}" for side in ("left", "right") for number in range(3)}
    rule = r"regex:(?P<part>left|right)/(?P<key>\d+)\.png"
    pack(make_tree(tmp_path / "src", files), tmp_path / "out", group_by=rule)
    assert read_by_webdataset(tmp_path / "out") == {(f"{n:04d}", ("left", "right")): 1 for n in range(3)}


def test_parts_of_a_sample_are_neighbours_whatever_the_order_of_creation(tmp_path: Path) -> None:
    names = [f"v{number}.{part}" for number in range(30) for part in ("mp4", "info.json", "mp4.json")]
    random.Random(4).shuffle(names)
    pack(make_tree(tmp_path / "src", dict.fromkeys(names, b"x")), tmp_path / "out", shards=3)
    for path in shard_paths(tmp_path / "out"):
        keys = [name.partition(b".")[0] for name, _ in read_tar(path)]
        assert keys == [key for key in dict.fromkeys(keys) for _ in range(3)]


def test_a_list_may_say_dot_and_double_slash_but_not_lead_out(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", {"a.jpg": "1", "b/c.jpg": "2", "d.jpg": "3"})
    (tmp_path / "list").write_text("./a.jpg\nb//c.jpg\n")
    assert packed(tree, tmp_path / "out", files_from=os.fspath(tmp_path / "list")).keys() == {b"a.jpg", b"b/c.jpg"}
    for path in ("../secret.jpg", "b/../../secret.jpg", "/etc/hostname"):
        (tmp_path / "list").write_text(f"a.jpg\n{path}\n")
        with pytest.raises(SourceError, match="outside the source folder"):
            pack(tree, tmp_path / "out2", files_from=os.fspath(tmp_path / "list"))


def test_a_source_named_through_a_link_and_dots_is_the_one_the_system_means(tmp_path: Path) -> None:
    make_tree(tmp_path, {"real/deep/x.txt": "", "real/there/right.txt": "right", "there/wrong.txt": "wrong"})
    (tmp_path / "link").symlink_to("real/deep")
    assert packed(tmp_path / "link" / ".." / "there", tmp_path / "out") == {b"right.txt": b"right"}


# --- twins


def notices(tree: Path, out: Path, **options: Any) -> str:
    said = Said()
    pack(tree, out, say=said, **options)
    return "\n".join(said.warnings)


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ((NFC, NFD), r"cafe\u0301 and caf\xe9"),
        (("a.jpg", "A.jpg"), "A and a"),
        (("Cats/1.jpg", "cats/1.jpg"), "Cats/1 and cats/1"),
        (("É.txt", "é.txt"), "É and é"),
    ],
    ids=["unicode-form", "case", "folders", "case-beyond-ascii"],
)
def test_twins_are_both_kept_and_noticed(tmp_path: Path, names: tuple[str, str], shown: str) -> None:
    tree = make_tree(tmp_path / "src", {name: f"content of {number}" for number, name in enumerate(names)})
    if len(list(tree.rglob("*.*"))) < 2:
        pytest.skip("this file system has made one file of them")
    text = notices(tree, tmp_path / "out")
    assert shown in text
    assert "macOS and Windows" in text
    wanted = {name.encode(): f"content of {number}".encode() for number, name in enumerate(names)}
    assert read_members(tmp_path / "out") == wanted


def test_parts_that_differ_in_case_are_noticed_where_case_is_kept(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", {"img1.LEFT.jpg": "1", "img1.left.jpg": "2"})
    assert ".LEFT.jpg and .left.jpg" in notices(tree, tmp_path / "out", keep_case=True)


@pytest.mark.parametrize(
    "names", [("a.txt", "b.txt"), ("straße.txt", "strasse.txt"), ("A/1.txt", "a/2.txt"), ("IMG_1.JPG", "IMG_2.JPG")]
)
def test_names_that_are_no_twins_are_not_noticed(tmp_path: Path, names: tuple[str, str]) -> None:
    tree = make_tree(tmp_path / "src", dict.fromkeys(names, b"x"))
    assert "Unicode" not in notices(tree, tmp_path / "out")


def test_many_twins_are_counted_and_five_are_shown(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", {f"{word}/{n}.txt": b"" for word in ("x", "X") for n in range(20)})
    text = notices(tree, tmp_path / "out", seed=3)
    assert "20 names differ" in text
    assert text.count(" and x/") == 5


@pytest.mark.parametrize("name", [b"\xff\xc3\x89", b"plain", "Å".encode(), "A\u030a".encode(), "\u212b".encode()])
def test_folding_twice_is_folding_once(name: bytes) -> None:
    assert fold(fold(name)) == fold(name)


# --- sizes


def test_the_limit_counts_headers_padding_and_trailer(tmp_path: Path) -> None:
    files = {f"{n:04d}.{part}": b"eleven byte" for n in range(1_500) for part in ("a", "b")}
    pack(make_tree(tmp_path / "src", files), tmp_path / "out", shard_size=1_000_000)
    sizes = [path.stat().st_size for path in shard_paths(tmp_path / "out")]
    assert max(sizes) <= 1_000_000
    assert sum(sizes) >= 3_000 * 1_024


def test_a_tiny_file_takes_two_blocks(tmp_path: Path) -> None:
    pack(make_tree(tmp_path / "src", {f"{n:03d}.x": b"1" for n in range(100)}), tmp_path / "out")
    assert sum(path.stat().st_size for path in shard_paths(tmp_path / "out")) <= 100 * 1_024 + 10_240


def test_a_few_large_files_among_many_small_ones_break_no_limit(tmp_path: Path) -> None:
    files = {f"{n:03d}.x": bytes(1_000) for n in range(300)} | {f"big{n}.x": bytes(150_000) for n in range(3)}
    said = Said()
    pack(make_tree(tmp_path / "src", files), tmp_path / "out", shard_size=100_000, say=said)
    large = [path for path in shard_paths(tmp_path / "out") if path.stat().st_size > 100_000]
    assert [len(read_tar(path)) for path in large] == [1, 1, 1]
    assert "3 samples are larger" in "\n".join(said.warnings)


def test_more_shards_than_samples_make_no_empty_shard(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", {f"{n}.x": b"1" for n in range(25)})
    ran = run_cli("pack", tree, tmp_path / "out", "--shards", "32")
    if ran.code == 0:
        paths = shard_paths(tmp_path / "out")
        assert len(paths) <= 25
        assert all(f"-of-{len(paths):05d}" in path.name for path in paths)
    else:
        assert ran.code == 2
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("total", [9_999, 12_000, 100_001])
def test_names_sort_and_folders_stay_small_however_many_shards(total: int) -> None:
    for paths in (
        [shard_path("train", number, total, ".tar", total=total) for number in range(total)],
        [index_path(number, total) for number in range(total)],
    ):
        assert paths == sorted(paths)
        assert max(Counter(path.rpartition("/")[0] for path in paths).values()) <= 10_000


# --- empty


def test_an_empty_source_writes_nothing(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", {"folder/": b"", ".DS_Store": b"x"})
    with pytest.raises(GroupError, match="no files to pack"):
        pack(tree, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_empty_files_are_parts(tmp_path: Path) -> None:
    files = {b"a.jpg": b"", b"a.txt": b"caption", b"b.jpg": b""}
    assert packed(make_tree(tmp_path / "src", files), tmp_path / "out") == files


def test_only_files_without_extension_are_an_error_that_says_how_to_keep_them(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", {"README": "1", "a.": "2"})
    with pytest.raises(GroupError) as caught:
        pack(tree, tmp_path / "out")
    assert "--no-ext" in caught.value.hint
    assert len(packed(tree, tmp_path / "out", no_ext="data")) == 2


# --- links and special files


def test_a_class_folder_that_is_a_link_is_packed(tmp_path: Path) -> None:
    make_tree(tmp_path, {"elsewhere/1.jpg": "1", "src/cats/2.jpg": "2"})
    (tmp_path / "src" / "dogs").symlink_to(tmp_path / "elsewhere")
    assert packed(tmp_path / "src", tmp_path / "out") == {b"cats/2.jpg": b"2", b"dogs/1.jpg": b"1"}


def test_holes_and_hard_links_are_packed_as_their_bytes(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", {"one.bin": "same"})
    (tree / "two.bin").hardlink_to(tree / "one.bin")
    with (tree / "holes.bin").open("wb") as file:
        file.seek(3 << 20)
        file.write(b"end")
    assert packed(tree, tmp_path / "out") == {
        b"one.bin": b"same",
        b"two.bin": b"same",
        b"holes.bin": bytes(3 << 20) + b"end",
    }


# --- afterwards


def test_a_copy_without_its_times_is_as_good(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "src")
    pack(tree, tmp_path / "out", shards=4)
    shutil.copytree(tmp_path / "out", tmp_path / "copy", copy_function=shutil.copyfile)
    assert run_cli("verify", tmp_path / "copy", "--deep").code == 0
    assert pack(tree, tmp_path / "copy", shards=4).num_packed == 0


def test_nothing_of_the_machine_is_in_a_shard(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", {"a.bin": "x"})
    (tree / "a.bin").chmod(stat.S_IRWXU)
    pack(tree, tmp_path / "out")
    data = b"".join(path.read_bytes() for path in files_below(tmp_path / "out") if ".shardtool" not in path.parts)
    for word in (os.fsencode(tmp_path), os.uname().nodename.encode(), b"root"):
        assert word not in data


def test_the_table_of_traps_names_tests_that_exist() -> None:
    folder = Path(__file__).parent
    page = (folder.parent / "docs" / "internals" / "traps.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| (?:`((?:servers/)?test_\w+\.py)`: )?`(test_\w+)` \|$", page, re.MULTILINE)
    assert len(rows) > 60
    texts = {
        file: (folder / file).read_text(encoding="utf-8") for file in {file or "test_traps.py" for file, _ in rows}
    }
    assert not [name for file, name in rows if f"def {name}(" not in texts[file or "test_traps.py"]]
